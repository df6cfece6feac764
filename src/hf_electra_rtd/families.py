"""What differs between families of encoders: one row for each. No other module of the core names their attributes.

What `transformers` has for all of them is not repeated here: `tower.base_model`, `tower.base_model_prefix`,
`get_input_embeddings()` (the word table), `get_output_embeddings()` (the output layer of a masked language model).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import ElectraForMaskedLM, ElectraForPreTraining, PreTrainedModel
from transformers.models.electra.modeling_electra import ElectraDiscriminatorPredictions


@dataclass(frozen=True)
class Family:
    """A family of encoders. Names are those of modules in the base model, except where another is named."""

    masked_lm: type[PreTrainedModel]  # stock model that predicts tokens
    detector: type[PreTrainedModel]  # stock model with one logit a token; positive means replaced
    detection_head: type[nn.Module]  # gives these logits (B, L) from the hidden states (B, L, H)
    transform: str  # of the masked language model, between encoder and output layer
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
        transform="generator_predictions",
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
