import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from hf_electra_rtd import ElectraRTDOutput
from hf_electra_rtd.generators import MaskedLMGenerator
from hf_electra_rtd.objectives import ReplacedTokenDetection
from hf_electra_rtd.training.evaluation import held_out_metrics, held_out_tensors
from hf_electra_rtd.training.health import has_collapsed
from hf_electra_rtd.training.meters import Stopwatch, TrainingMeters


MEASURES = (*MaskedLMGenerator.measures, *ReplacedTokenDetection.measures)


@pytest.fixture
def by_hand():
    """Two rows of four tokens, the last of row 1 padding; two slots each, the last of row 1 unused."""
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


def test_training_meters_count_by_hand(by_hand):
    meters = TrainingMeters(MEASURES)
    meters.update(*by_hand)
    drained = meters.drain()
    assert drained["tokens"] == 7
    for name, value in COUNTED.items():
        assert drained[name] == pytest.approx(value), name
    assert meters.drain() == {}


def test_training_meters_weigh_batches_by_their_tokens(by_hand):
    output, inputs = by_hand
    meters = TrainingMeters(MEASURES)
    meters.update(output, inputs)
    one_row = ElectraRTDOutput(**{k: v[1:] for k, v in output.items()})
    meters.update(one_row, {key: value[1:] for key, value in inputs.items()})
    drained = meters.drain()
    assert drained["generator_loss"] == pytest.approx((4.5 + 1.5) / (3 + 1))
    assert drained["discriminator_loss"] == pytest.approx((1.75 + 0.75) / (7 + 3))


def test_the_estimated_auc_is_right_for_normal_logits(by_hand):
    output, inputs = by_hand
    replaced = (torch.rand(200, 4) < 0.3).long()
    output.logits, output.replaced_labels = torch.randn(200, 4) + 1.2 * replaced, replaced
    names = ("corrupted_input_ids", "generator_predictions", "generator_token_losses", "discriminator_token_losses")
    for name in names:
        output[name] = output[name][:1].expand(200, -1)
    inputs = {name: value[:1].expand(200, -1) for name, value in inputs.items() if name != "attention_mask"}
    meters = TrainingMeters(MEASURES)
    meters.update(output, inputs)
    exact = roc_auc_score(replaced.flatten(), output.logits.flatten())
    assert meters.drain()["discriminator_auc"] == pytest.approx(exact, abs=0.02)


def held_out(output, inputs, padding=0):
    tensors = [tensor.numpy() for tensor in held_out_tensors(MEASURES, output, inputs)]
    # The Trainer pads what is as long as a row where ranks or batches had longer rows.
    padded = [np.pad(t, ((0, 0), (0, padding)), constant_values=-100) for t in tensors[1:]]
    return held_out_metrics(MEASURES, [tensors[0], *padded])


def test_held_out_metrics_count_by_hand(by_hand):
    output, inputs = by_hand
    metrics = held_out(output, inputs)
    for name, value in COUNTED.items():
        assert metrics[name] == pytest.approx(value), name
    logits = output.logits[inputs["attention_mask"].bool()]
    labels = output.replaced_labels[inputs["attention_mask"].bool()]
    assert metrics["discriminator_auc"] == pytest.approx(roc_auc_score(labels, logits))


def test_held_out_metrics_ignore_what_the_trainer_padded(by_hand):
    assert held_out(*by_hand, padding=3) == held_out(*by_hand)


def test_an_auc_of_one_class_is_not_a_number(by_hand):
    output, inputs = by_hand
    output.replaced_labels = torch.zeros_like(output.replaced_labels)
    metrics = held_out(output, inputs)
    assert math.isnan(metrics.pop("discriminator_auc"))
    assert all(math.isfinite(value) for value in metrics.values())


def test_the_stopwatch_counts_only_what_is_not_paused():
    now = 100.0
    stopwatch = Stopwatch(now=lambda: now)
    assert stopwatch.seconds == 0
    with stopwatch.paused():
        now += 5
    stopwatch.start()
    now += 10
    with stopwatch.paused():
        now += 1000
        assert stopwatch.seconds == 10
        with stopwatch.paused():
            now += 1000
        assert stopwatch.seconds == 10
    now += 7
    assert stopwatch.seconds == 17


@pytest.mark.parametrize(
    ("recall", "auc", "collapsed"),
    [(0.0, 0.5, True), (1.0, 0.5, True), (0.0, 0.8, False), (0.3, 0.5, False), (0.0, float("nan"), False)],
)
def test_collapse_is_saying_one_thing_to_everything_and_knowing_nothing(recall, auc, collapsed):
    assert has_collapsed(recall, auc) == collapsed
