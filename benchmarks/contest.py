"""The contest: everybody checked, timed by turns, and weighed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agreement import check_agreement, check_first_loss, measure_work
from contestants import APART, ORIGINAL, Contestant, Entry, make_pair
from loops import BareLoop, GoogleElectra, TrainerLoop
from reporting import say
from timing import Clock, Stepping, peak_memory, summarise, time_rounds
from workload import Rows, Workload


NUM_BATCHES = 4


@dataclasses.dataclass(frozen=True)
class Plan:
    """How to measure: `rounds` of `steps`, after `warmup` steps, on `device` with `threads`. `original`: a checkout of
    google-research/electra and the interpreter that runs it."""

    device: str
    threads: int
    rounds: int
    steps: int
    warmup: int
    original: tuple[str, str] | None = None


def make_competitor(entry: Entry, pair: Any, rows: Rows, plan: Plan, directory: str, clock: Clock) -> Any:
    if entry.base == "loop":
        return BareLoop(entry, pair, rows, plan.warmup, clock)
    if entry.base == "trainer":
        return TrainerLoop(entry, pair, rows, plan.warmup, clock, directory)
    if entry.base == ORIGINAL:
        assert plan.original is not None
        return GoogleElectra(entry, rows, NUM_BATCHES, plan.threads, *plan.original, directory)
    batches = rows.batches(NUM_BATCHES, plan.device)
    return Stepping(Contestant(entry, pair, rows.workload, rows.tokenizer), batches, clock)


def compete(workload: Workload, entries: Sequence[Entry], plan: Plan, gemm_peak: dict[str, Any]) -> dict[str, Any]:
    """Checks that all do the same work, times them, and measures the memory of each in a process of its own.

    Returns:
        `agreement`, `rows` and `left_out` of a report. The shares of the peak are of `best` of each dtype.

    Raises:
        DisagreementError: if one does other work.
    """
    clock, competitors, left_out = Clock(plan.device), {}, {}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as at_the_end:
        rows = Rows(workload, directory, NUM_BATCHES)
        pair = make_pair(workload.config(), workload.seed, plan.device)
        first = rows.batches(1, plan.device)[0]
        reference = measure_work(Contestant(Entry("naive"), pair, workload, rows.tokenizer), first)
        agreement = {"stock towers": reference}
        for entry in entries:
            competitor = make_competitor(entry, pair, rows, plan, directory, clock)
            if isinstance(competitor, GoogleElectra):
                at_the_end.callback(competitor.close)
                check_first_loss(entry.name, competitor.first_loss, reference, pair.config)
            try:
                if isinstance(competitor, Stepping):
                    agreement[entry.name] = check_agreement(competitor.contestant, first, reference)
                if plan.warmup:
                    say(f"warm-up: {entry.name}")
                    competitor.run(plan.warmup)
            except RuntimeError as error:
                if not (entry.compiled or entry.graph):
                    raise
                # A compiler, or what refuses to be captured: the others can be timed without.
                left_out[entry.name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
                say(f"{entry.name} is left out: {left_out[entry.name]}")
            else:
                competitors[entry.name] = competitor
        seconds = time_rounds(competitors, plan.rounds, plan.steps)
        del competitors, competitor, pair
    found = []
    for entry in map(Entry.parse, seconds):
        row: dict[str, Any] = {"name": entry.name, "description": entry.description, "speedup": None}
        row |= summarise(seconds[entry.name], workload.tokens, workload.flops(), gemm_peak[entry.dtype_name]["best"])
        row["rounds_ms"] = [1000 * value for value in seconds[entry.name]]
        if "naive" in seconds:
            row["speedup"] = statistics.median(seconds["naive"]) / statistics.median(seconds[entry.name])
        alone = entry.base not in APART  # the loops run the model of `ours`
        row["peak_memory_bytes"] = memory_in_new_process(workload, entry, plan) if alone else None
        found.append(row)
    return {"agreement": agreement, "rows": found, "left_out": left_out}


def measure_memory(workload: Workload, entry: Entry, plan: Plan) -> int:
    """Peak of this process after a few steps of this contestant."""
    with tempfile.TemporaryDirectory() as directory:
        rows = Rows(workload, directory, NUM_BATCHES)
        pair = make_pair(workload.config(), workload.seed, plan.device)
        competitor = make_competitor(entry, pair, rows, plan, directory, Clock(plan.device))
        del pair
        competitor.run(2)
    return peak_memory(plan.device)


def memory_in_new_process(workload: Workload, entry: Entry, plan: Plan) -> int:
    say(f"peak memory: {entry.name}")
    given = {"measure_memory": entry.name, "device": plan.device, "threads": plan.threads, "warmup": 1}
    given |= {name: value for name, value in dataclasses.asdict(workload).items() if value is not None}
    script = str(Path(__file__).with_name("pretraining_step.py"))
    command = [sys.executable, script, *(f"--{name}={value}" for name, value in given.items())]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise ValueError(f"The memory of {entry.name} was not measured: {ran.stderr.strip()[-2000:]}")
    return int(json.loads(ran.stdout.splitlines()[-1])["peak_memory_bytes"])
