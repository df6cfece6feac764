#!/usr/bin/env python
"""Puts fine-tuning results side by side: several models, or the towers along one pre-training.

    python examples/compare_results.py runs/glue_discriminator runs/glue_mlm runs/glue_random

prints one table of what `finetune.py` left there, beside published figures (`--markdown` for a page), and

    python examples/compare_results.py --along 456=runs/glue_6 913=runs/glue_12 7300=runs/glue_100 \\
        --random_weights runs/glue_random --tokens_per_step 2048 --output_dir docs

draws the scores of towers against the steps of pre-training after which they were exported.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from hf_electra_rtd.publishing.along_pretraining import plot_along_pretraining
from hf_electra_rtd.publishing.published import published_for
from hf_electra_rtd.publishing.results import make_markdown, make_table, summarize
from hf_electra_rtd.records import EVALUATION_FILE, EvaluationRecord
from hf_electra_rtd.training.cli import run_as_script


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("directories", nargs="*", metavar="DIRECTORY", help="output_dir of finetune.py")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--along", nargs="+", default=[], metavar="STEP=DIRECTORY", help="towers along a pre-training")
    parser.add_argument("--random_weights", metavar="DIRECTORY", help="the same tasks from random weights")
    parser.add_argument("--tokens_per_step", type=float, help="of pre-training: the axis counts tokens")
    parser.add_argument("--output_dir", default=".", help="where the picture is written (%(default)s)")
    arguments = parser.parse_args(argv)
    if not arguments.directories and not arguments.along:
        parser.error("name directories to compare, or towers (--along)")
    return arguments


def read_records(directory: str) -> list[EvaluationRecord]:
    """The records of all runs in a directory.

    Raises:
        ValueError: if there are none.
    """
    paths = sorted(Path(directory).rglob(EVALUATION_FILE))
    if not paths:
        raise ValueError(f"{directory} holds no results: it must be the --output_dir of finetune.py.")
    return [EvaluationRecord.load(path) for path in paths]


def main(argv: list[str]) -> None:
    arguments = parse(argv)
    records = [record for directory in arguments.directories for record in read_records(directory)]
    for benchmark in dict.fromkeys(record.benchmark for record in records):
        of_benchmark = [record for record in records if record.benchmark == benchmark]
        published = published_for(benchmark, str(of_benchmark[0].model["size"]))
        results = summarize(of_benchmark)
        if arguments.markdown:
            print(make_markdown(results, published))
        else:
            Console(width=None if sys.stdout.isatty() else 160).print(make_table(results, published))
    if arguments.along:
        towers = []
        for text in arguments.along:
            step, _, directory = text.partition("=")
            if not step.isdigit() or not directory:
                raise ValueError(f"--along {text}: write the step and the directory, such as 456=runs/glue_6.")
            towers.append((int(step), read_records(directory)))
        random = read_records(arguments.random_weights) if arguments.random_weights else []
        Path(arguments.output_dir).mkdir(parents=True, exist_ok=True)
        print(plot_along_pretraining(towers, random, arguments.output_dir, arguments.tokens_per_step))


if __name__ == "__main__":
    run_as_script(main)
