"""The command as a user sees it: runs, the files that they leave, and refused settings."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from matplotlib.axes import Axes
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from hf_electra_rtd import Classifier
from hf_electra_rtd.base.files import lock_directory
from hf_electra_rtd.base.records import EvaluationRecord, FractionRecord, pretraining_of
from hf_electra_rtd.finetuning import finetune, results, run
from hf_electra_rtd.finetuning.trainer import FineTuner
from tests.finetuning.conftest import WORDS, flag_words, read_lines, review_flags, run_finetune
from tests.publishing.card_records import run_record


def record_of(directory: Path, seed: int = 42, task: str = "reviews") -> EvaluationRecord:
    return EvaluationRecord.load(directory / task / f"seed_{seed}")


@pytest.fixture
def copied(finished, tmp_path) -> tuple[Path, dict]:
    """A copy of the finished run, which a test may change, and its flags."""
    directory, flags = finished
    shutil.copytree(directory / "run", tmp_path / "run")
    return tmp_path / "run", {**flags, "output_dir": tmp_path / "run"}


# ---- Runs ----


def test_a_task_is_learned_evaluated_predicted_and_recorded(finished):
    directory, _ = finished
    run = directory / "run"
    record = record_of(run)
    assert record.score > 0.95
    assert (record.selection, record.steps) == ("last step", 6 * 19)  # 300 examples in batches of 16
    assert record.data["train"]["examples"] == 300
    assert (record.arguments["learning_rate"], record.arguments["layerwise_lr_decay"]) == (4e-3, 0.8)
    assert (record.arguments["batch_size"], record.arguments["precision"]) == (16, "float32")
    assert str(directory) not in json.dumps([record.model, record.data, record.command])
    with (directory / "test.csv").open() as file:
        expected = ["yes" if "old" in row["review"] else "no" for row in csv.DictReader(file)]
    assert [line["prediction"] for line in read_lines(run / "reviews/seed_42/predictions_test.jsonl")] == expected
    for line in read_lines(run / "reviews/seed_42/predictions_dev.jsonl"):
        assert ("old" in line["texts"][0].split()) == (line["label"] == "yes")
        assert sum(line["probabilities"].values()) == pytest.approx(1)
        assert line["prediction"] == max(line["probabilities"], key=line["probabilities"].get)
    (kept,) = run.glob("reviews/*/model")  # the best seed's
    model = AutoModelForSequenceClassification.from_pretrained(kept)
    assert model.config.id2label == {0: "no", 1: "yes"}
    assert not list(run.rglob("*.bin")) + list(run.rglob("checkpoint-*"))


def test_one_command_fine_tunes_what_a_run_exported_and_draws_scores_over_tokens(
    encoder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    run = Path("run")
    for name in ("fractions/25/discriminator", "fractions/100/discriminator", "discriminator"):
        shutil.copytree(encoder, run / name)
    run_record(tokens=4000, sequences=40).save(run)
    for fraction, step in ((0.25, 10), (1.0, 40)):
        FractionRecord(fraction, step, step, 1.0).save(run / f"fractions/{100 * fraction:.0f}")
    drawn = []
    monkeypatch.setattr(Axes, "plot", lambda axis, *values, **look: drawn.append([*map(list, values)]))
    monkeypatch.setattr(Axes, "legend", lambda axis: None)
    flags = {**review_flags(tmp_path), "model_name_or_path": run, "output_dir": tmp_path / "out", "max_steps": 1}
    assert run_finetune(**flags, fractions=True, seeds=2) == 0
    records = {name: [record_of(tmp_path / "out" / name, seed) for seed in (42, 43)] for name in ("25", "100")}
    assert [record.model["pretraining"]["tokens"] for runs in records.values() for record in runs] == [
        1000,
        1000,
        4000,
        4000,
    ]
    means = [sum(record.score for record in runs) / 2 for runs in records.values()]
    assert drawn == [[[1000, 4000], pytest.approx(means)]]
    assert pretraining_of(run / "discriminator")["tokens"] == 4000
    assert pretraining_of(run / "checkpoint-2") is None  # a checkpoint has seen only a part
    with monkeypatch.context() as patch:
        patch.chdir(run / "discriminator")
        assert pretraining_of(".")["tokens"] == 4000
    assert (tmp_path / "out/scores.png").exists()
    table = capsys.readouterr().out.rpartition("| model |")[2]
    assert [f"run, {tokens} M tokens" in table for tokens in (0.001, 0.004)] == [True, True]
    shutil.rmtree(run / "fractions")
    with pytest.raises(ValueError, match="--checkpoint_fractions"):
        run_finetune(**flags, fractions=True)


def test_what_is_missing_is_run_and_what_is_there_is_kept(copied, caplog):
    run, flags = copied
    first = record_of(run).finished
    assert run_finetune(**flags, keep_models="none") == 0
    assert len(list(run.rglob("model"))) == 1  # nothing was trained, so nothing is deleted
    shutil.rmtree(run / "reviews/seed_43")
    notes = run / "reviews/seed_42/model/notes.md"
    notes.parent.mkdir(exist_ok=True)
    for path in (notes, notes.with_name("config.json")):
        path.touch()
    assert run_finetune(**flags, keep_models="none") == 0
    assert record_of(run).finished == first
    assert "already done" in caplog.text
    assert record_of(run, seed=43).seed == 43
    assert f"{notes} would be deleted" in caplog.text
    assert list(run.rglob("model")) == [notes.parent]
    shutil.rmtree(notes.parent)
    assert run_finetune(**flags) == 0
    assert "was not kept. Delete that directory" in caplog.text


CORRECTION = {"task_kind": "correction", "labels": None}
BEST = {"select": "best", "eval_strategy": "steps", "eval_steps": 8}


@pytest.mark.parametrize(
    "more",
    [{}, {"select": "best", "learning_rate": 1e-6}],  # best at step 8
    ids=str,
)
def test_a_seed_that_was_broken_off_goes_on_and_ends_with_the_same_weights(
    more, finished, tmp_path, caplog, monkeypatch
):
    flags = {**finished[1], "seeds": 1, "max_steps": 44, "dropout": 0.1, "save_strategy": "steps", "save_steps": 8}
    flags |= {**more, "output_dir": tmp_path / "broken"}
    assert run_finetune(**flags | {"output_dir": tmp_path / "whole"}) == 0
    step, taken = FineTuner.training_step, []

    def stop_at_30(*args, **kwargs):
        taken.append(None)
        if len(taken) == 30:
            raise KeyboardInterrupt
        return step(*args, **kwargs)

    monkeypatch.setattr(FineTuner, "training_step", stop_at_30)
    assert run_finetune(**flags | {"output_dir": tmp_path / "before"}) == 130
    assert not list(tmp_path.rglob("training_args.bin"))  # a pickle
    (tmp_path / "before").rename(tmp_path / "broken")
    with (tmp_path / "broken/reviews/seed_42/checkpoint-24/optimizer.pt").open("r+b") as file:
        file.write(b"damaged")
    with pytest.raises(ValueError, match=r"checkpoint-\d+ .*weight_decay"):
        run_finetune(**flags, weight_decay=0.3)
    assert run_finetune(**flags) == 0
    assert len(taken) == 30 + 44 - 16
    assert "checkpoint-24" in caplog.text
    whole, broken = (tmp_path / name / "reviews/seed_42" for name in ("whole", "broken"))
    for name in ("model/model.safetensors", "predictions_dev.jsonl"):
        assert (whole / name).read_bytes() == (broken / name).read_bytes()
    assert sorted(path.name for path in whole.iterdir()) == sorted(path.name for path in broken.iterdir())


def test_a_run_that_is_broken_off_in_a_report_is_not_done(finished, tmp_path, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt(143)  # as SIGTERM does

    flags = {**finished[1], "seeds": 1, "max_steps": 2, "output_dir": tmp_path}
    with monkeypatch.context() as patch:
        patch.setattr(results, "write_report", interrupt)
        assert run_finetune(**flags) == 143
    assert run_finetune(**flags) == 0
    assert record_of(tmp_path).reports


@pytest.mark.parametrize(
    "more",
    [{}, {**BEST, "eval_steps": 6, "learning_rate": 1e-6}],
    ids=str,
)
def test_a_model_that_cannot_be_written_leaves_its_training(more, finished, tmp_path, monkeypatch):
    flags = {**finished[1], "seeds": 1, "max_steps": 12, "save_strategy": "steps", "save_steps": 6, **more}
    assert run_finetune(**flags | {"output_dir": tmp_path / "whole"}) == 0

    def is_full(*arguments):
        raise OSError("No space left on device")

    flags["output_dir"] = tmp_path / "broken"
    with monkeypatch.context() as patch:
        patch.setattr(results, "save_model", is_full)
        with pytest.raises(OSError, match="No space"):
            run_finetune(**flags)
    monkeypatch.setattr(FineTuner, "training_step", is_full)
    if "eval_steps" in more:
        flags["eval_on_start"] = True  # this evaluation must not count twice
    assert run_finetune(**flags) == 0
    file = "reviews/seed_42/model/model.safetensors"
    whole, broken = (load_file(tmp_path / name / file) for name in ("whole", "broken"))
    assert all(torch.equal(whole[name], broken[name]) for name in whole)
    assert record_of(tmp_path / "broken").steps == 12
    assert not list(tmp_path.rglob("checkpoint-*"))


def test_class_weights_and_a_part_of_the_examples_decide_a_run_and_scores_are_logged(finished, tmp_path, capsys):
    flags = {**finished[1], "seeds": 1, "select": "best", "num_train_epochs": 2, "learning_rate": 0}
    flags |= {"max_train_samples": 64, "class_weights": "balanced", "output_dir": tmp_path}
    assert run_finetune(**flags, logging_steps=4, eval_on_start=True) == 0
    record = record_of(tmp_path)
    assert (record.steps, record.epochs) == (8, 2)
    assert record.selection == "best of 2 evaluations by accuracy on dev"
    assert record.score == pytest.approx(max(e["eval_accuracy"] for e in record.curves if "eval_accuracy" in e))
    assert not list(tmp_path.rglob("checkpoint-*"))
    assert [record.data[name]["examples"] for name in ("train", "dev", "test")] == [64, 60, 20]
    assert record.arguments["class_weights"] == "balanced"
    output = capsys.readouterr().out
    assert "  loss " in output
    assert "  accuracy " in output


def number_file(path: Path, factor: float, shift: float) -> str:
    """Writes texts that are labeled `factor * n + shift` if they contain the word `old` n times. Returns the path."""
    draw, lines = random.Random(1), ["text,label"]
    for row in range(240):
        words = draw.choices(WORDS, k=draw.randint(2, 9)) + ["old"] * (row % 4)
        lines.append(f"{' '.join(words)},{factor * (row % 4) + shift}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def regress(directory: Path, encoder: str, factor: float, shift: float, **more) -> EvaluationRecord:
    directory.mkdir(exist_ok=True)
    flags = {"model_name_or_path": encoder, "train_file": number_file(directory / "train.csv", factor, shift)}
    flags |= {"task_kind": "regression", "learning_rate": 3e-3, "dropout": 0}
    flags |= {"per_device_train_batch_size": 16, "task_name": "reviews", "output_dir": directory / "run"}
    assert run_finetune(**flags | {"bias_correction": True, **more}) == 0
    return record_of(directory / "run")


@pytest.mark.parametrize("more", [{}, {"lora": True, "merge_adapter": True}, {"bf16": True}], ids=str)
def test_numbers_are_learned_in_any_unit_and_the_stock_model_answers_in_it(more, encoder, tokenizer, tmp_path):
    with pytest.raises(ValueError, match="labels are 3"):
        regress(tmp_path / "same", encoder, 0.0, 3.0)
    # Such as times in seconds: at this size, float32 has only every 128th number.
    with pytest.raises(ValueError, match="1700000001"):
        regress(tmp_path / "far", encoder, 1.0, 1.7e9)
    found = []
    epochs = 2 if "lora" in more else 8  # adapters need not learn the task
    for name, unit in (("plain", (1.0, 0.0)), ("scaled", (100.0, 7.0))):
        record = regress(tmp_path / name, encoder, *unit, num_train_epochs=epochs, **more)
        assert record.score > 0.9 or "lora" in more
        lines = read_lines(tmp_path / name / "run/reviews/seed_42/predictions_dev.jsonl")
        found.append([line["prediction"] for line in lines])
    tolerance = 2e-2 if "bf16" in more else 1e-3
    assert found[1] == pytest.approx([100 * number + 7 for number in found[0]], abs=100 * tolerance)
    directory = tmp_path / "scaled/run/reviews/seed_42"
    model = AutoModelForSequenceClassification.from_pretrained(directory / ("merged" if "lora" in more else "model"))
    inputs = tokenizer([" ".join(line["texts"]) for line in lines], padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model.eval()(**inputs).logits.squeeze(-1).tolist()
    assert logits == pytest.approx(found[1], abs=100 * tolerance)
    if not more:  # training goes on: the head is converted back to the unit of training
        again = regress(tmp_path / "again", str(directory / "model"), *unit, max_steps=1, learning_rate=0)
        assert again.metrics["dev"] == pytest.approx(record.metrics["dev"], rel=1e-4)


def test_a_run_that_diverges_is_no_score(finished, tmp_path):
    diverging = {"output_dir": tmp_path, "max_steps": 30, "learning_rate": 1e30, "max_grad_norm": 0}
    with pytest.raises(ValueError, match="diverged"):
        run_finetune(**finished[1] | diverging)
    assert not list(tmp_path.rglob("evaluation_record.json"))


# ---- What is refused ----


def test_results_of_other_settings_data_or_weights_are_refused_by_name(copied, finished, encoder, tmp_path):
    run, flags = copied
    first = record_of(run).finished
    other = tmp_path / "other"
    shutil.copytree(encoder, other)
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    changed = tmp_path / "dev.csv"
    changed.write_text((finished[0] / "dev.csv").read_text() + "another,no\n")
    for difference, message in (
        ({"learning_rate": 1e-3}, r"learning_rate .*0\.001.*--overwrite_output_dir"),
        ({"validation_file": changed}, "the data of dev"),
        ({"text_column_name": "verdict", "test_file": changed}, "the data of train"),
        ({"id_column_name": "review"}, "the data of train"),
        ({"task_kind": "multi_label", "metrics": ["accuracy", "macro_f1"]}, "the data of train"),
        ({"model_name_or_path": other}, "the model's .*sha256"),
    ):
        with pytest.raises(ValueError, match=message):
            run_finetune(**flags | difference)
    assert record_of(run).finished == first


def test_a_split_that_is_wanted_now_makes_the_run_anew_if_it_may_be_overwritten(copied):
    run, flags = copied
    for path in run.glob("reviews/*/evaluation_record.json"):
        values = json.loads(path.read_text())
        values["data"].pop("test")
        path.write_text(json.dumps(values))
    first = record_of(run).finished, os.stat(run / "reviews/seed_42").st_ino
    with pytest.raises(ValueError, match=r"seed_42 .*test.*--overwrite_output_dir"):
        run_finetune(**flags | {"seeds": 1})
    assert (record_of(run).finished, os.stat(run / "reviews/seed_42").st_ino) == first
    assert run_finetune(**flags | {"seeds": 1, "overwrite_output_dir": True}) == 0
    assert "test" in record_of(run).data
    assert (record_of(run).finished, os.stat(run / "reviews/seed_42").st_ino) != first


def test_a_task_is_run_by_one_call_at_a_time(copied):
    run, flags = copied
    lock = lock_directory(run / "reviews")
    with pytest.raises(ValueError, match="reviews"):
        run_finetune(**flags)
    lock.release()
    assert run_finetune(**flags) == 0


def test_nothing_is_deleted_before_everything_is_checked_and_what_others_wrote_never(copied, tmp_path):
    run, flags = copied
    first = record_of(run).finished
    flags["overwrite_output_dir"] = True
    (model,) = run.glob("reviews/*/model")
    for name in ("reviews/mine.csv", "reviews/seed_42/mine.csv"):
        shutil.copy(flags["train_file"], run / name)
    interrupted = shutil.copytree(model, run / "reviews/seed_44/model")  # this seed was killed before its record
    for difference, message in (
        ({"model_name_or_path": "absent/absent/absent"}, "absent"),
        ({"model_name_or_path": model}, "would delete"),
        ({"model_name_or_path": interrupted, "seed": 44, "seeds": 1, "overwrite_output_dir": False}, "would delete"),
        ({"train_file": run / "reviews/seed_42/mine.csv"}, "would delete .*mine.csv"),
        ({"label_column_name": "opinion"}, "opinion"),
        ({"labels": ["no", "maybe"]}, "maybe"),
        ({}, "seed_4"),
        ({"seed": 44, "seeds": 1, "overwrite_output_dir": False}, "seed_44"),
    ):
        with pytest.raises(ValueError, match=message):
            run_finetune(**flags | difference)
    assert record_of(run).finished == first
    for name in ("seed_42/mine.csv", "seed_44"):
        (run / "reviews" / name).rename(tmp_path / Path(name).name)
    notes = model / "README.md"
    notes.touch()
    with pytest.raises(ValueError, match=str(notes)):
        run_finetune(**flags)
    notes.unlink()
    assert run_finetune(**flags | {"learning_rate": 0, "seeds": 1, "max_steps": 2}) == 0
    assert (record_of(run).steps, record_of(run).arguments["learning_rate"]) == (2, 0)
    assert not (run / "reviews/seed_43").exists()
    assert (run / "reviews/mine.csv").exists()


NO_DEV = {"validation_file": None, "validation_share": 0}


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"optim": "adafactor"}, "--layerwise_lr_decay 1"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "--lr_scheduler_type"),
        ({"task_name": "../elsewhere"}, "--task_name"),
        ({"task_name": ["reviews", "others"]}, "--task_name"),
        ({**NO_DEV, "eval_on_start": True, "seeds": 1}, "--eval_on_start"),
        ({**NO_DEV, "eval_strategy": "epoch", "seeds": 1}, "--eval_strategy"),
        ({**NO_DEV, "select": "best"}, "--select last"),
        ({"tokenizer": "other"}, "other tokens"),
        ({"max_seq_length": 65}, "--max_seq_length is 65.* 64"),
        ({**CORRECTION, "metrics": ["false_positive_rate"]}, "false_positive_rate"),
        ({"task_kind": "tagging", "labels": ["O", "B-X"], "class_weights": "balanced"}, "--class_weights"),
    ],
    ids=str,
)
def test_what_a_task_or_model_cannot_have_is_refused_before_training(flags, named, finished, tokenizer, tmp_path):
    if "tokenizer" in flags:
        flags = {**flags, "tokenizer": vocabulary_file(tmp_path / "vocab.txt", tokenizer)}
    with pytest.raises(ValueError, match=named):
        run_finetune(**finished[1] | {"labels": ["no", "yes"], "output_dir": tmp_path, **flags})
    assert not list(tmp_path.rglob("*.json"))


def test_the_command_checks_its_table_of_rules(finished, tmp_path):
    flags = {**finished[1], "output_dir": tmp_path}
    for difference in ({"lora": True, "from_scratch": True}, {"do_predict": True}, {"push_to_hub": True}):
        with pytest.raises(ValueError, match=f"--{next(iter(difference))}"):
            run_finetune(**flags | difference)
    assert not list(tmp_path.iterdir())


def vocabulary_file(path, tokenizer) -> Path:
    """Writes the words of a tokenizer with three more in between, and returns the path."""
    words = sorted(tokenizer.vocab, key=tokenizer.vocab.get)
    path.write_text("".join(f"{word}\n" for word in [*words[:20], "one", "two", "three", *words[20:]]))
    return path


def test_a_model_from_scratch_has_a_row_for_each_token_of_another_tokenizer(finished, tokenizer, tmp_path):
    flags = {**finished[1], "seeds": 1, "max_steps": 1, "from_scratch": True, "output_dir": tmp_path / "run"}
    assert run_finetune(**flags, tokenizer=vocabulary_file(tmp_path / "vocab.txt", tokenizer)) == 0
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run/reviews/seed_42/model")
    assert model.config.vocab_size == len(tokenizer) + 3


# ---- Benchmarks ----


@pytest.fixture(scope="session")
def glue(tmp_path_factory) -> Path:
    """Some files of GLUE: CoLA without its test split, MNLI without its mismatched half, AX, WNLI, a broken RTE."""
    directory, labels = tmp_path_factory.mktemp("glue"), ("entailment", "neutral", "contradiction")
    files, pair = {}, "index\tsentence1\tsentence2"
    for split, count in (("train", 20), ("dev", 8)):
        files[f"CoLA/{split}.tsv"] = [f"x\t{i % 2}\t\tthe old river {i}" for i in range(count)]
    for split, count in (("train", 24), ("dev_matched", 9), ("test_matched", 6)):
        rows = [f"{i}\tthe river {i}\tthe mill\t{labels[i % 3]}" for i in range(count)]
        files[f"MNLI/{split}.tsv"] = [f"{pair}\tgold_label", *rows]
    files["diagnostic/diagnostic.tsv"] = [pair, *(f"{i}\tthe old river\tthe mill {i}" for i in range(4))]
    for split in ("train", "dev", "test"):
        files[f"WNLI/{split}.tsv"] = [f"{pair}\tlabel", *(f"{i}\ta river\ta mill {i}\t{i % 2}" for i in range(8))]
    files["RTE/train.tsv"] = [f"{pair}\tlabel", "0\ta river\ta mill\tperhaps"]
    for name, lines in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("\n".join(lines) + "\n")
    return directory


def test_a_task_that_fails_leaves_the_others_their_results_and_submissions(
    glue, encoder, tmp_path, caplog, monkeypatch
):
    flags = {"model_name_or_path": encoder, "output_dir": tmp_path / "run", "data_dir": glue, "max_steps": 2}
    flags["predict"] = True
    with pytest.raises(ValueError, match=r"CoLA.*test"):
        run_finetune(**flags, task_name="cola")
    assert run_finetune(**flags, task_name=["cola", "rte", "mnli"]) == 1
    assert "RTE failed" in caplog.text
    assert "perhaps" in caplog.text
    assert record_of(tmp_path / "run", task="cola").predictions.keys() == {"dev"}
    assert record_of(tmp_path / "run", task="mnli").predictions.keys() == {"dev_matched", "test_matched", "ax"}
    submitted = {"AX.tsv", "MNLI-m.tsv", "glue_submission.zip"}
    assert {path.name for path in (tmp_path / "run/submission").iterdir()} == submitted

    (tmp_path / "run/submission/mine.txt").touch()
    assert run_finetune(**flags, task_name="wnli") == 0
    submitted |= {"WNLI.tsv", "mine.txt"}
    assert {path.name for path in (tmp_path / "run/submission").iterdir()} == submitted
    with zipfile.ZipFile(tmp_path / "run/submission/glue_submission.zip") as archive:
        assert set(archive.namelist()) == {"AX.tsv", "MNLI-m.tsv", "WNLI.tsv"}

    def break_at_cola(plan, job):
        if job.task.name == "cola":
            raise RuntimeError("out of memory")
        return run.run_task(plan, job)

    monkeypatch.setattr(finetune, "run_task", break_at_cola)
    assert run_finetune(**flags | {"task_name": ["cola", "mnli"], "output_dir": tmp_path / "broken"}) == 1
    assert "CoLA failed: out of memory" in caplog.text
    assert record_of(tmp_path / "broken", task="mnli").steps == 2


def test_the_settings_of_all_tasks_are_checked_before_any_data_are_read(encoder, tmp_path):
    flags = {"model_name_or_path": encoder, "benchmark": "more", "data_dir": tmp_path / "absent"}
    flags |= {"output_dir": tmp_path / "run", "task_name": ["chnsenticorp", "squad2"], "doc_stride": 60}
    with pytest.raises(ValueError, match=r"SQuAD 2.0: .*doc_stride"):
        run_finetune(**flags, max_seq_length=64)


def test_questions_are_answered_or_known_to_have_no_answer_(encoder, tmp_path):
    """The answer is the word `old`; a context without it has none."""
    for name, count in (("train", 240), ("dev", 60)):
        draw, lines = random.Random(count), []
        for number in range(count):
            words, answer = draw.choices(WORDS, k=8), "old" if number % 3 else ""
            words.insert(draw.randrange(8), answer)
            lines.append(json.dumps({"question": "what was it ?", "context": " ".join(words), "answers": answer}))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    flags = {"model_name_or_path": encoder, "task_kind": "question_answering", "task_name": "squad2"}
    flags |= {"train_file": tmp_path / "train.jsonl", "validation_file": tmp_path / "dev.jsonl", "max_seq_length": 48}
    flags |= {"max_query_length": 8, "num_train_epochs": 12, "learning_rate": 5e-3, "layerwise_lr_decay": 1}
    flags |= {"output_dir": tmp_path / "run", "doc_stride": 8, "per_device_train_batch_size": 16, "dropout": 0}
    assert run_finetune(**flags) == 0
    record = record_of(tmp_path / "run", task="squad2")
    assert record.metrics["dev"]["exact_match"] > 0.8


# ---- Adapters ----


def test_adapters_are_trained_saved_merged_and_predict_what_they_did(finished, tmp_path):
    flags = {**finished[1], "seeds": 1, "output_dir": tmp_path / "run", "lora": True, "merge_adapter": True}
    assert run_finetune(**flags | {"num_train_epochs": 8, "learning_rate": 1e-2}) == 0
    record, directory = record_of(tmp_path / "run"), tmp_path / "run/reviews/seed_42"
    assert record.model["peft"] == "lora"
    assert record.model["trained_parameters"] < record.model["parameters"] / 2
    assert record.arguments["layerwise_lr_decay"] == 1
    adapters = load_file(directory / "model/adapter_model.safetensors")
    assert not any("word_embeddings" in name for name in adapters)
    assert AutoModelForSequenceClassification.from_pretrained(directory / "merged").num_labels == 2
    before = read_lines(directory / "predictions_dev.jsonl")
    for name in ("model", "merged"):
        after = Classifier(str(directory / name), use_cpu=True).predict([line["texts"][0] for line in before])
        for answer, wanted in zip(after, before, strict=True):
            assert answer["probabilities"] == pytest.approx(wanted["probabilities"], abs=1e-6)
    with pytest.raises(ValueError, match="lora"):
        run_finetune(**flags | {"num_train_epochs": 8, "learning_rate": 1e-2, "merge_adapter": False})
    with pytest.raises(ValueError, match="--merge_adapter"):
        run_finetune(**finished[1] | {"model_name_or_path": directory / "model"})
    assert not list((tmp_path / "run").rglob("README.md"))


# ---- Several processes ----


KILLED = """
import os, sys
from hf_electra_rtd.finetuning import finetune, results, run
from hf_electra_rtd.finetuning.trainer import FineTuner

step, taken = FineTuner.training_step, []

def die_at_7(*args, **kwargs):
    taken.append(None)
    if len(taken) == 7:
        os._exit(9)
    return step(*args, **kwargs)

FineTuner.training_step = die_at_7
finetune.main(sys.argv[1:])
"""


COMMAND = ["-m", "hf_electra_rtd.finetuning.finetune"]


def launch(command: list[str], flags: dict, cache: Path) -> subprocess.CompletedProcess:
    """Runs a command in two processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_DATASETS_CACHE": str(cache / "datasets")}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    options = {"env": environment, "capture_output": True, "text": True, "timeout": 300}
    return subprocess.run([*launcher, *command, *flag_words(**flags)], **options)


@pytest.mark.slow
def test_two_processes_stop_where_a_task_fails_and_delete_nothing(glue, encoder, tmp_path):
    kept = tmp_path / "run/cola/kept"
    kept.mkdir(parents=True)
    flags = {"model_name_or_path": encoder, "output_dir": tmp_path / "run", "data_dir": glue, "max_steps": 2}
    ran = launch(COMMAND, {**flags, "task_name": ["cola", "rte"], "overwrite_output_dir": True}, tmp_path)
    assert ran.returncode != 0
    assert "perhaps" in ran.stderr
    assert {path for path in (tmp_path / "run").rglob("*") if path.name != ".lock"} == {kept.parent, kept}


@pytest.mark.slow
def test_two_processes_do_what_one_does_also_where_they_were_killed_inside_an_epoch(finished, tmp_path):
    flags = {**finished[1], "seeds": 1, "max_train_samples": 64, "max_steps": 10, "logging_steps": 1}
    assert run_finetune(**flags | {"output_dir": tmp_path / "one"}) == 0
    (tmp_path / "killed.py").write_text(KILLED)
    flags |= {"per_device_train_batch_size": 8, "save_strategy": "steps", "save_steps": 5}
    flags["output_dir"] = tmp_path / "two"
    for command in ([str(tmp_path / "killed.py")], COMMAND):
        ran = launch(command, flags, tmp_path)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "checkpoint-" in ran.stderr
    records = [record_of(tmp_path / run) for run in ("one", "two")]
    losses = [[entry["loss"] for entry in record.curves if "loss" in entry] for record in records]
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)
    paths = [tmp_path / run / "reviews/seed_42/predictions_dev.jsonl" for run in ("one", "two")]
    for one, two in zip(*map(read_lines, paths), strict=True):
        assert one.pop("probabilities") == pytest.approx(two.pop("probabilities"), abs=1e-6)
        assert one == two
