"""Pictures of runs, drawn from their records."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_electra_rtd.records import EvaluationRecord, PretrainingRecord


CURVES_FILE = "training_curves.png"
_PALE, _MAIN, _ACCENT = "#9aa5b1", "#1f5fa8", "#c8553d"
_COLUMNS = 3

# Panels: title, and the keys of the curves; a single one is also shown in training, several only held out.
_PANELS = (
    ("Generator: loss at masked tokens, nats", "generator_loss"),
    ("Generator: accuracy at masked tokens", "generator_accuracy"),
    ("Discriminator: loss per token, nats", "discriminator_loss"),
    ("Discriminator: area under the ROC curve", "discriminator_auc"),
    ("Discriminator: replaced tokens, held out", "discriminator_precision", "discriminator_recall"),
    ("Encoder: accuracy at masked tokens", "discriminator_masked_accuracy"),
    ("Encoder: accuracy, held out", "discriminator_token_accuracy", "discriminator_replaced_accuracy"),
    ("Encoder: probability of a copy, held out", "copy_probability_original", "copy_probability_replaced"),
)


def plot_curves(record: PretrainingRecord, path: str | os.PathLike[str]) -> Path:
    """Draws what was measured in training and on held-out sequences, the learning rate and the speed, as PNG."""
    logged = {key.removeprefix("eval_") for entry in record.curves for key in entry}
    panels = [panel for panel in _PANELS if logged.intersection(panel[1:])]
    figure, axes = _subplots(len(panels) + 1, (12.0, 3.3))
    for axis, (title, *keys) in zip(axes, panels, strict=False):
        _draw_panel(axis, record.curves, title, keys)
    _draw_rate_and_speed(axes[len(panels)], record.curves)
    for axis in axes[-_COLUMNS:]:
        axis.set_xlabel("step", fontsize=9)
    machine = ", ".join(record.hardware["accelerators"]) or f"{record.hardware['cpu_cores']} CPU core(s)"
    figure.suptitle(
        f"Pre-training, objective {record.model['objective']}, {record.parameters['total'] / 1e6:.1f} M parameters\n"
        f"{record.tokens / 1e6:,.1f} M tokens in {record.steps:,} steps, "
        f"{record.train_seconds / 60:,.1f} minutes on {machine}",
        fontsize=11,
    )
    figure.savefig(path, metadata={"Software": None})
    return Path(path)


def plot_along_pretraining(
    towers: Mapping[int, Sequence[EvaluationRecord]],
    random_weights: Sequence[EvaluationRecord],
    path: str | os.PathLike[str],
    tokens_per_step: float | None = None,
) -> Path:
    """Draws the main metric of fine-tuned checkpoints against the progress of pre-training, one panel a task, as PNG.

    Every run is a point and the medians are joined by a line. Runs from random weights are a horizontal line at their
    median in a band from worst to best. A task of one checkpoint only is left out, unless all tasks are.

    Args:
        towers: the fine-tuning runs of checkpoints, by step.
        tokens_per_step: real tokens in a step of pre-training; without it, the axis counts steps.

    Raises:
        ValueError: without a finite score, for a step below 1, or for different main metrics of one task.
    """
    if any(step < 1 for step in towers):
        raise ValueError(f"Steps of pre-training start at 1, but one is {min(towers)}. Correct --along.")
    runs = [(step, run) for step in sorted(towers) for run in towers[step]]
    tasks = list(dict.fromkeys(run.task for _, run in runs if run.score is not None))
    if not tasks:
        raise ValueError("No fine-tuning run has a finite score, so there is nothing to draw.")
    tasks = [task for task in tasks if len({step for step, run in runs if run.task == task}) > 1] or tasks
    from matplotlib.ticker import EngFormatter

    scale, form = (tokens_per_step, EngFormatter(places=1, sep="")) if tokens_per_step else (1.0, "{:,.0f}".format)
    figure, axes = _subplots(len(tasks), (max(6.0, 4.0 * min(_COLUMNS, len(tasks))), 3.4))
    for axis, task in zip(axes, tasks, strict=False):
        points = [(step * scale, run) for step, run in runs if run.task == task]
        _draw_task(axis, points, [run for run in random_weights if run.task == task])
        ticks = sorted(step * scale for step in towers)
        axis.set_xscale("log")
        axis.set_xticks(ticks, [form(tick) for tick in ticks])
        axis.set_xticks([], minor=True)
        axis.margins(x=0.12, y=0.14)
        axis.set_xlabel("pre-training steps" if tokens_per_step is None else "pre-training tokens", fontsize=9)
    figure.suptitle("Fine-tuned along pre-training: every run a point, the line through medians", fontsize=11)
    figure.savefig(path, metadata={"Software": None})
    return Path(path)


def _subplots(number: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure and at least `number` axes, those beyond it invisible; `size` is its width and the height of a row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, number)
    rows = math.ceil(number / columns)
    figure = Figure(figsize=(size[0], size[1] * rows), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[number:]:
        axis.set_axis_off()
    return figure, axes


def _style(axis: Any, title: str) -> None:
    axis.set_title(title, fontsize=10, loc="left")
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _series(curves: list[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    points = [(entry["step"], entry[key]) for entry in curves if entry.get(key) is not None]
    return [step for step, _ in points], [value for _, value in points]


def _label_last(axis: Any, steps: Sequence[float], values: Sequence[float], form: str, color: str) -> None:
    if values:
        place = {"xy": (steps[-1], values[-1]), "xytext": (0, 6), "textcoords": "offset points"}
        axis.annotate(f"{values[-1]:{form}}", **place, ha="right", fontsize=8, color=color)


def _draw_panel(axis: Any, curves: list[dict[str, Any]], title: str, keys: list[str]) -> None:
    _style(axis, title)
    for key, color in zip(keys, (_MAIN, _ACCENT), strict=False):
        if len(keys) == 1:
            axis.plot(*_series(curves, key), color=_PALE, linewidth=1.2, label="training")
        steps, values = _series(curves, f"eval_{key}")
        label = key.partition("_")[2].replace("_", " ") if len(keys) > 1 else "held out"
        axis.plot(steps, values, color=color, marker="o", markersize=3.5, label=label)
        _label_last(axis, steps, values, ".3g", color)
    if "discriminator_auc" in keys:
        axis.axhline(0.5, color=_ACCENT, linewidth=0.8, linestyle="--", label="chance")
    axis.legend(frameon=False, fontsize=8)


def _draw_rate_and_speed(axis: Any, curves: list[dict[str, Any]]) -> None:
    _style(axis, "Learning rate and speed")
    axis.plot(*_series(curves, "learning_rate"), color=_MAIN, label="learning rate")
    axis.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    speed = axis.twinx()
    speed.plot(*_series(curves, "tokens_per_second"), color=_PALE, label="tokens per second")
    speed.set_ylim(bottom=0)
    speed.tick_params(labelsize=8)
    speed.spines[["top", "left"]].set_visible(False)
    lines = [*axis.get_lines(), *speed.get_lines()]
    axis.legend(lines, [line.get_label() for line in lines], frameon=False, fontsize=8, loc="lower left")


def _draw_task(
    axis: Any, points: Sequence[tuple[float, EvaluationRecord]], random_weights: Sequence[EvaluationRecord]
) -> None:
    runs = [run for _, run in points] + list(random_weights)
    task, metrics = runs[0].task, sorted({run.main_metric for run in runs})
    if len(metrics) > 1:
        raise ValueError(f"{task}: runs have different main metrics, {' and '.join(metrics)}. Draw them separately.")
    missing = sum(run.score is None for run in runs)
    _style(axis, f"{task}: {metrics[0]} x 100" + (f" (runs without a score: {missing})" if missing else ""))
    if baseline := [100 * run.score for run in random_weights if run.score is not None]:
        median = statistics.median(baseline)
        axis.axhspan(min(baseline), max(baseline), color=_ACCENT, alpha=0.12, linewidth=0)
        axis.axhline(median, color=_ACCENT, linewidth=1, linestyle="--", label=f"random weights {median:.1f}")
    scores: dict[float, list[float]] = {}
    for place, run in points:
        if run.score is not None:
            scores.setdefault(place, []).append(100 * run.score)
    medians = [statistics.median(of_place) for of_place in scores.values()]
    axis.plot(list(scores), medians, color=_MAIN, linewidth=1.5, label="pre-trained, median")
    for place, of_place in scores.items():
        axis.plot([place] * len(of_place), of_place, "o", color=_MAIN, alpha=0.55, markersize=4, markeredgewidth=0)
    _label_last(axis, list(scores), medians, ".1f", _MAIN)
    axis.legend(frameon=False, fontsize=8)
