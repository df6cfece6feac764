"""Finds the words of a text among its characters and its tokens, and the places where a long text may be cut."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase


SENTENCE_ENDS = tuple(".!?…。！？．।॥؟۔።፧။។։")  # noqa: RUF001
# The characters that a piece of a long text may end with: ends of sentences first, then ends of clauses.
_PIECE_ENDS = (*SENTENCE_ENDS, *";；؛\n")  # noqa: RUF001
_CLAUSE_ENDS = "，,、：:،፣፤፥"  # noqa: RUF001
_HAN = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # blocks of Unicode
_ANY_HAN = re.compile(f"[{_HAN}]")
# Vowel signs, accents and joiners: they are letters to readers of Hindi and Persian, but not to `re`.
MARKS = "\u200c\u200d" + "".join(
    sign for sign in map(chr, range(0x300, 0x1E95B)) if unicodedata.category(sign)[0] == "M"
)
# A word of letters, or one Chinese character.
WORD = re.compile(rf"[{_HAN}]|[^\W\d_{_HAN}](?:[^\W\d_{_HAN}]|[{re.escape(MARKS)}])*")


class Unit(NamedTuple):
    """A word or a single Chinese character: the characters `start` to `stop` of a text, and the tokens `first` to
    `last` of its encoding. `stop` and `last` are exclusive."""

    start: int
    stop: int
    first: int
    last: int


def is_han(text: str) -> bool:
    """Returns whether a text contains a Chinese character (hanzi, kanji, hanja)."""
    return _ANY_HAN.search(text) is not None


def is_word(text: str) -> bool:
    """Returns whether a text consists of letters alone, with the marks on them."""
    return text[:1].isalpha() and all(sign.isalpha() or sign in MARKS for sign in text)


def may_change(text: str, word: str) -> bool:
    """Returns whether a word of a text can be corrected. It must be a word of letters. In a text with Chinese
    characters, only these can be corrected, so that the corrected text has as many characters."""
    return is_word(word) and is_han(word) == is_han(text)


def in_case_of(word: str, other: str) -> str:
    """Returns the word `other`, capitalized or in upper case where `word` is."""
    if other.islower() and word[:1].isupper():
        return other.upper() if len(word) > 1 and word.isupper() else other.capitalize()
    return other


def replacement(text: str, word: str, tokenizer: PreTrainedTokenizerBase, token: int) -> str | None:
    """Returns the text of `token`, in the case of the word, if it may replace this word of the text; None if the word
    must stay. Words of letters become words of letters only, and Chinese characters as many Chinese characters."""
    right = str(tokenizer.decode([token])).strip()
    is_alike = is_word(right) and is_han(right) == is_han(word) and (len(right) == len(word) or not is_han(word))
    right = in_case_of(word, right)
    return right if is_alike and may_change(text, word) and right != word else None


def replace_parts(text: str, changes: Iterable[tuple[int, int, str]]) -> str:
    """Returns the text with changes (start, stop, word) applied: `word` replaces the characters `start` to `stop`,
    `stop` excluded."""
    for start, stop, word in sorted(changes, reverse=True):
        text = text[:start] + word + text[stop:]
    return text


def align(source: str, other: str) -> list[tuple[str, str]]:
    """Pairs the parts of two texts by position. Parts are characters if the source contains Chinese characters, else
    words. Raises ValueError if the texts have different numbers of parts."""
    split: Any = list if is_han(source) else str.split
    given = split(source)
    found = split(other)
    if len(given) != len(found):
        raise ValueError(
            f"{other[:40]!r} has {len(found)} characters or words, not the {len(given)} of {source[:40]!r}."
        )
    return list(zip(given, found, strict=True))


def find_units(text: str, encoding: Any) -> list[Unit]:
    """Returns the words of a text in order, as a tokenizer's `encoding` (a `tokenizers.Encoding`) delimits them. In
    Chinese, every token is a unit, except that the byte tokens of one character are one unit. Character positions
    refer to the text itself, not to the normalized tokens; spaces around a word are excluded."""
    units: list[Unit] = []
    before = None
    for place, (word, (start, stop)) in enumerate(zip(encoding.word_ids, encoding.offsets, strict=True)):
        found = text[start:stop]
        stop = start + len(found.rstrip())
        start += len(found) - len(found.lstrip())
        if word is None or start >= stop:
            continue
        while stop < len(text) and unicodedata.category(text[stop])[0] == "M":  # the tokenizer drops these marks
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
    """Cuts a text into pieces of at most `max_length` tokens, [CLS] and [SEP] included, and returns the character span
    (start, stop) of each. A single word that has more, with the spaces before it, is a longer piece.

    A piece ends after a sentence if possible, else after a clause, else after a word. Together the pieces are the
    whole text, except for spaces at its end that would be a piece of their own. Raises ValueError if `max_length`
    leaves no room for text."""
    encoding = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False).encodings[0]
    # SentencePiece puts a mark before each piece of text; before Chinese, it is a token of its own.
    mark = tokenizer.convert_tokens_to_ids("▁") not in (None, tokenizer.unk_token_id)
    room = max_length - tokenizer.num_special_tokens_to_add() - mark
    units = find_units(text, encoding)
    if room < 1:
        raise ValueError(f"max_length={max_length} leaves no room for text. Raise it.")
    pieces = []
    first = 0
    begin = 0
    origin = 0  # the first token of the piece, which may be a space
    while first < len(units) and len(encoding) - origin > room:
        stop = first + 1
        while stop < len(units) and units[stop].last - origin <= room:
            stop += 1
        window = range(stop - 1, first, -1)  # candidates for the last unit; without the first: pieces would be words
        ends = (next((at for at in window if text[units[at].stop - 1] in marks), None)
                for marks in (_PIECE_ENDS, _CLAUSE_ENDS))  # fmt: skip
        last = next((end for end in ends if end is not None), stop - 1)
        pieces.append((begin, units[last].stop))
        first = last + 1
        begin = units[last].stop
        origin = units[last].last
    return [*pieces, (begin, len(text))] if text[begin:].strip() or not pieces else pieces
