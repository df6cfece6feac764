"""Lines that occur more than once in a corpus, found with little memory: the first one stays.

A hash of every line goes to a file on disk, which is then sorted part by part. Memory holds one bit a line, and one of
the parts at a time.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np


DUPLICATES = ("no", "exact", "near")
_SORTED = 1 << 23  # hashes that are sorted at once
_RECORD = np.dtype([("hash", "<u8"), ("line", "<u8")])


class _Kept(dict[int, "int | None"]):
    """A table for `str.translate`: leaves out punctuation, symbols and control characters, makes digits 0."""

    def __missing__(self, code: int) -> int | None:
        character = chr(code)
        if character.isdecimal():
            self[code] = ord("0")
        else:
            dropped = unicodedata.category(character)[0] in "PSC" and not character.isspace()
            self[code] = None if dropped else code
        return self[code]


_KEPT = _Kept()


def normalize_line(line: str) -> str:
    """What near duplicates have in common, as in CCNet (https://arxiv.org/abs/1911.00359): case and accents removed,
    digits made 0, punctuation and repeated white space removed."""
    if not line.isascii():
        line = "".join(char for char in unicodedata.normalize("NFD", line) if not unicodedata.combining(char))
    return " ".join(line.casefold().translate(_KEPT).split())


class Duplicates:
    """Which lines, by their number, are copies of earlier ones: `duplicates[number]`.

    `lines` are (number, line), in order; `num_lines` is above all numbers. `near` compares normal forms (see
    `normalize_line`) instead of the lines. `directory` holds 16 bytes a line meanwhile.
    """

    def __init__(self, lines: Iterable[tuple[int, str]], num_lines: int, near: bool, directory: Path) -> None:
        self._copies = np.zeros(-(-num_lines // 8), dtype=np.uint8)
        path = directory / "lines"
        with open(path, "wb") as file:
            file.writelines(_hash(line, near) + number.to_bytes(8, "little") for number, line in lines)
        num_parts = 1 + path.stat().st_size // (_SORTED * _RECORD.itemsize)
        for part in range(num_parts):
            records = np.concatenate([found[found["hash"] % num_parts == part] for found in _blocks(path)])
            records = records[np.argsort(records["hash"], kind="stable")]
            places = records["line"][1:][records["hash"][1:] == records["hash"][:-1]].astype(np.int64)
            np.bitwise_or.at(self._copies, places >> 3, (1 << (places & 7)).astype(np.uint8))
        path.unlink()

    def __getitem__(self, line: int) -> bool:
        return bool(self._copies[line >> 3] >> (line & 7) & 1)


def _hash(line: str, near: bool) -> bytes:
    normal = normalize_line(line) if near else ""
    text = f"\n{normal}" if normal else line  # a line of marks alone is compared as it is
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _blocks(path: Path) -> Iterator[np.ndarray]:
    yield np.empty(0, dtype=_RECORD)  # there may be no line
    with open(path, "rb") as file:
        while content := file.read(_RECORD.itemsize * (_SORTED >> 2)):
            yield np.frombuffer(content, dtype=_RECORD)
