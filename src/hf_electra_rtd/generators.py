"""What fills the masked slots.

A kind of generator is a class: what it proposes for each slot, and what is measured. The model chooses one once, at
construction; nothing else depends on the name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from hf_electra_rtd.configuration_electra_rtd import GENERATOR_NAMES, ElectraRTDConfig
from hf_electra_rtd.families import family_of
from hf_electra_rtd.measures import GeneratorAccuracy, GeneratorLoss, Measure, SampledTokens
from hf_electra_rtd.ops import IGNORED, LossSum, MaskedSlots, Sampling, predict_masked, predict_masked_from_logits


class GeneratorOutput(NamedTuple):
    """A generator's output for the masked slots."""

    loss: LossSum
    predictions: Tensor  # (B, K) int64, the most likely ids
    sampled: Tensor | None = None  # (B, K) int64, if asked for
    logits: Tensor | None = None  # (B, K, V), likewise


class Generator(ABC):
    """What all kinds have."""

    measures: ClassVar[tuple[Measure, ...]] = ()

    def __init__(self, config: ElectraRTDConfig) -> None:
        self.vocab_size = config.discriminator_config.vocab_size
        self.samples_in_second_pass = config.samples_in_second_pass

    @abstractmethod
    def __call__(
        self, tower: Any, slots: MaskedSlots, sampling: Sampling | None, output_logits: bool, **inputs: Tensor | None
    ) -> GeneratorOutput | None:
        """Fills the masked slots of a batch; None where there is no generator.

        Args:
            tower: the network, or None.
            slots: positions and original ids.
            sampling: with uniforms (B, K, 2); None samples nothing.
            output_logits: return them.
            **inputs: of the network: the masked `input_ids` (B, L), `attention_mask` and so on.
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
    """The predictions of a masked language model for the masked slots. Only they reach the vocabulary: B*K rows of
    logits instead of B*L, and of those only a few at a time.

    Arguments as for [`Generator`]; `inputs` go to the encoder of `tower`."""
    hidden_BLH = tower.base_model(**inputs).last_hidden_state
    hidden_BKH = hidden_BLH.gather(1, slots.positions[..., None].expand(-1, -1, hidden_BLH.shape[-1]))
    hidden_BKE = getattr(tower, family_of(tower).transform)(hidden_BKH)
    output_layer = tower.get_output_embeddings()
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
    """The kind of generator of a configuration."""
    return (GENERATORS[config.generator] if config.has_generator else NoGenerator)(config)
