"""Ctrl-C and SIGTERM: the step is finished and saved instead of lost."""

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
from transformers import TrainerCallback, TrainerControl, TrainerState


logger = logging.getLogger(__name__)

SECONDS_BETWEEN_AGREEMENTS = (
    2.0  # of processes; each waits for the device, and launchers kill 30 seconds after a signal
)
SECONDS_TO_INSIST = 2.0  # a launcher passes on the Ctrl-C that the terminal has sent already


class StopSignal:
    """Inside a `with`, notes SIGINT (Ctrl-C) and SIGTERM (which clusters send before they kill) for the loop to stop
    at. A second Ctrl-C, two seconds later or more, interrupts at once. `now` is a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._noted_at: float | None = None
        self._agreed_at: tuple[int, float] | None = None  # step and time
        self._next_agreement = 0

    def __enter__(self) -> StopSignal:
        self._noted_at, self._agreed_at, self._next_agreement = None, None, 0
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted_at is None:
            self._noted_at = self._now()
            if PartialState().is_main_process:
                logger.warning("Stopping: this step is finished and saved first. (Ctrl-C again stops at once.)")
        elif number == signal.SIGINT and self._now() - self._noted_at >= SECONDS_TO_INSIST:
            raise KeyboardInterrupt

    def should_stop(self, step: int) -> bool:
        """Whether the run stops after `step`: the same answer in every process. Call it after every step."""
        state = PartialState()
        if state.num_processes == 1:
            return self._noted_at is not None
        if step < self._next_agreement:
            return False
        # All processes add up the same numbers, and so agree again at the same step.
        now = self._now()
        last_step, last_time = self._agreed_at or (step - 1, now)
        mine = torch.tensor([float(self._noted_at is not None), now - last_time], device=state.device)
        wishes, seconds = reduce(mine, reduction="sum").tolist()
        seconds_per_step = seconds / state.num_processes / (step - last_step)
        self._next_agreement = step + max(1, int(SECONDS_BETWEEN_AGREEMENTS / max(seconds_per_step, 0.01)))
        if self._agreed_at is None:  # no step has been timed yet
            self._next_agreement = step + 1
        self._agreed_at = step, now
        return wishes > 0


class StopSignalCallback(TrainerCallback):
    """Ends a Trainer's run at a [`StopSignal`], with a log and a checkpoint.

    with StopSignal() as signal:
        RTDTrainer(..., callbacks=[StopSignalCallback(signal)]).train()
    """

    def __init__(self, signal: StopSignal) -> None:
        self.stopped = False  # whether a signal ended the run
        self._signal = signal

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step < state.max_steps and self._signal.should_stop(state.global_step):
            self.stopped = control.should_training_stop = control.should_save = control.should_log = True


class OwnProcessGroup:
    """A `worker_init_fn` of data loaders that keeps workers from signals to the process group, such as Ctrl-C in a
    terminal: a worker that dies of it would end the run. `then` is the `worker_init_fn` to call afterwards."""

    def __init__(self, then: Callable[[int], None] | None = None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        if hasattr(os, "setpgid"):  # not on Windows
            os.setpgid(0, 0)
        if self._then is not None:
            self._then(worker)
