"""Turns text into block files that pre-training reads, once for many runs.

    hf-electra-rtd prepare --train_files 'news/*.jsonl.gz,text_column=body' books/ --tokenizer vocab.txt \\
        --max_seq_length 512 --num_proc 8 --drop_duplicates exact --output_dir corpora/mine

leaves `train.blocks`, `held_out.blocks` and `tokenizer/` in the output directory, and ends with statistics and the
command that trains on them. The same command again finds the blocks done. Flags can stand in a YAML file (`--config`).
"""

# ruff: noqa: RUF009  # `flag` makes a field

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.cli import flag, parse_arguments, run
from hf_electra_rtd.data.blocks import BLOCK_SUFFIX, BlockFile, BlockHeader
from hf_electra_rtd.data.packing import check_packing
from hf_electra_rtd.data.preparation import check_preparation, describe, prepare_blocks
from hf_electra_rtd.data.text import Source, open_texts, parse_source
from hf_electra_rtd.data.tokenization import load_tokenizer, save_tokenizer, tokenizer_hash, train_wordpiece
from hf_electra_rtd.files import writing


logger = logging.getLogger(__name__)

TOKENIZER_DIRECTORY = "tokenizer"
BLOCKS_DIRECTORY = "blocks"


@dataclass
class DataArguments:
    """Which text, and how it becomes sequences."""

    train_files: list[str] = flag(
        [],
        "Text (.txt, .jsonl, .parquet; .gz, .zst): files, directories, globs, each with options behind it "
        "('news/*.jsonl,text_column=body,weight=2'); a saved dataset's directory; or one prepared block file.",
    )
    train_datasets: list[str] = flag(
        [],
        "Datasets of the Hub with options (config, split, streaming, revision, text_column, weight): "
        "'wikimedia/wikipedia,config=20231101.en,streaming=true'.",
    )
    text_column: str = flag("text", "Key or column that holds the text.")
    encoding: str = flag("utf-8", "Of .txt and .jsonl, by its name in Python.")
    encoding_errors: str = flag("strict", "For bytes that do not fit: strict (refuse the file), replace or ignore.")
    held_out_files: list[str] | None = flag(
        None, "Held-out text, as for --train_files, or a block file; by default a share."
    )
    held_out_share: float = flag(0.05, "Share of the documents to hold out; 0 for none.")
    drop_duplicates: str = flag("no", "Repeated lines to drop: no, exact or near (case, digits, accents, marks).")
    num_proc: int | None = flag(None, "Threads that tokenize; by default one a core.")
    packing: str = flag("full", "full (no token lost) or original (as google-research's).")
    tokenizer: str | None = flag(None, "Directory, Hub id or vocab.txt; by default one is trained on the text.")
    vocab_size: int = flag(8192, "Tokens of a tokenizer that is trained.")
    lowercase: bool | None = flag(None, "For a vocab.txt (by default as it is) or a trained tokenizer (true).")
    data_license: str | None = flag(None, "License of the text, for the run's record.")

    def __post_init__(self) -> None:
        check_packing(self.packing)
        check_preparation(self.held_out_share, self.drop_duplicates, self.num_proc)
        self._defaults  # noqa: B018  # refuses an unknown encoding

    @property
    def _defaults(self) -> Source:
        return Source(text_column=self.text_column, encoding=self.encoding, encoding_errors=self.encoding_errors)

    def set_default_text(self, files: Sequence[str]) -> None:
        """Takes `files` where no text is named."""
        if not self.train_files and not self.train_datasets:
            self.train_files = list(files)

    def sources(self) -> list[Source]:
        """What to train on. Raises ValueError if there is nothing, or not what was named."""
        if not self.train_files and not self.train_datasets:
            raise ValueError("There is nothing to train on. Name text (--train_files) or datasets (--train_datasets).")
        files = [parse_source(text, self._defaults) for text in self.train_files]
        return [*files, *(parse_source(text, self._defaults, is_dataset=True) for text in self.train_datasets)]


def get_tokenizer(
    data: DataArguments,
    output_dir: str,
    of_towers: str | None = None,
    trained: str | os.PathLike[str] | None = None,
    blocks_directory: str | os.PathLike[str] | None = None,
    disable_progress: bool = True,
) -> PreTrainedTokenizerBase:
    """The tokenizer of `--tokenizer`, or of the pre-trained towers (a directory), or one trained on the text.

    One that is trained is kept in `output_dir/tokenizer`. `trained` is where one was kept before; for a run that is
    resumed its checkpoint, since `output_dir` may have the tokenizer of a run that failed to replace it.
    `blocks_directory` is that of the sequences; by default `output_dir/blocks`.

    Raises:
        ValueError: if there is neither a tokenizer nor text to train one on, or the text cannot be read.
    """
    named = data.tokenizer or of_towers
    if named is not None:
        return load_tokenizer(named, data.lowercase)
    if trained is not None:
        return load_tokenizer(os.fspath(trained))
    sources = data.sources()
    if any(source.is_prepared for source in sources):
        raise ValueError("A block file has no text to train a tokenizer on. Name the one that made it (--tokenizer).")
    with open_texts(sources, Path(blocks_directory or Path(output_dir) / BLOCKS_DIRECTORY)) as (texts, _):
        logger.info(f"Training a tokenizer of {data.vocab_size:,} tokens.")

        def lines() -> Iterator[str]:
            for text in texts:
                yield from tqdm(text.lines(), f"Reading {text.name}", disable=disable_progress, leave=False)

        tokenizer = train_wordpiece(lines, data.vocab_size, data.lowercase is not False)
        with writing(Path(output_dir) / TOKENIZER_DIRECTORY) as partial:
            save_tokenizer(tokenizer, partial)
    return tokenizer


def get_sequences(
    data: DataArguments, training: Any, tokenizer: PreTrainedTokenizerBase, trained_on: str | None = None
) -> tuple[BlockFile, BlockFile | None]:
    """`prepare_sequences` for `RTDTrainingArguments`, in `output_dir/blocks`. Call it on the first process before the
    others."""
    directory, quiet = Path(str(training.output_dir)) / BLOCKS_DIRECTORY, bool(training.disable_tqdm)
    is_main = training.process_index == 0
    shape = (training.max_seq_length, training.seed)
    return prepare_sequences(data, tokenizer, directory, *shape, quiet, is_main, trained_on)


def prepare_sequences(
    data: DataArguments,
    tokenizer: PreTrainedTokenizerBase,
    directory: Path,
    max_seq_length: int,
    seed: int,
    disable_progress: bool = False,
    is_main_process: bool = True,
    trained_on: str | None = None,
) -> tuple[BlockFile, BlockFile | None]:
    """The training and the held-out sequences, prepared from text in a directory, or of block files.

    The main process prepares, and verifies what is there; others open it without reading all of it. `seed` is that of
    the split and of the packing, `trained_on` the hash of the training sequences of a run that is resumed.

    Raises:
        ValueError: for files that cannot be used, by name.
    """

    def get(sources: list[Source], name: str, share: float) -> tuple[BlockFile, BlockFile | None]:
        if any(source.is_prepared for source in sources):
            file = _open_named(sources, tokenizer, max_seq_length, verify=is_main_process)
            if share:
                logger.warning(f"{file.path} cannot be split, so nothing is held out. Name --held_out_files.")
            return file, None
        if not is_main_process:
            return _open_prepared(directory, name), _open_prepared(directory, "held_out") if share else None
        return prepare_blocks(
            sources,
            tokenizer,
            directory,
            max_seq_length,
            packing=data.packing,
            held_out_share=share,
            seed=seed,
            name=name,
            num_proc=data.num_proc,
            drop_duplicates=data.drop_duplicates,
            disable_progress=disable_progress,
            sha256=trained_on if name == "train" else None,
        )

    share = 0.0 if data.held_out_files else data.held_out_share
    train, held_out = get(data.sources(), "train", share)
    if is_main_process and not data.held_out_files and not share:
        (directory / f"held_out{BLOCK_SUFFIX}").unlink(missing_ok=True)  # its text is trained on now
    if data.held_out_files:
        held_out, _ = get([parse_source(text, data._defaults) for text in data.held_out_files], "held_out", 0.0)
        _refuse_overlap(train.header, held_out.header)
    for name, file in (("Training", train), ("Held out", held_out)):
        if file is not None:
            logger.info(f"{name}: {describe(file)}")
    return train, held_out


def _refuse_overlap(train: BlockHeader, held_out: BlockHeader) -> None:
    """Raises ValueError if both were made of one text, unless one preparation split it."""
    if (train.sources, train.recipe) == (held_out.sources, held_out.recipe) and train.recipe["held_out_share"]:
        return
    names = {source["sha256"]: source["name"] for source in train.sources}
    for source in held_out.sources:
        if source["sha256"] in names:
            raise ValueError(
                f"{source['name']}, which is held out, holds the same text as {names[source['sha256']]}, which is "
                "trained on. Take it out of --train_files or --held_out_files."
            )


def _open_prepared(directory: Path, name: str) -> BlockFile:
    path = directory / f"{name}{BLOCK_SUFFIX}"
    if not path.exists():
        raise ValueError(f"{path} is missing here: all machines must share the directory that the first one writes.")
    return BlockFile(path)


def _open_named(
    sources: list[Source], tokenizer: PreTrainedTokenizerBase, max_seq_length: int, verify: bool
) -> BlockFile:
    named = [name for source in sources for name in source.files or (source.dataset,)]
    if len(named) > 1:
        raise ValueError(f"Name one block file alone, not {len(named)} sources: {', '.join(named[:5])}.")
    file = BlockFile(named[0], verify=verify)
    if file.header.tokenizer_hash != tokenizer_hash(tokenizer):
        raise ValueError(f"{named[0]} was made with another tokenizer. Name the one that made it (--tokenizer).")
    if file.header.max_seq_length != max_seq_length:
        raise ValueError(
            f"{named[0]} has sequences of {file.header.max_seq_length} tokens, not {max_seq_length}. Use "
            f"--max_seq_length {file.header.max_seq_length}, or prepare the text again."
        )
    return file


# ---- The command ----


@dataclass
class PreparationArguments:
    """Where the blocks go, and their shape."""

    output_dir: str = flag("runs/corpus", "For block files and tokenizer.")
    max_seq_length: int = flag(128, "Tokens a sequence (paper: 128 for small, else 512).")
    seed: int = flag(42, "Of split, weights and packing.")
    disable_tqdm: bool = flag(False, "Show no progress bars.")


def main(argv: list[str], defaults: Mapping[str, Any] | None = None, default_text: Sequence[str] = ()) -> None:
    """The command `prepare`. `defaults` are those of flags, `default_text` is used where no flag names text."""
    arguments, data = parse_arguments((PreparationArguments, DataArguments), argv, __doc__, defaults)
    data.set_default_text(default_text)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hf_electra_rtd").setLevel(logging.INFO)
    directory, quiet = Path(arguments.output_dir), arguments.disable_tqdm
    tokenizer = get_tokenizer(data, str(directory), blocks_directory=directory, disable_progress=quiet)
    if data.tokenizer is not None:
        with writing(directory / TOKENIZER_DIRECTORY) as partial:  # the blocks' own, wherever they are taken
            save_tokenizer(tokenizer, partial)
    train, held_out = prepare_sequences(data, tokenizer, directory, arguments.max_seq_length, arguments.seed, quiet)
    flags = ["--train_files", train.path, "--max_seq_length", str(arguments.max_seq_length)]
    flags += ["--held_out_files", held_out.path] if held_out is not None else ["--held_out_share", "0"]
    flags += ["--tokenizer", str(directory / TOKENIZER_DIRECTORY)]
    command = "accelerate launch -m hf_electra_rtd.training.pretrain"
    print(f"\nTrain on it with\n\n    {command} {shlex.join(flags)}\n")


if __name__ == "__main__":
    run(main)
