"""Where the words of a text are, among its characters and among its tokens, and where a long text may be cut."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase


SENTENCE_ENDS = tuple(".!?…。！？．।؟")  # noqa: RUF001
# What a piece of a long text may end with: sentences first, then clauses.
_PIECE_ENDS = (*SENTENCE_ENDS, *";；؛۔\n")  # noqa: RUF001
_CLAUSE_ENDS = "，,、：:،"  # noqa: RUF001
_HAN = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # blocks of Unicode
_ANY_HAN = re.compile(f"[{_HAN}]")
# Vowel signs, accents and joiners, which are letters to readers of Hindi and Persian, and not to `re`.
MARKS = "\u200c\u200d" + "".join(
    sign for sign in map(chr, range(0x300, 0x1E95B)) if unicodedata.category(sign)[0] == "M"
)
# A word of letters, or one Chinese character.
WORD = re.compile(rf"[{_HAN}]|[^\W\d_{_HAN}](?:[^\W\d_{_HAN}]|[{re.escape(MARKS)}])*")


class Unit(NamedTuple):
    """A word, or a single Chinese character: the characters `start` to `stop` of a text, and the tokens `first` to
    `last` of its encoding; the last ones are not included."""

    start: int
    stop: int
    first: int
    last: int


def is_han(text: str) -> bool:
    """Whether a text has a Chinese character (hanzi, kanji, hanja)."""
    return _ANY_HAN.search(text) is not None


def is_word(text: str) -> bool:
    """Whether a text is letters alone, with the marks on them."""
    return text[:1].isalpha() and all(sign.isalpha() or sign in MARKS for sign in text)


def may_change(text: str, word: str) -> bool:
    """Whether a word of a text can be corrected: a word of letters; in a text with Chinese, Chinese characters alone,
    so that the corrected text has as many characters."""
    return is_word(word) and is_han(word) == is_han(text)


def in_case_of(word: str, other: str) -> str:
    """Another word, in upper case where the word is."""
    if other.islower() and word[:1].isupper():
        return other.upper() if len(word) > 1 and word.isupper() else other.capitalize()
    return other


def replacement(text: str, word: str, tokenizer: PreTrainedTokenizerBase, token: int) -> str | None:
    """What takes the place of a word of a text where another token is likelier, in the word's case. None where the
    word stays: words of letters become words of letters, and in a text with Chinese, characters as many characters."""
    right = str(tokenizer.decode([token])).strip()
    is_alike = is_word(right) and is_han(right) == is_han(word) and (len(right) == len(word) or not is_han(word))
    right = in_case_of(word, right)
    return right if is_alike and may_change(text, word) and right != word else None


def replace_parts(text: str, changes: Iterable[tuple[int, int, str]]) -> str:
    """A text with other words in place of the characters from the first number to before the second."""
    for start, stop, word in sorted(changes, reverse=True):
        text = text[:start] + word + text[stop:]
    return text


def align(source: str, other: str) -> list[tuple[str, str]]:
    """The parts of a text with those of another one at the same places: characters if the source has Chinese
    ones, else words. ValueError if there are more or fewer."""
    split: Any = list if is_han(source) else str.split
    given = split(source)
    found = split(other)
    if len(given) != len(found):
        raise ValueError(
            f"{other[:40]!r} has {len(found)} characters or words, not the {len(given)} of {source[:40]!r}."
        )
    return list(zip(given, found, strict=True))


def find_units(text: str, encoding: Any) -> list[Unit]:
    """The words of a text in order, as a tokenizer's `encoding` (of `tokenizers`) finds them; of Chinese, every token
    that is no part of a character. Places are those of the text itself, whatever tokens look like; spaces are left
    out."""
    units: list[Unit] = []
    before = None
    for place, (word, (start, stop)) in enumerate(zip(encoding.word_ids, encoding.offsets, strict=True)):
        found = text[start:stop]
        stop = start + len(found.rstrip())
        start += len(found) - len(found.lstrip())
        if word is None or start >= stop:
            continue
        while stop < len(text) and unicodedata.category(text[stop])[0] == "M":  # which the tokenizer drops
            stop += 1
        last = units[-1] if units else None
        in_one = word == before and last is not None and not is_han(text[last.start : last.stop] + found)
        if last is not None and (in_one or start < last.stop):  # bytes of one character share its place
            units[-1] = Unit(last.start, max(stop, last.stop), last.first, place + 1)
        else:
            units.append(Unit(start, stop, place, place + 1))
        before = word
    return units


def cut_text(text: str, tokenizer: PreTrainedTokenizerBase, max_length: int) -> list[tuple[int, int]]:
    """The characters, first and after the last, of pieces of a text that have at most `max_length` tokens each, [CLS]
    and [SEP] counted, if no word with the spaces before it has more. Pieces end after a sentence, else after a clause,
    else after a word; together they are the text, without spaces that would be a piece of their own at its end."""
    encoding = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False).encodings[0]
    # SentencePiece puts a mark before each piece, which is a token of its own before Chinese.
    mark = tokenizer.convert_tokens_to_ids("▁") not in (None, tokenizer.unk_token_id)
    room = max_length - tokenizer.num_special_tokens_to_add() - mark
    units = find_units(text, encoding)
    if room < 1:
        raise ValueError(f"max_length={max_length} leaves no room for text. Raise it.")
    pieces = []
    first = 0
    begin = 0
    origin = 0  # the first token of a piece, which may be of a space
    while first < len(units) and len(encoding) - origin > room:
        stop = first + 1
        while stop < len(units) and units[stop].last - origin <= room:
            stop += 1
        window = range(stop - 1, first, -1)  # the last unit of the piece; not its first: pieces would be words
        ends = (next((at for at in window if text[units[at].stop - 1] in marks), None)
                for marks in (_PIECE_ENDS, _CLAUSE_ENDS))  # fmt: skip
        last = next((end for end in ends if end is not None), stop - 1)
        pieces.append((begin, units[last].stop))
        first = last + 1
        begin = units[last].stop
        origin = units[last].last
    return [*pieces, (begin, len(text))] if text[begin:].strip() or not pieces else pieces
