"""Prepared sequences: a file that is memory-mapped, and the stream in which training reads it.

Layout of the file, little-endian: 16 bytes of magic; the ids of all sequences, uint16 or uint32, padded to 8 bytes;
for each sequence a bit a token, whether a word begins there, padded to max_seq_length and whole bytes (as `packbits`),
together padded to 8 bytes; for each where it ends among the ids (uint64) and where its second segment begins (uint32);
a JSON header with the SHA-256 of all this; its length (uint64) and SHA-256, which a file that was cut off does not end
with.
"""

import dataclasses
import hashlib
import json
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from huggingface_hub.dataclasses import strict
from torch.utils.data import Dataset

from hf_electra_rtd.data.packing import WORD_START, PackedSequence
from hf_electra_rtd.files import reading, writing
from hf_electra_rtd.ops import randomness


BLOCK_SUFFIX = ".blocks"
# Position of the first held-out sequence, so that none shares a random number with a training sequence.
HELD_OUT_POSITION = 2**40
_MAGIC = b"HF-RTD-BLOCKS\x00\x00\x05"
_FOOTER = struct.Struct("<Q32s")
_INDEX = np.dtype([("end", "<u8"), ("second_segment", "<u4")])


@strict
@dataclass
class BlockHeader:
    """What a block file says about itself."""

    max_seq_length: int
    num_sequences: int
    num_tokens: int  # special tokens included
    vocab_size: int
    tokenizer_hash: str
    packing: str
    sha256: str  # of everything before this header
    statistics: dict[str, int]  # counts from the preparation
    sources: list[dict[str, Any]]  # of each text its name, hash (of the text as it was read), weight and counts
    recipe: dict[str, Any]  # what else decides the content
    word_segmenter: str | None = None  # what found the beginnings of words; None if nothing did


@dataclass
class SequenceBatch(Sequence[dict[str, Any]]):
    """Sequences of a batch as arrays, from the dataset to the collator without Python lists."""

    ids: np.ndarray  # (B, L) integers; behind a sequence's end anything may stand
    lengths: np.ndarray  # (B,) int64
    second_segments: np.ndarray  # (B,) int64: where segment B begins; the length if there is none
    stream_positions: np.ndarray | None = None  # (B,) int64: places in the stream, which decide the random numbers
    word_starts: np.ndarray | None = None  # (B, L) bool: where a word begins; None if it is not known
    samples: np.ndarray | None = None  # (B,) rows of a `CorruptedFile`, where there is one

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
            if self.word_starts is not None:
                sequence["word_starts"] = self.word_starts[index, :length]
        return sequence


class BlockWriter:
    """Writes a block file: `write` any number of times, then `finish`. Memory does not grow with their number."""

    def __init__(
        self, file: BinaryIO, word_file: BinaryIO, index_file: BinaryIO, max_seq_length: int, vocab_size: int
    ) -> None:
        self._file, self._word_file, self._index_file, self._digest = file, word_file, index_file, hashlib.sha256()
        self.max_seq_length, self.vocab_size = max_seq_length, vocab_size
        self.num_sequences = self.num_tokens = self.num_full = self.num_two_segments = 0
        self._write(_MAGIC)

    def write(self, sequences: Sequence[PackedSequence]) -> None:
        if not sequences:
            return
        tokens = np.concatenate([sequence.tokens for sequence in sequences])
        self._write(tokens.astype(id_dtype(self.vocab_size)).tobytes())  # which has no room for `WORD_START`
        lengths, second_segments = np.array([(len(tokens), second_segment) for tokens, second_segment in sequences]).T
        word_starts = np.zeros((len(sequences), self.max_seq_length), dtype=bool)
        word_starts[np.arange(self.max_seq_length) < lengths[:, None]] = tokens >= WORD_START
        self._word_file.write(np.packbits(word_starts, axis=1).tobytes())
        index = np.empty(len(sequences), dtype=_INDEX)
        index["end"], index["second_segment"] = self.num_tokens + lengths.cumsum(), second_segments
        self._index_file.write(index.tobytes())
        self.num_sequences += len(sequences)
        self.num_tokens += int(lengths.sum())
        self.num_full += int((lengths == self.max_seq_length).sum())
        self.num_two_segments += int((second_segments < lengths).sum())

    def finish(self, **described: Any) -> None:
        """Writes what follows the ids; `described` are the fields of [`BlockHeader`] that are not known here."""
        self._write(bytes(-self.num_tokens * id_dtype(self.vocab_size).itemsize % 8))
        self._word_file.write(bytes(-self._word_file.tell() % 8))
        for file in (self._word_file, self._index_file):
            file.seek(0)
            while content := file.read(2**16):
                self._write(content)
        known = {name: getattr(self, name) for name in ("max_seq_length", "num_sequences", "num_tokens", "vocab_size")}
        header = BlockHeader(**known, sha256=self._digest.hexdigest(), **described)
        write_header(self._file, header)

    def _write(self, content: bytes) -> None:
        self._file.write(content)
        self._digest.update(content)


def write_header(file: BinaryIO, header: Any) -> None:
    """Ends a file with its header, a dataclass."""
    text = json.dumps(dataclasses.asdict(header), ensure_ascii=False).encode()
    file.write(text + _FOOTER.pack(len(text), hashlib.sha256(text).digest()))


def map_file(path: str, magic: bytes, kind: str) -> tuple[np.ndarray, dict[str, Any]]:
    """The content of a memory-mapped file before its header, as bytes, and the header. Raises ValueError for one that
    was cut off, or is no `kind` of file that begins with `magic`."""
    # A plain array over the mapped file: indexing a `memmap` makes another one, which costs more than reading.
    content = np.asarray(np.memmap(path, np.uint8, "r"))
    end = len(content) - _FOOTER.size
    length, digest = _FOOTER.unpack(content[end:].tobytes())
    text, content = content[end - length : end].tobytes(), content[: end - length]
    if content[: len(magic)].tobytes() != magic or hashlib.sha256(text).digest() != digest:
        raise ValueError(f"it is no whole {kind} of this version")
    return content, json.loads(text)


@contextmanager
def writing_blocks(path: str | os.PathLike[str], max_seq_length: int, vocab_size: int) -> Iterator[BlockWriter]:
    """Yields a [`BlockWriter`]. The file has its name, whole, when the block ends without an error."""
    with writing(path) as partial, open(partial, "wb") as file, ExitStack() as stack:
        word_file, index_file = (
            stack.enter_context(open(partial.parent / name, "w+b")) for name in ("words", "index")
        )
        yield BlockWriter(file, word_file, index_file, max_seq_length, vocab_size)


class BlockFile(Dataset):
    """A block file as a map-style dataset of `{"input_ids", "token_type_ids", "word_starts"}`; `read` gives a whole
    batch, whose items have no `word_starts`, which collators of others would pass on to the model.

    All comes from one mapping of the file, which lives on when another file takes its name. `verify` reads all of it,
    and compares its hash and its ids; the hash of the header is always compared. Raises ValueError for a file that is
    no block file, was cut off, or was altered, or whose content does not have the hash `sha256`.
    """

    def __init__(self, path: str | os.PathLike[str], verify: bool = False, sha256: str | None = None) -> None:
        self.path = os.fspath(path)
        with reading(self.path, "Prepare it again, where all machines can read it."):
            content, values = map_file(self.path, _MAGIC, "block file")
            self.header = header = BlockHeader(**values)
            dtype, index_size = id_dtype(header.vocab_size), header.num_sequences * _INDEX.itemsize
            self._ids = content[len(_MAGIC) : len(_MAGIC) + header.num_tokens * dtype.itemsize].view(dtype)
            self._index = content[len(content) - index_size :].view(_INDEX)
            size = len(_MAGIC) + self._ids.nbytes
            size += -size % 8
            row_size = -(-header.max_seq_length // 8)
            self._words = content[size : size + header.num_sequences * row_size].reshape(-1, row_size)
            size += self._words.nbytes
            named = all({"name", "sha256", "weight"} <= source.keys() for source in header.sources)
            if not (size + -size % 8 + index_size == len(content) and named and index_size and header.num_tokens > 0):
                raise ValueError("its header does not fit its content")
        found = hashlib.sha256(content.data).hexdigest() if verify else header.sha256
        if found != header.sha256 or found != (sha256 or found):
            raise ValueError(f"{self.path} was altered after it was written. Prepare it again.")
        if verify and self._ids.max() >= header.vocab_size:
            raise ValueError(f"{self.path} holds ids beyond its vocabulary of {header.vocab_size}. Prepare it again.")

    # A data loader's worker maps the file itself instead of receiving a copy of its content.
    def __reduce__(self) -> tuple[Any, ...]:
        return BlockFile, (self.path, False, self.header.sha256)

    def __len__(self) -> int:
        return self.header.num_sequences

    def __getitem__(self, index: int) -> dict[str, Any]:
        batch = self.read(np.array([range(len(self))[index]]))
        words = {} if batch.word_starts is None else {"word_starts": batch.word_starts[0, : batch.lengths[0]]}
        return batch[0] | words

    def __getitems__(self, indices: Sequence[int]) -> SequenceBatch:
        return self.read(np.asarray(indices, dtype=np.int64))

    def read(self, indices: np.ndarray) -> SequenceBatch:
        """The sequences at an int64 array (B,) of indices."""
        lengths, second_segments = self.lengths(indices), self._index["second_segment"][indices].astype(np.int64)
        header, length = self.header, self.header.max_seq_length
        if header.num_tokens == header.num_sequences * length:  # all are full
            ids = self._ids.reshape(-1, length).take(indices, axis=0)
        else:
            starts = self._index["end"][indices].astype(np.int64) - lengths
            ids = self._ids.take(starts[:, None] + np.minimum(np.arange(length), lengths[:, None] - 1))
        batch = SequenceBatch(ids, lengths, second_segments)
        if header.word_segmenter is not None:
            words = np.unpackbits(self._words.take(indices, axis=0), axis=1, count=length)
            batch.word_starts = words.view(bool)
        return batch

    def lengths(self, indices: np.ndarray) -> np.ndarray:
        """Tokens of the sequences at an int64 array (B,) of indices, int64 (B,)."""
        ends = self._index["end"]
        return (ends[indices] - np.where(indices > 0, ends[indices - 1], 0)).astype(np.int64)


def id_dtype(vocab_size: int) -> np.dtype:
    """Of the ids in a file."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


class SequenceStream(Dataset):
    """`num_positions` sequences in the order of training. Read it in order, from wherever a run was interrupted.

    `sequences` is a [`BlockFile`], or any map-style dataset of dicts with `input_ids`. Every epoch is a permutation
    that depends on the seed and the epoch alone: workers, processes, accumulation and resuming do not change it.
    `num_positions` is one epoch by default; `shuffle=False` keeps the order of the dataset. `corrupted` is a
    [`CorruptedFile`] of this stream, whose samples go with the sequences of a block file.
    """

    corrupted: Any = None

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
        self.seed, self.shuffle, self.first_position = seed, shuffle, first_position
        self._order: tuple[int, np.ndarray] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_order": None}  # workers compute the permutation that they need

    def __len__(self) -> int:
        return self.num_positions

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([range(len(self))[index]])[0]

    def __getitems__(self, indices: Sequence[int]) -> SequenceBatch | list[dict[str, Any]]:
        positions = np.asarray(indices, dtype=np.int64)
        found, stream_positions = self.sequence_indices(positions), positions + self.first_position
        if isinstance(self.sequences, BlockFile):
            batch = dataclasses.replace(self.sequences.read(found), stream_positions=stream_positions)
            batch.samples = None if self.corrupted is None else self.corrupted.read(positions)
            return batch
        pairs = zip(found.tolist(), stream_positions.tolist(), strict=True)
        return [{**self.sequences[index], "stream_position": position} for index, position in pairs]

    def sequence_indices(self, positions: np.ndarray) -> np.ndarray:
        """Index of the sequence at each position, int64 (B,)."""
        epochs, places = np.divmod(positions, len(self.sequences))
        if not self.shuffle:
            return places
        indices = np.empty_like(places)
        for epoch in set(epochs.tolist()):
            if self._order is None or self._order[0] != epoch:
                order = randomness.permutation(self.seed, epoch, len(self.sequences))
                # Every worker keeps it for an epoch, so in half of the memory.
                self._order = (epoch, order.astype(np.uint32) if len(order) <= 2**32 else order)
            here = epochs == epoch
            indices[here] = self._order[1][places[here]]
        return indices

    def num_tokens(self, num_positions: int | None = None) -> int:
        """Tokens in the first `num_positions` sequences (by default all) of a block file, padding left out."""
        epochs, rest = divmod(len(self) if num_positions is None else num_positions, len(self.sequences))
        last = self.sequence_indices(np.arange(rest) + epochs * len(self.sequences))
        return epochs * self.sequences.header.num_tokens + int(self.sequences.lengths(last).sum())
