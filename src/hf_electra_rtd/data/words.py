"""Where words begin, one bit a token, for masking by words: found when text is tokenized, and stored with the ids."""

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

from hf_electra_rtd.base.files import known_names
from hf_electra_rtd.data.packing import WORD_START
from hf_electra_rtd.data.tokenization import continuing_prefix, get_backend, token_texts
from hf_electra_rtd.data.units import SENTENCE_ENDS
from hf_electra_rtd.data.units import is_word as is_word_of_letters
from hf_electra_rtd.data.wordpiece import UNSPACED


Segmenter = Callable[[str], Iterable[str]]  # the words of a line, in order; what it leaves out stands between words
BY_TOKENIZER = "tokenizer"  # named where there is no segmenter
_MARKS = ("▁", "Ġ")  # before a word, in SentencePiece and in byte-level BPE
_READABLE = range(4, 25)  # words of a sentence
_UNSPACED = re.compile(f"[{UNSPACED}]")


@cache
def _jieba() -> tuple[Segmenter, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of 2020, it uses what Python and setuptools give up
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
    """A segmenter by its name, one of one's own, or none (None), with the name and version that a block file keeps.
    Raises ValueError for an unknown name, or a package that is not installed."""
    if callable(segmenter):
        return segmenter, ".".join(getattr(segmenter, name, "?") for name in ("__module__", "__qualname__"))
    if segmenter is not None and segmenter not in SEGMENTERS:
        raise ValueError(f"There is no word segmenter {segmenter!r}. {known_names(segmenter, SEGMENTERS, 'ones')}")
    return (None, BY_TOKENIZER) if segmenter is None else SEGMENTERS[segmenter]()


def tokens_that_continue(tokenizer: PreTrainedTokenizerBase) -> np.ndarray | None:
    """Which tokens go on with a word, bool (V,): those with the ## of WordPiece. None where tokens do not show it: in
    the others, a full stop looks like the rest of the word before it."""
    prefix = continuing_prefix(tokenizer)
    return _tokens_with(tokenizer, prefix) if prefix else None


def _tokens_with(tokenizer: PreTrainedTokenizerBase, prefix: str) -> np.ndarray:
    found = np.zeros(len(tokenizer), dtype=bool)
    for token, index in tokenizer.get_vocab().items():
        found[index] = token.startswith(prefix)
    return found


class WholeWords(NamedTuple):
    """Tokens that are words by themselves. V tokens of the vocabulary."""

    texts: list[str]  # of every token, without spaces around
    continues: np.ndarray  # bool (V,): it goes on with a word, or has no mark of its beginning
    ids: dict[tuple[str, bool], int]  # of a word of letters, by its text and whether it continues

    def find(self, text: str, continues: bool) -> int | None:
        """The token of a word, in lower case if it is not there as it is written."""
        return self.ids.get((text, continues), self.ids.get((text.lower(), continues)))


def whole_words(tokenizer: PreTrainedTokenizerBase) -> WholeWords:
    """The words of a vocabulary."""
    every = list(range(len(tokenizer)))
    texts = [text.strip() for text in tokenizer.batch_decode([[index] for index in every])]
    special = set(tokenizer.all_special_ids)
    continues = tokens_that_continue(tokenizer)
    if continues is None:  # tokens of one kind go to the same places: with and without a space before them
        continues = np.array([not name.startswith(_MARKS) for name in tokenizer.convert_ids_to_tokens(every)])
    ids: dict[tuple[str, bool], int] = {}
    for index, text in enumerate(texts):
        if is_word_of_letters(text) and index not in special:
            ids.setdefault((text, bool(continues[index])), index)
    return WholeWords(texts, continues, ids)


def shown_tokens(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str], before: str = " ") -> list[str]:
    """The tokens of a text as people read them: ## before one that goes on with a word, ␣ for a space alone. `before`
    is the text before the first one."""
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
    """Whether a place of a text lies between two letters of a word. Ideographs and kana may be words by themselves."""
    return 0 < place < len(text) and all(
        unicodedata.category(sign)[0] in "LNM" and not _stands_without_spaces(sign)
        for sign in text[place - 1 : place + 1]
    )


def _stands_without_spaces(sign: str) -> bool:
    """Whether it is an ideograph, kana or a wide mark; Korean has spaces."""
    return unicodedata.east_asian_width(sign) in "WF" and not unicodedata.name(sign, "").startswith("HANGUL")


def words_of(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str]) -> list[range]:
    """The places of the tokens of each word."""
    starts = [at for at, name in enumerate(shown_tokens(tokenizer, tokens)) if at == 0 or not name.startswith("##")]
    return [range(start, stop) for start, stop in pairwise([*starts, len(tokens)])]


def join_words(tokenizer: PreTrainedTokenizerBase, words: Sequence[Sequence[str]]) -> list[str]:
    """Words, each of some tokens, as the parts of a text: each with the space that belongs before it."""
    join = tokenizer.convert_tokens_to_string
    parts: list[str] = []
    before = str(tokenizer.cls_token)
    for word in words:
        text = join([before, *word]).removeprefix(join([before]))
        around = before[-1] + text.strip()[:1]
        closed = (sign in "'\u2019" or _stands_without_spaces(sign) for sign in around)
        # WordPiece does not say where a text has spaces: none beside an apostrophe or a Chinese character.
        if not parts or (continuing_prefix(tokenizer) and any(closed)):
            text = text.strip()
        parts.append(text)
        before = word[-1]
    return parts


def example_sentence(tokenizer: PreTrainedTokenizerBase, sequences: Iterable[Sequence[int]]) -> dict[str, str]:
    """A whole sentence of some sequences of ids: as the `original`; `replaced`, with a word of the sentence before it
    in the middle; and with a `gap`, {}, in that place. Empty where there is none of a length that is good to read."""
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
            # It stands in double quotes in the code of a card.
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
    """The place of the middle one of the words that have a letter."""
    places = [place for place, text in enumerate(join_words(tokenizer, words)) if any(map(str.isalpha, text))]
    return places[len(places) // 2] if places else None


class LineEncoder:
    """Tokenizes lines, and finds where words begin: with a segmenter, at tokens where its words begin; without one,
    where WordPiece has no ##, and for other tokenizers at a word of their pre-tokenizer, a token with a mark, or one
    of a script without spaces."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, segmenter: Segmenter | None) -> None:
        self.segmenter = segmenter
        self._backend = get_backend(tokenizer)
        self._continues = tokens_that_continue(tokenizer)
        marked = [_tokens_with(tokenizer, mark) for mark in _MARKS]
        self._marked = marked[0] if marked[0].any() else marked[1]  # beside the first, Ġ is a letter of Maltese
        if self._continues is None:  # a vowel sign alone goes on with a word
            firsts = [text.lstrip()[:1] for text in token_texts(tokenizer, range(len(tokenizer)))]
            self._marked |= np.array([first.isalnum() and _UNSPACED.match(first) is not None for first in firsts])

    def __call__(self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of some lines, int64 (N,): ids, with `WORD_START` where a word begins; and how many each line
        has, int64. Raises ValueError for words that are not those of a line."""
        is_seen = self.segmenter is None and self._continues is not None
        encode = self._backend.encode_batch_fast if is_seen else self._backend.encode_batch
        encoded = encode(lines, add_special_tokens=False)
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))

        def join(values: Iterable[Sequence[int]]) -> np.ndarray:  # which are Python's numbers: one line's at a time
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
        """Of each token, whether a word begins at its place."""
        starts = bytearray(len(line) + 1)
        end = 0
        for word in self.segmenter(line):  # type: ignore[misc]
            if (place := line.find(word, end)) < 0:
                raise ValueError(f"The word segmenter made {word!r} of {line[end : end + 40]!r}: not the same text.")
            starts[end] = starts[place] = 1  # what lies between words, as spaces may, stands apart
            end = place + len(word)
        starts[end] = 1
        places = [first for first, _ in encoded.offsets]
        # Several tokens can lie at one place: the bytes of a character, and what a ligature became.
        return [starts[place] * (place != before) for place, before in zip(places, [-1, *places], strict=False)]
