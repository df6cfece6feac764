import json
import math
import statistics
from importlib import resources

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_electra_rtd.publishing.tables import (
    main,
    print_results,
    published_for,
    read_evaluations,
    results_table,
    summarize,
    write_results,
)
from hf_electra_rtd.tasks import BENCHMARKS
from tests.publishing.card_records import evaluation_record, runs


SMALL = {"size": "small"}
MODEL = "tiny (transformers head)"


def cells(records, published=False):
    """The table as rows of cells, and its caption."""
    table, _, caption = results_table(records, published).partition("\n\n")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n")]
    return [lines[0], *lines[2:]], caption


# ---- Runs ----


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=1, max_size=9))
def test_the_figures_of_a_table_are_those_of_numpy(scores):
    rows, _ = cells(runs("mine", scores, benchmark="own"))
    figures = [float(row[2].partition(" ")[0]) for row in rows[1:]]
    expected = [np.median(scores), np.mean(scores), np.max(scores)][: len(rows) - 1]
    assert figures == pytest.approx([100 * figure for figure in expected], abs=0.051)
    if len(scores) > 1:
        assert float(rows[2][2].rpartition(" ")[2]) == pytest.approx(100 * np.std(scores, ddof=1), abs=0.051)


def test_runs_are_grouped_by_model_and_task_and_ordered_by_seed():
    records = [
        evaluation_record("rte", 2, 0.6),
        evaluation_record("rte", 1, 0.5),
        evaluation_record("rte", 1, 0.4, model={"from_scratch": True}),
        evaluation_record("rte", 1, 0.3, model={"peft": "lora", "head": "paper"}),
        evaluation_record("cola", 1, 0.2, "matthews"),
    ]
    assert [(result.task, result.model, result.main) for result in summarize(records)] == [
        ("rte", MODEL, [0.5, 0.6]),
        ("rte", "tiny (random weights, transformers head)", [0.4]),
        ("rte", "tiny (paper head, lora)", [0.3]),
        ("cola", MODEL, [0.2]),
    ]


FIRST = evaluation_record("rte", 42, 0.5)


@pytest.mark.parametrize(
    ("difference", "change"),
    [
        ("learning_rate 1e-05", {"arguments": {**FIRST.arguments, "learning_rate": 1e-5}}),
        ("max_seq_length 64", {"arguments": {**FIRST.arguments, "max_seq_length": 64}}),
        ("lora_r 4", {"arguments": {**FIRST.arguments, "lora": {"lora_r": 4}}}),
        ("weights 00000000", {"model": {"sha256": "0" * 64}}),
        ("tokenizer 11111111", {"model": {"tokenizer": "1" * 64}}),
        ("training data", {"data": {**FIRST.data, "train": {"files": {"train.tsv": "2" * 64}}}}),
    ],
)
def test_runs_with_other_settings_weights_or_data_are_apart_and_named_by_what_differs(difference, change):
    others = [evaluation_record("rte", seed, score, **change) for seed, score in ((42, 0.6), (43, 0.7))]
    first, second = summarize([FIRST, *others])
    assert (first.main, second.main) == ([0.5], [0.6, 0.7])
    assert difference in second.model
    assert second.model.replace(difference, "") != first.model != second.model


def test_a_setting_that_differs_on_one_task_names_the_row_of_all_tasks():
    slow = [evaluation_record(task, 42, 0.5) for task in ("rte", "mrpc")]
    fast = evaluation_record("rte", 42, 0.6, arguments={**slow[0].arguments, "learning_rate": 0.001})
    rows, _ = cells([*slow, fast])
    named = [f"tiny (transformers head, learning_rate {rate})" for rate in ("0.0003", "0.001")]
    assert [row[0] for row in rows[1:]] == named
    assert rows[1][2:4] == ["50.0", "50.0"]
    assert rows[2][2:4] == ["", "60.0"]


def test_own_tasks_of_one_name_are_told_apart_by_their_data():
    data = {"train": {"files": {"t.csv": "1" * 64}}, "dev": {"files": {"d.csv": "2" * 64}}}
    others = data | {"dev": {"files": {"d.csv": "3" * 64}}}
    records = [evaluation_record("own", 42, 0.5, benchmark="own", data=one) for one in (data, others, data, others)]
    records[2].seed = records[3].seed = 43
    results = summarize(records)
    assert [result.seeds for result in results] == [(42, 43), (42, 43)]
    assert len({result.task for result in results}) == 2
    assert {result.model for result in results} == {MODEL}
    assert [result.task for result in summarize(records[::2])] == ["own"]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (evaluation_record("rte", 42), "several runs with seed 42"),
        (evaluation_record("rte", 43, metric="f1"), "different main metrics"),
    ],
)
def test_runs_that_cannot_be_summarized_are_refused(second, message):
    with pytest.raises(ValueError, match=message):
        summarize([evaluation_record("rte"), second])


def test_runs_without_a_finite_score_are_left_out_and_named():
    records = [*runs("stsb", (0.5, None, 0.75)), *runs("rte", (None,))]
    rows, caption = cells(records)
    assert [row[2:] for row in rows] == [["stsb", "rte"], ["62.5", ""], ["62.5 ± 17.7", ""], ["75.0", ""]]
    assert f"stsb, {MODEL}: 1 of 3 runs have no finite score." in caption
    assert f"rte, {MODEL}: 1 of 1 runs have no finite score." in caption


def test_two_development_sets_share_a_cell_and_the_first_counts_in_averages():
    metrics = {"dev_matched": {"accuracy": 0.8}, "dev_mismatched": {"accuracy": 0.82}, "ax": {"accuracy": 0.3}}
    records = [evaluation_record("mnli", metrics=metrics), evaluation_record("rte", score=0.6)]
    rows, caption = cells(records)
    assert [row[2:] for row in rows] == [["mnli", "rte", "avg"], ["80.0/82.0", "60.0", "70.0"]]
    assert "mnli: dev_matched/dev_mismatched; the first counts in averages." in caption
    metrics["dev_mismatched"]["accuracy"] = None
    assert cells(records)[0][1][2:] == ["80.0/-", "60.0", "70.0"]


def test_averages_are_over_the_tasks_that_every_model_has():
    records = [*runs("cola", (0.5,), metric="matthews"), *runs("rte", (0.7,)), *runs("mrpc", (0.9,))]
    others = [run for task in ("rte", "mrpc") for run in runs(task, (0.6,), model={"name_or_path": "other"})]
    rows, caption = cells(records + others)
    assert [row[-1] for row in rows] == ["avg", "80.0", "60.0"]
    assert "avg: over mrpc, rte, the tasks that every model here has." in caption
    assert "avg" not in cells(records + others[:1])[0][0]


# ---- Published figures ----


def test_models_of_the_same_size_and_metric_stand_beside():
    records = [*runs("cola", (0.5,), metric="matthews", model=SMALL), *runs("rte", (0.7,), model=SMALL)]
    rows, caption = cells(records, published=True)
    google = next(row for row in rows if row[0] == "Google ELECTRA-Small-OWT")
    assert google[1:4] == ["published", "56.8", "68.5"]
    assert float(google[4]) == pytest.approx((56.8 + 68.5) / 2, abs=0.051)
    assert "the tasks that every model here and Google ELECTRA-Small-OWT have" in caption
    assert "Google ELECTRA-Small-OWT: google-research/electra" in caption
    lacking = next(row for row in rows if row[0].endswith("by lonePatient"))
    assert lacking[-1] == ""  # it has no figure of rte
    assert not any("ELECTRA-Base" in row[0] for row in rows)


@pytest.mark.parametrize(("benchmark", "size"), [("own", "small"), ("glue", "pico"), ("glue", "small-ex")])
def test_where_nothing_is_published_nothing_stands_beside(benchmark, size):
    assert published_for(benchmark, size) == []
    assert len(cells(runs("mine", (0.9,), benchmark=benchmark, model={"size": size}), published=True)[0]) == 2


def test_figures_of_another_metric_are_left_out():
    rows, _ = cells(runs("squad2", (0.7,), metric="f1", benchmark="more", model=SMALL), published=True)
    assert len(rows) == 2
    rows, _ = cells(runs("stsb", (0.7,), metric="spearman", model=SMALL), published=True)
    assert "Google ELECTRA-Small, fine-tuned by lonePatient" not in [row[0] for row in rows]


AVERAGES = {  # as the sources print them, most of figures with one decimal
    "Google ELECTRA-Small-OWT": 80.36,
    "R. Wang ELECTRA-Small-OWT": 80.36,
    "junnyu ELECTRA-Small-OWT": 80.30,
    "Google ELECTRA-Large": 89.5,
    "Google ELECTRA-400K": 89.0,
    "BERT-Large, trained by the authors of ELECTRA": 87.2,
}


def test_glue_figures_have_the_average_that_their_source_gives():
    rows = [*published_for("glue", "small"), *published_for("glue", "large")]
    found = {row["name"]: statistics.fmean(row["scores"].values()) for row in rows if row["name"] in AVERAGES}
    assert found == pytest.approx(AVERAGES, abs=0.051)


def test_published_rows_hold_percentages_of_known_tasks_and_metrics_with_their_source():
    text = (resources.files("hf_electra_rtd.publishing") / "published.json").read_text(encoding="utf-8")
    known = {task.name: task.metrics for tasks in BENCHMARKS.values() for task in tasks}
    for row in json.loads(text):
        assert row["size"] in ("tiny", "small", "small-ex", "base", "large")
        assert row["source"]
        assert all(30 < score < 100 for score in row["scores"].values())
        assert known.keys() >= row["scores"].keys() >= row.get("metrics", {}).keys()
        assert all(metric in known[task] for task, metric in row.get("metrics", {}).items())


# ---- Files and commands ----


def test_results_are_written_unrounded(tmp_path):
    metrics = {"dev": {"accuracy": 0.5, "f1": None}, "test": {"accuracy": 0.75}}
    records = [*runs("rte", (2 / 3, 1 / 3), model=SMALL), evaluation_record("mrpc", metrics=metrics, model=SMALL)]
    path = write_results(records, tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["results.json"]
    written = json.loads(path.read_text())
    rte, mrpc = written["results"]
    accuracy = rte["scores"]["dev"]["accuracy"]
    assert (rte["seeds"], accuracy["values"], accuracy["best"]) == ([42, 43], [2 / 3, 1 / 3], 2 / 3)
    assert accuracy["median"] == accuracy["mean"] == pytest.approx(0.5)
    assert accuracy["deviation"] == pytest.approx(math.sqrt(2) / 6)
    assert mrpc["scores"]["test"]["accuracy"]["deviation"] is None
    (average,) = written["averages"]
    assert (average["tasks"], average["medians"]) == (["mrpc", "rte"], {MODEL: pytest.approx(0.5)})
    assert written["published"][0]["scores"] == {"mrpc": 87.4, "rte": 68.5}


def test_the_terminal_shows_the_cells_of_the_table(capsys):
    records = runs("rte", (0.5, 0.75), model=SMALL)
    print_results(records)
    shown = " ".join(capsys.readouterr().out.split())
    rows, caption = cells(records, published=True)
    for text in [*(cell for row in rows for cell in row), *caption.split("\n")]:
        assert " ".join(text.split()) in shown


def test_compare_prints_a_table_and_draws_checkpoints(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for run in runs("rte", (2 / 3, 1 / 3)):
        (tmp_path / f"runs/seed_{run.seed}").mkdir(parents=True)
        run.save(tmp_path / f"runs/seed_{run.seed}")
    main(["runs", "--markdown"])
    assert capsys.readouterr().out.strip() == results_table(read_evaluations(["runs"])).strip()
    main(["runs"])
    assert "66.7" in capsys.readouterr().out
    main(["--along", "10=runs", "20=runs", "--random_weights", "runs", "--tokens_per_step", "8"])
    assert (tmp_path / "along_pretraining.png").read_bytes().startswith(b"\x89PNG")


def report(right, samples, data="a"):
    return {"score": right, "resampled": samples, "data": data}


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (
            [report(0.8, [0.7, 0.8, 0.9])],
            [report(0.5, [0.5, 0.5, 0.5])],
            "+30.0 (95 % interval over examples +20.5 to +39.5)",
        ),
        (  # medians of seeds, sample by sample
            [report(0.5, [0.1, 0.9, 0.5]), report(0.6, [0.3, 0.7, 0.5]), report(0.7, [0.2, 0.8, 0.5])],
            [report(0.5, [0.2, 0.8, 0.5])],
            "+10.0 (95 % interval over examples +0.0 to +0.0)",
        ),
        ([report(0.5, [0.5])], [report(0.5, [0.5], data="b")], "no interval, because"),
        ([report(0.5, [0.5]), None], [report(0.5, [0.5])], "no interval, because"),
    ],
)
def test_two_models_are_compared_on_the_same_samples(tmp_path, capsys, first, second, said):
    for name, reports in (("first", first), ("second", second)):
        for seed, written in enumerate(reports):
            directory = tmp_path / name / f"seed_{seed}"
            directory.mkdir(parents=True)
            evaluation_record("rte", seed, 0.5, model={"name_or_path": name}).save(directory)
            if written is not None:
                (directory / "report_dev.json").write_text(json.dumps(written))
    main([str(tmp_path)])
    heads = " (transformers head)"
    assert f"rte, first{heads} minus second{heads}: {said}" in capsys.readouterr().out
    main([str(tmp_path / "first")])
    assert "minus" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["."], "--output_dir"), (["--along", "ten=."], "--along ten=.*step"), (["--along", "0=."], "--along 0=")],
)
def test_compare_says_what_is_wrong(tmp_path, flags, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        main(flags)


@pytest.mark.parametrize("flags", [["--random_weights", "."], ["--tokens_per_step", "8"]])
def test_flags_of_checkpoints_without_checkpoints_are_refused(flags, capsys):
    with pytest.raises(SystemExit):
        main([".", *flags])
    assert "are for --along" in capsys.readouterr().err
