"""What a benchmark leaves behind: a table for people, one line of JSON, and files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hf_electra_rtd.records import collect_hardware, collect_versions, utc_now


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
        "load_average": list(os.getloadavg()),
        "config": config,
    }


def say(line: str) -> None:
    """Progress, beside the report."""
    print(line, file=sys.stderr, flush=True)


def finish(
    report: dict[str, Any],
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    notes: Sequence[str] = (),
    output_dir: str | os.PathLike[str] | None = None,
) -> Path | None:
    """Prints a table with notes for people and, last, the report as one line of JSON. With a directory, also writes
    the report to `<benchmark>_<hardware>_<date>.json` there, whose path is returned."""
    path = None
    if output_dir is not None:
        hardware = report["hardware"]
        machine = hardware["accelerators"][0] if report["config"]["device"] == "cuda" else hardware["processor"]
        slug = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
        date = re.sub(r"[^0-9T]", "", report["date"].partition("+")[0])
        path = Path(output_dir) / f"{report['benchmark']}_{slug}_{date}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
        path.write_text(text + "\n", encoding="utf-8")
        say(f"Written: {path}")
    table = Table()
    for heading in headings:
        table.add_column(heading, justify="left" if heading == headings[0] else "right")
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    console.print(table)
    for note in notes:
        console.print(note, markup=False)
    print(json.dumps(report, ensure_ascii=False, allow_nan=False), flush=True)
    return path


def _git(*arguments: str) -> str | None:
    try:
        ran = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None  # not a checkout
    return ran.stdout.strip()
