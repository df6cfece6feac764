"""The step along one axis at a time: curves of tokens per second, with the line that the GEMM peak draws."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import reporting
from rich.console import Console
from rich.table import Table
from workload import Workload


# Each axis: what it is called, its points on a CPU, and on CUDA.
AXES: dict[str, tuple[str, tuple[Any, ...], tuple[Any, ...]]] = {
    "max_seq_length": ("Tokens a row, at the same number of tokens", (64, 128, 256, 512), (64, 128, 256, 512, 1024)),
    "vocab_size": ("Vocabulary", (8192, 21128, 30522, 50000), (8192, 21128, 30522, 50000, 128000)),
    "batch_size": ("Rows a batch", (4, 8, 16, 32), (32, 128, 512, 2048)),
    "mask_probability": ("Share that is masked", (0.15, 0.25, 0.3, 0.4), (0.15, 0.25, 0.3, 0.4)),
    "size": ("Size", ("tiny", "small"), ("tiny", "small", "small++", "base")),
    "generator_size": ("Generator, of the discriminator's width", (0.25, 0.5, 0.75, 1.0), (0.25, 0.5, 0.75, 1.0)),
}
_COLUMNS = 3
_COLOURS = ("#9aa5b1", "#1f5fa8", "#c8553d", "#4b8f5b", "#8a63a8", "#c79a2a")


def default_names(bf16_pays: bool) -> list[str]:
    return ["naive-bf16", "ours-bf16"] if bf16_pays else ["naive", "ours"]


def at(workload: Workload, axis: str, value: Any) -> Workload:
    """The workload at a point of an axis."""
    changes = {axis: value}
    if axis == "max_seq_length":
        changes["batch_size"] = max(1, workload.tokens // value)
    return dataclasses.replace(workload, **changes)


def sweep(
    workload: Workload,
    axes: Sequence[str],
    cuda: bool,
    compete: Callable[[Workload], dict[str, Any]],
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """One entry a point: `axis`, `value`, `workload`, `flops_per_token`, and the `rows` and `left_out` of the contest
    there."""
    points = []
    for axis in axes:
        for value in AXES[axis][2 if cuda else 1]:
            say(f"{axis} = {value}")
            point = at(workload, axis, value)
            points.append(
                {
                    "axis": axis,
                    "value": value,
                    "workload": dataclasses.asdict(point),
                    "flops_per_token": point.flops() / point.tokens,
                    **compete(point),
                }
            )
    return points


def roofline(point: dict[str, Any], gemm_peak: dict[str, dict[str, Any]]) -> float:
    """Tokens per second, were everything matrix products at the measured peak."""
    best: float = max(peak["best"] for peak in gemm_peak.values())
    return best / float(point["flops_per_token"])


def show(report: dict[str, Any]) -> None:
    """Prints a table and, last, the report as one line of JSON."""
    names = _names(report)
    table = Table(title="Tokens per second", title_justify="left")
    for heading in ("axis", "value", *names, "GEMM peak"):
        table.add_column(heading, justify="left" if heading == "axis" else "right")
    for point in report["points"]:
        speeds = {row["name"]: f"{row['tokens_per_second']:,.0f}" for row in point["rows"]}
        cells = [speeds.get(name, "") for name in names]
        table.add_row(point["axis"], f"{point['value']}", *cells, f"{roofline(point, report['gemm_peak']):,.0f}")
    Console(width=None if sys.stdout.isatty() else 140, highlight=False).print(table)
    print(json.dumps(report, ensure_ascii=False), flush=True)


def save(report: dict[str, Any], directory: str | os.PathLike[str]) -> Path:
    """Writes the JSON and the curves; returns the path of the latter."""
    return draw(report, reporting.write_json(report, directory).with_suffix(".png"))


def draw(report: dict[str, Any], path: Path) -> Path:
    """One panel an axis."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    axes = list(dict.fromkeys(point["axis"] for point in report["points"]))
    lines = -(-len(axes) // _COLUMNS)
    columns = min(_COLUMNS, len(axes))
    figure = Figure(figsize=(4.2 * columns, 3.4 * lines), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for panel, axis in zip(panels, axes, strict=False):
        _draw_panel(panel, axis, report)
    for panel in panels[len(axes) :]:
        panel.set_axis_off()
    hardware, config = report["hardware"], report["config"]
    machine = hardware["accelerators"][0] if config["device"] == "cuda" else hardware["processor"]
    workload = config["workload"]
    figure.suptitle(
        f"Joint pre-training step, {workload['size']}, {workload['batch_size']} x {workload['max_seq_length']} tokens "
        f"unless varied\n{machine}, {config['threads']} CPU threads, {report['date'][:10]}",
        fontsize=10,
    )
    figure.savefig(path, metadata={"Software": None})
    return path


def _draw_panel(panel: Any, axis: str, report: dict[str, Any]) -> None:
    points = [point for point in report["points"] if point["axis"] == axis]
    places = range(len(points))
    for name, colour in zip(_names(report), _COLOURS * 4, strict=False):
        found = [
            (place, row)
            for place, point in zip(places, points, strict=True)
            for row in point["rows"]
            if row["name"] == name
        ]
        xs, rows = [place for place, _ in found], [row for _, row in found]
        tokens = [point["workload"]["batch_size"] * point["workload"]["max_seq_length"] for point in points]
        panel.plot(
            xs, [row["tokens_per_second"] for row in rows], color=colour, marker="o", markersize=3.5, label=name
        )
        slow, fast = (
            [1000 * tokens[place] / row[quantile] for place, row in found] for quantile in ("p90_ms", "p10_ms")
        )
        panel.fill_between(xs, slow, fast, color=colour, alpha=0.2, linewidth=0)
    limits = [roofline(point, report["gemm_peak"]) for point in points]
    panel.plot(places, limits, color="#3e4c59", linestyle="--", linewidth=1.0, label="GEMM peak")
    panel.set_xticks(list(places), [f"{point['value']}" for point in points])
    panel.set_yscale("log")
    panel.set_title(AXES[axis][0], fontsize=9, loc="left")
    panel.set_ylabel("tokens/s", fontsize=8)
    reporting.style(panel)


def _names(report: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["name"] for point in report["points"] for row in point["rows"]))
