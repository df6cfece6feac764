"""Finds where words begin, for masking by words: one bit per token, found at tokenization and stored with the ids."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.base.files import check_name
from hf_electra_rtd.data.packing import WORD_START
from hf_electra_rtd.data.tokenization import continuing_prefix, get_backend, token_texts
from hf_electra_rtd.data.units import SENTENCE_ENDS
from hf_electra_rtd.data.units import is_word as is_word_of_letters
from hf_electra_rtd.data.wordpiece import UNSPACED


Segmenter = Callable[[str], Iterable[str]]  # returns the words of a line in order, without what is between them
BY_TOKENIZER = "tokenizer"  # the name that is recorded where there is no segmenter
_MARKS = ("▁", "Ġ")  # before a word, in SentencePiece and in byte-level BPE
_READABLE = range(4, 25)  # number of words of an example sentence
_UNSPACED = re.compile(f"[{UNSPACED}]")


@cache
def _jieba() -> tuple[Segmenter, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jieba is from 2020 and uses deprecated features of Python and setuptools
            import jieba
    except ImportError as error:
        raise ValueError(f"word_segmenter=jieba ({error}): pip install -e '.[zh]'") from None
    segmenter = jieba.Tokenizer()
    # `initialize` would trust a file that lies in the directory for temporary files.
    segmenter.FREQ, segmenter.total = segmenter.gen_pfdict(segmenter.get_dict_file())
    segmenter.initialized = True
    return segmenter.cut, f"jieba {jieba.__version__}"


SEGMENTERS = {"jieba": _jieba}


def get_segmenter(segmenter: str | Segmenter | None) -> tuple[Segmenter | None, str]:
    """Returns the segmenter of that name, a given function unchanged, or None for None; and its name and version for
    the header of a block file. Raises ValueError for an unknown name, and for a package that is not installed."""
    if callable(segmenter):
        return segmenter, ".".join(getattr(segmenter, name, "?") for name in ("__module__", "__qualname__"))
    if segmenter is None:
        return None, BY_TOKENIZER
    check_name("word_segmenter", segmenter, SEGMENTERS)
    return SEGMENTERS[segmenter]()


def tokens_that_continue(tokenizer: PreTrainedTokenizerBase) -> np.ndarray | None:
    """Returns which tokens continue a word, bool (V,): those with the ## of WordPiece. Returns None for other
    tokenizers, whose tokens do not show it: there, a full stop looks like the rest of the word before it."""
    prefix = continuing_prefix(tokenizer)
    return _tokens_with(tokenizer, prefix) if prefix else None


def _tokens_with(tokenizer: PreTrainedTokenizerBase, prefix: str) -> np.ndarray:
    found = np.zeros(len(tokenizer), dtype=bool)
    for token, index in tokenizer.get_vocab().items():
        found[index] = token.startswith(prefix)
    return found


class WholeWords(NamedTuple):
    """Tokens that are words by themselves. V tokens of the vocabulary."""

    texts: list[str]  # the text of every token, without surrounding spaces
    continues: np.ndarray  # bool (V,): the token continues a word, or has no mark of a word's beginning
    ids: dict[tuple[str, bool], int]  # the tokens that are words of letters, by text and whether they continue a word

    def find(self, text: str, continues: bool) -> int | None:
        """Returns the token of a word as it is written, else of the word in lower case, else None."""
        return self.ids.get((text, continues), self.ids.get((text.lower(), continues)))


def whole_words(tokenizer: PreTrainedTokenizerBase) -> WholeWords:
    """Returns the tokens of a vocabulary, and which of them are words by themselves."""
    every = list(range(len(tokenizer)))
    texts = [text.strip() for text in tokenizer.batch_decode([[index] for index in every])]
    special = set(tokenizer.all_special_ids)
    continues = tokens_that_continue(tokenizer)
    if continues is None:  # here, the mark of a space before the word tells the two kinds of tokens apart
        continues = np.array([not name.startswith(_MARKS) for name in tokenizer.convert_ids_to_tokens(every)])
    ids: dict[tuple[str, bool], int] = {}
    for index, text in enumerate(texts):
        if is_word_of_letters(text) and index not in special:
            ids.setdefault((text, bool(continues[index])), index)
    return WholeWords(texts, continues, ids)


def shown_tokens(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str], before: str = " ") -> list[str]:
    """Returns the tokens of a text in readable form: with ## before a token that continues a word, and ␣ for a token
    that is only a space. `before` is the text before the first token."""
    if continuing_prefix(tokenizer):
        return list(tokens)
    ids: Any = tokenizer.convert_tokens_to_ids(list(tokens))
    shown = list[str]()
    special = {*tokenizer.all_special_tokens}
    for token, text in zip(tokens, token_texts(tokenizer, ids), strict=True):
        if token in special:
            shown.append(token)
            before = " "
        else:
            goes_on = text[:1] == "\ufffd" or is_inside(before + text, len(before))
            if goes_on and before != " ":
                shown.append("##" + (text.strip() or "␣"))
            else:
                shown.append(text.strip() or "␣")
            before = text
    return shown


def is_inside(text: str, place: int) -> bool:
    """Returns whether the character position `place` lies between two letters of a word. This is false beside
    ideographs and kana, which may be words by themselves."""
    return 0 < place < len(text) and all(
        unicodedata.category(sign)[0] in "LNM" and not _stands_without_spaces(sign)
        for sign in text[place - 1 : place + 1]
    )


def _stands_without_spaces(sign: str) -> bool:
    """Returns whether a character is an ideograph, kana or a wide mark. Hangul does not count: Korean has spaces."""
    return unicodedata.east_asian_width(sign) in "WF" and not unicodedata.name(sign, "").startswith("HANGUL")


def words_of(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str]) -> list[range]:
    """Returns the range of token positions of each word."""
    starts = [at for at, name in enumerate(shown_tokens(tokenizer, tokens)) if at == 0 or not name.startswith("##")]
    return [range(start, stop) for start, stop in pairwise([*starts, len(tokens)])]


def join_words(tokenizer: PreTrainedTokenizerBase, words: Sequence[Sequence[str]]) -> list[str]:
    """Turns words, each a list of tokens, into the parts of a text: each word with the space that belongs before
    it."""
    join = tokenizer.convert_tokens_to_string
    parts: list[str] = []
    before = str(tokenizer.cls_token)
    for word in words:
        text = join([before, *word]).removeprefix(join([before]))
        around = before[-1] + text.strip()[:1]
        closed = (sign in "'\u2019" or _stands_without_spaces(sign) for sign in around)
        # WordPiece tokens do not show where the text has spaces. There are none beside an apostrophe or a Chinese
        # character.
        if not parts or (continuing_prefix(tokenizer) and any(closed)):
            text = text.strip()
        parts.append(text)
        before = word[-1]
    return parts


def example_sentence(tokenizer: PreTrainedTokenizerBase, sequences: Iterable[Sequence[int]]) -> dict[str, str]:
    """Returns the first whole sentence of readable length in sequences of ids, in three forms: `original`; `replaced`,
    with its middle word replaced by one of the sentence before it; and `gap`, with {} in that place. Returns an empty
    dict if there is no such sentence."""
    special = set(tokenizer.all_special_tokens)
    for ids in sequences:
        sentences: list[list[Sequence[str]]] = [[]]
        tokens = tokenizer.convert_ids_to_tokens(list(ids))
        for span in words_of(tokenizer, tokens):
            word = tokens[span.start : span.stop]
            sentences[-1].append(word)
            if word[0] in special or word[-1].endswith(SENTENCE_ENDS):
                sentences.append([])
        for before, sentence in pairwise(sentences[:-1]):
            # The model card shows the sentence in its code, in double quotes.
            is_plain = not any(set(token) & set('{}"\\') or token in special for word in sentence for token in word)
            if is_plain and before[-1][-1].endswith(SENTENCE_ENDS) and len(sentence) in _READABLE:
                other = _middle_word(tokenizer, before)
                middle = _middle_word(tokenizer, sentence)
                if other is None or middle is None or before[other] == sentence[middle] or before[other][0] in special:
                    continue
                changed = join_words(tokenizer, [*sentence[:middle], before[other], *sentence[middle + 1 :]])
                parts = join_words(tokenizer, sentence)
                space = " " * parts[middle].startswith(" ")
                gap = "".join([*parts[:middle], f"{space}{{}}", *parts[middle + 1 :]])
                return {"original": "".join(parts), "replaced": "".join(changed), "gap": gap}
    return {}


def _middle_word(tokenizer: PreTrainedTokenizerBase, words: Sequence[Sequence[str]]) -> int | None:
    """Returns the index of the middle word among the words that contain a letter."""
    places = [place for place, text in enumerate(join_words(tokenizer, words)) if any(map(str.isalpha, text))]
    return places[len(places) // 2] if places else None


class LineEncoder:
    """Tokenizes lines, and finds the tokens at which words begin.

    With a segmenter, these are the tokens where its words begin. Without one, they are the tokens without ## in
    WordPiece; in other tokenizers, the first token of each word of the pre-tokenizer, tokens with a mark of a word's
    beginning, and tokens that begin with a letter of a script without spaces."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, segmenter: Segmenter | None) -> None:
        self.segmenter = segmenter
        self._backend = get_backend(tokenizer)
        self._continues = tokens_that_continue(tokenizer)
        marked = [_tokens_with(tokenizer, mark) for mark in _MARKS]
        self._marked = marked[0] if marked[0].any() else marked[1]  # where ▁ is the mark, Ġ is a letter of Maltese
        if self._continues is None:  # `isalnum` excludes vowel signs, which continue a word
            firsts = [text.lstrip()[:1] for text in token_texts(tokenizer, range(len(tokenizer)))]
            self._marked |= np.array([first.isalnum() and _UNSPACED.match(first) is not None for first in firsts])

    def __call__(self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens of all lines, int64 (N,): ids, with the bit `WORD_START` where a word begins; and the
        number of tokens of each line, int64. Raises ValueError if the segmenter returns a word that is not in its
        line."""
        is_seen = self.segmenter is None and self._continues is not None
        encode = self._backend.encode_batch_fast if is_seen else self._backend.encode_batch
        encoded = encode(lines, add_special_tokens=False)
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))

        # Line by line, because the values are Python integers, which take much memory.
        def join(values: Iterable[Sequence[int]]) -> np.ndarray:
            return np.fromiter(chain.from_iterable(values), dtype=np.int64, count=int(lengths.sum()))

        ids = join(line.ids for line in encoded)
        firsts = (lengths.cumsum() - lengths)[lengths > 0]
        if self.segmenter is not None:
            begins = join(self._word_starts(*pair) for pair in zip(lines, encoded, strict=True)) > 0
        elif self._continues is not None:
            begins = ~self._continues[ids]
        else:
            words = join(line.word_ids for line in encoded)
            begins = self._marked[ids] | (np.diff(words, prepend=-1) != 0)
        begins[firsts] = True
        return ids + begins * WORD_START, lengths

    def _word_starts(self, line: str, encoded: Any) -> list[int]:
        """Returns for each token whether a word begins at it."""
        starts = bytearray(len(line) + 1)
        end = 0
        for word in self.segmenter(line):  # type: ignore[misc]
            if (place := line.find(word, end)) < 0:
                raise ValueError(f"The word segmenter made {word!r} of {line[end : end + 40]!r}: not the same text.")
            starts[end] = starts[place] = 1  # text between words, such as spaces, is a word of its own
            end = place + len(word)
        starts[end] = 1
        places = [first for first, _ in encoded.offsets]
        # Several tokens can have the same offset: the bytes of a character, and the letters of a ligature.
        return [starts[place] * (place != before) for place, before in zip(places, [-1, *places], strict=False)]
