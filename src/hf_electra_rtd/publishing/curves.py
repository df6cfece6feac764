"""The picture of a run: a function of its record."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hf_electra_rtd.records import PretrainingRecord


CURVES_FILE = "training_curves.png"
_TRAINING, _HELD_OUT, _ACCENT = "#9aa5b1", "#1f5fa8", "#c8553d"


def plot_curves(record: PretrainingRecord, directory: str | os.PathLike[str]) -> Path:
    """Draws `training_curves.png`: losses and accuracies of both towers, in training and held out, and the learning
    rate."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 6.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3)
    curves = record.curves

    _panel(axes[0, 0], curves, "Generator: loss at masked tokens", "nats a token", ["generator_loss"])
    _panel(axes[0, 1], curves, "Generator: accuracy at masked tokens", "%", ["generator_accuracy"], scale=100)
    _panel(axes[0, 2], curves, "Discriminator: loss", "nats a token", ["discriminator_loss"])
    _panel(axes[1, 0], curves, "Discriminator: area under the ROC curve", "", ["discriminator_auc"])
    axes[1, 0].set_ylim(0.4, 1.0)
    axes[1, 0].axhline(0.5, color=_ACCENT, linewidth=0.8, linestyle="--")
    axes[1, 0].annotate("chance", (0.01, 0.505), xycoords=("axes fraction", "data"), fontsize=8, color=_ACCENT)
    _panel(
        axes[1, 1],
        curves,
        "Discriminator: replaced tokens, held out",
        "%",
        ["discriminator_precision", "discriminator_recall"],
        scale=100,
        training=False,
    )
    axes[1, 1].set_ylim(0, 100)
    rates = axes[1, 2]
    _style(rates, "Learning rate and speed", "")
    steps, values = _series(curves, "learning_rate")
    rates.plot(steps, values, color=_HELD_OUT, label="learning rate")
    rates.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    speed = rates.twinx()
    steps, values = _series(curves, "tokens_per_second")
    speed.plot(steps, [value / 1000 for value in values], color=_TRAINING, label="thousand tokens a second")
    speed.set_ylim(bottom=0)
    speed.tick_params(labelsize=8)
    speed.spines[["top", "left"]].set_visible(False)
    lines = [*rates.get_lines(), *speed.get_lines()]
    rates.legend(lines, [line.get_label() for line in lines], frameon=False, fontsize=8, loc="lower left")

    for axis in axes[1]:
        axis.set_xlabel("step", fontsize=9)
    figure.suptitle(_title(record), fontsize=11)
    path = Path(directory) / CURVES_FILE
    figure.savefig(path, metadata={"Software": None})
    return path


def _title(record: PretrainingRecord) -> str:
    machine = ", ".join(record.hardware["accelerators"]) or f"{record.hardware['cpu_cores']} CPU cores"
    auc = record.metrics.get("eval_discriminator_auc")
    reached = "" if auc is None else f", held-out AUC {auc:.3f}"
    return (
        f"Replaced token detection: {record.parameters['discriminator'] / 1e6:.1f} M discriminator, "
        f"{record.parameters['generator'] / 1e6:.1f} M generator\n{record.tokens / 1e6:,.1f} M tokens in "
        f"{record.steps:,} steps, {record.train_seconds / 60:,.1f} minutes on {machine}{reached}"
    )


def _series(curves: list[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    points = [(entry["step"], entry[key]) for entry in curves if entry.get(key) is not None]
    return [step for step, _ in points], [value for _, value in points]


def _style(axis: Any, title: str, unit: str) -> None:
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_ylabel(unit, fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _panel(
    axis: Any,
    curves: list[dict[str, Any]],
    title: str,
    unit: str,
    keys: list[str],
    scale: float = 1.0,
    training: bool = True,
) -> None:
    _style(axis, title, unit)
    for key, colour in zip(keys, (_HELD_OUT, _ACCENT), strict=False):
        if training:
            steps, values = _series(curves, key)
            axis.plot(steps, [value * scale for value in values], color=_TRAINING, linewidth=1.2, label="training")
        steps, values = _series(curves, f"eval_{key}")
        label = "held out" if training else key.removeprefix("discriminator_")
        axis.plot(steps, [value * scale for value in values], color=colour, marker="o", markersize=3.5, label=label)
        if values:
            axis.annotate(
                f"{values[-1] * scale:.3g}",
                (steps[-1], values[-1] * scale),
                xytext=(0, 6),
                textcoords="offset points",
                ha="right",
                fontsize=8,
                color=colour,
            )
    axis.legend(frameon=False, fontsize=8)
