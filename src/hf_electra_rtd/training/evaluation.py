"""Held-out evaluation: both towers on a corruption that is the same every time."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader
from transformers import EvalPrediction

from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.modeling_electra_rtd import ElectraRTDOutput
from hf_electra_rtd.ops import IGNORED, masked_slots


class HeldOutTensors(NamedTuple):
    """What a batch contributes, a row each, so that ranks can be gathered and a padded last batch trimmed.

    Attributes:
        logits: (B, L) float32.
        replaced: (B, L) int64, 0 or 1; -1 where there is no token.
        nll: (B, K) float32; of the original at each slot.
        correct: (B, K) int64; whether the most likely token is the original.
        sampled_correct: (B, K) int64; whether the sampled one is.
        used: (B, K) int64; whether the slot holds a masked token.
    """

    logits: Tensor
    replaced: Tensor
    nll: Tensor
    correct: Tensor
    sampled_correct: Tensor
    used: Tensor


@torch.no_grad()
def held_out_tensors(output: ElectraRTDOutput, inputs: dict[str, Tensor]) -> HeldOutTensors:
    """The contribution of a batch. `output` must hold `generator_logits`; `inputs` is what the model was called
    with."""
    assert output.logits is not None
    assert output.replaced_labels is not None
    assert output.corrupted_input_ids is not None
    assert output.generator_predictions is not None
    assert output.generator_logits is not None
    slots = masked_slots(inputs["input_ids"], inputs.get("masked_positions"), inputs["labels"])
    used = slots.labels.ne(IGNORED)
    nll = F.cross_entropy(
        output.generator_logits.float().transpose(1, 2), slots.labels, ignore_index=IGNORED, reduction="none"
    )
    replaced = output.replaced_labels
    if inputs.get("attention_mask") is not None:
        replaced = replaced.masked_fill(inputs["attention_mask"].eq(0), -1)
    return HeldOutTensors(
        logits=output.logits.float(),
        replaced=replaced,
        nll=nll,
        correct=output.generator_predictions.eq(slots.labels).long(),
        sampled_correct=output.corrupted_input_ids.gather(1, slots.positions).eq(slots.labels).long(),
        used=used.long(),
    )


def evaluate_held_out(model: nn.Module, loader: DataLoader, accelerator: Accelerator) -> dict[str, float]:
    """The metrics of [`held_out_metrics`] with the prefix `eval_`, and `eval_loss`, over the processes of a run.

    Args:
        model: the pair as `accelerator` prepared it; in evaluation mode only here.
        loader: of the held-out rows, prepared likewise.
        accelerator: of the run.
    """
    training = model.training
    model.eval()
    parts: list[list[np.ndarray]] = []
    for batch in loader:
        with torch.no_grad():
            output = model(**batch, output_generator_logits=True)
        tensors = accelerator.gather_for_metrics(tuple(held_out_tensors(output, batch)))
        parts.append([tensor.cpu().numpy() for tensor in tensors])
    model.train(training)
    columns: Any = tuple(np.concatenate(column) for column in zip(*parts, strict=True))
    found = held_out_metrics(EvalPrediction(columns, label_ids=columns[0]))  # the tensors hold their own labels
    metrics = {f"eval_{name}": value for name, value in found.items()}
    return {"eval_loss": weighted_loss(metrics, accelerator.unwrap_model(model).config), **metrics}


def weighted_loss(metrics: dict[str, float], config: ElectraRTDConfig, prefix: str = "eval") -> float:
    """The loss of the whole held-out set. (A mean of batch means depends on how rows fall into batches and ranks.)"""
    return float(
        config.generator_weight * metrics[f"{prefix}_generator_loss"]
        + config.discriminator_weight * metrics[f"{prefix}_discriminator_loss"]
    )


def held_out_metrics(prediction: EvalPrediction) -> dict[str, float]:
    """Metrics over the whole held-out set, from the gathered [`HeldOutTensors`].

    Returns:
        `generator_loss` (nats a masked token), `generator_accuracy`, `sampled_accuracy`, `discriminator_loss` (nats a
        real token), and for "replaced" as the positive class: `discriminator_auc` (not a number where a class is
        missing), `discriminator_precision`, `discriminator_recall`, `discriminator_accuracy`; `replaced_share`.
    """
    from sklearn.metrics import precision_recall_fscore_support, roc_auc_score

    tensors: Any = HeldOutTensors(*prediction.predictions)  # of NumPy arrays now
    # Where ranks or batches had rows of other lengths, the Trainer padded with -100: neither used, nor 0, nor 1.
    used = tensors.used == 1
    num_masked = max(1, int(used.sum()))
    real = (tensors.replaced == 0) | (tensors.replaced == 1)
    logits, replaced = tensors.logits[real].astype(np.float64), tensors.replaced[real].astype(bool)
    flagged = logits > 0
    precision, recall, _, _ = precision_recall_fscore_support(replaced, flagged, average="binary", zero_division=0)
    both_classes = bool(replaced.any() and not replaced.all())
    return {
        "generator_loss": float(tensors.nll[used].astype(np.float64).sum() / num_masked),
        "generator_accuracy": float((tensors.correct[used] == 1).sum() / num_masked),
        "sampled_accuracy": float((tensors.sampled_correct[used] == 1).sum() / num_masked),
        "discriminator_loss": float(np.logaddexp(0.0, np.where(replaced, -logits, logits)).mean()),
        "discriminator_auc": float(roc_auc_score(replaced, logits)) if both_classes else float("nan"),
        "discriminator_precision": float(precision),
        "discriminator_recall": float(recall),
        "discriminator_accuracy": float((flagged == replaced).mean()),
        "replaced_share": float(replaced.mean()),
    }
