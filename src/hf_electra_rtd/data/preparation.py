"""Text to block files: the training sequences and, split off by document, the held-out sequences.

All text is read and validated before any is tokenized. A document's number, its place in the corpus, decides whether
it is held out and in which passes it is read.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.cli import check_ranges
from hf_electra_rtd.data.blocks import BLOCK_SUFFIX, BlockFile, BlockWriter
from hf_electra_rtd.data.packing import get_packer
from hf_electra_rtd.data.text import Source, Text, open_texts, parse_sources, scan
from hf_electra_rtd.data.tokenization import check_tokenizer, get_backend, tokenizer_hash
from hf_electra_rtd.files import naming
from hf_electra_rtd.ops import randomness
from hf_electra_rtd.records import count_cores


logger = logging.getLogger(__name__)

_CHUNK = 1 << 18  # characters that are tokenized at once
_DRAWN = 1 << 16  # documents whose random numbers are drawn at once
_SORTED = 1 << 23  # hashes of lines that are sorted at once
_TRAIN, _HELD_OUT = 0, 1  # numbers of the parts


def prepare_blocks(
    sources: Sequence[str | os.PathLike[str] | Source],
    tokenizer: PreTrainedTokenizerBase,
    directory: str | os.PathLike[str],
    max_seq_length: int,
    *,
    packing: str = "full",
    held_out_share: float = 0.0,
    seed: int = 0,
    name: str = "train",
    num_proc: int | None = None,
    drop_duplicates: str = "no",
    disable_progress: bool = False,
    sha256: str | None = None,
) -> tuple[BlockFile, BlockFile | None]:
    """Tokenizes and packs text into `directory/<name>.blocks`, and a share of its documents into `held_out.blocks`.

    `sources` are paths (files, directories, globs, with options behind them) or [`Source`] objects. One of weight 2 is
    read twice: its second pass follows the first passes of all sources, so that no sequence holds a document twice
    (unless a whole pass is shorter than a sequence). Of a fraction, that share of the documents is read, drawn by seed
    and document. Held-out documents are chosen first, and read once.

    The same text and settings find what was prepared before. If that has the hash `sha256`, and the sources have the
    names and weights of those that it was made of, they are not read. `num_proc`, the threads that tokenize (by
    default one a core), changes no result. Of lines that are equal (with `drop_duplicates` `exact`) or have one normal
    form (`near`: see `normalize_line`) only the first is read.

    Raises ValueError for text that cannot be read, too few documents to split or too little text for one sequence,
    OSError if the files cannot be written.
    """
    recipe = {"held_out_share": held_out_share, "seed": seed, "drop_duplicates": drop_duplicates}
    check_ranges(SimpleNamespace(**recipe, num_proc=num_proc))
    check_tokenizer(tokenizer)
    if drop_duplicates not in ("no", "exact", "near"):
        raise ValueError(f"There is no drop_duplicates={drop_duplicates!r}. Known: no, exact, near.")
    given = [[source] if isinstance(source, Source) else parse_sources(os.fspath(source)) for source in sources]
    wanted = list(chain.from_iterable(given))
    if not wanted or any(source.is_prepared for source in wanted):
        raise ValueError("prepare_blocks takes text or datasets, at least one, and no block files.")
    paths = [Path(directory) / f"{part}{BLOCK_SUFFIX}" for part in (name, "held_out")[: 2 if held_out_share else 1]]
    packers = [get_packer(packing, tokenizer, max_seq_length, seed) for _ in paths]
    described: dict[str, Any] = {"tokenizer_hash": tokenizer_hash(tokenizer), "packing": packing, "recipe": recipe}
    train, held_out = _find(paths, described | {"max_seq_length": max_seq_length})
    if train is not None and train.header.sha256 == sha256:
        before = [(source["name"], source["weight"]) for source in train.header.sources]
        if [(source.name, source.weight) for source in wanted] == before:
            logger.info(f"Using {train.path} of the run that is resumed, without reading its text again.")
            return train, held_out
    with open_texts(wanted, Path(directory)) as (texts, scratch):
        described["sources"] = scans = scan(texts, disable_progress)
        if train is not None and train.header.sources == scans:
            logger.info(f"Using {train.path}, prepared before from the same text.")
            return train, held_out
        num_documents, num_lines = (sum(facts[what] for facts in scans) for what in ("num_documents", "num_lines"))
        threshold = held_out_threshold(num_documents, held_out_share, seed)
        reader = _Reader(texts, scans, seed, threshold, disable_progress)
        if drop_duplicates != "no":
            with naming(directory):
                reader.copies = find_copies(reader.lines(), num_lines, drop_duplicates == "near", scratch)
        # Files get their names when this block ends, the training sequences last.
        with ExitStack() as stack:
            writers = [stack.enter_context(BlockWriter(path, max_seq_length, len(tokenizer))) for path in paths]
            counts = np.zeros((2, 3), dtype=np.int64)
            for part, ids, lengths, document_ends in _encode(tokenizer, reader.chunks(), num_proc or count_cores()):
                counts[part] += document_ends.sum(), len(ids), (ids == tokenizer.unk_token_id).sum()
                writers[part].write(packers[part].add_lines(ids, lengths, document_ends))
            for part, (writer, packer) in enumerate(zip(writers, packers, strict=True)):
                writer.write(packer.finish())
                documents, tokens, unknown = counts[part].tolist()
                if not writer.num_sequences:
                    raise ValueError(
                        f"{paths[part].stem}: {tokens} tokens are too few for one sequence of {max_seq_length}. Give "
                        "more text, choose a shorter --max_seq_length, or hold another share out (--held_out_share, "
                        "--held_out_files)."
                    )
                statistics = {
                    "documents": documents,
                    "corpus_tokens": tokens,
                    "unknown_tokens": unknown,
                    "dropped_tokens": packer.num_dropped,
                    "duplicate_lines": reader.num_copies[part],
                    "full_sequences": writer.num_full,
                    "two_segment_sequences": writer.num_two_segments,
                }
                writer.finish(statistics=statistics, **described)
    return BlockFile(paths[0]), BlockFile(paths[1]) if held_out_share else None


def _find(paths: Sequence[Path], described: dict[str, Any]) -> tuple[BlockFile | None, BlockFile | None]:
    """The block files that one preparation made as described; none if one of them is missing or altered."""
    try:
        files = [BlockFile(path, verify=True) for path in paths if path.exists()]
    except ValueError as error:
        logger.warning(f"{error} Doing so now.")
        return None, None
    same = all(described.items() <= vars(file.header).items() for file in files)
    if not same or len(files) < len(paths) or files[0].header.sources != files[-1].header.sources:
        return None, None
    return files[0], files[1] if files[1:] else None


def draw(seed: int, purpose: int, document: int) -> Iterator[int]:
    """64-bit random numbers of a document and all that follow, for a purpose of `hf_electra_rtd.ops.randomness`."""
    while True:
        yield from randomness.counter_bits(seed, purpose, document, _DRAWN, 1)[:, 0].tolist()
        document += _DRAWN


def held_out_threshold(num_documents: int, share: float, seed: int) -> int:
    """A document is held out if its number (`draw`, `SPLITTING`) is below this: max(1, round(share * num_documents)).

    Raises ValueError if nothing would be left to train on.
    """
    if share == 0.0:
        return 0
    count = max(1, round(share * num_documents))
    if count >= num_documents:
        raise ValueError(
            f"The corpus has {num_documents} document(s), too few to hold {count} of them out. An empty line ends a "
            "document: separate them, name held-out files (--held_out_files), or use --held_out_share 0."
        )
    lowest = np.empty(0, dtype=np.uint64)
    for first in range(0, num_documents, 1 << 20):
        size = min(1 << 20, num_documents - first)
        numbers = randomness.counter_bits(seed, randomness.SPLITTING, first, size, 1)[:, 0]
        lowest = np.sort(np.concatenate([lowest, numbers]))[: count + 1]
    return int(lowest[count])


class _Chunk(NamedTuple):
    """Lines of one part that are tokenized together."""

    part: int
    lines: list[str]
    document_ends: bytearray  # of each line, whether its document ends behind it


@dataclass
class _Reader:
    """Reads a corpus, pass by pass, without the documents and lines that are not wanted."""

    texts: list[Text]
    scans: list[dict[str, Any]]
    seed: int
    threshold: int
    disable_progress: bool
    copies: np.ndarray | None = None  # of `find_copies`
    num_copies: tuple[int, ...] = (0, 0)  # in each part, counted in the first pass

    def lines(self) -> Iterator[tuple[int, str]]:
        """(number, line) of all lines that the first pass reads."""
        return ((index, line) for _, index, line in self._read(0, "Looking for duplicate lines") if line)

    def chunks(self) -> Iterator[_Chunk]:
        chunks, sizes, copies = [_Chunk(part, [], bytearray()) for part in (_TRAIN, _HELD_OUT)], [0, 0], [0, 0]
        for number in range(math.ceil(max(text.source.weight for text in self.texts))):
            kept = False  # a line of the document
            for part, index, line in self._read(number, "Tokenizing and packing"):
                if not line:
                    if kept:
                        chunks[part].document_ends[-1] = 1
                    kept = False
                elif self.copies is not None and self.copies[index >> 3] >> (index & 7) & 1:
                    copies[part] += number == 0
                else:
                    # Only now: the end of a document belongs to the chunk of its last line.
                    if sizes[part] >= _CHUNK:
                        yield chunks[part]
                        chunks[part], sizes[part] = _Chunk(part, [], bytearray()), 0
                    chunks[part].lines.append(line)
                    chunks[part].document_ends.append(0)
                    sizes[part] += len(line) + 1
                    kept = True
        self.num_copies = tuple(copies)
        yield from (chunk for chunk in chunks if chunk.lines)

    def _read(self, number: int, description: str) -> Iterator[tuple[int, int, str]]:
        """The lines that one pass reads, as (part, index among all lines, line); empty where a document ends."""
        document = first = 0  # of a text
        for (source, lines), facts in zip(self.texts, self.scans, strict=True):
            if source.weight > number:
                index, before, part = first, "", None
                parts = self._parts(document, number, source.weight)
                for line in tqdm(lines(), f"{description}: {source.name}", disable=self.disable_progress, leave=False):
                    part = part if before else next(parts)
                    if part is not None:
                        yield part, index, line
                    before, index = line, index + bool(line)
            document, first = document + facts["num_documents"], first + facts["num_lines"]

    def _parts(self, document: int, number: int, weight: float) -> Iterator[int | None]:
        """The parts of a document and all that follow; None where this pass leaves one out."""
        below = round(min(1.0, weight - number) * 2**64)
        numbers = (draw(self.seed, purpose, document) for purpose in (randomness.SPLITTING, randomness.WEIGHTING))
        for splitting, weighting in zip(*numbers, strict=True):
            if splitting < self.threshold:
                yield _HELD_OUT if number == 0 else None
            else:
                yield _TRAIN if weighting < below else None


class _Kept(dict[int, "int | None"]):
    """A table for `str.translate`: leaves out punctuation, symbols and control characters, makes digits 0."""

    def __missing__(self, code: int) -> int | None:
        character = chr(code)
        dropped = unicodedata.category(character)[0] in "PSC" and not character.isspace()
        self[code] = ord("0") if character.isdecimal() else None if dropped else code
        return self[code]


_KEPT = _Kept()


def normalize_line(line: str) -> str:
    """What near duplicates have in common, as in CCNet (https://arxiv.org/abs/1911.00359): case and accents removed,
    digits made 0, punctuation and repeated white space removed."""
    if not line.isascii():
        line = "".join(char for char in unicodedata.normalize("NFD", line) if not unicodedata.combining(char))
    return " ".join(line.casefold().translate(_KEPT).split())


def find_copies(lines: Iterable[tuple[int, str]], num_lines: int, near: bool, directory: Path) -> np.ndarray:
    """Which lines are copies of earlier ones, or `near` copies (see `normalize_line`): a bit a line, eight a uint8.

    `lines` are (number, line), in order; `num_lines` is above all numbers. A hash of each line, 16 bytes with its
    number, goes to a file in `directory`, which is sorted part by part.
    """
    copies, path = np.zeros(-(-num_lines // 8), dtype=np.uint8), directory / "lines"
    with open(path, "wb") as file:
        file.writelines(_hash(line, near) + number.to_bytes(8, "little") for number, line in lines)
    num_parts = 1 + path.stat().st_size // (16 * _SORTED)
    for part in range(num_parts):
        pairs = np.concatenate([some[some[:, 0] % num_parts == part] for some in _read_hashes(path)])
        hashes, numbers = pairs[np.argsort(pairs[:, 0], kind="stable")].T
        places = numbers[1:][hashes[1:] == hashes[:-1]].astype(np.int64)
        np.bitwise_or.at(copies, places >> 3, (1 << (places & 7)).astype(np.uint8))
    return copies


def _hash(line: str, near: bool) -> bytes:
    normal = normalize_line(line) if near else ""
    text = f"\n{normal}" if normal else line  # a line of marks alone is compared as it is
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _read_hashes(path: Path) -> Iterator[np.ndarray]:
    """(hash, number) of some lines, uint64 (N, 2)."""
    yield np.empty((0, 2), dtype="<u8")  # there may be no line
    with open(path, "rb") as file:
        while content := file.read(16 * (_SORTED >> 2)):
            yield np.frombuffer(content, dtype="<u8").reshape(-1, 2)


def _encode(
    tokenizer: PreTrainedTokenizerBase, chunks: Iterator[_Chunk], num_threads: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """The part of each chunk, in order, and what `add_lines` takes. The tokenizer works in threads while the caller
    reads and packs."""
    # Its own pool of threads has one size for the life of the process, and does not survive a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    backend = get_backend(tokenizer)

    def encode(chunk: _Chunk) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        encoded = backend.encode_batch_fast(chunk.lines, add_special_tokens=False)
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        # `ids` makes a list of Python integers: one line's at a time.
        ids = np.fromiter(chain.from_iterable(line.ids for line in encoded), dtype=np.uint32, count=int(lengths.sum()))
        return chunk.part, ids, lengths, np.frombuffer(chunk.document_ends, dtype=bool)

    waiting: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(num_threads) as threads:
        for chunk in chunks:
            waiting.append(threads.submit(encode, chunk))
            if len(waiting) > 2 * num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
