"""What fills the masked slots.

A kind of generator is a class: what it proposes for each slot, and what is measured of it. The model chooses one at
construction and never asks for its name again.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from hf_electra_rtd.configuration_electra_rtd import GENERATOR_NAMES, ElectraRTDConfig
from hf_electra_rtd.measures import GeneratorAccuracy, GeneratorLoss, Measure, Sampling
from hf_electra_rtd.ops import IGNORED, LossSum, MaskedSlots, masked_lm_loss


class GeneratorOutput(NamedTuple):
    """`logits` (B, K, V) at the masked slots, and the loss."""

    logits: Tensor
    loss: LossSum


class Generator:
    """What all kinds have.

    Attributes:
        measures: what is metered and evaluated.
    """

    measures: ClassVar[tuple[Measure, ...]] = ()

    def __init__(self, config: ElectraRTDConfig) -> None:
        self.vocab_size = config.discriminator_config.vocab_size

    def __call__(
        self, tower: Any, input_ids: Tensor, slots: MaskedSlots, **inputs: Tensor | None
    ) -> GeneratorOutput | None:
        raise NotImplementedError


class NoGenerator(Generator):
    """Masked tokens stay masked."""

    def __call__(self, tower: Any, input_ids: Tensor, slots: MaskedSlots, **inputs: Tensor | None) -> None:
        return None


class MaskedLMGenerator(Generator):
    """A masked language model (paper, section 2): softmax over the vocabulary at each masked slot.

    L_G = mean over m of  -log p(x_t | x with [MASK] at m)
    """

    measures: ClassVar[tuple[Measure, ...]] = (GeneratorLoss(), GeneratorAccuracy(), Sampling())

    def __call__(self, tower: Any, input_ids: Tensor, slots: MaskedSlots, **inputs: Tensor | None) -> GeneratorOutput:
        """Only the masked slots reach the vocabulary: B*K rows of logits instead of B*L."""
        logits_BKV = masked_lm_logits(tower, slots, input_ids=input_ids, **inputs)
        return GeneratorOutput(logits_BKV, masked_lm_loss(logits_BKV, slots.labels))


class UniformGenerator(Generator):
    """Every token is as likely as every other (google-research/electra `uniform_generator`): no network, nothing to
    learn.

    L_G = ln V, a constant
    """

    measures: ClassVar[tuple[Measure, ...]] = (GeneratorLoss(), Sampling())

    def __call__(self, tower: Any, input_ids: Tensor, slots: MaskedSlots, **inputs: Tensor | None) -> GeneratorOutput:
        logits_BKV = torch.zeros(1, 1, 1, device=input_ids.device).expand(*slots.labels.shape, self.vocab_size)
        used = slots.labels.ne(IGNORED)
        return GeneratorOutput(logits_BKV, LossSum(used * math.log(self.vocab_size), used.sum()))


def masked_lm_logits(tower: Any, slots: MaskedSlots, **inputs: Tensor | None) -> Tensor:
    """Logits (B, K, V) of an `ElectraForMaskedLM` at the masked slots."""
    hidden_BLH = tower.electra(**inputs).last_hidden_state
    hidden_BKH = hidden_BLH.gather(1, slots.positions[..., None].expand(-1, -1, hidden_BLH.shape[-1]))
    logits_BKV: Tensor = tower.generator_lm_head(tower.generator_predictions(hidden_BKH))
    return logits_BKV


GENERATORS: dict[str, type[Generator]] = {"masked_lm": MaskedLMGenerator, "uniform": UniformGenerator}
assert tuple(GENERATORS) == GENERATOR_NAMES


def get_generator(config: ElectraRTDConfig) -> Generator:
    """The kind of generator that a configuration asks for."""
    return (GENERATORS[config.generator] if config.has_generator else NoGenerator)(config)
