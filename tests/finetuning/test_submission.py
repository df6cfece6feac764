import json
import logging
import math
import os
import zipfile
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_electra_rtd.finetuning import clue, glue, suite
from hf_electra_rtd.finetuning.examples import Answer, ChoiceExample, QuestionExample, TaggedExample, TextExample
from hf_electra_rtd.finetuning.loading import Split
from hf_electra_rtd.finetuning.scores import find_chunks
from hf_electra_rtd.finetuning.submission import write_predictions, write_submission, zip_submission
from hf_electra_rtd.finetuning.tasks import Task


GLUE_FILES = {
    "AX.tsv", "CoLA.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "MRPC.tsv", "QNLI.tsv", "QQP.tsv", "RTE.tsv", "SST-2.tsv",
    "STS-B.tsv", "WNLI.tsv",
}  # fmt: skip
TASKS = {task.name: task for module in (glue, clue) for task in vars(module).values() if isinstance(task, Task)}


def texts(*ids, label=None):
    return [TextExample(identity, ("A text.",), label) for identity in ids]


def own_task(name="reviews", benchmark="own"):
    return Task(name, benchmark, "Reviews", "en", "classification", ("accuracy",), "accuracy", ("bad", "good"))


def test_predictions_of_every_kind_are_written_with_what_is_known(tmp_path):
    answers = (Answer("in Kyoto", 3), Answer("Kyoto", 6))
    examples = [
        TextExample("a", ("x",), "good"),
        TextExample("b", ("x",), None),
        TextExample("c", ("x",), 2.5),
        ChoiceExample("d", "x", "?", ("yes", "no"), 1),
        QuestionExample("e", "?", "In Kyoto", answers),
        QuestionExample("f", "?", "x", ()),
        QuestionExample("g", "?", "x", None),
        TaggedExample("h", ("是", "京"), ("O", "B-CITY")),
    ]
    predictions = ["bad", "good", math.nan, 0, {"text": "Kyoto"}, {"text": ""}, {"text": "x"}, ["O", "O"]]
    path = tmp_path / "predictions.jsonl"
    write_predictions(path, predictions, examples)
    assert [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] == [
        {"id": "a", "prediction": "bad", "label": "good"},
        {"id": "b", "prediction": "good"},
        {"id": "c", "prediction": None, "label": 2.5},
        {"id": "d", "prediction": 0, "label": 1},
        {"id": "e", "prediction": {"text": "Kyoto"}, "label": ["in Kyoto", "Kyoto"]},
        {"id": "f", "prediction": {"text": ""}, "label": []},
        {"id": "g", "prediction": {"text": "x"}},
        {"id": "h", "prediction": ["O", "O"], "label": ["O", "B-CITY"]},
    ]
    assert os.listdir(tmp_path) == ["predictions.jsonl"]


@pytest.mark.parametrize(
    ("name", "split", "file", "cells"),
    [
        ("cola", "test", "CoLA.tsv", "01"),
        ("sst2", "test", "SST-2.tsv", "01"),
        ("mrpc", "test", "MRPC.tsv", "01"),
        ("qqp", "test", "QQP.tsv", "01"),
        ("wnli", "test", "WNLI.tsv", "01"),
        ("mnli", "test_matched", "MNLI-m.tsv", ("entailment", "neutral", "contradiction")),
        ("mnli", "test_mismatched", "MNLI-mm.tsv", ("entailment", "neutral", "contradiction")),
        ("ax", "test", "AX.tsv", ("entailment", "neutral", "contradiction")),
        ("qnli", "test", "QNLI.tsv", ("entailment", "not_entailment")),
        ("rte", "test", "RTE.tsv", ("entailment", "not_entailment")),
    ],
)
def test_glue_gets_each_label_of_a_task_as_it_names_it(tmp_path, name, split, file, cells):
    labels = TASKS[name].labels
    path = write_submission(TASKS[name], split, labels, texts(*"xyz"[: len(labels)]), tmp_path / "new")
    assert path == tmp_path / "new" / file
    assert path.read_bytes().decode() == "index\tprediction\n" + "".join(
        f"{i}\t{cell}\n" for i, cell in enumerate(cells)
    )


@pytest.mark.parametrize("name", ["cola", "sst2", "mrpc", "qqp"])
def test_the_positive_label_of_the_tasks_with_f1_is_1(tmp_path, name):
    positive = {"cola": "acceptable", "sst2": "positive", "mrpc": "equivalent", "qqp": "duplicate"}[name]
    path = write_submission(TASKS[name], "test", [positive], texts("0"), tmp_path)
    assert path.read_text() == "index\tprediction\n0\t1\n"


def test_similarities_are_clipped_to_what_the_server_takes(tmp_path):
    numbers = [-0.3, -0.0, 0.00049, 2.5, 4.9996, 5.2]
    path = write_submission(TASKS["stsb"], "test", numbers, texts(*"abcdef"), tmp_path)
    assert [line.split("\t")[1] for line in path.read_text().splitlines()[1:]] == [
        "0.000", "0.000", "0.000", "2.500", "5.000", "5.000",
    ]  # fmt: skip


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_similarity_that_is_no_number_is_refused_by_row(tmp_path, number):
    with pytest.raises(ValueError, match="Row b: the prediction is"):
        write_submission(TASKS["stsb"], "test", [1.0, number], texts("a", "b"), tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_label_that_the_server_does_not_know_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"RTE: RTE\.tsv cannot hold the label 'maybe'"):
        write_submission(TASKS["rte"], "test", ["maybe"], texts("0"), tmp_path)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("afqmc", "afqmc_predict.json"),
        ("tnews", "tnews11_predict.json"),
        ("iflytek", "iflytek_predict.json"),
        ("cmnli", "cmnli_predict.json"),
        ("ocnli", "ocnli_50k_predict.json"),
        ("cluewsc2020", "cluewsc11_predict.json"),
        ("csl", "csl_predict.json"),
    ],
)
def test_clue_gets_labels_a_line_each(tmp_path, name, file):
    label = TASKS[name].labels[1]
    path = write_submission(TASKS[name], "test", [label, label], texts("0", "b7"), tmp_path)
    assert path == tmp_path / file
    assert path.read_text() == f'{{"id": 0, "label": "{label}"}}\n{{"id": "b7", "label": "{label}"}}\n'


@pytest.mark.parametrize(
    ("name", "rows", "file"),
    [
        ("cluewsc2020", 290, "cluewsc10_predict.json"),
        ("cluewsc2020", 2574, "cluewsc11_predict.json"),
        ("cluewsc2020", 291, "cluewsc11_predict.json"),
        ("tnews", 10_000, "tnews11_predict.json"),
        ("afqmc", 3861, "afqmc_predict.json"),
    ],
)
def test_a_file_is_named_after_the_version_whose_test_set_has_as_many_rows(tmp_path, name, rows, file):
    predictions = [TASKS[name].labels[0]] * rows
    assert write_submission(TASKS[name], "test", predictions, texts(*map(str, range(rows))), tmp_path).name == file


@pytest.mark.parametrize(("rows", "file"), [(3892, "c310_predict.json"), (3891, "c311_predict.json")])
def test_the_old_questions_of_c3_are_told_by_their_number(tmp_path, rows, file):
    choices = [ChoiceExample(str(row), "x", "?", ("yes", "no"), None) for row in range(rows)]
    assert write_submission(TASKS["c3"], "test", [1] * rows, choices, tmp_path).name == file


def test_rows_that_were_skipped_would_shift_the_others_so_nothing_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"RTE: RTE\.tsv is not written, as 2 rows of the split 'test' were skipped"):
        write_submission(TASKS["rte"], "test", ["entailment"], texts("0"), tmp_path, skipped=2)
    assert write_submission(own_task(), "test", ["good"], texts("0"), tmp_path, skipped=2) is None
    assert os.listdir(tmp_path) == []


def test_a_run_whose_file_cannot_be_written_is_told_of_it_and_goes_on(tmp_path, caplog):
    splits = {"test_matched": Counter({"broken": 3}), "test_mismatched": Counter()}
    data = SimpleNamespace(
        test={name: SimpleNamespace(split=Split(texts("0"), skipped, {})) for name, skipped in splits.items()}
    )
    job = SimpleNamespace(task=TASKS["mnli"], data=data)
    outcome = SimpleNamespace(predictions={name: ["neutral"] for name in data.test})
    suite._write_submissions(job, outcome, tmp_path)
    assert os.listdir(tmp_path / suite.SUBMISSION_DIRECTORY) == ["MNLI-mm.tsv"]
    assert ["MNLI-m.tsv is not written, as 3 rows" in message for message in caplog.messages] == [True]


def test_clue_gets_answers_and_choices_by_id(tmp_path):
    question = [QuestionExample("TEST_0_QUERY_0", "?", "x", None)]
    path = write_submission(TASKS["cmrc2018"], "test", [{"text": "1862年", "score": 3.5}], question, tmp_path)
    assert path.name == "cmrc2018_predict.json"
    assert json.loads(path.read_text(encoding="utf-8")) == {"TEST_0_QUERY_0": "1862年"}
    blank = [ChoiceExample("#idiom623377#", "x", "?", ("a", "b"), None)]
    path = write_submission(TASKS["chid"], "test", [1], blank, tmp_path)
    assert json.loads(path.read_text()) == {"#idiom623377#": 1}
    path = write_submission(TASKS["c3"], "test", [1], [ChoiceExample("5", "x", "?", ("a", "b"), None)], tmp_path)
    assert path.read_text() == '{"id": 5, "label": "1"}\n'


def test_entities_have_spans_whose_last_character_is_included(tmp_path):
    # The README of CLUENER 2020 gives this text and these spans.
    text = "北京勘察设计协会副会长兼秘书长周荫如"
    tags = ["B-organization", *["I-organization"] * 7, "B-position", "I-position", "I-position", "O"]
    tags += ["B-position", "I-position", "I-position", "B-name", "I-name", "I-name"]
    path = write_submission(TASKS["cluener2020"], "test", [tags], [TaggedExample("0", tuple(text), None)], tmp_path)
    assert path.name == "cluener_predict.json"
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "id": 0,
        "text": text,
        "label": {
            "organization": {"北京勘察设计协会": [[0, 7]]},
            "position": {"副会长": [[8, 10]], "秘书长": [[12, 14]]},
            "name": {"周荫如": [[15, 17]]},
        },
    }


@given(st.lists(st.sampled_from(["O", "B-name", "I-name", "B-book", "I-book"]), min_size=1, max_size=12))
def test_entities_are_those_that_are_scored(tmp_path_factory, tags):
    example = TaggedExample("3", tuple("甲乙甲乙甲乙甲乙甲乙甲乙"[: len(tags)]), None)
    path = write_submission(TASKS["cluener2020"], "test", [tags], [example], tmp_path_factory.mktemp("clue"))
    (line,) = path.read_text(encoding="utf-8").splitlines()
    found = set()
    for kind, entities in json.loads(line)["label"].items():
        for entity, spans in entities.items():
            for first, last in spans:
                assert "".join(example.words)[first : last + 1] == entity
                found.add((first, last + 1, kind))
    assert found == find_chunks(tags)


@pytest.mark.parametrize(
    ("task", "split"),
    [(own_task(), "test"), (own_task("cola"), "test"), (TASKS["drcd"], "test"), (TASKS["rte"], "dev")],
)
def test_what_no_server_takes_is_not_written(tmp_path, task, split):
    assert write_submission(task, split, ["good"], texts("0"), tmp_path) is None
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", sorted(TASKS.keys() - {"drcd"}))
def test_every_test_split_of_the_benchmarks_has_its_file(tmp_path, name):
    task = TASKS[name]
    files = {write_submission(task, split, [], [], tmp_path).name for split in task.test_splits}
    assert len(files) == len(task.test_splits)


def fill(directory, rows=0):
    """Writes a file for each test split of GLUE."""
    for task in TASKS.values():
        if task.benchmark == "glue":
            prediction = 1.0 if task.name == "stsb" else task.labels[0]
            for split in task.test_splits:
                write_submission(task, split, [prediction] * rows, texts(*map(str, range(rows))), directory)


def test_the_zip_holds_the_files_alone_and_is_the_same_every_time(tmp_path):
    directories = [tmp_path / "one", tmp_path / "two"]
    zips = []
    for place, directory in enumerate(directories):
        fill(directory)
        (directory / "notes.txt").write_text("not for the server")
        for file in directory.iterdir():
            os.utime(file, (place * 10**9, place * 10**9))
        zips.append(zip_submission("glue", directory))
    assert zips[0].name == "glue_submission.zip"
    assert zips[0].read_bytes() == zips[1].read_bytes() == zip_submission("glue", directories[0]).read_bytes()
    with zipfile.ZipFile(zips[0]) as archive:
        assert set(archive.namelist()) == GLUE_FILES
        assert archive.read("RTE.tsv") == (directories[0] / "RTE.tsv").read_bytes()
        assert archive.testzip() is None


def test_missing_files_are_told_and_whether_the_server_minds(tmp_path, caplog):
    write_submission(TASKS["rte"], "test", [], [], tmp_path)
    zip_submission("glue", tmp_path)
    (lacking,) = [message for message in caplog.messages if "lacks" in message]
    assert all((name in lacking) == (name != "RTE.tsv") for name in GLUE_FILES)
    assert lacking.endswith("The server needs all of them.")
    caplog.clear()
    write_submission(TASKS["tnews"], "test", [], [], tmp_path)
    zip_submission("clue", tmp_path)
    (lacking,) = [message for message in caplog.messages if "lacks" in message]
    assert "tnews" not in lacking
    assert "cluewsc11_predict.json or cluewsc10_predict.json" in lacking
    assert lacking.endswith("The server takes it without them.")


def test_files_with_the_wrong_number_of_rows_are_told(tmp_path, caplog):
    write_submission(TASKS["wnli"], "test", ["entailment"] * 146, texts(*map(str, range(146))), tmp_path)
    write_submission(TASKS["rte"], "test", ["entailment"], texts("0"), tmp_path)
    write_submission(TASKS["cluewsc2020"], "test", ["true"] * 291, texts(*map(str, range(291))), tmp_path)
    with caplog.at_level(logging.WARNING):
        zip_submission("glue", tmp_path)
        zip_submission("clue", tmp_path)
    told = [message for message in caplog.messages if "rows" in message]
    assert told == [
        "RTE.tsv has 1 rows, but the test set has 3,000: the server will refuse it.",
        "cluewsc11_predict.json has 291 rows, but the test set has 2,574: the server will refuse it.",
    ]


def test_nothing_to_zip_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="holds no predictions for the server of glue"):
        zip_submission("glue", tmp_path)
    with pytest.raises(ValueError, match="no server for 'own': zips are made for glue and clue"):
        zip_submission("own", tmp_path)
