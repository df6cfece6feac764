"""Rows on the disk as one flat file that is memory-mapped, and a batch read from it with one fancy index.

Layout, little-endian: 16 bytes of magic; the ids of all rows, one row after the other, uint16 or uint32; where rows
differ in length, their offsets (uint64, one more than there are rows); where each row's second segment begins (uint16
or uint32); a JSON header; a footer with the header's place and length, and the magic again. A file that was cut off
has no footer, and one that was altered another digest.
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch.utils.data import Dataset

from hf_electra_rtd.data.documents import hash_stream
from hf_electra_rtd.data.packing import Row


MAGIC = b"HF-RTD-BLOCKS\x00\x00\x01"
FOOTER = struct.Struct("<QQ16s")


@dataclass(frozen=True)
class BlockHeader:
    """What a block file knows about itself.

    Attributes:
        row_length: L; no row is longer.
        num_rows: rows in the file.
        num_tokens: ids in the file, special tokens included.
        vocab_size: every id is below it.
        dtype: of the ids.
        uniform: whether every row has L tokens.
        tokenizer_hash: `hf_electra_rtd.data.tokenization.tokenizer_hash` of the tokenizer.
        packing: how rows were made.
        sha256: of everything before this header.
        statistics: counts from the preparation.
        sources: the text files, as dicts of `hf_electra_rtd.data.documents.Source`.
        recipe: everything that decides the content; the same recipe on the same text makes the same file.
    """

    row_length: int
    num_rows: int
    num_tokens: int
    vocab_size: int
    dtype: str
    uniform: bool
    tokenizer_hash: str
    packing: str
    sha256: str
    statistics: dict[str, Any]
    sources: list[dict[str, Any]]
    recipe: dict[str, Any]


@dataclass
class RowBatch(Sequence[dict[str, Any]]):
    """Rows of a batch as arrays, from the dataset to the collator without a detour over Python lists.

    Attributes:
        ids: (B, L) integers; what lies behind a row's length is not defined.
        lengths: (B,) int64.
        second_segments: (B,) int64; where segment B begins; the row's length if there is none.
        stream_positions: (B,) int64; the place in the training stream, which decides the random numbers; or None.
    """

    ids: np.ndarray
    lengths: np.ndarray
    second_segments: np.ndarray
    stream_positions: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Any) -> Any:
        length = int(self.lengths[index])
        row: dict[str, Any] = {
            "input_ids": self.ids[index, :length].astype(np.int64),
            "token_type_ids": (np.arange(length) >= self.second_segments[index]).astype(np.int64),
        }
        if self.stream_positions is not None:
            row["stream_position"] = int(self.stream_positions[index])
        return row


class BlockWriter:
    """Writes rows to a temporary file beside `path`; `finish` names it `path`. As a context manager, it cleans up.

    Args:
        path: of the block file.
        row_length: L.
        vocab_size: decides between uint16 and uint32.
    """

    def __init__(self, path: str | os.PathLike[str], row_length: int, vocab_size: int) -> None:
        self.path = Path(path)
        self.row_length, self.vocab_size = row_length, vocab_size
        self.dtype = np.dtype("<u2" if vocab_size <= 2**16 else "<u4")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._partial = self.path.with_name(f"{self.path.name}.{os.getpid()}.partial")
        self._file: IO[bytes] = open(self._partial, "w+b")  # noqa: SIM115
        self._file.write(MAGIC)
        self._lengths: list[int] = []
        self._second_segments: list[int] = []
        self._num_tokens = 0

    def __enter__(self) -> BlockWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        self._partial.unlink(missing_ok=True)

    @property
    def num_rows(self) -> int:
        return len(self._lengths)

    @property
    def num_tokens(self) -> int:
        return self._num_tokens

    @property
    def num_full_rows(self) -> int:
        return sum(length == self.row_length for length in self._lengths)

    @property
    def num_two_segment_rows(self) -> int:
        return sum(second < length for second, length in zip(self._second_segments, self._lengths, strict=True))

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._file.write(row.ids.astype(self.dtype).tobytes())
            self._lengths.append(len(row.ids))
            self._second_segments.append(row.second_segment)
            self._num_tokens += len(row.ids)

    def finish(self, **described: Any) -> BlockFile:
        """Completes the file and opens it. `described` are the remaining fields of [`BlockHeader`]."""
        lengths = np.array(self._lengths, dtype="<u8")
        uniform = bool((lengths == self.row_length).all())
        if not uniform:
            self._file.write(np.concatenate([[0], lengths.cumsum()]).astype("<u8").tobytes())
        self._file.write(np.array(self._second_segments).astype(_segment_dtype(self.row_length)).tobytes())
        end = self._file.tell()
        self._file.seek(0)
        header = BlockHeader(
            row_length=self.row_length,
            num_rows=self.num_rows,
            num_tokens=self.num_tokens,
            vocab_size=self.vocab_size,
            dtype=self.dtype.str,
            uniform=uniform,
            sha256=hash_stream(self._file, end),
            **described,
        )
        text = json.dumps(dataclasses.asdict(header), ensure_ascii=False).encode()
        self._file.seek(end)
        self._file.write(text + FOOTER.pack(end, len(text), MAGIC))
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._partial, self.path)
        return BlockFile(self.path)


def _segment_dtype(row_length: int) -> np.dtype[Any]:
    return np.dtype("<u2" if row_length < 2**16 else "<u4")


class BlockFile(Dataset):
    """A block file as a map-style dataset of `{"input_ids", "token_type_ids"}`; `read` gives many rows at once.

    Args:
        path: of the file.
        verify: read all of it and compare its digest.

    Raises:
        ValueError: for a file that is not a block file, was cut off, or was altered.
    """

    def __init__(self, path: str | os.PathLike[str], verify: bool = False) -> None:
        self.path = os.fspath(path)
        self.header, end = _read_header(self.path)
        if verify:
            with open(self.path, "rb") as file:
                if hash_stream(file, end) != self.header.sha256:
                    raise ValueError(f"{self.path} was altered after it was written: prepare it again.")
        self._map()

    def _map(self) -> None:
        header = self.header
        dtype = np.dtype(header.dtype)
        self._ids = np.memmap(self.path, dtype, "r", offset=len(MAGIC), shape=(header.num_tokens,))
        position = len(MAGIC) + header.num_tokens * dtype.itemsize
        self._offsets: np.ndarray | None = None
        if not header.uniform:
            self._offsets = np.memmap(self.path, "<u8", "r", offset=position, shape=(header.num_rows + 1,))
            position += self._offsets.nbytes
        segments = _segment_dtype(header.row_length)
        self._second_segments = np.memmap(self.path, segments, "r", offset=position, shape=(header.num_rows,))

    # A data loader's worker maps the file itself instead of receiving a copy of its content.
    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "header": self.header}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._map()

    def __len__(self) -> int:
        return self.header.num_rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.read(np.array([range(len(self))[index]]))[0]

    def __getitems__(self, indices: list[int]) -> RowBatch:
        return self.read(np.asarray(indices, dtype=np.int64))

    def read(self, indices: np.ndarray) -> RowBatch:
        """The rows of an int64 array (B,) of indices."""
        second_segments = self._second_segments[indices].astype(np.int64)
        lengths = self.lengths(indices)
        if self._offsets is None:
            rows = self._ids.reshape(-1, self.header.row_length)
            return RowBatch(np.asarray(rows[indices]), lengths, second_segments)
        starts = self._offsets[indices].astype(np.int64)
        within = np.minimum(np.arange(self.header.row_length), lengths[:, None] - 1)
        return RowBatch(np.asarray(self._ids[starts[:, None] + within]), lengths, second_segments)

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """Tokens in each row of an int64 array (B,) of indices: int64 (B,)."""
        if self._offsets is None:
            return np.full(len(indices), self.header.row_length, dtype=np.int64)
        return (self._offsets[indices + 1] - self._offsets[indices]).astype(np.int64)


def _read_header(path: str) -> tuple[BlockHeader, int]:
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise ValueError(f"{path} is not a block file of this version: prepare it again.")
        if size < len(MAGIC) + FOOTER.size:
            raise ValueError(f"{path} was cut off: prepare it again.")
        file.seek(size - FOOTER.size)
        end, length, magic = FOOTER.unpack(file.read(FOOTER.size))
        if magic != MAGIC or end + length + FOOTER.size != size:
            raise ValueError(f"{path} was cut off: prepare it again.")
        file.seek(end)
        return BlockHeader(**json.loads(file.read(length))), end
