#!/usr/bin/env python
"""Renders the model cards in this directory from the records beside them: `python model_cards/render.py`.

A model is a directory with `card.json` (what no record knows: the repositories' prefix, license, languages),
`run_record.json`, and fine-tuning results: `evaluations/final` of its discriminator, and `evaluations/compared` of
other models. docs/background/results.md shows them, too.
"""

from __future__ import annotations

import json
from pathlib import Path

from hf_electra_rtd.base.records import PretrainingRecord
from hf_electra_rtd.publishing.card import CardArguments, pretraining_card
from hf_electra_rtd.publishing.pictures import CURVES_FILE, plot_curves
from hf_electra_rtd.publishing.tables import read_evaluations


MODELS = sorted(path.parent for path in Path(__file__).parent.glob("*/card.json"))


def render(directory: Path) -> dict[Path, str]:
    """The cards of a model's discriminator and generator, by the path that each is written to."""
    described = json.loads((directory / "card.json").read_text(encoding="utf-8"))
    prefix = described.pop("prefix")
    ids = {part: f"{prefix}-{part}" for part in ("discriminator", "generator")}
    record, results = PretrainingRecord.load(directory), directory / "evaluations"
    own, compared = (list(read_evaluations(results.glob(name)).values()) for name in ("final", "compared"))
    return {
        directory / f"{part}.md": pretraining_card(
            record,
            part,
            repo_id,
            CardArguments(**described),
            own if part == "discriminator" else (),
            compared,
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
