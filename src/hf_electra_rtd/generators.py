"""What fills the masked slots.

A kind of generator is a class: what it proposes for each slot, and what is measured.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hf_electra_rtd.configuration_electra_rtd import GENERATOR_NAMES, ElectraRTDConfig
from hf_electra_rtd.families import family_of
from hf_electra_rtd.measures import GENERATOR_ACCURACY, GENERATOR_LOSS, REPLACED_SHARE, SAMPLED_ACCURACY, Measure
from hf_electra_rtd.ops import IGNORED, LossSum, MaskedPrediction, MaskedSlots, Sampling
from hf_electra_rtd.ops.prediction import predict_from_logits, predict_masked


class Generator:
    """A kind of generator; this one leaves masked tokens masked."""

    measures: ClassVar[tuple[Measure, ...]] = ()

    def __init__(self, config: ElectraRTDConfig) -> None:
        self.config = config

    def __call__(
        self, tower: Any, slots: MaskedSlots, sampling: Sampling | None, output_logits: bool, **inputs: Tensor | None
    ) -> MaskedPrediction | None:
        """Fills the masked slots of a batch. `tower` is the network, or None; `sampling` has uniforms (B, K, 2), or is
        None to sample nothing; `inputs` are the network's: the masked `input_ids` (B, L), `attention_mask` and so
        on."""
        return None


class MaskedLMGenerator(Generator):
    """A masked language model (paper, section 2): L_G = mean over m of  -log p(x_t | x with [MASK] at m).

    Without `sampling_dropout`, one that trains draws its samples in a second pass, without dropout.
    """

    measures = (GENERATOR_LOSS, GENERATOR_ACCURACY, SAMPLED_ACCURACY, REPLACED_SHARE)

    def __call__(
        self, tower: Any, slots: MaskedSlots, sampling: Sampling | None, output_logits: bool, **inputs: Tensor | None
    ) -> MaskedPrediction:
        if sampling is None or not (self.config.samples_in_second_pass and tower.training):
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
    learn. L_G = ln V, a constant."""

    measures = (GENERATOR_LOSS, SAMPLED_ACCURACY, REPLACED_SHARE)

    def __call__(
        self, tower: Any, slots: MaskedSlots, sampling: Sampling | None, output_logits: bool, **inputs: Tensor | None
    ) -> MaskedPrediction:
        vocab_size, labels_BK = self.config.discriminator_config.vocab_size, slots.labels
        logits_BKV = torch.zeros(1, 1, 1, device=labels_BK.device).expand(*labels_BK.shape, vocab_size)
        sampled_BK = None if sampling is None else sampling.draw(logits_BKV, labels_BK)
        used = labels_BK.ne(IGNORED)
        losses_BK = used * math.log(vocab_size)
        loss = LossSum(losses_BK.sum(), losses_BK, used.sum())
        return MaskedPrediction(loss, torch.zeros_like(labels_BK), sampled_BK, logits_BKV if output_logits else None)


def predict_slots(
    tower: Any, slots: MaskedSlots, sampling: Sampling | None, output_logits: bool, **inputs: Tensor | None
) -> MaskedPrediction:
    """The predictions of a masked language model for the masked slots; arguments as for [`Generator`]. Only the slots
    reach the vocabulary: B*K rows of logits instead of B*L, and of those only a few at a time."""
    hidden_BLH = tower.base_model(**inputs).last_hidden_state
    hidden_BKH = hidden_BLH.gather(1, slots.positions[..., None].expand(-1, -1, hidden_BLH.shape[-1]))
    hidden_BKE = getattr(tower, family_of(tower).transform)(hidden_BKH)
    output_layer = tower.get_output_embeddings()
    if _is_plain(output_layer):
        predicted = predict_masked(hidden_BKE, output_layer.weight, output_layer.bias, slots.labels, sampling)
    else:
        predicted = predict_from_logits(output_layer(hidden_BKE), slots.labels, sampling)
    return predicted._replace(logits=output_layer(hidden_BKE)) if output_logits else predicted


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer does nothing but multiply and add: no adapter, no hook that wants to be called."""
    called = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    return type(layer) is nn.Linear and not called


GENERATORS: dict[str, type[Generator]] = {"masked_lm": MaskedLMGenerator, "uniform": UniformGenerator}
assert tuple(GENERATORS) == GENERATOR_NAMES
