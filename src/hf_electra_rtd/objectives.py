"""What the discriminator learns: the paper's Table 5.

An objective is a class: which stock model the discriminator is, how its loss is computed, and what is measured.
`OBJECTIVE_TRAITS` of the configuration says whether there is a generator and how the losses are weighted. The model
chooses its objective once, at construction; nothing else depends on the name.

Notation: x the original sequence, x^c the corrupted one (every masked token replaced by a sample of the generator), m
the masked positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import PreTrainedModel

from hf_electra_rtd.configuration_electra_rtd import OBJECTIVE_TRAITS
from hf_electra_rtd.families import FAMILIES, family_of
from hf_electra_rtd.generators import predict_slots
from hf_electra_rtd.measures import (
    CopyProbability,
    Detection,
    MainLoss,
    MaskedAccuracy,
    Measure,
    TokenAccuracy,
    at_all,
    at_masked,
)
from hf_electra_rtd.ops import IGNORED, LossSum, MaskedSlots, replaced_token_loss, sum_over_real


class CorruptedBatch(NamedTuple):
    """The discriminator's input and its targets. B sequences, L tokens, K masked slots."""

    input_ids: Tensor  # (B, L), samples in place of the masked tokens ([MASK] where there is no generator)
    look_up: dict[str, Tensor]  # how the tower gets these ids: `input_ids`, or `inputs_embeds` (B, L, E)
    original_ids: Tensor | None  # (B, L), before masking; None where not known
    slots: MaskedSlots | None  # likewise
    attention_mask: Tensor | None  # (B, L)
    token_type_ids: Tensor | None  # (B, L)
    position_ids: Tensor | None  # (B, L)

    @property
    def replaced_labels(self) -> Tensor | None:
        """(B, L) int64, 1 where the input differs from the original; None without originals."""
        return None if self.original_ids is None else self.input_ids.ne(self.original_ids).long()

    @property
    def tower_inputs(self) -> dict[str, Tensor | None]:
        """Keyword arguments of the tower's `forward`."""
        return {
            **self.look_up,
            "attention_mask": self.attention_mask,
            "token_type_ids": self.token_type_ids,
            "position_ids": self.position_ids,
        }


class MainOutput(NamedTuple):
    """The discriminator's output."""

    loss: LossSum | None  # None without labels
    # (B, L), positive means replaced; or (B, K, V) at the masked slots, or (B, L, V), both only without labels or if
    # asked for.
    logits: Tensor | None
    predictions: Tensor | None = None  # (B, K) or (B, L), most likely ids, of objectives that predict tokens
    copy_probabilities: Tensor | None = None  # (B, L), of a copy mechanism


class Objective(ABC):
    """What all objectives have."""

    name: ClassVar[str]
    main_tower_class: ClassVar[type[PreTrainedModel]]  # the stock model of the discriminator
    measures: ClassVar[tuple[Measure, ...]]

    def make_head(self, config: Any) -> nn.Module | None:
        """A head that is trained with the towers but not exported with them; None without one."""
        return None

    def num_items(self, input_ids: Tensor, slots: MaskedSlots, attention_mask: Tensor | None) -> Tensor:
        """The number of tokens that the loss of a batch is a mean over: a scalar."""
        return _num_real(input_ids, attention_mask)

    @abstractmethod
    def __call__(self, tower: Any, head: Any, batch: CorruptedBatch, output_logits: bool = False) -> MainOutput:
        """Runs the discriminator on a batch. `output_logits`: also return logits over the vocabulary."""


def _num_real(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    if attention_mask is None:
        return torch.full((), input_ids.numel(), device=input_ids.device)
    return attention_mask.ne(0).sum()


def _num_masked(slots: MaskedSlots) -> Tensor:
    return slots.labels.ne(IGNORED).sum()


class ReplacedTokenDetection(Objective):
    """ELECTRA (paper, section 2): was each token replaced?

        L = mean over every real token t of  -log D(x^c, t)  where x^c_t = x_t,  else  -log(1 - D(x^c, t))

    D = sigmoid of minus the logit: a positive logit means replaced.
    """

    name = "rtd"
    main_tower_class = FAMILIES["electra"].detector
    measures: ClassVar[tuple[Measure, ...]] = (MainLoss(at_all), Detection(at_all))

    def __call__(self, tower: Any, head: Any, batch: CorruptedBatch, output_logits: bool = False) -> MainOutput:
        logits_BL = tower(**batch.tower_inputs).logits
        return MainOutput(self._loss(logits_BL, batch), logits_BL)

    def _loss(self, logits_BL: Tensor, batch: CorruptedBatch) -> LossSum | None:
        if batch.replaced_labels is None:
            return None
        return replaced_token_loss(logits_BL, batch.replaced_labels, batch.attention_mask)


class MaskedOnlyDetection(ReplacedTokenDetection):
    """ELECTRA 15% (paper, section 3.4): as [`ReplacedTokenDetection`], but over the masked positions alone.

    L = mean over m of  -log D(x^c, t)  where x^c_t = x_t,  else  -log(1 - D(x^c, t))
    """

    name = "rtd_masked_only"
    measures = (MainLoss(at_masked), Detection(at_masked), Detection(at_all, suffix="_all"))

    def num_items(self, input_ids: Tensor, slots: MaskedSlots, attention_mask: Tensor | None) -> Tensor:
        return _num_masked(slots)

    def _loss(self, logits_BL: Tensor, batch: CorruptedBatch) -> LossSum | None:
        if batch.replaced_labels is None or batch.slots is None:
            return None
        logits_BK = logits_BL.gather(1, batch.slots.positions)
        replaced_BK = batch.replaced_labels.gather(1, batch.slots.positions)
        return replaced_token_loss(logits_BK, replaced_BK, batch.slots.labels.ne(IGNORED))


class MaskedLM(Objective):
    """BERT without its random tokens (Code `electra_objective=False`): one tower, no generator.

    L = mean over m of  -log p(x_t | x with [MASK] at m)
    """

    name = "mlm"
    main_tower_class = FAMILIES["electra"].masked_lm
    measures: ClassVar[tuple[Measure, ...]] = (MainLoss(at_masked), MaskedAccuracy())

    def num_items(self, input_ids: Tensor, slots: MaskedSlots, attention_mask: Tensor | None) -> Tensor:
        return _num_masked(slots)

    def __call__(self, tower: Any, head: Any, batch: CorruptedBatch, output_logits: bool = False) -> MainOutput:
        if batch.slots is None:
            logits_BLV = tower(**batch.tower_inputs).logits
            return MainOutput(None, logits_BLV, logits_BLV.argmax(dim=-1))
        predicted = predict_slots(tower, batch.slots, None, output_logits, **batch.tower_inputs)
        return MainOutput(predicted.loss, predicted.logits, predicted.predictions)


class ReplaceMLM(MaskedLM):
    """Replace MLM (paper, section 3.4): as [`MaskedLM`], but masked tokens are replaced by samples of a generator, so
    that pre-training and fine-tuning see no [MASK].

        L = mean over m of  -log p(x_t | x^c)
    """

    name = "replace_mlm"


class AllTokensMLM(Objective):
    """All-Tokens MLM with its copy mechanism (paper, section 3.4): predict every token of the original.

        p(x_t | x^c) = C_t [x^c_t = x_t] + (1 - C_t) softmax(t)[x_t]        L = mean over every real token of -log p

    with the copy probability C_t the sigmoid of a head of its own on the encoder, made as the stock discriminator's (a
    dense layer, the activation, one output). Between ELECTRA (C alone) and BERT (softmax alone).
    """

    name = "all_tokens_mlm"
    main_tower_class = FAMILIES["electra"].masked_lm
    measures = (MainLoss(at_all), TokenAccuracy(), CopyProbability())

    def make_head(self, config: Any) -> nn.Module:
        return family_of(config).detection_head(config)

    def __call__(self, tower: Any, head: Any, batch: CorruptedBatch, output_logits: bool = False) -> MainOutput:
        hidden_BLH = tower.base_model(**batch.tower_inputs).last_hidden_state
        logits_BLV = tower.get_output_embeddings()(getattr(tower, family_of(tower).transform)(hidden_BLH))
        copy_BL = head(hidden_BLH)
        copy_BL = copy_BL if copy_BL.dtype.itemsize >= 4 else copy_BL.float()
        # The copied token has C + (1 - C) p, any other (1 - C) p: the mode is one of two tokens.
        log_p_BLV = F.log_softmax(logits_BLV.to(copy_BL.dtype), dim=-1)
        best_BL = log_p_BLV.argmax(dim=-1)
        copied = _log_mixture(copy_BL, _at(log_p_BLV, batch.input_ids), torch.ones_like(copy_BL, dtype=torch.bool))
        other = F.logsigmoid(-copy_BL) + _at(log_p_BLV, best_BL)
        predictions_BL = torch.where(copied >= other, batch.input_ids, best_BL)
        loss = self._loss(log_p_BLV, copy_BL, batch)
        kept_BLV = logits_BLV if loss is None or output_logits else None
        return MainOutput(loss, kept_BLV, predictions_BL, copy_BL.sigmoid())

    def _loss(self, log_p_BLV: Tensor, copy_BL: Tensor, batch: CorruptedBatch) -> LossSum | None:
        if batch.original_ids is None:
            return None
        copied = batch.original_ids.eq(batch.input_ids)
        log_p_BL = _log_mixture(copy_BL, _at(log_p_BLV, batch.original_ids), copied)
        return sum_over_real(-log_p_BL, batch.attention_mask)


def _at(log_p_BLV: Tensor, ids_BL: Tensor) -> Tensor:
    return log_p_BLV.gather(-1, ids_BL[..., None]).squeeze(-1)


def _log_mixture(copy_BL: Tensor, log_p_BL: Tensor, is_copy_BL: Tensor) -> Tensor:
    """log(C [is_copy] + (1 - C) p), stable for C near 0 and 1."""
    generated = F.logsigmoid(-copy_BL) + log_p_BL
    return torch.where(is_copy_BL, torch.logaddexp(F.logsigmoid(copy_BL), generated), generated)


_ALL: tuple[type[Objective], ...] = (ReplacedTokenDetection, MaskedOnlyDetection, ReplaceMLM, AllTokensMLM, MaskedLM)
OBJECTIVES: dict[str, type[Objective]] = {objective.name: objective for objective in _ALL}
assert OBJECTIVES.keys() == OBJECTIVE_TRAITS.keys()


def get_objective(name: str) -> Objective:
    """The objective of that name.

    Raises:
        ValueError: if there is none.
    """
    if name not in OBJECTIVES:
        raise ValueError(f"There is no objective={name!r}. Known are: {', '.join(map(repr, OBJECTIVES))}.")
    return OBJECTIVES[name]()
