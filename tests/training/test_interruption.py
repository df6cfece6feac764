"""Ctrl-C finishes the step, saves, and says how to resume."""

import multiprocessing
import os
import signal

import pytest
import torch

from hf_electra_rtd.training.checkpoints import latest_checkpoint
from hf_electra_rtd.training.interruption import StopSignal, StopSignalCallback
from tests.training.test_trainer import At, assert_equal_weights, losses, make_trainer


def signal_at(step, number=signal.SIGINT):
    """Sends this process a signal within a step."""
    return At(step, lambda model: os.kill(os.getpid(), number), "on_step_begin")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_step_and_saves_and_the_run_resumes_bit_for_bit(tmp_path, blocks, tokenizer, number, caplog):
    options = {"dropout": 0.1, "save_steps": 100, "max_steps": 6}
    whole = make_trainer(tmp_path / "whole", blocks, tokenizer, **options)
    whole.train()

    with StopSignal() as stop_signal:
        stop = StopSignalCallback(stop_signal)
        parts = make_trainer(tmp_path / "parts", blocks, tokenizer, callbacks=[signal_at(3, number), stop], **options)
        parts.train()
    assert stop.stopped
    assert parts.state.global_step == 4  # the step in which the signal came was the fourth
    assert "this step is finished and saved first" in caplog.text
    resumed = make_trainer(tmp_path / "parts", blocks, tokenizer, **options)
    resumed.train(resume_from_checkpoint=True)
    assert torch.equal(losses(whole), losses(resumed))
    assert_equal_weights(whole.model, resumed.model)


def test_handlers_are_restored_and_signals_forgotten():
    before, stop = signal.getsignal(signal.SIGINT), StopSignal()
    with stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.should_stop(1)
    assert signal.getsignal(signal.SIGINT) is before
    with stop:
        assert not stop.should_stop(1)


def test_a_signal_at_the_last_step_stops_nothing(tmp_path, blocks, tokenizer):
    with StopSignal() as stop_signal:
        stop = StopSignalCallback(stop_signal)
        trainer = make_trainer(tmp_path, blocks, tokenizer, callbacks=[signal_at(5), stop], save_strategy="no")
        trainer.train()
    assert (stop.stopped, trainer.state.global_step) == (False, 6)


def test_an_interrupted_run_keeps_its_last_checkpoint_beside_the_best(tmp_path, blocks, tokenizer):
    options = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "save_total_limit": 1}
    options |= {"eval_steps": 2, "save_steps": 2, "max_steps": 9, "learning_rate": 3e-2, "greater_is_better": True}
    with StopSignal() as stop_signal:
        callbacks = [signal_at(6), StopSignalCallback(stop_signal)]
        trainer = make_trainer(tmp_path, blocks, tokenizer, callbacks=callbacks, **options)
        trainer.train()
    assert (trainer.state.global_step, latest_checkpoint(tmp_path).name) == (7, "checkpoint-7")
    assert trainer.args.save_total_limit == 1


def test_a_signal_to_the_process_group_does_not_reach_workers(tmp_path, blocks, tokenizer):
    trainer = make_trainer(tmp_path, blocks, tokenizer, dataloader_num_workers=1)
    for loader in (trainer.get_train_dataloader(), trainer.get_eval_dataloader()):
        batches = iter(loader)
        next(batches)
        workers = multiprocessing.active_children()
        assert workers
        assert all(os.getpgid(worker.pid) != os.getpgid(0) for worker in workers)
        assert len(list(batches)) > 0


def test_a_second_ctrl_c_interrupts_at_once_but_not_its_echo():
    now = 0.0
    with StopSignal(now=lambda: now) as stop:
        assert not stop.should_stop(1)
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.should_stop(1)
        os.kill(os.getpid(), signal.SIGINT)  # a launcher passes on what the terminal has sent already
        now = 5.0
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
