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


class RemainingTime:
    """Estimates the time that is left, from the steps of this session.

    Args:
        state: of the loop as it begins.
    """

    def __init__(self, state: TrainerState) -> None:
        self._began, self._first_step = time.monotonic(), state.global_step

    def seconds(self, state: TrainerState) -> float | None:
        """Seconds left; None before the first step."""
        steps = state.global_step - self._first_step
        return (time.monotonic() - self._began) / steps * (state.max_steps - state.global_step) if steps else None


class RTDProgressCallback(ProgressCallback):
    """The Trainer's bar, with lines to read in place of dictionaries."""

    _remaining: RemainingTime | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self._remaining = RemainingTime(state)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        line = format_log(logs or {}, state, None if self._remaining is None else self._remaining.seconds(state))
        if state.is_world_process_zero and line is not None:
            tqdm.write(line)


class RTDPrinterCallback(PrinterCallback):
    """The same lines where bars are switched off."""

    _remaining: RemainingTime | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._remaining = RemainingTime(state)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        line = format_log(logs or {}, state, None if self._remaining is None else self._remaining.seconds(state))
        if state.is_world_process_zero and line is not None:
            print(line, flush=True)
