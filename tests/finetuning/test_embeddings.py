"""Embeddings: models that sentence-transformers loads, and the results of contrastive training."""

from __future__ import annotations

import random

import pytest
import torch
from scipy.stats import spearmanr
from transformers import AutoModel, AutoTokenizer

from hf_electra_rtd import Classifier
from hf_electra_rtd.base.records import EvaluationRecord
from hf_electra_rtd.finetuning.finetune import finetune
from tests.finetuning.conftest import WORDS, read_lines


sentence_transformers = pytest.importorskip("sentence_transformers", reason="needs the extra embeddings")
QUICK = {
    "task_kind": "embedding",
    "second_text_column_name": "other",
    "per_device_train_batch_size": 16,
    "learning_rate": 3e-3,
    "warmup_steps": 0,
    "report_to": "none",
    "use_cpu": True,
}


def rows(number: int, seed: int, *columns: str) -> list[dict]:
    """Pairs of texts, each of one word four times, labeled by whether the words are equal."""
    drawn = random.Random(seed)
    made = []
    for _ in range(number):
        first, second = drawn.choices(WORDS[:8], k=2)
        second = first if drawn.random() < 0.5 else second
        made.append({"text": " ".join([first] * 4), "other": " ".join([second] * 4), "label": float(first == second)})
    return [{name: row[name] for name in columns or row} for row in made]


def test_sentence_transformers_embeds_a_text_by_a_discriminator_as_the_mean_of_its_tokens(finished_run):
    model = sentence_transformers.SentenceTransformer(str(finished_run / "discriminator"), device="cpu")
    texts = ["the river .", "a little garden by the old mill and the street ."]
    encoder = AutoModel.from_pretrained(finished_run / "discriminator").eval()
    tokens = AutoTokenizer.from_pretrained(finished_run / "discriminator")(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden_BLH = encoder(**tokens).last_hidden_state.double()
    real_BL1 = tokens["attention_mask"].unsqueeze(-1)
    expected_BH = (hidden_BLH * real_BL1).sum(1) / real_BL1.sum(1)
    torch.testing.assert_close(model.encode(texts, convert_to_tensor=True).double(), expected_BH, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("columns", "loss"),
    [
        (("text", "other", "label"), "CoSENTLoss on 96 examples."),
        (("text", "other"), "MultipleNegativesRankingLoss on 96 examples."),
        (("text",), "MultipleNegativesRankingLoss on 96 examples; 96 texts have no partner"),
    ],
)
def test_the_loss_follows_from_what_the_training_file_has(encoder, tmp_path, caplog, columns, loss):
    train = rows(96, 1, *columns)
    model = finetune(encoder, train, rows(40, 2), tmp_path / "run", max_steps=1, **QUICK)
    assert loss in caplog.text
    assert "bias_correction" not in EvaluationRecord.load(tmp_path / "run/own/seed_42").arguments
    assert len(model.predict([("river", "mill")])) == 1


@pytest.mark.parametrize("columns", [("text", "other", "label"), ("text", "other"), ("text",)])
def test_without_a_dev_split_only_pairs_with_numbers_are_held_out(encoder, tmp_path, columns):
    second = "other" if "other" in columns else None
    options = {**QUICK, "second_text_column_name": second, "max_steps": 1}
    model = finetune(encoder, rows(96, 1, *columns), output_dir=tmp_path / "run", **options)
    record = EvaluationRecord.load(tmp_path / "run/own/seed_42")
    assert ("dev" in record.data) == ("label" in columns)
    assert len(model.predict([("river", "mill")])) == 1


def test_training_brings_like_texts_together_and_leaves_what_sentence_transformers_loads(encoder, tmp_path):
    dev = rows(60, 2)
    model = finetune(encoder, rows(160, 1), dev, tmp_path / "run", num_train_epochs=4, **QUICK)
    directory = tmp_path / "run/own/seed_42"
    record = EvaluationRecord.load(directory)
    assert record.score > 0.8
    assert (record.main_metric, record.steps, record.data["train"]["examples"]) == ("spearman", 40, 160)
    loaded = sentence_transformers.SentenceTransformer(str(directory / "model"), device="cpu")
    first, second = (loaded.encode([row[name] for row in dev], convert_to_tensor=True) for name in ("text", "other"))
    cosines = torch.nn.functional.cosine_similarity(first.double(), second.double()).tolist()
    predictions = [line["prediction"] for line in read_lines(directory / "predictions_dev.jsonl")]
    assert predictions == pytest.approx(cosines, abs=1e-4)
    # The predictions are correlated, not the cosines, in which rounding errors would order the ties of equal texts.
    correlation = spearmanr(predictions, [row["label"] for row in dev])[0]
    assert record.score == pytest.approx(correlation, abs=1e-6)
    with pytest.raises(ValueError, match="runtime"):
        Classifier(str(tmp_path / "run"), runtime="onnx")
    again = Classifier(str(tmp_path / "run"), use_cpu=True).predict([(row["text"], row["other"]) for row in dev])
    assert [answer["similarity"] for answer in again] == pytest.approx(cosines, abs=1e-4)
    assert [answer["similarity"] for answer in model.predict(dev[:3])] == pytest.approx(cosines[:3], abs=1e-4)


def test_embeddings_without_pairs_to_score_or_by_a_rule_of_others_are_refused(encoder, tmp_path):
    options = {**QUICK, "second_text_column_name": None}
    with pytest.raises(ValueError, match="second_text_column_name"):
        finetune(encoder, rows(8, 1), rows(8, 2), tmp_path / "run", **options)
    with pytest.raises(ValueError, match="lora"):
        finetune(encoder, rows(8, 1), rows(8, 2), tmp_path / "run", lora=True, **QUICK)
    with pytest.raises(ValueError, match="other"):  # a second text may be missing in training only
        finetune(encoder, rows(8, 1), rows(8, 2, "text", "label"), tmp_path / "run", **QUICK)
