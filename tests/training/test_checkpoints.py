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

from hf_electra_rtd import ElectraForRTDPretraining, PretrainingRecord, files
from hf_electra_rtd.training.checkpoints import (
    checkpoint_step,
    latest_checkpoint,
    list_checkpoints,
    read_fractions,
    remove_unfinished,
    save_outputs,
    writing_checkpoint,
)
from tests.conftest import tiny_config
from tests.training.test_trainer import At, assert_equal_weights, interrupt, losses, make_trainer


def make_checkpoint(run, step, loop="RTDTrainer", parts=("optimizer.pt", "scheduler.pt"), tensors=None, **options):
    """A checkpoint as the loops write it."""
    state = TrainerState(global_step=step, best_model_checkpoint=options.get("best"))
    with writing_checkpoint(run, Accelerator(cpu=True), options.get("keep"), state, loop, {}) as path:
        path.mkdir()
        save_file({"weight": torch.ones(3)} if tensors is None else tensors, path / "model.safetensors")
        for name in parts:
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
    """Replaces entries of `checkpoint.json`; None removes one."""
    manifest = json.loads((checkpoint / "checkpoint.json").read_text()) | changes
    manifest = {name: value for name, value in manifest.items() if value is not None}
    (checkpoint / "checkpoint.json").write_text(json.dumps(manifest))


def test_the_latest_checkpoint_is_the_last_one_that_is_whole(tmp_path, caplog):
    whole = make_checkpoint(tmp_path, 9)
    damage = {
        100: lambda path: cut(path / "trainer_state.json"),
        200: lambda path: (path / "optimizer.pt").unlink(),
        300: lambda path: cut(path / "model.safetensors"),
        400: lambda path: (path / "checkpoint.json").unlink(),
        500: lambda path: cut(path / "checkpoint.json"),
        600: lambda path: flip(path / "optimizer.pt"),
        700: lambda path: (path / "scheduler.pt").write_bytes(b"st\0\0\0"),  # of the right size
        800: lambda path: change_manifest(path, files={}),
        900: lambda path: change_manifest(path, loop=None),
        1000: lambda path: change_manifest(path, run=None),
    }
    for step, harm in damage.items():
        harm(make_checkpoint(tmp_path, step))
    assert latest_checkpoint(tmp_path) == whole
    assert caplog.text.count("is not a whole checkpoint") == len(damage)


@pytest.mark.parametrize(
    ("step", "options", "message"),
    [
        (3, {"loop": "pretrain_no_trainer.py"}, r"written by pretrain_no_trainer\.py, so RTDTrainer cannot resume"),
        (3, {"parts": ("scheduler.pt",)}, "has no optimizer"),
        (7, {}, r"step 7, but --max_steps is 6"),
    ],
)
def test_a_run_resumes_only_from_what_it_could_have_left(tmp_path, blocks, tokenizer, step, options, message):
    trainer = make_trainer(tmp_path, blocks, tokenizer)
    path = make_checkpoint(tmp_path, step, **options)
    with pytest.raises(ValueError, match=message):
        trainer.train(resume_from_checkpoint=str(path))


def spoil(name, value):
    """Puts something else into the optimizer's state of the first parameter."""
    return lambda state: state["state"][0].update({name: value(state["state"][0]["exp_avg"])})


FORGED = {
    "moments of another shape": ("optimizer.pt", spoil("exp_avg", lambda _: torch.ones(3)), "exp_avg .*shape"),
    "moments of another type": ("optimizer.pt", spoil("exp_avg_sq", lambda old: old.long()), "exp_avg_sq .*type"),
    "moments that are not finite": ("optimizer.pt", spoil("exp_avg", lambda old: old / 0), "not finite"),
    "another step": ("optimizer.pt", spoil("step", lambda _: torch.tensor(77.0)), "of step 77"),
    "no state": ("optimizer.pt", lambda state: state["state"].clear(), "parameter 0 is missing"),
    "other parameters": ("optimizer.pt", lambda state: state["param_groups"].pop(), "cannot be read"),
    "no schedule": ("scheduler.pt", lambda state: state.clear(), "last_epoch"),
    "a schedule of another step": ("scheduler.pt", lambda state: state.update(last_epoch=[1, 2]), "of step"),
    "random numbers of another shape": ("rng_state.pth", lambda state: state.update(cpu=torch.zeros(3)), "cannot be"),
    "code": ("scheduler.pt", lambda state: state.update(code=os.system), "is no checkpoint of ours"),
    "NaN": ("model.safetensors", lambda state: next(iter(state.values())).fill_(torch.nan), "not finite"),
    "no fractions": ("model.safetensors", lambda state: state.update({min(state): state[min(state)].long()}), ""),
}


@pytest.fixture(scope="module")
def three_steps(blocks, tokenizer, tmp_path_factory):
    trainer = make_trainer(tmp_path_factory.mktemp("run"), blocks, tokenizer, max_steps=3)
    trainer.train()
    return Path(trainer.args.output_dir)


def forge(checkpoint, name, change):
    """Changes a state, and the hash with it."""
    file, is_weights = checkpoint / name, name.endswith("safetensors")
    state = load_file(file) if is_weights else torch.load(file, weights_only=False)
    change(state)
    (save_file if is_weights else torch.save)(state, file)
    manifest = json.loads((checkpoint / "checkpoint.json").read_text())
    manifest["files"][name] = files.hash_files([file])
    (checkpoint / "checkpoint.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("kind", FORGED)
def test_a_state_that_the_run_cannot_have_left_is_refused_before_a_step(
    three_steps, tmp_path, blocks, tokenizer, kind
):
    name, change, message = FORGED[kind]
    checkpoint = shutil.copytree(three_steps / "checkpoint-3", tmp_path / "checkpoint-3")
    forge(checkpoint, name, change)
    trainer = make_trainer(tmp_path, blocks, tokenizer, callbacks=[At(3, pytest.fail, "on_step_begin")])
    with pytest.raises(ValueError, match=f"checkpoint-3/{name} .*{message}") as refused:
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


def test_old_checkpoints_go_and_the_newest_and_the_best_stay(tmp_path):
    def left():
        return [checkpoint_step(path) for path in list_checkpoints(tmp_path)]

    for step in (1, 2, 3):
        make_checkpoint(tmp_path, step)
    assert left() == [1, 2, 3]
    make_checkpoint(tmp_path, 10, keep=3, best=str(tmp_path / "checkpoint-1"))
    assert left() == [1, 3, 10]
    make_checkpoint(tmp_path, 11, keep=1, best=str(tmp_path / "checkpoint-1"))
    assert left() == [1, 11]
    make_checkpoint(tmp_path, 4, keep=1)
    assert left() == [4]
    for step in (20, 30):  # the run falls back from these
        make_checkpoint(tmp_path, step)
    for step in (6, 8):
        make_checkpoint(tmp_path, step, keep=3)
    assert left() == [4, 6, 8]


def test_a_checkpoint_loses_its_name_before_its_content(tmp_path, monkeypatch):
    path = make_checkpoint(tmp_path, 1)
    monkeypatch.setattr(shutil, "rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        files.remove_directory(path)
    assert list_checkpoints(tmp_path) == []
    monkeypatch.undo()
    remove_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_best_checkpoint_is_kept_and_loaded_at_the_end(tmp_path, blocks, tokenizer):
    options = {"max_steps": 9, "load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
    options |= {"greater_is_better": True, "save_total_limit": 2, "learning_rate": 3e-2}
    trainer = make_trainer(tmp_path, blocks, tokenizer, **options)
    trainer.train()
    found = {log["step"]: log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log}
    best = max(found, key=found.get)
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    assert {path.name for path in list_checkpoints(tmp_path)} == {f"checkpoint-{best}", "checkpoint-9"}
    state = json.loads((tmp_path / "checkpoint-9" / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == str(tmp_path / f"checkpoint-{best}")
    kept = ElectraForRTDPretraining.from_pretrained(tmp_path / f"checkpoint-{best}")
    assert_equal_weights(trainer.model, kept)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: tensors.pop("generator.generator_lm_head.bias"),
            r"missing tensors \['generator.generator",
        ),
        (lambda tensors: tensors.update(other=torch.ones(1)), r"unknown tensors \['other'\]"),
        (
            lambda tensors: tensors.update({"generator.generator_lm_head.bias": torch.ones(7)}),
            r"size mismatch for generator\.generator_lm_head\.bias",
        ),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(tmp_path, blocks, tokenizer, change, message):
    tensors = ElectraForRTDPretraining(tiny_config()).state_dict()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors)
    make_checkpoint(tmp_path, 3, tensors=tensors)
    trainer = make_trainer(tmp_path, blocks, tokenizer)
    with pytest.raises(ValueError, match=f"checkpoint-3 cannot be read: .*{message}.*Give the flags"):
        trainer.train(resume_from_checkpoint=True)


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
        assert load_file(exports / "30" / name).keys() == load_file(exports / "100" / name).keys()
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
@pytest.mark.parametrize(("chosen", "kills"), [("pretrain.py", 6), ("pretrain_no_trainer.py", 4)])
def test_a_run_that_is_killed_at_random_moments_loses_nothing_that_was_saved(chosen, kills):
    script = Path(__file__).parents[1] / "interruptions.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, script, "--kills", str(kills), "--script", chosen]
    found = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{kills} kills" in found.stdout
    assert "0 faults" in found.stdout
    assert not re.search(r" 0 of them while| 0 checkpoints compared", found.stdout)
