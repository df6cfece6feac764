import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_electra_rtd.publishing.compare import main
from hf_electra_rtd.publishing.tables import differences, results_table, summarize
from tests.publishing.card_records import evaluation_record, runs


SMALL = {"size": "small"}
MODEL = "tiny"
OTHER = {"model": {"name_or_path": "other", "sha256": "0" * 64, "tokenizer": "1" * 64}}


def cells(records, published=False):
    """The table of results as rows of cells, and its caption."""
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
        evaluation_record("rte", 1, 0.3, model={"peft": "lora"}),
        evaluation_record("cola", 1, 0.2, "matthews"),
    ]
    assert [(result.task, result.model, result.main) for result in summarize(records)] == [
        ("rte", MODEL, [0.5, 0.6]),
        ("rte", "tiny (random weights)", [0.4]),
        ("rte", "tiny (lora)", [0.3]),
        ("cola", MODEL, [0.2]),
    ]


FIRST = evaluation_record("rte", 42, 0.5)


@pytest.mark.parametrize(
    ("difference", "first", "change"),
    [
        ("learning_rate 1e-05", {}, {"arguments": {**FIRST.arguments, "learning_rate": 1e-5}}),
        ("lora_r 4", {}, {"arguments": {**FIRST.arguments, "lora": {"lora_r": 4}}}),
        ("weights 00000000", {}, {"model": {"sha256": "0" * 64}}),
        ("tokenizer 11111111", {}, {"model": {"tokenizer": "1" * 64}}),
        ("training data", {}, {"data": {**FIRST.data, "train": {"files": {"train.tsv": "2" * 64}}}}),
        ("optim adamw", {"arguments": {"optim": ""}}, {"arguments": {"optim": "adamw"}}),
        ("max_steps 9", {}, {"arguments": {**FIRST.arguments, "max_steps": 9}}),
        ("optim_args a=1 b=2", {}, {"arguments": {**FIRST.arguments, "optim_args": {"a": 1, "b": 2}}}),
        ("learning_rate 1e-05", {}, {**OTHER, "arguments": {**FIRST.arguments, "learning_rate": 1e-5}}),
        ("training data", {}, {**OTHER, "data": {**FIRST.data, "train": {"files": {"train.tsv": "2" * 64}}}}),
    ],
)
def test_runs_with_other_settings_weights_or_data_are_apart_and_named_by_what_differs(difference, first, change):
    others = [evaluation_record("rte", seed, score, **change) for seed, score in ((42, 0.6), (43, 0.7))]
    first, second = summarize([evaluation_record("rte", 42, 0.5, **first), *others])
    assert (first.main, second.main) == ([0.5], [0.6, 0.7])
    assert difference in second.model
    assert not re.search(r" \)|-1|null", first.model)  # what is not set is not named
    assert ("weights" in second.model) == difference.startswith("weights")  # nor is what the other names tell
    assert second.model.replace(difference, "") != first.model != second.model


def test_a_flag_that_a_record_does_not_have_is_the_same_as_one_that_is_off():
    without = {name: value for name, value in FIRST.arguments.items() if name != "bias_correction"}
    assert FIRST.arguments["bias_correction"] is False
    (row,) = summarize([FIRST, evaluation_record("rte", 43, 0.6, arguments=without)])
    assert row.main == [0.5, 0.6]


EXAMPLES = {"reports": {"dev": {"data": "1" * 64}}}


@pytest.mark.parametrize(
    ("change", "titles"),
    [
        ({"reports": {"dev": {"data": "2" * 64}}}, ["rte (data 11111111)", "rte (data 22222222)"]),
        ({"kind": "regression"}, ["rte (classification)", "rte (regression)"]),
        ({"metrics": {"dev": {"f1": 0.6}}, "main_metric": "f1"}, ["rte (accuracy)", "rte (f1)"]),
        ({"data": {"dev": {"files": {"other.tsv": "2" * 64}}}}, ["rte"]),  # the same examples from another file
    ],
)
@pytest.mark.parametrize("name", ["tiny", "other"])
def test_scores_stand_in_one_column_only_if_examples_kind_and_metric_are_the_same(tmp_path, change, titles, name):
    first = evaluation_record("rte", 42, 0.5, **EXAMPLES)
    second = evaluation_record("rte", 43, 0.6, model={"name_or_path": name}, **{**EXAMPLES, **change})
    columns = cells([first, second])[0][0]
    assert [column for column in columns if column.startswith("rte")] == titles
    records = {tmp_path / str(record.seed): record for record in (first, second)}
    has_difference = len(titles) == 1 and (name == "other" or "data" in change)
    assert len(list(differences(records))) == has_difference


def test_runs_without_a_finite_score_are_left_out_and_named():
    records = [*runs("stsb", (0.5, None, 0.75)), *runs("rte", (None,))]
    rows, caption = cells(records)
    assert [row[2:] for row in rows] == [["stsb", "rte"], ["62.5", ""], ["62.5 ± 17.7", ""], ["75.0", ""]]
    assert f"stsb, {MODEL}: 1 of 3" in caption
    assert f"rte, {MODEL}: 1 of 1" in caption


def test_the_caption_tells_how_few_examples_a_score_is_of():
    few = {"max_pairs": 50, "max_train_samples": 64}
    run = evaluation_record("rte", arguments={**FIRST.arguments, **few}, data={"train": {"examples": 64}})
    (sentence,) = [line for line in cells([run])[1].splitlines() if line.startswith(f"rte, {MODEL}:")]
    assert all(number in sentence for number in ("50", "64"))
    assert "examples" not in cells([FIRST])[1]
    whole = evaluation_record("rte", arguments={**FIRST.arguments, **few}, data={"train": {"examples": 63}})
    assert "examples" not in cells([whole])[1]


OURS = [*runs("cola", (0.5,), metric="matthews"), *runs("rte", (0.7,)), *runs("mrpc", (0.9,))]
THEIRS = [run for task in ("rte", "mrpc") for run in runs(task, (0.6,), model={"name_or_path": "other"})]
OF_DIFFERENT_EXAMPLES = [evaluation_record("rte", reports={"dev": {"data": str(number) * 64}}) for number in (1, 2)]
TWO_DEV_SPLITS = {"dev_matched": {"accuracy": 0.8}, "dev_mismatched": {"accuracy": 0.82}, "ax": {"accuracy": 0.3}}


@pytest.mark.parametrize(
    ("records", "last_column", "told"),
    [
        (OURS + THEIRS, ["avg", "80.0", "60.0"], "avg: over mrpc, rte."),  # every model has both
        (OURS + THEIRS[:1], None, ""),
        ([*OF_DIFFERENT_EXAMPLES, *OURS[:1], *OURS[2:]], ["avg", "70.0"], "avg: over cola, mrpc."),  # no task twice
        ([evaluation_record("mnli", metrics=TWO_DEV_SPLITS), *OURS[1:2]], ["avg", "75.0"], "mnli: on dev_matched."),
        ([evaluation_record(task, benchmark="own") for task in ("reviews", "news")], None, ""),
    ],
)
def test_averages_are_over_the_tasks_of_a_benchmark_that_every_model_has_each_once(records, last_column, told):
    rows, caption = cells(records)
    if last_column is None:
        assert "avg" not in rows[0]
    else:
        assert [row[-1] for row in rows] == last_column
    assert told in caption


# ---- Published figures ----


def test_models_of_the_same_size_stand_beside():
    records = [*runs("cola", (0.5,), metric="matthews", model=SMALL), *runs("rte", (0.7,), model=SMALL)]
    rows, caption = cells(records, published=True)
    google = next(row for row in rows if row[0] == "Google ELECTRA-Small-OWT")
    assert google[1:4] == ["published", "56.8", "68.5"]
    assert float(google[4]) == pytest.approx((56.8 + 68.5) / 2, abs=0.051)
    assert "Google ELECTRA-Small-OWT: google-research/electra" in caption
    lacking = next(row for row in rows if row[0].endswith("by lonePatient"))
    assert lacking[-1] == ""  # it has no figure for rte
    assert not any("ELECTRA-Base" in row[0] for row in rows)
    for benchmark, size in (("own", "small"), ("glue", "pico"), ("glue", "small-ex")):  # nothing is published
        assert len(cells(runs(benchmark=benchmark, model={"size": size}, scores=(0.9,)), published=True)[0]) == 2


# ---- The command ----


def saved(tmp_path, *records):
    """Saves records, and returns their directories."""
    for number, record in enumerate(records):
        (tmp_path / str(number)).mkdir()
        record.save(tmp_path / str(number))
    return [tmp_path / str(number) for number in range(len(records))]


def report(right, *samples, data="a", **more):
    return {"score": right, "resampled": samples, "data": data, **more}


MEDIANS = [report(0.5, 0.1, 0.9, 0.5), report(0.6, 0.3, 0.7, 0.5), report(0.7, 0.2, 0.8, 0.5)]  # sample by sample
INTERVAL = "95 % interval over examples"
OF_PAIRS = report(0.8, 0.7, 0.8, 0.9, paradigms={"plural": 0.8})


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ([report(0.8, 0.7, 0.8, 0.9)], report(0.5, 0.5, 0.5, 0.5), f"+30.00 ({INTERVAL} +20.50 to +39.50)"),
        ([OF_PAIRS], {**OF_PAIRS, "score": 0.7}, "+10.00 (95 % interval over paradigms +0.00 to +0.00)"),
        (MEDIANS, report(0.5, 0.2, 0.8, 0.5), f"+10.00 ({INTERVAL} +0.00 to +0.00)"),
        ([report(0.5, 0.5)], report(0.5, 0.5, data="b"), "no difference"),
        ([report(0.5, 0.5), None], report(0.5, 0.5), "no difference"),
    ],
)
def test_two_models_are_compared_on_the_same_samples(tmp_path, capsys, first, second, said):
    reports = [("first", seed, written) for seed, written in enumerate(first)] + [("second", 0, second)]
    records = [evaluation_record("rte", seed, 0.5, model={"name_or_path": name}) for name, seed, _ in reports]
    for place, (_, _, written) in zip(saved(tmp_path, *records), reports, strict=True):
        if written is not None:
            (place / "report_dev.json").write_text(json.dumps(written))
    main([str(tmp_path)])
    assert f"rte, first minus second: {said}" in capsys.readouterr().out
    main([str(tmp_path / "0")])
    assert "minus" not in capsys.readouterr().out


@pytest.mark.parametrize(("records", "name"), [([], "--output_dir"), ([FIRST, FIRST], "seed 42")])
def test_what_cannot_be_compared_is_refused(tmp_path, records, name):
    saved(tmp_path, *records)
    with pytest.raises(ValueError, match=name):
        main([str(tmp_path)])
