"""The committed cards and tables say what their committed records say."""

import re
from pathlib import Path

import pytest

from hf_electra_rtd.publishing.tables import read_evaluations, results_table
from hf_electra_rtd.records import PretrainingRecord, public


ROOT = Path(__file__).parents[2]
MODELS = sorted((ROOT / "model_cards").glob("*/"))
EVALUATED = [model for model in MODELS if (model / "evaluations").is_dir()]


def figures(table):
    """Its rows without the name of the model."""
    return [line.partition(" | ")[2] for line in table.splitlines() if re.match(r"\|.*\d\.\d", line)]


@pytest.mark.parametrize("model", MODELS, ids=lambda path: path.name)
def test_cards_hold_the_figures_of_the_record_beside_them(model):
    record = PretrainingRecord.load(model)
    assert public(record.arguments) == record.arguments
    assert (model / "training_curves.png").is_file()
    for part in ("discriminator", "generator"):
        card = (model / f"{part}.md").read_text(encoding="utf-8")
        auc = f"| `discriminator_auc` | {record.metrics['eval_discriminator_auc']:.4g} |"
        for figure in (
            f"{record.tokens:,} tokens",
            f"{record.parameters[part]:,}",
            auc,
            record.data["train"]["packing"],
        ):
            assert figure in card, "run `python model_cards/render.py`"


@pytest.mark.parametrize("model", EVALUATED, ids=lambda path: path.name)
@pytest.mark.parametrize("page", ["docs/results.md", "discriminator.md"])
def test_tables_hold_the_results_of_the_records(model, page):
    records = read_evaluations([model / "evaluations/final", model / "evaluations/compared"]).values()
    text = (ROOT / page if "/" in page else model / page).read_text(encoding="utf-8")
    assert figures(results_table(records))
    for figure in figures(results_table(records)):
        assert figure in text
