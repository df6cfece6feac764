#!/usr/bin/env python
"""Turns text into block files that pre-training reads, once for many runs.

    python examples/prepare_corpus.py

prepares the bundled corpus (759,000 tokens of English novels) in some seconds, and leaves in `runs/corpus` what
`pretrain.py` takes: `train.blocks`, `held_out.blocks` and the `tokenizer/`. It ends with the statistics and
with the command that trains on them. On your own text, with a vocabulary that you have:

    python examples/prepare_corpus.py --train_files 'news/*.jsonl.gz,text_column=body' books/ --tokenizer vocab.txt \
        --row_length 512 --num_proc 8 --drop_duplicates exact --output_dir corpora/mine

The same command again finds everything done. `--help` lists the flags; they can stand in a YAML file (`--config`).
"""

import logging
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hf_electra_rtd.data.preparation import summarize
from hf_electra_rtd.towers import save_tokenizer
from hf_electra_rtd.training.cli import parse_arguments, run_as_script
from hf_electra_rtd.training.inputs import TOKENIZER_DIRECTORY, DataArguments, get_tokenizer, prepare_rows


EXAMPLES = Path(__file__).parent
BUNDLED_CORPUS = EXAMPLES / "data" / "eltec_eng_excerpts.txt.gz"


@dataclass
class PreparationArguments:
    """Where the blocks go, and their shape."""

    output_dir: str = field(default="runs/corpus", metadata={"help": "For block files and tokenizer."})
    row_length: int = field(default=128, metadata={"help": "Tokens a row (the paper: 128 for small, else 512)."})
    seed: int = field(default=42, metadata={"help": "Of the held-out split, the weights' draws and the packing."})
    disable_tqdm: bool = field(default=False, metadata={"help": "Show no progress bars."})


def main(argv: list[str]) -> None:
    arguments, data = parse_arguments((PreparationArguments, DataArguments), argv, description=__doc__)
    if not data.train_files and not data.train_datasets:
        data.train_files = [str(BUNDLED_CORPUS)]
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hf_electra_rtd").setLevel(logging.INFO)

    directory = Path(arguments.output_dir)
    tokenizer = get_tokenizer(
        data, arguments.output_dir, blocks_directory=directory, disable_progress=arguments.disable_tqdm
    )
    if data.tokenizer is not None:
        save_tokenizer(tokenizer, directory / TOKENIZER_DIRECTORY)  # the blocks' own, wherever they are taken
    train, held_out = prepare_rows(
        data, tokenizer, directory, arguments.row_length, arguments.seed, arguments.disable_tqdm
    )
    parts = {"training": train, "held out": held_out}
    print_statistics(summarize({name: rows for name, rows in parts.items() if rows is not None}))

    command = ["accelerate", "launch", str(EXAMPLES / "pretrain.py"), "--train_files", train.path]
    command += ["--held_out_files", held_out.path] if held_out is not None else ["--held_out_share", "0"]
    command += ["--tokenizer", str(directory / TOKENIZER_DIRECTORY), "--row_length", str(arguments.row_length)]
    print(f"\nTrain on it with\n\n    {shlex.join(command)}\n")


def print_statistics(columns: dict[str, dict[str, str]]) -> None:
    """A table with a column for each part and a line for each figure."""
    table = Table()
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for figure in next(iter(columns.values())):
        table.add_row(figure, *(column[figure] for column in columns.values()))
    Console().print(table)


if __name__ == "__main__":
    try:
        run_as_script(main)
    except KeyboardInterrupt:
        sys.exit("interrupted: nothing incomplete was kept; the same command starts again.")
