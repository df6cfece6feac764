"""Tokenizers: loaded, made from a `vocab.txt`, or trained on the corpus."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase


# Order and ids as `train_new_from_iterator` keeps them and as the English BERT vocabulary begins.
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_LENGTH = 512  # positions of every named size (paper, Table 6)


def load_tokenizer(name_or_path: str, lowercase: bool | None = None) -> PreTrainedTokenizerBase:
    """Loads a tokenizer.

    Args:
        name_or_path: a directory, a Hub id, or a `vocab.txt`, one WordPiece a line.
        lowercase: for a `vocab.txt`, whether text is lower-cased and loses its accents before it is looked up. By
            default it is, unless the vocabulary itself holds upper-case letters.

    Raises:
        ValueError: if there is none; for a tokenizer without one of [PAD], [UNK], [CLS], [SEP], [MASK], or whose ids
            do not fit.
    """
    tokenizer: PreTrainedTokenizerBase
    if os.path.isfile(name_or_path):
        with open(name_or_path, encoding="utf-8") as file:
            vocabulary = {line.rstrip("\r\n"): index for index, line in enumerate(file)}
        missing = [token for token in SPECIAL_TOKENS if token not in vocabulary]
        if missing:
            raise ValueError(f"{name_or_path} lacks {', '.join(missing)}: it is not a BERT-style vocabulary.")
        if lowercase is None:
            # Not `isupper`: the uncased English vocabulary holds signs such as ℝ, which have no lower case.
            words = (token for token in vocabulary if token[:1] not in ("[", "<"))
            lowercase = all(token == token.lower() for token in words)
        tokenizer = BertTokenizer(vocab=vocabulary, do_lower_case=lowercase, model_max_length=MAX_LENGTH)
    else:
        if lowercase is not None:
            raise ValueError(f"{name_or_path} says itself whether it lower-cases: --lowercase is for a vocab.txt.")
        try:
            tokenizer = AutoTokenizer.from_pretrained(name_or_path)
        except OSError as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"{name_or_path} is no tokenizer: it is neither a vocab.txt nor a directory with a tokenizer.json, "
                f"and the Hub does not give one. ({reason})"
            ) from None
    check_tokenizer(tokenizer)
    return tokenizer


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuses a tokenizer that RTD pre-training cannot work with.

    Raises:
        ValueError: names the special token that is missing, or says that the ids have gaps.
    """
    if not tokenizer.is_fast:
        raise ValueError("The tokenizer is a slow one: convert it to a fast one (a tokenizer.json).")
    if max(tokenizer.get_vocab().values()) >= len(tokenizer):
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} tokens, but ids up to {max(tokenizer.get_vocab().values())}: a "
            "vocabulary must not name a token twice, nor leave a line blank."
        )
    for name in ("pad", "unk", "cls", "sep", "mask"):
        if tokenizer.convert_tokens_to_ids(str(getattr(tokenizer, f"{name}_token"))) is None or (
            getattr(tokenizer, f"{name}_token_id") is None
        ):
            raise ValueError(
                f"The tokenizer has no {name}_token: ELECTRA needs [PAD], [UNK], [CLS], [SEP] and [MASK]."
            )


def train_wordpiece(
    lines: Callable[[], Iterable[str]], vocab_size: int, lowercase: bool = True
) -> PreTrainedTokenizerBase:
    """Trains an uncased (or cased) WordPiece vocabulary, in the manner of BERT's. The same text gives the same one.

    Args:
        lines: gives the text; it is read twice.
        vocab_size: at most this many tokens; a small text yields fewer.
        lowercase: lower-case and strip accents first.

    Raises:
        ValueError: for a vocabulary with no room for more than the special tokens.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    def train(fixed: list[str], size: int) -> dict[str, int]:
        wordpiece = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        wordpiece.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
        wordpiece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        # Half of the vocabulary for single characters at most: scripts with many keep room for words.
        trainer = trainers.WordPieceTrainer(
            vocab_size=size, special_tokens=fixed, limit_alphabet=max(1, vocab_size // 4), show_progress=False
        )
        wordpiece.train_from_iterator(lines(), trainer)
        return wordpiece.get_vocab()

    if vocab_size <= len(SPECIAL_TOKENS):
        raise ValueError(f"A vocabulary of {vocab_size} tokens has no room for words: ask for some thousands.")
    # The trainer numbers characters in the order of a hash table, which differs from run to run, and breaks ties
    # between merges by these numbers. So the alphabet is collected first, and fixed in its own order.
    alphabet = sorted(train(list(SPECIAL_TOKENS), 0).keys() - set(SPECIAL_TOKENS))
    vocabulary = train([*SPECIAL_TOKENS, *alphabet], vocab_size)
    return BertTokenizer(vocab=vocabulary, do_lower_case=lowercase, model_max_length=MAX_LENGTH)


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of everything that decides how text becomes ids: two tokenizers with one hash give the same blocks."""
    pipeline = json.loads(tokenizer.backend_tokenizer.to_str())
    parts = ("normalizer", "pre_tokenizer", "model", "added_tokens")
    described: dict[str, Any] = {key: pipeline[key] for key in parts}
    described["special"] = [getattr(tokenizer, f"{name}_token_id") for name in ("pad", "unk", "cls", "sep", "mask")]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
