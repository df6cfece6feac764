"""Clocks, rounds, and what they are measured against."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contestants import Contestant
from reporting import say
from workload import Batch

from hf_electra_rtd.ops import products


class Clock:
    """Seconds, when all that was asked of the device is done."""

    def __init__(self, device: torch.device | str) -> None:
        self.cuda = torch.device(device).type == "cuda"

    def __call__(self) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


class Stepping:
    """A contestant that steps through the batches, which lie on the device already."""

    def __init__(self, contestant: Contestant, batches: Sequence[Batch], clock: Callable[[], float]) -> None:
        self.contestant, self.batches, self.clock = contestant, batches, clock

    def run(self, steps: int) -> float:
        """Takes so many steps and returns seconds a step, as the loops do."""
        began = self.clock()
        for index in range(steps):
            self.contestant.step(self.batches[index % len(self.batches)])
        return (self.clock() - began) / steps


def time_rounds(competitors: dict[str, Any], rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds a step of each in every round: A B C A B C ..., so that they share the machine's moods."""
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    for index in range(rounds):
        for name, competitor in competitors.items():
            seconds[name].append(competitor.run(steps))
            say(f"round {index + 1} of {rounds}: {name} {1000 * seconds[name][-1]:,.1f} ms a step")
    return seconds


def summarise(seconds: Sequence[float], tokens: int, flops: int, gemm_peak: float) -> dict[str, float]:
    """What the rounds say: seconds a step in each; tokens and FLOPs of a step; the peak in FLOP/s."""
    p10, median, p90 = (float(value) for value in np.quantile(seconds, (0.1, 0.5, 0.9)))
    return {
        "median_ms": 1000 * median,
        "p10_ms": 1000 * p10,
        "p90_ms": 1000 * p90,
        "tokens_per_second": tokens / median,
        "model_flops_per_second": flops / median,
        "gemm_share": flops / median / gemm_peak,
    }


def measure_gemm_peak(
    shapes: Iterable[tuple[int, int, int]], dtype: torch.dtype, device: torch.device | str, seconds: float = 0.2
) -> tuple[float, dict[str, float]]:
    """The best FLOP/s of matrix products, laid out as in a linear layer, and those of each shape (m, k, n) and of a
    large square one; on a CPU by the better library for each. Spends `seconds` on each."""
    clock, before = Clock(device), products.library()
    side, found = 8192 if clock.cuda else 2048, {}
    for m, k, n in dict.fromkeys([*shapes, (side, side, side)]):
        left, right = (torch.randn(shape, device=device).to(dtype) for shape in ((m, k), (n, k)))
        flops = []
        for library in (products.MKL, products.ONEDNN) if left.device.type == "cpu" else (before,):
            products.use_library(library)
            flops.append(2 * m * k * n / _seconds_of_product(left, right, clock, seconds))
        found[f"{m}x{k}x{n}"] = max(flops)
    products.use_library(before)
    return max(found.values()), found


def _seconds_of_product(left: torch.Tensor, right: torch.Tensor, clock: Clock, seconds: float) -> float:
    best, spent, repeats = float("inf"), 0.0, 1
    products.linear(left, right)
    while spent < seconds:
        began = clock()
        for _ in range(repeats):
            products.linear(left, right)
        took = clock() - began
        best, spent = min(best, took / repeats), spent + took
        repeats = 2 * repeats if took < 0.01 else repeats  # a single product is shorter than the clock's call
    return best


def peak_memory(device: torch.device | str, process: int | str = "self") -> int:
    """Bytes: on CUDA the most that was allocated, else the most of a process that was resident (0 but on Linux)."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated()
    status = Path(f"/proc/{process}/status")  # `ru_maxrss` starts with what the parent had
    return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0]) if status.exists() else 0
