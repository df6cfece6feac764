"""What a run is fed: the tokenizer and the rows, from text or from what was prepared before."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.data.blocks import BlockFile
from hf_electra_rtd.data.documents import BLOCK_SUFFIX, find_files, read_lines
from hf_electra_rtd.data.packing import check_packing
from hf_electra_rtd.data.preparation import check_held_out_share, describe, prepare_blocks
from hf_electra_rtd.data.tokenization import load_tokenizer, tokenizer_hash, train_wordpiece
from hf_electra_rtd.towers import save_tokenizer
from hf_electra_rtd.training.arguments import RTDTrainingArguments


logger = logging.getLogger(__name__)

TOKENIZER_DIRECTORY = "tokenizer"
BLOCKS_DIRECTORY = "blocks"


@dataclass
class DataArguments:
    """Which text, and how it becomes rows."""

    train_files: list[str] = field(
        default_factory=list,
        metadata={"help": "Text files or globs (.txt, .txt.gz, .txt.zst), or one prepared block file (.blocks)."},
    )
    held_out_files: list[str] | None = field(
        default=None, metadata={"help": "Held-out text or a block file; by default a share of the documents."}
    )
    held_out_share: float = field(
        default=0.05, metadata={"help": "Share of the documents that is held out; 0 for none."}
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


def get_tokenizer(
    data: DataArguments, output_dir: str, of_towers: str | None = None, resumed: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer named by `--tokenizer`, or that of the tower to start from, or one trained on the text.

    A trained one is kept in the run's directory, where a run that is resumed finds it.

    Raises:
        ValueError: if there is neither a tokenizer nor text to train one on.
    """
    named = data.tokenizer or of_towers
    if named is not None:
        return load_tokenizer(named, data.lowercase)
    trained = Path(output_dir) / TOKENIZER_DIRECTORY
    if resumed:
        return load_tokenizer(str(trained))
    files = find_files(data.train_files)
    if any(file.endswith(BLOCK_SUFFIX) for file in files):
        raise ValueError(
            "A block file holds no text to train a tokenizer on: name the one that made it (--tokenizer)."
        )
    logger.info(f"Training a tokenizer of {data.vocab_size:,} tokens.")
    tokenizer = train_wordpiece(
        lambda: (line for file in files for line in read_lines(file)),
        data.vocab_size,
        lowercase=data.lowercase is not False,
    )
    save_tokenizer(tokenizer, trained)
    return tokenizer


def get_rows(
    data: DataArguments, training: RTDTrainingArguments, tokenizer: PreTrainedTokenizerBase
) -> tuple[BlockFile, BlockFile | None]:
    """The training and the held-out rows, prepared from text or read from block files.

    Raises:
        ValueError: for files that cannot be used, by name.
    """
    share = 0.0 if data.held_out_files else data.held_out_share
    train, held_out = _rows(data.train_files, "train", share, data, training, tokenizer)
    if data.held_out_files:
        held_out, _ = _rows(data.held_out_files, "held_out", 0.0, data, training, tokenizer)
    for name, rows in (("Training", train), ("Held out", held_out)):
        if rows is not None:
            logger.info(f"{name}: {describe(rows)}")
    return train, held_out


def _rows(
    patterns: list[str],
    name: str,
    held_out_share: float,
    data: DataArguments,
    training: RTDTrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[BlockFile, BlockFile | None]:
    if not patterns:
        raise ValueError("There is nothing to train on: name text or block files (--train_files).")
    files = find_files(patterns)
    if not any(file.endswith(BLOCK_SUFFIX) for file in files):
        return prepare_blocks(
            files,
            tokenizer,
            Path(str(training.output_dir)) / BLOCKS_DIRECTORY,
            training.row_length,
            data.packing,
            held_out_share,
            training.seed,
            name,
            bool(training.disable_tqdm),
        )
    if len(files) > 1:
        raise ValueError(f"Give one block file alone, not {len(files)} files: {', '.join(files)}.")
    rows = BlockFile(files[0], verify=True)
    if rows.header.tokenizer_hash != tokenizer_hash(tokenizer):
        raise ValueError(f"{files[0]} was made with another tokenizer: name the one that made it (--tokenizer).")
    if rows.header.row_length != training.row_length:
        raise ValueError(
            f"{files[0]} has rows of {rows.header.row_length} tokens, not {training.row_length}: "
            f"say --row_length {rows.header.row_length}, or prepare the text again."
        )
    if held_out_share and name == "train":
        logger.warning(
            f"{files[0]} is prepared and cannot be split by document: the run is not evaluated. Name its held-out "
            "rows (--held_out_files)."
        )
    return rows, None
