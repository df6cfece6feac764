"""Signs that a run goes wrong: numbers that are not finite, a discriminator that says one thing only."""

from __future__ import annotations

import logging
import math

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from hf_electra_rtd.training.checkpoints import latest_checkpoint


logger = logging.getLogger(__name__)

# Below this recall (or above one minus it) and this area under the ROC curve, the discriminator says one thing only.
COLLAPSED_RECALL = 0.01
COLLAPSED_AUC = 0.55


class DivergedError(FloatingPointError):
    """The loss or a weight is no longer a finite number."""


class HealthWatch:
    """Stops a run that diverges before it saves anything, and warns of a discriminator that collapsed.

    Args:
        output_dir: of the run; names the checkpoint to go back to.
    """

    def __init__(self, output_dir: str) -> None:
        self.output_dir = output_dir
        self._collapsed = False

    def check_loss(self, step: int, loss: float) -> None:
        """Raises [`DivergedError`] for a loss that is not finite."""
        if not math.isfinite(loss):
            self._stop(step, "the loss is no longer finite")

    def check_weights(self, step: int, model: nn.Module) -> None:
        """Raises [`DivergedError`] if any weight is not finite; waits for the device once. Of a sharded model, every
        process looks at its part."""
        parts = (
            parameter.to_local() if isinstance(parameter, DTensor) else parameter for parameter in model.parameters()
        )
        if not torch.stack([part.isfinite().all() for part in parts]).all():
            self._stop(step, "a weight is no longer finite")

    def check_discriminator(
        self, step: int, max_steps: int, warmup_steps: int, metrics: dict[str, float], prefix: str = ""
    ) -> None:
        """Warns, once until it recovers, of a discriminator that says the same of every token. Where the metrics are
        not of a discriminator, there is nothing to see."""
        recall, auc = (metrics.get(f"{prefix}discriminator_{name}") for name in ("recall", "auc"))
        if recall is None or auc is None:
            return
        # At the beginning every discriminator does.
        collapsed = has_collapsed(recall, auc) and step > max(warmup_steps, max_steps // 10)
        if collapsed and not self._collapsed:
            logger.warning(
                f"Step {step:,}: the discriminator has collapsed to the majority class (it finds {recall:.1%} of the "
                f"replaced tokens, area under the ROC curve {auc:.2f}). The generator may be too strong or the "
                "learning rate too high: try a smaller generator (generator_hidden_size), a lower learning rate, or a "
                "longer warm-up."
            )
        self._collapsed = collapsed

    def _stop(self, step: int, reason: str) -> None:
        checkpoint = latest_checkpoint(self.output_dir)
        remedy = (
            f"The last good checkpoint is {checkpoint}; start from it with a lower learning rate."
            if checkpoint
            else "There is no checkpoint yet; start again with a lower learning rate or a longer warm-up."
        )
        raise DivergedError(f"Step {step:,}: {reason}. The run stops, and saves nothing more. {remedy}")


def has_collapsed(recall: float, auc: float) -> bool:
    """Whether the discriminator says "original" (or "replaced") to everything, and cannot tell the classes apart
    either."""
    return not COLLAPSED_RECALL <= recall <= 1 - COLLAPSED_RECALL and auc < COLLAPSED_AUC
