"""Pictures of runs, drawn from their records."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any, NamedTuple

from hf_electra_rtd.base.accounting import format_duration
from hf_electra_rtd.base.records import EvaluationRecord, PretrainingRecord, describe_hardware
from hf_electra_rtd.publishing.tables import mean_and_interval


CURVES_FILE = "training_curves.png"
SCORES_FILE = "scores.png"
_PALE = "#9aa5b1"
_MAIN = "#1f5fa8"
_ACCENT = "#c8553d"
_COLUMNS = 3
_LEGEND = 60  # characters of the legend below each column
_TICKS = 6
_STYLE: Any = {
    "font.size": 8,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e4e7eb",
    "legend.frameon": False,
}

# Panels: title, and the keys of the curves. A single curve is also drawn for training where it is logged; several are
# drawn only for held-out text.
_PANELS = (
    ("Generator: loss at masked tokens, nats", "generator_loss"),
    ("Generator: accuracy at masked tokens", "generator_accuracy"),
    ("Discriminator: loss per token, nats", "discriminator_loss"),
    ("Discriminator: area under the ROC curve", "discriminator_auc"),
    ("Discriminator: replaced tokens, held out", "discriminator_precision", "discriminator_recall"),
    ("Encoder: accuracy at masked tokens", "discriminator_masked_accuracy"),
    ("Encoder: accuracy, held out", "discriminator_token_accuracy", "discriminator_replaced_accuracy"),
    ("Learning rate", "learning_rate"),
)


@contextmanager
def _panels(path: str | os.PathLike[str], number: int, below: float = 0.0) -> Iterator[tuple[Any, list[Any]]]:
    """Yields a figure and its `number` panels, with `below` inches for a legend; writes it as PNG at the end."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, number)
    rows = math.ceil(number / columns)
    with rc_context(_STYLE):
        figure = Figure(figsize=(max(6, 4 * columns), 3.4 * rows + below), dpi=110, layout="constrained")
        axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
        for axis in axes[number:]:
            axis.set_axis_off()
        yield figure, axes[:number]
        figure.savefig(path, format="png", metadata={"Software": None})


def plot_curves(record: PretrainingRecord, path: str | os.PathLike[str]) -> None:
    """Draws the metrics of training and of held-out sequences, and the learning rate, as PNG."""
    from matplotlib.ticker import MaxNLocator

    logged = {key.removeprefix("eval_") for entry in record.curves for key in entry}
    panels = [panel for panel in _PANELS if logged.intersection(panel[1:])]
    with _panels(path, max(1, len(panels))) as (figure, axes):
        figure.suptitle(_describe(record))
        for axis, (title, *keys) in zip(axes, panels, strict=False):
            _draw_panel(axis, record.curves, title, keys)
            axis.set_xlim(0, 1.02 * max(1, record.steps))
            axis.xaxis.set_major_locator(MaxNLocator(_TICKS, integer=True))
            axis.set_xlabel("step")


def plot_comparison(runs: Mapping[str, Sequence[PretrainingRecord]], path: str | os.PathLike[str]) -> None:
    """Draws the held-out metrics over the tokens of training, as PNG: for the runs of each name their mean, and from
    two runs on its 95 % interval. Raises ValueError if no run was evaluated."""
    from matplotlib.lines import Line2D

    measured = {key for records in runs.values() for record in records for entry in record.curves for key in entry}
    panels = [(title, f"eval_{key}") for title, key, *more in _PANELS if f"eval_{key}" in measured and not more]
    if not panels:
        raise ValueError("These runs were never evaluated, so there are no curves. Train with --eval_strategy steps.")
    with _panels(path, len(panels), below=0.2 * len(runs)) as (figure, axes):
        for axis, (title, key) in zip(axes, panels, strict=True):
            axis.set_title(title)
            axis.set_xlabel("million tokens")
            for number, records in enumerate(runs.values()):
                _draw_mean(axis, records, key, f"C{number}")
        names = [textwrap.fill(name, _LEGEND * min(_COLUMNS, len(panels))) for name in runs]
        handles = [Line2D([], [], color=f"C{number}", label=name) for number, name in enumerate(names)]
        figure.legend(handles=handles, loc="outside lower left")


def plot_scores(runs: Mapping[str, Iterable[EvaluationRecord]], path: str | os.PathLike[str]) -> None:
    """Draws the score of each task over the tokens that its model was pre-trained on, as PNG: for the runs of each
    name their mean and its 95 % interval. The interval is over pre-trainings if there are several, else over
    fine-tunings, and for a single fine-tuning over its examples. Raises ValueError if no record has the tokens of its
    model."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    scores: dict[str, dict[str, list[_Score]]] = {}  # by task with its metric, and by name
    for name, records in runs.items():
        for record in records:
            pretraining = record.model.get("pretraining")
            if pretraining and record.score is not None:
                of_task = scores.setdefault(f"{record.dataset['title']}: {record.main_metric}", {})
                interval = next(iter(record.reports.values()), {}).get("interval", (math.nan, math.nan))
                point = _Score(pretraining["tokens"], pretraining["started"], record.score, *interval)
                of_task.setdefault(name, []).append(point)
    if not scores:
        raise ValueError("These models are not in the directory of a pre-training run, so their tokens are not known.")
    with _panels(path, len(scores)) as (_, axes):
        for axis, (title, of_task) in zip(axes, scores.items(), strict=True):
            axis.set_title(title)
            axis.set_xscale("log")
            axis.set_xlabel("tokens of pre-training")
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_major_formatter(EngFormatter())
            axis.xaxis.set_minor_formatter(NullFormatter())
            for number, name in enumerate(runs):
                if name in of_task:
                    _draw_interval(axis, _over_tokens(of_task[name]), color=f"C{number}", label=name)
            low, high = axis.get_ylim()
            axis.set_ylim(max(low, -1), min(high, 1))  # with few seeds, intervals exceed the possible scores
            axis.legend()


class _Score(NamedTuple):
    """The score of one fine-tuning."""

    tokens: int
    pretraining: str  # its start time, which identifies the pre-training
    score: float
    low: float  # the interval over examples
    high: float


def _over_tokens(scores: Iterable[_Score]) -> dict[int, tuple[float, float, float]]:
    """Returns for each number of tokens the mean of the scores and the ends of its interval. Numbers within 1 % are
    one point: the last pass of a pre-training reads other sequences with another seed, so equal steps differ by some
    tokens."""
    points: dict[int, list[_Score]] = {}
    for score in sorted(scores):
        if not points or score.tokens > 1.01 * max(points):
            points[score.tokens] = []
        points[max(points)].append(score)
    return {tokens: _mean_and_ends(of_point) for tokens, of_point in points.items()}


def _mean_and_ends(scores: Sequence[_Score]) -> tuple[float, float, float]:
    if len(scores) == 1:
        return scores[0].score, scores[0].low, scores[0].high
    pretrainings: dict[str, list[float]] = {}
    for each in scores:
        pretrainings.setdefault(each.pretraining, []).append(each.score)
    means = [fmean(of_run) for of_run in pretrainings.values()]
    mean, half = mean_and_interval(means if len(means) > 1 else next(iter(pretrainings.values())))
    return mean, mean - half, mean + half


def _draw_interval(axis: Any, figures: Mapping[Any, tuple[float, float, float]], color: str, label: str = "") -> None:
    """Draws a curve of means, and the area between the ends of their intervals, except where these are NaN."""
    places = list(figures)
    lows = [low for _, low, _ in figures.values()]
    highs = [high for _, _, high in figures.values()]
    axis.plot(places, [mean for mean, _, _ in figures.values()], color=color, marker="o", markersize=3, label=label)
    axis.fill_between(places, lows, highs, color=color, alpha=0.2, linewidth=0)


def _draw_mean(axis: Any, records: Sequence[PretrainingRecord], key: str, color: str) -> None:
    """Draws the mean of the records' curves over the steps that all records have."""
    curves = [dict(zip(*_series(record.curves, key), strict=True)) for record in records]
    steps = sorted(set.intersection(*map(set, curves)))
    million = records[0].tokens / records[0].steps / 1e6
    figures = {}
    for step in steps:
        mean, half = mean_and_interval([curve[step] for curve in curves])
        figures[step * million] = (mean, mean - half, mean + half)
    _draw_interval(axis, figures, color)


def _describe(record: PretrainingRecord) -> str:
    """Returns objective, start, seed and size of a run, and what it cost."""
    machine = describe_hardware(record.hardware)
    facts = [f"Pre-training, objective {record.model['objective']}"]
    if "model" in record.arguments:  # missing if the trainer was used in Python
        facts.append(f"start: {record.arguments['model'].get('initialization') or 'trained networks'}")
    facts.append(f"seed {record.arguments['training']['seed']}")
    facts.append(f"{record.parameters['total'] / 1e6:.1f} M parameters")
    cost = f"{record.tokens:,} tokens in {record.steps:,} steps, {format_duration(record.train_seconds)}"
    speed = f"{record.tokens / max(record.train_seconds, 1e-9):,.0f} tokens/s"
    return f"{', '.join(facts)}\n{cost} on {machine} ({speed})"


def _draw_panel(axis: Any, curves: list[dict[str, Any]], title: str, keys: list[str]) -> None:
    """Draws one panel. The last value of each curve stands in the legend, where it hides nothing."""
    axis.set_title(title)
    for key, color in zip(keys, (_MAIN, _ACCENT), strict=False):
        in_training = _series(curves, key)
        if len(keys) == 1 and in_training[0]:
            axis.plot(*in_training, color=_PALE, linewidth=1.2, label="training")
        name = key.partition("_")[2].replace("_", " ") if len(keys) > 1 else "held out"
        _draw_curve(axis, curves, f"eval_{key}", name, color=color, marker="o")
    if "discriminator_auc" in keys:
        _draw_curve(axis, curves, "eval_bigram_auc", "counted bigram", color=_ACCENT, linewidth=1.2, marker="s")
        axis.axhline(0.5, color=_ACCENT, linewidth=0.8, linestyle="--", label="chance")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    if keys == ["learning_rate"]:
        axis.yaxis.set_major_formatter("{x:.1e}")
    if len(axis.lines) > 1:
        axis.legend()


def _draw_curve(axis: Any, curves: list[dict[str, Any]], key: str, name: str, **look: Any) -> None:
    steps, values = _series(curves, key)
    if values:
        axis.plot(steps, values, label=f"{name}: last {values[-1]:.3g}", markersize=3.5, **look)


def _series(curves: list[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    points = {entry["step"]: entry[key] for entry in curves if entry.get(key) is not None}
    return list(points), list(points.values())
