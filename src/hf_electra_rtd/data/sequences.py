"""Provides the tokenizer and the sequences of a run, from its text or from prepared files.

In this module, `arguments` are `PreparationArguments` or `RTDTrainingArguments`, and `directory` is that of the
blocks. The main process must call each function before the other processes do.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.base.cli import check_arguments
from hf_electra_rtd.base.files import check_output
from hf_electra_rtd.data.arguments import TOKENIZER_RULES, DataArguments
from hf_electra_rtd.data.blocks import BlockHeader, Blocks
from hf_electra_rtd.data.preparation import part_path, prepare_blocks
from hf_electra_rtd.data.shards import open_blocks
from hf_electra_rtd.data.text import Source, Text, find_sources, open_texts
from hf_electra_rtd.data.tokenization import (
    TOKENIZER_FILE,
    TOKENIZER_FILES,
    get_backend,
    keep_tokenizer,
    load_tokenizer,
    tokenizer_hash,
)
from hf_electra_rtd.data.wordpiece import train_wordpiece
from hf_electra_rtd.data.words import get_segmenter


logger = logging.getLogger(__name__)

TOKENIZER_DIRECTORY = "tokenizer"  # in the directory of the blocks
BLOCKS_DIRECTORY = "blocks"  # in the directory of a run


def get_tokenizer(
    data: DataArguments,
    arguments: Any,
    directory: Path,
    of_towers: str | None = None,
    checkpoint: str | None = None,
    keeps: bool = True,
) -> PreTrainedTokenizerBase:
    """Returns the first tokenizer that is given: that of `--tokenizer`, of the pre-trained towers (a directory or Hub
    id), or of the checkpoint that a run resumes from. If none is given, trains one on the text, and saves it in
    `directory/tokenizer` if `keeps` is true. Raises ValueError if there is neither a tokenizer nor text to train one
    on, or the text cannot be read."""
    named = data.tokenizer or of_towers
    trained = directory / TOKENIZER_DIRECTORY
    if named or checkpoint or arguments.process_index:
        if named:
            check_arguments(data, rules=TOKENIZER_RULES)
            return load_tokenizer(named, data.lowercase, data.strip_accents)
        tokenizer = load_tokenizer(checkpoint or str(trained))
        if checkpoint:
            _check_choices(data, tokenizer)
        return tokenizer
    sources = data.sources()
    if any(source.is_prepared for source in sources):
        raise ValueError("There is no text to train a tokenizer on. Name one (--tokenizer).")
    check_output(trained, replaces=TOKENIZER_FILE, ours=TOKENIZER_FILES)  # before the work
    with open_texts(sources, directory, arguments.disable_tqdm) as texts:
        tokenizer = _train(texts, data.vocab_size, data.lowercase, data.strip_accents)
        if keeps:
            keep_tokenizer(tokenizer, trained)
    return tokenizer


def _check_choices(data: DataArguments, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raises ValueError for flags that the tokenizer of a resumed run was not trained with."""
    normalizer: Any = get_backend(tokenizer).normalizer
    normal = "Aé" if normalizer is None else normalizer.normalize_str("Aé")
    found = {"lowercase": normal[0] == "a", "strip_accents": normal[1] == "e"}
    changed = [name for name, value in found.items() if getattr(data, name) not in (None, value)]
    if data.vocab_size is not None and data.vocab_size < len(tokenizer):
        changed.append("vocab_size")
    if changed:
        flags = ", ".join(f"--{name} {getattr(data, name)}" for name in changed)
        raise ValueError(f"{flags}: the tokenizer of the run that is resumed is another one. Leave the flags out.")


def train_tokenizer(
    sources: Any,
    vocab_size: int | None = None,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    text_column: str = "text",
    disable_progress: bool = False,
) -> PreTrainedTokenizerBase:
    """Trains the tokenizer that a run without `--tokenizer` uses. `sources` and `text_column` are those of
    `prepare_blocks`; `vocab_size`, `lowercase` and `strip_accents`, with their defaults, are those of
    [`train_wordpiece`]. The log says what was chosen. Raises ValueError for text that cannot be read, and TypeError
    for a source that is not text."""
    found = find_sources(sources, text_column)
    with TemporaryDirectory() as directory, open_texts(found, Path(directory), disable_progress) as texts:
        return _train(texts, vocab_size, lowercase, strip_accents)


def _train(texts: Sequence[Text], *choices: Any) -> PreTrainedTokenizerBase:
    return train_wordpiece(lambda: chain.from_iterable(text.read("Reading") for text in texts), *choices)


def get_sequences(
    data: DataArguments,
    arguments: Any,
    directory: Path,
    tokenizer: PreTrainedTokenizerBase,
    resumed: Mapping[str, str | None] | None = None,
    called: str = "Training",
) -> tuple[Blocks, Blocks | None]:
    """Returns the training and the held-out sequences, prepared from text or read from block files. The main process
    prepares them, or verifies existing files. `resumed` has the hashes of both parts, `train` and `held_out`, of a run
    that is resumed, whose files are not replaced. `called` is the name of the training sequences in the log. Raises
    ValueError for files that cannot be used."""
    is_main = arguments.process_index == 0
    share = 0.0 if data.held_out_files else data.held_out_share

    def get(sources: list[Source], name: str, share: float) -> tuple[Blocks, Blocks | None]:
        length = arguments.max_seq_length
        if any(source.is_prepared for source in sources):
            if len(sources) > 1:
                raise ValueError(
                    f"Prepared blocks must be the only source, but {len(sources)} are named. Leave the others out."
                )
            if share:
                logger.warning("Prepared blocks are not split, so nothing is held out. Name --held_out_files.")
            file = open_blocks(sources[0].place, verify=is_main)
            found = file.header.max_seq_length
            if file.header.tokenizer_hash != tokenizer_hash(tokenizer):
                raise ValueError(f"{file.path} was made with another tokenizer. Name that one (--tokenizer).")
            if data.word_segmenter and (by := file.header.word_segmenter) != get_segmenter(data.word_segmenter)[1]:
                raise ValueError(f"The words of {file.path} were found by {by}. Leave --word_segmenter out.")
            if found != length:
                raise ValueError(f"{file.path} was prepared with --max_seq_length {found}, not {length}.")
            return file, None
        if is_main:
            options = {key: getattr(data, key) for key in ("packing", "num_proc", "drop_duplicates", "word_segmenter")}
            options |= {"seed": arguments.seed, "disable_progress": arguments.disable_tqdm, "held_out_share": share}
            options |= {"sha256": (resumed or {}).get(name), "shard_size": data.shard_bytes}
            return prepare_blocks(sources, tokenizer, directory, length, name=name, **options)
        files = (open_blocks(part_path(directory, part, data.shard_bytes)) for part in (name, "held_out"))
        return next(files), next(files) if share else None

    held_out = None
    if data.held_out_files:  # first: it is small, so that a mistake in it costs no time
        held_out, _ = get(data.parse(data.held_out_files), "held_out", 0.0)
    train, split = get(data.sources(), "train", share)
    if held_out is None:
        held_out = split
    else:
        check_held_out(train, held_out)
    for what, file in ((called, train), ("Held out", held_out)):
        if file is not None:
            log_header(what, file.header)
    return train, held_out


def log_header(what: str, header: BlockHeader) -> None:
    """Logs how much was prepared."""
    length = header.max_seq_length
    filled = header.num_tokens / (header.num_sequences * length)
    logger.info(f"{what}: {describe_text(header)},")
    logger.info(f"  in {header.num_sequences:,} sequences of {length}, {filled:.1%} filled.")


def describe_text(header: BlockHeader) -> str:
    """Describes the text that sequences were made of: its documents, tokens and dropped lines."""
    counts = header.statistics
    unknown = counts["unknown_tokens"] / max(1, counts["corpus_tokens"])
    copies = f", {counts['duplicate_lines']:,} duplicate lines dropped" if counts["duplicate_lines"] else ""
    return f"{counts['documents']:,} documents, {counts['corpus_tokens']:,} tokens ({unknown:.2%} unknown){copies}"


def check_held_out(train: Blocks, held_out: Blocks) -> None:
    """Raises ValueError for held-out text that is also trained on, or whose words another segmenter found."""
    first = train.header
    second = held_out.header
    is_split = (first.sources, first.recipe) == (second.sources, second.recipe) and first.recipe["held_out_share"]
    names = {source["sha256"]: source["name"] for source in first.sources}
    for source in second.sources:
        if source["sha256"] in names and not is_split:
            raise ValueError(
                f"{source['name']}, which is held out, holds the same text as {names[source['sha256']]}, which is "
                "trained on. Take it out of the one or the other."
            )
    if first.sha256 == second.sha256:
        raise ValueError(f"{held_out.path} is both trained on and held out. Name another file for one of them.")
    if first.word_segmenter != second.word_segmenter:
        raise ValueError(
            f"Words were found by {first.word_segmenter}, held-out words by {second.word_segmenter}. "
            "Prepare both with the same --word_segmenter."
        )
