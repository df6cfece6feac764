"""Both scripts, as their user sees them."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, BertConfig, BertForMaskedLM

from hf_electra_rtd.finetuning.benchmarks import get_task
from hf_electra_rtd.records import EvaluationRecord


WORDS = ["river", "mill", "letter", "garden", "horse", "night", "morning", "window", "door", "street"]
EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import finetune  # noqa: E402
import finetune_no_trainer  # noqa: E402


@pytest.fixture(autouse=True)
def _name_of_the_script(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["examples/finetune.py"])


def record_of(tmp_path, seed: int = 42, run: str = "run", task: str = "reviews") -> EvaluationRecord:
    return EvaluationRecord.load(tmp_path / run / task / f"seed_{seed}")


@pytest.mark.parametrize("main", [finetune.main, finetune_no_trainer.main], ids=["trainer", "no_trainer"])
def test_a_task_is_learnt_judged_predicted_and_recorded(main, own_flags, tmp_path):
    assert main([*own_flags, "--num_train_epochs", "6", "--seeds", "2"]) == 0
    record = record_of(tmp_path)
    assert record.metrics["dev"]["accuracy"] > 0.95
    assert record.selection == "last step"
    assert record.steps == 6 * 19  # 300 rows in batches of 16
    assert record.data["train"]["rows"] == 300
    assert record.arguments["learning_rate"] == 3e-3
    assert record.arguments["layer_decay"] == 0.8
    assert str(tmp_path) not in json.dumps(record.model)
    lines = [
        json.loads(line) for line in (tmp_path / "run/reviews/seed_42/predictions_test.jsonl").read_text().splitlines()
    ]
    with (tmp_path / "test.csv").open() as file:
        expected = ["yes" if "old" in row["review"] else "no" for row in csv.DictReader(file)]
    assert [line["prediction"] for line in lines] == expected
    results = json.loads((tmp_path / "run/results.json").read_text())
    assert results["benchmark"] == "own"
    kept = [path.parent.name for path in (tmp_path / "run/reviews").glob("*/model")]
    assert len(kept) == 1  # the best seed's
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run/reviews" / kept[0] / "model")
    assert model.config.id2label == {0: "no", 1: "yes"}
    assert not list((tmp_path / "run").rglob("*.bin"))
    assert not list((tmp_path / "run").rglob("checkpoint-*"))


def test_both_loops_take_the_same_steps(own_flags, tmp_path, monkeypatch):
    flags = [*own_flags, "--max_steps", "20", "--logging_steps", "1", "--keep_models", "all"]
    flags += ["--gradient_accumulation_steps", "2", "--per_device_train_batch_size", "7"]
    assert finetune.main(flags) == 0
    assert finetune_no_trainer.main([*flags, "--output_dir", str(tmp_path / "other")]) == 0
    ours, theirs = record_of(tmp_path), record_of(tmp_path, run="other")
    losses = [[entry["loss"] for entry in record.curves if "loss" in entry] for record in (ours, theirs)]
    assert len(losses[0]) == 20
    # The Trainer rounds what it logs.
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    ours, theirs = (load_file(tmp_path / run / "reviews/seed_42/model/model.safetensors") for run in ("run", "other"))
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-6)


def test_what_is_missing_is_run_and_what_is_there_is_kept(own_flags, tmp_path, caplog):
    flags = [*own_flags, "--max_steps", "3"]
    assert finetune.main(flags) == 0
    first = record_of(tmp_path)
    assert finetune.main([*flags, "--seeds", "2"]) == 0
    assert record_of(tmp_path).finished == first.finished
    assert "done before" in caplog.text
    assert record_of(tmp_path, seed=43).seed == 43
    table = json.loads((tmp_path / "run/results.json").read_text())
    assert len(table["results"][0]["seeds"]) == 2


def test_a_run_with_other_settings_is_refused_by_name(own_flags, own_files, tmp_path):
    flags = [*own_flags, "--max_steps", "3"]
    assert finetune.main(flags) == 0
    with pytest.raises(ValueError, match=r"learning_rate 0\.003 \(now 0\.001\).*--overwrite_output_dir"):
        finetune.main([*flags, "--learning_rate", "1e-3"])
    with open(own_files["dev"], "a", encoding="utf-8") as file:
        file.write("another row,no\n")
    with pytest.raises(ValueError, match="rows of dev"):
        finetune.main(flags)
    assert finetune.main([*flags, "--overwrite_output_dir", "True"]) == 0


def test_one_task_that_fails_leaves_the_others_their_results(encoder, tmp_path, caplog):
    (tmp_path / "data/CoLA").mkdir(parents=True)
    (tmp_path / "data/RTE").mkdir()
    for split, rows in (("train", 20), ("dev", 8)):
        text = "".join(f"x\t{i % 2}\t\tthe old river {i}\n" for i in range(rows))
        (tmp_path / f"data/CoLA/{split}.tsv").write_text(text)
    (tmp_path / "data/RTE/train.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta river\ta mill\tperhaps\n")
    flags = [
        "--model_name_or_path",
        encoder,
        "--output_dir",
        str(tmp_path / "run"),
        "--data_dir",
        str(tmp_path / "data"),
    ]
    flags += ["--task_name", "cola", "rte", "--use_cpu", "True", "--disable_tqdm", "True", "--max_steps", "2"]
    assert finetune.main(flags) == 1
    assert record_of(tmp_path, task="cola").steps == 2
    assert "RTE is left out" in caplog.text
    assert "perhaps" in caplog.text
    assert json.loads((tmp_path / "run/results.json").read_text())["results"][0]["task"] == "cola"


def test_the_best_model_on_dev_is_kept_where_it_is_asked_for(own_flags, tmp_path):
    flags = [*own_flags, "--num_train_epochs", "3", "--select", "best"]
    assert finetune.main(flags) == 0
    record = record_of(tmp_path)
    assert record.selection == "best of 3 evaluations by accuracy on dev"
    scores = [entry["eval_accuracy"] for entry in record.curves if "eval_accuracy" in entry]
    assert record.metrics["dev"]["accuracy"] == pytest.approx(max(scores))
    assert not list((tmp_path / "run").rglob("checkpoint-*"))


def test_adapters_are_trained_saved_merged_and_judged_again(own_flags, own_files, encoder, tmp_path):
    flags = [
        *own_flags,
        "--num_train_epochs",
        "8",
        "--peft",
        "lora",
        "--learning_rate",
        "1e-2",
        "--merge_adapter",
        "True",
    ]
    assert finetune.main(flags) == 0
    record, directory = record_of(tmp_path), tmp_path / "run/reviews/seed_42"
    assert record.model["peft"] == "lora"
    assert record.model["trained_parameters"] < record.model["parameters"] / 2
    assert record.arguments["layer_decay"] == 1
    adapters = load_file(directory / "model/adapter_model.safetensors")
    assert not any("word_embeddings" in name for name in adapters)
    merged = AutoModelForSequenceClassification.from_pretrained(directory / "merged")
    assert merged.num_labels == 2
    before = (directory / "predictions_dev.jsonl").read_text()
    for name, model in (("adapted", directory / "model"), ("merged", directory / "merged")):
        judged = [
            *("--model_name_or_path", str(model), "--output_dir", str(tmp_path / name), "--task_name", "reviews"),
            *("--dev_file", own_files["dev"], "--text_column", "review", "--label_column", "verdict"),
            *("--evaluate_only", "True", "--use_cpu", "True", "--disable_tqdm", "True", "--labels", "no", "yes"),
        ]
        assert finetune.main(judged) == 0
        again = record_of(tmp_path, run=name)
        assert again.metrics == {"dev": record.metrics["dev"]}
        assert (tmp_path / name / "reviews/seed_42/predictions_dev.jsonl").read_text() == before
        assert again.selection == "as it was given"


def test_a_model_that_was_not_fine_tuned_is_not_judged(encoder, own_files, tmp_path):
    flags = ["--model_name_or_path", encoder, "--output_dir", str(tmp_path / "run"), "--dev_file", own_files["dev"]]
    flags += ["--text_column", "review", "--label_column", "verdict", "--evaluate_only", "True", "--use_cpu", "True"]
    with pytest.raises(ValueError, match="was not fine-tuned"):
        finetune.main([*flags, "--labels", "no", "yes", "--disable_tqdm", "True"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--head", "other"], "transformers, paper"),
        (["--seeds", "0"], "at least 1"),
        (["--label_column", "opinion"], "opinion"),
        (["--text_column", "reviews"], "review"),
        (["--from_scratch", "True", "--peft", "lora"], "random weights"),
        (["--max_length", "65"], "64 positions"),
        (["--peft", "lora", "--lora_target_modules", "q_proj"], "query"),
        (["--merge_adapter", "True"], "--peft"),
        (["--layer_decay", "1.5"], "at most 1"),
        (["--size", "huge"], "tiny, small, base, large"),
        (["--push_to_hub", "True"], "needs hub_model_id"),
        (["--task_kind", "guessing"], "tagging"),
    ],
)
def test_flags_that_cannot_be_used_are_refused_before_training(flags, message, own_flags, tmp_path):
    with pytest.raises(ValueError, match=message):
        finetune.main([*own_flags, *flags])
    assert not list((tmp_path / "run").rglob("*.json"))


def test_the_plain_loop_refuses_what_it_does_not_do(own_flags):
    with pytest.raises(ValueError, match="--lr_scheduler_type"):
        finetune_no_trainer.main([*own_flags, "--lr_scheduler_type", "cosine"])


@pytest.mark.parametrize("script", ["finetune.py", "finetune_no_trainer.py"])
def test_two_processes_do_what_one_does(script, own_flags, tmp_path):
    main = {"finetune.py": finetune.main, "finetune_no_trainer.py": finetune_no_trainer.main}[script]
    flags = [*own_flags, "--max_steps", "10", "--logging_steps", "1", "--train_sampling_strategy", "sequential"]
    assert main(flags) == 0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    two = [*flags, "--per_device_train_batch_size", "8", "--output_dir", str(tmp_path / "two")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", str(port)]
    ran = subprocess.run(
        [*command, str(EXAMPLES / script), *two], env=environment, capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    one, both = record_of(tmp_path), record_of(tmp_path, run="two")
    losses = [[entry["loss"] for entry in record.curves if "loss" in entry] for record in (one, both)]
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)
    predictions = [(tmp_path / run / "reviews/seed_42/predictions_dev.jsonl").read_text() for run in ("run", "two")]
    assert predictions[0] == predictions[1]
    shutil.rmtree(tmp_path / "two")


def test_what_lies_there_is_compared_before_it_is_run_anew_or_deleted(own_flags, own_files, tmp_path):
    without_test = [flag for flag in own_flags if flag not in ("--test_file", own_files["test"])]
    flags = [*without_test, "--max_steps", "3"]
    assert finetune.main(flags) == 0
    first = record_of(tmp_path)
    with pytest.raises(ValueError, match="learning_rate"):
        finetune.main([*flags, "--test_file", own_files["test"], "--learning_rate", "1e-3"])
    assert record_of(tmp_path).finished == first.finished
    with pytest.raises(ValueError, match="metrics"):
        finetune.main([*flags, "--metrics", "accuracy"])
    with pytest.raises(ValueError, match="rows of dev"):
        finetune.main([*flags, "--text_column", "verdict"])
    with pytest.raises(ValueError, match="absent"):
        finetune.main([*flags, "--overwrite_output_dir", "True", "--model_name_or_path", "absent"])
    model = str(tmp_path / "run/reviews/seed_42/model")
    with pytest.raises(ValueError, match="lies in"):
        finetune.main([*flags, "--overwrite_output_dir", "True", "--model_name_or_path", model])
    assert record_of(tmp_path).finished == first.finished
    # The test split is wanted now: the run is made anew.
    assert finetune.main([*flags, "--test_file", own_files["test"]]) == 0
    assert "test" in record_of(tmp_path).predictions


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", ".."])
def test_a_task_of_ones_own_cannot_be_called_a_path(name, own_flags):
    with pytest.raises(ValueError, match="plain word"):
        finetune.main([*own_flags, "--task_name", name])


@pytest.mark.parametrize(
    "flags",
    [
        ["--load_best_model_at_end", "True"],
        ["--resume_from_checkpoint", "somewhere"],
        ["--label_smoothing_factor", "0.1"],
        ["--prediction_loss_only", "True"],
        ["--eval_do_concat_batches", "False"],
        ["--data_seed", "3"],
    ],
    ids=lambda flags: flags[0],
)
def test_flags_of_the_trainer_that_would_do_nothing_or_harm_are_refused(flags, own_flags):
    with pytest.raises(ValueError, match=rf"{flags[0]} has no place in fine-tuning"):
        finetune.main([*own_flags, *flags])


def test_the_plain_loop_refuses_to_choose_the_best_model(own_flags):
    with pytest.raises(ValueError, match="--select best"):
        finetune_no_trainer.main([*own_flags, "--select", "best"])


def test_a_run_that_diverges_is_no_score(own_flags, tmp_path):
    with pytest.raises(ValueError, match="diverged"):
        finetune.main([*own_flags, "--max_steps", "30", "--learning_rate", "1e30", "--max_grad_norm", "0"])
    assert not list((tmp_path / "run").rglob("evaluation_record.json"))


def test_adapters_are_not_judged_by_other_labels_nor_trained_further(own_flags, own_files, tmp_path):
    assert finetune.main([*own_flags, "--max_steps", "3", "--peft", "lora"]) == 0
    model = str(tmp_path / "run/reviews/seed_42/model")
    judged = ["--model_name_or_path", model, "--output_dir", str(tmp_path / "judged"), "--use_cpu", "True"]
    judged += ["--dev_file", own_files["dev"], "--text_column", "review", "--label_column", "verdict"]
    with pytest.raises(ValueError, match="other labels"):
        finetune.main([*judged, "--evaluate_only", "True", "--labels", "yes", "no"])
    assert finetune.main([*judged, "--evaluate_only", "True", "--disable_tqdm", "True"]) == 0
    assert record_of(tmp_path, run="judged", task="own").model["peft"] == "lora"
    with pytest.raises(ValueError, match="Merge them first"):
        finetune.main([*own_flags, "--model_name_or_path", model, "--output_dir", str(tmp_path / "more")])
    assert not list((tmp_path / "run").rglob("README.md"))


@pytest.mark.parametrize("kind", ["tagging", "bert"])
def test_adapters_spare_the_head_of_any_architecture(kind, own_flags, own_files, tokenizer, tmp_path):
    flags = [*own_flags, "--max_steps", "2", "--peft", "lora"]
    if kind == "tagging":
        for name in own_files:
            rows = "".join(f'{{"text": "the old river {i}", "verdict": "O B-X I-X O"}}\n' for i in range(20))
            Path(own_files[name]).with_suffix(".jsonl").write_text(rows)
        flags = [flag.replace(".csv", ".jsonl") for flag in flags]
        flags = [flag if flag != "review" else "text" for flag in flags] + ["--task_kind", "tagging"]
    else:
        config = BertConfig(
            vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
        )
        BertForMaskedLM(config).save_pretrained(tmp_path / "bert")  # without a pooler
        tokenizer.save_pretrained(tmp_path / "bert")
        flags += ["--model_name_or_path", str(tmp_path / "bert")]
    assert finetune.main(flags) == 0
    directory = tmp_path / "run/reviews/seed_42"
    before = (directory / "predictions_dev.jsonl").read_text()
    again = [flag for flag in flags if flag not in ("--peft", "lora")]
    again += ["--model_name_or_path", str(directory / "model"), "--output_dir", str(tmp_path / "judged")]
    assert finetune.main([*again, "--evaluate_only", "True"]) == 0
    assert (tmp_path / "judged/reviews/seed_42/predictions_dev.jsonl").read_text() == before


def squad_file(path: Path, num_questions: int, seed: int, version: str) -> None:
    """The answer is the word `old`; in version 2 a context without it has none."""
    draw = random.Random(seed)
    questions = []
    for number in range(num_questions):
        words = draw.choices(WORDS, k=8)
        unanswerable = version == "v2.0" and number % 3 == 0
        place = draw.randrange(8)
        if not unanswerable:
            words[place:place] = ["old"]
        context = " ".join(words)
        answers = [] if unanswerable else [{"text": "old", "answer_start": 0}]
        for answer in answers:
            answer["answer_start"] = context.index(answer["text"])
        question = {"id": f"q{number}", "question": "what was it ?", "answers": answers}
        if version == "v2.0":
            question["is_impossible"] = unanswerable
        questions.append({"context": context, "qas": [question]})
    path.write_text(json.dumps({"version": version, "data": [{"title": "", "paragraphs": questions}]}))


@pytest.mark.parametrize(
    ("main", "task", "head"),
    [
        (finetune.main, "squad1", "transformers"),
        (finetune.main, "squad2", "paper"),
        (finetune_no_trainer.main, "squad2", "paper"),
    ],
)
def test_questions_are_answered_from_their_contexts(main, task, head, encoder, tmp_path):
    version = {"squad1": "v1.1", "squad2": "v2.0"}[task]
    layout = get_task("more", task).files
    for split, count in (("train", 240), ("dev", 60)):
        path = tmp_path / layout[split].paths[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        squad_file(path, count, seed=len(split), version=version)
    flags = ["--model_name_or_path", encoder, "--benchmark", "more", "--task_name", task, "--head", head]
    flags += ["--data_dir", str(tmp_path), "--output_dir", str(tmp_path / "run"), "--max_length", "48"]
    flags += [
        "--doc_stride",
        "8",
        "--max_query_length",
        "8",
        "--num_train_epochs",
        "12",
        "--learning_rate",
        "5e-3",
        "--layer_decay",
        "1",
    ]
    flags += ["--use_cpu", "True", "--disable_tqdm", "True", "--per_device_train_batch_size", "16", "--dropout", "0"]
    assert main(flags) == 0
    record = record_of(tmp_path, task=task)
    assert record.metrics["dev"]["exact_match"] > 0.8
    lines = (tmp_path / f"run/{task}/seed_42/predictions_dev.jsonl").read_text().splitlines()
    assert all(json.loads(line)["prediction"]["nbest"] for line in lines)


def test_the_right_choice_is_learnt_among_two_to_four(encoder, tmp_path):
    draw = random.Random(0)
    (tmp_path / "c3").mkdir()
    for split, count in (("train", 200), ("dev", 60)):
        rows = []
        for number in range(count):
            choices = [f"the {word}" for word in draw.sample(WORDS, draw.randint(2, 4))]
            right = draw.randrange(len(choices))
            choices[right] = "an old " + choices[right][4:]
            rows.append([["it was so"], [{"question": "who ?", "choice": choices, "answer": choices[right]}], number])
        (tmp_path / f"c3/{split}.json").write_text(json.dumps(rows))
    flags = ["--model_name_or_path", encoder, "--benchmark", "clue", "--task_name", "c3", "--data_dir", str(tmp_path)]
    flags += ["--output_dir", str(tmp_path / "run"), "--max_length", "24", "--num_train_epochs", "6"]
    flags += ["--learning_rate", "3e-3", "--use_cpu", "True", "--disable_tqdm", "True", "--dropout", "0"]
    assert finetune.main([*flags, "--per_device_train_batch_size", "16"]) == 0
    assert record_of(tmp_path, task="c3").metrics["dev"]["accuracy"] > 0.9


def test_a_file_without_labels_is_predicted_alone(own_flags, own_files, tmp_path):
    assert finetune.main([*own_flags, "--max_steps", "3"]) == 0
    flags = ["--model_name_or_path", str(tmp_path / "run/reviews/seed_42/model"), "--evaluate_only", "True"]
    flags += ["--test_file", own_files["test"], "--text_column", "review", "--label_column", "verdict"]
    flags += ["--output_dir", str(tmp_path / "alone"), "--use_cpu", "True", "--disable_tqdm", "True"]
    assert finetune.main(flags) == 0
    record = record_of(tmp_path, run="alone", task="own")
    assert record.metrics == {}
    predictions = (tmp_path / "alone/own/seed_42/predictions_test.jsonl").read_text()
    assert predictions == (tmp_path / "run/reviews/seed_42/predictions_test.jsonl").read_text()


def test_a_missing_test_split_is_an_error_of_one_task_and_a_warning_among_several(encoder, tmp_path, caplog):
    for name in ("CoLA", "SST-2"):
        (tmp_path / "data" / name).mkdir(parents=True)
    for split, rows in (("train", 20), ("dev", 8)):
        text = "".join(f"x\t{i % 2}\t\tthe old river {i}\n" for i in range(rows))
        (tmp_path / f"data/CoLA/{split}.tsv").write_text(text)
        text = "".join(f"the old river {i}\t{i % 2}\n" for i in range(rows))
        (tmp_path / f"data/SST-2/{split}.tsv").write_text("sentence\tlabel\n" + text)
    flags = ["--model_name_or_path", encoder, "--output_dir", str(tmp_path / "run"), "--max_steps", "2", "--predict"]
    flags += ["--data_dir", str(tmp_path / "data"), "--use_cpu", "True", "--disable_tqdm", "True"]
    with pytest.raises(ValueError, match=r"CoLA/test\.tsv"):
        finetune.main([*flags, "--task_name", "cola"])
    assert finetune.main([*flags, "--task_name", "cola", "sst2"]) == 0
    assert "CoLA, test is not predicted" in caplog.text
    assert record_of(tmp_path, task="cola").predictions.keys() == {"dev"}
