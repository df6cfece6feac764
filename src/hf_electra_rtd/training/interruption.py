"""Ctrl-C and the like: the step is finished and saved, instead of lost."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import reduce
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


logger = logging.getLogger(__name__)

# Processes ask each other whether to stop about so often: asking waits for the device, and a launcher that was told to
# stop kills its processes after 30 seconds.
SECONDS_BETWEEN_AGREEMENTS = 2.0
# A launcher passes on the Ctrl-C that the terminal sent already: only a later one is a second wish.
SECONDS_TO_INSIST = 2.0
# Exit status of a run that was stopped, as shells have it for Ctrl-C.
INTERRUPTED = 130


class StopSignal:
    """Notes SIGINT (Ctrl-C) and SIGTERM (which clusters send before they kill), for the loop to stop at.

    A second Ctrl-C, two seconds later or more, interrupts at once. As a context manager it installs its handlers, and
    puts back those before.

    Args:
        now: a monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._noted_at: float | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._agreed_at: tuple[int, float] | None = None
        self._next_agreement = 0

    def __enter__(self) -> StopSignal:
        self._noted_at = self._agreed_at = None
        self._next_agreement = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted_at is None:
            self._noted_at = self._now()
            if PartialState().is_main_process:
                logger.warning("Stopping: this step is finished and saved first. (Ctrl-C again stops at once.)")
        elif number == signal.SIGINT and self._now() - self._noted_at >= SECONDS_TO_INSIST:
            raise KeyboardInterrupt

    def should_stop(self, step: int) -> bool:
        """Whether the run stops after `step`: the same answer in every process of the run, to be asked after every
        step."""
        state = PartialState()
        if state.num_processes == 1:
            return self._noted_at is not None
        if step < self._next_agreement:
            return False
        # All processes add up the same numbers, and so ask each other again at the same step.
        now = self._now()
        last_step, last_time = self._agreed_at or (step - 1, now)
        mine = torch.tensor([float(self._noted_at is not None), now - last_time], device=state.device)
        wishes, seconds = reduce(mine, reduction="sum").tolist()
        seconds_per_step = seconds / state.num_processes / (step - last_step)
        self._next_agreement = step + max(1, int(SECONDS_BETWEEN_AGREEMENTS / max(seconds_per_step, 0.01)))
        if self._agreed_at is None:
            self._next_agreement = step + 1  # no step was timed yet
        self._agreed_at = step, now
        return wishes > 0


class StopSignalCallback(TrainerCallback):
    """Ends a Trainer's run at a [`StopSignal`], with a log and a checkpoint.

        with StopSignal() as signal:
            RTDTrainer(..., callbacks=[StopSignalCallback(signal)]).train()

    Args:
        signal: to stop at.

    Attributes:
        stopped: whether the run ended for it.
    """

    def __init__(self, signal: StopSignal) -> None:
        self.stopped = False
        self._signal = signal

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step < state.max_steps and self._signal.should_stop(state.global_step):
            self.stopped = control.should_training_stop = control.should_save = control.should_log = True


class OwnProcessGroup:
    """A `worker_init_fn` for data loaders: a signal to the whole process group, such as Ctrl-C in a terminal, is for
    the loop to heed; workers that died of it would take the run with them.

    Args:
        then: the `worker_init_fn` to call afterwards, or None.
    """

    def __init__(self, then: Callable[[int], None] | None = None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        if hasattr(os, "setpgid"):  # not on Windows
            os.setpgid(0, 0)
        if self._then is not None:
            self._then(worker)
