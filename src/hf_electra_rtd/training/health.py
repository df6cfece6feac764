"""Signs that a run goes wrong: numbers that are not finite, a discriminator that says one thing only."""

from __future__ import annotations

import logging
import math

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from hf_electra_rtd.training.checkpoints import latest_checkpoint
from hf_electra_rtd.training.meters import has_collapsed


logger = logging.getLogger(__name__)


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

    def check_discriminator(self, step: int, max_steps: int, warmup_steps: int, recall: float, auc: float) -> None:
        """Warns, once until it recovers, of a discriminator that takes every token for an original."""
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
