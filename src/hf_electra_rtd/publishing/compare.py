"""Compares runs: pre-trainings by their held-out metrics, fine-tunings by their scores.

    hf-electra-rtd compare runs/rtd_1 runs/rtd_2 runs/electric_1 --picture curves.png
    hf-electra-rtd compare runs/glue_discriminator runs/glue_random

Runs that differ only in their seed are one row: pre-trainings with means and 95 % intervals, fine-tunings with median,
mean and best next to published scores. If the output is not a terminal, tables are Markdown.
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_electra_rtd.base.cli import flag, parse_arguments, run
from hf_electra_rtd.base.files import writing
from hf_electra_rtd.base.records import EvaluationRecord, PretrainingRecord
from hf_electra_rtd.publishing.pictures import plot_comparison, plot_scores
from hf_electra_rtd.publishing.pretrainings import pool, pretraining_table
from hf_electra_rtd.publishing.tables import differences, print_table, read_evaluations, results_table


@dataclass
class CompareArguments:
    """Which results."""

    directories: list[str] = flag([], "Output directory of pre-trainings or fine-tunings.", words="DIRECTORY")
    picture: str | None = flag(
        None,
        "A .png to draw: held-out curves of pre-trainings, or scores of fine-tunings over the tokens of pre-training, "
        "with one curve for each DIRECTORY.",
    )


def main(argv: list[str]) -> None:
    """Prints tables, and the difference between two fine-tuned models. Raises ValueError if nothing can be
    compared."""
    (arguments,) = parse_arguments((CompareArguments,), argv, __doc__)
    if not arguments.directories:
        raise ValueError("There is nothing to compare. Name the output directories of pre-trainings or fine-tunings.")
    paths = {path.resolve(): None for place in arguments.directories for path in PretrainingRecord.find(place)}
    pretrainings = pool(map(PretrainingRecord.load, paths))
    if pretrainings:
        print_table(pretraining_table(pretrainings))
    if arguments.picture is not None and pretrainings:
        with writing(arguments.picture) as partial:
            plot_comparison({each.name: each.runs for each in pretrainings}, partial)
    fine_tuned = [
        place for place in arguments.directories if EvaluationRecord.find(place) or not PretrainingRecord.find(place)
    ]
    if fine_tuned:
        runs = {place: read_evaluations([place]) for place in fine_tuned}
        records = {path: record for of_place in runs.values() for path, record in of_place.items()}
        print_table(results_table(records.values()))
        for line in differences(records):
            print(line)
        if arguments.picture is not None and not pretrainings:
            with writing(arguments.picture) as partial:
                plot_scores({place: of_place.values() for place, of_place in runs.items()}, partial)


if __name__ == "__main__":
    run(main)
