"""No half of a checkpoint is ever taken for whole, and no foreign one for one's own."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.trainer_callback import TrainerState

from hf_electra_rtd import CheckpointError, ElectraForRTDPretraining
from hf_electra_rtd.training import checkpoints
from hf_electra_rtd.training.checkpoints import (
    check_tensors,
    checkpoint_step,
    latest_checkpoint,
    list_checkpoints,
    read_state,
    remove_old_checkpoints,
    remove_unfinished,
    unfinished,
    writing_checkpoint,
)
from tests.conftest import tiny_config
from tests.training.test_trainer import assert_equal_weights, make_trainer


def make_checkpoint(run, step, loop="RTDTrainer", parts=("optimizer.pt", "scheduler.pt"), weights=None):
    """A checkpoint as the loops write it."""
    with writing_checkpoint(run, loop, TrainerState(global_step=step), None) as path:
        path.mkdir()
        save_file(weights or {"weight": torch.ones(3)}, path / "model.safetensors")
        for name in parts:
            (path / name).write_bytes(b"state")
    return run / f"checkpoint-{step}"


def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def test_the_latest_checkpoint_is_the_last_one_that_is_whole(tmp_path, caplog):
    whole = make_checkpoint(tmp_path, 9)
    damage = {
        100: lambda path: cut(path / "trainer_state.json"),
        200: lambda path: (path / "optimizer.pt").unlink(),
        300: lambda path: cut(path / "model.safetensors"),
        400: lambda path: (path / "checkpoint.json").unlink(),
        500: lambda path: cut(path / "checkpoint.json"),
        600: lambda path: (path / "checkpoint.json").write_text("[]"),
    }
    for step, harm in damage.items():
        harm(make_checkpoint(tmp_path, step))
    assert latest_checkpoint(tmp_path) == whole
    assert caplog.text.count("is not whole") == len(damage)


@pytest.mark.parametrize(
    ("step", "options", "message"),
    [
        (3, {"loop": "pretrain_no_trainer.py"}, r"written by pretrain_no_trainer\.py: RTDTrainer cannot go on"),
        (3, {"parts": ("scheduler.pt",)}, "holds no optimizer"),
        (3, {"parts": ("optimizer.pt",)}, "holds no scheduler"),
        (7, {}, r"step 7, beyond the end of the run: .* not 6"),
    ],
)
def test_a_run_goes_on_only_from_what_it_could_have_left(tmp_path, blocks, tokenizer, step, options, message):
    trainer = make_trainer(tmp_path, blocks, tokenizer)
    path = make_checkpoint(tmp_path, step, **options)
    with pytest.raises(ValueError, match=message):
        trainer.train(resume_from_checkpoint=str(path))


def test_a_directory_gets_its_name_when_everything_is_written(tmp_path):
    with writing_checkpoint(tmp_path, "loop", TrainerState(global_step=5), None) as path:
        path.mkdir()
        assert list_checkpoints(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]
    (tmp_path / "generator").mkdir()
    (tmp_path / "generator" / "old").touch()
    with unfinished(tmp_path) as staging:
        (staging / "generator").mkdir()
        (staging / "generator" / "new").touch()
    assert [path.name for path in (tmp_path / "generator").iterdir()] == ["new"]


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("[enforce fail at inline_container.cc:862] . PytorchStreamWriter failed writing file"),
    ],
)
def test_a_failed_write_leaves_nothing_and_says_what_is_left(tmp_path, failure):
    make_checkpoint(tmp_path, 5)

    def write():
        with unfinished(tmp_path) as staging:
            (staging / "checkpoint-10").mkdir()
            raise failure

    with pytest.raises(CheckpointError, match=r"the last checkpoint is .*checkpoint-5.*--resume_from_checkpoint auto"):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-5"]


def test_an_error_that_is_not_of_writing_is_not_called_one(tmp_path):
    with pytest.raises(RuntimeError, match="out of memory"), unfinished(tmp_path):
        raise RuntimeError("CUDA out of memory")


def test_no_space_left_while_training_keeps_the_checkpoints_before(tmp_path, blocks, tokenizer, monkeypatch):
    trainer = make_trainer(tmp_path, blocks, tokenizer)
    real = torch.save

    def full_disk(content, file, *args, **kwargs):
        if "checkpoint-6" in str(file):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(content, file, *args, **kwargs)

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(CheckpointError, match=r"No space left.*checkpoint-3"):
        trainer.train()
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]


def test_checkpoints_go_one_by_one_and_the_newest_and_the_best_stay(tmp_path):
    def left():
        return [checkpoint_step(path) for path in list_checkpoints(tmp_path)]

    for step in (1, 2, 3, 10):
        make_checkpoint(tmp_path, step)
    for keep in (None, 0, -1):
        remove_old_checkpoints(tmp_path, keep, newest=10)
        assert left() == [1, 2, 3, 10]
    remove_old_checkpoints(tmp_path, 3, newest=10, best=str(tmp_path / "checkpoint-1"))
    assert left() == [1, 3, 10]
    remove_old_checkpoints(tmp_path, 1, newest=3)
    assert left() == [3]
    for step in (4, 9):
        make_checkpoint(tmp_path, step)
    cut(tmp_path / "checkpoint-9" / "optimizer.pt")
    remove_old_checkpoints(tmp_path, 1, newest=4)
    assert left() == [4, 9]  # what is damaged neither counts nor goes
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint-4"


def test_a_checkpoint_loses_its_name_before_its_content(tmp_path, monkeypatch):
    path = make_checkpoint(tmp_path, 1)
    monkeypatch.setattr(checkpoints.shutil, "rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        checkpoints.remove_directory(path)
    assert list_checkpoints(tmp_path) == []
    monkeypatch.undo()
    remove_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_best_checkpoint_is_kept_and_loaded_at_the_end(tmp_path, blocks, tokenizer):
    options = {"max_steps": 9, "load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
    options |= {"greater_is_better": True, "save_total_limit": 2, "learning_rate": 3e-2}
    trainer = make_trainer(tmp_path, blocks, tokenizer, **options)
    trainer.train()
    losses = {log["step"]: log["eval_loss"] for log in trainer.state.log_history if "eval_loss" in log}
    best = max(losses, key=losses.get)
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best}")
    assert {path.name for path in list_checkpoints(tmp_path)} == {f"checkpoint-{best}", "checkpoint-9"}
    state = json.loads((tmp_path / "checkpoint-9" / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == str(tmp_path / f"checkpoint-{best}")
    kept = ElectraForRTDPretraining.from_pretrained(tmp_path / f"checkpoint-{best}")
    assert_equal_weights(trainer.model, kept)


# ---- Foreign checkpoints ----


@pytest.fixture
def checkpoint(tmp_path, model):
    path = make_checkpoint(tmp_path, 3)
    model.save_pretrained(path)
    refresh(path)
    return path


def refresh(path):
    """Lists the files anew, as if they had been written so."""
    manifest = json.loads((path / "checkpoint.json").read_text())
    manifest["files"]["model.safetensors"] = (path / "model.safetensors").stat().st_size
    (path / "checkpoint.json").write_text(json.dumps(manifest))


def test_a_checkpoint_of_the_model_itself_is_taken(checkpoint, model):
    check_tensors(checkpoint, model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda tensors: tensors.pop("generator.generator_lm_head.bias"),
            r"missing: generator\.generator_lm_head\.bias",
        ),
        (lambda tensors: tensors.update(other=torch.ones(1)), r"foreign: other"),
        (
            lambda tensors: tensors.update({"generator.generator_lm_head.bias": torch.ones(7)}),
            r"of another shape: generator\.generator_lm_head\.bias \(7,\) instead of \(55,\)",
        ),
    ],
)
def test_missing_and_foreign_tensors_are_named(checkpoint, model, blocks, tokenizer, change, message):
    tensors = load_file(checkpoint / "model.safetensors")
    change(tensors)
    save_file(tensors, checkpoint / "model.safetensors")
    refresh(checkpoint)
    with pytest.raises(ValueError, match=message):
        check_tensors(checkpoint, model)
    trainer = make_trainer(checkpoint.parent, blocks, tokenizer)
    before = [parameter.clone() for parameter in trainer.model.parameters()]
    with pytest.raises(ValueError, match=message):
        trainer.train(resume_from_checkpoint=str(checkpoint))
    assert all(torch.equal(*pair) for pair in zip(before, trainer.model.parameters(), strict=True))


def test_another_architecture_is_a_foreign_checkpoint(checkpoint):
    other = ElectraForRTDPretraining(tiny_config(num_hidden_layers=4))
    with pytest.raises(ValueError, match=r"missing: .* and 54 more"):
        check_tensors(checkpoint, other)


def test_a_pickle_is_refused_where_safetensors_are_expected(tmp_path, model):
    (tmp_path / "checkpoint-3").mkdir()
    torch.save(model.state_dict(), tmp_path / "checkpoint-3" / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"(?s)as a pickle.*could run any code.*weights_only=True"):
        read_state(tmp_path / "checkpoint-3")


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
