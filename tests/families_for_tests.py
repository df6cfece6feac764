"""Tiny random encoders of every supported family, and tokenizers of every kind, for tests in several directories."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    BertTokenizer,
    DebertaV2Tokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS
from tests.conftest import VOCABULARY, make_text


# ---- Encoders ----

VOCAB_SIZE = 120
HIDDEN_SIZE = 32
LAYERS = 2
MAX_LENGTH = 64

_USUAL: dict[str, Any] = {
    "hidden_size": HIDDEN_SIZE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": MAX_LENGTH,
    "pad_token_id": 0,
}
_ROBERTA: dict[str, Any] = _USUAL | {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1}
# Like DeBERTa-v3: relative positions in buckets, no token types, and v2's convolution beside the first layer.
_DEBERTA: dict[str, Any] = _USUAL | {
    "relative_attention": True,
    "position_buckets": 8,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_biased_input": False,
    "type_vocab_size": 0,
    "legacy": False,
    "conv_kernel_size": 3,
    "conv_act": "gelu",
}
_KINDS: dict[str, dict[str, Any]] = {
    "bert": _USUAL,
    "camembert": _ROBERTA,
    "convbert": _USUAL | {"embedding_size": 16, "conv_kernel_size": 3},
    "deberta-v2": _DEBERTA,
    "distilbert": {
        "dim": HIDDEN_SIZE,
        "n_layers": LAYERS,
        "n_heads": 2,
        "hidden_dim": 64,
        "max_position_embeddings": MAX_LENGTH,
        "pad_token_id": 0,
    },
    "electra": _USUAL | {"embedding_size": 16, "intermediate_size": 128},
    "modernbert": _USUAL
    | {"cls_token_id": 2, "bos_token_id": 2, "sep_token_id": 3, "eos_token_id": 3, "local_attention": 8}
    | dict.fromkeys(("embedding_dropout", "mlp_dropout", "attention_dropout", "classifier_dropout"), 0.1),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    # The other head of transformers' DeBERTa, which has an output layer of its own; and embeddings that are narrower
    # than the layers.
    "deberta-v2, legacy head": _DEBERTA | {"legacy": True},
    "deberta-v2, narrow": _DEBERTA | {"legacy": True, "embedding_size": 16, "position_biased_input": True},
    "roberta, another pad": _ROBERTA | {"pad_token_id": 0},
}
KINDS = tuple(_KINDS)
FAMILY_NAMES = tuple(kind for kind in KINDS if "," not in kind)
POSITIONS_BEHIND_PADDING = ("camembert", "roberta", "xlm-roberta")
WITH_TOKEN_TYPES = ("bert", "convbert", "electra")


def family_of(kind: str) -> str:
    return kind.partition(",")[0]


def tiny_family_config(kind: str, **options: Any) -> PreTrainedConfig:
    """A configuration of one of `KINDS`: 120 tokens, width 32, 2 layers, 2 heads, sequences of 64 tokens, dropout 0.1,
    weights far from uniform. For any other family, only the vocabulary size, the scale of the weights and `options`
    are set. Another `pad_token_id` moves RoBERTa's positions as it should."""
    fields = {"vocab_size": VOCAB_SIZE, "initializer_range": 0.2, **_KINDS.get(kind, {}), **options}
    if family_of(kind) in POSITIONS_BEHIND_PADDING and "max_position_embeddings" not in options:
        fields["max_position_embeddings"] += fields["pad_token_id"] + 1
    return AutoConfig.for_model(family_of(kind), **fields)


# ---- Tokenizers, with different special tokens and marks for the space before a token ----

# Multi-byte characters, which a small byte-level vocabulary splits, and two spaces in a row.
ODD = 'naïve Café 水流。 don\'t 😀  "the mills." saĠa saws'
_SENTENCES = make_text(40, seed=1).replace(" .", ".").replace(" !", "!").replace('"', "'")
LINES = [*_SENTENCES.split("\n"), *[ODD] * 4]
TOKENIZERS = ("WordPiece", "byte-level BPE, <s>", "byte-level BPE, [CLS]", "Unigram, <s>", "Unigram, [CLS]")


def make_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """One of `TOKENIZERS`, trained on `LINES`."""
    roberta = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    if kind == "WordPiece":
        return BertTokenizer(vocab={token: index for index, token in enumerate(VOCABULARY)}, model_max_length=512)
    if kind == "byte-level BPE, [CLS]":
        return _modernbert()
    if kind == "byte-level BPE, <s>":
        vocabulary = {token: index for index, token in enumerate(roberta)}
        return _train(RobertaTokenizer(vocab=vocabulary, merges=[], model_max_length=512), 400)
    if kind == "Unigram, <s>":
        pieces = [(token, 0.0) for token in roberta]
        return _train(XLMRobertaTokenizer(vocab=pieces, model_max_length=512), 150)
    return _train(DebertaV2Tokenizer(vocab=[(token, 0.0) for token in SPECIAL_TOKENS], unk_id=1), 150)


def _train(empty: PreTrainedTokenizerFast, size: int) -> PreTrainedTokenizerFast:
    return empty.train_new_from_iterator(LINES, size, show_progress=False)


def _modernbert() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(
        LINES,
        trainers.BpeTrainer(
            vocab_size=400, show_progress=False, special_tokens=["<|padding|>"], initial_alphabet=alphabet
        ),
    )
    backend.normalizer = normalizers.NFC()
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken("  ", normalized=True)])  # like ModernBERT's tokens for runs of spaces
    backend.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]", AddedToken("[MASK]", lstrip=True)])
    backend.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]",
        "[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=8192,
        **{f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS},
    )
