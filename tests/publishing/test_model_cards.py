"""The committed cards are what their committed records say."""

import importlib.util
import re
from pathlib import Path

import pytest

from hf_electra_rtd.publishing.privacy import find_private
from hf_electra_rtd.publishing.published import published_for
from hf_electra_rtd.publishing.results import make_markdown, summarize
from hf_electra_rtd.publishing.runs import read_evaluations
from hf_electra_rtd.records import EVALUATION_FILE, EvaluationRecord, PretrainingRecord


CARDS = Path(__file__).parents[2] / "model_cards"
MODELS = ("tiny-bundled", "tiny-chinese", "tiny-english")


@pytest.fixture(scope="module")
def rendering():
    spec = importlib.util.spec_from_file_location("render_model_cards", CARDS / "render.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_model_of_the_readme_has_its_cards(rendering):
    assert tuple(path.name for path in rendering.models()) == MODELS
    readme = (CARDS.parent / "README.md").read_text(encoding="utf-8")
    for model in MODELS:
        assert f"model_cards/{model}" in readme


@pytest.mark.parametrize("model", MODELS)
def test_cards_are_rendered_from_the_records_beside_them(rendering, model):
    cards = dict(rendering.render(CARDS / model))
    assert [path.name for path in cards] == ["discriminator.md", "generator.md"]
    for path, card in cards.items():
        assert path.read_text(encoding="utf-8") == card, f"run `python model_cards/render.py`: {path.name} is stale"
        for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", card):
            assert (path.parent / picture).is_file()


@pytest.mark.parametrize("model", MODELS)
def test_a_card_that_is_typed_over_is_noticed(rendering, model, tmp_path, monkeypatch):
    record = PretrainingRecord.load(CARDS / model)
    record.tokens += 1
    monkeypatch.setattr(rendering.PretrainingRecord, "load", classmethod(lambda cls, path: record))
    assert all(path.read_text(encoding="utf-8") != card for path, card in rendering.render(CARDS / model))


@pytest.mark.parametrize("path", sorted(CARDS.rglob("*.json")), ids=lambda path: str(path.relative_to(CARDS)))
def test_committed_records_can_be_read_and_tell_nothing_of_a_machine(path):
    assert not find_private(path.read_text(encoding="utf-8"))
    if path.name == EVALUATION_FILE:
        assert EvaluationRecord.load(path).dataset["title"]


@pytest.mark.parametrize("model", ["tiny-english", "tiny-chinese"])
def test_the_tables_of_the_readme_are_made_from_the_same_records(model):
    evaluations = CARDS / model / "evaluations"
    records = read_evaluations([evaluations / "final", evaluations / "compared"])
    table = make_markdown(summarize(records), published_for(records[0].benchmark, "tiny"))
    assert table.rstrip() in (CARDS.parent / "README.md").read_text(encoding="utf-8")
