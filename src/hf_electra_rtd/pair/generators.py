"""The kinds of generators, which fill the masked slots.

A kind of generator is a class that defines what is proposed for each slot, and what is measured.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hf_electra_rtd.encoders.families import FAMILIES, OutputLayer, inputs_of, masked_lm_class, output_layer
from hf_electra_rtd.ops import IGNORED, LossSum, MaskedPrediction, MaskedSlots, Sampling, original_ids
from hf_electra_rtd.ops.prediction import predict_from_logits, predict_masked
from hf_electra_rtd.ops.sampling import sample_weights
from hf_electra_rtd.pair.configuration_electra_rtd import GENERATOR_NAMES, ElectraRTDConfig
from hf_electra_rtd.pair.measures import (
    GENERATOR_ACCURACY,
    GENERATOR_LOSS,
    REPLACED_SHARE,
    SAMPLED_ACCURACY,
    Mean,
    Measure,
)
from hf_electra_rtd.pair.two_tower import TwoTowerForCloze


logger = logging.getLogger(__name__)


class Generator:
    """The base of all kinds of generators. By itself, it leaves masked tokens masked."""

    measures: tuple[Measure, ...] = ()
    is_blind: ClassVar[bool] = False  # it never sees the masked tokens, not even those that stay visible

    def __init__(self, config: ElectraRTDConfig) -> None:
        self.config = config

    def __call__(
        self, tower: Any, slots: MaskedSlots, sampling: Sampling | None, output_logits: bool, **inputs: Tensor | None
    ) -> MaskedPrediction | None:
        """Fills the masked slots of a batch. `tower` is the network, or None; `sampling` has uniforms (B, K, 2), or is
        None to sample nothing; `inputs` are the network's: the masked `input_ids` (B, L), `attention_mask` and so
        on."""
        return None

    def make_network(self, config: Any) -> Any:
        """Makes a new network of this configuration."""
        network: Any = masked_lm_class(config.model_type)
        return network(config)

    def log_likelihoods(self, tower: Any, input_ids: Tensor, mask_id: int, **inputs: Tensor | None) -> Tensor:
        """Returns the log-probability of each token of unmasked sequences given its context: (B, L). Raises ValueError
        for a kind that gives none."""
        raise ValueError(f"generator={self.config.generator!r} gives no probability of a token in its context.")


class MaskedLMGenerator(Generator):
    """A masked language model (paper, section 2): L_G = mean over m of  -log p(x_t | x with [MASK] at m). Samples come
    from the same pass as the loss, as in the original. A frozen generator has neither dropout nor gradients."""

    measures: tuple[Measure, ...] = (GENERATOR_LOSS, GENERATOR_ACCURACY, SAMPLED_ACCURACY, REPLACED_SHARE)

    def __init__(self, config: ElectraRTDConfig) -> None:
        super().__init__(config)
        family = config.generator_config.model_type
        if family not in FAMILIES:
            logger.warning(f"A generator of the family {family!r} computes the logits of all tokens, which is slow.")

    def __call__(
        self, tower: Any, slots: MaskedSlots, sampling: Sampling | None, output_logits: bool, **inputs: Tensor | None
    ) -> MaskedPrediction:
        # Not `inference_mode`, in which the discriminator could not look up the samples of a frozen generator.
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.freeze_generator):
            return predict_slots(tower, slots, sampling, output_logits, **inputs)

    def log_likelihoods(self, tower: Any, input_ids: Tensor, mask_id: int, **inputs: Tensor | None) -> Tensor:
        return masked_log_likelihoods(tower, input_ids, mask_id, **inputs)


class TwoTowerGenerator(Generator):
    """The noise distribution of Electric (arXiv 2012.08561, section 2.4). It reads sequences without [MASK], and
    learns every token but [CLS], [SEP] and [MASK], masked or not:  L_G = mean over these t of  -log q(x_t | x without
    t)"""

    is_blind = True

    def __init__(self, config: ElectraRTDConfig) -> None:
        super().__init__(config)
        loss = Mean("generator_loss", lambda s: (s.output.generator_token_losses, self._counted(s.originals, s.real)))
        self.measures = (loss, *MaskedLMGenerator.measures[1:])

    def make_network(self, config: Any) -> Any:
        return TwoTowerForCloze(config)

    def __call__(
        self, tower: Any, slots: MaskedSlots, sampling: Sampling | None, output_logits: bool, **inputs: Tensor | None
    ) -> MaskedPrediction:
        masked_ids: Any = inputs.pop("input_ids")
        originals_BL = original_ids(masked_ids, slots)
        hidden_BLE = tower(originals_BL, **inputs)
        layer = tower.get_output_embeddings()
        counted_BL = self._counted(originals_BL, inputs.get("attention_mask"))
        learnt = _predict(layer, hidden_BLE, originals_BL.where(counted_BL, IGNORED), None)
        assert learnt.log_normalizers is not None
        with torch.no_grad():
            hidden_BKE = _at(hidden_BLE, slots)
            proposed = _predict(layer, hidden_BKE, slots.labels, sampling)
            logits_BKV = layer(hidden_BKE) if output_logits else None
        log_prob_of = partial(_log_prob_of, layer, hidden_BLE, learnt.log_normalizers)
        return proposed._replace(loss=learnt.loss, logits=logits_BKV, log_prob_of=log_prob_of)

    def log_likelihoods(self, tower: Any, input_ids: Tensor, mask_id: int, **inputs: Tensor | None) -> Tensor:
        hidden_BLE = tower(input_ids, **inputs)
        return -_predict(tower.get_output_embeddings(), hidden_BLE, input_ids, None).loss.losses

    def _counted(self, originals_BL: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
        counted_BL = torch.ones_like(originals_BL, dtype=torch.bool)
        for token in self.config.special_token_ids:
            counted_BL &= originals_BL.ne(token)
        return counted_BL if attention_mask_BL is None else counted_BL & attention_mask_BL.ne(0)


class UniformGenerator(Generator):
    """Every token is as likely as every other (google-research/electra `uniform_generator`): no network, nothing to
    learn. L_G = ln V, a constant."""

    measures: tuple[Measure, ...] = (GENERATOR_LOSS, SAMPLED_ACCURACY, REPLACED_SHARE)

    def __call__(
        self, tower: Any, slots: MaskedSlots, sampling: Sampling | None, output_logits: bool, **inputs: Tensor | None
    ) -> MaskedPrediction:
        labels_BK = slots.labels
        logits_V = torch.zeros(self.config.discriminator_config.vocab_size, device=labels_BK.device)
        logits_BKV = logits_V.expand(*labels_BK.shape, -1)
        sampled_BK = None
        if sampling is not None and sampling.from_softmax:  # fast, since all slots share their chunks
            weights_V = (logits_V - logits_V.amax()).exp()
            sampled_BK = sample_weights(weights_V.expand_as(logits_BKV), sampling.uniforms)
        elif sampling is not None:
            sampled_BK = sampling.draw(logits_BKV, labels_BK)
        used = labels_BK.ne(IGNORED)
        losses_BK = -logits_V.log_softmax(dim=0)[labels_BK.clamp(min=0)].where(used, 0.0)
        loss = LossSum(losses_BK.sum(), losses_BK, used.sum())
        predictions_BK = logits_V.argmax().expand_as(labels_BK)
        return MaskedPrediction(loss, predictions_BK, sampled_BK, logits_BKV if output_logits else None)


def predict_slots(
    tower: Any, slots: MaskedSlots, sampling: Sampling | None, output_logits: bool, **inputs: Tensor | None
) -> MaskedPrediction:
    """Returns the predictions of a masked language model for the masked slots; arguments as for [`Generator`]. Logits
    are computed only for the slots, B*K rows instead of B*L, and only a few rows at a time. For a family that is not
    in `FAMILIES`, they are computed for all tokens."""
    known = inputs_of(tower.config, inputs)
    if tower.config.model_type not in FAMILIES:
        logits_BKV = _at(tower(**known).logits, slots)
        predicted = predict_from_logits(logits_BKV, slots.labels, sampling)
        return predicted._replace(logits=logits_BKV) if output_logits else predicted
    hidden_BKH = _at(tower.base_model(**known).last_hidden_state, slots)
    hidden_BKE = FAMILIES[tower.config.model_type].transform(tower, hidden_BKH)
    layer = output_layer(tower)
    predicted = _predict(layer, hidden_BKE, slots.labels, sampling)
    return predicted._replace(logits=layer(hidden_BKE)) if output_logits else predicted


def masked_log_likelihoods(
    tower: Any, input_ids: Tensor, mask_id: int, words_BL: Tensor | None = None, **inputs: Tensor | None
) -> Tensor:
    """Returns log p(x_t | x with [MASK] at t) for each token of a batch of sequences: (B, L). It takes one forward
    pass per position. Where `words_BL` numbers the word of each token, [MASK] also hides the later tokens of the same
    word."""
    places_L = torch.arange(input_ids.shape[1], device=input_ids.device)
    columns = []
    for position in range(input_ids.shape[1]):
        masked_BL = places_L.eq(position).expand_as(input_ids)
        if words_BL is not None:
            masked_BL = masked_BL | (places_L.gt(position) & words_BL.eq(words_BL[:, position, None]))
        slots = MaskedSlots(input_ids.new_full((len(input_ids), 1), position), input_ids[:, position, None])
        masked_ids_BL = input_ids.masked_fill(masked_BL, mask_id)
        columns.append(-predict_slots(tower, slots, None, False, input_ids=masked_ids_BL, **inputs).loss.losses)
    return torch.cat(columns, dim=1)


def _predict(layer: Any, hidden_ME: Tensor, labels_M: Tensor, sampling: Sampling | None) -> MaskedPrediction:
    if _is_plain(layer):
        return predict_masked(hidden_ME, layer.weight, layer.bias, labels_M, sampling)
    return predict_from_logits(layer(hidden_ME), labels_M, sampling)


@torch.no_grad()
def _log_prob_of(layer: Any, hidden_BLE: Tensor, log_normalizers_BL: Tensor, ids_BL: Tensor) -> Tensor:
    """Returns the log-probabilities of these ids (B, L). Where the layer is plain, no other logits are computed."""
    if _is_plain(layer):
        logits_BL = (hidden_BLE * F.embedding(ids_BL, layer.weight)).sum(dim=-1) + layer.bias[ids_BL]
    else:
        logits_BL = layer(hidden_BLE).gather(-1, ids_BL[..., None]).squeeze(-1)
    return logits_BL.to(log_normalizers_BL.dtype) - log_normalizers_BL


def _at(values_BLX: Tensor, slots: MaskedSlots) -> Tensor:
    """The values (B, K, X) at the slots."""
    return values_BLX.gather(1, slots.positions[..., None].expand(-1, -1, values_BLX.shape[-1]))


def _is_plain(layer: Any) -> bool:
    """Whether a layer does nothing but multiply and add: it has no adapter, and no hook that must be called."""
    if isinstance(layer, OutputLayer):
        return True
    called = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    return type(layer) is nn.Linear and layer.bias is not None and not called


GENERATORS: dict[str, type[Generator]] = {
    "masked_lm": MaskedLMGenerator,
    "uniform": UniformGenerator,
    "two_tower": TwoTowerGenerator,
}
assert tuple(GENERATORS) == GENERATOR_NAMES
