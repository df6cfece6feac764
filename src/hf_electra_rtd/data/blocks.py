"""Prepared sequences on disk: one file that is memory-mapped, from which a batch is read with one fancy index.

Layout, little-endian: 16 bytes of magic; the ids of all sequences, uint16 or uint32, padded to 8 bytes; for each
sequence where it ends among the ids (uint64) and where its second segment begins (uint32); a JSON header; its length
(uint64) and SHA-256. A file that was cut off does not end with the digest of its header, and the header has the digest
of the rest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from torch.utils.data import Dataset

from hf_electra_rtd.data.packing import PackedSequence
from hf_electra_rtd.files import writing


BLOCK_SUFFIX = ".blocks"
_MAGIC = b"HF-RTD-BLOCKS\x00\x00\x03"
_FOOTER = struct.Struct("<Q32s")
_INDEX = np.dtype([("end", "<u8"), ("second_segment", "<u4")])


@dataclass(frozen=True)
class BlockHeader:
    """What a block file says about itself."""

    max_seq_length: int
    num_sequences: int
    num_tokens: int  # special tokens included
    vocab_size: int
    dtype: str  # of the ids
    uniform: bool  # whether every sequence has `max_seq_length` tokens
    tokenizer_hash: str
    packing: str
    sha256: str  # of everything before this header
    statistics: dict[str, Any]  # counts from the preparation
    sources: list[dict[str, Any]]  # of each text its name, hash (of the text as it was read), weight and counts
    recipe: dict[str, Any]  # what else decides the content


@dataclass
class SequenceBatch(Sequence[dict[str, Any]]):
    """Sequences of a batch as arrays, from the dataset to the collator without Python lists."""

    ids: np.ndarray  # (B, L) integers; behind a sequence's end anything may stand
    lengths: np.ndarray  # (B,) int64
    second_segments: np.ndarray  # (B,) int64: where segment B begins; the length if there is none
    stream_positions: np.ndarray | None = None  # (B,) int64: places in the stream, which decide the random numbers

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Any) -> Any:
        length = int(self.lengths[index])
        sequence: dict[str, Any] = {
            "input_ids": self.ids[index, :length].astype(np.int64),
            "token_type_ids": (np.arange(length) >= self.second_segments[index]).astype(np.int64),
        }
        if self.stream_positions is not None:
            sequence["stream_position"] = int(self.stream_positions[index])
        return sequence


class BlockWriter:
    """Writes a block file. As a context manager: the file has its name, whole, when the `with` block ended.

    Call `write` any number of times, then `finish`. Memory does not grow with the number of sequences.

    Raises:
        OSError: with the path, if there is no space left or the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], max_seq_length: int, vocab_size: int) -> None:
        self.path = os.fspath(path)
        self.max_seq_length, self.vocab_size = max_seq_length, vocab_size
        self.dtype = np.dtype("<u2" if vocab_size <= 2**16 else "<u4")
        self.num_sequences = self.num_tokens = self.num_full = self.num_two_segments = 0
        self._digest = hashlib.sha256()

    def __enter__(self) -> BlockWriter:
        with ExitStack() as stack:
            partial = stack.enter_context(writing(self.path))
            self._file: IO[bytes] = stack.enter_context(open(partial, "wb"))
            self._index_file: IO[bytes] = stack.enter_context(open(partial.parent / "index", "w+b"))
            self._write(_MAGIC)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    def write(self, sequences: Sequence[PackedSequence]) -> None:
        if not sequences:
            return
        self._write(np.concatenate([sequence.ids for sequence in sequences]).astype(self.dtype).tobytes())
        lengths, second_segments = np.array([(len(ids), second_segment) for ids, second_segment in sequences]).T
        index = np.empty(len(sequences), dtype=_INDEX)
        index["end"], index["second_segment"] = self.num_tokens + lengths.cumsum(), second_segments
        self._index_file.write(index.tobytes())
        self.num_sequences += len(sequences)
        self.num_tokens += int(lengths.sum())
        self.num_full += int((lengths == self.max_seq_length).sum())
        self.num_two_segments += int((second_segments < lengths).sum())

    def finish(self, **described: Any) -> None:
        """Writes what follows the ids; `described` are the fields of [`BlockHeader`] that are not known here."""
        self._write(bytes(-self.num_tokens * self.dtype.itemsize % 8))
        self._index_file.seek(0)
        while content := self._index_file.read(2**20):
            self._write(content)
        header = BlockHeader(
            max_seq_length=self.max_seq_length,
            num_sequences=self.num_sequences,
            num_tokens=self.num_tokens,
            vocab_size=self.vocab_size,
            dtype=self.dtype.str,
            uniform=self.num_full == self.num_sequences,
            sha256=self._digest.hexdigest(),
            **described,
        )
        text = json.dumps(dataclasses.asdict(header), ensure_ascii=False).encode()
        self._file.write(text + _FOOTER.pack(len(text), hashlib.sha256(text).digest()))
        self._file.flush()

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)


class BlockFile(Dataset):
    """A block file as a map-style dataset of `{"input_ids", "token_type_ids"}`; `read` gives a whole batch.

    `verify` reads all of it and compares its hash; that of the header is always compared.

    Raises:
        ValueError: for a file that is no block file, was cut off, or was altered.
        OSError: for a file that is missing or cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], verify: bool = False) -> None:
        self.path = os.fspath(path)
        end = os.stat(self.path).st_size - _FOOTER.size
        # A plain array over the mapped file: indexing a `memmap` makes another one, which costs more than reading.
        content = np.asarray(np.memmap(self.path, np.uint8, "r")) if end > 0 else np.empty(0, np.uint8)
        length, digest = _FOOTER.unpack(content[end:].tobytes()) if end > 0 else (0, b"")
        text = content[max(0, end - length) : max(0, end)].tobytes()
        if content[: len(_MAGIC)].tobytes() != _MAGIC or hashlib.sha256(text).digest() != digest:
            raise ValueError(
                f"{self.path} is no whole block file of this version: it was cut off, altered, or is something else. "
                "Prepare it again."
            )
        self.header = header = BlockHeader(**json.loads(text))
        content = content[: end - length]
        if verify and hashlib.sha256(content.data).hexdigest() != header.sha256:
            raise ValueError(f"{self.path} was altered after it was written. Prepare it again.")
        ids = content[len(_MAGIC) : len(_MAGIC) + header.num_tokens * np.dtype(header.dtype).itemsize]
        self._ids = ids.view(header.dtype)
        self._index = content[len(content) - header.num_sequences * _INDEX.itemsize :].view(_INDEX)

    # A data loader's worker maps the file itself instead of receiving a copy of its content.
    def __reduce__(self) -> tuple[Any, ...]:
        return BlockFile, (self.path,)

    def __len__(self) -> int:
        return self.header.num_sequences

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.read(np.array([range(len(self))[index]]))[0]

    def __getitems__(self, indices: list[int]) -> SequenceBatch:
        return self.read(np.asarray(indices, dtype=np.int64))

    def read(self, indices: np.ndarray) -> SequenceBatch:
        """The sequences at an int64 array (B,) of indices."""
        second_segments = self._index["second_segment"][indices].astype(np.int64)
        starts, lengths = self._spans(indices)
        length = self.header.max_seq_length
        if self.header.uniform:
            return SequenceBatch(self._ids.reshape(-1, length).take(indices, axis=0), lengths, second_segments)
        within = np.minimum(np.arange(length), lengths[:, None] - 1)
        return SequenceBatch(self._ids.take(starts[:, None] + within), lengths, second_segments)

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """Tokens of the sequences at an int64 array (B,) of indices, int64 (B,)."""
        return self._spans(indices)[1]

    def _spans(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        ends = self._index["end"]
        starts = np.where(indices > 0, ends[indices - 1], 0).astype(np.int64)
        return starts, ends[indices].astype(np.int64) - starts
