"""What fills the masked slots.

A kind of generator is a class: what it proposes for each slot. The model chooses one at construction and never asks
for its name again.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from hf_electra_rtd.configuration_electra_rtd import GENERATOR_NAMES
from hf_electra_rtd.ops import IGNORED, LossSum, MaskedSlots, masked_lm_loss


class GeneratorOutput(NamedTuple):
    """`logits` (B, K, V) at the masked slots, and the loss."""

    logits: Tensor
    loss: LossSum


class MaskedLMGenerator:
    """A masked language model (paper, section 2): softmax over the vocabulary at each masked slot."""

    name: ClassVar[str] = "masked_lm"

    def __call__(self, tower: Any, input_ids: Tensor, slots: MaskedSlots, **inputs: Tensor | None) -> GeneratorOutput:
        """Only the masked slots reach the vocabulary: B*K rows of logits instead of B*L."""
        logits_BKV = masked_lm_logits(tower, slots, input_ids=input_ids, **inputs)
        return GeneratorOutput(logits_BKV, masked_lm_loss(logits_BKV, slots.labels))


class UniformGenerator:
    """Every token is as likely as every other (google-research/electra `uniform_generator`): no network, nothing to
    learn. Its loss is the constant ln V."""

    name: ClassVar[str] = "uniform"

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def __call__(self, tower: Any, input_ids: Tensor, slots: MaskedSlots, **inputs: Tensor | None) -> GeneratorOutput:
        logits_BKV = torch.zeros(1, 1, 1, device=input_ids.device).expand(*slots.labels.shape, self.vocab_size)
        count = slots.labels.ne(IGNORED).sum()
        return GeneratorOutput(logits_BKV, LossSum(count * math.log(self.vocab_size), count))


def masked_lm_logits(tower: Any, slots: MaskedSlots, **inputs: Tensor | None) -> Tensor:
    """Logits (B, K, V) of an `ElectraForMaskedLM` at the masked slots."""
    hidden_BLH = tower.electra(**inputs).last_hidden_state
    hidden_BKH = hidden_BLH.gather(1, slots.positions[..., None].expand(-1, -1, hidden_BLH.shape[-1]))
    logits_BKV: Tensor = tower.generator_lm_head(tower.generator_predictions(hidden_BKH))
    return logits_BKV


def get_generator(name: str, vocab_size: int) -> MaskedLMGenerator | UniformGenerator:
    """The kind of generator of that name.

    Raises:
        ValueError: if there is none.
    """
    if name == MaskedLMGenerator.name:
        return MaskedLMGenerator()
    if name == UniformGenerator.name:
        return UniformGenerator(vocab_size)
    raise ValueError(f"generator={name!r} is not known. Known are: {', '.join(map(repr, GENERATOR_NAMES))}.")
