"""evaluate's metrics take and give what the Hub's do, without a network."""

import importlib
import socket

import pytest

from hf_electra_rtd.finetuning.scores import score_tags


@pytest.fixture(scope="module")
def metrics():
    return importlib.import_module("hf_electra_rtd.finetuning.metrics")  # imports evaluate, which takes seconds


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(params=[True, False], ids=["in_memory", "on_disk"])
def storage(request, tmp_path):
    return {"keep_in_memory": request.param, "cache_dir": str(tmp_path)}


def test_a_task_is_scored_over_all_batches(metrics, storage):
    metric = metrics.GlueMetric("mrpc", **storage)
    metric.add_batch(predictions=[1, 0], references=[1, 1])
    metric.add_batch(predictions=[1], references=[0])
    metric.add(prediction=1, reference=1)
    assert metric.compute() == pytest.approx({"accuracy": 2 / 4, "f1": 2 * 2 / (2 * 2 + 1 + 1)})


def test_each_kind_of_task_takes_its_kind_of_values(metrics, storage):
    cola = metrics.GlueMetric("cola", **storage)
    assert cola.compute(predictions=[1, 0, 1, 0], references=[1, 0, 0, 0])["matthews"] == pytest.approx(2 / 12**0.5)
    stsb = metrics.GlueMetric("stsb", **storage)
    found = stsb.compute(predictions=[0.1, 4.9, 2.5], references=[0.0, 2.4, 5.0])
    assert found["spearman"] == pytest.approx(0.5)
    tags = [["B-name", "I-name", "O"], ["B-game", "O"]]
    wrong = [["B-name", "O", "O"], ["B-game", "O"]]
    cluener = metrics.ClueMetric("cluener2020", **storage)
    assert cluener.compute(predictions=wrong, references=tags) == score_tags(cluener._task.metrics, wrong, tags)
    c3 = metrics.ClueMetric("c3", **storage)
    assert c3.compute(predictions=[0, 3, 1, 1], references=[0, 3, 2, 1]) == {"accuracy": 0.75}


def test_every_task_has_a_metric_that_says_what_it_is(metrics, tmp_path):
    for metric, tasks in (
        (metrics.GlueMetric, ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli", "ax"]),
        (
            metrics.ClueMetric,
            ["afqmc", "tnews", "iflytek", "cmnli", "ocnli", "csl", "c3", "chid", "cluener2020", "cluewsc2020"],
        ),
    ):
        for task in tasks:
            made = metric(task, keep_in_memory=True, cache_dir=str(tmp_path))
            assert made._task.title in made.description
            assert all(f"`{name}`" in made.inputs_description for name in made._task.metrics)
            assert made.citation.startswith("@inproceedings")


def test_the_halves_of_mnli_go_by_the_hubs_names_too(metrics, storage):
    for name in ("mnli", "mnli_matched", "mnli_mismatched"):
        metric = metrics.GlueMetric(name, **storage)
        assert metric.compute(predictions=[0, 1, 2, 2], references=[0, 1, 2, 1]) == {"accuracy": 0.75}


def test_what_a_task_does_not_take_is_refused(metrics, tmp_path):
    with pytest.raises(ValueError, match="mrcp"):
        metrics.GlueMetric("mrcp", cache_dir=str(tmp_path))
    with pytest.raises(ValueError, match="use SquadMetric, SquadV2Metric or CmrcMetric"):
        metrics.ClueMetric("cmrc2018", cache_dir=str(tmp_path))
    metric = metrics.GlueMetric("rte", keep_in_memory=True, cache_dir=str(tmp_path))
    with pytest.raises(ValueError, match=r"Row 1: the reference -1 is none of the labels: 0, 1\."):
        metric.compute(predictions=[0, 1], references=[0, -1])


def answer_rows(*rows):
    predictions = [{"id": id, "prediction_text": text} for id, text, _ in rows]
    references = [{"id": id, "answers": {"text": list(a), "answer_start": [0] * len(a)}} for id, _, a in rows]
    return predictions, references


def test_answers_are_joined_by_their_ids(metrics, storage):
    predictions, references = answer_rows(("a", "The cat", ["cat"]), ("b", "big dog", ["dog"]))
    metric = metrics.SquadMetric(**storage)
    metric.add_batch(predictions=predictions[::-1], references=references)
    assert metric.compute() == pytest.approx({"exact_match": 0.5, "f1": (1 + 2 / 3) / 2})


def test_squad_2_takes_probabilities_and_a_threshold(metrics, storage):
    predictions, references = answer_rows(("a", "cat", ["cat"]), ("b", "dog", []))
    for prediction, probability in zip(predictions, (0.2, 0.9), strict=True):
        prediction["no_answer_probability"] = probability
    metric = metrics.SquadV2Metric(**storage)
    found = metric.compute(predictions=predictions, references=references)
    assert (found["exact_match"], found["best_f1"], found["best_f1_threshold"]) == (0.5, 1.0, 0.2)
    metric = metrics.SquadV2Metric(**storage)
    found = metric.compute(predictions=predictions, references=references, threshold=0.5)
    assert (found["has_answer_f1"], found["no_answer_f1"]) == (1.0, 1.0)


def test_cmrc_uses_the_chinese_rules(metrics, storage):
    predictions, references = answer_rows(("a", "北京、", ["北京"]), ("b", "在北京市", ["北京"]))
    found = metrics.CmrcMetric(**storage).compute(predictions=predictions, references=references)
    assert found == pytest.approx({"exact_match": 0.5, "f1": (1 + 2 / 3) / 2})


@pytest.mark.parametrize(
    ("predicted", "right", "message"),
    [
        (("a", "a"), ("a", "b"), "Several predictions have the same id"),
        (("a", "b"), ("a", "a"), "Several references have the same id"),
        (("a", "b"), ("a", "c"), "The question 'c' has no prediction"),
    ],
)
def test_ids_that_do_not_match_are_refused(metrics, tmp_path, predicted, right, message):
    metric = metrics.SquadMetric(keep_in_memory=True, cache_dir=str(tmp_path))
    with pytest.raises(ValueError, match=message):
        metric.compute(
            predictions=answer_rows(*[(id, "x", ["x"]) for id in predicted])[0],
            references=answer_rows(*[(id, "x", ["x"]) for id in right])[1],
        )
