"""What a person sees while a run goes on: a bar, and a line a log."""

from __future__ import annotations

import time
from typing import Any

from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, TrainerControl, TrainerState, TrainingArguments


def format_duration(seconds: float) -> str:
    """Hours, minutes and seconds: `2:05:09`, `5:09`."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_log(logs: dict[str, float], state: TrainerState, seconds_left: float | None) -> str | None:
    """A log as a line to read; None for logs that are not of training steps or evaluations."""
    place = f"step {state.global_step:,}/{state.max_steps:,} ({state.global_step / max(1, state.max_steps):.0%})"
    if "eval_discriminator_auc" in logs:
        return (
            f"{place}  HELD-OUT  generator loss {logs['eval_generator_loss']:.3f} "
            f"accuracy {logs['eval_generator_accuracy']:.1%}  "
            f"discriminator loss {logs['eval_discriminator_loss']:.4f} AUC {logs['eval_discriminator_auc']:.3f} "
            f"precision {logs['eval_discriminator_precision']:.1%} recall {logs['eval_discriminator_recall']:.1%} "
            f"accuracy {logs['eval_discriminator_accuracy']:.1%}"
        )
    if "generator_loss" in logs:
        left = "" if seconds_left is None else f"  {format_duration(seconds_left)} left"
        return (
            f"{place}  loss {logs['loss']:.3f}  generator {logs['generator_loss']:.3f} "
            f"({logs['generator_accuracy']:.1%}, sampled {logs['sampled_accuracy']:.1%})  "
            f"discriminator {logs['discriminator_loss']:.4f} (recall {logs['discriminator_recall']:.1%})  "
            f"replaced {logs['replaced_share']:.1%}  {logs['tokens_per_second']:,.0f} tokens/s  "
            f"lr {logs['learning_rate']:.2e}{left}"
        )
    return None


class _Clock:
    """Estimates the time that is left, from the steps of this session."""

    def __init__(self) -> None:
        self._start: tuple[float, int] | None = None

    def start(self, state: TrainerState) -> None:
        self._start = time.monotonic(), state.global_step

    def seconds_left(self, state: TrainerState) -> float | None:
        if self._start is None or state.global_step == self._start[1]:
            return None
        began, first = self._start
        return (time.monotonic() - began) / (state.global_step - first) * (state.max_steps - state.global_step)


class RTDProgressCallback(ProgressCallback):
    """The Trainer's bar, with lines to read in place of dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = _Clock()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self._clock.start(state)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        line = format_log(logs or {}, state, self._clock.seconds_left(state))
        if state.is_world_process_zero and line is not None:
            tqdm.write(line)


class RTDPrinterCallback(PrinterCallback):
    """The same lines where bars are switched off."""

    def __init__(self) -> None:
        self._clock = _Clock()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._clock.start(state)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        line = format_log(logs or {}, state, self._clock.seconds_left(state))
        if state.is_world_process_zero and line is not None:
            print(line, flush=True)
