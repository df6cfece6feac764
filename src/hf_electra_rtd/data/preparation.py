"""Text to block files: the training rows and, split off by document, the held-out rows.

First everything is identified, read and validated; only then is it tokenised and packed. A document's number, its
place in the corpus, decides whether it is held out and in which passes it is read.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.data.blocks import BlockFile, BlockWriter
from hf_electra_rtd.data.duplicates import Duplicates, check_duplicates
from hf_electra_rtd.data.encoding import Chunk, EncodedChunk, check_num_proc, choose_num_proc, encode_chunks
from hf_electra_rtd.data.files import BLOCK_SUFFIX
from hf_electra_rtd.data.packing import get_packer
from hf_electra_rtd.data.selection import DocumentDraws, check_held_out_share, held_out_threshold, read_shares
from hf_electra_rtd.data.sources import AnySource, FileSource, drop_repeated_files, parse_file_source
from hf_electra_rtd.data.texts import Corpus, Counts
from hf_electra_rtd.data.tokenization import check_tokenizer, tokenizer_hash
from hf_electra_rtd.data.writing import ScratchDirectory, explaining_failures, remove_leftovers
from hf_electra_rtd.ops import randomness


logger = logging.getLogger(__name__)

_FORMAT = 3  # of the recipe: a higher one makes what was prepared before be made anew
_CHUNK = 1 << 18  # characters that are tokenised at once; with few, all processes end together
_TRAIN, _HELD_OUT = 0, 1
_REMEDIES = {  # for a part that is shorter than a row
    _TRAIN: "Give more text, or shorter rows (--row_length).",
    _HELD_OUT: "Hold more out (--held_out_share), or name held-out text (--held_out_files).",
}


def prepare_blocks(
    files: Sequence[str | os.PathLike[str] | AnySource],
    tokenizer: PreTrainedTokenizerBase,
    directory: str | os.PathLike[str],
    row_length: int,
    packing: str = "full",
    held_out_share: float = 0.0,
    seed: int = 0,
    name: str = "train",
    disable_progress: bool = False,
    num_proc: int | None = None,
    drop_duplicates: str = "no",
) -> tuple[BlockFile, BlockFile | None]:
    """Tokenises and packs text into `directory/<name>.blocks`, and a share of its documents into `held_out.blocks`.

    What was prepared before from the same text in the same way is used again. An interrupted preparation leaves
    nothing behind that could be mistaken for a whole one. Memory does not grow with the corpus (but for two bits a
    line, and one of 256 parts of the lines' hashes at a time, where duplicates are dropped), and the result does not
    depend on `num_proc`.

    A source of weight 2 is read twice: its second pass follows after the first passes of all sources, so that (unless
    a whole pass is shorter than a row) no row holds a document twice. Of a fraction, that share of the documents is
    read, drawn by seed and document. Held-out documents are chosen first, and read once.

    Args:
        files: text files (paths or patterns) or sources (`FileSource`, `DatasetSource`).
        tokenizer: turns lines into ids.
        directory: for the block files.
        row_length: L.
        packing: `"full"` or `"original"`.
        held_out_share: of the documents; at least one is held out if this is above 0.
        seed: of the split, of the draws by weight and of the packing.
        name: of the file with the training rows.
        disable_progress: show no bars.
        num_proc: processes that tokenise; None takes one a core for a corpus of more than 32 MB, and none but this
            process for a smaller one (0).
        drop_duplicates: `"no"`; `"exact"`: of equal lines the first that is read stays; `"near"`: of lines that
            differ only in case, accents, digits, punctuation and white space.

    Returns:
        The training rows, and the held-out rows (None for a share of 0).

    Raises:
        ValueError: for text that cannot be read, too few documents to split, too little text for one row, or files
            that cannot be written.
    """
    check_held_out_share(held_out_share)
    check_duplicates(drop_duplicates)
    check_num_proc(num_proc)
    check_tokenizer(tokenizer)
    get_packer(packing, tokenizer, row_length, seed)
    sources = drop_repeated_files(
        [source if isinstance(source, AnySource) else parse_file_source(os.fspath(source)) for source in files]
    )
    for source in sources:
        if isinstance(source, FileSource) and source.is_prepared:
            raise ValueError(f"{source.files[0]} is prepared already: name text.")
    if not sources:
        raise ValueError("There is nothing to prepare: name text files or datasets.")
    directory = Path(directory)
    with explaining_failures(directory):
        directory.mkdir(parents=True, exist_ok=True)
    remove_leftovers(directory)
    paths = {_TRAIN: directory / f"{name}{BLOCK_SUFFIX}"}
    if held_out_share:
        paths[_HELD_OUT] = directory / f"held_out{BLOCK_SUFFIX}"
    with ExitStack() as stack:
        corpus = stack.enter_context(Corpus(sources, directory, disable_progress))
        identities = corpus.identities()
        recipe = {
            "sources": identities,
            "tokenizer_hash": tokenizer_hash(tokenizer),
            "row_length": row_length,
            "packing": packing,
            "held_out_share": held_out_share,
            "seed": seed,
            "drop_duplicates": drop_duplicates,
            "format": _FORMAT,
        }
        ready = {part: file for part, path in paths.items() if (file := _reusable(path, recipe)) is not None}
        if ready.keys() == paths.keys():
            logger.info(f"Using {', '.join(map(str, paths.values()))}, prepared before from the same text.")
            return ready[_TRAIN], ready.get(_HELD_OUT)

        counts = corpus.counts()
        num_documents = sum(count.num_documents for count in counts)
        threshold = held_out_threshold(num_documents, held_out_share, seed)
        reader = _Reader(corpus, counts, threshold, seed, disable_progress)
        if drop_duplicates != "no":
            scratch = stack.enter_context(ScratchDirectory(directory))
            num_lines = sum(count.num_lines for count in counts)
            reader.duplicates = Duplicates(reader.first_pass(), num_lines, drop_duplicates, scratch.path)

        parts = {
            part: _Part(path, tokenizer, row_length, packing, seed, _REMEDIES[part]) for part, path in paths.items()
        }
        for made in parts.values():
            stack.enter_context(made.writer)
        processes = choose_num_proc(num_proc, sum(count.num_bytes for count in counts))
        for encoded in encode_chunks(tokenizer, reader.chunks(), processes):
            for part, made in parts.items():
                made.add(encoded, part)
        described = [
            {"name": text.name, **identity, "num_bytes": count.num_bytes, "num_documents": count.num_documents}
            for text, identity, count in zip(corpus.texts, identities, counts, strict=True)
        ]
        for part, made in parts.items():
            made.complete(recipe, described, reader.num_duplicates[part])
        # From here on nothing can run out of space. The training rows come last, and the old ones go first: whenever
        # this is interrupted, no training rows lie beside held-out rows of another split.
        if len(paths) > 1:
            paths[_TRAIN].unlink(missing_ok=True)
        finished = {part: parts[part].writer.publish() for part in reversed(paths)}
    return finished[_TRAIN], finished.get(_HELD_OUT)


class _Reader:
    """Reads a corpus, pass by pass, into chunks of lines: without the documents and lines that are not wanted."""

    def __init__(
        self, corpus: Corpus, counts: Sequence[Counts], threshold: int, seed: int, disable_progress: bool
    ) -> None:
        self._texts, self._counts, self._threshold = corpus.texts, counts, threshold
        self._shares = [read_shares(text.weight) for text in corpus.texts]
        self._first_lines = [0] * len(corpus.texts)  # of each text, among the lines of the first pass
        self._splitting = DocumentDraws(seed, randomness.SPLITTING)
        self._weighting = DocumentDraws(seed, randomness.WEIGHTING)
        self._disable_progress = disable_progress
        self.duplicates: Duplicates | None = None  # among the lines of the first pass, which reads every text
        # Copies among the lines of each part, exact and near, counted in the first pass.
        self.num_duplicates = {part: [0, 0, 0] for part in (_TRAIN, _HELD_OUT)}

    def first_pass(self) -> Iterator[str]:
        """The lines among which to look for duplicates."""
        total = sum(count.num_documents for count in self._counts)
        with self._bar("Looking for duplicate lines", total) as bar:
            for _, _, line in self._pass(0, bar):
                if line is not None:
                    yield line

    def chunks(self) -> Iterator[Chunk]:
        chunk = Chunk([], bytearray(), bytearray())
        size = 0
        for part, line in self._lines():
            if line is None:
                chunk.document_ends[-1] = 1
                continue
            # Only now: the end of a document belongs to the chunk of its last line.
            if size >= _CHUNK:
                yield chunk
                chunk, size = Chunk([], bytearray(), bytearray()), 0
            chunk.lines.append(line)
            chunk.parts.append(part)
            chunk.document_ends.append(0)
            size += len(line) + 1
        if chunk.lines:
            yield chunk

    def _lines(self) -> Iterator[tuple[int, str | None]]:
        """(part, line), and (part, None) where a document of which a line was kept ends."""
        total = sum(
            count.num_documents * len(shares) for shares, count in zip(self._shares, self._counts, strict=True)
        )
        with self._bar("Tokenising and packing", total) as bar:
            for number in range(max(map(len, self._shares))):
                kept = False
                for part, index, line in self._pass(number, bar):
                    if line is None:
                        if kept:
                            yield part, None
                        kept = False
                        continue
                    copy = 0 if self.duplicates is None else self.duplicates.kind(index)
                    if copy:
                        self.num_duplicates[part][copy] += number == 0
                    else:
                        kept = True
                        yield part, line

    def _pass(self, number: int, bar: Any) -> Iterator[tuple[int, int, str | None]]:
        """What one pass reads: (part, index, line), and None for the line where a document ends.

        `index` is the line's place among those of the first pass, which reads whatever a later one does.
        """
        first_document = index = 0
        for place, (text, shares, count) in enumerate(zip(self._texts, self._shares, self._counts, strict=True)):
            if number == 0:
                self._first_lines[place] = index
            if number < len(shares):
                index, document = self._first_lines[place], first_document
                in_document = in_first = wanted = False
                part = _TRAIN
                for line in text.lines():
                    if line:
                        if not in_document:
                            in_document = True
                            part = _HELD_OUT if self._splitting[document] < self._threshold else _TRAIN
                            in_first = part == _HELD_OUT or self._is_drawn(document, shares[0])
                            wanted = in_first and (
                                number == 0 or (part == _TRAIN and self._is_drawn(document, shares[number]))
                            )
                        if wanted:
                            yield part, index, line
                        index += in_first
                    elif in_document:
                        in_document = False
                        document += 1
                        bar.update()
                        if wanted:
                            yield part, index, None
            first_document += count.num_documents

    def _is_drawn(self, document: int, share: float) -> bool:
        return share == 1.0 or self._weighting[document] < round(share * 2**64)

    def _bar(self, description: str, num_documents: int) -> Any:
        return tqdm(total=num_documents, desc=description, unit=" documents", disable=self._disable_progress)


class _Part:
    """One output of a preparation: a packer, the file that it fills, and what was counted on the way."""

    def __init__(
        self, path: Path, tokenizer: PreTrainedTokenizerBase, row_length: int, packing: str, seed: int, remedy: str
    ) -> None:
        self.packer = get_packer(packing, tokenizer, row_length, seed)
        self._remedy = remedy
        self.writer = BlockWriter(path, row_length, len(tokenizer))
        self._unk = tokenizer.unk_token_id
        self._tokenizer_hash = tokenizer_hash(tokenizer)
        self._num_documents = self._num_tokens = self._num_unknown = 0
        self._longest, self._shortest = 0, 0
        self._in_document = 0  # tokens of the document that is not at its end yet

    def add(self, chunk: EncodedChunk, part: int) -> None:
        """Takes the lines of a chunk that belong to this part."""
        here = chunk.parts == part
        ids, lengths, document_ends = chunk.ids, chunk.lengths, chunk.document_ends
        if not here.all():
            if not here.any():
                return
            ids = ids[np.repeat(here, lengths)]
            lengths, document_ends = lengths[here], document_ends[here]
        self._count(ids, lengths, document_ends.astype(bool))
        self.writer.write(self.packer.add_lines(ids, lengths, document_ends))

    def _count(self, ids: np.ndarray, lengths: np.ndarray, document_ends: np.ndarray) -> None:
        self._num_tokens += len(ids)
        self._num_unknown += int((ids == self._unk).sum())
        stops = lengths.cumsum()[document_ends]
        if len(stops):
            sizes = np.diff(stops, prepend=0)
            sizes[0] += self._in_document
            self._in_document = len(ids) - int(stops[-1])
            sizes = sizes[sizes > 0]
            if len(sizes):
                shortest = int(sizes.min())
                self._shortest = min(self._shortest, shortest) if self._num_documents else shortest
                self._longest = max(self._longest, int(sizes.max()))
                self._num_documents += len(sizes)
        else:
            self._in_document += len(ids)

    def complete(self, recipe: dict[str, Any], sources: list[dict[str, Any]], num_duplicates: list[int]) -> None:
        writer = self.writer
        writer.write(self.packer.finish())
        if not writer.num_rows:
            raise ValueError(
                f"{writer.path.stem}: {self._num_tokens} tokens are too few for one row of {writer.row_length}. "
                f"{self._remedy}"
            )
        statistics = {
            "documents": self._num_documents,
            "corpus_tokens": self._num_tokens,
            "unknown_tokens": self._num_unknown,
            "longest_document": self._longest,
            "shortest_document": self._shortest,
            "exact_duplicates": num_duplicates[1],
            "near_duplicates": num_duplicates[2],
            "dropped_tokens": self.packer.num_dropped,
            "full_rows": writer.num_full_rows,
            "two_segment_rows": writer.num_two_segment_rows,
        }
        writer.complete(
            tokenizer_hash=self._tokenizer_hash,
            packing=self.packer.name,
            statistics=statistics,
            sources=sources,
            recipe=recipe,
        )


def describe(file: BlockFile) -> str:
    """The statistics of a block file in one line."""
    header, counts = file.header, file.header.statistics
    corpus = max(1, counts["corpus_tokens"])
    return (
        f"{counts['documents']:,} documents, {counts['corpus_tokens']:,} tokens "
        f"({counts['unknown_tokens'] / corpus:.2%} unknown) in {header.num_rows:,} rows of {header.row_length}, "
        f"{header.num_tokens / (header.num_rows * header.row_length):.1%} filled, "
        f"{counts['two_segment_rows'] / header.num_rows:.0%} with two segments; "
        f"{counts['dropped_tokens']:,} tokens left out ({counts['dropped_tokens'] / corpus:.2%})"
    )


def summarize(parts: Mapping[str, BlockFile]) -> dict[str, dict[str, str]]:
    """The statistics of block files, and of all of them together, for people: {part: {figure: value}}."""
    columns = {name: _figures([file]) for name, file in parts.items()}
    return columns if len(parts) == 1 else {**columns, "in all": _figures(list(parts.values()))}


def _figures(files: list[BlockFile]) -> dict[str, str]:
    headers = [file.header for file in files]

    def total(name: str) -> int:
        return sum(header.statistics[name] for header in headers)

    rows, tokens = sum(header.num_rows for header in headers), max(1, total("corpus_tokens"))
    places = sum(header.num_rows * header.row_length for header in headers)
    return {
        "documents": f"{total('documents'):,}",
        "tokens of text": f"{total('corpus_tokens'):,}",
        "unknown tokens": f"{total('unknown_tokens') / tokens:.2%}",
        "tokens left out": f"{total('dropped_tokens'):,}",
        "longest document (tokens)": f"{max(header.statistics['longest_document'] for header in headers):,}",
        "shortest document (tokens)": f"{min(header.statistics['shortest_document'] for header in headers):,}",
        "duplicate lines dropped, exact": f"{total('exact_duplicates'):,}",
        "duplicate lines dropped, near": f"{total('near_duplicates'):,}",
        "rows": f"{rows:,}",
        "positions filled": f"{sum(header.num_tokens for header in headers) / places:.1%}",
        "rows with two segments": f"{total('two_segment_rows') / rows:.1%}",
    }


def _reusable(path: Path, recipe: dict[str, Any]) -> BlockFile | None:
    if not path.exists():
        return None
    try:
        file = BlockFile(path, verify=True)
    except ValueError as error:
        logger.warning(f"{error} Doing so now.")
        return None
    return file if file.header.recipe == recipe else None
