"""Prepared sequences in shards: a directory of block files of bounded size with an index, read as one file.

The directory may lie on this machine or anywhere that fsspec knows, from where it is read through a cache.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub.dataclasses import strict

from hf_electra_rtd.data.blocks import (
    BLOCK_SUFFIX,
    BlockFile,
    BlockHeader,
    Blocks,
    BlockWriter,
    SequenceBatch,
    write_header,
)
from hf_electra_rtd.data.cache import CACHE_DIRECTORY, CACHE_SIZE, PAUSE, Cache
from hf_electra_rtd.data.packing import PackedSequence
from hf_electra_rtd.files import reading, write_text, writing
from hf_electra_rtd.records import count_cores


logger = logging.getLogger(__name__)

INDEX_FILE = "index.json"
SHARD_SIZE = 512 * 10**6
_MOST_OPEN = 300  # shards; a process has often 1,024 file descriptors
_IDLE = 60.0  # seconds after which what nobody reads makes room for what is read later
_REMEDY = "Copy the whole directory again, or prepare the text again."
_LARGEST_TOKEN, _LARGEST_ROW = 8, 64  # bytes of a token, and of what else a sequence has, at most


@strict
@dataclass
class Shard:
    """What an index says of a shard."""

    name: str  # its path in the directory
    size: int  # in bytes
    sha256: str  # as in its header
    num_sequences: int
    num_tokens: int


class ShardWriter:
    """Like [`BlockWriter`], but begins another file of `directory` whenever one is full: `<name>-00000.blocks`, ...
    Files of at most `shard_size` bytes, headers not counted, get their names when `stack` is closed without an error,
    the first file last. They are the same however the sequences are divided into calls of `write`. Raises ValueError
    for a size that does not hold two sequences."""

    def __init__(
        self, stack: ExitStack, directory: Path, name: str, max_seq_length: int, vocab_size: int, shard_size: int
    ) -> None:
        self._row = _LARGEST_TOKEN * max_seq_length + _LARGEST_ROW
        if shard_size < 2 * self._row:
            what = f"Shards of {shard_size} bytes are too small for sequences of {max_seq_length} tokens"
            raise ValueError(f"{what}: choose at least {2 * self._row} (--shard_size).")
        self._stack, self._path, self._size = stack, directory / name, shard_size
        self._shape = (max_seq_length, vocab_size)
        self._open = stack.enter_context(ExitStack())  # what closes the last shard
        self._writers: list[BlockWriter] = []
        self._partial: list[Path] = []  # where each shard lies until it is named
        self._known: list[dict[str, Any]] = []  # of each that is full, but for its header
        self.files: list[Path] = []

    num_sequences = property(lambda self: sum(writer.num_sequences for writer in self._writers))
    num_full = property(lambda self: sum(writer.num_full for writer in self._writers))
    num_two_segments = property(lambda self: sum(writer.num_two_segments for writer in self._writers))

    def write(self, sequences: Sequence[PackedSequence]) -> None:
        while sequences:
            if len(self._known) == len(self._writers):
                self.files.append(Path(f"{self._path}-{len(self.files):05d}{BLOCK_SUFFIX}"))
                self._partial.append(self._stack.enter_context(writing(self.files[-1])))
                self._writers.append(BlockWriter(self._open, self._partial[-1], *self._shape))
            writer = self._writers[-1]
            room = (self._size - writer.size) // self._row
            writer.write(sequences[:room])
            sequences = sequences[room:]
            if writer.size + self._row > self._size:
                self._end()

    def finish(self, statistics: dict[str, int], sources: list[dict[str, Any]], **described: Any) -> None:
        """Writes the headers, as described. Counts and sources are of all shards; the first one has them."""
        self._end()
        for partial, known in zip(self._partial, self._known, strict=True):
            with open(partial, "ab") as file:
                write_header(file, BlockHeader(**known, statistics=statistics, sources=sources, **described))
            statistics, sources = {}, []

    def _end(self) -> None:
        for writer in self._writers[len(self._known) :]:
            self._known.append(writer.end())
            self._open.close()


@contextmanager
def writing_directory(path: Path, max_seq_length: int, vocab_size: int, shard_size: int) -> Iterator[ShardWriter]:
    """Yields a [`ShardWriter`] into a directory of its own, which is there with its index, whole or not at all."""
    with writing(path, INDEX_FILE, (f"*{BLOCK_SUFFIX}",)) as partial:
        with ExitStack() as stack:
            writer = ShardWriter(stack, partial, path.name, max_seq_length, vocab_size, shard_size)
            yield writer
        write_index(partial, writer.files)


def write_index(directory: str | os.PathLike[str], files: Sequence[Path], **described: Any) -> BlockHeader:
    """Writes the index of the shards of one preparation, files of `directory`, in this order. Returns the header of
    all together: that of the first one, with the sums of all, and with `described`, fields of [`BlockHeader`]."""
    shards, headers = [], [BlockFile(file).header for file in files]
    for file, header in zip(files, headers, strict=True):
        counts = (header.num_sequences, header.num_tokens)
        shards.append(Shard(file.name, os.path.getsize(file), header.sha256, *counts))
    whole = BlockHeader(**{**vars(headers[0]), **_sums(shards), **described})
    content = {"header": vars(whole), "shards": [vars(shard) for shard in shards]}
    write_text(Path(directory, INDEX_FILE), json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return whole


def _sums(shards: Sequence[Shard]) -> dict[str, Any]:
    """What the header of all says that follows from its shards."""
    return {
        "num_sequences": sum(shard.num_sequences for shard in shards),
        "num_tokens": sum(shard.num_tokens for shard in shards),
        "sha256": hashlib.sha256("".join(shard.sha256 for shard in shards).encode()).hexdigest(),
    }


# ---- Reading ----


def open_blocks(
    path: str | os.PathLike[str],
    verify: bool = False,
    sha256: str | None = None,
    cache_dir: str | None = None,
    cache_size: int = CACHE_SIZE,
) -> Blocks:
    """A block file, or the directory of an index, which may be an address: `hf://datasets/ORG/NAME/path`, `s3://...`.

    `verify` reads all of it and compares its hashes; of shards that lie elsewhere it compares the sizes, for each is
    verified when it is copied. The copies go to `cache_dir` (see [`Cache`]), of `cache_size` bytes. Raises ValueError
    for what is missing, cut off, altered or cannot be reached, or does not have the hash `sha256`.
    """
    place = os.fspath(path)
    if "://" in place or os.path.isdir(place):
        return ShardedBlocks(place, verify, sha256, cache_dir, cache_size)
    return BlockFile(place, verify, sha256)


class ShardedBlocks(Blocks):
    """A directory of shards with its index, see [`open_blocks`]. Shards are opened when they are read."""

    def __init__(
        self, path: str, verify: bool, sha256: str | None, cache_dir: str | None = None, cache_size: int = CACHE_SIZE
    ) -> None:
        self.path = path
        self._cache = Cache(path, cache_dir or CACHE_DIRECTORY, cache_size) if "://" in path else None
        index = f"{path.rstrip('/')}/{INDEX_FILE}"
        with reading(index, f"Name a directory that `prepare --shard_size` wrote, or copy its {INDEX_FILE} again."):
            content = json.loads(Path(index).read_bytes() if self._cache is None else self._cache.read(INDEX_FILE))
            self.header = BlockHeader(**content["header"])
            self._shards = [Shard(**shard) for shard in content["shards"]]
            adds_up = vars(self.header).items() >= _sums(self._shards).items()
            if not adds_up or not all(re.fullmatch("[0-9a-f]{64}", shard.sha256) for shard in self._shards):
                raise ValueError("its shards do not add up to what it says of all")
        if self.header.sha256 != (sha256 or self.header.sha256):
            raise ValueError(f"{path} was altered after it was written. {_REMEDY}")
        if self._cache is None or verify:
            self._check(verify)
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}, "_loading": None}  # a copy opens its own shards

    def _begin(self) -> None:
        self.shard_rows = np.array([shard.num_sequences for shard in self._shards])
        self.shard_tokens = np.array([shard.num_tokens for shard in self._shards])
        self._ends = self.shard_rows.cumsum()
        self._open: dict[int, BlockFile] = {}  # the last read one last
        self._now: list[int] = []
        self._then: list[int] = []
        self._loading: threading.Thread | None = None
        self._next_look = 0.0

    def _check(self, verify: bool) -> None:
        if self._cache is None:
            paths = {shard.name: self._name(shard) for shard in self._shards}
            sizes = {name: os.path.getsize(path) for name, path in paths.items() if os.path.isfile(path)}
        else:
            sizes = self._cache.sizes()
        for shard in self._shards:
            if (found := sizes.get(shard.name)) != shard.size:
                what = "is missing" if found is None else f"has {found:,} bytes, not the {shard.size:,} of its index"
                raise ValueError(f"{self._name(shard)} {what}. {_REMEDY}")
        if verify and self._cache is None:
            with ThreadPoolExecutor(count_cores()) as threads:  # hashing holds no lock of Python
                list(threads.map(lambda shard: self._read_file(shard, self._name(shard), verify=True), self._shards))

    def _name(self, shard: Shard) -> str:
        return f"{self.path.rstrip('/')}/{shard.name}"

    def _read_file(self, shard: Shard, path: str, verify: bool = False) -> BlockFile:
        """Opens a file. Raises ValueError if it is not the shard of the index."""
        try:
            return BlockFile(path, verify, shard.sha256)
        except ValueError as error:  # which names the path
            if self._cache is not None and isinstance(error.__cause__, FileNotFoundError):
                raise error.__cause__ from None
            raise ValueError(str(error).replace(path, self._name(shard), 1)) from error

    def _get(self, number: int) -> BlockFile:
        """An open shard."""
        shard, file = self._shards[number], self._open.pop(number, None)
        if self._cache is None:
            file = self._read_file(shard, self._name(shard)) if file is None else file
        elif file is None or not os.path.exists(file.path):
            file = self._open_copy(shard)
            # What made room for it leaves the disk when it is closed.
            self._open = {other: opened for other, opened in self._open.items() if os.path.exists(opened.path)}
        self._open[number] = file
        if len(self._open) > _MOST_OPEN:
            del self._open[next(iter(self._open))]
        return file

    def _open_copy(self, shard: Shard) -> BlockFile:
        while True:
            path = str(self._fetch(shard))
            with suppress(FileNotFoundError):  # another process needed its room
                return self._read_file(shard, path)

    def _fetch(self, shard: Shard, **how: Any) -> Path:
        assert self._cache is not None
        known = (shard.name, shard.size, shard.sha256)
        return self._cache.fetch(*known, lambda path: self._read_file(shard, path, verify=True), **how)

    # ---- As one file ----

    def part(self, shards: Sequence[int]) -> ShardedBlocks:
        part, some = object.__new__(ShardedBlocks), [self._shards[shard] for shard in shards]
        part.__dict__ |= {**self.__dict__, "header": dataclasses.replace(self.header, **_sums(some)), "_shards": some}
        part._begin()
        return part

    def _by_shard(self, indices: np.ndarray) -> Iterator[tuple[BlockFile, np.ndarray, np.ndarray]]:
        """Of each shard, in the order in which they occur: the file, the places in `indices`, and the rows there."""
        shards = np.searchsorted(self._ends, indices, side="right")
        found, firsts = np.unique(shards, return_index=True)
        for shard in found[np.argsort(firsts)].tolist():
            self._look_ahead()
            places = np.flatnonzero(shards == shard)
            rows = indices[places] - (self._ends[shard] - self.shard_rows[shard])
            file = self._get(shard)
            if self._cache is not None:
                with suppress(OSError):  # the least recently read one makes room first
                    os.utime(file.path)
            yield file, places, rows

    def read(self, indices: np.ndarray) -> SequenceBatch:
        parts, places = [], []
        for file, here, rows in self._by_shard(indices):
            parts.append(vars(file.read(rows)))
            places.append(here)
        back = np.argsort(np.concatenate(places))
        known = [name for name, values in parts[0].items() if values is not None]
        return SequenceBatch(**{name: np.concatenate([part[name] for part in parts])[back] for name in known})

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        lengths = np.empty(len(indices), dtype=np.int64)
        for file, places, rows in self._by_shard(indices):
            lengths[places] = file.lengths(rows)
        return lengths

    # ---- From elsewhere ----

    def check_room(self, num_shards: int) -> None:
        if self._cache is not None:
            sizes = sorted((shard.size for shard in self._shards), reverse=True)
            self._cache.check_room(sum(sizes[:num_shards]), num_shards)

    def expect(self, now: Sequence[int], then: Sequence[int]) -> None:
        if (now, then) != (self._now, self._then):
            self._now, self._then, self._next_look = [*now], [*then], 0.0
            self._open = {shard: file for shard, file in self._open.items() if shard in now}

    def _look_ahead(self) -> None:
        """Has a thread copy what is expected and missing."""
        is_loading = self._loading is not None and self._loading.is_alive()
        if self._cache is None or is_loading or time.monotonic() < self._next_look:
            return
        self._next_look, both = time.monotonic() + PAUSE, (*self._now, *self._then)
        if missing := [shard for shard in both if not self._cache.path(self._shards[shard].sha256).exists()]:
            self._loading = threading.Thread(target=self._load, args=(missing, self._now, self._then), daemon=True)
            self._loading.start()

    def _load(self, missing: Sequence[int], now: Sequence[int], then: Sequence[int]) -> None:
        keep = {self._shards[shard].sha256 for shard in (*now, *then)}
        try:
            for shard in missing:
                idle = 0.0 if shard in now else _IDLE
                self._fetch(self._shards[shard], keep=keep, idle=idle, waits=False)
        except Exception as error:
            logger.warning(f"{error} It is tried again when the shard is read.")
