"""Prepared sequences: a block file, which is memory-mapped, and the stream in which training reads it.

The layout of the file, little-endian:

- 16 bytes of magic;
- the ids of all sequences, uint16 or uint32, padded to 8 bytes;
- for each sequence one bit per token, whether a word begins there, padded to max_seq_length and to whole bytes (as by
  `np.packbits`), and likewise whether a document begins there; all of it padded to 8 bytes;
- for each sequence the position among the ids where it ends (uint64), and where its second segment begins (uint32);
- a JSON header with the SHA-256 of everything before it;
- the length (uint64) and SHA-256 of the header, which are missing at the end of a truncated file.
"""

import dataclasses
import hashlib
import json
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from huggingface_hub.dataclasses import strict
from torch.utils.data import Dataset

from hf_electra_rtd.base.files import reading, writing
from hf_electra_rtd.data.packing import DOCUMENT_START, WORD_START, PackedSequence
from hf_electra_rtd.ops import randomness


BLOCK_SUFFIX = ".blocks"
# The stream position of the first held-out sequence, so that no random number is shared with a training sequence.
HELD_OUT_POSITION = 2**40
_REMEDY = "Copy or prepare it again, where all machines can read it."
_MAGIC = b"HF-RTD-BLOCKS\x00\x00\x06"
_FOOTER = struct.Struct("<Q32s")
_INDEX = np.dtype([("end", "<u8"), ("second_segment", "<u4")])


@strict
@dataclass
class BlockHeader:
    """The header of a block file."""

    max_seq_length: int
    num_sequences: int
    num_tokens: int  # special tokens included
    vocab_size: int
    tokenizer_hash: str
    packing: str
    sha256: str  # of everything before this header
    statistics: dict[str, int]  # counts from the preparation
    sources: list[dict[str, Any]]  # name, hash (of the text as it was read), weight and counts of each text
    recipe: dict[str, Any]  # the other settings that decide the content
    word_segmenter: str | None = None  # name of what found the beginnings of words; None if they are not known


@dataclass
class SequenceBatch(Sequence[dict[str, Any]]):
    """The sequences of a batch as arrays, which pass from the dataset to the collator without Python lists."""

    ids: np.ndarray  # (B, L) integers; values after the end of a sequence are arbitrary
    lengths: np.ndarray  # (B,) int64
    second_segments: np.ndarray  # (B,) int64: where segment B begins; the length if there is none
    stream_positions: np.ndarray | None = None  # (B,) int64: positions in the stream, which decide the random numbers
    word_starts: np.ndarray | None = None  # (B, L) bool: where a word begins; None if it is not known
    document_starts: np.ndarray | None = None  # (B, L) bool: where a document, or its part in the sequence, begins

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Any) -> Any:
        length = self.lengths[index]
        sequence = {
            "input_ids": self.ids[index, :length].astype(np.int64),
            "token_type_ids": (np.arange(length) >= self.second_segments[index]).astype(np.int64),
        }
        if self.stream_positions is not None:
            sequence["stream_position"] = int(self.stream_positions[index])
            sequence |= self.starts(index)
        return sequence

    def starts(self, index: int) -> dict[str, np.ndarray]:
        """Returns where words and documents begin in a sequence, without what is not known."""
        both = {"word_starts": self.word_starts, "document_starts": self.document_starts}
        return {name: rows[index, : self.lengths[index]] for name, rows in both.items() if rows is not None}


class BlockWriter:
    """Writes a block file: call `write` any number of times, then `finish`. Memory does not grow with the number of
    sequences: the bits and the index are kept in temporary files beside `path` until `stack` closes them."""

    def __init__(self, stack: ExitStack, path: Path, max_seq_length: int, vocab_size: int) -> None:
        self._file = stack.enter_context(open(path, "wb"))  # noqa: SIM115
        self._bit_file = stack.enter_context(tempfile.TemporaryFile(dir=path.parent))  # noqa: SIM115
        self._index_file = stack.enter_context(tempfile.TemporaryFile(dir=path.parent))  # noqa: SIM115
        self._digest = hashlib.sha256()
        self.max_seq_length = max_seq_length
        self.vocab_size = vocab_size
        self.num_sequences = 0
        self.num_tokens = 0
        self._write(_MAGIC)

    def write(self, sequences: Sequence[PackedSequence]) -> None:
        if not sequences:
            return
        tokens = np.concatenate([sequence.tokens for sequence in sequences])
        self._write(tokens.astype(id_dtype(self.vocab_size)).tobytes())  # the cast drops the bits beside the id
        lengths, second_segments = np.array([(len(tokens), second_segment) for tokens, second_segment in sequences]).T
        starts = np.zeros((len(sequences), 2, self.max_seq_length), dtype=bool)
        for plane, bit in enumerate((WORD_START, DOCUMENT_START)):
            starts[:, plane][np.arange(self.max_seq_length) < lengths[:, None]] = tokens & bit > 0
        self._bit_file.write(np.packbits(starts, axis=2).tobytes())
        index = np.empty(len(sequences), dtype=_INDEX)
        index["end"] = self.num_tokens + lengths.cumsum()
        index["second_segment"] = second_segments
        self._index_file.write(index.tobytes())
        self.num_sequences += len(sequences)
        self.num_tokens += int(lengths.sum())

    def finish(self, **described: Any) -> None:
        """Writes what follows the ids. `described` are the fields of [`BlockHeader`] that the writer does not know."""
        write_header(self._file, BlockHeader(**self.end(), **described))

    def end(self) -> dict[str, Any]:
        """Writes what follows the ids, except the header. Returns the fields of the header that the writer knows."""
        self._write(bytes(-self.num_tokens * id_dtype(self.vocab_size).itemsize % 8))
        self._bit_file.write(bytes(-self._bit_file.tell() % 8))
        for file in (self._bit_file, self._index_file):
            file.seek(0)
            while content := file.read(2**16):
                self._write(content)
        return {
            "max_seq_length": self.max_seq_length,
            "num_sequences": self.num_sequences,
            "num_tokens": self.num_tokens,
            "vocab_size": self.vocab_size,
            "sha256": self._digest.hexdigest(),
        }

    @property
    def size(self) -> int:
        """The number of bytes written so far."""
        return sum(file.tell() for file in (self._file, self._bit_file, self._index_file))

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)


def write_header(file: BinaryIO, header: BlockHeader) -> None:
    """Writes the header and the footer, which complete a block file."""
    text = json.dumps(dataclasses.asdict(header), ensure_ascii=False).encode()
    file.write(text + _FOOTER.pack(len(text), hashlib.sha256(text).digest()))


def _map_file(path: str) -> tuple[mmap.mmap, np.ndarray, BlockHeader]:
    """Maps a block file into memory. Returns the map, the content before the header as uint8, and the header. Raises
    ValueError for a file that was cut off, or is not a block file."""
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    # A plain array, because indexing a `np.memmap` makes another one, which costs more than the reading.
    content = np.frombuffer(mapped, np.uint8)
    end = len(content) - _FOOTER.size
    length, digest = _FOOTER.unpack(content[end:].tobytes())
    header = content[end - length : end].tobytes()
    if content[: len(_MAGIC)].tobytes() != _MAGIC or hashlib.sha256(header).digest() != digest:
        raise ValueError("it is not a complete block file of this version")
    return mapped, content[: end - length], BlockHeader(**json.loads(header))


@contextmanager
def writing_blocks(path: str | os.PathLike[str], max_seq_length: int, vocab_size: int) -> Iterator[BlockWriter]:
    """Yields a [`BlockWriter`]. The file gets its name, complete, when the `with` block ends without an error."""
    with writing(path) as partial, ExitStack() as stack:
        yield BlockWriter(stack, partial, max_seq_length, vocab_size)


class Blocks(Dataset):
    """Prepared sequences, in one file ([`BlockFile`]) or in several (`shards.ShardedBlocks`): a map-style dataset of
    `{"input_ids", "token_type_ids", "word_starts", "document_starts"}`. `read` returns a whole batch, whose items have
    only the first two keys, because the collators of other libraries would pass the rest on to the model."""

    path: str
    header: BlockHeader

    def __len__(self) -> int:
        return self.header.num_sequences

    def __getitem__(self, index: int) -> dict[str, Any]:
        batch = self.read(np.array([range(len(self))[index]]))
        return batch[0] | batch.starts(0)

    def __getitems__(self, indices: Sequence[int]) -> SequenceBatch:
        return self.read(np.asarray(indices, dtype=np.int64))

    def read(self, indices: np.ndarray) -> SequenceBatch:
        """Returns the sequences at an int64 array (B,) of indices."""
        raise NotImplementedError


class BlockFile(Blocks):
    """A block file, which is memory-mapped, and stays readable when another file replaces it under its name.

    `verify` reads the whole file and compares its hash; the hash of the header is always compared. Raises ValueError
    for a file that is not a block file, that was cut off or altered, or whose content does not have the hash `sha256`.
    """

    def __init__(self, path: str | os.PathLike[str], verify: bool = False, sha256: str | None = None) -> None:
        self.path = os.fspath(path)
        with reading(self.path, _REMEDY):
            self._mapped, content, header = _map_file(self.path)
            dtype = id_dtype(header.vocab_size)
            row_size = -(-header.max_seq_length // 8)
            end = len(_MAGIC) + header.num_tokens * dtype.itemsize
            self._ids = content[len(_MAGIC) : end].view(dtype)
            end += -end % 8
            self._bits = content[end : end + header.num_sequences * 2 * row_size].reshape(-1, 2, row_size)
            self._index = content[len(content) - header.num_sequences * _INDEX.itemsize :].view(_INDEX)
        self.header = header
        is_altered = verify and hashlib.sha256(content.data).hexdigest() != header.sha256
        if is_altered or sha256 not in (None, header.sha256):
            raise ValueError(f"{self.path} was altered after it was written. {_REMEDY}")

    # A data loader's worker maps the file itself instead of receiving a copy of its content.
    def __reduce__(self) -> tuple[Any, ...]:
        return BlockFile, (self.path, False, self.header.sha256)

    def read(self, indices: np.ndarray) -> SequenceBatch:
        lengths = self.lengths(indices)
        second_segments = self._index["second_segment"][indices].astype(np.int64)
        length = self.header.max_seq_length
        if self.header.num_tokens == self.header.num_sequences * length:  # all are full
            ids = self._ids.reshape(-1, length).take(indices, axis=0)
        else:
            starts = self._index["end"][indices].astype(np.int64) - lengths
            ids = self._ids.take(starts[:, None] + np.minimum(np.arange(length), lengths[:, None] - 1))
        starts = np.unpackbits(self._bits.take(indices, axis=0), axis=2, count=length).view(bool)
        words = None if self.header.word_segmenter is None else starts[:, 0]
        return SequenceBatch(ids, lengths, second_segments, word_starts=words, document_starts=starts[:, 1])

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """Returns the numbers of tokens, int64 (B,), of the sequences at an int64 array (B,) of indices."""
        if self._mapped.size() < len(self._mapped):  # reading past the present size on disk would crash the process
            raise ValueError(f"{self.path} was cut off or overwritten while it was read. {_REMEDY}")
        ends = self._index["end"]
        return (ends[indices] - np.where(indices > 0, ends[indices - 1], 0)).astype(np.int64)


def id_dtype(vocab_size: int) -> np.dtype:
    """Returns the data type of the ids in a file."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


class SequenceStream(Dataset):
    """A dataset of `num_positions` sequences (by default one epoch) in the order of training.

    `sequences` are [`Blocks`], or any map-style dataset of dicts with `input_ids`. Every epoch is a permutation that
    depends on the seed and the epoch alone; `shuffle=False` keeps the order of the dataset. The `stream_position` of
    the first sequence is `first_position`. Raises ValueError if `sequences` is empty.
    """

    def __init__(
        self,
        sequences: Any,
        num_positions: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        first_position: int = 0,
    ) -> None:
        if not len(sequences):
            raise ValueError("The dataset holds no sequence. Give more text, or shorter sequences.")
        self.sequences = sequences
        self.num_positions = len(sequences) if num_positions is None else num_positions
        self.seed = seed
        self.shuffle = shuffle
        self.first_position = first_position
        self._order_of: tuple[int, np.ndarray] | None = None  # the last epoch and its order

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_order_of": None}  # workers compute the orders that they need

    def __len__(self) -> int:
        return self.num_positions

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([range(len(self))[index]])[0]

    def __getitems__(self, indices: Sequence[int]) -> SequenceBatch | list[dict[str, Any]]:
        positions = np.asarray(indices, dtype=np.int64)
        sequence_indices = self.sequence_indices(positions)
        stream_positions = positions + self.first_position
        if isinstance(self.sequences, Blocks):
            return dataclasses.replace(self.sequences.read(sequence_indices), stream_positions=stream_positions)
        pairs = zip(sequence_indices.tolist(), stream_positions.tolist(), strict=True)
        return [{**self.sequences[index], "stream_position": position} for index, position in pairs]

    def sequence_indices(self, positions: np.ndarray) -> np.ndarray:
        """Returns the index of the sequence at each position, int64 (B,)."""
        epochs, places = np.divmod(positions, len(self.sequences))
        if not self.shuffle:
            return places
        indices = np.empty_like(places)
        for epoch in sorted(set(epochs.tolist())):
            here = epochs == epoch
            indices[here] = self._order(epoch)[places[here]]
        return indices

    def _order(self, epoch: int) -> np.ndarray:
        """Returns the indices of the sequences in the order of an epoch."""
        if self._order_of is None or self._order_of[0] != epoch:
            order = randomness.permutation(self.seed, epoch, len(self.sequences))
            # Every worker keeps the order for an epoch; uint32 halves its memory.
            order = order.astype(np.uint32) if len(self.sequences) <= 2**32 else order
            self._order_of = (epoch, order)
        return self._order_of[1]
