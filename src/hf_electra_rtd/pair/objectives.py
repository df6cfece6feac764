"""The objectives of the discriminator: those of the paper's Table 5, and Electric.

An objective is a class that defines the discriminator's stock model, its loss, and what is measured.

Notation: x is the original sequence, x^c the corrupted one (every masked token is replaced by a sample of the
generator), m the masked positions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import ElectraConfig, PreTrainedModel
from transformers.models.electra.modeling_electra import ElectraDiscriminatorPredictions

from hf_electra_rtd.encoders.detectors import detection_logits
from hf_electra_rtd.encoders.families import FAMILIES, detector_class, inputs_of, masked_lm_class, output_layer
from hf_electra_rtd.ops import IGNORED, LossSum, MaskedSlots, replace_at
from hf_electra_rtd.pair.configuration_electra_rtd import OBJECTIVE_TRAITS, ElectraRTDConfig
from hf_electra_rtd.pair.generators import masked_log_likelihoods, predict_slots
from hf_electra_rtd.pair.measures import (
    LOSS_AT_ALL,
    LOSS_AT_MASKED,
    MASKED_ACCURACY,
    REPLACED_ACCURACY,
    TOKEN_ACCURACY,
    Detection,
    Measure,
)


class CorruptedBatch(NamedTuple):
    """The discriminator's input and its targets. B sequences, L tokens, K masked slots."""

    input_ids: Tensor  # (B, L), samples in place of the masked tokens ([MASK] where there is no generator)
    tower_inputs: dict[str, Tensor | None]  # these ids, or their `inputs_embeds` (B, L, E), `attention_mask` and so on
    original_ids: Tensor | None  # (B, L), before masking; None, like the slots, where not known
    slots: MaskedSlots | None
    noise_log_probs: Tensor | None = None  # (B, L), of these ids under the generator; where the objective needs them


class MainOutput(NamedTuple):
    """The discriminator's output."""

    loss: LossSum | None  # None without labels
    # (B, L), positive means replaced; or (B, K, V) or (B, L, V), only without labels or if asked for.
    logits: Tensor | None
    predictions: Tensor | None = None  # (B, K) or (B, L), most likely ids, of objectives that predict tokens
    labels: Tensor | None = None  # (B, L) bool, targets of logits (B, L); None: the tokens that were replaced


class Objective(ABC):
    """The interface of all objectives."""

    masked_only: ClassVar[bool] = False  # the loss is a mean over the masked tokens, not over every real token
    measures: ClassVar[tuple[Measure, ...]]

    def __init__(self, config: ElectraRTDConfig) -> None:
        self.config = config

    @staticmethod
    def tower_class(model_type: str) -> type[PreTrainedModel] | None:
        """Returns the discriminator's stock model in a family; None where there is none."""
        return detector_class(model_type)

    def make_head(self, config: Any) -> nn.Module | None:
        """Makes a head that is trained with the towers but not exported with them; None without one."""
        return None

    @abstractmethod
    def __call__(self, tower: Any, head: Any, batch: CorruptedBatch, output_logits: bool = False) -> MainOutput:
        """Runs the discriminator on a batch. `output_logits`: also return logits over the vocabulary."""

    def log_likelihoods(self, pair: Any, input_ids: Tensor, mask_id: int, **inputs: Tensor | None) -> Tensor:
        """Returns log p(x_t | x without t) under a pair for each token of unmasked sequences: (B, L). Raises
        ValueError for an objective that gives none."""
        raise ValueError(f"objective={self.config.objective!r} gives no probability of a token in its context.")


class ReplacedTokenDetection(Objective):
    """ELECTRA (paper, section 2): was each token replaced?

        L = mean over every real token t of  -log D(x^c, t)  where x^c_t = x_t,  else  -log(1 - D(x^c, t))

    where D is the sigmoid of minus the logit.
    """

    measures: ClassVar[tuple[Measure, ...]] = (LOSS_AT_ALL, Detection(masked_only=False))

    def __call__(self, tower: Any, head: Any, batch: CorruptedBatch, output_logits: bool = False) -> MainOutput:
        logits_BL = detection_logits(tower, **inputs_of(tower.config, batch.tower_inputs))
        if batch.original_ids is None or batch.slots is None:
            return MainOutput(None, logits_BL)
        replaced_BL = batch.input_ids.ne(batch.original_ids)
        if not self.masked_only:
            loss = replaced_token_loss(logits_BL, replaced_BL, batch.tower_inputs.get("attention_mask"))
            return MainOutput(loss, logits_BL)
        logits_BK, replaced_BK = (each_BL.gather(1, batch.slots.positions) for each_BL in (logits_BL, replaced_BL))
        return MainOutput(replaced_token_loss(logits_BK, replaced_BK, batch.slots.labels.ne(IGNORED)), logits_BL)

    def log_likelihoods(self, pair: Any, input_ids: Tensor, mask_id: int, **inputs: Tensor | None) -> Tensor:
        """Returns log p_data. For a perfect discriminator and a generator p_G, with a = (1 - p) / p (paper, appendix
        G):

            D = p_data (a + p_G) / (a p_data + p_G),  and so  p_data = D p_G / (a (1 - D) + p_G)

        Here p is the share of the tokens that are drawn. Masked tokens that stay visible do not count as drawn, since
        a generator that sees them gives them back.
        """
        self.config.refuse_altered_draws()
        config = self.config
        log_p = pair.proposals.log_likelihoods(pair.generator, input_ids, mask_id, **inputs)
        drawn = config.mask_probability * (1.0 if pair.proposals.is_blind else 1 - config.keep_probability)
        if not drawn:
            raise ValueError("keep_probability=1 hid no token from the generator: the pair gives no probability.")
        logits = pair.discriminate(input_ids, **inputs).logits.to(log_p.dtype)
        return token_log_probability(logits, log_p, drawn)


class MaskedOnlyDetection(ReplacedTokenDetection):
    """ELECTRA 15% (paper, section 3.4): as [`ReplacedTokenDetection`], but the mean is over the masked positions."""

    masked_only = True
    measures = (LOSS_AT_MASKED, Detection(masked_only=True), Detection(masked_only=False, suffix="_all"))
    log_likelihoods = Objective.log_likelihoods


class NoiseContrastiveEstimation(Objective):
    """Electric (arXiv 2012.08561, section 2): the discriminator's output is an energy E. With q the generator,

        log p(x_t | x without t) = -E(x)_t

        L = mean over every real token t of the binary cross-entropy of "x^c_t was drawn" and its logit

            E(x^c)_t + log q(x^c_t | x without t) + log(p / (1 - p))

    where p is the mask probability, and q has no gradient. A draw that equals the original counts as drawn. The output
    has these logits; without labels, it has the energies.
    """

    measures = (LOSS_AT_ALL, Detection(masked_only=False))

    def __call__(self, tower: Any, head: Any, batch: CorruptedBatch, output_logits: bool = False) -> MainOutput:
        energies_BL = detection_logits(tower, **inputs_of(tower.config, batch.tower_inputs))
        if batch.slots is None or batch.noise_log_probs is None:
            return MainOutput(None, energies_BL)
        log_odds = math.log(self.config.mask_probability / (1 - self.config.mask_probability))
        logits_BL = energies_BL + batch.noise_log_probs.detach() + log_odds
        nowhere_BL = torch.zeros_like(batch.input_ids, dtype=torch.bool)
        drawn_BL = replace_at(nowhere_BL, batch.slots, torch.ones_like(batch.slots.labels, dtype=torch.bool))
        loss = replaced_token_loss(logits_BL, drawn_BL, batch.tower_inputs.get("attention_mask"))
        return MainOutput(loss, logits_BL, labels=drawn_BL)

    def log_likelihoods(self, pair: Any, input_ids: Tensor, mask_id: int, **inputs: Tensor | None) -> Tensor:
        energies_BL: Tensor = pair.discriminate(input_ids, **inputs).logits
        return -energies_BL


class MaskedLM(Objective):
    """BERT without its random tokens (Code `electra_objective=False`): one tower, no generator.

    L = mean over m of  -log p(x_t | x with [MASK] at m)
    """

    masked_only = True
    measures = (LOSS_AT_MASKED, MASKED_ACCURACY)
    tower_class = staticmethod(masked_lm_class)

    def __call__(self, tower: Any, head: Any, batch: CorruptedBatch, output_logits: bool = False) -> MainOutput:
        if batch.slots is None:
            logits_BLV = tower(**inputs_of(tower.config, batch.tower_inputs)).logits
            return MainOutput(None, logits_BLV, logits_BLV.argmax(dim=-1))
        predicted = predict_slots(tower, batch.slots, None, output_logits, **batch.tower_inputs)
        return MainOutput(predicted.loss, predicted.logits, predicted.predictions)

    def log_likelihoods(self, pair: Any, input_ids: Tensor, mask_id: int, **inputs: Tensor | None) -> Tensor:
        return masked_log_likelihoods(pair.discriminator, input_ids, mask_id, **inputs)


class ReplaceMLM(MaskedLM):
    """Replace MLM (paper, section 3.4): as [`MaskedLM`], but samples of a generator stand in place of [MASK].

    L = mean over m of  -log p(x_t | x^c)
    """

    log_likelihoods = Objective.log_likelihoods  # it has never seen [MASK]


class AllTokensMLM(Objective):
    """All-Tokens MLM with its copy mechanism (paper, section 3.4): predict every token of the original.

        p(x_t | x^c) = C_t [x^c_t = x_t] + (1 - C_t) softmax(t)[x_t]        L = mean over every real token of -log p

    where the copy probability C_t is the sigmoid of a separate head, which is made like the stock discriminator's.
    """

    tower_class = staticmethod(masked_lm_class)
    measures = (LOSS_AT_ALL, TOKEN_ACCURACY, REPLACED_ACCURACY)

    def make_head(self, config: Any) -> nn.Module:
        is_electra = config.model_type == ElectraConfig.model_type
        return ElectraDiscriminatorPredictions(config if is_electra else ElectraConfig(hidden_size=config.hidden_size))

    def __call__(self, tower: Any, head: Any, batch: CorruptedBatch, output_logits: bool = False) -> MainOutput:
        hidden_BLH = tower.base_model(**inputs_of(tower.config, batch.tower_inputs)).last_hidden_state
        logits_BLV = output_layer(tower)(FAMILIES[tower.config.model_type].transform(tower, hidden_BLH))
        copy_BL = head(hidden_BLH)
        copy_BL = copy_BL if copy_BL.dtype.itemsize >= 4 else copy_BL.float()
        # The copied token has the probability C + (1 - C) p, any other (1 - C) p, so the mode is one of two tokens.
        log_p_BLV = F.log_softmax(logits_BLV.to(copy_BL.dtype), dim=-1)
        best_BL = log_p_BLV.argmax(dim=-1)
        copied = _log_mixture(copy_BL, _at(log_p_BLV, batch.input_ids), torch.ones_like(copy_BL, dtype=torch.bool))
        other = F.logsigmoid(-copy_BL) + _at(log_p_BLV, best_BL)
        predictions_BL = torch.where(copied >= other, batch.input_ids, best_BL)
        loss = None
        if batch.original_ids is not None:
            is_copy_BL = batch.original_ids.eq(batch.input_ids)
            log_p_BL = _log_mixture(copy_BL, _at(log_p_BLV, batch.original_ids), is_copy_BL)
            loss = _sum_over_real(-log_p_BL, batch.tower_inputs.get("attention_mask"))
        kept_BLV = logits_BLV if loss is None or output_logits else None
        return MainOutput(loss, kept_BLV, predictions_BL)


def replaced_token_loss(logits_BL: Tensor, replaced_BL: Tensor, attention_mask_BL: Tensor | None) -> LossSum:
    """Returns the binary cross-entropy of "this token was replaced" over all real tokens, including [CLS] and [SEP],
    in float32 (paper, section 2, L_Disc; google-research/electra run_pretraining.py weighs by `input_mask`)."""
    logits = logits_BL if logits_BL.dtype.itemsize >= 4 else logits_BL.float()
    losses = F.binary_cross_entropy_with_logits(logits, replaced_BL.to(logits.dtype), reduction="none")
    return _sum_over_real(losses, attention_mask_BL)


def token_log_probability(logits: Tensor, log_p: Tensor, drawn: float) -> Tensor:
    """Computes the log-probability in `ReplacedTokenDetection.log_likelihoods` from the logit of being replaced, log
    p_G, and the share p of drawn tokens."""
    log_odds = math.log(1 / drawn - 1)
    return F.logsigmoid(-logits) + log_p - torch.logaddexp(log_odds + F.logsigmoid(logits), log_p)


def _sum_over_real(losses_BL: Tensor, attention_mask_BL: Tensor | None) -> LossSum:
    """Sums the losses of all tokens, of which only the real ones count."""
    if attention_mask_BL is None:
        num_items = losses_BL.new_full((), losses_BL.numel())  # copying a number from the host would wait
    else:
        real = attention_mask_BL.ne(0)
        losses_BL = losses_BL.where(real, 0.0)
        num_items = real.sum()
    return LossSum(losses_BL.sum(), losses_BL.detach(), num_items)


def _at(log_p_BLV: Tensor, ids_BL: Tensor) -> Tensor:
    return log_p_BLV.gather(-1, ids_BL[..., None]).squeeze(-1)


def _log_mixture(copy_BL: Tensor, log_p_BL: Tensor, is_copy_BL: Tensor) -> Tensor:
    """log(C [is_copy] + (1 - C) p), stable for C near 0 and 1."""
    generated = F.logsigmoid(-copy_BL) + log_p_BL
    return torch.where(is_copy_BL, torch.logaddexp(F.logsigmoid(copy_BL), generated), generated)


OBJECTIVES: dict[str, type[Objective]] = {
    "rtd": ReplacedTokenDetection,
    "rtd_masked_only": MaskedOnlyDetection,
    "replace_mlm": ReplaceMLM,
    "all_tokens_mlm": AllTokensMLM,
    "mlm": MaskedLM,
    "electric": NoiseContrastiveEstimation,
}
assert OBJECTIVES.keys() == OBJECTIVE_TRAITS.keys()
