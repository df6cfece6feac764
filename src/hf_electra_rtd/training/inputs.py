"""What a run is fed: the tokenizer and the rows, from text or from what was prepared before."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.data.blocks import BlockFile
from hf_electra_rtd.data.duplicates import check_duplicates
from hf_electra_rtd.data.encoding import check_num_proc
from hf_electra_rtd.data.files import BLOCK_SUFFIX
from hf_electra_rtd.data.packing import check_packing
from hf_electra_rtd.data.preparation import describe, prepare_blocks
from hf_electra_rtd.data.readers import Reading
from hf_electra_rtd.data.selection import check_held_out_share
from hf_electra_rtd.data.sources import (
    AnySource,
    FileSource,
    drop_repeated_files,
    parse_dataset_source,
    parse_file_source,
)
from hf_electra_rtd.data.texts import Corpus
from hf_electra_rtd.data.tokenization import load_tokenizer, tokenizer_hash, train_wordpiece
from hf_electra_rtd.data.writing import explaining_failures, remove_leftovers
from hf_electra_rtd.towers import save_tokenizer
from hf_electra_rtd.training.arguments import RTDTrainingArguments


logger = logging.getLogger(__name__)

TOKENIZER_DIRECTORY = "tokenizer"
BLOCKS_DIRECTORY = "blocks"
_TOKENIZER_RECIPE = "trained_tokenizer.json"  # in the directory of the blocks: what the tokenizer was trained on


@dataclass
class DataArguments:
    """Which text, and how it becomes rows."""

    train_files: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Text (.txt, .jsonl, .parquet, each also .gz or .zst): files, directories, globs, each with "
            "options behind it ('news/*.jsonl,text_column=body,weight=2'); or one prepared block file (.blocks)."
        },
    )
    train_datasets: list[str] = field(
        default_factory=list,
        metadata={
            "help": "Datasets of the Hub with options (config, split, streaming, revision, text_column, weight): "
            "'wikimedia/wikipedia,config=20231101.en,streaming=true'. A stream is fetched once for a tokenizer that "
            "is trained, and once for the rows."
        },
    )
    text_column: str = field(default="text", metadata={"help": "Key or column that holds the text."})
    encoding: str = field(default="utf-8", metadata={"help": "Of .txt and .jsonl, by its name in Python."})
    encoding_errors: str = field(
        default="strict",
        metadata={"help": "What becomes of bytes that do not fit the encoding: strict (refuse), replace or ignore."},
    )
    held_out_files: list[str] | None = field(
        default=None, metadata={"help": "Held-out text, as for --train_files, or a block file; by default a share."}
    )
    held_out_share: float = field(
        default=0.05, metadata={"help": "Share of the documents that is held out; 0 for none."}
    )
    drop_duplicates: str = field(
        default="no",
        metadata={"help": "Of lines that occur again, drop: no, exact copies, near copies (case, digits, accents)."},
    )
    num_proc: int | None = field(
        default=None,
        metadata={"help": "Processes that tokenise; by default one a core for a large corpus, none for a small one."},
    )
    packing: str = field(default="full", metadata={"help": "How text becomes rows: full or original."})
    tokenizer: str | None = field(
        default=None, metadata={"help": "Directory, Hub id or vocab.txt; by default one is trained on the text."}
    )
    vocab_size: int = field(default=8192, metadata={"help": "Tokens of a tokenizer that is trained."})
    lowercase: bool | None = field(
        default=None,
        metadata={"help": "For a trained tokenizer or a vocab.txt; by default as the vocab.txt is, or true."},
    )
    data_license: str | None = field(default=None, metadata={"help": "Licence of the text, for the run's record."})
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Delete the run that lies in output_dir, and start anew."}
    )

    def __post_init__(self) -> None:
        check_packing(self.packing)
        check_held_out_share(self.held_out_share)
        check_duplicates(self.drop_duplicates)
        check_num_proc(self.num_proc)
        self.reading  # noqa: B018

    @property
    def reading(self) -> Reading:
        """How files without options of their own are read."""
        return Reading(self.text_column, self.encoding, self.encoding_errors)

    def sources(self) -> list[AnySource]:
        """What to train on.

        Raises:
            ValueError: if there is nothing, or not what was named.
        """
        if not self.train_files and not self.train_datasets:
            raise ValueError(
                "There is nothing to train on: name text or block files (--train_files), or datasets "
                "(--train_datasets)."
            )
        files = [parse_file_source(text, self.reading) for text in self.train_files]
        return [*files, *(parse_dataset_source(text, self.text_column) for text in self.train_datasets)]


def get_tokenizer(
    data: DataArguments,
    output_dir: str,
    of_towers: str | None = None,
    resumed: bool = False,
    blocks_directory: str | os.PathLike[str] | None = None,
    disable_progress: bool = True,
) -> PreTrainedTokenizerBase:
    """The tokenizer named by `--tokenizer`, or that of the tower to start from, or one trained on the text.

    A trained one is kept in the run's directory, where a run that is resumed, or that starts again with the same text,
    finds it. A stream is fetched for the tokenizer, and once more for the rows.

    Args:
        data: what was asked for.
        output_dir: of the run.
        of_towers: where the tokenizer of a pre-trained tower lies.
        resumed: whether the run is resumed.
        blocks_directory: where the rows will be prepared; by default `output_dir/blocks`.
        disable_progress: show no bars.

    Raises:
        ValueError: if there is neither a tokenizer nor text to train one on, or the text cannot be read.
    """
    named = data.tokenizer or of_towers
    if named is not None:
        return load_tokenizer(named, data.lowercase)
    trained = Path(output_dir) / TOKENIZER_DIRECTORY
    if resumed:
        return load_tokenizer(str(trained))
    sources = drop_repeated_files(data.sources())
    if any(map(_is_prepared, sources)):
        raise ValueError(
            "A block file holds no text to train a tokenizer on: name the one that made it (--tokenizer)."
        )
    directory = Path(blocks_directory or Path(output_dir) / BLOCKS_DIRECTORY)
    with explaining_failures(directory):
        directory.mkdir(parents=True, exist_ok=True)
    remove_leftovers(directory)
    with Corpus(sources, directory, disable_progress) as corpus:
        lowercase = data.lowercase is not False
        recipe = {"sources": corpus.identities(), "vocab_size": data.vocab_size, "lowercase": lowercase}
        tokenizer = _trained_before(directory / _TOKENIZER_RECIPE, trained, recipe)
        if tokenizer is not None:
            logger.info(f"Using the tokenizer in {trained}, trained before on the same text.")
            return tokenizer
        corpus.counts()  # tells text that cannot be used before any work depends on it
        logger.info(f"Training a tokenizer of {data.vocab_size:,} tokens.")
        tokenizer = train_wordpiece(
            lambda: (line for text in corpus.texts for line in text.lines()), data.vocab_size, lowercase
        )
    with explaining_failures(trained):
        save_tokenizer(tokenizer, trained)
        described = {"recipe": recipe, "tokenizer_hash": tokenizer_hash(tokenizer)}
        (directory / _TOKENIZER_RECIPE).write_text(json.dumps(described), encoding="utf-8")
    return tokenizer


def _trained_before(path: Path, trained: Path, recipe: dict[str, object]) -> PreTrainedTokenizerBase | None:
    """The tokenizer that was trained in the same way on the same text, if it is still there as it was."""
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(described, dict) or described.get("recipe") != recipe:
            return None
        tokenizer = load_tokenizer(str(trained))
    except (OSError, ValueError):
        return None
    return tokenizer if tokenizer_hash(tokenizer) == described.get("tokenizer_hash") else None


def get_rows(
    data: DataArguments, training: RTDTrainingArguments, tokenizer: PreTrainedTokenizerBase
) -> tuple[BlockFile, BlockFile | None]:
    """The training and the held-out rows of a run, prepared from text or read from block files.

    The first process prepares and verifies; call this on the others when it is done, and they open what it made.

    Raises:
        ValueError: for files that cannot be used, by name.
    """
    return prepare_rows(
        data,
        tokenizer,
        Path(str(training.output_dir)) / BLOCKS_DIRECTORY,
        training.row_length,
        training.seed,
        bool(training.disable_tqdm),
        is_main_process=training.process_index == 0,
    )


def prepare_rows(
    data: DataArguments,
    tokenizer: PreTrainedTokenizerBase,
    directory: Path,
    row_length: int,
    seed: int,
    disable_progress: bool = False,
    is_main_process: bool = True,
) -> tuple[BlockFile, BlockFile | None]:
    """The training and the held-out rows.

    Args:
        data: what was asked for.
        tokenizer: of the rows.
        directory: where rows are prepared.
        row_length: L.
        seed: of the split and of the packing.
        disable_progress: show no bars.
        is_main_process: prepare, and verify what is there. False opens what was prepared without reading it all.

    Raises:
        ValueError: for files that cannot be used, by name.
    """
    held_out: BlockFile | None
    if is_main_process and not data.held_out_files and not data.held_out_share:
        # What an earlier preparation held out may be trained on now.
        (directory / f"held_out{BLOCK_SUFFIX}").unlink(missing_ok=True)
    share = 0.0 if data.held_out_files else data.held_out_share

    def rows(sources: Sequence[AnySource], name: str, share: float) -> tuple[BlockFile, BlockFile | None]:
        if any(map(_is_prepared, sources)):
            file = _named_blocks(sources, tokenizer, row_length, verify=is_main_process)
            if share:
                logger.warning(
                    f"{file.path} is prepared and cannot be split by document: the run is not evaluated. Name its "
                    "held-out rows (--held_out_files)."
                )
            return file, None
        if not is_main_process:
            return _open_prepared(directory, name), _open_prepared(directory, "held_out") if share else None
        return prepare_blocks(
            sources,
            tokenizer,
            directory,
            row_length,
            data.packing,
            share,
            seed,
            name,
            disable_progress,
            data.num_proc,
            data.drop_duplicates,
        )

    sources = data.sources()
    held_out_sources = [parse_file_source(text, data.reading) for text in data.held_out_files or []]
    _refuse_overlap(sources, held_out_sources, directory if is_main_process else None, disable_progress)
    train, held_out = rows(sources, "train", share)
    if held_out_sources:
        held_out, _ = rows(held_out_sources, "held_out", 0.0)
        _refuse_overlapping_blocks(train, held_out)
    for name, file in (("Training", train), ("Held out", held_out)):
        if file is not None:
            logger.info(f"{name}: {describe(file)}")
    return train, held_out


_OVERLAP = "it would be evaluated on what was trained on. Keep it out of --train_files, or out of --held_out_files."


def _refuse_overlap(
    train: Sequence[AnySource], held_out: Sequence[AnySource], directory: Path | None, disable_progress: bool
) -> None:
    """Raises ValueError if a file is both trained on and held out: by its path and, given a directory, by its hash."""
    files = [source for source in train if isinstance(source, FileSource)]
    places = {os.path.realpath(file) for source in files for file in source.files}
    for source in held_out:
        for file in source.files if isinstance(source, FileSource) else ():
            if os.path.realpath(file) in places:
                raise ValueError(f"{file} is both training and held-out text: {_OVERLAP}")
    if directory is None or not held_out or any(map(_is_prepared, train)):
        return
    with Corpus(files, directory, disable_progress) as corpus:
        names = {
            identity["sha256"]: text.name for identity, text in zip(corpus.identities(), corpus.texts, strict=True)
        }
    with Corpus([source for source in held_out if not _is_prepared(source)], directory, disable_progress) as corpus:
        for identity, text in zip(corpus.identities(), corpus.texts, strict=True):
            if identity["sha256"] in names:
                raise ValueError(
                    f"{text.name}, which is held out, equals {names[identity['sha256']]}, which is trained on: "
                    f"{_OVERLAP}"
                )


def _refuse_overlapping_blocks(train: BlockFile, held_out: BlockFile | None) -> None:
    """Raises ValueError if block files were made of one text, unless one preparation split it."""
    if held_out is None or (
        train.header.recipe == held_out.header.recipe and train.header.recipe.get("held_out_share")
    ):
        return
    digests = {source.get("sha256") for source in train.header.sources} - {None}
    for source in held_out.header.sources:
        if source.get("sha256") in digests:
            raise ValueError(f"{source['name']} is both training and held-out text: {_OVERLAP}")


def _is_prepared(source: AnySource) -> bool:
    return isinstance(source, FileSource) and source.is_prepared


def _open_prepared(directory: Path, name: str) -> BlockFile:
    path = directory / f"{name}{BLOCK_SUFFIX}"
    if not path.exists():
        raise ValueError(
            f"{path}, which the first process prepared, is not there: all machines have to share the directory."
        )
    return BlockFile(path)


def _named_blocks(
    sources: Sequence[AnySource], tokenizer: PreTrainedTokenizerBase, row_length: int, verify: bool
) -> BlockFile:
    named = [
        name for source in sources for name in (source.files if isinstance(source, FileSource) else [source.name])
    ]
    if len(named) > 1:
        raise ValueError(f"Give one block file alone, not {len(named)} sources: {', '.join(named[:5])}.")
    rows = BlockFile(named[0], verify=verify)
    if rows.header.tokenizer_hash != tokenizer_hash(tokenizer):
        raise ValueError(f"{named[0]} was made with another tokenizer: name the one that made it (--tokenizer).")
    if rows.header.row_length != row_length:
        raise ValueError(
            f"{named[0]} has rows of {rows.header.row_length} tokens, not {row_length}: "
            f"say --row_length {rows.header.row_length}, or prepare the text again."
        )
    return rows
