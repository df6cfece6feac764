"""What a training run counts: on the device, read only when it is logged."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers.trainer_callback import TrainerState

from hf_electra_rtd.modeling_electra_rtd import ElectraRTDOutput
from hf_electra_rtd.ops import IGNORED, masked_slots


# Below this recall and this area under the ROC curve, the discriminator says "original" to everything.
COLLAPSED_RECALL = 0.01
COLLAPSED_AUC = 0.55

_SUMS = (
    "generator_loss",
    "masked",
    "generator_correct",
    "sampled_correct",
    "discriminator_loss",
    "tokens",
    "replaced",
    "flagged",
    "flagged_replaced",
    "agreed",
    "logit_replaced",
    "logit_replaced_squared",
    "logit_original",
    "logit_original_squared",
)


class TrainingMeters:
    """Sums over batches, one small tensor on the model's device."""

    def __init__(self) -> None:
        self._sums: Tensor | None = None

    @torch.no_grad()
    def update(self, output: ElectraRTDOutput, inputs: dict[str, Tensor]) -> None:
        """Adds a batch, without waiting for the device. `inputs` is what the model was called with."""
        assert output.logits is not None
        assert output.replaced_labels is not None
        assert output.corrupted_input_ids is not None
        assert output.generator_predictions is not None
        assert output.generator_loss is not None
        assert output.discriminator_loss is not None
        slots = masked_slots(inputs["input_ids"], inputs.get("masked_positions"), inputs["labels"])
        used = slots.labels.ne(IGNORED)
        sampled = output.corrupted_input_ids.gather(1, slots.positions)
        logits = output.logits.float()
        attention_mask = inputs.get("attention_mask")
        real = torch.ones_like(logits, dtype=torch.bool) if attention_mask is None else attention_mask.ne(0)
        replaced = output.replaced_labels.bool() & real
        original = ~output.replaced_labels.bool() & real
        flagged = (logits > 0) & real
        masked, tokens = used.sum(), real.sum()
        sums = torch.stack(
            [
                output.generator_loss * masked,
                masked,
                (output.generator_predictions.eq(slots.labels) & used).sum(),
                (sampled.eq(slots.labels) & used).sum(),
                output.discriminator_loss * tokens,
                tokens,
                replaced.sum(),
                flagged.sum(),
                (flagged & replaced).sum(),
                (flagged.eq(replaced) & real).sum(),
                logits.where(replaced, 0).sum(),
                logits.square().where(replaced, 0).sum(),
                logits.where(original, 0).sum(),
                logits.square().where(original, 0).sum(),
            ]
        ).to(torch.float32 if logits.device.type == "mps" else torch.float64)
        self._sums = sums if self._sums is None else self._sums + sums

    def drain(self, reduce: Callable[[Tensor], Tensor] = lambda sums: sums) -> dict[str, float]:
        """Means since the last call; waits for the device once.

        Args:
            reduce: sums a tensor over the processes of the run.

        Returns:
            `generator_loss`, `generator_accuracy`, `sampled_accuracy`, `discriminator_loss`, `discriminator_accuracy`,
            `discriminator_precision`, `discriminator_recall`, `discriminator_auc` (estimated from the means and
            variances of the logits of both classes), `replaced_share` and `tokens`; empty if nothing was counted.
        """
        if self._sums is None:
            return {}
        total = dict(zip(_SUMS, reduce(self._sums).tolist(), strict=True))
        self._sums = None
        masked, tokens = max(1.0, total["masked"]), max(1.0, total["tokens"])
        return {
            "generator_loss": total["generator_loss"] / masked,
            "generator_accuracy": total["generator_correct"] / masked,
            "sampled_accuracy": total["sampled_correct"] / masked,
            "discriminator_loss": total["discriminator_loss"] / tokens,
            "discriminator_accuracy": total["agreed"] / tokens,
            "discriminator_precision": total["flagged_replaced"] / max(1.0, total["flagged"]),
            "discriminator_recall": total["flagged_replaced"] / max(1.0, total["replaced"]),
            "discriminator_auc": _normal_auc(total),
            "replaced_share": total["replaced"] / tokens,
            "tokens": total["tokens"],
        }


def _normal_auc(total: dict[str, float]) -> float:
    """Area under the ROC curve if the logits of each class were normal: Φ(d / sqrt(v1 + v2)); 0.5 if one is
    missing."""
    num_replaced, num_original = total["replaced"], total["tokens"] - total["replaced"]
    if not num_replaced or not num_original:
        return 0.5
    mean = total["logit_replaced"] / num_replaced
    other_mean = total["logit_original"] / num_original
    variance = total["logit_replaced_squared"] / num_replaced - mean**2
    other_variance = total["logit_original_squared"] / num_original - other_mean**2
    spread = math.sqrt(max(variance, 0.0) + max(other_variance, 0.0))
    return 0.5 if spread == 0 else 0.5 * (1 + math.erf((mean - other_mean) / spread / math.sqrt(2)))


def has_collapsed(recall: float, auc: float) -> bool:
    """Whether the discriminator says "original" to everything and cannot tell the classes apart either."""
    return recall < COLLAPSED_RECALL and auc < COLLAPSED_AUC


def seconds_trained(state: TrainerState | None) -> float:
    """What the sessions of a run took, as far as its log tells; 0 for a run that begins."""
    log = [] if state is None else state.log_history
    return max((entry.get("train_seconds", 0.0) for entry in log), default=0.0)


class Stopwatch:
    """Seconds that a run spent on training: evaluation and saving pause it.

    Args:
        seconds_before: of the sessions before, for a run that is resumed.
        now: a monotonic clock in seconds.
    """

    def __init__(self, seconds_before: float = 0.0, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._started: float | None = None
        self._passed = self._lap_began = seconds_before

    def start(self) -> None:
        self._started = self._now()

    def stop(self) -> None:
        self._passed, self._started = self.seconds, None

    @property
    def seconds(self) -> float:
        """Seconds since `start`, without pauses, with those of the sessions before."""
        return self._passed + (0.0 if self._started is None else self._now() - self._started)

    def lap(self) -> float:
        """Seconds since the last lap, without pauses."""
        began, self._lap_began = self._lap_began, self.seconds
        return self._lap_began - began

    @contextmanager
    def paused(self) -> Iterator[None]:
        running = self._started is not None
        self.stop()
        try:
            yield
        finally:
            if running:
                self.start()
