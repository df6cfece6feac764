"""Ctrl-C and SIGTERM during training: the current step is finished and saved first, and the signal kills no worker."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from functools import partial
from types import FrameType
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import reduce
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from hf_electra_rtd.base.cli import INTERRUPTED


logger = logging.getLogger(__name__)

SECONDS_BETWEEN_AGREEMENTS = 2.0  # about stopping; each one waits for the device, and launchers kill after 30 seconds
SECONDS_TO_PRESS_AGAIN = 2.0  # before that, it may be the first Ctrl-C, repeated by the launcher


class StopSignal(TrainerCallback):
    """Ends a Trainer's loop at SIGINT (Ctrl-C) or SIGTERM (which clusters send before they kill), with a log and a
    checkpoint. It is a callback, and a context manager around the training. `stopped` says whether a signal ended the
    loop, and `status` is the exit status in that case. A second Ctrl-C ends the loop at once, without a new
    checkpoint. Outside the loop, signals are handled as before."""

    def __init__(self) -> None:
        self.stopped = False
        self.status = INTERRUPTED
        self._noted_at = math.inf  # when the first signal came
        self._before: dict[int, Any] = {}  # the earlier handlers, while the loop runs

    def __enter__(self) -> StopSignal:
        return self

    def __exit__(self, *exception: object) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._noted_at == math.inf:
            self._noted_at = now
            self.status = 128 + number
            if PartialState().is_main_process:
                logger.warning("Stopping: this step is finished and saved first. Ctrl-C again stops without saving.")
        elif number == signal.SIGINT and now - self._noted_at >= SECONDS_TO_PRESS_AGAIN:
            raise KeyboardInterrupt

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._agreed_at = (state.global_step, time.monotonic())  # step and time of the last agreement
        self._next_agreement = state.global_step + 1
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.__exit__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step < state.max_steps and self._should_stop(state.global_step):
            self.stopped = control.should_training_stop = control.should_save = True
            control.should_evaluate = False  # an evaluation would delay the checkpoint; the record has none here

    def _should_stop(self, step: int) -> bool:
        """Returns whether the run stops after this step. The answer is the same in every process."""
        processes = PartialState()
        if processes.num_processes == 1:
            return self._noted_at < math.inf
        if step < self._next_agreement:
            return False
        # All processes get the same means, so that they agree again at the same step.
        last_step, last_time = self._agreed_at
        now = time.monotonic()
        self._agreed_at = (step, now)
        mine = [float(self._noted_at < math.inf), (now - last_time) / (step - last_step)]
        wishes, pace = reduce(torch.tensor(mine, device=processes.device), reduction="mean").tolist()
        self._next_agreement = step + max(1, int(SECONDS_BETWEEN_AGREEMENTS / max(pace, 0.01)))
        return bool(wishes)


def protect_workers(loader: DataLoader) -> DataLoader:
    # `accelerate` wraps the loader that makes the workers; to skip batches, it copies the attributes of the wrapper.
    for part in (loader, getattr(loader, "base_dataloader", loader)):
        part.worker_init_fn = partial(_protect_worker, part.worker_init_fn)
    return loader


def _protect_worker(then: Any, worker: int) -> None:
    """Protects a worker of a data loader, as its `worker_init_fn`, from Ctrl-C in a terminal, and from the SIGTERM
    that a cluster sends to every process: a worker that dies would end the run. `then` is a `worker_init_fn` to call
    afterwards, or None."""
    if hasattr(os, "setpgid"):  # not on Windows
        os.setpgid(0, 0)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=_end_with_parent, daemon=True).start()
    if then is not None:
        then(worker)


def _end_with_parent() -> None:
    """Ends a worker at a SIGTERM from its parent, which is how torch and Python end workers."""
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != os.getppid():
        pass
    os._exit(0)
