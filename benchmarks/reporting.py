"""What a benchmark leaves behind: a table for people, one line of JSON, and files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hf_electra_rtd.records import collect_hardware, collect_versions, utc_now


PHASES = {
    "data": "data",
    "mask": "mask",
    "generator": "generator",
    "head_and_sampling": "head, sampling",
    "discriminator": "discriminator",
    "forward": "forward (whole)",
    "backward": "backward",
    "optimizer": "clip, optimizer",
}


def describe_run(benchmark: str, config: dict[str, Any]) -> dict[str, Any]:
    """The head of a report: code, date, machine, versions, how busy the machine was, and what was asked for."""
    versions = collect_versions()
    for package in ("electra-pytorch", "triton"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "benchmark": benchmark,
        "sha": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "date": utc_now(),
        "hardware": collect_hardware(),
        "versions": versions,
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "config": config,
    }


def say(line: str) -> None:
    """Progress, beside the report."""
    print(line, file=sys.stderr, flush=True)


def write_json(report: dict[str, Any], directory: str | os.PathLike[str]) -> Path:
    """Writes `<stem>.json` into the directory, which is made, and returns its path."""
    path = Path(directory) / f"{file_stem(report)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def style(axis: Any) -> None:
    """How a panel looks whose lines are drawn."""
    axis.tick_params(labelsize=8, which="both")
    axis.grid(axis="y", which="both", color="#e4e7eb", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=7)


def _git(*arguments: str) -> str | None:
    try:
        ran = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None  # not a checkout
    return ran.stdout.strip()


def file_stem(report: dict[str, Any]) -> str:
    """`<benchmark>_<hardware>_<date>`."""
    hardware = report["hardware"]
    machine = hardware["accelerators"][0] if report["config"]["device"] == "cuda" else hardware["processor"]
    slug = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    date = re.sub(r"[^0-9T]", "", report["date"].partition("+")[0])
    return f"{report['benchmark']}_{slug}_{date}"


def make_tables(report: dict[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, headings and cells: the results, and the phases."""
    rows = report["rows"]
    results = []
    for row in rows:
        speedup, memory = row["speedup"], row["peak_memory_bytes"]
        results.append(
            [
                row["name"],
                f"{row['median_ms']:,.1f}",
                f"{row['p10_ms']:,.1f} - {row['p90_ms']:,.1f}",
                f"{row['tokens_per_second']:,.0f}",
                "" if speedup is None else f"{speedup:.2f}",
                f"{row['model_flops_per_second'] / 1e9:,.0f}",
                f"{row['gemm_share']:.1%}",
                "" if memory is None else f"{memory / 2**20:,.0f}",
            ]
        )
    headings = ["contestant", "ms a step", "p10 - p90", "tokens/s", "x naive", "GFLOP/s", "of GEMM peak", "peak MiB"]
    phases = [name for name in PHASES if any(name in row["phases_ms"] for row in rows)]
    split = [
        [row["name"], *(f"{row['phases_ms'][name]:,.1f}" if name in row["phases_ms"] else "" for name in phases)]
        for row in rows
        if row["phases_ms"]
    ]
    tables = [("One optimizer step", headings, results)]
    if split:
        tables.append(("ms in each phase, measured apart", ["contestant", *(PHASES[name] for name in phases)], split))
    return tables


def summary_lines(report: dict[str, Any]) -> list[str]:
    """What stands around the tables."""
    config, hardware = report["config"], report["hardware"]
    workload = config["workload"]
    accelerators = ", ".join(hardware["accelerators"]) if config["device"] == "cuda" else ""
    machine = accelerators or f"{hardware['processor']}, {config['threads']} threads"
    peaks = ", ".join(f"{name} {peak['best'] / 1e9:,.0f} GFLOP/s" for name, peak in report["gemm_peak"].items())
    load = report["load_average"]
    lines = [
        f"{workload['backbone'] or workload['size']}, {workload['batch_size']} x {workload['max_seq_length']} tokens, "
        f"vocabulary {workload['vocab_size']:,}, dropout {workload['dropout']:g}; "
        f"{config['rounds']} rounds of {config['steps']} steps; {machine}",
        f"GEMM peak: {peaks}. Load average before the start: {'unknown' if load is None else f'{load[0]:.2f}'}.",
        f"{report['flops'] / 1e9:,.1f} GFLOP a step with a gathered head, the same count for everybody.",
    ]
    lines += [f"{row['name']}: {row['description']}" for row in report["rows"]]
    lines += [f"{name} was left out: {reason}" for name, reason in report["left_out"].items()]
    lines += [
        f"{row['name']} waits for the device in every step: {row['waits_for_device']}"
        for row in report["rows"]
        if row["waits_for_device"]
    ]
    return lines


def show(report: dict[str, Any]) -> None:
    """Prints the tables and, last, the report as one line of JSON."""
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    for title, headings, cells in make_tables(report):
        table = Table(title=title, title_justify="left")
        for heading in headings:
            table.add_column(heading, justify="left" if heading == "contestant" else "right")
        for row in cells:
            table.add_row(*row)
        console.print(table)
    for line in summary_lines(report):
        console.print(line, markup=False)
    print(json.dumps(report, ensure_ascii=False), flush=True)


def save(report: dict[str, Any], directory: str | os.PathLike[str]) -> Path:
    """Writes the JSON and a table in Markdown; returns the path of the former."""
    path = write_json(report, directory)
    lines = [f"# {report['benchmark']}, {report['date']}, {(report['sha'] or 'no commit')[:12]}", ""]
    for title, headings, cells in make_tables(report):
        lines += [f"## {title}", "", *_markdown(headings, cells), ""]
    lines += [f"- {line}" for line in summary_lines(report)]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _markdown(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return [f"| {' | '.join(row)} |" for row in (headings, rule, *cells)]
