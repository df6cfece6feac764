"""Trains a WordPiece vocabulary on text, and chooses its size and its handling of case and marks.

Text that is written like English gets a vocabulary like ELECTRA's, in lower case and without accents, and a
`BertTokenizer`. Other text keeps its case and its marks, which in many scripts are vowels. A `BertTokenizer` does not
suit such text: `transformers` configures it by three switches alone, so it does not compose characters (NFC), drops
the joiners of Hindi and Persian, and reads a long sentence of Thai, which has no spaces, as one [UNK]. Other text
therefore gets a plain fast tokenizer, whose rules are all in its `tokenizer.json`.
"""

from __future__ import annotations

import logging
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hf_electra_rtd.data.tokenization import MAX_LENGTH, SPECIAL_TOKENS


logger = logging.getLogger(__name__)

# The default size is that of the first row with room for the text and its characters.
_SIZES = ((20_000_000, 8192), (200_000_000, 16_384))  # characters of the text, tokens of the vocabulary
_LARGEST = 32_768
# A text is written like English if less than this share of its letters is outside a to z, or in words that are too
# long. English Wikipedia has 0.14 % such letters; in German, umlauts are 1.8 %.
_MOST_OTHERS = 0.005
_LONGEST = 100  # characters of a word; a `BertTokenizer` turns a longer word into [UNK]
_COVERED = 0.9999  # share of the text that the characters must cover if the vocabulary has no room for all of them
# The largest share of the vocabulary for characters. In scripts without spaces, characters are the words; a limit of
# one half would leave the other half to the few words of other scripts in the text.
_MOST_CHARACTERS = 0.75
_AT_ONCE = 1 << 20  # characters that are counted at once
# Scripts without spaces between words: Thai, Lao, Burmese, Khmer, kana, ideographs.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff"
)
# In these scripts, each character with its marks is a word; in other scripts, words that are too long are cut.
_UNITS = rf"[{UNSPACED}]\p{{M}}*|[^{UNSPACED}]{{{_LONGEST}}}"
_SPACES = r"[\p{Cc}\u200b]"
_INVISIBLE = r"(?![\u200c\u200d])\p{Cf}"  # without the joiners, which change how letters are written


class _Text(NamedTuple):
    """The measurements of a text that decide how it becomes a vocabulary. No field counts spaces."""

    num_characters: int
    others: float  # share of the letters that are outside a to z, or in ASCII runs of more than `_LONGEST` characters
    num_covering: int  # number of the most frequent characters that make up `_COVERED` of the text


def train_wordpiece(
    lines: Callable[[], Iterable[str]],
    vocab_size: int | None = None,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
) -> PreTrainedTokenizerBase:
    """Trains a WordPiece vocabulary. The same text always gives the same vocabulary.

    Args:
        lines: a function that returns the lines of the text, from the first one at each call.
        vocab_size: the largest number of tokens; a small text yields fewer. By default 8,192 for up to 20 million
            characters, 16,384 for up to 200 million, else 32,768; and the next larger size where the characters alone
            would fill more than three quarters.
        lowercase: whether upper case becomes lower case. By default only if the text is written like English: fewer
            than 5 in 1,000 letters are outside a to z, or in words of more than 100 characters.
        strip_accents: whether accents and other marks are removed, and characters decomposed. By default only if the
            text is written like English and becomes lower case. If not, the tokenizer composes characters (NFC),
            treats each character of scripts without spaces as a word, and cuts longer words after 100 characters.

    Raises ValueError for a size with no room for words, and for an empty text.
    """
    if vocab_size is not None and vocab_size <= len(SPECIAL_TOKENS):
        raise ValueError(f"vocab_size={vocab_size} leaves no room for words. Choose some thousands.")
    text = _measure(lines())
    if not text.num_characters:
        raise ValueError("There is no text to train a tokenizer on: the named text is empty.")
    is_english = text.others < _MOST_OTHERS
    lowercase = is_english if lowercase is None else lowercase
    strip_accents = is_english and lowercase if strip_accents is None else strip_accents
    rows = (
        size for most, size in _SIZES if text.num_characters <= most and text.num_covering <= _MOST_CHARACTERS * size
    )
    size = vocab_size or next(rows, _LARGEST)
    logger.info(f"Training a vocabulary of up to {size:,} tokens on {text.num_characters:,} characters (vocab_size).")
    case = "lowered" if lowercase else "kept"
    marks = "stripped" if strip_accents else "kept"
    logger.info(f"Case is {case} (lowercase), accents and marks are {marks} (strip_accents):")
    logger.info(f"  {text.others:.1%} of the letters are not a to z.")
    normalizer, pre_tokenizer = _rules(lowercase, strip_accents)
    # A sixteenth of the vocabulary, which small alphabets do not fill, is for characters; more if the text needs it.
    characters = _most_frequent(lines(), normalizer, max(size // 16, text.num_covering))
    # A letter that may stand inside a word has two entries, `x` and `##x`.
    num_entries = [2 if sign.isalnum() and not re.match(f"[{UNSPACED}]", sign) else 1 for sign in characters]
    has_room = np.cumsum(num_entries) <= _MOST_CHARACTERS * size
    characters = characters[: max(1, int(has_room.sum()))]

    def train(fixed: list[str], size: int) -> dict[str, int]:
        wordpiece = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        wordpiece.normalizer = normalizer
        wordpiece.pre_tokenizer = pre_tokenizer
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            special_tokens=fixed,
            initial_alphabet=characters,
            limit_alphabet=len(characters),
            show_progress=False,
        )
        wordpiece.train_from_iterator(lines(), trainer)
        return wordpiece.get_vocab()

    # The trainer numbers characters in the order of a hash table, which differs from run to run, and breaks ties
    # between merges by these numbers. So a first training collects the alphabet, and a second gets it in sorted order.
    alphabet = sorted(train(list(SPECIAL_TOKENS), 0).keys() - set(SPECIAL_TOKENS))
    vocabulary = train([*SPECIAL_TOKENS, *alphabet], size)
    if strip_accents:
        return BertTokenizer(
            vocab=vocabulary, do_lower_case=lowercase, strip_accents=True, model_max_length=MAX_LENGTH
        )
    return _keeping_marks(vocabulary, normalizer, pre_tokenizer)


def _most_frequent(lines: Iterable[str], normalizer: Any, limit: int) -> list[str]:
    """Returns the most frequent characters of a text. Ties are broken in favor of the lower code point."""
    counts = sum(_count_characters(normalizer.normalize_str(text)) for text in _joined(lines))
    counts = _without_spaces(np.asarray(counts))
    order = np.argsort(-counts, kind="stable")[: min(limit, np.count_nonzero(counts))]
    return [chr(code) for code in order.tolist()]


def _count_characters(text: str) -> np.ndarray:
    """Counts how often each character occurs: int64 (1,114,112,), indexed by code point."""
    return np.bincount(np.frombuffer(text.encode("utf-32-le"), dtype="<u4"), minlength=sys.maxunicode + 1)


def _without_spaces(counts: np.ndarray) -> np.ndarray:
    counts[[code for code in np.flatnonzero(counts).tolist() if chr(code).isspace()]] = 0
    return counts


def _measure(lines: Iterable[str]) -> _Text:
    counts = np.zeros(sys.maxunicode + 1, dtype=np.int64)
    in_long_words = 0
    for text in _joined(lines):
        counts += _count_characters(text)
        in_long_words += sum(map(len, re.findall(rf"[!-~]{{{_LONGEST + 1},}}", text)))
    counts = _without_spaces(counts)
    letters = [code for code in np.flatnonzero(counts).tolist() if unicodedata.category(chr(code))[0] in "LM"]
    others = counts[[code for code in letters if code > 127]].sum() + in_long_words
    covered = np.sort(counts)[::-1].cumsum()
    return _Text(
        num_characters=int(covered[-1]),
        others=float(others / max(counts[letters].sum(), 1)),
        num_covering=1 + int(np.searchsorted(covered, _COVERED * covered[-1])),
    )


def _joined(lines: Iterable[str]) -> Iterator[str]:
    waiting: list[str] = []
    size = 0
    for line in lines:
        waiting.append(line)
        size += len(line)
        if size >= _AT_ONCE:
            yield "\n".join(waiting)
            waiting = []
            size = 0
    yield "\n".join(waiting)


def _rules(lowercase: bool, strip_accents: bool) -> tuple[Any, Any]:
    """Returns the normalizer, and the pre-tokenizer that splits text into words."""
    if strip_accents:
        normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=True)
        return normalizer, pre_tokenizers.BertPreTokenizer()
    steps = [normalizers.Replace(Regex(_SPACES), " "), normalizers.Replace(Regex(_INVISIBLE), ""), normalizers.NFC()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    units = pre_tokenizers.Split(Regex(_UNITS), "isolated")
    return normalizers.Sequence(steps), pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), units])


def _keeping_marks(vocabulary: dict[str, int], normalizer: Any, pre_tokenizer: Any) -> PreTrainedTokenizerBase:
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.WordPiece(prefix="##")
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=MAX_LENGTH,
        model_input_names=BertTokenizer.model_input_names,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
