"""How a benchmark measures, and what it reports: a table for people, one line of JSON, and a file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from hf_electra_rtd.base.records import collect_hardware, collect_versions, utc_now


def say(line: str) -> None:
    """Prints progress to stderr, apart from the report."""
    print(line, file=sys.stderr, flush=True)


# ---- Time, memory, and the peak of matrix products ----


class Clock:
    """Returns the time in seconds, once the device has done all its work."""

    def __init__(self, device: torch.device | str) -> None:
        self.is_gpu = torch.device(device).type == "cuda"

    def __call__(self) -> float:
        if self.is_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()


def peak_memory(device: torch.device | str, process: int | str = "self") -> int:
    """Returns peak memory in bytes: on CUDA what was allocated, else the resident memory of a process (0 except on
    Linux)."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated()
    status = Path(f"/proc/{process}/status")  # `ru_maxrss` would start with the parent's memory
    if not status.exists():
        return 0
    return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])


def summarise(seconds: Sequence[float], tokens: int, flops: int, gemm_peak: float) -> dict[str, float]:
    """Returns the figures of some rounds. `seconds` holds the seconds per step of each round; `tokens` and `flops` are
    those of a step; `gemm_peak` is in FLOP/s."""
    p10, median, p90 = (float(value) for value in np.quantile(seconds, (0.1, 0.5, 0.9)))
    return {
        "median_ms": 1000 * median,
        "p10_ms": 1000 * p10,
        "p90_ms": 1000 * p90,
        "tokens_per_second": tokens / median,
        "model_flops_per_second": flops / median,
        "gemm_share": flops / median / gemm_peak,
    }


def measure_gemm_peak(dtype: torch.dtype, device: torch.device | str, seconds: float = 1.0) -> float:
    """Measures the best FLOP/s of a large square matrix product. Spends `seconds` on it."""
    clock = Clock(device)
    side = 8192 if clock.is_gpu else 2048
    left = torch.randn((side, side), device=device).to(dtype)
    right = torch.randn((side, side), device=device).to(dtype)
    best = float("inf")
    left @ right
    spent = 0.0
    while spent < seconds:
        began = clock()
        left @ right
        elapsed = clock() - began
        best = min(best, elapsed)
        spent += elapsed
    return 2 * side**3 / best


# ---- Reports ----


def describe_run(benchmark: str, config: dict[str, Any]) -> dict[str, Any]:
    """Returns the head of a report: code, date, machine, versions, the load of the machine, and the configuration."""
    return {
        "benchmark": benchmark,
        "sha": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "date": utc_now(),
        "hardware": collect_hardware(),
        "versions": collect_versions(),
        "load_average": list(os.getloadavg()),
        "config": config,
    }


def _git(*arguments: str) -> str | None:
    try:
        completed = subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None  # not a checkout
    return completed.stdout.strip()


def machine_of(report: dict[str, Any]) -> str:
    hardware = report["hardware"]
    if report["config"]["device"] == "cuda":
        return ", ".join(hardware["accelerators"])
    return str(hardware["processor"])


def finish(
    report: dict[str, Any],
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    notes: Sequence[str] = (),
    output_dir: str | os.PathLike[str] | None = None,
) -> Path | None:
    """Prints a table with notes for people and, last, the report as one line of JSON. With a directory, also writes
    the report to `<benchmark>_<hardware>_<date>.json` there, and returns its path."""
    path = None
    if output_dir is not None:
        slug = re.sub(r"[^a-z0-9]+", "-", machine_of(report).lower()).strip("-")
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
