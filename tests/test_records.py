import json
import math

import pytest

from hf_electra_rtd import PretrainingRecord
from hf_electra_rtd.publishing.curves import plot_curves
from hf_electra_rtd.records import (
    EVALUATION_FILE,
    RECORD_FILE,
    EvaluationRecord,
    collect_hardware,
    collect_versions,
    utc_now,
    write_whole,
)
from tests.publishing.card_records import run_record


def make_record(**changes):
    curves = [
        {"step": 10 * i, "generator_loss": 7 - 0.1 * i, "generator_accuracy": 0.01 * i, "discriminator_loss": 0.4,
         "discriminator_auc": 0.5 + 0.02 * i, "learning_rate": 1e-3, "tokens_per_second": 5000.0}
        for i in range(10)
    ]  # fmt: skip
    curves += [{"step": 50, **{f"eval_{name}": 0.6 for name in ("generator_loss", "discriminator_auc")}}]
    return run_record(
        **{
            "command": "pretrain.py",
            "started": utc_now(),
            "finished": utc_now(),
            "hardware": collect_hardware(),
            "versions": collect_versions(),
            "curves": curves,
            "metrics": {"eval_discriminator_auc": 0.75},
            **changes,
        }
    )


def test_a_record_survives_its_file(tmp_path):
    record = make_record()
    path = record.save(tmp_path)
    assert path.name == RECORD_FILE
    assert PretrainingRecord.load(path) == PretrainingRecord.load(tmp_path) == record
    assert [entry.name for entry in tmp_path.iterdir()] == [RECORD_FILE]


@pytest.mark.parametrize("field", ["fractions", "emissions"])
def test_a_record_from_before_there_was_a_field_is_read(tmp_path, field):
    record = make_record()
    path = record.save(tmp_path)
    values = json.loads(path.read_text())
    del values[field]
    path.write_text(json.dumps(values))
    assert PretrainingRecord.load(path) == record


def test_numbers_that_are_not_finite_become_null(tmp_path):
    path = make_record(metrics={"eval_discriminator_auc": math.nan}).save(tmp_path)
    assert json.loads(path.read_text())["metrics"] == {"eval_discriminator_auc": None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": "many"}, "field 'steps' is a str, not a int"),
        ({"steps": True}, "field 'steps' is a bool"),
        ({"curves": {}}, "field 'curves' is a dict"),
        ({"more": 1}, "field 'more' is not known"),
        ({"tokens": ...}, "field 'tokens' is missing"),
        ({"schema_version": 99}, "of version 99, and this package reads version 1: upgrade it"),
        ({"schema_version": "1"}, "not a run record of version 1"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_by_field(tmp_path, change, message):
    path = make_record().save(tmp_path)
    values = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))
    with pytest.raises(ValueError, match=message):
        PretrainingRecord.load(path)


def changed(values, path, value):
    """The same values, but for one, by its path of keys and indices; `...` takes it out."""
    *parents, last = path
    inner = values
    for key in parents:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("data", "train", "sources", 0, "name"), ..., r"'data\.train\.sources\[0\]\.name' is missing"),
        (("data", "train", "sources"), {}, r"'data\.train\.sources' is \{\}, not a list"),
        (("data", "train"), None, r"'data\.train' is null, not a group of fields"),
        (("flops", "model"), "much", r"'flops\.model' is \"much\", not a number"),
        (("flops", "model"), True, r"'flops\.model' is true, not a number"),
        (("arguments", "training", "learning_rate"), ..., r"'arguments\.training\.learning_rate' is missing"),
        (("arguments", "training", "bf16"), 0, r"'arguments\.training\.bf16' is 0, not a truth value"),
        (("model", "discriminator_config", "hidden_size"), 12.5, r"hidden_size' is 12\.5, not a whole number"),
        (("model", "generator_config"), 3, r"'model\.generator_config' is 3, not a group of fields"),
        (("hardware", "processor"), None, r"'hardware\.processor' is null, not a text"),
        (("hardware", "accelerators"), ["G", 1], r"'hardware\.accelerators\[1\]' is 1, not a text"),
        (("metrics", "eval_discriminator_auc"), "good", r"'metrics\.eval_discriminator_auc' is \"good\""),
        (("emissions",), {"kg_co2_eq": "some"}, r"'emissions\.kg_co2_eq' is \"some\", not a number"),
    ],
)
def test_what_lies_deeper_in_a_record_is_refused_by_its_path(tmp_path, path, value, message):
    file = make_record().save(tmp_path)
    file.write_text(json.dumps(changed(json.loads(file.read_text()), path, value)))
    with pytest.raises(ValueError, match=rf"run_record\.json: field .*{message}"):
        PretrainingRecord.load(file)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("model", "generator_config"), None),
        (("data", "held_out"), ...),
        (("arguments", "data", "data_license"), None),
        (("metrics", "eval_discriminator_auc"), None),
        (("emissions",), {"kg_co2_eq": 0.5, "country": None}),
    ],
)
def test_what_not_every_run_has_may_be_missing(tmp_path, path, value):
    file = make_record().save(tmp_path)
    file.write_text(json.dumps(changed(json.loads(file.read_text()), path, value)))
    PretrainingRecord.load(file)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("model", "name_or_path"), ..., r"'model\.name_or_path' is missing"),
        (("metrics", "dev", "accuracy"), "high", r"'metrics\.dev\.accuracy' is \"high\", not a number"),
        (("metrics", "dev"), 0.5, r"'metrics\.dev' is 0\.5, not a group of fields"),
        (("model", "from_scratch"), "no", r"'model\.from_scratch' is \"no\", not a truth value"),
        (("dataset",), {"splits": {"dev": 1}}, r"'dataset\.splits\.dev' is 1, not a text"),
    ],
)
def test_what_lies_deeper_in_an_evaluation_record_is_refused_by_its_path(tmp_path, path, value, message):
    file = make_evaluation().save(tmp_path)
    file.write_text(json.dumps(changed(json.loads(file.read_text()), path, value)))
    with pytest.raises(ValueError, match=rf"evaluation_record\.json: field .*{message}"):
        EvaluationRecord.load(file)


def make_evaluation(**changes):
    return EvaluationRecord(
        **{
            "command": "finetune.py --task_name mrpc",
            "started": utc_now(),
            "finished": utc_now(),
            "benchmark": "glue",
            "task": "mrpc",
            "language": "en",
            "kind": "classification",
            "model": {"name_or_path": "run/discriminator", "head": "paper", "from_scratch": False, "peft": None},
            "arguments": {"learning_rate": 3e-4},
            "seed": 42,
            "data": {"train": {"rows": 3668, "skipped": {}, "cut": 3}},
            "metrics": {"dev": {"accuracy": 0.875, "f1": 0.91}},
            "main_metric": "accuracy",
            "selection": "last step",
            "steps": 345,
            "epochs": 3.0,
            "train_seconds": 61.5,
            "sentences_per_second": 178.9,
            "hardware": collect_hardware(),
            "versions": collect_versions(),
            "predictions": {"dev": "predictions_dev.jsonl"},
            "curves": [{"step": 100, "loss": 0.5}],
            **changes,
        }
    )


def test_an_evaluation_record_survives_its_file(tmp_path):
    record = make_evaluation()
    path = record.save(tmp_path)
    assert path.name == EVALUATION_FILE
    assert EvaluationRecord.load(path) == EvaluationRecord.load(tmp_path) == record
    assert [entry.name for entry in tmp_path.iterdir()] == [EVALUATION_FILE]


def test_scores_that_are_not_finite_become_null_in_an_evaluation_record(tmp_path):
    make_evaluation(metrics={"dev": {"accuracy": math.nan, "f1": -math.inf}}).save(tmp_path)
    assert EvaluationRecord.load(tmp_path).metrics == {"dev": {"accuracy": None, "f1": None}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": "42"}, "field 'seed' is a str, not a int"),
        ({"metrics": [0.5]}, "field 'metrics' is a list"),
        ({"score": 1}, "field 'score' is not known"),
        ({"main_metric": ...}, "field 'main_metric' is missing"),
        ({"schema_version": 0}, "not an evaluation record of version 1"),
    ],
)
def test_an_evaluation_record_that_does_not_fit_is_refused_by_field(tmp_path, change, message):
    path = make_evaluation().save(tmp_path)
    values = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))
    with pytest.raises(ValueError, match=message):
        EvaluationRecord.load(path)


@pytest.mark.parametrize(
    ("metrics", "score"),
    [
        ({"dev": {"f1": 0.9, "accuracy": 0.5}, "test": {"accuracy": 0.75}}, 0.5),
        ({"dev": {"accuracy": 0.0}}, 0.0),
        ({"dev": {"accuracy": None}, "test": {"accuracy": 0.75}}, None),
        ({"dev": {"f1": 0.9}}, None),
        ({}, None),
    ],
)
def test_the_score_of_a_run_is_its_main_metric_on_the_first_split(metrics, score):
    assert make_evaluation(metrics=metrics).score() == score


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "notes.tsv"
    write_whole(path, "one\ntwo — drei\n")
    assert path.read_bytes() == "one\ntwo — drei\n".encode()
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "one\n\ud800")
    assert path.read_bytes() == "one\ntwo — drei\n".encode()


def test_versions_and_hardware_are_told():
    assert {"python", "torch", "transformers", "hf-electra-rtd"} <= collect_versions().keys()
    hardware = collect_hardware()
    assert hardware["cpu_cores"] >= 1
    assert hardware["processor"]
    assert hardware["accelerators"] == []


def test_curves_are_drawn_from_the_record_alone(tmp_path):
    path = plot_curves(make_record(), tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 20_000


def test_curves_of_a_run_without_evaluation_are_drawn_too(tmp_path):
    plot_curves(make_record(metrics={}, curves=[{"step": 1, "generator_loss": 1.0}]), tmp_path)
