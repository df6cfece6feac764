"""Samples of a frozen generator, drawn once and read in training: offline corruption.

A file holds, for each place of a stream, the masked positions and the ids that were sampled for them. Layout, all
little-endian: 16 bytes of magic; for each sequence K positions (uint16; `_UNUSED` in slots without a token) and K ids
(uint16, or uint32 for large vocabularies); header and footer as in a block file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub.dataclasses import strict

from hf_electra_rtd.data.blocks import SequenceStream, id_dtype, map_file, write_header
from hf_electra_rtd.files import reading, writing


NAMES = {"train": "train.corrupted", "held_out": "held_out.corrupted"}  # files of a directory
_MAGIC = b"HF-RTD-FILLS\x00\x00\x00\x01"
_KIND = "file of samples"
_UNUSED = 2**16 - 1
_REMEDY = "Write it again: hf-electra-rtd corrupt, with the flags of the run and --overwrite_output_dir."


@strict
@dataclass
class CorruptedHeader:
    """What such a file says about itself."""

    num_sequences: int
    num_slots: int  # of a sequence
    vocab_size: int
    stream: dict[str, Any]  # by `describe_stream`
    generator: dict[str, Any]  # its source, the hash of its weights, and how it was sampled from
    num_positions: int | None  # length of the run along which the temperature fell; None if it did not
    sha256: str  # of everything before this header


def describe_stream(stream: SequenceStream, collator: Any) -> dict[str, Any]:
    """What decides the order of the sequences, their masks, and what a token sees."""
    names = ("masking", "mask_probability", "keep_probability", "document_attention")
    masking = {name: getattr(collator, name) for name in names}
    order = {name: getattr(stream, name) for name in ("seed", "shuffle", "first_position", "shuffle_window")}
    return {"sequences": stream.sequences.header.sha256, **order, **masking}


def write_samples(
    path: Path, batches: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]], num_slots: int, **header: Any
) -> None:
    """Writes a file, whole or not at all. A batch has the positions, which of them are used, and the samples: (B, K)
    each. `header` are the other fields of [`CorruptedHeader`]."""
    row, digest, num_sequences = _row(num_slots, header["vocab_size"]), hashlib.sha256(_MAGIC), 0
    with writing(path) as partial, open(partial, "wb") as file:
        file.write(_MAGIC)
        for positions_BK, used_BK, samples_BK in batches:
            rows = np.empty(len(positions_BK), dtype=row)
            rows["positions"], rows["samples"] = np.where(used_BK, positions_BK, _UNUSED), samples_BK
            content = rows.tobytes()
            file.write(content)
            digest.update(content)
            num_sequences += len(rows)
        write_header(file, CorruptedHeader(num_sequences, num_slots, **header, sha256=digest.hexdigest()))


class CorruptedFile:
    """A memory-mapped file of samples. `verify` reads all of it, and compares its hash. Raises ValueError for a file
    that is none, was cut off, or was altered."""

    def __init__(self, path: str | os.PathLike[str], verify: bool = False) -> None:
        self.path = os.fspath(path)
        with reading(self.path, _REMEDY):
            content, values = map_file(self.path, _MAGIC, _KIND)
            self.header = CorruptedHeader(**values)
            row = _row(self.header.num_slots, self.header.vocab_size)
            if len(content) != len(_MAGIC) + self.header.num_sequences * row.itemsize:
                raise ValueError("its header does not fit its content")
            if verify and hashlib.sha256(content.data).hexdigest() != self.header.sha256:
                raise ValueError("it was altered after it was written")
        self._rows = content[len(_MAGIC) :].view(row)

    # A data loader's worker maps the file itself instead of receiving a copy of its content.
    def __reduce__(self) -> tuple[Any, ...]:
        return CorruptedFile, (self.path,)

    def read(self, places: np.ndarray) -> np.ndarray:
        """The rows, with `positions` and `samples`, at int64 places (B,) of the stream."""
        return self._rows[places]

    def check(self, stream: SequenceStream, collator: Any) -> None:
        """Raises ValueError for a stream or masks that are not those of the file."""
        known, now = self.header.stream, describe_stream(stream, collator)
        changed = [name for name in now if known.get(name) != now[name]]
        wrong = [f"{name} was {known.get(name)}, now {now[name]}" for name in changed if name != "sequences"]
        if "sequences" in changed:  # which are hashes
            wrong.append("it has other text, tokenizer, packing or split")
        if len(stream) > self.header.num_sequences:
            wrong.append(f"it has {self.header.num_sequences} sequences, and this one {len(stream)}")
        elif self.header.num_positions not in (None, len(stream)):
            wrong.append(f"its temperature falls over {self.header.num_positions} sequences, not {len(stream)}")
        if wrong:
            raise ValueError(f"{self.path} is of another run: {'; '.join(wrong)}. {_REMEDY}")


def attach(directory: str, streams: dict[str, SequenceStream | None], collator: Any, verify: bool) -> None:
    """Gives each stream, `train` and `held_out`, its file in a directory. Raises ValueError for one that is missing,
    damaged (`verify` reads all of it), or of another run, and for files of different generators."""
    first: Any = None
    for name, stream in streams.items():
        if stream is not None:
            file = CorruptedFile(Path(directory, NAMES[name]), verify)
            file.check(stream, collator)
            first = first or file
            if file.header.generator != first.header.generator:
                what = f"{first.path} and {file.path} have the samples of different generators"
                raise ValueError(f"{what}, or were sampled in different ways. {_REMEDY}")
            stream.corrupted = file


def _row(num_slots: int, vocab_size: int) -> np.dtype:
    return np.dtype([("positions", "<u2", (num_slots,)), ("samples", id_dtype(vocab_size), (num_slots,))])


def fill(rows: np.ndarray, ids_BL: np.ndarray, positions_BK: np.ndarray, used_BK: np.ndarray) -> np.ndarray:
    """`ids_BL` with the samples of a file in its masked slots. Raises ValueError where others are masked."""
    if not np.array_equal(rows["positions"], np.where(used_BK, positions_BK, _UNUSED)):
        raise ValueError(f"The samples belong to other masks. {_REMEDY}")
    corrupted_BL = ids_BL.copy()
    places_BK = positions_BK + ids_BL.shape[1] * np.arange(len(ids_BL))[:, None]
    corrupted_BL.reshape(-1)[places_BK[used_BK]] = rows["samples"][used_BK]
    return corrupted_BL
