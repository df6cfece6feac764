"""Prepared sequences in shards: a directory of block files of bounded size with an index, read as one file.

The directory may lie on this machine or anywhere that fsspec knows. From elsewhere, shards are copied to this machine
when they are read (fsspec's `filecache`).
"""

import dataclasses
import hashlib
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
from filelock import FileLock
from huggingface_hub.constants import HF_HOME
from huggingface_hub.dataclasses import strict
from rich.filesize import decimal as format_bytes

from hf_electra_rtd.base.files import naming, reading, write_text, writing
from hf_electra_rtd.base.records import count_cores
from hf_electra_rtd.data.blocks import (
    BLOCK_SUFFIX,
    BlockFile,
    BlockHeader,
    Blocks,
    BlockWriter,
    SequenceBatch,
    write_header,
)
from hf_electra_rtd.data.packing import PackedSequence


logger = logging.getLogger(__name__)

INDEX_FILE = "index.json"
SHARD_SIZE = 512 * 10**6
CACHE_DIRECTORY = os.path.join(HF_HOME, "rtd-shards")
_MOST_OPEN = 300  # shards; a process has often 1,024 file descriptors
_REMEDY = "Copy the whole directory again, or prepare the text again."
_NETWORK = "Check the address, the network, your rights there, and the room in cache_dir."
_LARGEST_TOKEN = 8  # bytes, at most
_LARGEST_ROW = 64  # bytes of what else a sequence has, at most


@strict  # needs real types: with `from __future__ import annotations` they would be strings
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
            raise ValueError(f"shard_size={shard_size} is too small: choose at least {2 * self._row} bytes.")
        self._stack = stack
        self._path = directory / name
        self._size = shard_size
        self._shape = (max_seq_length, vocab_size)
        self._open = stack.enter_context(ExitStack())  # what closes the last shard
        self._writers: list[BlockWriter] = []
        self._partial: list[Path] = []  # where each shard lies until it is named
        self._known: list[dict[str, Any]] = []  # of each that is full, but for its header
        self.files: list[Path] = []

    num_sequences = property(lambda self: sum(writer.num_sequences for writer in self._writers))

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
            statistics = {}
            sources = []

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
    headers = [BlockFile(file).header for file in files]
    shards = [
        Shard(file.name, os.path.getsize(file), header.sha256, header.num_sequences, header.num_tokens)
        for file, header in zip(files, headers, strict=True)
    ]
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
    path: str | os.PathLike[str], verify: bool = False, sha256: str | None = None, cache_dir: str | None = None
) -> Blocks:
    """A block file, or the directory of an index, which may be an address: `hf://datasets/ORG/NAME/path`, `s3://...`.

    `verify` reads all of it and compares its hashes; of shards that lie elsewhere it compares the sizes, and each is
    verified when a process first opens its copy. Copies go to `cache_dir`, by default beside the cache of the Hub, and
    stay there. Raises ValueError for what is missing, cut off, altered or cannot be reached, or does not have the hash
    `sha256`.
    """
    place = os.fspath(path)
    if "://" in place or os.path.isdir(place):
        return ShardedBlocks(place, verify, sha256, cache_dir)
    return BlockFile(place, verify, sha256)


class ShardedBlocks(Blocks):
    """A directory of shards with its index, see [`open_blocks`]. Shards are opened when they are read."""

    def __init__(self, path: str, verify: bool, sha256: str | None, cache_dir: str | None = None) -> None:
        self.path = path
        self._cache = Path(cache_dir or CACHE_DIRECTORY) if "://" in path else None  # None: it lies on this machine
        self._verified: set[str] = set()  # hashes of copies
        index = f"{path.rstrip('/')}/{INDEX_FILE}"
        with reading(index, f"Name a directory of prepared shards, or copy its {INDEX_FILE} again."):
            with fsspec.open(index) as file:
                content = json.load(file)
            self.header = BlockHeader(**content["header"])
            self._shards = [Shard(**shard) for shard in content["shards"]]
            # A hash is the name of a directory in the cache.
            if not all(re.fullmatch("[0-9a-f]{64}", shard.sha256) for shard in self._shards):
                raise ValueError("the hash of a shard is no SHA-256")
        if sha256 not in (None, self.header.sha256):
            raise ValueError(f"{path} was altered after it was written. {_REMEDY}")
        if self._cache is None or verify:
            self._check_sizes()
        if self._cache is not None and verify:
            self._warn_of_little_room(self._cache)
        elif verify:
            with ThreadPoolExecutor(count_cores()) as threads:  # hashing holds no lock of Python
                list(threads.map(lambda shard: BlockFile(self._name(shard), True, shard.sha256), self._shards))
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}, "_copying": None}  # a copy opens its own shards

    def _begin(self) -> None:
        self.shard_rows = np.array([shard.num_sequences for shard in self._shards])
        self._ends = self.shard_rows.cumsum()
        self._open: dict[int, BlockFile] = {}  # the last read one last
        self._expected: list[int] = []
        self._copying: threading.Thread | None = None

    def _name(self, shard: Shard) -> str:
        return f"{self.path.rstrip('/')}/{shard.name}"

    def _check_sizes(self) -> None:
        """Raises ValueError for a shard that is missing or has another size than in the index."""
        with reading(self.path, _NETWORK):
            system, root = fsspec.core.url_to_fs(self.path)
            root = root.rstrip("/")
            sizes = {path[len(root) + 1 :]: about["size"] for path, about in system.find(root, detail=True).items()}
        for shard in self._shards:
            size = sizes.get(shard.name)
            if size is None:
                raise ValueError(f"{self._name(shard)} is missing. {_REMEDY}")
            if size != shard.size:
                raise ValueError(f"{self._name(shard)} has {size:,} bytes, not {shard.size:,}. {_REMEDY}")

    def _get(self, number: int) -> BlockFile:
        """An open shard."""
        file = self._open.pop(number, None)
        if file is None:
            shard = self._shards[number]
            if self._cache is None:
                file = BlockFile(self._name(shard), sha256=shard.sha256)
            else:
                file = self._open_copy(shard, self._cache)
        self._open[number] = file
        if len(self._open) > _MOST_OPEN:
            del self._open[next(iter(self._open))]
        return file

    # ---- From elsewhere ----

    def _warn_of_little_room(self, cache: Path) -> None:
        with naming(cache):
            cache.mkdir(parents=True, exist_ok=True)
        missing = sum(shard.size for shard in self._shards if not (cache / shard.sha256).exists())
        free = shutil.disk_usage(cache).free
        if missing > free:
            logger.warning(
                f"The shards of {self.path} that are still to be copied have {format_bytes(missing)}, and "
                f"{format_bytes(free)} are free in {cache}. A run that reads them all stops when the disk is full."
            )

    def _copy(self, shard: Shard, cache: Path) -> str:
        """The path of a copy on this machine, which is made if there is none. Of several processes one makes it."""
        # Each shard has a cache of its own: the list of a common one is no place where processes may write at once.
        directory = cache / shard.sha256
        options = {"cache_storage": str(directory), "expiry_time": False, "skip_instance_cache": True}
        with naming(cache):
            cache.mkdir(parents=True, exist_ok=True)
        with reading(self._name(shard), _NETWORK), FileLock(f"{directory}.lock"):
            return str(fsspec.open_local(f"filecache::{self._name(shard)}", filecache=options))

    def _open_copy(self, shard: Shard, cache: Path) -> BlockFile:
        """Opens a copy. Raises ValueError if it is not the shard of the index; the copy is removed then."""
        path = self._copy(shard, cache)
        try:
            file = BlockFile(path, shard.sha256 not in self._verified, shard.sha256)
        except ValueError as error:  # which names the copy
            shutil.rmtree(cache / shard.sha256, ignore_errors=True)
            raise ValueError(str(error).replace(path, self._name(shard), 1)) from error
        self._verified.add(shard.sha256)
        return file

    def expect(self, shards: Sequence[int]) -> None:
        if self._cache is None or list(shards) == self._expected:
            return
        self._expected = list(shards)
        if self._copying is None or not self._copying.is_alive():
            self._copying = threading.Thread(target=self._copy_expected, args=[self._cache], daemon=True)
            self._copying.start()

    def _copy_expected(self, cache: Path) -> None:
        """Copies ahead, in a thread, until everything that is expected by then is there."""
        copied: set[int] = set()
        while missing := [shard for shard in self._expected if shard not in copied]:
            try:
                self._copy(self._shards[missing[0]], cache)
            except Exception as error:
                logger.warning(f"{error} It is tried again when the shard is read.")
                return
            copied.add(missing[0])

    # ---- As one file ----

    def part(self, shards: Sequence[int]) -> "ShardedBlocks":
        part = object.__new__(ShardedBlocks)
        part.__dict__ |= self.__dict__
        part._shards = [self._shards[shard] for shard in shards]
        part.header = dataclasses.replace(self.header, **_sums(part._shards))
        part._begin()
        return part

    def read(self, indices: np.ndarray) -> SequenceBatch:
        shards = np.searchsorted(self._ends, indices, side="right")
        numbers, firsts = np.unique(shards, return_index=True)
        parts = []
        places = []
        for shard in numbers[np.argsort(firsts)].tolist():  # in the order in which they occur
            here = np.flatnonzero(shards == shard)
            rows = indices[here] - (self._ends[shard] - self.shard_rows[shard])
            parts.append(vars(self._get(shard).read(rows)))
            places.append(here)
        back = np.argsort(np.concatenate(places))
        known = [name for name, values in parts[0].items() if values is not None]
        return SequenceBatch(**{name: np.concatenate([part[name] for part in parts])[back] for name in known})
