"""`hf-electra-rtd predict` on files and standard input."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import shutil
from dataclasses import replace
from datetime import datetime

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict
from transformers import AutoModelForSequenceClassification

from hf_electra_rtd import Classifier
from hf_electra_rtd import finetune as finetune_in_python
from hf_electra_rtd.base.files import write_text
from hf_electra_rtd.base.records import EvaluationRecord
from hf_electra_rtd.finetuning import predict
from hf_electra_rtd.finetuning.results import best_seed
from hf_electra_rtd.publishing.tables import read_evaluations
from tests.finetuning.conftest import read_lines, run_finetune


TEXTS = ["the old river", "a mill", "the garden was old and the night was young"]


@pytest.fixture
def predicted(capsys):
    """Returns a function that runs the command for a model with more flags, and returns the JSON lines printed."""

    def predicted(model, *flags) -> list:
        capsys.readouterr()
        assert predict.main(["--model_name_or_path", str(model), "--use_cpu", *map(str, flags)]) == 0
        return read_lines(capsys.readouterr().out)

    return predicted


def test_a_table_gets_labels_and_probabilities_beside_its_columns(finished, tmp_path, tokenizer, predicted):
    directory, _ = finished
    rows = (directory / "test.csv").read_text().splitlines()  # new.csv gets the nameless index that pandas writes
    (tmp_path / "new.csv").write_text("".join(f"{number or ''},{row}\n" for number, row in enumerate(rows)))
    flags = ["--file", tmp_path / "new.csv", "--text_column_name", "review", "--output_file", tmp_path / "out.jsonl"]
    assert predicted(directory / "run", *flags) == []
    lines = read_lines(tmp_path / "out.jsonl")
    (path,) = (directory / "run").glob("reviews/*/model")
    before = read_lines(path.parent / "predictions_test.jsonl")
    assert [line["label"] for line in lines] == [line["prediction"] for line in before]
    assert [line[""] for line in lines] == [str(number) for number in range(1, 21)]
    for output in (tmp_path / "new.csv", directory / "run", path / "config.json"):
        with pytest.raises(ValueError, match=str(output)):
            predicted(directory / "run", *flags[:-1], output)
    model = AutoModelForSequenceClassification.from_pretrained(path).eval()
    for line in lines:
        with torch.no_grad():
            logits = model(**tokenizer(line["review"], return_tensors="pt")).logits[0]
        wanted = dict(zip(("no", "yes"), logits.softmax(-1).tolist(), strict=True))
        assert line["probabilities"] == pytest.approx(wanted, abs=1e-5)
        assert line["score"] == max(line["probabilities"].values()) == line["probabilities"][line["label"]]


def test_standard_input_and_other_formats_give_the_same(finished, tmp_path, monkeypatch, predicted):
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    shutil.copy(tmp_path / "a.txt", tmp_path / "b.TXT")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress((tmp_path / "a.txt").read_bytes()))
    (tmp_path / "a.tsv").write_text("".join(f"{text}\n" for text in ["text", *TEXTS]))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(TEXTS)))
    names = ("a.txt", "a.tsv", "a.jsonl", "b.TXT", "a.txt.gz")
    files = ([], *(["--file", tmp_path / name] for name in names))
    outputs = [predicted(finished[0] / "run", *file) for file in files]
    assert outputs == [outputs[0]] * 6
    assert [line["text"] for line in outputs[0]] == TEXTS
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(ValueError, match="Standard input"):
        predicted(finished[0] / "run")


def test_python_does_what_the_commands_do(finished, encoder, tmp_path, predicted):
    directory, _ = finished
    with (directory / "train.csv").open() as file:
        rows = list(csv.DictReader(file))[:40]
    flags = {"text_column_name": "review", "label_column_name": "verdict", "max_steps": 2, "use_cpu": True}
    table = Dataset.from_list(rows).cast_column("verdict", ClassLabel(names=["no", "yes"]))
    examples = {"rows": rows, "columns": {name: pd.Series([row[name] for row in rows]) for name in rows[0]}}
    mine = tmp_path / "rows/train.jsonl"
    write_text(mine, "mine")
    found = []
    for name, train in examples.items():
        model = finetune_in_python(encoder, train, directory / "dev.csv", tmp_path / name, **flags)
        found.append(model.predict(TEXTS))
    split = DatasetDict(train=table, validation=Dataset.from_csv(str(directory / "dev.csv")), test=table)
    found.append(finetune_in_python(encoder, split, output_dir=tmp_path / "split", **flags).predict(TEXTS))
    assert found == [found[0]] * 3
    assert (tmp_path / "split/own/seed_42/predictions_test.jsonl").exists()
    assert mine.read_text() == "mine"
    assert {record.command for record in read_evaluations([tmp_path]).values()} == {""}  # the temporary files are gone
    assert model.labels == ("no", "yes")
    (tmp_path / "a.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    lines = predicted(tmp_path / "rows", "--file", tmp_path / "a.txt")
    wanted = [{name: line[name] for name in ("label", "score", "probabilities")} for line in lines]
    assert found[0] == wanted
    again = Classifier(str(tmp_path / "rows"), use_cpu=True)
    assert again.predict([TEXTS[0], (TEXTS[1],), {"text": TEXTS[2]}]) == wanted
    assert again.predict([]) == []
    for texts in (
        pd.Series(TEXTS),
        pd.DataFrame({"review": TEXTS, "text": "not this one"}),
        Dataset.from_dict({"text": TEXTS}),
        Dataset.from_dict({"text": TEXTS})["text"],
        {"text": TEXTS},
        np.array(TEXTS),
        {"text": pd.Series(TEXTS).values},
    ):
        assert again.predict(texts) == wanted
    drawn = set()
    for _ in range(2):
        assert again.predict(TEXTS[0]) == wanted[:1]
        drawn.update((random.random(), np.random.random(), torch.rand(()).item()))  # noqa: NPY002
    assert len(drawn) == 6  # `predict` resets no random numbers of the caller
    assert len(again.predict(["", TEXTS[0]])) == 2


def test_python_shows_no_progress_bars_of_the_libraries_and_keeps_their_settings(finished, capfd):
    datasets.enable_progress_bars()
    try:
        Classifier(str(finished[0] / "run"), use_cpu=True).predict(["a river", "an old mill"])
        assert not datasets.are_progress_bars_disabled()
    finally:
        datasets.disable_progress_bars()
    assert "%|" not in "".join(capfd.readouterr())


def test_what_is_neither_texts_nor_examples_nor_an_argument_is_an_exception_in_python(finished, encoder, tmp_path):
    model = Classifier(str(finished[0] / "run"), use_cpu=True)
    rows = [{"text": text, "label": n % 2} for n, text in enumerate(TEXTS * 9)]
    for texts, named in ((5, "int"), ({"text": "a mill"}, "dict"), (["a", None], "text 2")):
        with pytest.raises(TypeError, match=named):
            model.predict(texts)
    for error, named, wrong in (
        (TypeError, "Electra", {"model": model.model}),
        (TypeError, "int", {"train": 5}),
        (TypeError, "learning_rat", {"learning_rat": 1}),
        (ValueError, "learning_rate", {"learning_rate": "fast"}),
        (TypeError, "validation_file", {"validation_file": "a.csv"}),  # it is `validation` in Python
        (TypeError, "model_name_or_path", {"model_name_or_path": "other"}),
        (TypeError, "fractions", {"fractions": True}),
        (ValueError, "'text' twice", {"train": pd.DataFrame([["a", "b", 0]], columns=["text", "text", "label"])}),
        (ValueError, "Known columns: 0, 1", {"train": pd.DataFrame([["a", 0], ["b", 1]])}),
        (ValueError, "lengths", {"train": {"text": ["a"], "label": []}}),
    ):
        with pytest.raises(error, match=named):
            finetune_in_python(**{"model": encoder, "train": rows, "output_dir": tmp_path, **wrong})
    assert not list(tmp_path.iterdir())


def test_a_model_of_characters_tags_characters_and_columns_of_the_input_are_kept(encoder, tmp_path, predicted):
    file = tmp_path / "train.conll"
    file.write_text("a\tB-X\n.\tI-X\n\n!\tO\n")
    given = {"benchmark": "own", "train_file": file, "validation_file": file, "task_kind": "tagging", "max_steps": 1}
    assert run_finetune(model_name_or_path=encoder, output_dir=tmp_path / "run", **given) == 0
    (tmp_path / "a.txt").write_text("a .!\na . !\n")
    outputs = [predicted(tmp_path / "run", "--file", tmp_path / name) for name in ("train.conll", "a.txt")]
    kept = [(line["text"], line["label"]) for line in outputs[0]]
    assert kept == [(["a", "."], ["B-X", "I-X"]), (["!"], ["O"])]
    assert [len(line["tags"]) for line in outputs[0] + outputs[1]] == [2, 1, 4, 3]
    model = Classifier(str(tmp_path / "run"), use_cpu=True)
    assert model.predict({"text": [np.array(["a", "."])]})[0]["tags"] == outputs[0][0]["tags"]
    for line in ('{"text": 5}', "5"):
        (tmp_path / "a.jsonl").write_text(f"{line}\n")
        with pytest.raises(ValueError, match=r"a\.jsonl, line 1"):
            predicted(tmp_path / "run", "--file", tmp_path / "a.jsonl")


def test_python_gives_the_best_of_several_kept_models_from_rows_of_numpy_and_notes_no_command(encoder, tmp_path):
    rows = [
        {"text": text, "label": np.int64(n % 2), "day": np.datetime64("2020-01-01")}
        for n, text in enumerate(TEXTS * 9)
    ]
    flags = {"task_name": ["reviews"], "seeds": 2, "keep_models": "all", "max_steps": 1, "use_cpu": True, "size": None}
    model = finetune_in_python(encoder, rows, output_dir=str(tmp_path), **flags)
    records = [EvaluationRecord.load(tmp_path / f"reviews/seed_{seed}") for seed in (42, 43)]
    assert model.name == str(tmp_path / f"reviews/seed_{best_seed(records)}/model")
    assert not any(record.command for record in records)  # the files of its rows are gone
    for split, best in (("dev", 43), ("test", 42)):  # a test score never decides
        scores = ({split: {records[0].main_metric: score}} for score in (0.1, 0.9))
        assert best_seed([replace(each, metrics=score) for each, score in zip(records, scores, strict=True)]) == best
    with pytest.raises(ValueError, match="keep_models"):
        finetune_in_python(encoder, rows, output_dir=str(tmp_path), keep_models="none")
    shutil.rmtree(model.name)
    with pytest.raises(ValueError, match="was not kept"):
        finetune_in_python(encoder, rows, output_dir=str(tmp_path), **flags)


def test_a_model_of_pairs_takes_pairs_and_one_of_texts_takes_texts(finished, encoder, tmp_path, predicted):
    rows = [{"a": text, "b": "old", "label": n % 2} for n, text in enumerate(TEXTS * 9)]
    flags = {"text_column_name": "a", "second_text_column_name": "b", "max_steps": 1, "use_cpu": True}
    pairs = finetune_in_python(encoder, rows, output_dir=str(tmp_path / "run"), **flags)
    texts = Classifier(str(finished[0] / "run"), use_cpu=True)
    for model, given in (
        (texts, ["a", ("a", "he")]),
        (texts, ["a", {"text": "a", "text_pair": "he"}]),
        (pairs, [("a", "he"), "a"]),
        (pairs, [("a", "he"), {"text": "a"}]),
        (pairs, [("a", "he"), ("a", "he", "she")]),
    ):
        with pytest.raises(ValueError, match="text 2"):
            model.predict(given)
    assert pairs.predict([("a", "he")]) == pairs.predict([{"text": "a", "text_pair": "he"}])
    assert pairs.predict([("a", "he")]) == pairs.predict(pd.DataFrame({"a": ["a"], "b": ["he"]}))
    assert pairs.predict([("a", "he")]) != pairs.predict([("a", "the old river")])
    write_text(tmp_path / "a.jsonl", json.dumps(rows[0]) + "\n")
    command = ["--file", tmp_path / "a.jsonl", "--text_column_name", "a"]
    assert len(predicted(tmp_path / "run", *command, "--second_text_column_name", "b")) == 1
    with pytest.raises(ValueError, match="second_text_column_name"):
        predicted(tmp_path / "run", *command)


def test_columns_of_any_type_are_written_beside_the_answer(finished, tmp_path, predicted):
    row = {"text": "a mill", "when": datetime(2020, 1, 2), "raw": b"x", "label": "old"}
    Dataset.from_list([row]).to_parquet(tmp_path / "a.parquet")
    (line,) = predicted(finished[0] / "run", "--file", tmp_path / "a.parquet")
    assert (line["when"][:10], line["raw"], line["input_label"]) == ("2020-01-02", "b'x'", "old")


def test_what_cannot_be_predicted_is_refused(finished, tmp_path, predicted):
    (tmp_path / "a.csv").write_text("body\nthe river\n")
    with pytest.raises(ValueError, match=r"a\.csv, line 2: .*'text'"):
        predicted(finished[0] / "run", "--file", tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("text,,text,\nthe river,,a mill,\n")
    with pytest.raises(ValueError, match=r"a\.csv .*'text'"):
        predicted(finished[0] / "run", "--file", tmp_path / "a.csv")
    (tmp_path / "a.txt").write_text("die Mühle\nwar\nthe mill\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"a\.txt: .*60"):
        predicted(finished[0] / "run", "--file", tmp_path / "a.txt")
    assert len(Classifier(str(finished[0] / "run"), use_cpu=True).predict(["Mühle"])) == 1
