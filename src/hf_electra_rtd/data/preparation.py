"""Turns text into block files: one of training sequences, and one of held-out sequences, split by document.

All text is read and validated before any of it is tokenized. The position of a document in the corpus decides whether
it is held out, and in which passes it is read.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.base.cli import check_number
from hf_electra_rtd.base.files import check_name, naming
from hf_electra_rtd.base.records import count_cores
from hf_electra_rtd.data.blocks import BLOCK_SUFFIX, Blocks, writing_blocks
from hf_electra_rtd.data.packing import WORD_START, Packer, get_packer
from hf_electra_rtd.data.shards import open_blocks, writing_directory
from hf_electra_rtd.data.text import Text, find_sources, open_texts, scan
from hf_electra_rtd.data.tokenization import check_known, check_tokenizer, tokenizer_hash
from hf_electra_rtd.data.words import LineEncoder, Segmenter, get_segmenter
from hf_electra_rtd.ops import randomness


logger = logging.getLogger(__name__)

_CHUNK = 1 << 18  # characters that are tokenized at once
_DRAWN = 1 << 18  # documents whose random numbers are drawn at once
_SORTED = 1 << 23  # hashes of lines that are sorted at once
_RESUMED = "The run that is resumed needs it: give the text and the options that the run began with."
TRAIN = 0  # the parts of the corpus, by number
HELD_OUT = 1


def prepare_blocks(
    sources: Any,
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
    word_segmenter: str | Segmenter | None = None,
    shard_size: int | None = None,
    text_column: str = "text",
) -> tuple[Blocks, Blocks | None]:
    """Tokenizes and packs text into `directory/<name>.blocks`, and a share of its documents into `held_out.blocks`.

    `sources` is one of these, or a list of them: a path (a file, directory or glob, with options after it), a
    `datasets.Dataset`, texts in memory as a dict, `{"text": texts}`, or a [`Source`]. `text_column` is the column or
    key of the text; each row is a document.

    A source of weight 2 is read twice: its second pass follows the first passes of all sources, so that no sequence
    holds a document twice (unless a whole pass is shorter than a sequence). For the fractional part of a weight, the
    last pass reads that share of the documents, drawn by seed and document. Held-out documents are chosen first, and
    are read once.

    Files that were prepared before from the same text with the same settings are reused. If the training file has the
    hash `sha256`, and the sources have the same names and weights, the text is not even read. `num_proc`, the number
    of threads that tokenize (by default one per core), does not change the result. `word_segmenter` finds where words
    begin: the tokenizer (None), `jieba`, or a function from a line to its words. A function has no version, so its
    text is always prepared anew. With `shard_size` (bytes), the output is directories `<name>` and `held_out` of files
    of at most this size, with an index (see `shards`).

    Raises ValueError for text that cannot be read or is unknown to the vocabulary (see `check_known`), for too few
    documents to split, and for too little text for one sequence; TypeError for a source that is not text; OSError if
    the files cannot be written.
    """
    recipe = {"held_out_share": held_out_share, "seed": seed, "drop_duplicates": drop_duplicates}
    recipe |= {} if shard_size is None else {"shard_size": shard_size}
    check_number("held_out_share", held_out_share, "[0, 1)")
    check_number("seed", seed, "[0, 4294967295]")
    check_number("num_proc", num_proc, "[1, inf)")
    check_tokenizer(tokenizer)
    segmenter, segmenter_name = get_segmenter(word_segmenter)
    check_name("drop_duplicates", drop_duplicates, ("no", "exact"))
    wanted = find_sources(sources, text_column)
    if not wanted or any(source.is_prepared for source in wanted):
        raise ValueError("prepare_blocks needs at least one text or dataset, and takes no block files.")
    paths = [part_path(directory, part, shard_size) for part in (name, "held_out")[: 2 if held_out_share else 1]]
    packers = [get_packer(packing, tokenizer, max_seq_length, seed) for _ in paths]
    described: dict[str, Any] = {"tokenizer_hash": tokenizer_hash(tokenizer), "packing": packing, "recipe": recipe}
    described["word_segmenter"] = segmenter_name
    asked = described | {"max_seq_length": max_seq_length}
    resumed = None if sha256 is None else _open_resumed(paths[0], sha256, asked)
    found = None if callable(word_segmenter) else _find(paths, asked)
    if found and resumed:
        before = [(source["name"], source["weight"]) for source in found[0].header.sources]
        if [(source.name, source.weight) for source in wanted] == before:
            logger.info(f"Using {found[0].path} of the run that is resumed, without reading its text again.")
            return found
    with open_texts(wanted, Path(directory), disable_progress) as texts:
        described["sources"] = scans = scan(texts)
        if found and found[0].header.sources == scans:
            logger.info(f"Using {found[0].path}, prepared before from the same text.")
            return found
        if resumed:
            now = [(text["sha256"], text["weight"]) for text in scans]
            if now != [(text["sha256"], text["weight"]) for text in resumed.header.sources]:
                raise ValueError(f"{resumed.path} would be replaced: a text or a weight has changed. {_RESUMED}")
            if found:
                return found  # only names of texts have changed
        reader = _Reader(texts, scans, held_out_share, seed)
        if drop_duplicates == "exact":
            reader.drop_copies(Path(directory))
        # The files get their final names when this block ends, the training sequences last.
        with ExitStack() as stack:
            writing: Any = writing_blocks
            if shard_size is not None:
                writing = partial(writing_directory, shard_size=shard_size)
            writers = [stack.enter_context(writing(path, max_seq_length, len(tokenizer))) for path in paths]
            encoder = LineEncoder(tokenizer, segmenter)
            num_threads = num_proc or count_cores()
            counted = pack(reader.lines(), encoder, tokenizer.unk_token_id, packers, writers, num_threads)
            for path, writer, statistics, copies in zip(paths, writers, counted, reader.num_copies, strict=False):
                check_known(path.stem, statistics["unknown_tokens"], statistics["corpus_tokens"])
                if not writer.num_sequences:
                    raise too_few(path.stem, statistics["corpus_tokens"], max_seq_length)
                writer.finish(statistics=statistics | {"duplicate_lines": copies}, **described)
    return open_blocks(paths[0]), open_blocks(paths[1]) if held_out_share else None


def part_path(directory: str | os.PathLike[str], part: str, shard_size: int | None) -> Path:
    """Returns the path of a prepared part (`train`, `held_out`): a file, or a directory of shards."""
    return Path(directory) / (f"{part}{BLOCK_SUFFIX}" if shard_size is None else part)


def too_few(name: str, num_tokens: int, max_seq_length: int) -> ValueError:
    """Returns the error for a text that is too short for one sequence."""
    return ValueError(
        f"{name}: {num_tokens} tokens are too few for one sequence of {max_seq_length}. Give more text, a shorter "
        "max_seq_length, or another held_out_share."
    )


def _find(paths: Sequence[Path], described: dict[str, Any]) -> tuple[Blocks, Blocks | None] | None:
    """Returns the block files that one preparation made with these settings, or None if one is missing or altered."""
    try:
        files = [open_blocks(path, verify=True) for path in paths if path.exists()]
    except ValueError as error:
        logger.warning(f"{error} Preparing it again.")
        return None
    same = all(described.items() <= vars(file.header).items() for file in files)
    if not same or len(files) < len(paths) or files[0].header.sources != files[-1].header.sources:
        return None
    return files[0], files[1] if files[1:] else None


def _open_resumed(path: Path, sha256: str, described: dict[str, Any]) -> Blocks | None:
    """Returns the training sequences of a run that is resumed, which have the hash `sha256`; None if they are not
    there. Raises ValueError for settings that would replace them."""
    try:
        blocks = open_blocks(path)
    except ValueError:
        return None
    if blocks.header.sha256 != sha256:
        return None
    before = vars(blocks.header) | blocks.header.recipe
    now = described | described["recipe"]
    names = [name for name in now if name != "recipe" and now[name] != before.get(name)]
    if names:
        changes = "; ".join(f"{name} was {before.get(name)}, now {now[name]}" for name in names)
        raise ValueError(f"{path} would be replaced: {changes}. {_RESUMED}")
    return blocks


def held_out_threshold(num_documents: int, share: float, seed: int) -> int:
    """Returns the threshold of the split: a document is held out if its random number (`_draw` with `SPLITTING`) is
    below it. It selects max(1, round(share * num_documents)) documents, or none if `share` is 0. Raises ValueError if
    nothing would be left to train on."""
    if not share:
        return 0
    count = max(1, round(share * num_documents))
    if count >= num_documents:
        raise ValueError(f"held_out_share={share}: {num_documents} document(s) are too few. An empty line ends one.")
    lowest = np.empty(0, dtype=np.uint64)
    for numbers in _draw(seed, randomness.SPLITTING, 0, num_documents):
        lowest = np.sort(np.concatenate([lowest, numbers]))[: count + 1]
    return int(lowest[count])


def _draw(seed: int, purpose: int, first: int, end: int) -> Iterator[np.ndarray]:
    """Yields a random number for each document from `first` to before `end`, in arrays uint64 (N,)."""
    for start in range(first, end, _DRAWN):
        yield randomness.counter_bits(seed, purpose, start, min(_DRAWN, end - start), 1)[:, 0]


class _Reader:
    """Reads a corpus pass by pass, without the documents that a pass leaves out and the duplicate lines to drop."""

    def __init__(self, texts: Sequence[Text], scans: Sequence[dict[str, Any]], share: float, seed: int) -> None:
        self.texts = texts
        self.scans = scans
        self.seed = seed
        self.threshold = held_out_threshold(sum(facts["num_documents"] for facts in scans), share, seed)
        self.copies: np.ndarray | None = None  # one bit per line, eight in a uint8: whether it is a duplicate
        self.num_copies = [0, 0]  # number of duplicate lines in each part

    def drop_copies(self, directory: Path) -> None:
        """Finds duplicate lines: from now on, `lines` leaves out every repetition of a line that the first pass reads.
        The hashes and numbers of all lines go to a temporary file in `directory`, which is sorted part by part."""
        num_lines = sum(facts["num_lines"] for facts in self.scans)
        self.copies = np.zeros(-(-num_lines // 8), dtype=np.uint8)
        with naming(directory), tempfile.TemporaryFile(dir=directory) as file:
            for _, index, line in self._read(0, "Looking for duplicate lines"):
                if line:
                    digest = hashlib.blake2b(line.encode(), digest_size=8).digest()
                    file.write(digest + index.to_bytes(8, "little"))
            num_parts = 1 + file.tell() // (16 * _SORTED)
            for part in range(num_parts):
                file.seek(0)
                found = [np.empty((0, 2), dtype="<u8")]  # the file may have no line
                while content := file.read(16 * (_SORTED >> 2)):
                    pairs = np.frombuffer(content, dtype="<u8").reshape(-1, 2)
                    found.append(pairs[pairs[:, 0] % num_parts == part])
                pairs = np.concatenate(found)
                hashes, numbers = pairs[np.argsort(pairs[:, 0], kind="stable")].T
                copies = numbers[1:][hashes[1:] == hashes[:-1]].astype(np.int64)
                np.bitwise_or.at(self.copies, copies >> 3, (1 << (copies & 7)).astype(np.uint8))

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yields lines, each with its part; an empty line where a document ends."""
        for number in range(math.ceil(max(text.source.weight for text in self.texts))):
            for part, index, line in self._read(number, "Tokenizing and packing"):
                if line and self.copies is not None and self.copies[index >> 3] >> (index & 7) & 1:
                    self.num_copies[part] += number == 0
                else:
                    yield part, line

    def _read(self, number: int, what: str) -> Iterator[tuple[int, int, str]]:
        """Yields the lines that a pass reads, as (part, index among all lines, line); an empty line where a document
        ends."""
        document = index = 0
        for text, facts in zip(self.texts, self.scans, strict=True):
            ends = document + facts["num_documents"], index + facts["num_lines"]
            if text.source.weight > number:
                parts = self._parts(document, ends[0], number, text.source.weight)
                part = next(parts)
                for line in text.read(what):
                    if part >= 0 and index + bool(line) <= ends[1]:  # more lines: the file grew, and `read` refuses it
                        yield part, index, line
                    index += bool(line)
                    part = part if line else next(parts, -1)
            document, index = ends

    def _parts(self, first: int, end: int, number: int, weight: float) -> Iterator[int]:
        """Yields the part of each document, or -1 if this pass leaves the document out."""
        drawn = (_draw(self.seed, purpose, first, end) for purpose in (randomness.SPLITTING, randomness.WEIGHTING))
        for splitting, weighting in zip(*drawn, strict=True):
            train = np.where(weighting < round(min(1.0, weight - number) * 2**64), TRAIN, -1)
            yield from np.where(splitting < self.threshold, -1 if number else HELD_OUT, train).tolist()


@dataclass
class _Chunk:
    """Lines of one part that are tokenized together."""

    part: int
    lines: list[str] = field(default_factory=list)
    document_ends: bytearray = field(default_factory=bytearray)  # for each line, whether its document ends after it
    size: int = 0


def _chunks(lines: Iterable[tuple[int, str]]) -> Iterator[_Chunk]:
    chunks = [_Chunk(TRAIN), _Chunk(HELD_OUT)]
    for part, line in lines:
        if line:
            # A full chunk is yielded only now, because the end of a document belongs to the chunk of its last line.
            if chunks[part].size >= _CHUNK:
                yield chunks[part]
                chunks[part] = _Chunk(part)
            chunks[part].lines.append(line)
            chunks[part].document_ends.append(0)
            chunks[part].size += len(line) + 1
        elif chunks[part].lines:  # otherwise all lines of the document were dropped
            chunks[part].document_ends[-1] = 1
    yield from (chunk for chunk in chunks if chunk.lines)


def pack(
    lines: Iterable[tuple[int, str]],
    encoder: LineEncoder,
    unknown_id: int,
    packers: Sequence[Packer],
    writers: Sequence[Any],
    num_threads: int,
) -> list[dict[str, int]]:
    """Tokenizes lines (each with its part; an empty line ends a document), packs them with the packer of their part,
    and writes the sequences with its writer. The caller must `finish` the writers. Returns the counts of each part."""
    counts = np.zeros((len(packers), 3), dtype=np.int64)
    for part, tokens, lengths, document_ends in _encode(encoder, _chunks(lines), num_threads):
        counts[part] += document_ends.sum(), len(tokens), (tokens % WORD_START == unknown_id).sum()
        writers[part].write(packers[part].add_lines(tokens, lengths, document_ends))
    for packer, writer in zip(packers, writers, strict=True):
        writer.write(packer.finish())
    return [
        {
            **dict(zip(("documents", "corpus_tokens", "unknown_tokens"), counted, strict=True)),
            "duplicate_lines": 0,
        }
        for counted in counts.tolist()
    ]


def _encode(
    encoder: LineEncoder, chunks: Iterable[_Chunk], num_threads: int
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Yields for each chunk, in order, its part and the arguments of `Packer.add_lines`. The tokenizer works in
    threads while the caller reads and packs."""
    # The tokenizer's own pool of threads has one size for the life of the process, and does not survive a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

    def encode(chunk: _Chunk) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        return chunk.part, *encoder(chunk.lines), np.frombuffer(chunk.document_ends, dtype=bool)

    waiting: deque[Future[Any]] = deque()
    with ThreadPoolExecutor(num_threads) as threads:
        for chunk in chunks:
            waiting.append(threads.submit(encode, chunk))
            if len(waiting) > 2 * num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
