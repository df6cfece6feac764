"""Turns text into block files that pre-training reads, once for many runs.

    hf-electra-rtd prepare --train_files 'news/*.jsonl.gz,text_column=body' books/ --tokenizer vocab.txt \\
        --max_seq_length 512 --num_proc 8 --drop_duplicates exact --output_dir corpora/mine

leaves `train.blocks`, `held_out.blocks` and `tokenizer/` in the output directory, and ends with statistics and the
command that trains on them. The same command again finds the blocks done. Flags can stand in a YAML file (`--config`).
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.cli import Rule, check_arguments, flag, parse_arguments, parse_size, run
from hf_electra_rtd.data.blocks import BlockHeader, Blocks
from hf_electra_rtd.data.preparation import part_path, prepare_blocks
from hf_electra_rtd.data.shards import open_blocks
from hf_electra_rtd.data.text import Source, open_texts, parse_sources
from hf_electra_rtd.data.tokenization import (
    TOKENIZER_FILE,
    TOKENIZER_FILES,
    keep_tokenizer,
    load_tokenizer,
    tokenizer_hash,
    train_wordpiece,
)
from hf_electra_rtd.data.words import get_segmenter
from hf_electra_rtd.files import check_output


logger = logging.getLogger(__name__)

TOKENIZER_DIRECTORY = "tokenizer"  # beside the blocks
BLOCKS_DIRECTORY = "blocks"  # of a run


@dataclass
class DataArguments:
    """Which text, and how it becomes sequences."""

    train_files: list[str] = flag(
        [],
        "Text (.txt, .jsonl, .parquet; .gz, .zst): files, directories, globs, each with options behind it "
        "('news/*.jsonl,text_column=body,weight=2'); a saved dataset's directory; or one prepared block file, "
        "directory of shards, or its address (hf://datasets/ORG/NAME/path, s3://...).",
    )
    train_datasets: list[str] = flag(
        [],
        "Datasets of the Hub with options (config, split, streaming, revision, text_column, weight): "
        "'wikimedia/wikipedia,config=20231101.en,streaming=true'.",
    )
    text_column: str = flag("text", "Key or column that holds the text.")
    encoding: str = flag("utf-8", "Of .txt and .jsonl, by its name in Python.")
    encoding_errors: Literal["strict", "replace", "ignore"] = flag("strict", "For bytes that do not fit.")
    held_out_files: list[str] | None = flag(
        None, "Held-out text, as for --train_files, or a block file; by default a share."
    )
    held_out_share: float = flag(0.05, "Share of the documents to hold out; 0 for none.", "[0, 1)")
    drop_duplicates: Literal["no", "exact"] = flag("no", "Whether to drop lines that occurred before.")
    num_proc: int | None = flag(None, "Threads that tokenize; by default one a core.", "[1, inf)")
    word_segmenter: Literal["jieba"] | None = flag(
        None, "Finds words for --masking: jieba (Chinese; the extra zh). By default the tokenizer does."
    )
    shard_size: str | None = flag(
        None, "Writes directories of files of at most this size (512MB, or bytes), with an index; by default one file."
    )
    packing: Literal["full", "original"] = flag("full", "full (no token lost) or original (as google-research's).")
    tokenizer: str | None = flag(None, "Directory, Hub id or vocab.txt; by default one is trained on the text.")
    vocab_size: int = flag(8192, "Tokens of a tokenizer that is trained.", "[1, inf)")
    lowercase: bool | None = flag(None, "For a vocab.txt (by default as it is) or a trained tokenizer (true).")
    data_license: str | None = flag(None, "License of the text, for the run's record.")

    def __post_init__(self) -> None:
        check_arguments(self)
        get_segmenter(self.word_segmenter)
        self.shard_bytes = None if self.shard_size is None else parse_size("shard_size", self.shard_size)

    def set_default_text(self, files: Sequence[str]) -> None:
        """Takes `files` where no text is named."""
        if not self.train_files and not self.train_datasets:
            self.train_files = list(files)

    def sources(self) -> list[Source]:
        """What to train on. Raises ValueError if there is nothing, or not what was named."""
        if not self.train_files and not self.train_datasets:
            raise ValueError("There is nothing to train on. Name text (--train_files) or datasets (--train_datasets).")
        return self.parse(self.train_files) + self.parse(self.train_datasets, is_dataset=True)

    def warn_of_unused(self, more: Sequence[str] = ()) -> None:
        """Warns of flags that say how text is read, where all of it is prepared already; also `more`."""
        if all(source.is_prepared for source in [*self.sources(), *self.parse([*(self.held_out_files or ()), *more])]):
            check_arguments(self, rules=PREPARED_RULES)

    def parse(self, texts: Sequence[str], is_dataset: bool = False) -> list[Source]:
        """What `texts` name, read as the flags say."""
        defaults = {key: getattr(self, key) for key in ("text_column", "encoding", "encoding_errors")}
        return [source for text in texts for source in parse_sources(text, is_dataset, **defaults)]


# Where all text is prepared already.
PREPARED_RULES = tuple(
    Rule(name, "The sequences are prepared already.", changes_nothing=True)
    for name in ("text_column", "encoding", "encoding_errors", "drop_duplicates", "shard_size", "packing")
)


@dataclass
class PreparationArguments:
    """Where the blocks go, and their shape."""

    output_dir: str = flag("runs/corpus", "For block files and tokenizer.")
    max_seq_length: int = flag(128, "Tokens a sequence (paper: 128 for small, else 512).", "[3, inf)")
    seed: int = flag(42, "Of split, weights and packing.", "[0, 4294967295]")
    disable_tqdm: bool = flag(False, "Show no progress bars. (Tasks of an --executor show none.)")
    executor: Literal["local", "slurm", "ray"] | None = flag(
        None, "Prepares in several tasks, on one machine or many, into shards (the extra scale; for ray also ray)."
    )
    tasks: int | None = flag(None, "Tasks of the --executor. Their number changes no sequence.", "[1, inf)")
    workers: int | None = flag(
        None, "Tasks at a time; by default one a core (local), else all there is room for.", "[1, inf)"
    )
    slurm: list[str] = flag([], "Options of sbatch for --executor slurm: partition=NAME time=24:00:00 account=ME ...")
    process_index: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_arguments(self, rules=RULES)
        self.sbatch: dict[str, Any] = dict(option.partition("=")[::2] for option in self.slurm)
        if self.executor == "slurm" and not (self.sbatch.get("partition") and self.sbatch.get("time")):
            raise ValueError("--executor slurm needs at least --slurm partition=NAME time=24:00:00.")


RULES = (
    Rule("executor", "It needs to know how many there are.", needs=("tasks",)),
    Rule("executor=slurm", "It must know the partition and the time of a task.", needs=("slurm",)),
    Rule("tasks", "", needs=("executor",)),
    Rule("workers", "", needs=("executor",), changes_nothing=True),
    Rule("slurm", "", needs=("executor=slurm",), changes_nothing=True),
)
# Of `DataArguments`, in this command.
DATA_RULES = (Rule("data_license", "It is for the record of a run: give it to `pretrain`.", changes_nothing=True),)


# Below, `arguments` are `PreparationArguments` or `RTDTrainingArguments`, and `directory` is that of the blocks. The
# first process calls each function before the others do.


def get_tokenizer(
    data: DataArguments,
    arguments: Any,
    directory: Path,
    of_towers: str | None = None,
    checkpoint: str | None = None,
    keeps: bool = True,
) -> PreTrainedTokenizerBase:
    """The tokenizer of `--tokenizer`, of the pre-trained towers (a directory), of the checkpoint that a run resumes
    from, or one trained on the text, which goes to `directory/tokenizer` if this function `keeps` it. Raises
    ValueError if there is neither a tokenizer nor text to train one on, or the text cannot be read."""
    named = data.tokenizer or of_towers
    trained = directory / TOKENIZER_DIRECTORY
    if named or checkpoint or arguments.process_index:
        return load_tokenizer(named or checkpoint or str(trained), data.lowercase if named else None)
    sources = data.sources()
    if any(source.is_prepared for source in sources):
        raise ValueError("There is no text to train a tokenizer on. Name one (--tokenizer).")
    check_output(trained, replaces=TOKENIZER_FILE, ours=TOKENIZER_FILES)  # before the work
    with open_texts(sources, directory, arguments.disable_tqdm) as texts:
        logger.info(f"Training a tokenizer of {data.vocab_size:,} tokens.")

        def lines() -> Iterator[str]:
            return chain.from_iterable(text.read("Reading") for text in texts)

        tokenizer = train_wordpiece(lines, data.vocab_size, data.lowercase is not False)
        if keeps:
            keep_tokenizer(tokenizer, trained)
    return tokenizer


def get_sequences(
    data: DataArguments,
    arguments: Any,
    directory: Path,
    tokenizer: PreTrainedTokenizerBase,
    trained_on: str | None = None,
    called: str = "Training",
    cache_dir: str | None = None,
) -> tuple[Blocks, Blocks | None]:
    """The training and the held-out sequences, prepared from text, or of block files. The main process prepares, and
    verifies what is there. `trained_on` is the hash of the training sequences of a run that is resumed; the log says
    what they are `called`; copies of remote shards go to `cache_dir`. Raises ValueError for files that cannot be
    used."""
    is_main = arguments.process_index == 0
    share = 0.0 if data.held_out_files else data.held_out_share

    def get(sources: list[Source], name: str, share: float) -> tuple[Blocks, Blocks | None]:
        length = arguments.max_seq_length
        if any(source.is_prepared for source in sources):
            if len(sources) > 1:
                raise ValueError(f"Name one block file alone, not {len(sources)} sources.")
            if share:
                logger.warning("Prepared blocks are not split, so nothing is held out. Name --held_out_files.")
            file = open_blocks(sources[0].place, verify=is_main, cache_dir=cache_dir)
            found = file.header.max_seq_length
            if file.header.tokenizer_hash != tokenizer_hash(tokenizer):
                raise ValueError(f"{file.path} was made with another tokenizer. Name that one (--tokenizer).")
            if data.word_segmenter and (by := file.header.word_segmenter) != get_segmenter(data.word_segmenter)[1]:
                raise ValueError(f"The words of {file.path} were found by {by}. Leave --word_segmenter out.")
            if found != length:
                raise ValueError(
                    f"{file.path} has sequences of {found} tokens, not {length}. Use --max_seq_length {found}, or "
                    "prepare the text again."
                )
            return file, None
        if is_main:
            options = {key: getattr(data, key) for key in ("packing", "num_proc", "drop_duplicates", "word_segmenter")}
            options |= {"seed": arguments.seed, "disable_progress": arguments.disable_tqdm, "held_out_share": share}
            options |= {"sha256": trained_on if name == "train" else None, "shard_size": data.shard_bytes}
            return prepare_blocks(sources, tokenizer, directory, length, name=name, **options)
        files = (open_blocks(part_path(directory, part, data.shard_bytes)) for part in (name, "held_out"))
        return next(files), next(files) if share else None

    train, held_out = get(data.sources(), "train", share)
    if data.held_out_files:
        held_out, _ = get(data.parse(data.held_out_files), "held_out", 0.0)
        check_held_out(train, held_out)
    for what, file in ((called, train), ("Held out", held_out)):
        if file is not None:
            log_header(what, file.header)
    return train, held_out


def log_header(what: str, header: BlockHeader) -> None:
    """Tells how much was prepared."""
    length = header.max_seq_length
    filled = header.num_tokens / (header.num_sequences * header.max_seq_length)
    told = ", ".join(f"{name.replace('_', ' ')}: {count:,}" for name, count in header.statistics.items())
    logger.info(f"{what}: {header.num_sequences:,} sequences of {length}, {filled:.1%} filled ({told})")


def check_held_out(train: Blocks, held_out: Blocks) -> None:
    """Raises ValueError for held-out text that is trained on, or whose words were found in another way."""
    first = train.header
    second = held_out.header
    if first.sha256 == second.sha256:
        raise ValueError(f"{held_out.path}, which is held out, is what is trained on. Name another one.")
    is_split = (first.sources, first.recipe) == (second.sources, second.recipe) and first.recipe["held_out_share"]
    names = {source["sha256"]: source["name"] for source in first.sources}
    for source in second.sources:
        if source["sha256"] in names and not is_split:
            raise ValueError(
                f"{source['name']}, which is held out, holds the same text as {names[source['sha256']]}, which is "
                "trained on. Take it out of the one or the other."
            )
    if first.word_segmenter != second.word_segmenter:
        raise ValueError(
            f"The words of {train.path} were found by {first.word_segmenter}, those of {held_out.path} by "
            f"{second.word_segmenter}. Prepare both with the same --word_segmenter."
        )


def main(argv: list[str], default_text: Sequence[str] = ()) -> None:
    """The command `prepare`. `default_text` is used where no flag names text."""
    arguments, data = parse_arguments((PreparationArguments, DataArguments), argv, __doc__)
    data.set_default_text(default_text)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hf_electra_rtd").setLevel(logging.INFO)
    directory = Path(arguments.output_dir)
    check_arguments(data, rules=DATA_RULES)
    if prepared := [source.name for source in data.sources() if source.is_prepared and arguments.executor is None]:
        raise ValueError(f"{prepared[0]} is prepared already. Name text, or train on it.")
    if arguments.executor is not None:
        try:
            from hf_electra_rtd.data import distributed
        except ImportError as error:
            raise ValueError(
                f"--executor needs the package datatrove ({error}): pip install 'hf-electra-rtd[scale]'"
            ) from None
        places, done = distributed.prepare(arguments, data)
    else:
        kept = directory / TOKENIZER_DIRECTORY
        check_output(kept, replaces=TOKENIZER_FILE, ours=TOKENIZER_FILES)  # before the work
        tokenizer = get_tokenizer(data, arguments, directory, keeps=False)
        files = get_sequences(data, arguments, directory, tokenizer)
        done = "Train"
        keep_tokenizer(tokenizer, kept)  # after the blocks: without new ones for training, earlier ones keep theirs
        places = [file.path for file in files if file is not None]
    flags = ["--train_files", places[0], "--max_seq_length", str(arguments.max_seq_length)]
    flags += ["--held_out_files", places[1]] if places[1:] else ["--held_out_share", "0"]
    flags += ["--tokenizer", str(directory / TOKENIZER_DIRECTORY)]
    command = "hf-electra-rtd pretrain --size small --output_dir runs/small"
    print(f"\n{done} on it with (choose --size and --output_dir)\n\n    {command} {shlex.join(flags)}\n")


if __name__ == "__main__":
    run(main)
