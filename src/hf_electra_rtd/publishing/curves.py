"""The picture of a run: a function of its record."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_electra_rtd.publishing.style import ACCENT, COLUMNS, MAIN, PALE, style_panel
from hf_electra_rtd.records import PretrainingRecord


CURVES_FILE = "training_curves.png"


@dataclass(frozen=True)
class _Panel:
    """What a panel shows: curves by their keys, each with its label held out."""

    title: str
    unit: str
    keys: dict[str, str]
    limits: tuple[float, float] | None = None
    chance: float | None = None
    training: bool = True


def _one(title: str, unit: str, key: str, **options: Any) -> _Panel:
    return _Panel(title, unit, {key: "held out"}, **options)


# Those are drawn whose curves the run has.
_PANELS = (
    _one("Generator: loss at masked tokens", "nats a token", "generator_loss"),
    _one("Generator: accuracy at masked tokens", "%", "generator_accuracy"),
    _one("Main tower: loss", "nats a token", "discriminator_loss"),
    _one("Discriminator: area under the ROC curve", "", "discriminator_auc", limits=(0.4, 1.0), chance=0.5),
    _Panel(
        "Discriminator: replaced tokens, held out",
        "%",
        {"discriminator_precision": "precision", "discriminator_recall": "recall"},
        limits=(0, 100),
        training=False,
    ),
    _one("Main tower: accuracy at masked tokens", "%", "discriminator_masked_accuracy"),
    _Panel(
        "Main tower: accuracy, held out",
        "%",
        {"discriminator_token_accuracy": "all tokens", "discriminator_replaced_accuracy": "replaced tokens"},
        training=False,
    ),
    _Panel(
        "Main tower: probability of a copy, held out",
        "%",
        {"copy_probability_original": "originals", "copy_probability_replaced": "replaced tokens"},
        limits=(0, 100),
        training=False,
    ),
)


def plot_curves(record: PretrainingRecord, directory: str | os.PathLike[str]) -> Path:
    """Draws `training_curves.png`: what was measured in training and on held-out rows, and the learning rate."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    curves = record.curves
    panels = [panel for panel in _PANELS if _measured(curves, panel)]
    rows = max(1, math.ceil((len(panels) + 1) / COLUMNS))
    figure = Figure(figsize=(12, 3.3 * rows), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for axis, panel in zip(axes, panels, strict=False):
        _draw(axis, curves, panel)
    _draw_rate_and_speed(axes[len(panels)], curves)
    for axis in axes[len(panels) + 1 :]:
        axis.set_axis_off()
    for axis in axes[-COLUMNS:]:
        axis.set_xlabel("step", fontsize=9)
    figure.suptitle(_title(record), fontsize=11)
    path = Path(directory) / CURVES_FILE
    figure.savefig(path, metadata={"Software": None})
    return path


def _draw_rate_and_speed(axis: Any, curves: list[dict[str, Any]]) -> None:
    style_panel(axis, "Learning rate and speed", "")
    steps, values = _series(curves, "learning_rate")
    axis.plot(steps, values, color=MAIN, label="learning rate")
    axis.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    speed = axis.twinx()
    steps, values = _series(curves, "tokens_per_second")
    speed.plot(steps, [value / 1000 for value in values], color=PALE, label="thousand tokens a second")
    speed.set_ylim(bottom=0)
    speed.tick_params(labelsize=8)
    speed.spines[["top", "left"]].set_visible(False)
    lines = [*axis.get_lines(), *speed.get_lines()]
    axis.legend(lines, [line.get_label() for line in lines], frameon=False, fontsize=8, loc="lower left")


def _title(record: PretrainingRecord) -> str:
    machine = ", ".join(record.hardware["accelerators"]) or f"{record.hardware['cpu_cores']} CPU core(s)"
    auc = record.metrics.get("eval_discriminator_auc")
    reached = "" if auc is None else f", held-out AUC {auc:.3f}"
    sizes = {"main tower": record.parameters["discriminator"], "generator": record.parameters["generator"]}
    towers = ", ".join(f"{size / 1e6:.1f} M {name}" for name, size in sizes.items() if size)
    return (
        f"Pre-training, objective {record.model['objective']}: {towers}\n{record.tokens / 1e6:,.1f} M tokens in "
        f"{record.steps:,} steps, {record.train_seconds / 60:,.1f} minutes on {machine}{reached}"
    )


def _series(curves: list[dict[str, Any]], key: str) -> tuple[list[int], list[float]]:
    points = [(entry["step"], entry[key]) for entry in curves if entry.get(key) is not None]
    return [step for step, _ in points], [value for _, value in points]


def _measured(curves: list[dict[str, Any]], panel: _Panel) -> bool:
    return any(name in entry for entry in curves for key in panel.keys for name in (key, f"eval_{key}"))


def _draw(axis: Any, curves: list[dict[str, Any]], panel: _Panel) -> None:
    style_panel(axis, panel.title, panel.unit)
    scale = 100 if panel.unit == "%" else 1
    for (key, name), colour in zip(panel.keys.items(), (MAIN, ACCENT), strict=False):
        if panel.training:
            steps, values = _series(curves, key)
            axis.plot(steps, [value * scale for value in values], color=PALE, linewidth=1.2, label="training")
        steps, values = _series(curves, f"eval_{key}")
        axis.plot(steps, [value * scale for value in values], color=colour, marker="o", markersize=3.5, label=name)
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
    if panel.limits is not None:
        axis.set_ylim(*panel.limits)
    if panel.chance is not None:
        axis.axhline(panel.chance, color=ACCENT, linewidth=0.8, linestyle="--")
        place = (0.01, panel.chance + 0.005)
        axis.annotate("chance", place, xycoords=("axes fraction", "data"), fontsize=8, color=ACCENT)
    axis.legend(frameon=False, fontsize=8)
