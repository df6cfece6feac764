"""What fills the masked slots.

A kind of generator is a class: what it proposes for each slot, and what is measured of it. The model chooses one at
construction and never asks for its name again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from hf_electra_rtd.configuration_electra_rtd import GENERATOR_NAMES, ElectraRTDConfig
from hf_electra_rtd.measures import GeneratorAccuracy, GeneratorLoss, Measure, SampledTokens
from hf_electra_rtd.ops import IGNORED, LossSum, MaskedSlots, Sampling, predict_masked, predict_masked_from_logits


class GeneratorOutput(NamedTuple):
    """What a generator says of the masked slots.

    Attributes:
        loss: over the masked slots.
        predictions: (B, K) int64, the most likely ids.
        sampled: (B, K) int64, drawn ids; None where none were asked for.
        logits: (B, K, V); likewise.
    """

    loss: LossSum
    predictions: Tensor
    sampled: Tensor | None = None
    logits: Tensor | None = None


class Generator(ABC):
    """What all kinds have.

    Attributes:
        measures: what is metered and evaluated.
    """

    measures: ClassVar[tuple[Measure, ...]] = ()

    def __init__(self, config: ElectraRTDConfig) -> None:
        self.vocab_size = config.discriminator_config.vocab_size
        self.samples_in_second_pass = config.samples_in_second_pass

    @abstractmethod
    def __call__(
        self, tower: Any, slots: MaskedSlots, sampling: Sampling | None, output_logits: bool, **inputs: Tensor | None
    ) -> GeneratorOutput | None:
        """What is proposed for the masked slots of a batch; None where nothing is.

        Args:
            tower: the network; None where there is none.
            slots: where, and the originals.
            sampling: with uniforms (B, K, 2); None draws nothing.
            output_logits: return them.
            **inputs: of the network: `input_ids` (B, L), masked, `attention_mask` and so on.
        """


class NoGenerator(Generator):
    """Masked tokens stay masked."""

    def __call__(self, *args: Any, **inputs: Any) -> None:
        return None


class MaskedLMGenerator(Generator):
    """A masked language model (paper, section 2): softmax over the vocabulary at each masked slot.

        L_G = mean over m of  -log p(x_t | x with [MASK] at m)

    Without `sampling_dropout`, one that trains draws its samples in a second pass, without dropout.
    """

    measures: ClassVar[tuple[Measure, ...]] = (GeneratorLoss(), GeneratorAccuracy(), SampledTokens())

    def __call__(
        self, tower: Any, slots: MaskedSlots, sampling: Sampling | None, output_logits: bool, **inputs: Tensor | None
    ) -> GeneratorOutput:
        if sampling is None or not (self.samples_in_second_pass and tower.training):
            return predict_slots(tower, slots, sampling, output_logits, **inputs)
        generated = predict_slots(tower, slots, None, output_logits, **inputs)
        tower.eval()
        try:
            with torch.no_grad():
                again = predict_slots(tower, slots, sampling, False, **inputs)
        finally:
            tower.train()
        return generated._replace(sampled=again.sampled)


class UniformGenerator(Generator):
    """Every token is as likely as every other (google-research/electra `uniform_generator`): no network, nothing to
    learn.

    L_G = ln V, a constant
    """

    measures: ClassVar[tuple[Measure, ...]] = (GeneratorLoss(), SampledTokens())

    def __call__(
        self, tower: Any, slots: MaskedSlots, sampling: Sampling | None, output_logits: bool, **inputs: Tensor | None
    ) -> GeneratorOutput:
        labels_BK = slots.labels
        logits_BKV = torch.zeros(1, 1, 1, device=labels_BK.device).expand(*labels_BK.shape, self.vocab_size)
        sampled_BK = None if sampling is None else sampling.draw(logits_BKV, labels_BK)
        used = labels_BK.ne(IGNORED)
        losses_BK = used * math.log(self.vocab_size)
        loss = LossSum(losses_BK.sum(), losses_BK, used.sum())
        return GeneratorOutput(loss, torch.zeros_like(labels_BK), sampled_BK, logits_BKV if output_logits else None)


def predict_slots(
    tower: Any, slots: MaskedSlots, sampling: Sampling | None, output_logits: bool, **inputs: Tensor | None
) -> GeneratorOutput:
    """What an `ElectraForMaskedLM` says of the masked slots. Only they reach the vocabulary: B*K rows of logits
    instead of B*L, and of those only a few at a time.

    Args:
        tower: the model.
        slots: where, and the originals.
        sampling: with uniforms (B, K, 2); None draws nothing.
        output_logits: make and return all logits; nothing else changes.
        **inputs: of `tower.electra`.
    """
    hidden_BLH = tower.electra(**inputs).last_hidden_state
    hidden_BKH = hidden_BLH.gather(1, slots.positions[..., None].expand(-1, -1, hidden_BLH.shape[-1]))
    hidden_BKE, output_layer = tower.generator_predictions(hidden_BKH), tower.generator_lm_head
    if sampling is not None:
        sampling = sampling._replace(uniforms=sampling.uniforms.flatten(0, 1))
    labels_BK = slots.labels
    hidden_NE, labels_N = hidden_BKE.flatten(0, 1), labels_BK.flatten()
    if _is_plain(output_layer):
        predicted = predict_masked(hidden_NE, output_layer.weight, output_layer.bias, labels_N, sampling)
    else:
        predicted = predict_masked_from_logits(output_layer(hidden_NE), labels_N, sampling)
    return GeneratorOutput(
        LossSum(predicted.total_loss, predicted.losses.view_as(labels_BK), labels_BK.ne(IGNORED).sum()),
        predicted.predictions.view_as(labels_BK),
        None if predicted.sampled is None else predicted.sampled.view_as(labels_BK),
        output_layer(hidden_BKE) if output_logits else None,
    )


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer does nothing but multiply and add: no adapter, no hook that wants to be called."""
    return type(layer) is nn.Linear and not (
        layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    )


GENERATORS: dict[str, type[Generator]] = {"masked_lm": MaskedLMGenerator, "uniform": UniformGenerator}
assert tuple(GENERATORS) == GENERATOR_NAMES


def get_generator(config: ElectraRTDConfig) -> Generator:
    """The kind of generator that a configuration asks for."""
    return (GENERATORS[config.generator] if config.has_generator else NoGenerator)(config)
