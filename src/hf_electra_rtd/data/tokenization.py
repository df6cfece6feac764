"""Loads, checks and saves tokenizers, and makes them from a `vocab.txt`."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers.models import Unigram
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase
from transformers.utils import cached_file

from hf_electra_rtd.base.files import load_pretrained, naming, reading, writing
from hf_electra_rtd.encoders.families import FAMILIES, max_length


logger = logging.getLogger(__name__)

# In the order in which the vocabulary of English BERT has them, and with the ids of `train_new_from_iterator`.
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_SPECIAL = ("pad", "unk", "cls", "sep", "mask")
TOKENIZER_FILE = "tokenizer_config.json"  # in every directory of a tokenizer
VOCABULARIES = (  # the vocabulary files of all kinds of tokenizers
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
)
# The files that a tokenizer directory may hold.
TOKENIZER_FILES = (TOKENIZER_FILE, *VOCABULARIES, "special_tokens_map.json", "chat_template.jinja")
_REMEDY = (
    "Name a vocab.txt, a directory with a tokenizer.json, or an id on the Hub. Where there is a SentencePiece model "
    "(spm.model) without a tokenizer.json: pip install sentencepiece protobuf."
)
MAX_LENGTH = 512  # positions of every named size (paper, Table 6)
# Texts that show differences between tokenizers with the same vocabulary: case, accents, scripts, marks, white space,
# digits.
_PROBES = (
    "The MILL's old Café naïve Ångström ﬁne Straße İstanbul ǅ",
    "don't stop-gap (3.14%) $5,000 a_b 10^3 x≤y e.g. http://a.b/c?d=1 #tag @you …",
    "河水 流。『东西』 カタカナ ｶﾞ 한국어 слово Ελληνικά हिन्दी ไทย עברית العربية 😀👍🏽",
    "tab\tno\u00a0break\u200bzero\u2028line\ufeff\x07 a\u0301 \u00e1  two  spaces ",
)
# A share of unknown tokens above the first number gives a warning, above the second an error.
WARNED_UNKNOWN = 0.01
MOST_UNKNOWN = 0.5
_MOST_PROBED = 2**15  # tokens that also serve as probes; of a larger vocabulary, they are evenly spaced


def load_tokenizer(
    name_or_path: str, lowercase: bool | None = None, strip_accents: bool | None = None
) -> PreTrainedTokenizerBase:
    """Loads a tokenizer from a directory, a Hub id, or a `vocab.txt` with one WordPiece per line.

    `lowercase` and `strip_accents` are for a `vocab.txt` only: whether text becomes lower case (by default if the file
    contains no upper-case letter), and whether accents are stripped (by default if text becomes lower case, as in
    BERT, and no token of the file would change by it). Raises ValueError if the tokenizer cannot be loaded or used
    (see `check_tokenizer`)."""
    tokenizer: PreTrainedTokenizerBase
    if os.path.isfile(name_or_path):
        with reading(name_or_path), open(name_or_path, encoding="utf-8-sig") as file:
            vocabulary = {line.rstrip("\r\n"): index for index, line in enumerate(file)}
        if missing := [token for token in SPECIAL_TOKENS if token not in vocabulary]:
            raise ValueError(f"{name_or_path} lacks {', '.join(missing)}. For other tokenizers, name the directory.")
        if lowercase is None:
            # Not `isupper`: the uncased English vocabulary contains signs such as ℝ, which have no lower case.
            lowercase = all(token == token.lower() for token in vocabulary if token[:1] not in ("[", "<"))
        if lowercase and strip_accents is None:
            bare = BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True, lowercase=False)
            if any(bare.normalize_str(token) != token for token in vocabulary):
                strip_accents = False  # else such tokens would never occur
        options: dict[str, Any] = {"do_lower_case": lowercase, "strip_accents": strip_accents}
        tokenizer = BertTokenizer(vocab=vocabulary, model_max_length=MAX_LENGTH, **options)
    elif lowercase is not None or strip_accents is not None:
        raise ValueError(f"lowercase and strip_accents are for a vocab.txt. Leave them out for {name_or_path}.")
    else:
        with reading(name_or_path, _REMEDY):
            tokenizer = load_pretrained(AutoTokenizer, name_or_path)
    check_tokenizer(tokenizer, f"The tokenizer {name_or_path}")
    return tokenizer


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str = "The tokenizer") -> None:
    """Raises ValueError, with the `name`, for a slow tokenizer, for gaps between ids, for special tokens that are
    missing or coincide, and for a vocabulary without words."""
    if not tokenizer.is_fast:
        raise ValueError(f"{name} is not a fast tokenizer. Convert it to one (a tokenizer.json).")
    if max(tokenizer.get_vocab().values(), default=-1) >= len(tokenizer):
        raise ValueError(
            f"{name} has gaps between its ids. Remove tokens that its vocabulary names twice, and blank lines."
        )
    ids = {f"{special}_token": getattr(tokenizer, f"{special}_token_id") for special in _SPECIAL}
    wrong = [special for special, index in ids.items() if index is None or [*ids.values()].count(index) > 1]
    if wrong:
        raise ValueError(f"{name} has no {', no '.join(wrong)} of its own. Set them in {TOKENIZER_FILE}.")
    if len(tokenizer) <= len(SPECIAL_TOKENS):  # `transformers` makes such a tokenizer if its files are missing
        raise ValueError(f"{name} has no words. Name a vocab.txt, or a directory with a whole tokenizer.json.")


def structural_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Returns the ids of [CLS], [SEP], [PAD] and [MASK], which are never masked, drawn or counted."""
    return [getattr(tokenizer, f"{name}_token_id") for name in ("cls", "sep", "pad", "mask")]


def count_unknown(tokenizer: PreTrainedTokenizerBase, ids: Any) -> tuple[int, int]:
    """Returns the number of unknown tokens among `ids`, and the number of all tokens without special tokens other than
    the unknown one."""
    unknown = int(np.count_nonzero(np.equal(ids, tokenizer.unk_token_id)))
    return unknown, unknown + int(np.count_nonzero(np.isin(ids, tokenizer.all_special_ids, invert=True)))


def count_unknown_in(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> tuple[int, int]:
    """Returns the counts of `count_unknown` for the tokens of texts."""
    rows = tokenizer([*texts], verbose=False, split_special_tokens=True)["input_ids"] if texts else []
    return count_unknown(tokenizer, list(chain.from_iterable(rows)))


def check_known(name: str, unknown: int, total: int, refuses: bool = True) -> float:
    """Returns the share of unknown tokens in the text called `name`, and warns if it is above 1 %. With `refuses`,
    raises ValueError if it is above 50 %: such a text is usually in another language."""
    share = unknown / max(total, 1)
    message = (
        f"{name}: {share:.1%} of the tokens are unknown: words with a character that is not in the\n"
        "  vocabulary, or, in BERT's tokenizers, of more than 100 characters. Take a tokenizer or a model\n"
        "  that was trained on such text."
    )
    if refuses and share > MOST_UNKNOWN:
        raise ValueError(message)
    if share > WARNED_UNKNOWN:
        logger.warning(message)
    return share


def fit_tokenizer(tokenizer: PreTrainedTokenizerBase, config: Any) -> None:
    """Adapts a tokenizer, also as it is saved, to an encoder with this configuration: `model_max_length` becomes the
    number of positions, and `token_type_ids` are left out if the encoder has no token types. For an unknown family,
    the tokenizer does not change."""
    if config.model_type in FAMILIES:
        tokenizer.model_max_length = max_length(config)
        if getattr(config, "type_vocab_size", 0) < 2:
            names = [name for name in tokenizer.model_input_names if name != "token_type_ids"]
            tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = names  # the second is saved


def has_tokenizer(source: str) -> bool:
    """Returns whether a directory or a Hub id contains a tokenizer."""
    here = {"_raise_exceptions_for_missing_entries": False}
    return not Path(source).is_file() and any(cached_file(source, file, **here) for file in VOCABULARIES)


def refuse_other_tokens(source: str, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Raises ValueError, with the `name`, for a model (a directory or a Hub id) whose own tokenizer has other tokens.
    A model without a tokenizer passes, because its tokens are not known."""
    if not has_tokenizer(source):
        return
    theirs, ours = (_vocabulary(each) for each in (load_tokenizer(source), tokenizer))
    if theirs != ours:
        first, second = next((a, b) for a, b in zip_longest(theirs, ours) if a != b)
        raise ValueError(f"{name} has other tokens: {first}, not {second}. Name its own tokenizer.")


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, directory: str | os.PathLike[str]) -> None:
    """Writes the tokenizer. For a BERT tokenizer, also writes the `vocab.txt` that older tools read, and that
    `transformers` 5 no longer writes."""
    _plain(tokenizer.backend_tokenizer)  # otherwise the truncation and padding of its last call would be saved
    vocabulary = _vocabulary(tokenizer)
    with naming(directory):
        tokenizer.save_pretrained(directory)
        is_bert = continuing_prefix(tokenizer) and isinstance(
            tokenizer.backend_tokenizer.pre_tokenizer, BertPreTokenizer
        )
        # In a `vocab.txt`, the number of a line is the id of its token.
        if is_bert and [index for _, index in vocabulary] == list(range(len(vocabulary))):
            text = "".join(f"{token}\n" for token, _ in vocabulary)
            (Path(directory) / "vocab.txt").write_text(text, encoding="utf-8")


def keep_tokenizer(tokenizer: PreTrainedTokenizerBase, directory: str | os.PathLike[str]) -> None:
    """Saves the tokenizer, whole or not at all. A directory is replaced only if it holds nothing but a tokenizer."""
    with writing(directory, TOKENIZER_FILE, TOKENIZER_FILES) as partial:
        save_tokenizer(tokenizer, partial)


def get_backend(tokenizer: PreTrainedTokenizerBase) -> Any:
    """Returns a copy of the underlying `tokenizers.Tokenizer`, without truncation and padding. The copy reads a
    `[MASK]` in a text as text, as google-research/electra does."""
    backend = _plain(copy.deepcopy(tokenizer.backend_tokenizer))
    backend.encode_special_tokens = True
    if isinstance(backend.model, Unigram):
        # Special tokens are also pieces of the model, which would match in a text. A noncharacter before them prevents
        # that.
        model = json.loads(backend.model.__getstate__())
        special = {*tokenizer.all_special_tokens}
        pieces = [("\ufdd0" + piece if piece in special else piece, score) for piece, score in model["vocab"]]
        backend.model = Unigram(pieces, model["unk_id"], model["byte_fallback"])
    return backend


def _plain(backend: Any) -> Any:
    backend.no_truncation()
    backend.no_padding()
    return backend


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Returns the SHA-256 of the tokens with their ids, the special tokens, and the ids of probe texts, which show how
    it tokenizes. An upgrade of the library that does not change ids does not change the hash."""
    vocabulary = _vocabulary(tokenizer)
    some = vocabulary[:: -(-len(vocabulary) // _MOST_PROBED)]
    texts = [*_PROBES, *(text for token, _ in some for text in (token, token.upper()))]
    encoded = get_backend(tokenizer).encode_batch_fast(texts, add_special_tokens=False)
    special = [getattr(tokenizer, f"{name}_token_id") for name in _SPECIAL]
    return hashlib.sha256(json.dumps([vocabulary, special, [line.ids for line in encoded]]).encode()).hexdigest()


def continuing_prefix(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Returns the ## of WordPiece; None for tokenizers that mark the beginnings of words, or nothing."""
    return getattr(tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None) or None


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> list[str]:
    """Returns what each token adds to a text: with the space before it if the token includes one, and without a ##. A
    token that is a part of a character becomes U+FFFD."""
    if prefix := continuing_prefix(tokenizer):
        return [token.removeprefix(prefix) for token in tokenizer.convert_ids_to_tokens(list(ids))]
    first = tokenizer.cls_token_id  # decoding drops a space at the beginning of a text, but not after this token
    decode = tokenizer.backend_tokenizer.decode_batch
    start, *texts = decode([[first], *([first, index] for index in ids)], skip_special_tokens=False)
    return [text.removeprefix(start) for text in texts]


def _vocabulary(tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, int]]:
    return sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
