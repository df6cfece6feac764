import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hf_electra_rtd.publishing.published import PublishedRow, published_for
from hf_electra_rtd.publishing.results import average, make_markdown, make_table, summarize, write_results
from hf_electra_rtd.records import EvaluationRecord


def make_record(task, score, seed, **changes):
    metric = changes.pop("metric", "accuracy")
    model = {"name_or_path": "run/discriminator", "head": "paper", "from_scratch": False, "peft": None}
    return EvaluationRecord(
        **{
            "command": "",
            "started": "",
            "finished": "",
            "benchmark": "glue",
            "task": task,
            "language": "en",
            "kind": "classification",
            "model": {**model, **changes.pop("model", {})},
            "arguments": {},
            "seed": seed,
            "data": {},
            "metrics": {"dev": {metric: score}},
            "main_metric": metric,
            "selection": "last step",
            "steps": 1,
            "epochs": 1.0,
            "train_seconds": 1.0,
            "sentences_per_second": 1.0,
            "hardware": {},
            "versions": {},
            **changes,
        }
    )


def cells(results, published=()):
    """The table as rows of cells, and its caption."""
    table, _, caption = make_markdown(results, published).partition("\n\n")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n")]
    return [lines[0], *lines[2:]], caption


REFERENCE = PublishedRow("Peer", "a paper", {"cola": 60.0, "mrpc": 88.0, "rte": 70.0})


@given(st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=1, max_size=9))
def test_the_spread_of_runs_is_that_of_numpy(scores):
    (result,) = summarize([make_record("rte", score, seed) for seed, score in enumerate(scores)])
    spread = result.main
    assert (spread.n, result.seeds) == (len(scores), tuple(range(len(scores))))
    assert spread.median == pytest.approx(np.median(scores), abs=1e-12)
    assert spread.mean == pytest.approx(np.mean(scores), abs=1e-12)
    assert spread.best == np.max(scores)
    if len(scores) > 1:
        assert spread.deviation == pytest.approx(np.std(scores, ddof=1), abs=1e-12)
    else:
        assert spread.deviation is None


def test_runs_are_grouped_by_model_and_task_and_ordered_by_seed():
    random = {"from_scratch": True}
    records = [
        make_record("rte", 0.6, 2),
        make_record("rte", 0.5, 1),
        make_record("rte", 0.4, 1, model=random),
        make_record("rte", 0.3, 1, model={"peft": "lora", "head": "transformers"}),
        make_record("cola", 0.2, 1, metric="matthews"),
    ]
    results = summarize(records)
    assert [(result.task, result.model, result.main.values) for result in results] == [
        ("rte", "run/discriminator (paper head)", (0.5, 0.6)),
        ("rte", "run/discriminator (random weights, paper head)", (0.4,)),
        ("rte", "run/discriminator (transformers head, lora)", (0.3,)),
        ("cola", "run/discriminator (paper head)", (0.2,)),
    ]


def test_two_runs_of_one_seed_are_refused():
    with pytest.raises(ValueError, match=r"rte: there are several runs of .* with seed 1"):
        summarize([make_record("rte", 0.5, 1), make_record("rte", 0.6, 1)])


def test_runs_with_different_main_metrics_are_refused():
    with pytest.raises(ValueError, match="main metric: accuracy, f1"):
        summarize([make_record("mrpc", 0.5, 1), make_record("mrpc", 0.6, 2, metric="f1")])


def test_every_metric_of_every_split_has_its_spread():
    metrics = {"dev": {"accuracy": 0.5, "f1": 0.25}, "test": {"accuracy": 0.75}}
    (result,) = summarize([make_record("sst2", None, seed, metrics=metrics) for seed in (1, 2)])
    values = {split: {metric: spread.values for metric, spread in of.items()} for split, of in result.splits.items()}
    assert values == {"dev": {"accuracy": (0.5, 0.5), "f1": (0.25, 0.25)}, "test": {"accuracy": (0.75, 0.75)}}
    assert result.dev_splits == ("dev",)


def test_a_run_without_a_finite_score_is_left_out_and_told():
    results = summarize([make_record("stsb", score, seed) for seed, score in enumerate([0.5, None, 0.75])])
    assert results[0].main.values == (0.5, 0.75)
    _, caption = cells(results)
    assert "stsb, run/discriminator (paper head): 1 of 3 runs have no finite score." in caption


def test_a_task_of_which_no_run_has_a_finite_score_is_blank():
    results = summarize([make_record("stsb", None, 1), make_record("rte", 0.5, 1)])
    rows, caption = cells(results)
    assert rows == [["model", "runs", "stsb", "rte"], ["run/discriminator (paper head)", "median of 1", "", "50.0"]]
    assert "1 of 1 runs have no finite score" in caption


@pytest.mark.parametrize(("tasks", "expected"), [(("a", "b"), 2.0), (("a", "b", "c"), 3.0), (("a", "d"), None)])
def test_an_average_is_over_all_its_tasks_or_is_none(tasks, expected):
    assert average({"a": 1.0, "b": 3.0, "c": 5.0}, tasks) == expected


def test_the_table_shows_median_mean_and_best_beside_published_figures():
    records = [make_record("cola", score, seed, metric="matthews") for seed, score in enumerate([0.5, 0.6, 0.58])]
    records += [make_record("rte", score, seed) for seed, score in enumerate([0.7, 0.72, 0.6])]
    rows, caption = cells(summarize(records), [REFERENCE])
    assert rows == [
        ["model", "runs", "cola", "rte", "avg"],
        ["run/discriminator (paper head)", "median of 3", "58.0", "70.0", "64.0"],
        ["", "mean ± sd", "56.0 ± 5.3", "67.3 ± 6.4", "61.7"],
        ["", "best", "60.0", "72.0", "66.0"],
        ["Peer", "published", "60.0", "70.0", "65.0"],
    ]
    assert "matthews (cola), accuracy (rte)" in caption
    assert "avg: over cola, rte, the tasks that every model here and Peer have." in caption
    assert "Model of a run: last step." in caption
    assert "Peer: a paper." in caption


def test_a_row_that_lacks_a_task_of_the_average_has_none():
    records = [make_record("cola", 0.5, 1, metric="matthews"), make_record("rte", 0.7, 1)]
    records += [make_record("rte", 0.6, 1, model={"name_or_path": "other"})]
    other = PublishedRow("Other", "a page", {"rte": 65.0})
    rows, _ = cells(summarize(records[:2]), [REFERENCE, other])
    assert [row[-1] for row in rows] == ["avg", "60.0", "65.0", ""]
    rows, _ = cells(summarize(records), [REFERENCE])
    assert "avg" not in rows[0]  # the models share one task only


def test_mnli_shows_both_of_its_development_sets_and_averages_the_first():
    metrics = {"dev_matched": {"accuracy": 0.8}, "dev_mismatched": {"accuracy": 0.82}, "ax": {"accuracy": 0.3}}
    records = [make_record("mnli", None, 1, metrics=metrics), make_record("rte", 0.6, 1)]
    rows, caption = cells(summarize(records))
    assert rows[0] == ["model", "runs", "mnli", "rte", "avg"]
    assert rows[1][2:] == ["80.0/82.0", "60.0", "70.0"]
    assert "mnli: dev_matched/dev_mismatched; the first counts in averages." in caption


def test_a_split_without_a_finite_score_is_a_dash_beside_the_other():
    metrics = {"dev_matched": {"accuracy": 0.8}, "dev_mismatched": {"accuracy": None}}
    records = [make_record("mnli", None, 1, metrics=metrics), make_record("stsb", None, 1)]
    rows, _ = cells(summarize(records))
    assert rows[1][2:] == ["", "80.0/-"]


def test_one_figure_of_another_metric_is_left_out_and_the_others_of_its_row_are_not():
    results = summarize([make_record(task, 0.7, 1) for task in ("sst2", "stsb")])
    row = PublishedRow("Peer", "a paper", {"cola": 60.0, "sst2": 90.0, "stsb": 80.0})
    rows, caption = cells(results, [row])
    assert rows[0] == ["model", "runs", "sst2", "stsb"]  # and no average: they share one task
    assert rows[2] == ["Peer", "published", "90.0", ""]
    assert "Peer: stsb left out, as it is of another metric, spearman." in caption


def test_published_figures_of_another_metric_are_left_out_and_told():
    results = summarize([make_record("squad2", 0.7, 1, metric="f1", benchmark="more")])
    rows, caption = cells(results, published_for("more", "small"))
    assert [row[0] for row in rows[1:]] == ["run/discriminator (paper head)"]
    assert "Google ELECTRA-Small++: squad2 left out, as it is of another metric, exact_match." in caption


def test_published_rows_without_a_task_of_ours_are_left_out():
    results = summarize([make_record("afqmc", 0.7, 1, benchmark="clue")])
    rows, _ = cells(results, published_for("clue", "small"))
    assert rows[0] == ["model", "runs", "afqmc"]
    assert len(rows) == 2


def test_tasks_of_the_user_have_a_table_too():
    rows, _ = cells(summarize([make_record("reviews", 0.9, 1, benchmark="own")]))
    assert rows == [["model", "runs", "reviews"], ["run/discriminator (paper head)", "median of 1", "90.0"]]


@pytest.mark.parametrize("benchmarks", [(), ("glue", "clue")])
def test_a_table_is_of_one_benchmark(benchmarks):
    results = summarize([make_record("rte", 0.5, 1, benchmark=benchmark) for benchmark in benchmarks])
    with pytest.raises(ValueError, match="A table is of one benchmark"):
        make_table(results, [])


def test_the_terminal_shows_the_cells_of_the_markdown_table():
    results = summarize([make_record("rte", score, seed) for seed, score in enumerate([0.5, 0.75])])
    console = Console(width=160)
    with console.capture() as capture:
        console.print(make_table(results, [REFERENCE]))
    shown = capture.get()
    rows, caption = cells(results, [REFERENCE])
    for text in [*(cell for row in rows for cell in row), *caption.replace("  \n", "\n").strip().split("\n")]:
        assert text in shown
    assert "GLUE, development sets" in shown


def test_results_are_written_unrounded(tmp_path):
    records = [make_record("rte", score, seed) for seed, score in enumerate([2 / 3, 1 / 3])]
    records += [make_record("cola", 0.5, 0, metric="matthews")]
    path = write_results(summarize(records), [REFERENCE], tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]
    written = json.loads(path.read_text())
    assert written["benchmark"] == "glue"
    rte = written["results"][0]
    assert (rte["task"], rte["seeds"], rte["selections"]) == ("rte", [0, 1], ["last step"])
    accuracy = rte["splits"]["dev"]["accuracy"]
    assert accuracy["values"] == [2 / 3, 1 / 3]
    assert accuracy["median"] == pytest.approx(0.5)
    assert accuracy["deviation"] == pytest.approx(math.sqrt(2) / 6)
    assert written["results"][1]["splits"]["dev"]["matthews"]["deviation"] is None
    assert written["averages"]["tasks"] == ["cola", "rte"]
    assert written["averages"]["medians"] == {"run/discriminator (paper head)": pytest.approx(0.5)}
    assert written["published"][0]["scores"] == {"cola": 60.0, "rte": 70.0}
    assert (rte["main"]["values"], rte["main"]["best"]) == ([2 / 3, 1 / 3], 2 / 3)
