"""What a training run counts: on the device, read only when it is logged."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers.trainer_callback import TrainerState

from hf_electra_rtd.measures import Measure, Tokens, observe, report_totals, sum_rows
from hf_electra_rtd.modeling_electra_rtd import ElectraRTDOutput


class TrainingMeters:
    """Sums over batches, one small tensor on the model's device.

    Args:
        measures: of the model (`model.measures`).
    """

    def __init__(self, measures: Sequence[Measure]) -> None:
        self._measures = (*measures, Tokens())
        self._sums: Tensor | None = None

    @torch.no_grad()
    def update(self, output: ElectraRTDOutput, inputs: dict[str, Tensor]) -> None:
        """Adds a batch, without waiting for the device. `inputs` is what the model was called with."""
        sums = sum_rows(self._measures, observe(output, inputs)).sum(dim=0)
        self._sums = sums if self._sums is None else self._sums + sums

    def drain(self, reduce: Callable[[Tensor], Tensor] = lambda sums: sums) -> dict[str, float]:
        """What was measured since the last call, and `tokens`; waits for the device once. Empty if nothing was.

        Args:
            reduce: sums a tensor over the processes of the run.
        """
        if self._sums is None:
            return {}
        totals = reduce(self._sums).tolist()
        self._sums = None
        return report_totals(self._measures, totals)


def seconds_trained(state: TrainerState | None) -> float:
    """What the sessions of a run took, as far as its log tells; 0 for a run that begins."""
    log = [] if state is None else state.log_history
    return max((entry.get("train_seconds", 0.0) for entry in log), default=0.0)


class Stopwatch:
    """Seconds that a run spent on training: evaluation and saving pause it.

    Args:
        seconds_before: of the sessions before, for a run that is resumed.
        now: a monotonic clock in seconds.
    """

    def __init__(self, seconds_before: float = 0.0, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._started: float | None = None
        self._passed = self._lap_began = seconds_before

    def start(self) -> None:
        self._started = self._now()

    def stop(self) -> None:
        self._passed, self._started = self.seconds, None

    @property
    def seconds(self) -> float:
        """Seconds since `start`, without pauses, with those of the sessions before."""
        return self._passed + (0.0 if self._started is None else self._now() - self._started)

    def lap(self) -> float:
        """Seconds since the last lap, without pauses."""
        began, self._lap_began = self._lap_began, self.seconds
        return self._lap_began - began

    @contextmanager
    def paused(self) -> Iterator[None]:
        running = self._started is not None
        self.stop()
        try:
            yield
        finally:
            if running:
                self.start()
