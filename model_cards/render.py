#!/usr/bin/env python
"""Renders the model cards in this directory from the records beside them.

    python model_cards/render.py                       # writes every <model>/<tower>.md anew
    python model_cards/render.py --preview build/cards # and pages of them, to look at in a browser

A model is a directory with `card.json` (what no record knows: the repositories' prefix, licence, languages, corpora),
`run_record.json`, `training_curves.png`, and what its towers were fine-tuned to: `evaluations/final`,
`evaluations/step-<N>` and, of other models, `evaluations/compared`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from hf_electra_rtd.publishing.cards import Details, tower_card
from hf_electra_rtd.publishing.preview import write_preview
from hf_electra_rtd.publishing.runs import DISCRIMINATOR, GENERATOR, read_evaluations
from hf_electra_rtd.records import EvaluationRecord, PretrainingRecord
from hf_electra_rtd.training.cli import run_as_script


HERE = Path(__file__).parent


def render(directory: Path) -> Iterator[tuple[Path, str]]:
    """Each tower's card, with the path that it lies at.

    Args:
        directory: of a model.
    """
    described = json.loads((directory / "card.json").read_text(encoding="utf-8"))
    prefix = described.pop("prefix")
    details = Details(**{key: tuple(value) if isinstance(value, list) else value for key, value in described.items()})
    record = PretrainingRecord.load(directory)
    evaluations = directory / "evaluations"
    repositories = {tower: f"{prefix}-{tower}" for tower in (DISCRIMINATOR, GENERATOR)}
    for tower, other in ((DISCRIMINATOR, GENERATOR), (GENERATOR, DISCRIMINATOR)):
        yield (
            directory / f"{tower}.md",
            tower_card(
                record,
                tower,
                repositories[tower],
                details,
                related={other: repositories[other]},
                evaluations=_read(evaluations / "final") if tower == DISCRIMINATOR else (),
                compared=_read(evaluations / "compared") if tower == DISCRIMINATOR else (),
                fraction_evaluations=_along(evaluations) if tower == DISCRIMINATOR else {},
            ),
        )


def models() -> list[Path]:
    """The directories of the models here."""
    return sorted(path.parent for path in HERE.glob("*/card.json"))


def _read(directory: Path) -> list[EvaluationRecord]:
    return read_evaluations([directory]) if directory.is_dir() else []


def _along(evaluations: Path) -> dict[int, list[EvaluationRecord]]:
    return {int(path.name.removeprefix("step-")): _read(path) for path in evaluations.glob("step-*")}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preview", metavar="DIRECTORY", type=Path, help="where pages of the cards are written, too")
    arguments = parser.parse_args(argv)
    for directory in models():
        for path, card in render(directory):
            path.write_text(card, encoding="utf-8", newline="\n")
            print(path)
            if arguments.preview is not None:
                arguments.preview.mkdir(parents=True, exist_ok=True)
                page = arguments.preview / f"{directory.name}-{path.stem}.html"
                print(write_preview(card, page, pictures=directory))


if __name__ == "__main__":
    run_as_script(main)
