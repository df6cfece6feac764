"""The script that pre-trains, as its user sees it."""

import json
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer

from hf_electra_rtd import ElectraForRTDPretraining, PretrainingRecord
from hf_electra_rtd.training.arguments import RECIPES
from hf_electra_rtd.training.inputs import DataArguments
from hf_electra_rtd.training.pair import ModelArguments
from tests.conftest import VOCABULARY, tiny_config


EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))

import pretrain  # noqa: E402


@pytest.fixture
def vocabulary_file(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCABULARY) + "\n")
    return str(path)


@pytest.fixture
def pretraining(tmp_path, corpus, monkeypatch):
    """Runs the script in `tmp_path/run`, small and short, and returns the directory."""
    directory = tmp_path / "run"
    monkeypatch.setattr(sys, "argv", ["pretrain.py"])

    def run(*flags, **options):
        values = {
            "output_dir": directory,
            "train_files": corpus,
            "row_length": 32,
            "per_device_train_batch_size": 8,
            "max_steps": 4,
            "warmup_steps": 1,
            "logging_steps": 1,
            "eval_steps": 2,
            "save_steps": 2,
            **options,
        }
        flattened = [part for name, value in values.items() if value is not None for part in (f"--{name}", str(value))]
        pretrain.main([*flattened, "--use_cpu", "--disable_tqdm", "True", *flags])
        return Path(values["output_dir"])

    return run


def test_a_run_leaves_everything_that_it_promises(pretraining, corpus, capsys):
    directory = pretraining(vocab_size=100)
    names = {path.name for path in directory.iterdir()}
    assert names >= {
        *("checkpoint-2", "checkpoint-4", "model.safetensors", "config.json", "tokenizer.json", "vocab.txt"),
        *("generator", "discriminator", "run_record.json", "training_curves.png", "blocks", "tokenizer"),
    }
    record = PretrainingRecord.load(directory)
    assert (record.steps, record.rows, record.tokens) == (4, 32, 32 * 32)
    assert record.command.startswith("pretrain.py --output_dir")
    assert record.arguments["training"]["row_length"] == 32
    (source,) = record.data["train"]["sources"]
    assert source["name"] == corpus.name
    assert len(source["sha256"]) == 64
    assert record.data["train"]["statistics"]["documents"] + record.data["held_out"]["statistics"]["documents"] == 40
    assert len([entry for entry in record.curves if "loss" in entry]) == 4
    assert record.metrics["eval_discriminator_auc"] > 0
    assert record.flops["paper"] > 0
    assert record.train_seconds > 0

    tokenizer = AutoTokenizer.from_pretrained(directory / "discriminator")
    ids = tokenizer("the river was old .", return_tensors="pt")["input_ids"]
    pair = ElectraForRTDPretraining.from_pretrained(directory)
    for name, load in (("discriminator", AutoModelForPreTraining), ("generator", AutoModelForMaskedLM)):
        tower = load.from_pretrained(directory / name)
        assert tower.num_parameters() == record.parameters[name]
        torch.testing.assert_close(tower(ids).logits, getattr(pair, name)(ids).logits)

    output = capsys.readouterr().out
    for expected in ("HELD-OUT", "original", "corrupted", "replaced?", "discriminator, held out", "from_pretrained"):
        assert expected in output


@pytest.mark.parametrize("packing", ["full", "original"])
def test_an_interrupted_run_resumes_from_the_command_line_and_ends_the_same(pretraining, tmp_path, packing):
    options = {"packing": packing, "vocab_size": 100}
    whole = pretraining(output_dir=tmp_path / "whole", **options)
    parts = pretraining(output_dir=tmp_path / "parts", **options)
    for path in (parts / "checkpoint-4", parts / "generator", parts / "discriminator"):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    pretraining("--resume_from_checkpoint", "latest", output_dir=parts, **options)
    for name in ("model.safetensors", "generator/model.safetensors", "discriminator/model.safetensors"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()
    records = [PretrainingRecord.load(directory) for directory in (whole, parts)]
    assert records[0].tokens == records[1].tokens
    changing = ("runtime", "per_second", "preparation_time")
    for name, value in records[0].metrics.items():
        assert name.endswith(changing) or records[1].metrics[name] == value


def test_a_prepared_block_file_and_its_tokenizer_can_be_named(pretraining, blocks, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    train, held_out = blocks
    directory = pretraining(train_files=train.path, held_out_files=held_out.path, tokenizer=tmp_path / "tokenizer")
    record = PretrainingRecord.load(directory)
    assert record.data["train"]["sha256"] == train.header.sha256
    assert record.data["held_out"]["sha256"] == held_out.header.sha256


def test_pretraining_continues_from_towers(pretraining, tmp_path, vocabulary_file, tokenizer):
    pair = ElectraForRTDPretraining(tiny_config())
    pair.save_towers(tmp_path, tokenizer)
    both = pretraining(generator=tmp_path / "generator", discriminator=tmp_path / "discriminator", learning_rate=0.0)
    trained = ElectraForRTDPretraining.from_pretrained(both)
    for (name, parameter), (_, expected) in zip(trained.named_parameters(), pair.named_parameters(), strict=True):
        assert torch.equal(parameter, expected), name


def test_another_run_is_not_overwritten_unless_asked(pretraining):
    directory = pretraining(vocab_size=100)
    before = json.loads((directory / "run_record.json").read_text())
    with pytest.raises(ValueError, match=r"holds another run.*--resume_from_checkpoint latest"):
        pretraining(vocab_size=100)
    assert json.loads((directory / "run_record.json").read_text()) == before
    pretraining("--overwrite_output_dir", vocab_size=100, max_steps=2)
    assert not (directory / "checkpoint-4").exists()
    assert PretrainingRecord.load(directory).steps == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_files": "nothing/*.txt"}, "No file matches"),
        ({"sharing": "some"}, "no sharing='some'"),
        ({"packing": "loose"}, "no packing='loose'"),
        ({"mask_probability": 1.5}, "mask_probability is 1.5"),
    ],
)
def test_mistakes_are_told_before_any_work_is_lost(pretraining, options, message):
    with pytest.raises(ValueError, match=message):
        pretraining(vocab_size=100, **options)


def test_blocks_of_another_tokenizer_or_length_are_refused(pretraining, blocks, tokenizer, tmp_path, vocabulary_file):
    other = tmp_path / "other.txt"
    other.write_text("\n".join([*VOCABULARY, "more"]) + "\n")
    with pytest.raises(ValueError, match="made with another tokenizer"):
        pretraining(train_files=blocks[0].path, tokenizer=other)
    with pytest.raises(ValueError, match="--row_length 32"):
        pretraining(train_files=blocks[0].path, tokenizer=vocabulary_file, row_length=64)
    with pytest.raises(ValueError, match="no text to train a tokenizer on"):
        pretraining(train_files=blocks[0].path, output_dir=tmp_path / "new")


def test_every_recipe_file_can_be_read():
    from hf_electra_rtd import RTDTrainingArguments
    from hf_electra_rtd.training.cli import parse_arguments

    for path in (EXAMPLES / "recipes").glob("*.yaml"):
        parse_arguments(
            (ModelArguments, DataArguments, RTDTrainingArguments),
            ["--config", str(path), "--use_cpu"],
            recipes=RECIPES,
        )
