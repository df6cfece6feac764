"""Text files to block files: the training rows and, split off by document, the held-out rows."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.data.blocks import BlockFile, BlockWriter
from hf_electra_rtd.data.documents import BLOCK_SUFFIX, Source, read_lines, scan
from hf_electra_rtd.data.packing import get_packer
from hf_electra_rtd.data.tokenization import tokenize_lines, tokenizer_hash
from hf_electra_rtd.ops import randomness


logger = logging.getLogger(__name__)


def prepare_blocks(
    files: list[str],
    tokenizer: PreTrainedTokenizerBase,
    directory: str | os.PathLike[str],
    row_length: int,
    packing: str = "full",
    held_out_share: float = 0.0,
    seed: int = 0,
    name: str = "train",
    disable_progress: bool = False,
) -> tuple[BlockFile, BlockFile | None]:
    """Tokenises and packs text into `directory/<name>.blocks`, and a share of its documents into `held_out.blocks`.

    What was prepared before from the same text in the same way is used again. An interrupted preparation leaves
    nothing behind that could be mistaken for a whole one.

    Args:
        files: text files (see `find_files`).
        tokenizer: turns lines into ids.
        directory: for the block files.
        row_length: L.
        packing: `"full"` or `"original"`.
        held_out_share: of the documents; at least one is held out if this is above 0.
        seed: of the split and of the packing.
        name: of the file with the training rows.
        disable_progress: show no bars.

    Returns:
        The training rows, and the held-out rows (None for a share of 0).

    Raises:
        ValueError: for files that cannot be read, too few documents to split, or too little text for one row.
    """
    sources = scan(files, disable_progress)
    num_documents = sum(source.num_documents for source in sources)
    held_out = choose_held_out(num_documents, held_out_share, seed)
    recipe = {
        "sources": [source.sha256 for source in sources],
        "tokenizer_hash": tokenizer_hash(tokenizer),
        "row_length": row_length,
        "packing": packing,
        "held_out_share": held_out_share,
        "seed": seed,
        "format": 1,
    }
    paths = {"train": Path(directory) / f"{name}{BLOCK_SUFFIX}"}
    if len(held_out):
        paths["held_out"] = Path(directory) / f"held_out{BLOCK_SUFFIX}"
    ready = {part: file for part, path in paths.items() if (file := _reusable(path, recipe)) is not None}
    if ready.keys() == paths.keys():
        logger.info(f"Using {', '.join(map(str, paths.values()))}, prepared before from the same text.")
        return ready["train"], ready.get("held_out")

    lines = (line for file in files for line in read_lines(file))
    numbered = _number_documents(tokenize_lines(tokenizer, lines))
    parts = {part: _Part(path, tokenizer, row_length, packing, seed) for part, path in paths.items()}
    is_held_out = np.zeros(num_documents, dtype=bool)
    is_held_out[held_out] = True
    try:
        with tqdm(
            total=num_documents, desc="Tokenising and packing", unit="document", disable=disable_progress
        ) as bar:
            for document, ids in numbered:
                part = parts["held_out" if is_held_out[document] else "train"]
                if ids is None:
                    part.end_document()
                    bar.update()
                else:
                    part.add_line(ids)
        # The training rows last: they are what makes a preparation complete.
        finished = {part: parts[part].finish(recipe, sources) for part in reversed(paths)}
    finally:
        for made in parts.values():
            made.writer.__exit__()
    return finished["train"], finished.get("held_out")


def choose_held_out(num_documents: int, share: float, seed: int) -> np.ndarray:
    """Which documents are held out: ascending int64 indices, round(share * num_documents) of them, at least one.

    Raises:
        ValueError: for a share out of range, or if nothing would be left to train on.
    """
    check_held_out_share(share)
    if share == 0.0:
        return np.empty(0, dtype=np.int64)
    count = max(1, round(share * num_documents))
    if count >= num_documents:
        raise ValueError(
            f"The corpus has {num_documents} document(s), too few to hold {count} of them out. An empty line ends a "
            "document: separate them, name a held-out file (--held_out_files), or do without (--held_out_share 0)."
        )
    bits = randomness.counter_bits(seed, randomness.SPLITTING, 0, num_documents, 1)[:, 0]
    return np.sort(np.argsort(bits, kind="stable")[:count])


def check_held_out_share(share: float) -> None:
    """Raises ValueError for a share out of range."""
    if not 0.0 <= share < 1.0:
        raise ValueError(f"held_out_share is {share}: it must be at least 0 and below 1.")


class _Part:
    """One output of a preparation: a packer, the file that it fills, and what was counted on the way."""

    def __init__(
        self, path: Path, tokenizer: PreTrainedTokenizerBase, row_length: int, packing: str, seed: int
    ) -> None:
        self.packer = get_packer(packing, tokenizer, row_length, seed)
        self.writer = BlockWriter(path, row_length, len(tokenizer))
        self._unk = tokenizer.unk_token_id
        self._tokenizer_hash = tokenizer_hash(tokenizer)
        self.counts = {"documents": 0, "corpus_tokens": 0, "unknown_tokens": 0}

    def add_line(self, ids: list[int]) -> None:
        self.counts["corpus_tokens"] += len(ids)
        self.counts["unknown_tokens"] += ids.count(self._unk)
        self.writer.write(self.packer.add_line(ids))

    def end_document(self) -> None:
        self.counts["documents"] += 1
        self.writer.write(self.packer.end_document())

    def finish(self, recipe: dict[str, Any], sources: list[Source]) -> BlockFile:
        writer = self.writer
        writer.write(self.packer.finish())
        if not writer.num_rows:
            raise ValueError(
                f"{writer.path.stem}: {self.counts['corpus_tokens']} tokens are too few for one row of "
                f"{writer.row_length}. Give more text, or shorter rows (--row_length)."
            )
        statistics = {
            **self.counts,
            "dropped_tokens": self.packer.num_dropped,
            "full_rows": writer.num_full_rows,
            "two_segment_rows": writer.num_two_segment_rows,
        }
        return writer.finish(
            tokenizer_hash=self._tokenizer_hash,
            packing=self.packer.name,
            statistics=statistics,
            sources=[dataclasses.asdict(source) for source in sources],
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


def _reusable(path: Path, recipe: dict[str, Any]) -> BlockFile | None:
    if not path.exists():
        return None
    try:
        file = BlockFile(path, verify=True)
    except ValueError as error:
        logger.warning(f"{error} Doing so now.")
        return None
    return file if file.header.recipe == recipe else None


def _number_documents(lines: Iterator[list[int] | None]) -> Iterator[tuple[int, list[int] | None]]:
    """(document, ids of a line), and (document, None) where one ends. Empty lines in a row end nothing more."""
    document, in_document = 0, False
    for ids in lines:
        if ids is not None:
            in_document = True
            yield document, ids
        elif in_document:
            in_document = False
            yield document, None
            document += 1
