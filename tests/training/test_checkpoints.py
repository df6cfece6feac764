"""An incomplete checkpoint is never taken for a complete one, nor another run's checkpoint for one of this run."""

import errno
import os
import random
import resource
import subprocess
import sys
import time

import pytest
import torch
from accelerate import Accelerator
from transformers.trainer_callback import TrainerState

from hf_electra_rtd import PretrainingRecord
from hf_electra_rtd.base.files import remove_partial
from hf_electra_rtd.training.checkpoints import (
    checkpoint_step,
    latest_checkpoint,
    list_checkpoints,
    read_fractions,
    writing_checkpoint,
)
from hf_electra_rtd.training.directory import save_outputs
from tests.conftest import pretraining_flags, tiny_config
from tests.training.test_trainer import At, assert_equal_weights, interrupt, losses, make_trainer


def make_checkpoint(run, step, keep=None):
    """Writes a checkpoint as the training loops do, and returns its path."""
    with writing_checkpoint(run, Accelerator(cpu=True), keep, TrainerState(global_step=step), {}) as path:
        path.mkdir()
        for name in ("model.safetensors", "optimizer.pt", "scheduler.pt"):
            (path / name).write_bytes(b"state")
        assert run / f"checkpoint-{step}" not in list_checkpoints(run)
    return run / f"checkpoint-{step}"


def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def flip(path):
    """Flips one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_latest_checkpoint_is_the_last_one_that_is_whole(tmp_path, caplog):
    whole = make_checkpoint(tmp_path, 9)
    damage = (
        lambda path: cut(path / "trainer_state.json"),
        lambda path: (path / "optimizer.pt").unlink(),
        lambda path: (path / "checkpoint.json").unlink(),
        lambda path: flip(path / "optimizer.pt"),
        lambda path: cut(path / "checkpoint.json"),
    )
    for step, harm in enumerate(damage, 100):
        harm(make_checkpoint(tmp_path, step))
    assert latest_checkpoint(tmp_path) == whole
    assert caplog.text.count("is not a complete checkpoint") == len(damage)


def test_a_checkpoint_that_was_put_aside_is_none_of_the_run(tmp_path):
    aside = make_checkpoint(tmp_path, 2).rename(tmp_path / "checkpoint-keep-2")
    for step in (4, 6):
        make_checkpoint(tmp_path, step, keep=1)
    assert aside.is_dir()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-6"]


def test_an_old_checkpoint_with_a_file_that_cannot_be_deleted_yet_ends_no_run(tmp_path, monkeypatch):
    make_checkpoint(tmp_path, 2)

    def refuse(*_, **__):
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refuse)  # as NFS does while another process reads a file
        make_checkpoint(tmp_path, 4, keep=1)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-4"]
    remove_partial(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-4"]


def test_a_checkpoint_with_a_bit_turned_over_is_not_resumed_from(tmp_path, blocks, tokenizer):
    make_trainer(tmp_path, blocks, tokenizer, max_steps=3).train()
    trainer = make_trainer(tmp_path, blocks, tokenizer)
    flip(tmp_path / "checkpoint-3" / "model.safetensors")
    with pytest.raises(ValueError, match="missing or altered"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


@pytest.mark.parametrize(
    ("name", "lacking", "message"),
    [
        ("model.safetensors", 1000, "cannot be written: File too large"),
        ("optimizer.pt", 1000, "No space left to write"),
        ("optimizer.pt", 90_000, "No space left to write"),  # in the middle of the file, torch raises another error
    ],
)
def test_a_full_disk_while_training_keeps_the_checkpoints_before(tmp_path, blocks, tokenizer, name, lacking, message):
    def limit(_):  # makes a write of the libraries fail in the middle of a file
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
        ([6, 8], 3, [4, 6, 8]),  # a run that resumed from step 4, because later checkpoints were damaged
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


class Killed:
    """Starts `hf-electra-rtd pretrain` in separate processes, with dropout, so that the random states matter."""

    def __init__(self, workplace, corpus):
        tiny_config(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1).save_pretrained(workplace / "dropout")
        self.workplace = workplace
        self.corpus = corpus

    def start(self, name):
        flags = pretraining_flags(
            self.workplace,
            self.corpus,
            self.workplace / name,
            model_config=self.workplace / "dropout",
            max_steps=60,
            save_steps=3,
            eval_steps=1000,
            save_total_limit=1000,
            resume_from_checkpoint="auto",
        )
        command = [sys.executable, "-m", "hf_electra_rtd_command", "pretrain", *flags]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_a_run_that_is_killed_at_random_moments_ends_as_if_nobody_had_disturbed_it(tmp_path, corpus):
    runs = Killed(tmp_path, corpus)
    assert runs.start("undisturbed").wait(timeout=120) == 0
    output_dir = tmp_path / "run"
    draw = random.Random(0)
    for number in range(4):
        before = len(list_checkpoints(output_dir))
        process = runs.start("run")
        is_there = (lambda: any(output_dir.glob(".checkpoint-*.partial-*"))) if number % 2 else (lambda: True)
        while process.poll() is None and (len(list_checkpoints(output_dir)) <= before + 2 or not is_there()):
            time.sleep(0.0005)
        if number % 2 == 0:  # in the other rounds, it is killed while it writes a checkpoint
            time.sleep(draw.uniform(0, 0.01))
        assert process.poll() is None
        process.kill()
        process.wait()
        for checkpoint in list_checkpoints(output_dir):
            for file in checkpoint.iterdir():
                if file.name not in ("trainer_state.json", "checkpoint.json"):  # these hold times
                    assert file.read_bytes() == (tmp_path / "undisturbed" / checkpoint.name / file.name).read_bytes()
    assert runs.start("run").wait(timeout=120) == 0
    for name in ("model.safetensors", "generator/model.safetensors", "discriminator/model.safetensors"):
        assert (output_dir / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()
    assert not list(output_dir.glob(".*partial*"))
