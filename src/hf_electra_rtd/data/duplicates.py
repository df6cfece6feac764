"""Lines that occur more than once in a corpus, found with little memory: the first occurrence stays.

A hash of every line goes to one of 256 files on the disk, by its value; then each file is resolved alone. In memory
are two bits a line, and one of the 256 parts of the lines' hashes at a time.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from hf_electra_rtd.data.writing import explaining_failures


DUPLICATES = ("no", "exact", "near")
_BITS = 8  # 2**_BITS files
_BUFFERED = 1 << 18  # lines hashed before they are dealt to the files
_RECORD = np.dtype([("normal", "<u8"), ("exact", "<u8"), ("line", "<u8")])


def check_duplicates(kind: str) -> None:
    """Raises ValueError if there is no such way to drop duplicates."""
    if kind not in DUPLICATES:
        raise ValueError(f"There is no drop_duplicates={kind!r}. Known are: {', '.join(DUPLICATES)}.")


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
    """Which lines, by their place among all that are read, are copies of earlier ones.

    Args:
        lines: those that are read, in the order of the corpus.
        num_lines: how many there are at most.
        kind: `"exact"`, or `"near"` (which includes exact ones).
        directory: for temporary files, 24 bytes a line.

    Raises:
        ValueError: if the temporary files cannot be written.
    """

    def __init__(self, lines: Iterable[str], num_lines: int, kind: str, directory: Path) -> None:
        self._exact = np.zeros(-(-num_lines // 8), dtype=np.uint8)
        self._near = np.zeros_like(self._exact)
        files = [directory / f"lines-{number:03d}" for number in range(2**_BITS)]
        _deal(lines, kind == "near", files)
        for file in files:
            self._resolve(np.fromfile(file, dtype=_RECORD))
            file.unlink()

    def _resolve(self, records: np.ndarray) -> None:
        order = np.lexsort((records["line"], records["exact"], records["normal"]))
        ordered = records[order]
        same_normal = np.zeros(len(ordered), dtype=bool)
        same_normal[1:] = ordered["normal"][1:] == ordered["normal"][:-1]
        exact = same_normal.copy()
        exact[1:] &= ordered["exact"][1:] == ordered["exact"][:-1]
        # The first line of each normal form stays; of the others, those that no earlier line equals are near.
        groups = np.cumsum(~same_normal) - 1
        first = np.full(groups[-1] + 1 if len(groups) else 0, np.iinfo(np.uint64).max, dtype=np.uint64)
        np.minimum.at(first, groups, ordered["line"])
        near = ~exact & (ordered["line"] != first[groups])
        for bits, found in ((self._exact, exact), (self._near, near)):
            places = ordered["line"][found].astype(np.int64)
            np.bitwise_or.at(bits, places >> 3, (1 << (places & 7)).astype(np.uint8))

    def kind(self, line: int) -> int:
        """0 for a line that stays, 1 for an exact copy of an earlier one, 2 for a near one."""
        byte, bit = line >> 3, line & 7
        if self._exact[byte] >> bit & 1:
            return 1
        return 2 * int(self._near[byte] >> bit & 1)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _deal(lines: Iterable[str], near: bool, files: list[Path]) -> None:
    records = np.empty(_BUFFERED, dtype=_RECORD)
    count = 0
    with explaining_failures(files[0].parent), ExitStack() as stack:  # closing writes, too
        opened = [stack.enter_context(open(file, "wb")) for file in files]

        def write() -> None:
            filled = records[:count]
            buckets = (filled["normal"] >> np.uint64(64 - _BITS)).astype(np.int64)
            order = np.argsort(buckets, kind="stable")
            bounds = np.searchsorted(buckets[order], np.arange(2**_BITS + 1))
            for number, file in enumerate(opened):
                file.write(filled[order[bounds[number] : bounds[number + 1]]].tobytes())

        for number, line in enumerate(lines):
            exact = _hash(line)
            normal = normalize_line(line) if near else ""
            records[count] = (_hash("\n" + normal) if normal else exact, exact, number)
            count += 1
            if count == _BUFFERED:
                write()
                count = 0
        write()
