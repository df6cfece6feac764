"""The picture of what pre-training is good for: scores of fine-tuned towers along it, a function of records."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_electra_rtd.publishing.style import ACCENT, COLUMNS, MAIN, style_panel
from hf_electra_rtd.records import EvaluationRecord, FractionRecord


ALONG_PRETRAINING_FILE = "along_pretraining.png"


def plot_along_pretraining(
    towers: Sequence[tuple[FractionRecord | int, Sequence[EvaluationRecord]]],
    random_weights: Sequence[EvaluationRecord],
    directory: str | os.PathLike[str],
    tokens_per_step: float | None = None,
) -> Path:
    """Draws `along_pretraining.png`: a panel a task, its main metric, on the first split that was judged, against the
    progress of pre-training on a logarithmic axis. Every run is a point, the median of a tower's runs lies on a line,
    and that of runs from random weights is a horizontal line over a band from their worst to their best. Where some
    tasks were tried on several towers, those tried on one are left out.

    Args:
        towers: for each tower, the fraction or the step at which it was exported, and its fine-tuning runs.
        random_weights: runs of the same architecture from random weights; empty draws no such line.
        directory: that the picture is written to.
        tokens_per_step: real tokens in a step of pre-training; given, the axis counts tokens, else steps.

    Returns:
        The path of the picture.

    Raises:
        ValueError: for no run with a finite score, a step below 1, or runs of a task with different main metrics.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    steps = [tower.step if isinstance(tower, FractionRecord) else tower for tower, _ in towers]
    if any(step < 1 for step in steps):
        raise ValueError(f"Towers must be from step 1 or later, but one is from step {min(steps)}.")
    runs = [(step, run) for step, (_, records) in zip(steps, towers, strict=True) for run in records]
    tasks = list(dict.fromkeys(run.task for _, run in runs if run.score() is not None))
    if not tasks:
        raise ValueError("There is nothing to draw: no fine-tuning run has a finite score.")

    # A task of which one tower alone was tried shows nothing along a pre-training, unless that is all there is.
    followed = [task for task in tasks if len({step for step, run in runs if run.task == task}) > 1]
    tasks = followed or tasks

    columns = min(COLUMNS, len(tasks))
    rows = math.ceil(len(tasks) / columns)
    figure = Figure(figsize=(max(6.0, 4.0 * columns), 3.3 * rows + 0.4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    scale = 1.0 if tokens_per_step is None else tokens_per_step
    ticks = sorted({step * scale for step in steps})
    for axis, task in zip(axes, tasks, strict=False):
        points = [(step * scale, run) for step, run in runs if run.task == task]
        _draw(axis, points, [run for run in random_weights if run.task == task], ticks)
        axis.set_xlabel("pre-training steps" if tokens_per_step is None else "pre-training tokens", fontsize=9)
    for axis in axes[len(tasks) :]:
        axis.set_axis_off()
    figure.suptitle("Fine-tuned along pre-training: every run a point, the line through medians", fontsize=11)
    path = Path(directory) / ALONG_PRETRAINING_FILE
    figure.savefig(path, metadata={"Software": None})
    return path


def _draw(
    axis: Any,
    points: Sequence[tuple[float, EvaluationRecord]],
    random_weights: Sequence[EvaluationRecord],
    ticks: list[float],
) -> None:
    every = [run for _, run in points] + list(random_weights)
    task, metrics = every[0].task, {run.main_metric for run in every}
    if len(metrics) > 1:
        raise ValueError(f"{task}: runs differ in their main metric: {', '.join(sorted(metrics))}.")
    undefined = sum(run.score() is None for run in every)
    style_panel(axis, task + (f" (runs without a score: {undefined})" if undefined else ""), f"{metrics.pop()} x 100")

    baseline = _scores(random_weights)
    if baseline:
        median = statistics.median(baseline)
        axis.axhspan(min(baseline), max(baseline), color=ACCENT, alpha=0.12, linewidth=0)
        axis.axhline(median, color=ACCENT, linewidth=1, linestyle="--", label=f"random weights {median:.1f}")
    places = [place for place in ticks if _scores([run for where, run in points if where == place])]
    scored = [_scores([run for where, run in points if where == place]) for place in places]
    medians = [statistics.median(scores) for scores in scored]
    axis.plot(places, medians, color=MAIN, linewidth=1.5, label="pre-trained, median")
    for place, scores in zip(places, scored, strict=True):
        axis.plot([place] * len(scores), scores, "o", color=MAIN, alpha=0.55, markersize=4, markeredgewidth=0)
    axis.annotate(
        f"{medians[-1]:.1f}",
        (places[-1], medians[-1]),
        xytext=(7, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=MAIN,
    )
    axis.set_xscale("log")
    axis.set_xticks(ticks, [_short(tick) for tick in ticks])
    axis.set_xticks([], minor=True)
    axis.margins(x=0.12, y=0.14)
    axis.legend(frameon=False, fontsize=8)


def _scores(runs: Sequence[EvaluationRecord]) -> list[float]:
    return [100 * score for run in runs if (score := run.score()) is not None]


def _short(count: float) -> str:
    """A count in three figures: 62500 is 62.5k."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return f"{count:.3g}"
