"""Compares fine-tuning results: several models in one table, or the checkpoints along one pre-training in a picture.

    hf-electra-rtd compare runs/glue_discriminator runs/glue_random

prints one table a benchmark of what `finetune` left there, beside published figures (`--markdown` for a page), and

    hf-electra-rtd compare --along 456=runs/glue_6 7300=runs/glue_100 --random_weights runs/glue_random

draws the scores of checkpoints against the steps of pre-training after which they were exported.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from hf_electra_rtd.cli import run
from hf_electra_rtd.publishing.pictures import plot_along_pretraining
from hf_electra_rtd.publishing.tables import print_results, read_evaluations, results_table


ALONG_FILE = "along_pretraining.png"


def main(argv: list[str]) -> None:
    """The command.

    Raises:
        ValueError: for a directory without results, an `--along` that names no step, or runs that cannot be compared.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("directories", nargs="*", metavar="DIRECTORY", help="output_dir of a fine-tuning")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--along", nargs="+", default=[], metavar="STEP=DIRECTORY", help="draw these checkpoints")
    parser.add_argument(
        "--random_weights", metavar="DIRECTORY", help="the same tasks from random weights, for --along"
    )
    parser.add_argument("--tokens_per_step", type=float, help="of pre-training: the axis counts tokens")
    parser.add_argument("--output_dir", default=".", help=f"where {ALONG_FILE} is written (%(default)s)")
    arguments = parser.parse_args(argv)
    if not arguments.directories and not arguments.along:
        parser.error("pass directories to compare, or checkpoints with --along")
    records = read_evaluations(arguments.directories)
    if arguments.markdown and records:
        print(results_table(records))
    elif records:
        print_results(records)
    if arguments.along:
        towers = {}
        for text in arguments.along:
            step, _, directory = text.partition("=")
            if not step.isdigit() or not directory:
                raise ValueError(f"--along {text}: pass the step and the directory, such as 456=runs/glue_6.")
            towers[int(step)] = read_evaluations([directory])
        random = read_evaluations([arguments.random_weights]) if arguments.random_weights else []
        output = Path(arguments.output_dir)
        output.mkdir(parents=True, exist_ok=True)
        print(plot_along_pretraining(towers, random, output / ALONG_FILE, arguments.tokens_per_step))


if __name__ == "__main__":
    run(main)
