"""Ctrl-C finishes the step, saves, and says how to go on."""

import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from hf_electra_rtd.training.checkpoints import latest_checkpoint, read_state
from hf_electra_rtd.training.interruption import INTERRUPTED, StopSignal, StopSignalCallback
from tests.conftest import VOCABULARY, tiny_config
from tests.training.test_trainer import assert_equal_weights, losses, make_trainer


EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import pretrain  # noqa: E402
import pretrain_no_trainer  # noqa: E402


class SignalAt(TrainerCallback):
    """Sends this process a signal within a step."""

    def __init__(self, step, number):
        self.step, self.number = step, number

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_step_and_saves_and_the_run_goes_on_bit_for_bit(tmp_path, blocks, tokenizer, number, caplog):
    options = {"dropout": 0.1, "save_steps": 100, "max_steps": 6}
    whole = make_trainer(tmp_path / "whole", blocks, tokenizer, **options)
    whole.train()

    with StopSignal() as stop_signal:
        stop = StopSignalCallback(stop_signal)
        parts = make_trainer(tmp_path / "parts", blocks, tokenizer, callbacks=[SignalAt(3, number), stop], **options)
        parts.train()
    assert stop.stopped
    assert parts.state.global_step == 4  # the step in which the signal came was the fourth
    assert "this step is finished and saved first" in caplog.text
    resumed = make_trainer(tmp_path / "parts", blocks, tokenizer, **options)
    resumed.train(resume_from_checkpoint=True)
    assert torch.equal(losses(whole), losses(resumed))
    assert_equal_weights(whole.model, resumed.model)


def test_handlers_are_put_back_and_signals_forgotten_whatever_happens():
    before = signal.getsignal(signal.SIGINT)
    stop = StopSignal()

    def fail():
        with stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.should_stop(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert signal.getsignal(signal.SIGINT) is before
    with stop:
        assert not stop.should_stop(1)


def test_a_signal_at_the_last_step_stops_nothing(tmp_path, blocks, tokenizer):
    with StopSignal() as stop_signal:
        stop = StopSignalCallback(stop_signal)
        trainer = make_trainer(tmp_path, blocks, tokenizer, callbacks=[SignalAt(5, signal.SIGINT), stop])
        trainer.train()
    assert not stop.stopped
    assert trainer.state.global_step == 6


def test_an_interrupted_run_keeps_its_last_checkpoint_beside_the_best(tmp_path, blocks, tokenizer):
    options = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "save_total_limit": 1}
    options |= {"eval_steps": 2, "save_steps": 2, "max_steps": 9, "learning_rate": 3e-2, "greater_is_better": True}
    with StopSignal() as stop_signal:
        callbacks = [SignalAt(6, signal.SIGINT), StopSignalCallback(stop_signal)]
        trainer = make_trainer(tmp_path, blocks, tokenizer, callbacks=callbacks, **options)
        trainer.train()
    assert trainer.state.global_step == 7
    assert latest_checkpoint(tmp_path).name == "checkpoint-7"
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
        os.kill(os.getpid(), signal.SIGINT)  # a launcher passes on what the terminal sent already
        now = 5.0
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("script", [pretrain, pretrain_no_trainer])
def test_an_interrupted_script_says_what_to_type_and_that_works(tmp_path, corpus, script, monkeypatch, capsys):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    tiny_config().save_pretrained(tmp_path)
    values = {"train_files": corpus, "tokenizer": tmp_path / "vocab.txt", "model_config": tmp_path}
    values |= {"row_length": 32, "per_device_train_batch_size": 4, "max_steps": 400, "warmup_steps": 1}
    values |= {"logging_steps": 1, "eval_steps": 1000, "save_steps": 1000, "output_dir": tmp_path / "run"}
    flags = [part for name, value in values.items() for part in (f"--{name}", str(value))]
    flags += ["--use_cpu", "--disable_tqdm", "True", "--overwrite_output_dir"]
    monkeypatch.setattr(sys, "argv", ["pretrain.py"])

    def interrupt():
        while " step 3/" not in f" {capsys.readouterr().out}":
            if done.wait(0.01):
                return
        os.kill(os.getpid(), signal.SIGINT)

    done = threading.Event()
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        assert script.main(flags) == INTERRUPTED
    finally:
        done.set()
        thread.join()
    said = capsys.readouterr().out
    assert "everything up to it is saved" in said
    command = said.rpartition("pretrain.py ")[2].split()
    assert command[-2:] == ["--resume_from_checkpoint", "latest"]
    assert "--overwrite_output_dir" not in command
    step = read_state(latest_checkpoint(tmp_path / "run")).global_step
    assert 3 <= step < 400
    command[command.index("--max_steps") + 1] = str(step + 2)
    assert script.main(command) == 0
    assert (tmp_path / "run" / "run_record.json").exists()
