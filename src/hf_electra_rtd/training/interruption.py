"""Ctrl-C and the like: the step is finished and saved, instead of lost."""

from __future__ import annotations

import logging
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

# Processes ask each other whether to stop only so often, since asking waits for the device.
STEPS_BETWEEN_AGREEMENTS = 10
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

    def __enter__(self) -> StopSignal:
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
        """Whether the run stops after `step`: the same answer in every process of the run."""
        state = PartialState()
        if state.num_processes == 1:
            return self._noted_at is not None
        if step % STEPS_BETWEEN_AGREEMENTS:
            return False
        wishes = torch.tensor(float(self._noted_at is not None), device=state.device)
        return bool(reduce(wishes, reduction="sum") > 0)


class StopSignalCallback(TrainerCallback):
    """Ends a Trainer's run at a [`StopSignal`], with a log and a checkpoint.

    Attributes:
        stopped: whether the run ended for a signal.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._signal = StopSignal()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._signal.__enter__()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step < state.max_steps and self._signal.should_stop(state.global_step):
            self.stopped = control.should_training_stop = control.should_save = control.should_log = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._signal.__exit__()
