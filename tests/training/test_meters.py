import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from transformers import EvalPrediction

from hf_electra_rtd import ElectraRTDOutput
from hf_electra_rtd.training.evaluation import held_out_metrics, held_out_tensors
from hf_electra_rtd.training.meters import Stopwatch, TrainingMeters, has_collapsed


@pytest.fixture
def by_hand():
    """Two rows of four tokens, the last of row 1 padding; two slots each, the last of row 1 unused."""
    inputs = {
        "input_ids": torch.tensor([[2, 4, 11, 3], [2, 4, 3, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
        "masked_positions": torch.tensor([[1, 2], [1, 0]]),
        "labels": torch.tensor([[10, 11], [12, -100]]),
    }
    generator_logits = torch.zeros(2, 2, 20)
    generator_logits[0, 0, 10] = generator_logits[0, 1, 15] = generator_logits[1, 0, 12] = 3.0
    output = ElectraRTDOutput(
        logits=torch.tensor([[-1.0, 2.0, 1.0, -2.0], [-3.0, -0.5, -1.0, 9.0]]),
        generator_loss=torch.tensor(1.5),
        discriminator_loss=torch.tensor(0.25),
        generator_predictions=torch.tensor([[10, 15], [12, 0]]),
        generator_logits=generator_logits,
        corrupted_input_ids=torch.tensor([[2, 13, 11, 3], [2, 14, 3, 0]]),
        replaced_labels=torch.tensor([[0, 1, 0, 0], [0, 1, 0, 0]]),
    )
    return output, inputs


COUNTED = {
    "generator_accuracy": 2 / 3,
    "sampled_accuracy": 1 / 3,
    "discriminator_precision": 1 / 2,  # flagged: (0, 1) rightly and (0, 2) wrongly; padding does not count
    "discriminator_recall": 1 / 2,
    "discriminator_accuracy": 5 / 7,
    "replaced_share": 2 / 7,
}


def test_training_meters_count_by_hand(by_hand):
    meters = TrainingMeters()
    meters.update(*by_hand)
    drained = meters.drain()
    assert drained["tokens"] == 7
    assert drained["generator_loss"] == pytest.approx(1.5)
    assert drained["discriminator_loss"] == pytest.approx(0.25)
    for name, value in COUNTED.items():
        assert drained[name] == pytest.approx(value), name
    assert meters.drain() == {}


def test_training_meters_weigh_batches_by_their_tokens(by_hand):
    output, inputs = by_hand
    meters = TrainingMeters()
    meters.update(output, inputs)
    one_row = ElectraRTDOutput(**{k: v if v.dim() == 0 else v[1:] for k, v in output.items()})
    one_row.generator_loss, one_row.discriminator_loss = torch.tensor(3.0), torch.tensor(1.0)
    meters.update(one_row, {key: value[1:] for key, value in inputs.items()})
    drained = meters.drain()
    assert drained["generator_loss"] == pytest.approx((3 * 1.5 + 1 * 3.0) / 4)
    assert drained["discriminator_loss"] == pytest.approx((7 * 0.25 + 3 * 1.0) / 10)


def test_the_estimated_auc_is_right_for_normal_logits(by_hand):
    output, inputs = by_hand
    replaced = (torch.rand(200, 4) < 0.3).long()
    output.logits, output.replaced_labels = torch.randn(200, 4) + 1.2 * replaced, replaced
    for name in ("corrupted_input_ids", "generator_predictions"):
        output[name] = output[name][:1].expand(200, -1)
    inputs = {name: value[:1].expand(200, -1) for name, value in inputs.items() if name != "attention_mask"}
    meters = TrainingMeters()
    meters.update(output, inputs)
    exact = roc_auc_score(replaced.flatten(), output.logits.flatten())
    assert meters.drain()["discriminator_auc"] == pytest.approx(exact, abs=0.02)


def test_held_out_metrics_count_by_hand(by_hand):
    output, inputs = by_hand
    tensors = held_out_tensors(output, inputs)
    metrics = held_out_metrics(EvalPrediction([t.numpy() for t in tensors], inputs["labels"].numpy()))
    for name, value in COUNTED.items():
        assert metrics[name] == pytest.approx(value), name
    right, wrong = math.log(19 + math.exp(3)) - 3, math.log(19 + math.exp(3))
    assert metrics["generator_loss"] == pytest.approx((2 * right + wrong) / 3)
    logits = output.logits[inputs["attention_mask"].bool()]
    labels = output.replaced_labels[inputs["attention_mask"].bool()]
    assert metrics["discriminator_auc"] == pytest.approx(roc_auc_score(labels, logits))
    assert metrics["discriminator_loss"] == pytest.approx(
        float(torch.nn.functional.binary_cross_entropy_with_logits(logits, labels.float()))
    )


def test_held_out_metrics_ignore_what_the_trainer_padded(by_hand):
    output, inputs = by_hand
    tensors = [t.numpy() for t in held_out_tensors(output, inputs)]
    padded = [np.pad(t, ((0, 0), (0, 3)), constant_values=-100) for t in tensors]
    labels = inputs["labels"].numpy()
    assert held_out_metrics(EvalPrediction(padded, labels)) == held_out_metrics(EvalPrediction(tensors, labels))


def test_an_auc_of_one_class_is_not_a_number(by_hand):
    output, inputs = by_hand
    output.replaced_labels = torch.zeros_like(output.replaced_labels)
    tensors = [t.numpy() for t in held_out_tensors(output, inputs)]
    metrics = held_out_metrics(EvalPrediction(tensors, inputs["labels"].numpy()))
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
    [(0.0, 0.5, True), (0.0, 0.8, False), (0.3, 0.5, False), (0.0, float("nan"), False)],
)
def test_collapse_is_saying_original_to_everything_and_knowing_nothing(recall, auc, collapsed):
    assert has_collapsed(recall, auc) == collapsed
