"""What the main tower learns from the corrupted row.

An objective is a class: which stock model the main tower is, and how its loss is computed. The model chooses one at
construction and never asks for its name again.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from torch import Tensor
from transformers import ElectraForMaskedLM, ElectraForPreTraining, PreTrainedModel

from hf_electra_rtd.ops import LossSum, MaskedSlots, replaced_token_loss


class CorruptedBatch(NamedTuple):
    """What the main tower sees, and what it is judged by. B rows, L tokens, K masked slots.

    Attributes:
        input_ids: (B, L), sampled tokens in place of the masked ones.
        replaced_labels: (B, L) int64, 1 where `input_ids` differs from the original; None where that is not known.
        slots: the masked slots with their original ids; None where nothing was masked.
        attention_mask: (B, L) or None.
        token_type_ids: (B, L) or None.
        position_ids: (B, L) or None.
    """

    input_ids: Tensor
    replaced_labels: Tensor | None
    slots: MaskedSlots | None
    attention_mask: Tensor | None
    token_type_ids: Tensor | None
    position_ids: Tensor | None


class MainOutput(NamedTuple):
    """`logits` of the main tower, and its loss (None where there are no labels)."""

    logits: Tensor
    loss: LossSum | None


class ReplacedTokenDetection:
    """ELECTRA (paper, section 2): was each token replaced? Binary cross-entropy over every real token."""

    name: ClassVar[str] = "rtd"
    generator_class: ClassVar[type[PreTrainedModel]] = ElectraForMaskedLM
    main_tower_class: ClassVar[type[PreTrainedModel]] = ElectraForPreTraining

    def __call__(self, tower: PreTrainedModel, batch: CorruptedBatch) -> MainOutput:
        logits = tower(
            batch.input_ids,
            attention_mask=batch.attention_mask,
            token_type_ids=batch.token_type_ids,
            position_ids=batch.position_ids,
        ).logits
        if batch.replaced_labels is None:
            return MainOutput(logits, None)
        return MainOutput(logits, replaced_token_loss(logits, batch.replaced_labels, batch.attention_mask))


OBJECTIVES = {objective.name: objective for objective in (ReplacedTokenDetection,)}


def get_objective(name: str) -> ReplacedTokenDetection:
    """The objective of that name.

    Raises:
        ValueError: if there is none.
    """
    if name not in OBJECTIVES:
        raise ValueError(f"There is no objective={name!r}. Known are: {', '.join(map(repr, OBJECTIVES))}.")
    return OBJECTIVES[name]()
