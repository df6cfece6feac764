"""The measures of a run, in training and on held-out sequences.

A measure takes sums over each sequence of a batch and reports from their totals, so a report does not depend on how
sequences were grouped. The generator and the objective define the `measures` of a run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hf_electra_rtd.ops import IGNORED, MaskedSlots, masked_slots, original_ids, replace_at


class Observation(NamedTuple):
    """A batch and the model's output for it. B sequences, L tokens, K masked slots."""

    output: Any  # an `ElectraRTDOutput`
    slots: MaskedSlots
    used: Tensor  # (B, K) bool; the slot holds a masked token
    real: Tensor  # (B, L) bool; False at padding
    originals: Tensor  # (B, L); the sequences before masking

    @property
    def replaced(self) -> Tensor:
        """(B, L) bool; a real token that is not the original."""
        return self.output.corrupted_input_ids.ne(self.originals) & self.real

    def at(self, values_BL: Tensor, masked_only: bool) -> tuple[Tensor, Tensor]:
        """Returns values and which of them count: those of every real token (B, L), or only of the masked slots (B,
        K)."""
        return (values_BL.gather(1, self.slots.positions), self.used) if masked_only else (values_BL, self.real)

    @property
    def masked(self) -> Tensor:
        """(B, L) bool; the position of a slot that holds a masked token."""
        return replace_at(torch.zeros_like(self.real), self.slots, self.used)


def observe(output: Any, inputs: dict[str, Tensor]) -> Observation:
    """The observation of a batch. `inputs` is what the model was called with."""
    input_ids = inputs["input_ids"]
    attention_mask = inputs.get("attention_mask")
    slots = masked_slots(input_ids, inputs.get("masked_positions"), inputs["labels"])
    real = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.ne(0)
    return Observation(output, slots, slots.labels.ne(IGNORED), real, original_ids(input_ids, slots))


class Measure(ABC):
    """The interface of all measures."""

    num_sums: int
    num_whole: int = 0  # tensors that `whole` gives

    @abstractmethod
    def sums(self, seen: Observation) -> tuple[Tensor, ...]:
        """Returns `num_sums` sums for each sequence: tensors (B,)."""

    def whole(self, seen: Observation) -> tuple[Tensor, ...]:
        """Returns values of every held-out token, where sums are not enough: tensors (B, n), with the label -100 where
        nothing counts."""
        return ()

    @abstractmethod
    def report(self, totals: Sequence[float], whole: Sequence[np.ndarray] = ()) -> dict[str, float]:
        """Returns the results by name, from the totals of the sums and from `whole` of all sequences (empty in
        training)."""


class Mean(Measure):
    """A mean over tokens. `of` maps an observation to values and to which of them count, both tensors (B, n)."""

    num_sums = 2

    def __init__(self, name: str, of: Callable[[Observation], tuple[Tensor, Tensor]]) -> None:
        self.name = name
        self._of = of

    def sums(self, seen: Observation) -> tuple[Tensor, ...]:
        values, counts = self._of(seen)
        return values.where(counts, 0).sum(dim=1), counts.sum(dim=1)

    def report(self, totals: Sequence[float], whole: Sequence[np.ndarray] = ()) -> dict[str, float]:
        return {self.name: _ratio(*totals)}


# Losses are in nats; the discriminator's is a mean over the tokens that its objective counts.
GENERATOR_LOSS = Mean("generator_loss", lambda seen: (seen.output.generator_token_losses, seen.used))
LOSS_AT_ALL = Mean("discriminator_loss", lambda seen: (seen.output.discriminator_token_losses, seen.real))
LOSS_AT_MASKED = Mean("discriminator_loss", lambda seen: (seen.output.discriminator_token_losses, seen.used))
# Accuracies: how often the most likely (or the sampled) token is the original.
GENERATOR_ACCURACY = Mean(
    "generator_accuracy", lambda seen: (seen.output.generator_predictions.eq(seen.slots.labels), seen.used)
)
SAMPLED_ACCURACY = Mean("sampled_accuracy", lambda seen: seen.at(~seen.replaced, masked_only=True))
MASKED_ACCURACY = Mean(
    "discriminator_masked_accuracy", lambda seen: (seen.output.predictions.eq(seen.slots.labels), seen.used)
)
TOKEN_ACCURACY = Mean(
    "discriminator_token_accuracy", lambda seen: (seen.output.predictions.eq(seen.originals), seen.real)
)
REPLACED_ACCURACY = Mean(
    "discriminator_replaced_accuracy", lambda seen: (seen.output.predictions.eq(seen.originals), seen.replaced)
)
REPLACED_SHARE = Mean("replaced_share", lambda seen: (seen.replaced, seen.real))  # of the real tokens


class Detection(Measure):
    """Detection of replaced tokens, the positive class, at the masked or at all real tokens. Reports
    `discriminator_precision`, `_recall` and `_accuracy` and, of held-out sequences, `discriminator_auc` (the area
    under the ROC curve, NaN where a class is missing), each with the suffix."""

    num_sums = 5
    num_whole = 2

    def __init__(self, masked_only: bool, suffix: str = "") -> None:
        self.masked_only = masked_only
        self.suffix = suffix

    def sums(self, seen: Observation) -> tuple[Tensor, ...]:
        logits, counts = seen.at(seen.output.logits.float(), self.masked_only)
        replaced = seen.at(seen.output.replaced_labels, self.masked_only)[0].bool()
        replaced = replaced & counts
        flagged = (logits > 0) & counts
        summed = (counts, replaced, flagged, flagged & replaced, flagged.eq(replaced) & counts)
        return tuple(values.sum(dim=1) for values in summed)

    def whole(self, seen: Observation) -> tuple[Tensor, ...]:
        logits, counts = seen.at(seen.output.logits.float(), self.masked_only)
        replaced, _ = seen.at(seen.output.replaced_labels, self.masked_only)
        return logits, replaced.to(torch.int8).masked_fill(~counts, IGNORED)

    def report(self, totals: Sequence[float], whole: Sequence[np.ndarray] = ()) -> dict[str, float]:
        tokens, replaced, flagged, found, right = totals
        results = {"auc": exact_auc(*whole)} if whole else {}
        results |= {
            "precision": _ratio(found, flagged),
            "recall": _ratio(found, replaced),
            "accuracy": _ratio(right, tokens),
        }
        return {f"discriminator_{name}{self.suffix}": value for name, value in results.items()}


def compute_rtd_metrics(evaluated: Any) -> dict[str, float]:
    """Computes metrics as the `compute_metrics` of a plain `transformers.Trainer`, for the objectives `rtd` and
    `electric`: both losses, in nats per token, and the discriminator's AUC, precision, recall and accuracy over all
    real tokens. `RTDTrainer` measures these and more by itself. `evaluated` is an `EvalPrediction`. Raises ValueError
    for predictions of another objective."""
    # For other objectives, the first array holds labels, or the last one only masked tokens.
    first, labels, *losses = evaluated.predictions
    if first.dtype.kind != "f" or losses[-1].shape != labels.shape:
        raise ValueError("compute_rtd_metrics is for the objectives rtd and electric. For others, use RTDTrainer.")
    real = labels != IGNORED
    replaced = labels == 1
    flagged = (first > 0) & real
    totals = [np.sum(each) for each in (real, replaced, flagged, flagged & replaced, (flagged == replaced) & real)]
    of_generator = losses[0][losses[0] != IGNORED]
    # A two-tower generator has a loss at every token; it is 0 at the special ones, which it does not learn.
    learned = of_generator != 0 if losses[0].shape == labels.shape else evaluated.label_ids != IGNORED
    return {
        "generator_loss": _ratio(of_generator.sum(), float(np.count_nonzero(learned))),
        "discriminator_loss": _ratio(losses[1][real].sum(), totals[0]),
        **Detection(masked_only=False).report(totals, (first, labels)),
    }


def sum_rows(measures: Sequence[Measure], seen: Observation) -> Tensor:
    """The sums of all measures for each sequence: (B, S)."""
    columns = [column for measure in measures for column in measure.sums(seen)]
    # float64 is exact enough for sums; MPS does not have it.
    dtype = torch.float32 if columns[0].device.type == "mps" else torch.float64
    return torch.stack([column.to(dtype) for column in columns], dim=1)


def report_totals(
    measures: Sequence[Measure], totals: Sequence[float], whole: Sequence[np.ndarray] = ()
) -> dict[str, float]:
    """Returns the results of all measures, from the totals of the columns of `sum_rows` and, for held-out sequences,
    from the tensors `whole` of each measure, in order."""
    results: dict[str, float] = {}
    sums = iter(totals)
    tensors = iter(whole)
    for measure in measures:
        own = list(islice(sums, measure.num_sums))
        results |= measure.report(own, list(islice(tensors, measure.num_whole)))
    return results


def _ratio(total: float, count: float) -> float:
    """A mean; 0 where nothing counts."""
    return total / max(1.0, count)


def exact_auc(logits: np.ndarray, labels: np.ndarray) -> float:
    """The area under the ROC curve for labels 0 and 1; others do not count. NaN where a class is missing, or a
    logit is not finite."""
    from sklearn.metrics import roc_auc_score

    counts = (labels == 0) | (labels == 1)
    replaced = labels[counts].astype(bool)
    scores = logits[counts].astype(np.float64)
    if not replaced.any() or replaced.all() or not np.isfinite(scores).all():
        return float("nan")
    return float(roc_auc_score(replaced, scores))
