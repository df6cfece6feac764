"""`TaskMetric` takes and gives what the Hub's metrics do, without a network."""

import importlib
import socket

import pytest


@pytest.fixture
def make(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    module = importlib.import_module("hf_electra_rtd.finetuning.metrics")  # imports evaluate, which takes seconds
    return lambda *task, **options: module.TaskMetric(*task, cache_dir=str(tmp_path), **options)


def test_a_task_is_scored_over_all_batches(make):
    metric = make("glue", "mrpc")
    metric.add_batch(predictions=[1, 0], references=[1, 1])
    metric.add_batch(predictions=[1], references=[0])
    metric.add(prediction=1, reference=1)
    assert metric.compute() == pytest.approx({"accuracy": 2 / 4, "f1": 2 * 2 / (2 * 2 + 1 + 1)})


def test_keys_and_scale_of_labels_and_numbers_are_those_of_glue(make):
    cola = make("glue", "cola").compute(predictions=[1, 0, 1, 0], references=[1, 0, 0, 0])
    assert cola == pytest.approx({"matthews_correlation": 2 / 12**0.5})
    stsb = make("glue", "stsb").compute(predictions=[0.1, 4.9, 2.5], references=[0.0, 2.4, 5.0])
    assert stsb == pytest.approx({"spearmanr": 0.5, "pearson": 0.4799}, abs=1e-4)
    assert make("glue", "mnli").compute(predictions=[0, 1, 2, 2], references=[0, 1, 2, 1]) == {"accuracy": 0.75}
    assert make("clue", "c3").compute(predictions=[0, 3, 1, 1], references=[0, 3, 2, 1]) == {"accuracy": 0.75}


def test_keys_and_scale_of_tags_are_those_of_seqeval(make):
    tags = [["B-name", "I-name", "O"], ["B-game", "O"]]
    found = make("clue", "cluener2020").compute(predictions=[["B-name", "O", "O"], ["B-game", "O"]], references=tags)
    assert found == {
        "name": {"precision": 0.0, "recall": 0.0, "f1": 0.0, "number": 1},
        "game": {"precision": 1.0, "recall": 1.0, "f1": 1.0, "number": 1},
        "overall_precision": 0.5,
        "overall_recall": 0.5,
        "overall_f1": 0.5,
        "overall_accuracy": 0.8,
    }


def answers(*rows, **probabilities):
    predictions = [{"id": id, "prediction_text": text} for id, text, _ in rows]
    for prediction in predictions if probabilities else ():
        prediction["no_answer_probability"] = probabilities[prediction["id"]]
    references = [{"id": id, "answers": {"text": list(a), "answer_start": [0] * len(a)}} for id, _, a in rows]
    return {"predictions": predictions[::-1], "references": references}


def test_keys_and_scale_of_answers_are_those_of_squad_joined_by_their_ids(make):
    found = make("more", "squad1").compute(**answers(("a", "The cat", ["cat"]), ("b", "big dog", ["dog"])))
    assert found == pytest.approx({"exact_match": 50, "f1": 100 * (1 + 2 / 3) / 2})
    found = make("clue", "cmrc2018").compute(**answers(("a", "北京、", ["北京"]), ("b", "在北京市", ["北京"])))
    assert found == pytest.approx({"exact_match": 50, "f1": 100 * (1 + 2 / 3) / 2})


def test_keys_and_scale_of_answers_that_may_be_none_are_those_of_squad_v2(make):
    rows = answers(("a", "cat", ["cat"]), ("b", "dog", []), a=0.2, b=0.9)
    halves = {"HasAns_exact": 100, "HasAns_f1": 100, "HasAns_total": 1}
    halves |= {"NoAns_exact": 0, "NoAns_f1": 0, "NoAns_total": 1}
    best = {"best_exact": 100, "best_exact_thresh": 0.2, "best_f1": 100, "best_f1_thresh": 0.2}
    assert make("more", "squad2").compute(**rows) == {"exact": 50, "f1": 50, "total": 2, **halves, **best}
    assert make("more", "squad2").compute(**rows, no_answer_threshold=0.5)["NoAns_f1"] == 100


def test_unknown_labels_and_questions_are_refused(make):
    with pytest.raises(ValueError, match="-1 is none of the labels 0, 1"):
        make("glue", "rte").compute(predictions=[0, 1], references=[0, -1])
    rows = answers(("a", "x", ["x"])) | {"references": answers(("b", "x", ["x"]))["references"]}
    with pytest.raises(ValueError, match="question 'b' has no prediction"):
        make("more", "squad1").compute(**rows)
