import json
import math
import os
import zipfile

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from hf_electra_rtd.finetuning.data import Split
from hf_electra_rtd.finetuning.scores import find_chunks
from hf_electra_rtd.finetuning.submission import write_predictions, write_submission, zip_submission
from hf_electra_rtd.tasks import BENCHMARKS, Task


# Of GLUE: for each test split the server's file, and what stands there for each label.
GLUE = {
    "cola test": "CoLA.tsv 0 1", "sst2 test": "SST-2.tsv 0 1", "mrpc test": "MRPC.tsv 0 1", "qqp test": "QQP.tsv 0 1",
    "wnli test": "WNLI.tsv 0 1", "mnli test_matched": "MNLI-m.tsv entailment neutral contradiction",
    "mnli test_mismatched": "MNLI-mm.tsv entailment neutral contradiction",
    "ax test": "AX.tsv entailment neutral contradiction", "qnli test": "QNLI.tsv entailment not_entailment",
    "rte test": "RTE.tsv entailment not_entailment",
}  # fmt: skip
GLUE_FILES = {"STS-B.tsv", *(words.split()[0] for words in GLUE.values())}
# Of CLUE: the files with a label a line.
CLUE = {
    "afqmc": "afqmc", "tnews": "tnews11", "iflytek": "iflytek", "cmnli": "cmnli", "ocnli": "ocnli_50k",
    "cluewsc2020": "cluewsc11", "csl": "csl",
}  # fmt: skip
TASKS = {task.name: task for name in ("glue", "clue") for task in BENCHMARKS[name]}


def examples_of(*ids, **columns):
    columns = columns or {"label": [None] * len(ids)}
    return Dataset.from_dict({"id": list(ids), **columns})


def split_of(*ids, skipped=0, **columns):
    return Split(examples_of(*ids, **columns), skipped, {})


def own_task(name="reviews"):
    return Task(name, "Reviews", "own", labels=("bad", "good"))


@pytest.mark.parametrize(
    ("predictions", "columns"),
    [
        (["bad", "good"], {"texts": [["ash", "elm"], ["oak"]], "label": ["good", None]}),
        ([math.nan, 1.5], {"label": [2.5, None]}),
        ([{"text": "Kyoto"}, {"text": ""}], {"answers": [["in Kyoto", "Kyoto"], []], "starts": [[3, 6], []]}),
        ([["O", "B-CITY"], ["O"]], {"words": [["是", "京"], ["x"]], "tags": [["O", "B-CITY"], None]}),
    ],
    ids=["classes", "numbers", "answers", "tags"],
)
def test_predictions_of_every_kind_have_the_texts_and_the_label_where_it_is_known(tmp_path, predictions, columns):
    path = tmp_path / "predictions.jsonl"
    write_predictions(path, predictions, split_of("a", "b", **columns))
    texts = {name: values for name, values in columns.items() if name in ("texts", "words")}
    labels = next(columns[name] for name in ("label", "answers", "tags") if name in columns)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row, (line, identity, prediction, label) in enumerate(zip(lines, "ab", predictions, labels, strict=True)):
        known = {} if label is None else {"label": label}
        known |= {name: values[row] for name, values in texts.items()}
        written = None if isinstance(prediction, float) and math.isnan(prediction) else prediction
        assert line == {"id": identity, "prediction": written, **known}


@pytest.mark.parametrize("where", GLUE)
def test_glue_gets_each_label_of_a_task_as_it_names_it(tmp_path, where):
    (name, split), (file, *cells) = where.split(), GLUE[where].split()
    labels = TASKS[name].labels
    path = write_submission(TASKS[name], split, labels, split_of(*"xyz"[: len(labels)]), tmp_path / "new")
    assert path == tmp_path / "new" / file
    lines = (f"{index}\t{cell}\n" for index, cell in enumerate(cells))
    assert path.read_bytes().decode() == "index\tprediction\n" + "".join(lines)


def test_similarities_are_clipped_to_what_the_server_takes(tmp_path):
    numbers = [-0.3, -0.0, 0.00049, 2.5, 4.9996, 5.2]
    path = write_submission(TASKS["stsb"], "test", numbers, split_of(*"abcdef"), tmp_path)
    cells = [line.split("\t")[1] for line in path.read_text().splitlines()[1:]]
    assert cells == ["0.000", "0.000", "0.000", "2.500", "5.000", "5.000"]


@pytest.mark.parametrize("name", CLUE)
def test_clue_gets_labels_a_line_each(tmp_path, name):
    label = TASKS[name].labels[1]
    path = write_submission(TASKS[name], "test", [label, label], split_of("0", "b7"), tmp_path)
    assert path == tmp_path / f"{CLUE[name]}_predict.json"
    assert path.read_text() == f'{{"id": 0, "label": "{label}"}}\n{{"id": "b7", "label": "{label}"}}\n'


@pytest.mark.parametrize(
    ("name", "count", "file"),
    [
        *(("cluewsc2020", count, f"cluewsc1{version}") for count, version in ((290, 0), (2574, 1), (291, 1))),
        *(("c3", count, f"c31{version}") for count, version in ((3892, 0), (3891, 1))),
    ],
)
def test_a_file_is_named_after_the_version_whose_test_set_has_as_many_examples(tmp_path, name, count, file):
    predictions = [1 if name == "c3" else TASKS[name].labels[0]] * count
    path = write_submission(TASKS[name], "test", predictions, split_of(*map(str, range(count))), tmp_path)
    assert path.name == f"{file}_predict.json"


def test_skipped_examples_would_shift_the_others_so_nothing_is_written(tmp_path, caplog):
    for task in (TASKS["rte"], own_task()):
        assert write_submission(task, "test", [task.labels[0]], split_of("0", skipped=2), tmp_path) is None
    (message,) = caplog.messages
    assert message.startswith("RTE: RTE.tsv is not written, because 2 examples of test were skipped")
    assert os.listdir(tmp_path) == []


def test_clue_gets_answers_and_choices_by_id(tmp_path):
    question = split_of("TEST_0_QUERY_0", answers=[None])
    path = write_submission(TASKS["cmrc2018"], "test", [{"text": "1862年", "score": 3.5}], question, tmp_path)
    assert path.name == "cmrc2018_predict.json"
    assert json.loads(path.read_text(encoding="utf-8")) == {"TEST_0_QUERY_0": "1862年"}
    path = write_submission(TASKS["chid"], "test", [1], split_of("#idiom623377#"), tmp_path)
    assert json.loads(path.read_text()) == {"#idiom623377#": 1}
    path = write_submission(TASKS["c3"], "test", [1], split_of("5"), tmp_path)
    assert path.read_text() == '{"id": 5, "label": "1"}\n'


def test_entities_have_spans_whose_last_character_is_included(tmp_path):
    # The README of CLUENER 2020 gives this text and these spans.
    text = "北京勘察设计协会副会长兼秘书长周荫如"
    tags = ["B-organization", *["I-organization"] * 7, "B-position", "I-position", "I-position", "O"]
    tags += ["B-position", "I-position", "I-position", "B-name", "I-name", "I-name"]
    example = split_of("0", words=[list(text)], tags=[None])
    path = write_submission(TASKS["cluener2020"], "test", [tags], example, tmp_path)
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
    words = list("甲乙甲乙甲乙甲乙甲乙甲乙"[: len(tags)])
    example = split_of("3", words=[words], tags=[None])
    path = write_submission(TASKS["cluener2020"], "test", [tags], example, tmp_path_factory.mktemp("clue"))
    (line,) = path.read_text(encoding="utf-8").splitlines()
    label = json.loads(line)["label"]
    found = [(kind, entity, *span) for kind in label for entity, spans in label[kind].items() for span in spans]
    assert all("".join(words)[first : last + 1] == entity for _, entity, first, last in found)
    assert {(first, last + 1, kind) for kind, _, first, last in found} == find_chunks(tags)


@pytest.mark.parametrize(
    ("task", "split"),
    [(own_task(), "test"), (own_task("cola"), "test"), (TASKS["drcd"], "test"), (TASKS["rte"], "dev")],
)
def test_what_no_server_takes_is_not_written(tmp_path, task, split):
    assert write_submission(task, split, ["good"], split_of("0"), tmp_path) is None
    assert os.listdir(tmp_path) == []


def test_every_test_split_of_the_benchmarks_has_its_file():
    splits = [task.submission[split] for task in TASKS.values() if task.name != "drcd" for split in task.test_splits]
    assert len({next(iter(files)) for files in splits}) == len(splits)


def test_the_zip_holds_the_files_alone_and_is_the_same_every_time(tmp_path):
    directories = [tmp_path / "one", tmp_path / "two"]
    zips = []
    for place, directory in enumerate(directories):
        for task in BENCHMARKS["glue"]:
            for split in task.test_splits:
                write_submission(task, split, [], split_of(), directory)
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


def test_missing_files_are_named_and_whether_the_server_minds(tmp_path, caplog):
    write_submission(TASKS["rte"], "test", [], split_of(), tmp_path)
    zip_submission("glue", tmp_path)
    (lacking,) = [message for message in caplog.messages if "lacks" in message]
    assert all((name in lacking) == (name != "RTE.tsv") for name in GLUE_FILES)
    assert lacking.endswith("The server needs all of them.")
    caplog.clear()
    write_submission(TASKS["tnews"], "test", [], split_of(), tmp_path)
    zip_submission("clue", tmp_path)
    (lacking,) = [message for message in caplog.messages if "lacks" in message]
    assert "tnews" not in lacking
    assert "cluewsc11_predict.json or cluewsc10_predict.json" in lacking
    assert lacking.endswith("The server accepts that.")
    with pytest.raises(ValueError, match="holds no predictions for the server of glue"):
        zip_submission("glue", tmp_path / "nothing")


def test_files_with_the_wrong_number_of_examples_are_named(tmp_path, caplog):
    write_submission(TASKS["wnli"], "test", ["entailment"] * 146, split_of(*map(str, range(146))), tmp_path)
    write_submission(TASKS["rte"], "test", ["entailment"], split_of("0"), tmp_path)
    write_submission(TASKS["cluewsc2020"], "test", ["true"] * 291, split_of(*map(str, range(291))), tmp_path)
    zip_submission("glue", tmp_path)
    zip_submission("clue", tmp_path)
    assert [message for message in caplog.messages if "examples" in message] == [
        "RTE.tsv has 1 examples, but the test set has 3,000: the server will refuse it.",
        "cluewsc11_predict.json has 291 examples, but the test set has 2,574: the server will refuse it.",
    ]
