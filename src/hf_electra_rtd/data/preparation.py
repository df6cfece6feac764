"""Text to block files: the training sequences and, split off by document, the held-out sequences.

All text is read and validated before any is tokenized. A document's number, its place in the corpus, decides whether
it is held out and in which passes it is read.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.data.blocks import BLOCK_SUFFIX, BlockFile, BlockWriter
from hf_electra_rtd.data.duplicates import DUPLICATES, Duplicates
from hf_electra_rtd.data.packing import FullPacker, OriginalPacker, get_packer
from hf_electra_rtd.data.text import Source, Text, open_texts, parse_source, scan
from hf_electra_rtd.data.tokenization import check_tokenizer, get_backend, tokenizer_hash
from hf_electra_rtd.files import naming
from hf_electra_rtd.ops import randomness
from hf_electra_rtd.records import count_cores


logger = logging.getLogger(__name__)

_CHUNK = 1 << 18  # characters that are tokenized at once
_DRAWN = 1 << 16  # documents whose random numbers are drawn at once
_TRAIN, _HELD_OUT = 0, 1
_REMEDIES = (
    "Give more text, or choose a shorter --max_seq_length.",
    "Hold more out (--held_out_share), or name held-out text (--held_out_files).",
)


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

    The same text and settings find what was prepared before. If that has the hash `sha256`, and the texts have the
    names and weights of those that it was made of, they are not read. An interrupted preparation leaves nothing that
    loads. Memory does not grow with the corpus (but for one bit a line if duplicates are dropped).

    A source of weight 2 is read twice: its second pass follows the first passes of all sources, so that no sequence
    holds a document twice (unless a whole pass is shorter than a sequence). Of a fraction, that share of the documents
    is read, drawn by seed and document. Held-out documents are chosen first, and read once.

    `sources` are paths (files, directories, globs) or `hf_electra_rtd.data.text.Source` objects. At least one document
    is held out if `held_out_share` is above 0. The result does not depend on `num_proc`, the threads that tokenize (by
    default one a core). `drop_duplicates` is `no`, `exact` (of equal lines only the first is read) or `near` (of lines
    that differ only in case, accents, digits, punctuation and white space).

    Raises:
        ValueError: for text that cannot be read, too few documents to split, or too little text for one sequence.
        OSError: if the files cannot be written.
    """
    check_preparation(held_out_share, drop_duplicates, num_proc)
    check_tokenizer(tokenizer)
    parsed = [source if isinstance(source, Source) else parse_source(os.fspath(source)) for source in sources]
    if not parsed or any(source.is_prepared for source in parsed):
        raise ValueError("prepare_blocks takes text or datasets, at least one, and no block files.")
    names = [name, "held_out"] if held_out_share else [name]
    paths = [Path(directory) / f"{name}{BLOCK_SUFFIX}" for name in names]
    packers = [get_packer(packing, tokenizer, max_seq_length, seed) for _ in paths]
    recipe = {"held_out_share": held_out_share, "seed": seed, "drop_duplicates": drop_duplicates}
    described: dict[str, Any] = {"tokenizer_hash": tokenizer_hash(tokenizer), "packing": packing, "recipe": recipe}
    wanted = described | {"max_seq_length": max_seq_length}
    if sha256 is not None and _is_reusable(paths[0], wanted | {"sha256": sha256}):
        wanted["sources"] = sources_before = BlockFile(paths[0]).header.sources
        before = {(source["name"], source["weight"]) for source in sources_before}
        now = {(name, source.weight) for source in parsed for name in source.names}
        if now == before and all(_is_reusable(path, wanted) for path in paths[1:]):
            logger.info(
                f"Using {', '.join(map(str, paths))} of the run that is resumed, without reading its text again."
            )
            return BlockFile(paths[0]), BlockFile(paths[1]) if held_out_share else None
    with open_texts(parsed, Path(directory)) as (texts, scratch):
        scans = scan(texts, disable_progress)
        described["sources"] = [text.described | facts for text, facts in zip(texts, scans, strict=True)]
        if all(_is_reusable(path, described | {"max_seq_length": max_seq_length}) for path in paths):
            logger.info(f"Using {', '.join(map(str, paths))}, prepared before from the same text.")
        else:
            reader = _Reader(texts, scans, held_out_share, seed, disable_progress)
            if drop_duplicates != "no":
                with naming(directory):
                    reader.duplicates = Duplicates(
                        reader.lines(), reader.num_lines, drop_duplicates == "near", scratch
                    )
            # Files get their names when this block ends, the training sequences last.
            with ExitStack() as stack:
                parts = [
                    _Part(stack.enter_context(BlockWriter(path, max_seq_length, len(tokenizer))), packer, tokenizer)
                    for path, packer in zip(paths, packers, strict=True)
                ]
                for chunk, ids, lengths in _encode(tokenizer, reader.chunks(), num_proc or count_cores()):
                    for number, part in enumerate(parts):
                        part.add(chunk, ids, lengths, number)
                for part, num_duplicates, remedy in zip(parts, reader.num_duplicates, _REMEDIES, strict=False):
                    part.finish(num_duplicates, described, remedy)
    files = [BlockFile(path) for path in paths]
    return files[0], files[1] if held_out_share else None


def check_preparation(held_out_share: float, drop_duplicates: str, num_proc: int | None) -> None:
    """Raises ValueError for options out of range."""
    if not 0.0 <= held_out_share < 1.0:
        raise ValueError(f"held_out_share is {held_out_share}: it must be at least 0 and below 1.")
    if drop_duplicates not in DUPLICATES:
        raise ValueError(f"There is no drop_duplicates={drop_duplicates!r}. Known: {', '.join(DUPLICATES)}.")
    if num_proc is not None and num_proc < 1:
        raise ValueError(f"num_proc is {num_proc}: it must be at least 1.")


def _is_reusable(path: Path, described: dict[str, Any]) -> bool:
    try:
        return path.exists() and described.items() <= vars(BlockFile(path, verify=True).header).items()
    except ValueError as error:
        logger.warning(f"{error} Doing so now.")
        return False


# ---- Which documents are read ----


@lru_cache(maxsize=8)
def _drawn(seed: int, purpose: int, chunk: int) -> list[int]:
    return randomness.counter_bits(seed, purpose, chunk * _DRAWN, _DRAWN, 1)[:, 0].tolist()


def draw(seed: int, purpose: int, document: int) -> int:
    """A 64-bit random number of a document, for a purpose of `hf_electra_rtd.ops.randomness`."""
    return _drawn(seed, purpose, document // _DRAWN)[document % _DRAWN]


def held_out_threshold(num_documents: int, share: float, seed: int) -> int:
    """A document is held out if its number (`draw`, `SPLITTING`) is below this: max(1, round(share * num_documents)).

    Raises:
        ValueError: if nothing would be left to train on.
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
    """Lines that are tokenized together."""

    lines: list[str]
    parts: bytearray  # of each line
    document_ends: bytearray  # whether its document ends behind it


class _Reader:
    """Reads a corpus, pass by pass, without the documents and lines that are not wanted."""

    def __init__(
        self, texts: list[Text], scans: list[dict[str, Any]], held_out_share: float, seed: int, disable_progress: bool
    ) -> None:
        self._texts, self._seed, self._disable_progress = texts, seed, disable_progress
        self._counts = [(facts["num_documents"], facts["num_lines"]) for facts in scans]
        self._num_documents, self.num_lines = map(sum, zip(*self._counts, strict=True))
        self._threshold = held_out_threshold(self._num_documents, held_out_share, seed)
        self.duplicates: Duplicates | None = None
        self.num_duplicates = [0, 0]  # in each part, counted in the first pass

    def lines(self) -> Iterator[tuple[int, str]]:
        """(number, line) of all lines that the first pass reads."""
        return ((index, line) for _, index, line in self._read(0, "Looking for duplicate lines") if line)

    def chunks(self) -> Iterator[_Chunk]:
        chunk, size = _Chunk([], bytearray(), bytearray()), 0
        for number in range(math.ceil(max(text.source.weight for text in self._texts))):
            kept = False  # a line of the document
            for part, index, line in self._read(number, "Tokenizing and packing"):
                if not line:
                    if kept:
                        chunk.document_ends[-1] = 1
                    kept = False
                elif self.duplicates is not None and self.duplicates[index]:
                    self.num_duplicates[part] += number == 0
                else:
                    # Only now: the end of a document belongs to the chunk of its last line.
                    if size >= _CHUNK:
                        yield chunk
                        chunk, size = _Chunk([], bytearray(), bytearray()), 0
                    chunk.lines.append(line)
                    chunk.parts.append(part)
                    chunk.document_ends.append(0)
                    size, kept = size + len(line) + 1, True
        if chunk.lines:
            yield chunk

    def _read(self, number: int, description: str) -> Iterator[tuple[int, int, str]]:
        """The lines that one pass reads, as (part, index among all lines, line); empty where a document ends."""
        document = index = 0
        with tqdm(
            total=self._num_documents, desc=description, unit=" documents", disable=self._disable_progress
        ) as bar:
            for text, (num_documents, num_lines) in zip(self._texts, self._counts, strict=True):
                share = min(1.0, text.source.weight - number)
                if share <= 0:
                    document, index = document + num_documents, index + num_lines
                    continue
                before = ""
                for line in text.lines():
                    if not before:
                        part = self._part(document, share, number)
                    if part is not None:
                        yield part, index, line
                    before, index = line, index + bool(line)
                    if not line:
                        document += 1
                        bar.update()

    def _part(self, document: int, share: float, number: int) -> int | None:
        """The part of a document, or None if this pass leaves it out."""
        if draw(self._seed, randomness.SPLITTING, document) < self._threshold:
            return _HELD_OUT if number == 0 else None
        whole = share == 1.0 or draw(self._seed, randomness.WEIGHTING, document) < round(share * 2**64)
        return _TRAIN if whole else None


# ---- Lines to ids to sequences ----


def _encode(
    tokenizer: PreTrainedTokenizerBase, chunks: Iterator[_Chunk], num_threads: int
) -> Iterator[tuple[_Chunk, np.ndarray, np.ndarray]]:
    """Chunks in order, with the ids of their lines (uint32) and how many each line has (int64). The tokenizer works in
    threads while the caller reads and packs."""
    # Its own pool of threads has one size for the life of the process, and does not survive a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    backend = get_backend(tokenizer)

    def encode(chunk: _Chunk) -> tuple[_Chunk, np.ndarray, np.ndarray]:
        encoded = backend.encode_batch_fast(chunk.lines, add_special_tokens=False)
        lengths = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
        # `ids` makes a list of Python integers: one line's at a time.
        ids = chain.from_iterable(line.ids for line in encoded)
        return chunk, np.fromiter(ids, dtype=np.uint32, count=int(lengths.sum())), lengths

    waiting: deque[Future[tuple[_Chunk, np.ndarray, np.ndarray]]] = deque()
    with ThreadPoolExecutor(num_threads) as threads:
        for chunk in chunks:
            waiting.append(threads.submit(encode, chunk))
            if len(waiting) > 2 * num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _Part:
    """One output of a preparation: a packer, its file, and what was counted."""

    def __init__(
        self, writer: BlockWriter, packer: FullPacker | OriginalPacker, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self._writer, self._packer, self._unk_id = writer, packer, tokenizer.unk_token_id
        self._counts = {"documents": 0, "corpus_tokens": 0, "unknown_tokens": 0}

    def add(self, chunk: _Chunk, ids: np.ndarray, lengths: np.ndarray, number: int) -> None:
        """Takes the lines of a chunk that belong to this part."""
        here = np.frombuffer(chunk.parts, dtype=np.uint8) == number
        ids, lengths = ids[np.repeat(here, lengths)], lengths[here]
        document_ends = np.frombuffer(chunk.document_ends, dtype=np.uint8)[here]
        for name, count in zip(
            self._counts, (document_ends.sum(), len(ids), (ids == self._unk_id).sum()), strict=True
        ):
            self._counts[name] += int(count)
        self._writer.write(self._packer.add_lines(ids, lengths, document_ends))

    def finish(self, num_duplicates: int, described: dict[str, Any], remedy: str) -> None:
        writer = self._writer
        writer.write(self._packer.finish())
        if not writer.num_sequences:
            raise ValueError(
                f"{Path(writer.path).stem}: {self._counts['corpus_tokens']} tokens are too few for one sequence of "
                f"{writer.max_seq_length}. {remedy}"
            )
        statistics = {
            **self._counts,
            "dropped_tokens": self._packer.num_dropped,
            "duplicate_lines": num_duplicates,
            "full_sequences": writer.num_full,
            "two_segment_sequences": writer.num_two_segments,
        }
        writer.finish(statistics=statistics, **described)


def describe(file: BlockFile) -> str:
    """The statistics of a block file in one line."""
    header, counts = file.header, file.header.statistics
    filled = header.num_tokens / (header.num_sequences * header.max_seq_length)
    told = ", ".join(f"{name.replace('_', ' ')}: {count:,}" for name, count in counts.items())
    return f"{header.num_sequences:,} sequences of {header.max_seq_length}, {filled:.1%} filled ({told})"
