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
import weakref
from collections import OrderedDict
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
    block_writer,
    write_header,
)
from hf_electra_rtd.data.cache import CACHE_DIRECTORY, CACHE_SIZE, PAUSE, Cache, holding
from hf_electra_rtd.data.packing import PackedSequence
from hf_electra_rtd.files import reading, write_text, writing
from hf_electra_rtd.records import count_cores


logger = logging.getLogger(__name__)

INDEX_FILE = "index.json"
SHARD_SIZE = 512 * 10**6
_MOST_OPEN = 300  # shards, of two file descriptors each; a process has often 1,024
_IDLE = 60.0  # seconds after which what nobody reads makes room for what is read later
_REMEDY = "Copy the whole directory again, or prepare the text again."
_FITTING = ("max_seq_length", "vocab_size", "tokenizer_hash", "packing", "recipe", "word_segmenter")
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
    The files are the same however the sequences are divided into calls of `write`."""

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
                self._writers.append(self._open.enter_context(block_writer(self._partial[-1], *self._shape)))
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
def writing_shards(
    directory: str | os.PathLike[str], name: str, max_seq_length: int, vocab_size: int, shard_size: int = SHARD_SIZE
) -> Iterator[ShardWriter]:
    """Yields a [`ShardWriter`]. Files of at most `shard_size` bytes, headers not counted, get their names when the
    block ends without an error, the first file last; then `write_index` makes them one logical file. Raises ValueError
    for a size that does not hold two sequences."""
    with ExitStack() as stack:
        yield ShardWriter(stack, Path(directory), name, max_seq_length, vocab_size, shard_size)


@contextmanager
def writing_directory(path: Path, max_seq_length: int, vocab_size: int, shard_size: int) -> Iterator[ShardWriter]:
    """`writing_shards` into a directory of their own, with the index, whole or not at all."""
    with writing(path, INDEX_FILE) as partial:
        with writing_shards(partial, path.name, max_seq_length, vocab_size, shard_size) as writer:
            yield writer
        write_index(partial, writer.files)


def write_index(
    directory: str | os.PathLike[str],
    files: Sequence[str | os.PathLike[str]],
    may_be_equal: bool = False,
    **described: Any,
) -> BlockHeader:
    """Writes the index of some block files in a directory, in this order, and returns the header of all together.

    `described` are fields of [`BlockHeader`] that the shards do not have as it is wanted: by default, `statistics` are
    their sums and `sources` all of theirs. Raises ValueError for a shard that cannot be read, holds the same as
    another (unless shards `may_be_equal`, as equal texts are), or does not fit the first one.
    """
    shards, headers = [], [BlockFile(file).header for file in files]
    seen = dict[str, str]()
    for file, header in zip(files, headers, strict=True):
        wrong = [name for name in _FITTING if getattr(header, name) != getattr(headers[0], name)]
        if wrong:
            what = f"{os.fspath(file)} does not fit {os.fspath(files[0])}: they differ in {', '.join(wrong)}"
            raise ValueError(f"{what}. Prepare both with the same tokenizer and settings.")
        if header.sha256 in seen and not may_be_equal:
            raise ValueError(f"{os.fspath(file)} holds the same sequences as {seen[header.sha256]}. Leave one out.")
        seen[header.sha256] = os.fspath(file)
        name = Path(os.path.relpath(file, directory)).as_posix()
        shards.append(Shard(name, os.path.getsize(file), header.sha256, header.num_sequences, header.num_tokens))
    if not shards:
        raise ValueError(f"{os.fspath(directory)} holds no shard. Give more text, or shorter sequences.")
    statistics: dict[str, int] = {}
    for header in headers:
        for name, count in header.statistics.items():
            statistics[name] = statistics.get(name, 0) + count
    sources = {json.dumps(source, sort_keys=True): source for header in headers for source in header.sources}
    known = {name: getattr(headers[0], name) for name in _FITTING} | _sums(shards)
    whole = BlockHeader(**{**known, "statistics": statistics, "sources": [*sources.values()], **described})
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
    verified when it is copied. Such shards are copied to `cache_dir`, by default in the cache of the Hub, which holds
    at most `cache_size` bytes of them; any number of processes and runs share it. Raises ValueError for what is
    missing, cut off, altered or cannot be reached, or does not have the hash `sha256`.
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
            shards = [Shard(**shard) for shard in content["shards"]]
            if not shards or any(getattr(self.header, name) != value for name, value in _sums(shards).items()):
                raise ValueError("its shards do not add up to what it says of all")
            if not all(re.fullmatch("[0-9a-f]{64}", shard.sha256) for shard in shards):  # a name in the cache
                raise ValueError("a hash in it is not 64 hexadecimal digits")
        if self.header.sha256 != (sha256 or self.header.sha256):
            raise ValueError(f"{path} was altered after it was written. {_REMEDY}")
        if self._cache is None or verify:
            self._check(shards, verify)
        self._take(shards)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict(), "_loading": None}  # a copy opens its own shards

    def _take(self, shards: list[Shard]) -> None:
        self._shards = shards
        self._rows = np.array([shard.num_sequences for shard in shards])
        self._ends = self._rows.cumsum()
        self._forget()

    def _forget(self) -> None:
        """Opened shards belong to one process: a fork opens its own."""
        self._process = os.getpid()
        self._open: OrderedDict[int, tuple[BlockFile, int | None]] = OrderedDict()
        self._now: list[int] = []
        self._then: list[int] = []
        self._loading: threading.Thread | None = None
        self._next_look = 0.0

    def _check(self, shards: list[Shard], verify: bool) -> None:
        if self._cache is None:
            names = [self._name(shard) for shard in shards]
            sizes = [os.path.getsize(name) if os.path.isfile(name) else None for name in names]
        else:
            listing = self._cache.sizes()
            if INDEX_FILE not in listing:
                raise ValueError(f"{self.path} has no listing of its files. Copy it here, or choose another protocol.")
            sizes = [listing.get(shard.name) for shard in shards]
        for shard, found in zip(shards, sizes, strict=True):
            if found != shard.size:
                what = "is missing" if found is None else f"has {found:,} bytes, not the {shard.size:,} of its index"
                raise ValueError(f"{self._name(shard)} {what}. {_REMEDY}")
        if verify and self._cache is None:
            with ThreadPoolExecutor(count_cores()) as threads:  # hashing holds no lock of Python
                list(threads.map(lambda shard: self._read_file(shard, self._name(shard), verify=True), shards))

    def _name(self, shard: Shard) -> str:
        return f"{self.path.rstrip('/')}/{shard.name}"

    def _read_file(self, shard: Shard, path: str, verify: bool = False) -> BlockFile:
        """Opens a file. Raises ValueError if it is not the shard of the index."""
        try:
            file = BlockFile(path, verify)
        except ValueError as error:  # which names the path, and ends with another remedy
            what = str(error).removeprefix(path).rpartition(". ")[0]
            raise ValueError(f"{self._name(shard)}{what}. {_REMEDY}") from error
        known = {name: getattr(self.header, name) for name in _FITTING}
        known |= {name: getattr(shard, name) for name in ("sha256", "num_sequences", "num_tokens")}
        wrong = [name for name, value in known.items() if getattr(file.header, name) != value]
        if wrong:
            what = f"{self._name(shard)} does not fit {INDEX_FILE}: they differ in {', '.join(wrong)}"
            raise ValueError(f"{what}. {_REMEDY}")
        return file

    @contextmanager
    def _using(self, shard: int) -> Iterator[BlockFile]:
        """An open shard, which stays in the cache meanwhile."""
        while True:
            if shard not in self._open:
                self._open[shard] = self._open_shard(self._shards[shard])
                if len(self._open) > _MOST_OPEN:
                    self._open.popitem(last=False)
            self._open.move_to_end(shard)
            file, held = self._open[shard]
            if held is None:
                yield file
                return
            with holding(held) as is_there:
                if is_there:
                    os.utime(file.path)
                    yield file
                    return
            del self._open[shard], file

    def _open_shard(self, shard: Shard) -> tuple[BlockFile, int | None]:
        if self._cache is None:
            return self._read_file(shard, self._name(shard)), None
        while True:
            path = self._fetch(shard)
            removed = [other for other, (_, held) in self._open.items() if held and os.fstat(held).st_nlink == 0]
            for other in removed:  # which leave the disk when they are closed
                del self._open[other]
            with suppress(FileNotFoundError):  # another process needed its room
                held = os.open(path, os.O_RDONLY)
                with holding(held) as is_there:
                    if is_there:
                        file = self._read_file(shard, str(path))
                        weakref.finalize(file, os.close, held)
                        return file, held
                os.close(held)

    def _fetch(self, shard: Shard, **how: Any) -> Path:
        assert self._cache is not None
        known = (shard.name, shard.size, shard.sha256)
        return self._cache.fetch(*known, lambda path: self._read_file(shard, path, verify=True), **how)

    # ---- As one file ----

    @property
    def shard_rows(self) -> np.ndarray:
        return self._rows

    @property
    def shard_tokens(self) -> np.ndarray:
        return np.array([shard.num_tokens for shard in self._shards])

    def part(self, shards: Sequence[int]) -> ShardedBlocks:
        part, some = object.__new__(ShardedBlocks), [self._shards[shard] for shard in shards]
        part.__dict__ |= {**self.__dict__, "header": dataclasses.replace(self.header, **_sums(some))}
        part._take(some)
        return part

    def _by_shard(self, indices: np.ndarray) -> Iterator[tuple[BlockFile, np.ndarray, np.ndarray]]:
        """Of each shard, in the order in which they occur: the file, the places in `indices`, and the rows there."""
        if self._process != os.getpid():
            self._forget()
        shards = np.searchsorted(self._ends, indices, side="right")
        found, firsts = np.unique(shards, return_index=True)
        for shard in found[np.argsort(firsts)].tolist():
            self._look_ahead()
            places = np.flatnonzero(shards == shard)
            rows = indices[places] - (self._ends[shard] - self._rows[shard])
            with self._using(shard) as file:
                yield file, places, rows

    def read(self, indices: np.ndarray) -> SequenceBatch:
        parts, places = [], []
        for file, here, rows in self._by_shard(indices):
            parts.append(file.read(rows))
            places.append(here)
        back = np.argsort(np.concatenate(places))
        columns = {}
        for field in dataclasses.fields(SequenceBatch):
            values = [getattr(part, field.name) for part in parts]
            columns[field.name] = None if values[0] is None else np.concatenate(values)[back]
        return SequenceBatch(**columns)  # type: ignore[arg-type]

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        if self.is_full:
            return np.full(len(indices), self.header.max_seq_length)
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
        if self._process != os.getpid():
            self._forget()
        if (now, then) != (self._now, self._then):
            self._now, self._then, self._next_look = [*now], [*then], 0.0
            for shard in self._open.keys() - set(now):  # so that it leaves the disk when it makes room
                del self._open[shard]

    def _look_ahead(self) -> None:
        """Has a thread copy what is expected and missing."""
        is_loading = self._loading is not None and self._loading.is_alive()
        if self._cache is None or is_loading or time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + PAUSE
        missing = [
            shard for shard in (*self._now, *self._then) if not self._cache.path(self._shards[shard].sha256).exists()
        ]
        if missing:
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
