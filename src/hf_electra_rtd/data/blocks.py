"""Rows on the disk as one flat file that is memory-mapped, and a batch read from it with one fancy index.

Layout, little-endian: 16 bytes of magic; the ids of all rows, one row after the other, uint16 or uint32; where rows
differ in length, their offsets (uint64, one more than there are rows); where each row's second segment begins (uint16
or uint32); a JSON header; a footer with the header's place, length and SHA-256, and the magic again. A file that was
cut off has no footer, and one that was altered another digest: the footer's of the header, the header's of the rest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch.utils.data import Dataset

from hf_electra_rtd.data.files import hash_stream
from hf_electra_rtd.data.packing import Row
from hf_electra_rtd.data.writing import ScratchDirectory, explaining_failures, publish, sync


MAGIC = b"HF-RTD-BLOCKS\x00\x00\x02"
FOOTER = struct.Struct("<QQ32s16s")


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
        sources: the texts: name, hash, bytes, documents.
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
    """Writes rows to a scratch directory beside `path`; `complete` ends the file and `publish` names it `path`.

    As a context manager, it cleans up. Memory does not grow with the number of rows.

    Args:
        path: of the block file.
        row_length: L.
        vocab_size: decides between uint16 and uint32.

    Raises:
        ValueError: here and in every method, if there is no space left or the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], row_length: int, vocab_size: int) -> None:
        self.path = Path(path)
        self.row_length, self.vocab_size = row_length, vocab_size
        self.dtype = np.dtype("<u2" if vocab_size <= 2**16 else "<u4")
        self.num_rows = self.num_tokens = self.num_full_rows = self.num_two_segment_rows = 0
        self._digest = hashlib.sha256()
        self._scratch = ScratchDirectory(self.path.parent)
        self._partial = self._scratch.path / self.path.name
        try:
            with explaining_failures(self.path):
                self._file: IO[bytes] = open(self._partial, "wb")  # noqa: SIM115
                # Length and beginning of the second segment of each row, until it is known where they go.
                self._row_file: IO[bytes] = open(self._scratch.path / "rows", "w+b")  # noqa: SIM115
                self._write(MAGIC)
        except BaseException:
            self._scratch.__exit__()
            raise

    def __enter__(self) -> BlockWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        for file in (self._file, self._row_file):
            with contextlib.suppress(OSError):  # what was still buffered has no space either
                file.close()
        self._scratch.__exit__()

    def write(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        described = np.array([(len(row.ids), row.second_segment) for row in rows], dtype="<u4")
        lengths, second_segments = described.T
        with explaining_failures(self.path):
            self._write(np.concatenate([row.ids for row in rows]).astype(self.dtype).tobytes())
            self._row_file.write(described.tobytes())
        self.num_rows += len(rows)
        self.num_tokens += int(lengths.sum())
        self.num_full_rows += int((lengths == self.row_length).sum())
        self.num_two_segment_rows += int((second_segments < lengths).sum())

    def complete(self, **described: Any) -> None:
        """Writes what follows the ids, and waits for the disk. `described` are the other fields of [`BlockHeader`]."""
        uniform = self.num_full_rows == self.num_rows
        with explaining_failures(self.path):
            if not uniform:
                self._write(np.zeros(1, dtype="<u8").tobytes())
                offset = 0
                for lengths, _ in self._described_rows():
                    offsets = offset + lengths.astype("<u8").cumsum()
                    self._write(offsets.astype("<u8").tobytes())
                    offset = int(offsets[-1])
            for _, second_segments in self._described_rows():
                self._write(second_segments.astype(_segment_dtype(self.row_length)).tobytes())
            header = BlockHeader(
                row_length=self.row_length,
                num_rows=self.num_rows,
                num_tokens=self.num_tokens,
                vocab_size=self.vocab_size,
                dtype=self.dtype.str,
                uniform=uniform,
                sha256=self._digest.hexdigest(),
                **described,
            )
            end = self._file.tell()
            text = json.dumps(dataclasses.asdict(header), ensure_ascii=False).encode()
            self._file.write(text + FOOTER.pack(end, len(text), hashlib.sha256(text).digest(), MAGIC))
            sync(self._file)

    def publish(self) -> BlockFile:
        """Gives the complete file its name, and opens it."""
        with explaining_failures(self.path):
            publish(self._partial, self.path)
        return BlockFile(self.path)

    def finish(self, **described: Any) -> BlockFile:
        """`complete` and `publish`."""
        self.complete(**described)
        return self.publish()

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)

    def _described_rows(self) -> Iterator[np.ndarray]:
        """Lengths and second segments, uint32 (2, rows), of many rows at a time."""
        self._row_file.seek(0)
        while content := self._row_file.read(1 << 19):
            yield np.frombuffer(content, dtype="<u4").reshape(-1, 2).T


def _segment_dtype(row_length: int) -> np.dtype[Any]:
    return np.dtype("<u2" if row_length < 2**16 else "<u4")


class BlockFile(Dataset):
    """A block file as a map-style dataset of `{"input_ids", "token_type_ids"}`; `read` gives many rows at once.

    Args:
        path: of the file.
        verify: read all of it and compare its digest; that of the header is always compared.

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
        # Plain arrays over the mapped file: indexing a `memmap` makes another one, which costs more than the rows.
        self._ids = np.asarray(np.memmap(self.path, dtype, "r", offset=len(MAGIC), shape=(header.num_tokens,)))
        position = len(MAGIC) + header.num_tokens * dtype.itemsize
        self._offsets: np.ndarray | None = None
        if not header.uniform:
            offsets = np.memmap(self.path, "<u8", "r", offset=position, shape=(header.num_rows + 1,))
            self._offsets = np.asarray(offsets)
            position += self._offsets.nbytes
        segments = _segment_dtype(header.row_length)
        second_segments = np.memmap(self.path, segments, "r", offset=position, shape=(header.num_rows,))
        self._second_segments = np.asarray(second_segments)

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
        second_segments = self._second_segments.take(indices).astype(np.int64)
        lengths = self.lengths(indices)
        if self._offsets is None:
            rows = self._ids.reshape(-1, self.header.row_length)
            return RowBatch(rows.take(indices, axis=0), lengths, second_segments)
        starts = self._offsets[indices].astype(np.int64)
        within = np.minimum(np.arange(self.header.row_length), lengths[:, None] - 1)
        return RowBatch(self._ids.take(starts[:, None] + within), lengths, second_segments)

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """Tokens in each row of an int64 array (B,) of indices: int64 (B,)."""
        if self._offsets is None:
            return np.full(len(indices), self.header.row_length, dtype=np.int64)
        return (self._offsets[indices + 1] - self._offsets[indices]).astype(np.int64)


def _read_header(path: str) -> tuple[BlockHeader, int]:
    """The header, checked against the file's size, and where it begins."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if file.read(len(MAGIC)) != MAGIC:
                raise ValueError(f"{path} is not a block file of this version: prepare it again.")
            if size < len(MAGIC) + FOOTER.size:
                raise ValueError(f"{path} was cut off: prepare it again.")
            file.seek(size - FOOTER.size)
            end, length, digest, magic = FOOTER.unpack(file.read(FOOTER.size))
            if magic != MAGIC or end + length + FOOTER.size != size:
                raise ValueError(f"{path} was cut off: prepare it again.")
            file.seek(end)
            text = file.read(length)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}.") from None
    header = _parse_header(text) if hashlib.sha256(text).digest() == digest else None
    if header is None or end != len(MAGIC) + _content_size(header):
        raise ValueError(f"{path} was altered after it was written: prepare it again.")
    return header, end


def _parse_header(text: bytes) -> BlockHeader | None:
    """The header, or None for what is none."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    types = {field.name: _JSON_TYPES[str(field.type).partition("[")[0]] for field in dataclasses.fields(BlockHeader)}
    if not isinstance(values, dict) or values.keys() != types.keys():
        return None
    if any(type(values[name]) is not wanted for name, wanted in types.items()):
        return None
    header = BlockHeader(**values)
    counts = (header.row_length, header.num_rows, header.num_tokens, header.vocab_size)
    if min(counts) < 1 or header.num_rows > header.num_tokens or max(counts) >= 2**63:
        return None
    if header.dtype not in ("<u2", "<u4") or header.row_length >= 2**32:
        return None
    if header.uniform and header.num_tokens != header.num_rows * header.row_length:
        return None
    return header


_JSON_TYPES = {"int": int, "str": str, "bool": bool, "dict": dict, "list": list}


def _content_size(header: BlockHeader) -> int:
    """Bytes of ids, offsets and second segments."""
    ids = header.num_tokens * np.dtype(header.dtype).itemsize
    offsets = 0 if header.uniform else 8 * (header.num_rows + 1)
    return ids + offsets + header.num_rows * _segment_dtype(header.row_length).itemsize
