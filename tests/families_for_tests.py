"""Tiny random encoders of every supported family, for the tests of several rooms."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, PreTrainedConfig


VOCAB_SIZE, HIDDEN_SIZE, LAYERS, MAX_LENGTH = 120, 32, 2, 64
_USUAL: dict[str, Any] = {
    "hidden_size": HIDDEN_SIZE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": MAX_LENGTH,
    "pad_token_id": 0,
}
# Positions begin behind that of the padding.
_ROBERTA: dict[str, Any] = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}
_DISTILBERT: dict[str, Any] = {
    **{"dim": HIDDEN_SIZE, "n_layers": LAYERS, "n_heads": 2, "hidden_dim": 64},
    **{"max_position_embeddings": MAX_LENGTH, "pad_token_id": 0},
}
_OWN: dict[str, dict[str, Any]] = {
    "bert": _USUAL,
    "camembert": _USUAL | _ROBERTA,
    "convbert": _USUAL | {"embedding_size": 16, "conv_kernel_size": 3},
    # As DeBERTa-v3: relative positions in buckets, no token types, and v2's convolution beside the first layer.
    "deberta-v2": _USUAL
    | {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm"}
    | {"share_att_key": True, "position_biased_input": False, "type_vocab_size": 0, "legacy": False}
    | {"conv_kernel_size": 3, "conv_act": "gelu"},
    "distilbert": _DISTILBERT,
    "electra": _USUAL | {"embedding_size": 16, "intermediate_size": 128},
    "modernbert": _USUAL
    | {"cls_token_id": 2, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3, "local_attention": 8}
    | dict.fromkeys(("embedding_dropout", "mlp_dropout", "attention_dropout", "classifier_dropout"), 0.1),
    "roberta": _USUAL | _ROBERTA,
    "xlm-roberta": _USUAL | _ROBERTA,
}
FAMILY_NAMES = tuple(_OWN)


def tiny_family_config(name: str, **options: Any) -> PreTrainedConfig:
    """A configuration of the family `name` (a `model_type`): 120 tokens, width 32, 2 layers, 2 heads, sequences of 64
    tokens, dropout 0.1, weights far from uniform. Another `pad_token_id` moves RoBERTa's positions as it should."""
    fields = {"vocab_size": VOCAB_SIZE, "initializer_range": 0.2, **_OWN[name], **options}
    if fields["max_position_embeddings"] == MAX_LENGTH and _ROBERTA.items() <= {**fields, "pad_token_id": 1}.items():
        fields["max_position_embeddings"] += fields["pad_token_id"] + 1
    return AutoConfig.for_model(name, **fields)
