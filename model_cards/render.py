#!/usr/bin/env python
"""Renders the model cards in this directory from the records beside them: `python model_cards/render.py`.

A model is a directory with `card.json` (what no record knows: the repositories' prefix, license, languages),
`run_record.json`, and the results of its fine-tuned discriminators: `evaluations/final`, `evaluations/step-<N>` and,
of other models, `evaluations/compared`.
"""

from __future__ import annotations

import json
from pathlib import Path

from hf_electra_rtd.publishing.card import CardArguments, Evaluations, pretraining_card
from hf_electra_rtd.publishing.pictures import CURVES_FILE, plot_curves
from hf_electra_rtd.publishing.tables import read_evaluations
from hf_electra_rtd.records import PretrainingRecord


MODELS = sorted(path.parent for path in Path(__file__).parent.glob("*/card.json"))


def render(directory: Path) -> dict[Path, str]:
    """The cards of a model's discriminator and generator, by the path that each is written to."""
    described = json.loads((directory / "card.json").read_text(encoding="utf-8"))
    prefix = described.pop("prefix")
    ids = {part: f"{prefix}-{part}" for part in ("discriminator", "generator")}
    record, results = PretrainingRecord.load(directory), directory / "evaluations"
    found = {path.name: read_evaluations([path]) for path in results.glob("*")}
    evaluations = Evaluations(
        final=found.get("final", []),
        compared=found.get("compared", []),
        fractions={int(name[5:]): runs for name, runs in found.items() if name.startswith("step-")},
    )
    return {
        directory / f"{part}.md": pretraining_card(
            record,
            part,
            repo_id,
            CardArguments(**described),
            evaluations if part == "discriminator" else None,
            related=ids,
        )
        for part, repo_id in ids.items()
    }


if __name__ == "__main__":
    for model in MODELS:
        plot_curves(PretrainingRecord.load(model), model / CURVES_FILE)
        for path, card in render(model).items():
            path.write_text(card, encoding="utf-8", newline="\n")
            print(path)
