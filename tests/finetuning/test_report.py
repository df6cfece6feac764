"""The figures of a report, compared with scikit-learn and with a bootstrap that uses loops."""

import json
import random

import numpy as np
import pytest
from datasets import Dataset
from sklearn.metrics import classification_report, confusion_matrix

from hf_electra_rtd.base.records import EvaluationRecord
from hf_electra_rtd.base.tasks import Task
from hf_electra_rtd.finetuning.data import Split
from hf_electra_rtd.finetuning.kinds import make_kind
from hf_electra_rtd.finetuning.report import INTERVAL, RESAMPLES, SLOW_RESAMPLES, resampled_scores, write_report


LABELS = ("no", "yes", "$\\frac 可$")  # the last one is not a formula, and few fonts have its character
TAGS = ("O", "B-x", "I-x", "B-y", "I-y")


@pytest.fixture
def make(tokenizer):
    def make(kind, *metrics, **facts):
        return make_kind(Task("t", "T", kind=kind, metrics=metrics, **facts), tokenizer, doc_stride=16)

    return make


def cases():
    draw = random.Random(7)
    three = [(draw.choice(LABELS), draw.choice(LABELS)) for _ in range(25)]
    yield from (("classification", metric, LABELS, three) for metric in ("accuracy", "matthews", "macro_f1"))
    numbers = [(draw.gauss(0, 1), float(draw.randint(0, 3))) for _ in range(25)]
    yield "regression", "spearman", (), numbers
    tags = [([draw.choice(TAGS) for _ in range(4)], [draw.choice(TAGS) for _ in range(4)]) for _ in range(25)]
    yield from (("tagging", metric, TAGS, tags) for metric in ("f1", "accuracy"))
    answers = [({"text": draw.choice("abc"), "nbest": []}, ["a x", "b"]) for _ in range(25)]
    yield "question_answering", "f1", (), answers


@pytest.mark.parametrize(("kind", "metric", "labels", "pairs"), list(cases()))
def test_the_bootstrap_scores_the_same_samples_for_all_models_as_the_task_is_scored(make, kind, metric, labels, pairs):
    made = make(kind, metric, labels=labels)
    found = resampled_scores(made, *map(list, zip(*pairs, strict=True)))
    is_mean = kind == "question_answering" or (metric == "accuracy" and kind != "tagging")
    assert found.shape == (RESAMPLES if is_mean else SLOW_RESAMPLES,)
    generator = np.random.default_rng(0)
    for score in found[:50]:
        sample = [pairs[row] for row in generator.integers(len(pairs), size=len(pairs))]
        assert score == pytest.approx(made.score_labeled(*map(list, zip(*sample, strict=True)))[metric], abs=1e-12)


def split_of(labels, **more):
    rows = [{"id": f"id{row}", "texts": [f"text {row}"], "label": label} for row, label in enumerate(labels)]
    return Split(Dataset.from_list(rows), 0, {}, **more)


def written(directory, kind, predicted, split):
    write_report(directory, "dev", kind, predicted, kind.score(predicted, split.examples), split)
    return json.loads((directory / "report_dev.json").read_text()), (directory / "report_dev.txt").read_text()


def test_a_report_of_classes_has_the_figures_of_scikit_learn_and_the_surest_errors(make, tmp_path):
    draw = np.random.default_rng(3)
    labels = ("no", "macro avg", LABELS[2])  # classes may have the names of averages
    right = [str(one) for one in draw.choice(labels, 30, p=(0.6, 0.3, 0.1))] + [None]
    probabilities = draw.dirichlet([1, 1, 1], 31)
    predicted = [labels[place] for place in probabilities.argmax(-1)]
    kind = make("classification", "accuracy", "macro_f1", labels=labels)
    split = split_of(right, probabilities=probabilities)
    report, text = written(tmp_path, kind, predicted, split)
    known = right[:30]
    given = predicted[:30]
    expected = classification_report(*(list(map(labels.index, column)) for column in (known, given)), output_dict=True)
    assert report["classes"] == {label: expected[str(place)] for place, label in enumerate(labels)}
    assert report["confusion"] == confusion_matrix(known, given, labels=labels).tolist()
    assert report["score"] == expected["accuracy"]
    low, high = report["interval"]
    assert [low, high] == pytest.approx(np.quantile(report["resampled"], INTERVAL).tolist(), abs=1e-6)
    assert low < report["score"] < high
    assert report["baseline"] == {"prediction": "no", "score": known.count("no") / 30}
    wrong = sorted((row for row in range(30) if known[row] != given[row]), key=lambda row: -max(probabilities[row]))
    assert [error["id"] for error in report["errors"]] == [f"id{row}" for row in wrong[:10]]
    first = report["errors"][0]
    row = wrong[0]
    assert (first["text"], first["label"], first["prediction"]) == (f"text {row}", known[row], given[row])
    assert first["probability"] == pytest.approx(max(probabilities[row]))
    for shown in (f"95% interval {low:.1%} to {high:.1%}", "always 'no'", first["text"]):
        assert shown in text


def test_a_report_of_numbers_has_errors_in_their_unit(make, tmp_path):
    predicted = [1.0, 2.0, 9.0]
    right = [1.0, 4.0, 8.0]
    report, text = written(tmp_path, make("regression", "pearson"), predicted, split_of(right))
    assert (report["mae"], report["rmse"]) == (1.0, pytest.approx((5 / 3) ** 0.5))
    assert report["baseline"]["prediction"] == pytest.approx(13 / 3)
    assert report["baseline"]["rmse"] == pytest.approx(np.std(right))
    assert [error["id"] for error in report["errors"]] == ["id1", "id2"]
    assert "mae 1, always the mean: 2.444" in text
    assert not list(tmp_path.glob("*.png"))


def test_a_model_that_predicts_one_class_or_number_is_said_to(make, tmp_path, caplog):
    classes = make("classification", "accuracy", labels=LABELS[:2])
    numbers = make("regression", "pearson")
    questions = make("question_answering", "f1", unanswerable=True)
    nothing = [{"text": "", "nbest": [], "no_answer_score": 1.0}] * 2
    for kind, predicted, right, said in (
        (classes, ["no"] * 4, ["no", "yes", "no", "no"], "nothing but 'no'"),
        (classes, ["no"] * 4, ["no"] * 4, ""),
        (questions, nothing, [[], []], ""),
        (numbers, [29.0, 29.1, 29.0, 28.9], [0.0, 100.0, 500.0, 300.0], "nothing but 29"),
        (numbers, [29.0, 90.0, 400.0, 290.0], [0.0, 100.0, 500.0, 300.0], ""),
    ):
        caplog.clear()
        written(tmp_path, kind, predicted, split_of(right))
        assert said in caplog.text
        assert bool(said) == ("nothing but" in caplog.text)


def test_the_worst_errors_of_several_labels_are_those_that_were_surest(make, tmp_path):
    draw = np.random.default_rng(4)
    labels = ("a", "b", "c")
    shares = draw.uniform(size=(40, 3))
    right = [[label for label in labels if draw.random() < 0.5] for _ in range(40)]
    predicted = [[label for label, share in zip(labels, of_text, strict=True) if share > 0.5] for of_text in shares]
    kind = make("multi_label", "micro_f1", labels=labels)
    report, _ = written(tmp_path, kind, predicted, split_of(right, probabilities=shares))
    loss = [
        sum(
            abs(share - (label in of_text))
            for label, share in zip(labels, of_row, strict=True)
            if (share > 0.5) != (label in of_text)
        )
        for of_row, of_text in zip(shares, right, strict=True)
    ]
    assert [error["id"] for error in report["errors"]] == [f"id{row}" for row in np.argsort(loss)[::-1][:10]]


def test_a_report_of_tags_is_of_chunks_and_of_words(make, tmp_path):
    kind = make("tagging", "f1", labels=TAGS)
    rows = [{"id": "a", "texts": ["It", "rains"], "label": ["O", "B-x"]}, {"id": "b", "texts": ["So"], "label": ["O"]}]
    split = Split(Dataset.from_list(rows), 0, {})
    predicted = [["B-y", "B-x"], ["O"]]
    report, text = written(tmp_path, kind, predicted, split)
    assert report["classes"]["x"] == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "number": 1}
    assert (sum(map(sum, report["confusion"])), report["confusion"][0][3]) == (3, 1)
    assert report["baseline"] == {"prediction": "O", "score": 0.0}
    wrong = {"id": "a", "text": "It rains", "label": ["O", "B-x"], "prediction": ["B-y", "B-x"]}
    assert report["errors"] == [wrong]
    assert "probability" not in text


def test_a_run_leaves_a_report_of_what_is_labeled_beside_its_predictions(finished):
    run = finished[0] / "run/reviews/seed_42"
    assert {path.name for path in run.glob("report_*")} == {"report_dev.json", "report_dev.txt"}
    report = json.loads((run / "report_dev.json").read_text())
    assert (report["examples"], report["metric"]) == (60, "accuracy")
    kept = EvaluationRecord.load(run).reports["dev"]
    assert kept == {name: report[name] for name in ("interval", "baseline", "classes", "data")}


def test_the_hash_of_examples_is_of_texts_and_labels_and_not_of_ids(make, tmp_path):
    kind = make("classification", "accuracy", labels=LABELS[:2])

    def digest(labels, **columns):
        examples = split_of(labels).examples
        for name, values in columns.items():
            examples = examples.remove_columns(name).add_column(name, values)
        return written(tmp_path, kind, ["no", "no"], Split(examples, 0, {}))[0]["data"]

    first = digest(["no", "yes"])
    assert digest(["no", "yes"], id=["x", "y"]) == first
    assert digest(["no", "yes"], texts=[["text 0"], ["other"]]) != first
    assert digest(["yes", "no"]) != first
