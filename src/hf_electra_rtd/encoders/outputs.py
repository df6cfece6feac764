"""The output of heads that are not stock ones."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers.utils import ModelOutput


@dataclass
class HeadOutput(ModelOutput):
    """What a graph gives, or a head that is not a stock one: those outputs that it has."""

    logits: Tensor | None = None  # of correction: of the right tokens (B, L, V), or (B, L, 2) by `ops.best_and_lead`
    start_logits: Tensor | None = None  # (B, L)
    end_logits: Tensor | None = None  # (B, L)
    detection_logits: Tensor | None = None  # (B, L), positive for wrong tokens
