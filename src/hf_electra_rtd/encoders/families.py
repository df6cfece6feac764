"""The differences between families of encoders, one row for each. No other core module names their attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import CONFIG_MAPPING, ElectraForPreTraining, PreTrainedModel
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    and_masks,
    bidirectional_mask_function,
    eager_mask,
    flash_attention_mask,
    packed_sequence_mask_function,
    sdpa_mask,
    sliding_window_bidirectional_mask_function,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING, MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

from hf_electra_rtd.ops.devices import on_cpu


class OutputLayer(NamedTuple):
    """A linear layer whose weight and bias lie in different modules."""

    weight: Tensor  # (V, E)
    bias: Tensor  # (V,)

    def __call__(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.weight, self.bias)


@dataclass(frozen=True)
class Family:
    """A family of encoders."""

    # For a masked LM: maps hidden states (..., H) to the input of its output layer.
    transform: Callable[[Any, Tensor], Tensor]
    output_layer: Callable[[Any], Any] = lambda model: model.get_output_embeddings()  # for a masked LM
    first_position: Callable[[Any], int] = lambda config: 0  # for a configuration: the position id of the first token
    # Whether an encoder with this configuration has a table of positions.
    has_positions: Callable[[Any], bool] = lambda config: True
    # The stock model with one logit per token, positive where it was replaced; None means the one for token
    # classification.
    detector: type[PreTrainedModel] | None = None
    # Whether the documents of a sequence can be kept apart. Tokens must mix only in attention, which must take masks
    # of pairs.
    document_attention: bool = False
    # Whether the encoder, where no mask is given, reads the ids for padding and then makes a mask of ones.
    makes_mask: bool = False
    resize: Callable[..., Any] = lambda model, *sizes: model.resize_token_embeddings(*sizes)  # see `resize_vocabulary`
    layers: tuple[str, ...] = ()  # classes that stay in one piece when a model is sharded; by default the stock ones


def _roberta_transform(model: Any, hidden: Tensor) -> Tensor:
    head = model.lm_head
    return head.layer_norm(F.gelu(head.dense(hidden)))


def _deberta_transform(model: Any, hidden: Tensor) -> Tensor:
    if model.legacy:
        return model.cls.predictions.transform(hidden)
    head = model.lm_predictions.lm_head
    return head.LayerNorm(head.transform_act_fn(head.dense(hidden)))


def _deberta_output(model: Any) -> Any:
    """Returns the output layer. With `legacy=False`, as in the released generators of DeBERTaV3, it is the word table
    with a bias of the head."""
    if getattr(model, "legacy", True):  # models without such a head have no `legacy`
        return model.get_output_embeddings()
    return OutputLayer(model.get_input_embeddings().weight, model.lm_predictions.lm_head.bias)


def _resize_deberta(model: Any, *sizes: Any) -> None:
    if getattr(model, "legacy", True):
        model.resize_token_embeddings(*sizes)
        return
    words = model.base_model.resize_token_embeddings(*sizes)
    head = model.lm_predictions.lm_head
    bias = head.bias.detach()[: words.num_embeddings]
    head.bias = nn.Parameter(F.pad(bias, (0, words.num_embeddings - len(bias))))


_ROBERTA = Family(_roberta_transform, first_position=lambda config: config.pad_token_id + 1, document_attention=True)
FAMILIES: dict[str, Family] = {
    "bert": Family(lambda model, hidden: model.cls.predictions.transform(hidden), document_attention=True),
    "camembert": _ROBERTA,
    "convbert": Family(
        lambda model, hidden: model.generator_predictions(hidden), makes_mask=True, layers=("ConvBertLayer",)
    ),
    "deberta-v2": Family(
        _deberta_transform,
        _deberta_output,
        has_positions=lambda config: config.position_biased_input,
        makes_mask=True,
        resize=_resize_deberta,
        layers=("DebertaV2Layer",),
    ),
    "distilbert": Family(
        lambda model, hidden: model.vocab_layer_norm(model.activation(model.vocab_transform(hidden))),
        document_attention=True,
        layers=("TransformerBlock",),
    ),
    "electra": Family(
        lambda model, hidden: model.generator_predictions(hidden),
        detector=ElectraForPreTraining,
        document_attention=True,
        layers=("ElectraLayer",),
    ),
    "modernbert": Family(
        lambda model, hidden: model.head(hidden), has_positions=lambda config: False, document_attention=True
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
}
# Other families work, too, but slowly: their masked language models compute the logits of all tokens.
_OTHER = Family(transform=cast(Any, None))


# The names of all dropout rates of encoders, without those of heads.
DROPOUTS = (
    # BERT and most others
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    # DistilBERT
    "dropout",
    "attention_dropout",
    # ModernBERT, with attention_dropout
    "embedding_dropout",
    "mlp_dropout",
)


def masked_lm_class(model_type: str) -> type[PreTrainedModel] | None:
    """The stock masked language model of a family; None where there is none."""
    return _stock_class(MODEL_FOR_MASKED_LM_MAPPING, model_type)


def detector_class(model_type: str) -> type[PreTrainedModel] | None:
    """The stock model that detects replaced tokens (`hf_electra_rtd.encoders.detectors`); None where there is none."""
    return FAMILIES.get(model_type, _OTHER).detector or token_classifier_class(model_type)


def token_classifier_class(model_type: str) -> type[PreTrainedModel] | None:
    """The stock model for token classification of a family; None where there is none."""
    return _stock_class(MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING, model_type)


def _stock_class(mapping: Any, model_type: str) -> Any:
    if model_type not in CONFIG_MAPPING:
        return None
    config_class: Any = CONFIG_MAPPING[model_type]  # the mapping's `get` would not import the class
    if getattr(config_class, "is_encoder_decoder", False):
        return None  # it predicts by a decoder
    return mapping.get(config_class, None)


def refuse_other_networks(config: Any) -> None:
    """Raises ValueError for a configuration that is not that of an encoder with a head for masked tokens."""
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", feed_forward_name(config))
    if masked_lm_class(config.model_type) is None or not all(hasattr(config, name) for name in sizes):
        known = ", ".join(FAMILIES)
        raise ValueError(f"There is no encoder of the family {config.model_type!r} for masked tokens. Take {known}.")


def output_layer(tower: Any) -> Any:
    """Returns the layer of a masked language model that computes the logits, with its `weight` (V, E) and `bias`."""
    return _row(tower.config).output_layer(tower)


def unsplit_layers(tower: Any) -> tuple[str, ...]:
    """Returns the class names of the layers that stay in one piece when a model is sharded. Embeddings are left out,
    because several modules share their tensors."""
    stock = (name for name in tower._no_split_modules or () if not name.endswith("Embeddings"))
    return _row(tower.config).layers or tuple(sorted(stock))


def resize_vocabulary(tower: Any, *sizes: Any) -> None:
    """Calls `resize_token_embeddings` of a tower with these arguments, in the way that its family needs."""
    _row(tower.config).resize(tower, *sizes)


def choose_head(model: Any, unread: Iterable[str], config: Any) -> bool:
    """Sets `legacy=False` in `config`, with which a masked language model was loaded, if the model left the tensors of
    the `legacy=False` head unread. Released weights of DeBERTa have this head, although their configurations do not
    say so. Returns whether the model must be loaded again."""
    if not getattr(model, "legacy", False) or "lm_predictions.lm_head.bias" not in unread:
        return False
    config.legacy = False
    return True


def _row(config: Any) -> Family:
    return FAMILIES.get(config.model_type, _OTHER)


# ---- Inputs ----

# For each kind of layers, which tokens a token sees: a function of the indices of pairs of tokens.
_SEEN: dict[str, Callable[[Any], Any]] = {
    "full_attention": lambda config: bidirectional_mask_function,
    "sliding_attention": lambda config: sliding_window_bidirectional_mask_function(config.sliding_window),
}


def inputs_of(config: Any, inputs: Mapping[str, Tensor | None]) -> dict[str, Any]:
    """Returns the arguments with which an encoder of this configuration is called.

    Token types are left out where their table has fewer than two rows. Position ids are added where the encoder would
    count them from the ids, in which a [PAD] may stand for a word. `document_ids` become masks or, for flash
    attention, the lengths in `document_offsets`. Two cases keep the host from waiting for a GPU. Without an attention
    mask, families that would search the ids for padding get a mask of ones. With one, an encoder on a GPU gets the
    finished mask of pairs, because it would otherwise read whether there is any padding.
    """
    kept: dict[str, Any] = {name: value for name, value in inputs.items() if value is not None}
    if getattr(config, "type_vocab_size", 0) < 2:
        kept.pop("token_type_ids", None)
    read = kept["input_ids" if "input_ids" in kept else "inputs_embeds"]
    if _row(config).makes_mask:
        kept.setdefault("attention_mask", torch.ones(read.shape[:2], device=read.device))
    if first := _row(config).first_position(config):
        kept["position_ids"] = first + kept.get("position_ids", torch.arange(read.shape[1], device=read.device)[None])
    real_BL = kept.get("attention_mask")
    documents_BL = kept.pop("document_ids", None)
    offsets = kept.pop("document_offsets", None)
    if documents_BL is not None:
        check_document_attention(config)
    if documents_BL is not None and _takes_lengths(config):
        kept.pop("attention_mask", None)
        kept |= _document_lengths(documents_BL, offsets)
    elif documents_BL is not None or (real_BL is not None and not on_cpu(real_BL) and _takes_masks(config)):
        kept["attention_mask"] = _pair_masks(config, documents_BL, real_BL)
    return kept


def mixes_by_attention(config: Any) -> bool:
    """Whether tokens are known to mix only in attention, so that padding changes nothing."""
    return _row(config).document_attention


def check_document_attention(config: Any) -> None:
    """Raises ValueError for an encoder that cannot keep the documents of a sequence apart."""
    attention = config._attn_implementation
    if not _row(config).document_attention:
        known = ", ".join(name for name, each in FAMILIES.items() if each.document_attention)
        raise ValueError(f"document_attention is for the families {known}, not {config.model_type!r}.")
    if not _takes_lengths(config) and not _takes_masks(config):
        raise ValueError(f"document_attention takes sdpa, eager or flash_attention_2, not {attention}.")


def _takes_lengths(config: Any) -> bool:
    """Whether attention is a flash kernel of any package. These take lengths instead of a mask of pairs."""
    return ALL_MASK_ATTENTION_FUNCTIONS.get(config._attn_implementation) is flash_attention_mask


def _takes_masks(config: Any) -> bool:
    """Whether an encoder takes masks of pairs of tokens."""
    function = ALL_MASK_ATTENTION_FUNCTIONS.get(config._attn_implementation)
    return _row(config).document_attention and function in (sdpa_mask, eager_mask)


def _document_lengths(documents_BL: Tensor, offsets: Tensor | None) -> dict[str, Any]:
    """Returns the arguments of a flash kernel for a batch whose rows are concatenated. The largest length is the
    one that a document may have: to read the actual one, the host would wait for the device."""
    if offsets is None:
        raise ValueError("document_ids with flash attention need document_offsets: take those of DataCollatorForRTD.")
    length = documents_BL.shape[1]
    return {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": length, "max_length_k": length}


def _pair_masks(config: Any, documents_BL: Tensor | None, real_BL: Tensor | None) -> Any:
    """Returns the mask (B, 1, L, L) by which a token sees the real tokens (of its document); for an encoder with
    several kinds of layers, a mask for each kind. `create_bidirectional_mask` gives the same, but much more slowly."""
    given: Any = real_BL if documents_BL is None else documents_BL
    batch_size, length = given.shape
    kinds = getattr(config, "layer_types", None)
    documents = [] if documents_BL is None else [packed_sequence_mask_function(documents_BL)]
    masks = {
        kind: ALL_MASK_ATTENTION_FUNCTIONS[config._attn_implementation](
            batch_size=batch_size,
            q_length=length,
            kv_length=length,
            mask_function=and_masks(*documents, _SEEN[kind](config)),
            attention_mask=None if real_BL is None else real_BL.bool(),
            allow_is_causal_skip=False,
            device=given.device,
        )
        for kind in set(kinds or ["full_attention"])
    }
    return masks if kinds else masks["full_attention"]


def max_length(config: Any) -> int:
    """The longest sequence that an encoder with this configuration reads, in tokens."""
    return int(getattr(config, "max_position_embeddings", 2**31) - _row(config).first_position(config))


# ---- Embeddings. `encoder` is the base model of a tower ----


def size_of(config: Any, name: str) -> Any:
    """Returns a size of a configuration by its name in `ElectraConfig`; None where the family has no such size.
    Embeddings without a width of their own are as wide as the layers."""
    if name == "embedding_size":
        return getattr(config, name, config.hidden_size)
    if name == "max_position_embeddings" and not _row(config).has_positions(config):
        return None
    return getattr(config, name, None)


def feed_forward_name(config: Any) -> str:
    """The name of the width inside the feed-forward networks."""
    return "intermediate_size" if hasattr(config, "intermediate_size") else "hidden_dim"


def word_table(encoder: Any) -> str:
    """The name of the word table."""
    words = encoder.get_input_embeddings()
    return next(name for name, module in encoder.named_modules() if module is words)


def look_up_tables(encoder: Any) -> tuple[str, ...]:
    """The names of the tables of words and, where they are learned, of positions."""
    words = word_table(encoder)
    positions = f"{words.rpartition('.')[0]}.position_embeddings".lstrip(".")
    there = isinstance(dict(encoder.named_modules()).get(positions), nn.Embedding)
    return (words, positions) if there else (words,)


def embedding_parameters(encoder: Any) -> tuple[str, ...]:
    """The names of the parameters of the embedding block. Where the block ends with a projection to the width of the
    layers (DeBERTa's `embed_proj`), only those of its tables, which come before the projection."""
    block = word_table(encoder).rpartition(".")[0]
    module = encoder.get_submodule(block)
    tables = {name for name, each in module.named_modules() if isinstance(each, nn.Embedding)}
    is_projected = any(isinstance(each, nn.Linear) for each in module.modules())
    names = [name for name, _ in module.named_parameters()]
    return tuple(
        f"{block}.{each}".lstrip(".") for each in names if not is_projected or each.rpartition(".")[0] in tables
    )
