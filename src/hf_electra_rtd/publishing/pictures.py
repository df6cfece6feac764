"""Pictures of runs, drawn from their records."""

from __future__ import annotations

import math
import os
from typing import Any

from hf_electra_rtd.records import PretrainingRecord


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
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    logged = {key.removeprefix("eval_") for entry in record.curves for key in entry}
    panels = [panel for panel in _PANELS if logged.intersection(panel[1:])]
    machine = ", ".join(record.hardware["accelerators"]) or f"{record.hardware['cpu_cores']} CPU core(s)"
    columns = min(_COLUMNS, len(panels) + 1)
    rows = math.ceil((len(panels) + 1) / columns)
    with rc_context(_STYLE):
        figure = Figure(figsize=(max(6, 4 * columns), 3.4 * rows), dpi=110, layout="constrained")
        size = f"{record.parameters['total'] / 1e6:.1f} M parameters\n{record.tokens / 1e6:,.1f} M tokens"
        time = f"{record.steps:,} steps, {record.train_seconds / 60:,.1f} minutes on {machine}"
        figure.suptitle(f"Pre-training, objective {record.model['objective']}, {size} in {time}")
        axes = list(figure.subplots(rows, columns, squeeze=False).ravel())
        for axis, (title, *keys) in zip(axes, panels, strict=False):
            _draw_panel(axis, record.curves, title, keys)
        _draw_rate_and_speed(axes[len(panels)], record.curves)
        for axis in axes[len(panels) + 1 :]:
            axis.set_axis_off()
        for axis in axes[-_COLUMNS:]:
            axis.set_xlabel("step")
        figure.savefig(path, metadata={"Software": None})


def _draw_panel(axis: Any, curves: list[dict[str, Any]], title: str, keys: list[str]) -> None:
    axis.set_title(title)
    for key, color in zip(keys, (_MAIN, _ACCENT), strict=False):
        if len(keys) == 1:
            axis.plot(*_series(curves, key), color=_PALE, linewidth=1.2, label="training")
        steps, values = _series(curves, f"eval_{key}")
        label = key.partition("_")[2].replace("_", " ") if len(keys) > 1 else "held out"
        axis.plot(steps, values, color=color, marker="o", markersize=3.5, label=label)
        if values:
            place = {"xytext": (0, 6), "textcoords": "offset points", "ha": "right"}
            axis.annotate(f"{values[-1]:.3g}", (steps[-1], values[-1]), **place)
    if "discriminator_auc" in keys:
        axis.axhline(0.5, color=_ACCENT, linewidth=0.8, linestyle="--", label="chance")
        if (bigram := _series(curves, "eval_bigram_auc"))[0]:
            axis.plot(*bigram, color=_ACCENT, linewidth=1.2, label="counted bigram")
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
