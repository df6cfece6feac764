"""No half of a checkpoint is ever taken for whole, and no foreign one for one's own."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from transformers.trainer_callback import TrainerState

from hf_electra_rtd import PretrainingRecord, files
from hf_electra_rtd.training.checkpoints import (
    check_sources,
    checkpoint_step,
    latest_checkpoint,
    list_checkpoints,
    read_fractions,
    save_outputs,
    writing_checkpoint,
)
from tests.training.test_trainer import At, assert_equal_weights, interrupt, losses, make_trainer


def make_checkpoint(run, step, keep=None):
    """A checkpoint as the loops write it."""
    with writing_checkpoint(run, Accelerator(cpu=True), keep, TrainerState(global_step=step), "loop", {}) as path:
        path.mkdir()
        for name in ("model.safetensors", "optimizer.pt", "scheduler.pt"):
            (path / name).write_bytes(b"state")
        assert run / f"checkpoint-{step}" not in list_checkpoints(run)
    return run / f"checkpoint-{step}"


def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def flip(path):
    """Turns a bit over."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def change_manifest(checkpoint, **changes):
    """Replaces entries of `checkpoint.json`."""
    manifest = json.loads((checkpoint / "checkpoint.json").read_text()) | changes
    (checkpoint / "checkpoint.json").write_text(json.dumps(manifest))


def test_only_a_model_that_a_run_replaces_lies_where_it_writes(tmp_path):
    for name in ("kept", "generator", "checkpoint-3"):
        (tmp_path / name).mkdir()
    check_sources(tmp_path, {"generator": str(tmp_path / "kept"), "discriminator": str(tmp_path / "not there")})
    for source in (tmp_path, tmp_path / "generator", tmp_path / "checkpoint-3"):
        with pytest.raises(ValueError, match=r"--generator .* lies where this run writes"):
            check_sources(tmp_path, {"generator": str(source)})


def test_the_latest_checkpoint_is_the_last_one_that_is_whole(tmp_path, caplog):
    whole = make_checkpoint(tmp_path, 9)
    damage = (
        lambda path: cut(path / "trainer_state.json"),
        lambda path: (path / "optimizer.pt").unlink(),
        lambda path: (path / "checkpoint.json").unlink(),
        lambda path: flip(path / "optimizer.pt"),
        lambda path: change_manifest(path, run=None),
    )
    for step, harm in enumerate(damage, 100):
        harm(make_checkpoint(tmp_path, step))
    assert latest_checkpoint(tmp_path) == whole
    assert caplog.text.count("is not a whole checkpoint") == len(damage)


def drop_optimizer(checkpoint):
    hashes = json.loads((checkpoint / "checkpoint.json").read_text())["files"]
    change_manifest(checkpoint, files={name: value for name, value in hashes.items() if name != "optimizer.pt"})


def forge(name, change):
    """Replaces the content of a file, and its hash."""

    def act(checkpoint):
        file, is_weights = checkpoint / name, name.endswith("safetensors")
        state = load_file(file) if is_weights else torch.load(file, weights_only=False)
        change(state)
        (save_file if is_weights else torch.save)(state, file)
        hashes = json.loads((checkpoint / "checkpoint.json").read_text())["files"]
        change_manifest(checkpoint, files=hashes | {name: files.hash_files([file])})

    return act


def spoil(name, value):
    """Puts something else into the optimizer's state of the first parameter."""
    return forge("optimizer.pt", lambda state: state["state"][0].update({name: value(state["state"][0]["exp_avg"])}))


def be_rounded(checkpoint):
    """Makes it one of `--bf16 True`, before manifests named the library of products."""
    manifest = json.loads((checkpoint / "checkpoint.json").read_text())
    del manifest["products"]
    manifest["run"]["mixed_precision"] = "bf16"
    (checkpoint / "checkpoint.json").write_text(json.dumps(manifest))


BIAS = "generator.generator_lm_head.bias"
REFUSED = {
    "precision": (be_rounded, r"mixed_precision was bf16, now no\. Add --bf16 True\. Give the text"),
    "loop": (lambda checkpoint: change_manifest(checkpoint, loop="other.py"), r"written by other\.py, so RTDTrainer"),
    "no optimizer": (drop_optimizer, "has no optimizer"),
    "missing": (forge("model.safetensors", lambda state: state.pop(BIAS)), rf"missing tensors .*{BIAS}.*Give the fl"),
    "unknown": (forge("model.safetensors", lambda state: state.update(b=torch.ones(1))), r"unknown tensors \['b'\]"),
    "shape": (forge("model.safetensors", lambda state: state.update({BIAS: torch.ones(7)})), f"mismatch for {BIAS}"),
    "moments of another shape": (spoil("exp_avg", lambda _: torch.ones(3)), "exp_avg .*shape"),
    "moments of another type": (spoil("exp_avg_sq", lambda old: old.long()), "exp_avg_sq .*type"),
    "moments that are not finite": (spoil("exp_avg", lambda old: old / 0), "not finite"),
    "another step": (spoil("step", lambda _: torch.tensor(77.0)), "of step 77"),
    "no state": (forge("optimizer.pt", lambda state: state["state"].clear()), "parameter 0 is missing"),
    "other parameters": (forge("optimizer.pt", lambda state: state["param_groups"].pop()), "cannot be read"),
    "no schedule": (forge("scheduler.pt", lambda state: state.clear()), "last_epoch"),
    "a schedule of another step": (forge("scheduler.pt", lambda state: state.update(last_epoch=[1, 2])), "of step"),
    "random numbers": (forge("rng_state.pth", lambda state: state.update(cpu=torch.zeros(3))), "cannot be"),
    "code": (forge("scheduler.pt", lambda state: state.update(code=os.system)), "is no checkpoint of ours"),
    "NaN": (forge("model.safetensors", lambda state: next(iter(state.values())).fill_(torch.nan)), "not finite"),
    "whole numbers": (forge("model.safetensors", lambda state: state.update({BIAS: state[BIAS].long()})), "or whole"),
}


@pytest.fixture(scope="module")
def three_steps(blocks, tokenizer, tmp_path_factory):
    run = tmp_path_factory.mktemp("run")
    make_trainer(run, blocks, tokenizer, max_steps=3, bias_correction=True).train()
    return run / "checkpoint-3"


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_what_the_run_cannot_have_left_is_refused_before_a_step(
    three_steps, tmp_path, blocks, tokenizer, change, message
):
    checkpoint = shutil.copytree(three_steps, tmp_path / "checkpoint-3")
    change(checkpoint)
    callbacks = [At(3, pytest.fail, "on_step_begin")]
    trainer = make_trainer(tmp_path, blocks, tokenizer, bias_correction=True, callbacks=callbacks)
    with pytest.raises(ValueError, match=f"checkpoint-3.* .*{message}") as refused:
        trainer.train(resume_from_checkpoint=True)
    assert "weights_only" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "lacking", "message"),
    [
        ("model.safetensors", 1000, "cannot be written: File too large"),
        ("optimizer.pt", 1000, "No space left to write"),
        ("optimizer.pt", 90_000, "No space left to write"),  # in the middle, torch raises another error
    ],
)
def test_a_full_disk_while_training_keeps_the_checkpoints_before(tmp_path, blocks, tokenizer, name, lacking, message):
    def limit(_):  # what the libraries make of an error of the system in the middle of a file
        size = (tmp_path / "checkpoint-3" / name).stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - lacking, before[1]))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    trainer = make_trainer(tmp_path, blocks, tokenizer, callbacks=[At(5, limit, "on_step_begin")])
    try:
        with pytest.raises(OSError, match=f"{message}.*another directory"):
            trainer.train()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]


def test_old_checkpoints_go_and_the_newest_stay(tmp_path):
    for steps, keep, left in (
        ([1, 2, 3], None, [1, 2, 3]),
        ([10], 3, [2, 3, 10]),
        ([4], 1, [4]),
        ([20, 30], None, [4, 20, 30]),
        ([6, 8], 3, [4, 6, 8]),  # a run that fell back from the later ones
    ):
        for step in steps:
            make_checkpoint(tmp_path, step, keep)
        assert [checkpoint_step(path) for path in list_checkpoints(tmp_path)] == left


def test_exports_at_fractions_are_there_and_leave_no_trace_in_the_training(tmp_path, blocks, tokenizer):
    options = {"dropout": 0.1, "checkpoint_fractions": [1.0, 0.3]}
    without = make_trainer(tmp_path / "without", blocks, tokenizer, dropout=0.1)
    without.train()
    interrupted = make_trainer(tmp_path / "run", blocks, tokenizer, callbacks=[At(5, interrupt)], **options)
    with pytest.raises(KeyboardInterrupt):
        interrupted.train()
    exports = tmp_path / "run" / "fractions"
    assert {path.name for path in (exports / "30").iterdir()} == {"generator", "discriminator", "fraction.json"}
    assert not (exports / "100").exists()
    resumed = make_trainer(tmp_path / "run", blocks, tokenizer, **options)
    resumed.train(resume_from_checkpoint=True)
    assert torch.equal(losses(without), losses(resumed))
    assert_equal_weights(without.model, resumed.model)
    record = resumed.save_run()
    found = [(each["fraction"], each["step"], each["sequences"]) for each in record.fractions]
    assert found == [(0.3, 2, 16), (1.0, 6, 48)]
    for name in ("generator/model.safetensors", "discriminator/model.safetensors"):
        assert (exports / "100" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()
    assert read_fractions(resumed.args, max_steps=12, last_step=12) == []  # the run is extended


def test_a_record_of_an_earlier_end_does_not_stay_beside_later_models(tmp_path, blocks, tokenizer, monkeypatch):
    trainer = make_trainer(tmp_path, blocks, tokenizer)
    trainer.train()
    record = trainer.save_run()
    monkeypatch.setattr(PretrainingRecord, "save", lambda *_: interrupt(None))
    with pytest.raises(KeyboardInterrupt):
        save_outputs(trainer.model, tokenizer, record, tmp_path)
    assert not (tmp_path / PretrainingRecord.FILE).exists()


@pytest.mark.slow
@pytest.mark.parametrize(("chosen", "kills"), [("pretrain.py", 4), ("pretrain_no_trainer.py", 2)])
def test_a_run_that_is_killed_at_random_moments_loses_nothing_that_was_saved(chosen, kills):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    script = Path(__file__).parents[1] / "interruptions.py"
    command = [sys.executable, script, "--kills", str(kills), "--script", chosen]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{kills} kills" in found.stdout
    assert "0 faults" in found.stdout
    assert not re.search(r" 0 of them while| 0 checkpoints compared", found.stdout)
