"""Writes and reads shards of prepared sequences: a directory of block files of bounded size with an index."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub.dataclasses import strict

from hf_electra_rtd.base.files import reading, write_text, writing
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


INDEX_FILE = "index.json"
SHARD_SIZE = 512 * 10**6
_MOST_OPEN = 300  # shards; a process may often open only 1,024 files
_REMEDY = "Copy the whole directory again, or prepare the text again."
_LARGEST_TOKEN = 8  # bytes per token, at most
_LARGEST_ROW = 64  # other bytes per sequence, at most


@strict  # needs real types: with `from __future__ import annotations` they would be strings
@dataclass
class Shard:
    """The entry of a shard in the index."""

    name: str  # its path in the directory
    size: int  # in bytes
    sha256: str  # as in its header
    num_sequences: int
    num_tokens: int


class ShardWriter:
    """Like [`BlockWriter`], but begins another file in `directory` whenever one is full: `<name>-00000.blocks`, ...

    Files have at most `shard_size` bytes, headers not counted. They get their final names when `stack` is closed
    without an error, the first file last. How sequences are divided into calls of `write` does not change the files.
    Raises ValueError for a size that does not hold two sequences."""

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
        self._open = stack.enter_context(ExitStack())  # closes the files of the last shard
        self._writers: list[BlockWriter] = []
        self._partial: list[Path] = []  # the temporary path of each shard
        self._known: list[dict[str, Any]] = []  # the header fields of each full shard that are known already
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
        """Writes the headers, with the fields `described`. The statistics and sources are those of all shards
        together; only the header of the first shard holds them."""
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
    """Yields a [`ShardWriter`] into a directory of its own. The directory appears with its index, whole or not at
    all."""
    with writing(path, INDEX_FILE, (f"*{BLOCK_SUFFIX}",)) as partial:
        with ExitStack() as stack:
            writer = ShardWriter(stack, partial, path.name, max_seq_length, vocab_size, shard_size)
            yield writer
        write_index(partial, writer.files)


def write_index(directory: str | os.PathLike[str], files: Sequence[Path], **described: Any) -> BlockHeader:
    """Writes the index of the shards of one preparation: `files` of `directory`, in this order. Returns the header of
    all shards together: that of the first shard with the sums over all, and with the fields `described`."""
    headers = [BlockFile(file).header for file in files]
    shards = [
        Shard(file.name, os.path.getsize(file), header.sha256, header.num_sequences, header.num_tokens)
        for file, header in zip(files, headers, strict=True)
    ]
    sums = {
        "num_sequences": sum(shard.num_sequences for shard in shards),
        "num_tokens": sum(shard.num_tokens for shard in shards),
        "sha256": hashlib.sha256("".join(shard.sha256 for shard in shards).encode()).hexdigest(),
    }
    whole = BlockHeader(**{**vars(headers[0]), **sums, **described})
    content = {"header": vars(whole), "shards": [vars(shard) for shard in shards]}
    write_text(Path(directory, INDEX_FILE), json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return whole


# ---- Reading ----


def open_blocks(path: str | os.PathLike[str], verify: bool = False) -> Blocks:
    """Opens a block file, or a directory of shards with its index. `verify` reads all content and compares its hashes.
    Raises ValueError for a file that is missing, cut off or altered."""
    return ShardedBlocks(os.fspath(path), verify) if os.path.isdir(path) else BlockFile(path, verify)


class ShardedBlocks(Blocks):
    """A directory of shards with its index; see [`open_blocks`]. Shards are opened when they are read."""

    def __init__(self, path: str, verify: bool) -> None:
        self.path = path
        index = os.path.join(path, INDEX_FILE)
        with reading(index, f"Name a directory of prepared shards, or copy its {INDEX_FILE} again."):
            content = json.loads(Path(index).read_text(encoding="utf-8"))
            self.header = BlockHeader(**content["header"])
            self._shards = [Shard(**shard) for shard in content["shards"]]
        for shard in self._shards:
            file = self._name(shard)
            if not os.path.isfile(file):
                raise ValueError(f"{file} is missing. {_REMEDY}")
            size = os.path.getsize(file)
            if size != shard.size:
                raise ValueError(f"{file} has {size:,} bytes, not {shard.size:,}. {_REMEDY}")
        if verify:
            with ThreadPoolExecutor(count_cores()) as threads:  # hashing releases the GIL
                list(threads.map(lambda shard: BlockFile(self._name(shard), True, shard.sha256), self._shards))
        self._rows = np.array([shard.num_sequences for shard in self._shards])
        self._ends = self._rows.cumsum()
        self._open: dict[int, BlockFile] = {}  # least recently read first

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}  # a copy opens its own shards

    def _name(self, shard: Shard) -> str:
        return os.path.join(self.path, shard.name)

    def _get(self, number: int) -> BlockFile:
        """Returns a shard, opened if necessary. The least recently read one is closed if too many are open."""
        file = self._open.pop(number, None)
        if file is None:
            shard = self._shards[number]
            file = BlockFile(self._name(shard), sha256=shard.sha256)
        self._open[number] = file
        if len(self._open) > _MOST_OPEN:
            del self._open[next(iter(self._open))]
        return file

    def read(self, indices: np.ndarray) -> SequenceBatch:
        shards = np.searchsorted(self._ends, indices, side="right")
        numbers, firsts = np.unique(shards, return_index=True)
        parts = []
        places = []
        for shard in numbers[np.argsort(firsts)].tolist():  # in order of occurrence
            here = np.flatnonzero(shards == shard)
            rows = indices[here] - (self._ends[shard] - self._rows[shard])
            parts.append(vars(self._get(shard).read(rows)))
            places.append(here)
        back = np.argsort(np.concatenate(places))
        known = [name for name, values in parts[0].items() if values is not None]
        return SequenceBatch(**{name: np.concatenate([part[name] for part in parts])[back] for name in known})
