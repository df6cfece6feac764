"""Pictures of runs, drawn from their records."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hf_electra_rtd.records import EvaluationRecord, PretrainingRecord


CURVES_FILE = "training_curves.png"
_PALE, _MAIN, _ACCENT = "#9aa5b1", "#1f5fa8", "#c8553d"
_COLUMNS = 3
_STYLE: Any = {
    **{"font.size": 8, "axes.titlelocation": "left", "legend.frameon": False, "axes.axisbelow": True},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y"},
    "grid.color": "#e4e7eb",
}

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


def plot_curves(record: PretrainingRecord, path: str | os.PathLike[str]) -> None:
    """Draws what was measured in training and on held-out sequences, the learning rate and the speed, as PNG."""
    logged = {key.removeprefix("eval_") for entry in record.curves for key in entry}
    panels = [panel for panel in _PANELS if logged.intersection(panel[1:])]
    machine = ", ".join(record.hardware["accelerators"]) or f"{record.hardware['cpu_cores']} CPU core(s)"
    title = (
        f"Pre-training, objective {record.model['objective']}, {record.parameters['total'] / 1e6:.1f} M parameters\n"
        f"{record.tokens / 1e6:,.1f} M tokens in {record.steps:,} steps, "
        f"{record.train_seconds / 60:,.1f} minutes on {machine}"
    )
    with _picture(path, title, len(panels) + 1) as axes:
        for axis, (name, *keys) in zip(axes, panels, strict=False):
            _draw_panel(axis, record.curves, name, keys)
        _draw_rate_and_speed(axes[len(panels)], record.curves)
        for axis in axes[-_COLUMNS:]:
            axis.set_xlabel("step")


def plot_along_pretraining(
    towers: Mapping[int, Sequence[EvaluationRecord]],
    random_weights: Sequence[EvaluationRecord],
    path: str | os.PathLike[str],
    tokens_per_step: float | None = None,
) -> None:
    """Draws the main metric of fine-tuned checkpoints, given by their steps of pre-training, one panel a task, as PNG.

    Every run is a point, and a line joins the medians. Runs from random weights are a line at their median in a band
    from worst to best. A task of one checkpoint only is left out, unless all tasks are. The axis counts steps, or
    tokens where `tokens_per_step` is given.
    """
    from matplotlib.ticker import EngFormatter

    scale, form = (tokens_per_step, EngFormatter(places=1, sep="")) if tokens_per_step else (1.0, "{:,.0f}".format)
    panels: dict[str, dict[float, list[float]]] = {}  # finite scores by task and place on the axis
    for step in sorted(towers):
        for title, scores in _scores(towers[step]).items():
            panels.setdefault(title, {})[step * scale] = scores
    panels = {title: places for title, places in panels.items() if len(places) > 1} or panels
    if not panels:
        raise ValueError("No fine-tuning run has a finite score, so there is nothing to draw.")
    baselines = _scores(random_weights)
    heading = "Fine-tuned along pre-training: every run a point, the line through medians"
    with _picture(path, heading, len(panels)) as axes:
        for axis, (title, places) in zip(axes, panels.items(), strict=False):
            axis.set_title(title)
            if title in baselines:
                low, median, high = (function(baselines[title]) for function in (min, statistics.median, max))
                axis.axhspan(low, high, color=_ACCENT, alpha=0.12, linewidth=0)
                axis.axhline(median, color=_ACCENT, linewidth=1, linestyle="--", label=f"random weights {median:.1f}")
            for place, scores in places.items():
                axis.plot([place] * len(scores), scores, "o", color=_MAIN, alpha=0.55, markersize=4)
            medians = [statistics.median(scores) for scores in places.values()]
            axis.plot(list(places), medians, color=_MAIN, linewidth=1.5, label="pre-trained, median")
            _label_last(axis, list(places), medians, ".1f")
            axis.set_xscale("log")
            axis.set_xticks(list(places), [form(place) for place in places])
            axis.set_xticks([], minor=True)
            axis.margins(x=0.12, y=0.14)
            axis.set_xlabel("pre-training tokens" if tokens_per_step else "pre-training steps")
            axis.legend()


def _scores(runs: Sequence[EvaluationRecord]) -> dict[str, list[float]]:
    """The finite scores x 100 by task and metric."""
    scores: dict[str, list[float]] = {}
    for run in runs:
        if run.score is not None:
            scores.setdefault(f"{run.task}: {run.main_metric} x 100", []).append(100 * run.score)
    return scores


@contextmanager
def _picture(path: str | os.PathLike[str], title: str, panels: int) -> Iterator[list[Any]]:
    """At least so many axes to draw on, those beyond it invisible. They are saved at the end."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, panels)
    rows = math.ceil(panels / columns)
    with rc_context(_STYLE):
        figure = Figure(figsize=(max(6, 4 * columns), 3.4 * rows), dpi=110, layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
        for axis in axes[panels:]:
            axis.set_axis_off()
        yield axes
        figure.suptitle(title)
        figure.savefig(path, metadata={"Software": None})


def _draw_panel(axis: Any, curves: list[dict[str, Any]], title: str, keys: list[str]) -> None:
    axis.set_title(title)
    for key, color in zip(keys, (_MAIN, _ACCENT), strict=False):
        if len(keys) == 1:
            axis.plot(*_series(curves, key), color=_PALE, linewidth=1.2, label="training")
        steps, values = _series(curves, f"eval_{key}")
        label = key.partition("_")[2].replace("_", " ") if len(keys) > 1 else "held out"
        axis.plot(steps, values, color=color, marker="o", markersize=3.5, label=label)
        _label_last(axis, steps, values, ".3g")
    if "discriminator_auc" in keys:
        axis.axhline(0.5, color=_ACCENT, linewidth=0.8, linestyle="--", label="chance")
    axis.legend()


def _draw_rate_and_speed(axis: Any, curves: list[dict[str, Any]]) -> None:
    axis.set_title("Learning rate and speed")
    (rate,) = axis.plot(*_series(curves, "learning_rate"), color=_MAIN, label="learning rate")
    axis.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    right = axis.twinx()
    (speed,) = right.plot(*_series(curves, "tokens_per_second"), color=_PALE, label="tokens per second")
    right.set_ylim(bottom=0)
    right.grid(visible=False)
    right.spines["right"].set_visible(True)
    axis.legend(handles=[rate, speed], loc="lower left")


def _series(curves: list[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    points = {entry["step"]: entry[key] for entry in curves if entry.get(key) is not None}
    return list(points), list(points.values())


def _label_last(axis: Any, steps: Sequence[float], values: Sequence[float], form: str) -> None:
    if values:
        place = {"xy": (steps[-1], values[-1]), "xytext": (0, 6), "textcoords": "offset points", "ha": "right"}
        axis.annotate(f"{values[-1]:{form}}", **place)
