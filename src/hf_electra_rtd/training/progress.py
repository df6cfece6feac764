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


# What is shown of each tower, in this order, where it was measured.
_SHOWN: dict[str, tuple[tuple[str, str], ...]] = {
    "generator": (("generator_loss", "loss {:.3f}"), ("generator_accuracy", "accuracy {:.1%}")),
    "discriminator": (
        ("discriminator_loss", "loss {:.4f}"),
        ("discriminator_auc", "AUC {:.3f}"),
        ("discriminator_precision", "precision {:.1%}"),
        ("discriminator_recall", "recall {:.1%}"),
        ("discriminator_accuracy", "accuracy {:.1%}"),
        ("discriminator_auc_all", "over all tokens AUC {:.3f}"),
        ("discriminator_accuracy_all", "accuracy {:.1%}"),
        ("discriminator_masked_accuracy", "accuracy at masked tokens {:.1%}"),
        ("discriminator_token_accuracy", "accuracy {:.1%}"),
        ("discriminator_replaced_accuracy", "at replaced tokens {:.1%}"),
        ("copy_probability_original", "copies originals {:.1%}"),
        ("copy_probability_replaced", "replaced {:.1%}"),
    ),
}
_BRIEF = (
    *("generator_loss", "generator_accuracy", "discriminator_loss", "discriminator_recall"),
    *("discriminator_masked_accuracy", "discriminator_token_accuracy"),
)


def describe_towers(metrics: dict[str, float], prefix: str = "") -> dict[str, str]:
    """What was measured of each tower, to read: `{"generator": "loss 6.012, accuracy 9.8%", ...}`.

    Args:
        metrics: a log, or the held-out metrics.
        prefix: of their names.
    """
    described = {}
    for tower, shown in _SHOWN.items():
        parts = [text.format(metrics[prefix + name]) for name, text in shown if prefix + name in metrics]
        if parts:
            predicts = tower == "discriminator" and f"{prefix}discriminator_recall" not in metrics
            described["main tower" if predicts else tower] = ", ".join(parts)
    return described


def format_log(logs: dict[str, float], state: TrainerState, seconds_left: float | None) -> str | None:
    """A log as a line to read; None for logs that are not of training steps or evaluations."""
    place = f"step {state.global_step:,}/{state.max_steps:,} ({state.global_step / max(1, state.max_steps):.0%})"
    if "eval_discriminator_loss" in logs:
        towers = "  ".join(f"{tower}: {text}" for tower, text in describe_towers(logs, "eval_").items())
        return f"{place}  HELD-OUT  {towers}"
    if "discriminator_loss" in logs:
        # Of each tower the loss, and how well it does in one number.
        brief = {name: logs[name] for name in _BRIEF if name in logs}
        towers = "  ".join(f"{tower}: {text}" for tower, text in describe_towers(brief).items())
        samples = ""
        if "sampled_accuracy" in logs:
            samples = f"  sampled {logs['sampled_accuracy']:.1%}, replaced {logs['replaced_share']:.1%}"
        left = "" if seconds_left is None else f"  {format_duration(seconds_left)} left"
        return (
            f"{place}  loss {logs['loss']:.3f}  {towers}{samples}  {logs['tokens_per_second']:,.0f} tokens/s  "
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
