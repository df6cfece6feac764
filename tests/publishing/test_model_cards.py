"""The committed cards and tables agree with the committed records."""

import re
from pathlib import Path

import pytest

from hf_electra_rtd.base.records import PretrainingRecord, public
from hf_electra_rtd.publishing.tables import read_evaluations, results_table


ROOT = Path(__file__).parents[2]
MODELS = sorted((ROOT / "model_cards").glob("*/"))


@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.name)
def test_cards_and_the_page_of_results_hold_the_figures_of_the_records(model):
    record = PretrainingRecord.load(model)
    assert public(record.arguments) == record.arguments
    assert (model / "training_curves.png").is_file()
    cards = {part: (model / f"{part}.md").read_text(encoding="utf-8") for part in ("discriminator", "generator")}
    auc = f"| `discriminator_auc` | {record.metrics['eval_discriminator_auc']:.4g} |"
    for part, card in cards.items():
        for figure in (
            f"{record.tokens:,} tokens",
            f"{record.parameters[part]:,}",
            auc,
            record.data["train"]["packing"],
            f"| `optim` | {record.arguments['training']['optim']} |",
        ):
            assert figure in card, "run `python model_cards/render.py`"
    if (model / "evaluations").is_dir():
        places = [path for name in ("final", "compared") for path in (model / "evaluations").glob(name)]
        table = results_table(read_evaluations(places).values())
        figures = [line.partition(" | ")[2] for line in table.splitlines() if re.match(r"\|.*\d\.\d", line)]
        assert figures  # the rows, without the name of the model
        for text in (cards["discriminator"], (ROOT / "docs/background/results.md").read_text(encoding="utf-8")):
            assert [figure for figure in figures if figure not in text] == []
