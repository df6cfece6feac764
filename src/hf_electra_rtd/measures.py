"""What is measured of a run, in training and on held-out sequences.

A measure is a class: the sums it takes from each sequence of a batch, and what it reports of their totals. Sums add up
over sequences, batches and processes, so a report does not depend on how sequences were grouped. The kind of generator
and the objective say which measures a run has (`measures` of both).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hf_electra_rtd.ops import IGNORED, MaskedSlots, masked_slots, original_ids, replace_at


class Observation(NamedTuple):
    """A batch and the model's output for it. B sequences, L tokens, K masked slots."""

    output: Any  # an `ElectraRTDOutput`
    slots: MaskedSlots
    used: Tensor  # (B, K) bool; the slot holds a masked token
    real: Tensor  # (B, L) bool; no padding
    originals: Tensor  # (B, L); the sequences before masking

    @property
    def replaced(self) -> Tensor:
        """(B, L) bool; a real token that is not the original."""
        return self.output.replaced_labels.bool() & self.real

    @property
    def masked(self) -> Tensor:
        """(B, L) bool; the position of a slot that holds a masked token."""
        return replace_at(torch.zeros_like(self.real), self.slots, self.used)


def observe(output: Any, inputs: dict[str, Tensor]) -> Observation:
    """The observation of a batch. `inputs` is what the model was called with."""
    input_ids, attention_mask = inputs["input_ids"], inputs.get("attention_mask")
    slots = masked_slots(input_ids, inputs.get("masked_positions"), inputs["labels"])
    real = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.ne(0)
    return Observation(output, slots, slots.labels.ne(IGNORED), real, original_ids(input_ids, slots))


# Where something is measured: values (B, L) and what counts, at these positions.
Positions = Callable[[Observation, Tensor], tuple[Tensor, Tensor]]


def at_all(seen: Observation, values_BL: Tensor) -> tuple[Tensor, Tensor]:
    """At every real token."""
    return values_BL, seen.real


def at_masked(seen: Observation, values_BL: Tensor) -> tuple[Tensor, Tensor]:
    """At the masked positions alone."""
    return values_BL.gather(1, seen.slots.positions), seen.used


class Measure(ABC):
    """What all measures have."""

    names: ClassVar[tuple[str, ...]]  # of the sums
    num_whole: ClassVar[int] = 0  # tensors that `whole` gives

    @abstractmethod
    def sums(self, seen: Observation) -> tuple[Tensor, ...]:
        """The sums of each sequence, in the order of `names`: tensors (B,)."""

    def whole(self, seen: Observation) -> tuple[Tensor, ...]:
        """Values of every held-out token, where sums are not enough: tensors (B, n), -100 where nothing counts."""
        return ()

    @abstractmethod
    def report(self, totals: dict[str, float], whole: Sequence[np.ndarray] = ()) -> dict[str, float]:
        """The results by name, from the totals of the sums and `whole` of all sequences (empty in training)."""


class Tokens(Measure):
    """`tokens`: how many real tokens there were."""

    names = ("tokens",)

    def sums(self, seen: Observation) -> tuple[Tensor, ...]:
        return (seen.real.sum(dim=1),)

    def report(self, totals: dict[str, float], whole: Sequence[np.ndarray] = ()) -> dict[str, float]:
        return totals


class GeneratorLoss(Measure):
    """`generator_loss`: nats a masked token."""

    names = ("loss", "masked")

    def sums(self, seen: Observation) -> tuple[Tensor, ...]:
        return seen.output.generator_token_losses.sum(dim=1), seen.used.sum(dim=1)

    def report(self, totals: dict[str, float], whole: Sequence[np.ndarray] = ()) -> dict[str, float]:
        return {"generator_loss": _ratio(totals["loss"], totals["masked"])}


class GeneratorAccuracy(Measure):
    """`generator_accuracy`: how often the most likely token is the original."""

    names = ("correct", "masked")

    def sums(self, seen: Observation) -> tuple[Tensor, ...]:
        correct = seen.output.generator_predictions.eq(seen.slots.labels) & seen.used
        return correct.sum(dim=1), seen.used.sum(dim=1)

    def report(self, totals: dict[str, float], whole: Sequence[np.ndarray] = ()) -> dict[str, float]:
        return {"generator_accuracy": _ratio(totals["correct"], totals["masked"])}


class SampledTokens(Measure):
    """`sampled_accuracy`: how often the sampled token is the original; `replaced_share`: of the real tokens."""

    names = ("correct", "masked", "replaced", "tokens")

    def sums(self, seen: Observation) -> tuple[Tensor, ...]:
        correct = seen.output.corrupted_input_ids.gather(1, seen.slots.positions).eq(seen.slots.labels) & seen.used
        return tuple(flags.sum(dim=1) for flags in (correct, seen.used, seen.replaced, seen.real))

    def report(self, totals: dict[str, float], whole: Sequence[np.ndarray] = ()) -> dict[str, float]:
        return {
            "sampled_accuracy": _ratio(totals["correct"], totals["masked"]),
            "replaced_share": _ratio(totals["replaced"], totals["tokens"]),
        }


class MainLoss(Measure):
    """`discriminator_loss`, in nats per token of the objective's mean (`positions`)."""

    names = ("loss", "tokens")

    def __init__(self, positions: Positions) -> None:
        self.positions = positions

    def sums(self, seen: Observation) -> tuple[Tensor, ...]:
        _, counts = self.positions(seen, seen.originals)
        return seen.output.discriminator_token_losses.sum(dim=1), counts.sum(dim=1)

    def report(self, totals: dict[str, float], whole: Sequence[np.ndarray] = ()) -> dict[str, float]:
        return {"discriminator_loss": _ratio(totals["loss"], totals["tokens"])}


class Detection(Measure):
    """Detection of replaced tokens, the positive class, at some positions: `discriminator_auc` (area under the ROC
    curve: exact on held-out sequences, NaN where a class is missing; in training estimated from the means and
    variances of the logits of both classes), `discriminator_precision`, `_recall`, `_accuracy`, each with a suffix."""

    names = (
        *("tokens", "replaced", "flagged", "flagged_replaced", "agreed"),
        *("logit_replaced", "logit_replaced_squared", "logit_original", "logit_original_squared"),
    )
    num_whole = 2

    def __init__(self, positions: Positions, suffix: str = "") -> None:
        self.positions, self.suffix = positions, suffix

    def sums(self, seen: Observation) -> tuple[Tensor, ...]:
        logits, counts = self.positions(seen, seen.output.logits.float())
        replaced = self.positions(seen, seen.output.replaced_labels)[0].bool()
        original, replaced = ~replaced & counts, replaced & counts
        flagged = (logits > 0) & counts
        squares = logits.square()
        summed = (
            *(counts, replaced, flagged, flagged & replaced, flagged.eq(replaced) & counts),
            *(logits.where(replaced, 0.0), squares.where(replaced, 0.0)),
            *(logits.where(original, 0.0), squares.where(original, 0.0)),
        )
        return tuple(values.sum(dim=1) for values in summed)

    def whole(self, seen: Observation) -> tuple[Tensor, ...]:
        logits, counts = self.positions(seen, seen.output.logits.float())
        replaced, _ = self.positions(seen, seen.output.replaced_labels)
        return logits, replaced.masked_fill(~counts, IGNORED)

    def report(self, totals: dict[str, float], whole: Sequence[np.ndarray] = ()) -> dict[str, float]:
        results = {
            "auc": _exact_auc(*whole) if whole else _normal_auc(totals),
            "precision": _ratio(totals["flagged_replaced"], totals["flagged"]),
            "recall": _ratio(totals["flagged_replaced"], totals["replaced"]),
            "accuracy": _ratio(totals["agreed"], totals["tokens"]),
        }
        return {f"discriminator_{name}{self.suffix}": value for name, value in results.items()}


class MaskedAccuracy(Measure):
    """`discriminator_masked_accuracy`: how often the discriminator's most likely token at a masked position is the
    original."""

    names = ("correct", "masked")

    def sums(self, seen: Observation) -> tuple[Tensor, ...]:
        correct = seen.output.predictions.eq(seen.slots.labels) & seen.used
        return correct.sum(dim=1), seen.used.sum(dim=1)

    def report(self, totals: dict[str, float], whole: Sequence[np.ndarray] = ()) -> dict[str, float]:
        return {"discriminator_masked_accuracy": _ratio(totals["correct"], totals["masked"])}


class TokenAccuracy(Measure):
    """How often the discriminator's most likely token is the original: `discriminator_token_accuracy` over all real
    tokens, `discriminator_replaced_accuracy` over those that were replaced."""

    names = ("correct", "tokens", "correct_replaced", "replaced")

    def sums(self, seen: Observation) -> tuple[Tensor, ...]:
        correct = seen.output.predictions.eq(seen.originals) & seen.real
        return tuple(flags.sum(dim=1) for flags in (correct, seen.real, correct & seen.replaced, seen.replaced))

    def report(self, totals: dict[str, float], whole: Sequence[np.ndarray] = ()) -> dict[str, float]:
        return {
            "discriminator_token_accuracy": _ratio(totals["correct"], totals["tokens"]),
            "discriminator_replaced_accuracy": _ratio(totals["correct_replaced"], totals["replaced"]),
        }


class CopyProbability(Measure):
    """The mean of the copy mechanism's probability: `copy_probability_original` at tokens that stand as they were,
    `copy_probability_replaced` at the others."""

    names = ("copy_original", "originals", "copy_replaced", "replaced")

    def sums(self, seen: Observation) -> tuple[Tensor, ...]:
        copy, original = seen.output.copy_probabilities, seen.real & ~seen.replaced
        summed = (copy.where(original, 0.0), original, copy.where(seen.replaced, 0.0), seen.replaced)
        return tuple(values.sum(dim=1) for values in summed)

    def report(self, totals: dict[str, float], whole: Sequence[np.ndarray] = ()) -> dict[str, float]:
        return {
            "copy_probability_original": _ratio(totals["copy_original"], totals["originals"]),
            "copy_probability_replaced": _ratio(totals["copy_replaced"], totals["replaced"]),
        }


# ---- Several measures at once ----


def sum_rows(measures: Sequence[Measure], seen: Observation) -> Tensor:
    """The sums of all measures for each sequence: (B, S)."""
    columns = [column for measure in measures for column in measure.sums(seen)]
    # Sums are exact enough in float64; MPS has none.
    dtype = torch.float32 if columns[0].device.type == "mps" else torch.float64
    return torch.stack([column.to(dtype) for column in columns], dim=1)


def report_totals(
    measures: Sequence[Measure], totals: Sequence[float], whole: Sequence[np.ndarray] | None = None
) -> dict[str, float]:
    """The results of all measures, from the totals of the columns of `sum_rows`, and for held-out sequences from the
    tensors of `whole` of each measure, in order."""
    results: dict[str, float] = {}
    sums, tensors = iter(totals), iter(whole or ())
    for measure in measures:
        own = {name: next(sums) for name in measure.names}
        kept = [next(tensors) for _ in range(measure.num_whole)] if whole is not None else []
        results |= measure.report(own, kept)
    return results


def _ratio(total: float, count: float) -> float:
    """A mean; 0 where nothing counts."""
    return total / max(1.0, count)


def _normal_auc(totals: dict[str, float]) -> float:
    """AUC if the logits of each class were normal: Φ(d / sqrt(v1 + v2)); 0.5 if a class is missing."""
    num_replaced, num_original = totals["replaced"], totals["tokens"] - totals["replaced"]
    if not num_replaced or not num_original:
        return 0.5
    mean = totals["logit_replaced"] / num_replaced
    other_mean = totals["logit_original"] / num_original
    variance = totals["logit_replaced_squared"] / num_replaced - mean**2
    other_variance = totals["logit_original_squared"] / num_original - other_mean**2
    spread = math.sqrt(max(variance, 0.0) + max(other_variance, 0.0))
    return 0.5 if spread == 0 else 0.5 * (1 + math.erf((mean - other_mean) / spread / math.sqrt(2)))


def _exact_auc(logits: np.ndarray, labels: np.ndarray) -> float:
    from sklearn.metrics import roc_auc_score

    counts = (labels == 0) | (labels == 1)
    replaced = labels[counts].astype(bool)
    if not replaced.any() or replaced.all():
        return float("nan")
    return float(roc_auc_score(replaced, logits[counts].astype(np.float64)))
