"""Towers on the way: there at the right steps, whole, and without a trace in the training."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import DistributedType
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer

from hf_electra_rtd import PretrainingRecord, RTDTrainingArguments
from hf_electra_rtd.records import FRACTION_FILE, FractionRecord
from hf_electra_rtd.training.arguments import fraction_steps
from hf_electra_rtd.training.fractions import read_fractions, warn_of_missed_fractions
from hf_electra_rtd.training.sharding import gather_pair
from tests.conftest import VOCABULARY, tiny_config
from tests.training.test_trainer import Interrupt, assert_equal_weights, losses, make_trainer


sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import pretrain
import pretrain_no_trainer


SCRIPTS = pytest.mark.parametrize("script", [pretrain, pretrain_no_trainer])
PAPER = ["0.0625", "0.125", "0.25", "0.5", "1.0"]
WEIGHTS = ("generator/model.safetensors", "discriminator/model.safetensors")


@pytest.fixture
def flags(tmp_path, corpus, monkeypatch):
    """Eight steps with dropout, a checkpoint every three."""
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    tiny_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1).save_pretrained(tmp_path / "config")
    values = {"train_files": corpus, "tokenizer": tmp_path / "vocab.txt", "model_config": tmp_path / "config"}
    values |= {"row_length": 32, "per_device_train_batch_size": 4, "max_steps": 8, "warmup_steps": 1}
    values |= {"logging_steps": 1, "eval_steps": 4, "save_steps": 3, "output_dir": tmp_path / "run"}
    values |= {"save_total_limit": 1}
    monkeypatch.setattr(sys, "argv", ["pretrain.py"])
    return [
        *(part for name, value in values.items() for part in (f"--{name}", str(value))),
        *("--use_cpu", "--disable_tqdm", "True"),
    ]


def test_a_fraction_is_complete_at_the_end_of_its_step():
    paper = [float(fraction) for fraction in PAPER]
    assert list(fraction_steps(paper, 1_000_000)) == [62_500, 125_000, 250_000, 500_000, 1_000_000]
    assert fraction_steps(paper[::-1], 4) == {1: 0.25, 2: 0.5, 4: 1.0}  # the first three come to one step
    assert list(fraction_steps([0.07, 0.071, 1e-9], 100)) == [1, 7, 8]
    assert list(fraction_steps([1 / 3, 2 / 3], 3)) == [1, 2]
    assert fraction_steps(None, 4) == {}


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.01, float("nan")])
def test_what_is_no_fraction_is_refused(tmp_path, fraction):
    with pytest.raises(ValueError, match=f"checkpoint_fractions holds {fraction:g}"):
        RTDTrainingArguments(str(tmp_path), use_cpu=True, checkpoint_fractions=[0.5, fraction])


@SCRIPTS
def test_both_loops_leave_towers_that_stock_transformers_loads_and_train_as_without(tmp_path, flags, script):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"checkpoint_fractions: [{', '.join(PAPER)}]\n")
    assert script.main([*flags, "--config", str(recipe)]) == 0
    assert script.main([*flags, "--output_dir", str(tmp_path / "without")]) == 0

    run = tmp_path / "run"
    names = {"12.5": (0.125, 1), "25": (0.25, 2), "50": (0.5, 4), "100": (1.0, 8)}
    assert {path.name for path in (run / "fractions").iterdir()} == names.keys()
    for name, (fraction, step) in names.items():
        directory = run / "fractions" / name
        assert {path.name for path in directory.iterdir()} == {"generator", "discriminator", FRACTION_FILE}
        record = FractionRecord.load(directory)
        assert (record.fraction, record.step, record.rows) == (fraction, step, 4 * step)
        assert record.train_seconds > 0
        ids = AutoTokenizer.from_pretrained(directory / "discriminator")("the river", return_tensors="pt")["input_ids"]
        assert AutoModelForPreTraining.from_pretrained(directory / "discriminator")(ids).logits.shape == ids.shape
        assert len(AutoModelForMaskedLM.from_pretrained(directory / "generator")(ids).logits[0, 0]) == len(VOCABULARY)
    for name in WEIGHTS:
        assert (run / "fractions/100" / name).read_bytes() == (run / name).read_bytes()
        assert (run / "fractions/50" / name).read_bytes() != (run / name).read_bytes()
        assert (run / name).read_bytes() == (tmp_path / "without" / name).read_bytes()

    records = [PretrainingRecord.load(path) for path in (run, tmp_path / "without")]
    assert [entry["step"] for entry in records[0].fractions] == [1, 2, 4, 8]
    assert records[1].fractions == []
    one, other = ([(log["loss"], log["grad_norm"]) for log in each.curves if "loss" in log] for each in records)
    assert one == other
    assert not (tmp_path / "without" / "fractions").exists()

    assert script.main([*flags, "--overwrite_output_dir"]) == 0
    assert not (run / "fractions").exists()


@SCRIPTS
def test_a_run_that_was_killed_and_goes_on_leaves_the_same(tmp_path, flags, script, capsys):
    flags += ["--checkpoint_fractions", *PAPER, "--save_total_limit", "9"]
    assert script.main(flags) == 0
    run, left = tmp_path / "run", tmp_path / "left"
    shutil.copytree(run / "fractions", left)
    # As if it was killed while it wrote the last towers, after the checkpoint of step 3.
    for path in ("checkpoint-6", "checkpoint-8", "fractions/100"):
        shutil.rmtree(run / path)
    (run / "run_record.json").unlink()
    (run / ".unfinished" / "100").mkdir(parents=True)
    assert script.main([*flags, "--resume_from_checkpoint", "auto"]) == 0
    assert "past" not in capsys.readouterr().err
    assert {path.name for path in (run / "fractions").iterdir()} == {path.name for path in left.iterdir()}
    for name in WEIGHTS:
        for path in left.iterdir():
            assert (run / "fractions" / path.name / name).read_bytes() == (path / name).read_bytes()
    assert [entry["step"] for entry in PretrainingRecord.load(run).fractions] == [1, 2, 4, 8]
    assert not (run / ".unfinished").exists()


def test_the_trainer_exports_by_itself_and_goes_on_bit_for_bit(tmp_path, blocks, tokenizer):
    options = {"dropout": 0.1, "checkpoint_fractions": [1.0, 0.3]}
    without = make_trainer(tmp_path / "without", blocks, tokenizer, dropout=0.1)
    without.train()
    interrupted = make_trainer(tmp_path / "run", blocks, tokenizer, callbacks=[Interrupt(5)], **options)
    with pytest.raises(KeyboardInterrupt):
        interrupted.train()
    assert [path.name for path in (tmp_path / "run" / "fractions").iterdir()] == ["30"]
    resumed = make_trainer(tmp_path / "run", blocks, tokenizer, **options)
    resumed.train(resume_from_checkpoint=True)
    assert torch.equal(losses(without), losses(resumed))
    assert_equal_weights(without.model, resumed.model)
    assert [(record.fraction, record.step) for record in read_fractions(resumed.args, 6)] == [(0.3, 2), (1.0, 6)]


def test_a_copy_of_a_sharded_pair_draws_no_random_number(model):
    sharding = SimpleNamespace(
        distributed_type=DistributedType.FSDP,
        is_main_process=True,
        get_state_dict=lambda prepared: prepared.state_dict(),
    )
    before = torch.get_rng_state()
    copy = gather_pair(model, model, sharding)
    assert copy is not model
    assert_equal_weights(copy, model)
    assert torch.equal(torch.get_rng_state(), before)


def test_fractions_that_a_run_went_past_are_told(tmp_path, caplog):
    args = RTDTrainingArguments(str(tmp_path), use_cpu=True, checkpoint_fractions=[0.25, 0.5, 1.0])
    directory = tmp_path / "fractions" / "25"
    directory.mkdir(parents=True)
    FractionRecord(0.25, 2, 8, 1.0).save(directory)
    warn_of_missed_fractions(args, 8, 3)
    assert not caplog.messages
    warn_of_missed_fractions(args, 8, 4)
    assert "no towers are exported at --checkpoint_fractions 0.5:" in caplog.text
    assert read_fractions(args, 12) == []  # of a run of another length


@SCRIPTS
def test_a_dry_run_names_the_steps(flags, script, capsys):
    assert script.main([*flags, "--dry_run", "--checkpoint_fractions", "1", "0.5"]) == 0
    shown = " ".join(capsys.readouterr().out.split())  # the table pads and wraps
    assert "towers exported after step 4 towers exported after step 8" in shown
    assert "towers on the way" in shown


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": 1.5}, "field 'step' is a float"),
        ({"rows": ...}, "field 'rows' is missing"),
        ({"tokens": 1}, "field 'tokens' is not known"),
    ],
)
def test_a_record_of_a_fraction_is_checked_when_it_is_read(tmp_path, change, message):
    record = FractionRecord(0.5, 2, 8, 1.0)
    path = record.save(tmp_path)
    assert FractionRecord.load(tmp_path) == record
    values = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))
    with pytest.raises(ValueError, match=message):
        FractionRecord.load(path)
