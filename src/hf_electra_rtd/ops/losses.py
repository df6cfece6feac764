"""Losses as sums with their counts, and that of the discriminator."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F  # noqa: N812


class LossSum(NamedTuple):
    """Losses of items (tokens), and how many items count, so that several batches can be combined exactly."""

    total: Tensor  # scalar; the sum of the losses. It alone has a gradient
    losses: Tensor  # any shape; 0 where an item does not count
    num_items: Tensor  # scalar

    def mean(self) -> Tensor:
        """The mean over the items; 0 where there are none."""
        return self.total / self.num_items.clamp(min=1)


def replaced_token_loss(logits_BL: Tensor, replaced_BL: Tensor, attention_mask_BL: Tensor | None) -> LossSum:
    """Binary cross-entropy of "this token was replaced" over all real tokens, in float32 (paper, section 2, L_Disc).

    [CLS] and [SEP] are real tokens (google-research/electra run_pretraining.py weighs by `input_mask`); without a mask
    all are. A positive logit means replaced.
    """
    logits = logits_BL if logits_BL.dtype.itemsize >= 4 else logits_BL.float()
    losses = F.binary_cross_entropy_with_logits(logits, replaced_BL.to(logits.dtype), reduction="none")
    return sum_over_real(losses, attention_mask_BL)


def sum_over_real(losses_BL: Tensor, attention_mask_BL: Tensor | None) -> LossSum:
    """Losses of every token, of which the real ones count."""
    if attention_mask_BL is None:
        # Filled on the device: a number from the host would be waited for.
        num_items = losses_BL.new_full((), losses_BL.numel())
    else:
        real = attention_mask_BL.ne(0)
        losses_BL, num_items = losses_BL.where(real, 0.0), real.sum()
    return LossSum(losses_BL.sum(), losses_BL.detach(), num_items)
