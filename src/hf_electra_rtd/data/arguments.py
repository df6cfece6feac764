"""The flags that name text and say how it becomes sequences, and the rules about which flags go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from hf_electra_rtd.base.cli import Rule, check_arguments, flag, parse_size
from hf_electra_rtd.data.text import Source, parse_sources
from hf_electra_rtd.data.words import get_segmenter


@dataclass
class DataArguments:
    """More about the text.

    The flags that name text and say how it becomes sequences.
    """

    train_files: list[str] = flag(
        [],
        "Text (.txt, .jsonl, .parquet; .gz, .zst): files, directories, globs, each with options behind it "
        "('news/*.jsonl,text_column=body,weight=2'); a saved dataset's directory; or one prepared block file or "
        "directory of shards.",
    )
    train_datasets: list[str] = flag(
        [],
        "Datasets of the Hub with options (config, split, streaming, revision, text_column, weight): "
        "'wikimedia/wikipedia,config=20231101.en,streaming=true'.",
    )
    text_column: str = flag("text", "Key or column that holds the text.")
    encoding: str = flag("utf-8", "Encoding of .txt and .jsonl files, by its name in Python.")
    encoding_errors: Literal["strict", "replace", "ignore"] = flag(
        "strict", "What to do with bytes that do not fit the encoding."
    )
    held_out_files: list[str] | None = flag(
        None, "Held-out text, or a prepared block file. Default: a share of the training documents."
    )
    held_out_share: float = flag(0.05, "Share of the documents to hold out. 0: none.", "[0, 1)")
    drop_duplicates: Literal["no", "exact"] = flag("no", "Whether to drop lines that occurred before (exact).")
    num_proc: int | None = flag(None, "Number of threads that tokenize. Default: one per core.", "[1, inf)")
    word_segmenter: Literal["jieba"] | None = flag(
        None, "Word segmenter for --masking word: jieba (Chinese; the extra zh). Default: the tokenizer finds words."
    )
    shard_size: str | None = flag(
        None, "Write several files of at most this size (512MB) and an index. Default: one file."
    )
    packing: Literal["full", "original"] = flag(
        "full", "full (no token is lost) or original (as in google-research/electra)."
    )
    tokenizer: str | None = flag(None, "Directory, Hub id or vocab.txt. Default: a tokenizer is trained on the text.")
    vocab_size: int | None = flag(
        None,
        "Vocabulary size of a trained tokenizer. Default: 8,192, 16,384 or 32,768, depending on the text.",
        "[1, inf)",
    )
    lowercase: bool | None = flag(
        None, "Lower-case the text. Default: as a vocab.txt says; for a trained tokenizer, if the text is English."
    )
    strip_accents: bool | None = flag(
        None,
        "Remove accents and marks. Default: as a vocab.txt says; for a trained tokenizer, if the text is English.",
    )
    data_license: str | None = flag(None, "License of the text, for the record of the run.")

    def __post_init__(self) -> None:
        check_arguments(self, rules=TEXT_RULES)
        get_segmenter(self.word_segmenter)
        self.shard_bytes = parse_size("shard_size", self.shard_size)

    def set_default_text(self, files: Sequence[str]) -> None:
        """Sets `train_files` to `files` if no flag names text."""
        if not self.train_files and not self.train_datasets:
            self.train_files = list(files)

    def sources(self) -> list[Source]:
        """Returns the sources to train on. Raises ValueError if no flag names any, or a named one does not exist."""
        if not self.train_files and not self.train_datasets:
            raise ValueError("There is nothing to train on. Name text (--train_files) or datasets (--train_datasets).")
        return self.parse(self.train_files) + self.parse(self.train_datasets, is_dataset=True)

    def warn_of_unused(self, more: Sequence[str] = ()) -> None:
        """Warns of flags that say how text is read if all sources, including `more`, are prepared already."""
        if all(source.is_prepared for source in [*self.sources(), *self.parse([*(self.held_out_files or ()), *more])]):
            check_arguments(self, rules=PREPARED_RULES)

    def parse(self, texts: Sequence[str], is_dataset: bool = False) -> list[Source]:
        """Returns the sources that `texts` name, with the text column and encoding of the flags."""
        defaults = {key: getattr(self, key) for key in ("text_column", "encoding", "encoding_errors")}
        return [source for text in texts for source in parse_sources(text, is_dataset, **defaults)]


TEXT_RULES = (Rule("held_out_share", "", excludes=("held_out_files",), changes_nothing=True),)
# Rules for a run whose tokenizer is named, or comes with trained networks.
TOKENIZER_RULES = (Rule("vocab_size", "There is a tokenizer already.", changes_nothing=True),)
# Rules for runs whose text is all prepared already.
PREPARED_RULES = tuple(
    Rule(name, "The sequences are prepared already.", changes_nothing=True)
    for name in ("text_column", "encoding", "encoding_errors", "drop_duplicates", "shard_size", "packing")
)


@dataclass
class PreparationArguments:
    """Where the blocks go, and their shape."""

    output_dir: str = flag("runs/corpus", "Directory for the block files and the tokenizer.")
    max_seq_length: int = flag(128, "Tokens per sequence (paper: 128 for small, else 512).", "[3, inf)")
    seed: int = flag(42, "Seed of the held-out split, of weighted sampling and of the packing.", "[0, 4294967295]")
    disable_tqdm: bool = flag(False, "Show no progress bars. They show in a terminal only.")
    executor: Literal["local", "slurm"] | None = flag(
        None, "Prepare shards in several tasks, on one machine or many (the extra scale)."
    )
    tasks: int | None = flag(None, "Number of tasks of the --executor. It does not change the sequences.", "[1, inf)")
    workers: int | None = flag(
        None, "Tasks that run at the same time. Default: one per core (local), no limit (slurm).", "[1, inf)"
    )
    slurm: list[str] = flag([], "Options of sbatch for --executor slurm: partition=NAME time=24:00:00 account=ME ...")
    process_index: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_arguments(self, rules=RULES)
        self.sbatch: dict[str, Any] = dict(option.partition("=")[::2] for option in self.slurm)
        if self.executor == "slurm" and not (self.sbatch.get("partition") and self.sbatch.get("time")):
            raise ValueError("--executor slurm needs at least --slurm partition=NAME time=24:00:00.")


RULES = (
    Rule("executor", "The number of tasks must be given.", needs=("tasks",)),
    Rule("tasks", "", needs=("executor",)),
    Rule("workers", "", needs=("executor",), changes_nothing=True),
    Rule("slurm", "", needs=("executor=slurm",), changes_nothing=True),
)
# Rules for `DataArguments` in the command `prepare`.
DATA_RULES = (Rule("data_license", "It is for the record of a run: give it to `pretrain`.", changes_nothing=True),)
