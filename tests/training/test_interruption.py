"""Ctrl-C finishes the step, saves, and says how to resume."""

import contextlib
import multiprocessing
import os
import signal
import subprocess

import pytest

from hf_electra_rtd.training.checkpoints import latest_checkpoint
from hf_electra_rtd.training.signals import StopSignal
from tests.training.test_trainer import At, make_trainer


@pytest.fixture
def trained(tmp_path, blocks, tokenizer):
    """Returns a function that trains until a signal in a step, and returns the trainer and whether it was stopped."""

    def train(step, number=signal.SIGINT, **options):
        with StopSignal() as stop:
            signal_ = At(step, lambda model: os.kill(os.getpid(), number), "on_step_begin")
            trainer = make_trainer(tmp_path / "run", blocks, tokenizer, callbacks=[signal_, stop], **options)
            trainer.train()
        return trainer, stop.stopped

    return train


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_step_and_saves(tmp_path, trained, number, caplog):
    before = signal.getsignal(number)
    trainer, stopped = trained(3, number, save_steps=100, eval_steps=4)
    assert (stopped, trainer.state.global_step) == (True, 4)  # the signal came during the fourth step
    assert trainer.state.log_history[-1]["step"] == 4
    assert not any("eval_loss" in logs for logs in trainer.state.log_history)  # this would delay the checkpoint
    assert latest_checkpoint(tmp_path / "run").name == "checkpoint-4"
    assert "this step is finished and saved first" in caplog.text
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(("seconds", "is_again"), [(0.0, True), (60.0, False)])
def test_ctrl_c_a_second_time_stops_at_once_and_the_last_checkpoint_stays(
    tmp_path, blocks, tokenizer, monkeypatch, seconds, is_again
):
    def sign(_):
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)

    monkeypatch.setattr("hf_electra_rtd.training.signals.SECONDS_TO_PRESS_AGAIN", seconds)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) if is_again else contextlib.nullcontext(), StopSignal() as stop:
        callbacks = [At(3, sign, "on_step_begin"), stop]
        make_trainer(tmp_path, blocks, tokenizer, callbacks=callbacks, save_steps=3).train()
    assert (stop.stopped, stop.status) == (not is_again, 128 + signal.SIGTERM)
    assert latest_checkpoint(tmp_path).name == ("checkpoint-3" if is_again else "checkpoint-4")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_at_the_last_step_stops_nothing(trained):
    trainer, stopped = trained(5, save_strategy="no")
    assert (stopped, trainer.state.global_step) == (False, 6)


def test_a_signal_to_the_process_group_or_to_every_process_ends_no_worker(tmp_path, blocks, tokenizer):
    trainer = make_trainer(tmp_path, blocks, tokenizer, dataloader_num_workers=1)
    for loader in (trainer.get_train_dataloader(), trainer.get_eval_dataloader()):
        batches = iter(loader)
        next(batches)
        workers = multiprocessing.active_children()
        assert workers
        assert all(os.getpgid(worker.pid) != os.getpgid(0) for worker in workers)
        for worker in workers:
            subprocess.run(["kill", "-TERM", str(worker.pid)], check=True)
        assert len(list(batches)) > 0


def test_a_worker_ends_when_its_run_ends_it(tmp_path, blocks, tokenizer):
    batches = iter(make_trainer(tmp_path, blocks, tokenizer, dataloader_num_workers=1).get_train_dataloader())
    next(batches)
    (worker,) = multiprocessing.active_children()
    worker.terminate()
    worker.join(timeout=20)
    assert worker.exitcode == 0
