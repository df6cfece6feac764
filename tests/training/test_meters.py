import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from transformers import TrainerState

from hf_electra_rtd import (
    ElectraRTDOutput,
    RTDTrainer,
    RTDTrainingArguments,
)
from hf_electra_rtd.base.accounting import model_flops
from hf_electra_rtd.pair.generators import MaskedLMGenerator
from hf_electra_rtd.pair.objectives import ReplacedTokenDetection
from hf_electra_rtd.training.meters import (
    Stopwatch,
    TrainingMeters,
    held_out_metrics,
    held_out_tensors,
    warn_if_flat,
)


MEASURES = (*MaskedLMGenerator.measures, *ReplacedTokenDetection.measures)


@pytest.fixture
def by_hand():
    """Two sequences of four tokens and two slots. The second has one token of padding, and its last slot is unused."""
    inputs = {
        "input_ids": torch.tensor([[2, 4, 11, 3], [2, 4, 3, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
        "masked_positions": torch.tensor([[1, 2], [1, 0]]),
        "labels": torch.tensor([[10, 11], [12, -100]]),
    }
    output = ElectraRTDOutput(
        logits=torch.tensor([[-1.0, 2.0, 1.0, -2.0], [-3.0, -0.5, -1.0, 9.0]]),
        generator_predictions=torch.tensor([[10, 15], [12, 0]]),
        generator_token_losses=torch.tensor([[1.0, 2.0], [1.5, 0.0]]),
        discriminator_token_losses=torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.25, 0.0, 0.0]]),
        corrupted_input_ids=torch.tensor([[2, 13, 11, 3], [2, 14, 3, 0]]),
        replaced_labels=torch.tensor([[0, 1, 0, 0], [0, 1, 0, 0]]),
    )
    return output, inputs


COUNTED = {
    "generator_loss": 4.5 / 3,
    "discriminator_loss": 1.75 / 7,
    "generator_accuracy": 2 / 3,
    "sampled_accuracy": 1 / 3,
    "discriminator_precision": 1 / 2,  # flagged: (0, 1) rightly and (0, 2) wrongly; padding does not count
    "discriminator_recall": 1 / 2,
    "discriminator_accuracy": 5 / 7,
    "replaced_share": 2 / 7,
}


def test_training_meters_count_by_hand_and_weigh_batches_by_their_tokens(by_hand):
    output, inputs = by_hand
    meters = TrainingMeters(MEASURES)
    meters.update(output, inputs)
    drained = meters.drain()
    assert drained["tokens"] == 7
    for name, value in COUNTED.items():
        assert drained[name] == pytest.approx(value), name
    assert meters.drain() == {}
    meters.update(output, inputs)
    one = ElectraRTDOutput(**{k: v[1:] for k, v in output.items()})
    meters.update(one, {key: value[1:] for key, value in inputs.items()})
    drained = meters.drain()
    assert drained["generator_loss"] == pytest.approx((4.5 + 1.5) / (3 + 1))
    assert drained["discriminator_loss"] == pytest.approx((1.75 + 0.75) / (7 + 3))


def test_held_out_metrics_count_by_hand_and_ignore_padding(by_hand, model):
    def held_out(output, inputs, padding=0):
        tensors = [tensor.numpy() for tensor in held_out_tensors(MEASURES, output, inputs)]
        # The Trainer pads values per token if other processes or batches had longer sequences.
        padded = [np.pad(t, ((0, 0), (0, padding)), constant_values=-100) for t in tensors[1:]]
        return held_out_metrics(model, [tensors[0], *padded])

    output, inputs = by_hand
    metrics = held_out(output, inputs)
    assert metrics["loss"] == pytest.approx(4.5 / 3 + 50 * 1.75 / 7)
    for name, value in COUNTED.items():
        assert metrics[name] == pytest.approx(value), name
    real = inputs["attention_mask"].bool()
    exact = roc_auc_score(output.replaced_labels[real], output.logits[real])
    assert metrics["discriminator_auc"] == pytest.approx(exact)
    assert held_out(*by_hand, padding=3) == metrics
    output.replaced_labels = torch.zeros_like(output.replaced_labels)
    metrics = held_out(output, inputs)
    assert math.isnan(metrics.pop("discriminator_auc"))  # undefined for a single class
    assert all(math.isfinite(value) for value in metrics.values())


def test_the_stopwatch_counts_only_what_is_not_paused(monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.perf_counter", lambda: now)
    stopwatch = Stopwatch([{"train_seconds": 3.0}, {"train_seconds": 4.0}, {"loss": 9.0}])
    with stopwatch.paused():
        now += 5
    stopwatch.start()
    now += 10
    with stopwatch.paused(), stopwatch.paused():
        now += 1000
        assert stopwatch.seconds == 14
    now += 7
    assert (stopwatch.seconds, stopwatch.lap()) == (21, 17)


# Recorded held-out AUCs of size tiny, by initialization: stock on novels and on Wikipedia, neighbours on novels.
STOCK = [0.788, 0.67, 0.559, 0.55, 0.556, 0.566, 0.551, 0.574, 0.574, 0.576, 0.568, 0.572, 0.582, 0.577, 0.58]
LATE = [0.791, 0.661, 0.561, 0.554, 0.552, 0.55, 0.561, 0.564, 0.548, 0.554, 0.555, 0.566, 0.584, 0.601, 0.625, 0.636]
NEIGHBOURS = [0.761, 0.801, 0.806, 0.81, 0.826, 0.828]


@pytest.mark.parametrize(
    ("aucs", "bigram", "step", "warned_at"),
    [
        *((STOCK, 0.873, 15, 5), (LATE, 0.87, 28, 10), (NEIGHBOURS, 0.868, 6, None), (STOCK, 0.54, 15, None)),
        *(([0.5, 0.52, 0.54, 0.56], 0.9, 4, None), ([math.nan] * 5, 0.9, 5, None), ([0.5, 0.5], 0.9, 2, None)),
    ],
)
def test_an_auc_near_chance_that_does_not_rise_is_warned_of_once(aucs, bigram, step, warned_at, caplog):
    """It warns at the first evaluation from a third of the `step` planned steps on, and not again after resuming."""
    state, warned = TrainerState(max_steps=step), []
    for state.global_step, auc in enumerate(aucs, 1):
        log = {"eval_discriminator_auc": auc, "eval_bigram_auc": bigram, "step": state.global_step}
        state = TrainerState(max_steps=step, global_step=state.global_step, log_history=[*state.log_history, log])
        caplog.clear()
        warn_if_flat(state)
        warned += [state.global_step] * caplog.text.count(f"Step {state.global_step}: the discriminator")
    assert warned == ([] if warned_at is None else [warned_at])


# ---- The record ----


def test_a_record_counts_what_was_trained_until_now(model, blocks, tokenizer, tmp_path):
    args = RTDTrainingArguments(str(tmp_path), max_steps=6, per_device_train_batch_size=4, max_seq_length=32)

    def record(*sequences):
        trainer = RTDTrainer(model, args, *sequences, tokenizer)
        trainer.state = TrainerState(global_step=3, max_steps=6)
        return trainer.make_record()

    made = record(*blocks)
    assert (made.steps, made.sequences, made.tokens) == (3, 12, 12 * 32)
    assert made.flops == {"model": model_flops(model.config, 12, 32, 5)}
    assert made.parameters["total"] == sum(parameter.numel() for parameter in model.parameters())
    assert made.data["train"]["sha256"] == blocks[0].header.sha256
    assert made.data["held_out"]["num_sequences"] == len(blocks[1])
    made = record([{"input_ids": [2, 10, 11, 3]}] * 5, None)
    assert made.data == {"train": {"num_sequences": 5}}
    assert made.tokens == 12 * 32  # with padding: the real lengths are unknown without reading the sequences
