import json
import math
import os
import zipfile

import pytest
from datasets import Dataset

from hf_electra_rtd.base.tasks import BENCHMARKS, Task
from hf_electra_rtd.finetuning.data import Split
from hf_electra_rtd.finetuning.submission import write_predictions, write_submission, zip_submission


# GLUE: for each test split, the server's file and the text that stands for each label in it.
GLUE = {
    "cola test": "CoLA.tsv 0 1", "sst2 test": "SST-2.tsv 0 1", "mrpc test": "MRPC.tsv 0 1", "qqp test": "QQP.tsv 0 1",
    "wnli test": "WNLI.tsv 0 1", "mnli test_matched": "MNLI-m.tsv entailment neutral contradiction",
    "mnli test_mismatched": "MNLI-mm.tsv entailment neutral contradiction",
    "ax test": "AX.tsv entailment neutral contradiction", "qnli test": "QNLI.tsv entailment not_entailment",
    "rte test": "RTE.tsv entailment not_entailment",
}  # fmt: skip
GLUE_FILES = {"STS-B.tsv", *(words.split()[0] for words in GLUE.values())}
# CLUE: the files with one label per line.
CLUE = {
    "afqmc": "afqmc", "tnews": "tnews11", "iflytek": "iflytek", "cmnli": "cmnli", "ocnli": "ocnli_50k",
    "cluewsc2020": "cluewsc11", "csl": "csl",
}  # fmt: skip
TASKS = {task.name: task for name in ("glue", "clue") for task in BENCHMARKS[name]}


def split_of(*ids, skipped=0, **columns):
    columns = columns or {"label": [None] * len(ids)}
    return Split(Dataset.from_dict({"id": list(ids), **columns}), skipped, {})


@pytest.mark.parametrize(
    ("predictions", "columns", "second"),
    [
        ([math.nan, ["O"]], {"texts": [["京"], ["x"]], "label": [["O"], None]}, {"prediction": ["O"], "texts": ["x"]}),
        (["", {"text": ""}], {"label": [["K"], []], "starts": [[3], []]}, {"prediction": {"text": ""}, "label": []}),
    ],
)
def test_predictions_have_the_texts_and_the_label_where_it_is_known(tmp_path, predictions, columns, second):
    write_predictions(tmp_path / "p.jsonl", predictions, split_of("a", "b", **columns))
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines[0]["prediction"] in ("", None)  # not NaN
    assert lines[1] == {"id": "b", **second}


def test_glue_gets_each_label_of_a_task_as_it_names_it_and_numbers_that_it_takes(tmp_path):
    for where, words in GLUE.items():
        (name, split), (file, *cells) = where.split(), words.split()
        labels = TASKS[name].labels
        path = write_submission(TASKS[name], split, labels, split_of(*"xyz"[: len(labels)]), tmp_path / "new")
        assert path == tmp_path / "new" / file
        lines = (f"{index}\t{cell}\n" for index, cell in enumerate(cells))
        assert path.read_bytes().decode() == "index\tprediction\n" + "".join(lines)
    numbers = [-0.3, -0.0, 0.00049, 2.5, 4.9996, 5.2]
    path = write_submission(TASKS["stsb"], "test", numbers, split_of(*"abcdef"), tmp_path)
    cells = [line.split("\t")[1] for line in path.read_text().splitlines()[1:]]
    assert cells == ["0.000", "0.000", "0.000", "2.500", "5.000", "5.000"]


def test_clue_gets_labels_a_line_each(tmp_path):
    for name, file in CLUE.items():
        label = TASKS[name].labels[1]
        path = write_submission(TASKS[name], "test", [label, label], split_of("0", "b7"), tmp_path)
        assert path == tmp_path / f"{file}_predict.json"
        assert path.read_text() == f'{{"id": 0, "label": "{label}"}}\n{{"id": "b7", "label": "{label}"}}\n'


def test_clue_gets_answers_and_choices_by_id(tmp_path):
    question = split_of("TEST_0_QUERY_0")
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
    example = split_of("0", texts=[list(text)])
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


@pytest.mark.parametrize(
    ("task", "split", "skipped"),  # skipped examples would shift the others
    [
        (Task("cola", "Own", "own"), "test", 0),
        (TASKS["drcd"], "test", 0),
        (TASKS["rte"], "dev", 0),
        (TASKS["rte"], "test", 2),
    ],
)
def test_what_no_server_takes_is_not_written(tmp_path, caplog, task, split, skipped):
    assert write_submission(task, split, ["entailment"], split_of("0", skipped=skipped), tmp_path) is None
    assert os.listdir(tmp_path) == []
    assert ("RTE.tsv" in caplog.text) == bool(skipped)


def test_the_zip_holds_the_files_alone_and_what_the_server_would_refuse_is_named(tmp_path, caplog):
    write_submission(TASKS["wnli"], "test", ["entailment"] * 146, split_of(*map(str, range(146))), tmp_path)
    write_submission(TASKS["rte"], "test", ["entailment"], split_of("0"), tmp_path)
    (tmp_path / "notes.txt").write_text("not for the server")
    path = zip_submission("glue", tmp_path)
    assert path.name == "glue_submission.zip"
    with zipfile.ZipFile(path) as archive:
        assert set(archive.namelist()) == {"RTE.tsv", "WNLI.tsv"}
        assert archive.read("RTE.tsv") == (tmp_path / "RTE.tsv").read_bytes()
    lacking, counted = caplog.messages
    assert counted.startswith("RTE.tsv has 1 ")
    assert "3,000" in counted
    assert all((name in lacking) == (name not in ("RTE.tsv", "WNLI.tsv")) for name in GLUE_FILES)
