"""What differs between families of encoders: one row for each. No other module of the core names their attributes.

What `transformers` has for all of them is not repeated here: `tower.base_model`, `tower.base_model_prefix`,
`get_input_embeddings()` (the word table), `get_output_embeddings()` (the output layer of a masked language model).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import CONFIG_MAPPING, ElectraForMaskedLM, ElectraForPreTraining, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING
from transformers.models.electra.modeling_electra import ElectraDiscriminatorPredictions


@dataclass(frozen=True)
class Family:
    """A family of encoders. Names are those of modules in the base model, except where another is named."""

    masked_lm: type[PreTrainedModel]  # stock model that predicts tokens
    detector: type[PreTrainedModel]  # stock model with one logit a token; positive means replaced
    detection_head: type[nn.Module]  # gives these logits (B, L) from the hidden states (B, L, H)
    embeddings: str  # the embedding block
    tables: tuple[str, str]  # the look-up tables of words and positions
    projection: str  # from the width of the embeddings to that of the layers, where they differ
    first_attention: str  # of the first layer, with linear layers `query` and `key`
    layers: tuple[str, ...]  # classes that must stay in one piece when a model is sharded


FAMILIES: dict[str, Family] = {
    "electra": Family(
        masked_lm=ElectraForMaskedLM,
        detector=ElectraForPreTraining,
        detection_head=ElectraDiscriminatorPredictions,
        embeddings="embeddings",
        tables=("embeddings.word_embeddings", "embeddings.position_embeddings"),
        projection="embeddings_project",
        first_attention="encoder.layer.0.attention.self",
        layers=("ElectraEmbeddings", "ElectraLayer"),
    ),
}


def family_of(tower: Any) -> Family:
    """The family of a model or of its configuration."""
    return FAMILIES[getattr(tower, "config", tower).model_type]


# ---- Masked language models, of any family ----


@dataclass(frozen=True)
class MaskedLMFamily:
    """What differs between stock masked language models. One of a family without a row computes the logits of all
    tokens, which is right, and slow."""

    transform: Callable[[Any, Tensor], Tensor]  # of a model: hidden states (..., H) to what its output layer reads
    first_position: Callable[[Any], int] = lambda config: 0  # of a configuration: the position id of the first token


def _roberta_transform(model: Any, hidden: Tensor) -> Tensor:
    head = model.lm_head
    return head.layer_norm(F.gelu(head.dense(hidden)))


_ELECTRA = MaskedLMFamily(lambda model, hidden: model.generator_predictions(hidden))
_ROBERTA = MaskedLMFamily(_roberta_transform, lambda config: config.pad_token_id + 1)
MASKED_LMS: dict[str, MaskedLMFamily] = {
    "bert": MaskedLMFamily(lambda model, hidden: model.cls.predictions.transform(hidden)),
    "camembert": _ROBERTA,
    "convbert": _ELECTRA,
    "distilbert": MaskedLMFamily(
        lambda model, hidden: model.vocab_layer_norm(model.activation(model.vocab_transform(hidden)))
    ),
    "electra": _ELECTRA,
    "modernbert": MaskedLMFamily(lambda model, hidden: model.head(hidden)),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
}


def masked_lm_class(model_type: str) -> type[PreTrainedModel] | None:
    """The stock masked language model of a family; None where there is none."""
    found: Any = None
    if model_type in CONFIG_MAPPING:
        found = MODEL_FOR_MASKED_LM_MAPPING.get(CONFIG_MAPPING[model_type], None)
    return found


def inputs_of(config: Any, inputs: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    """What an encoder with this configuration is called with: no token types where its table has one or none, and
    position ids where it would count them from the ids, in which a [PAD] may stand for a word."""
    kept = {name: value for name, value in inputs.items() if value is not None}
    if getattr(config, "type_vocab_size", 0) < 2:
        kept.pop("token_type_ids", None)
    if first := _first_position(config):
        length, device = kept["input_ids"].shape[1], kept["input_ids"].device
        kept["position_ids"] = first + kept.get("position_ids", torch.arange(length, device=device)[None])
    return kept


def max_length(config: Any) -> int:
    """The longest sequence that an encoder with this configuration reads, in tokens."""
    return int(getattr(config, "max_position_embeddings", 2**31) - _first_position(config))


def _first_position(config: Any) -> int:
    row = MASKED_LMS.get(config.model_type)
    return 0 if row is None else row.first_position(config)
