"""Clocks, rounds, phases, and what they are measured against."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from contestants import Contestant
from torch.nn import functional as F  # noqa: N812
from workload import Batch

from hf_electra_rtd.ops import products


class Timed(Protocol):
    """What can be timed: `run` takes that many steps and returns seconds a step."""

    @property
    def name(self) -> str: ...

    def run(self, steps: int) -> float: ...


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

    @property
    def name(self) -> str:
        return self.contestant.name

    def run(self, steps: int) -> float:
        began = self.clock()
        for index in range(steps):
            self.contestant.step(self.batches[index % len(self.batches)])
        return (self.clock() - began) / steps


def time_rounds(timed: Sequence[Timed], rounds: int, steps: int, say: Callable[[str], None]) -> dict[str, list[float]]:
    """Seconds a step of every contestant in every round: A B C A B C ..., so that they share the machine's moods."""
    seconds: dict[str, list[float]] = {one.name: [] for one in timed}
    for index in range(rounds):
        for one in timed:
            seconds[one.name].append(one.run(steps))
            say(f"round {index + 1} of {rounds}: {one.name} {1000 * seconds[one.name][-1]:,.1f} ms a step")
    return seconds


def summarise(seconds: Sequence[float], tokens: int, flops: int, gemm_peak: float) -> dict[str, float]:
    """What the rounds say.

    Args:
        seconds: a step, of each round.
        tokens: of a step.
        flops: of a step.
        gemm_peak: FLOP/s.
    """
    p10, median, p90 = (float(value) for value in np.quantile(seconds, (0.1, 0.5, 0.9)))
    return {
        "median_ms": 1000 * median,
        "p10_ms": 1000 * p10,
        "p90_ms": 1000 * p90,
        "tokens_per_second": tokens / median,
        "model_flops_per_second": flops / median,
        "gemm_share": flops / median / gemm_peak,
    }


# ---- Phases ----


def measure_phases(contestant: Contestant, batches: Sequence[Batch], steps: int, clock: Clock) -> dict[str, float]:
    """Median ms of each part of a step, in steps of their own that wait for the device in between.

    `mask`, `generator`, `head_and_sampling` and `discriminator` add up to the forward pass; where its parts cannot be
    told apart (compiled, or a model that does not call its towers as modules) there is `forward` instead. A graph has
    no parts at all.
    """
    if contestant.entry.graph:
        return {}
    found: dict[str, list[float]] = {}
    for index in range(steps):
        for phase, seconds in _one_step(contestant, batches[index % len(batches)], clock).items():
            found.setdefault(phase, []).append(1000 * seconds)
    return {phase: statistics.median(times) for phase, times in found.items()}


def _one_step(contestant: Contestant, batch: Batch, clock: Clock) -> dict[str, float]:
    marks: list[tuple[str, float]] = []

    def mark(name: str) -> Callable[..., None]:
        return lambda *_: marks.append((name, clock()))

    arrangement, handles = contestant.arrangement, []
    if not contestant.entry.compiled:
        encoder = arrangement.generator_encoder
        handles = [
            encoder.register_forward_pre_hook(mark("mask")),
            encoder.register_forward_hook(mark("generator")),
            arrangement.discriminator.register_forward_pre_hook(mark("head_and_sampling")),
        ]
    began = clock()
    losses = contestant.losses(batch)
    forward = clock()
    for handle in handles:
        handle.remove()
    losses.total.backward()
    backward = clock()
    contestant.update()
    updated = clock()
    parts = {"forward": forward - began}
    if [name for name, _ in marks] == ["mask", "generator", "head_and_sampling"]:
        times = [began, *(when for _, when in marks), forward]
        names = [*(name for name, _ in marks), "discriminator"]
        parts = {name: end - begin for name, begin, end in zip(names, times[:-1], times[1:], strict=True)}
    return {**parts, "backward": backward - forward, "optimizer": updated - backward}


# ---- Yardsticks ----


def measure_gemm_peak(
    shapes: Iterable[tuple[int, int, int]], dtype: torch.dtype, device: torch.device | str, seconds: float = 0.2
) -> tuple[float, dict[str, float]]:
    """The best FLOP/s of matrix products, laid out as in a linear layer, and those of each shape (m, k, n); on a
    CPU by the better library for each.

    Args:
        shapes: to try, besides a large square one.
        dtype: of the operands.
        device: where.
        seconds: to spend on each, at least one product.
    """
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


def bf16_pays(device: torch.device | str) -> bool:
    """Whether a product in bfloat16 is faster than one in float32."""
    m, k, n = 1024, 256, 512
    times = {}
    for dtype in (torch.float32, torch.bfloat16):
        left, right = (torch.randn(size, device=device).to(dtype) for size in ((m, k), (n, k)))
        clock = Clock(device)
        F.linear(left, right)
        began = clock()
        F.linear(left, right)
        times[dtype] = clock() - began
    return times[torch.bfloat16] < times[torch.float32]


def peak_memory(device: torch.device | str) -> int:
    """Bytes: on CUDA the most that was allocated, else the most of this process that was resident."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():  # `ru_maxrss` starts, on Linux, with what the parent had when it made this process
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return 1024 * int(line.split()[1])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def synchronises(step: Callable[[], Any]) -> str | None:
    """What in a step makes the host wait for the CUDA device; None for nothing."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return None
