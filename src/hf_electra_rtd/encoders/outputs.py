"""The output of heads that are not stock ones."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers.utils import ModelOutput


@dataclass
class HeadOutput(ModelOutput):
    """The outputs of an exported graph, or of a head that is not a stock one. Those that it does not have are None."""

    logits: Tensor | None = None  # for correction: (B, L, V), of the right tokens, or (B, L, 2) by `ops.best_and_lead`
    start_logits: Tensor | None = None  # (B, L)
    end_logits: Tensor | None = None  # (B, L)
    detection_logits: Tensor | None = None  # (B, L), positive for wrong tokens
