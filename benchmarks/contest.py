"""The contest: everybody checked, timed by turns, taken apart, and weighed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agreement import check_agreement, check_first_loss, measure_work
from contestants import APART, ORIGINAL, Contestant, Entry, make_pair
from loops import BareLoop, GoogleElectra, TrainerLoop
from timing import Clock, Stepping, measure_phases, peak_memory, summarise, synchronises, time_rounds
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
    sync_check: bool = False
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


def compete(
    workload: Workload,
    entries: Sequence[Entry],
    plan: Plan,
    gemm_peak: dict[str, dict[str, Any]],
    say: Callable[[str], None],
    with_phases: bool = True,
    memory_of: Callable[[Entry], int] | None = None,
) -> dict[str, Any]:
    """Checks that all do the same work, and times them.

    Args:
        workload: the step.
        entries: who competes.
        plan: how to measure.
        gemm_peak: `best` of each dtype in use.
        say: what is told of the progress.
        with_phases: measure the phases, too.
        memory_of: peak memory of a contestant that is no loop, in bytes; None leaves it out.

    Returns:
        `agreement`, `rows` and `left_out` of a report.

    Raises:
        DisagreementError: if one does other work.
    """
    clock, left_out = Clock(plan.device), {}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as at_the_end:
        rows = Rows(workload, directory, NUM_BATCHES)
        pair = make_pair(workload.config(), workload.seed, plan.device)
        first = rows.batches(1, plan.device)[0]
        reference = measure_work(Contestant(Entry("naive"), pair, workload, rows.tokenizer), first)
        agreement, competitors = {"stock towers": reference}, []
        for entry in entries:
            competitor = make_competitor(entry, pair, rows, plan, directory, clock)
            if isinstance(competitor, GoogleElectra):
                at_the_end.callback(competitor.close)
                check_first_loss(competitor.name, competitor.first_loss, reference, pair.config)
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
                competitors.append(competitor)

        seconds = time_rounds(competitors, plan.rounds, plan.steps, say)
        data_ms = _time_data(rows, plan.device, clock) if with_phases else 0.0
        found = []
        for competitor in competitors:
            entry = competitor.entry if not isinstance(competitor, Stepping) else competitor.contestant.entry
            row: dict[str, Any] = {"name": entry.name, "description": entry.description}
            peak = gemm_peak[entry.dtype_name]["best"]
            row |= summarise(seconds[entry.name], workload.tokens, workload.flops(), peak)
            row["rounds_ms"] = [1000 * value for value in seconds[entry.name]]
            row |= {"phases_ms": {}, "waits_for_device": None}
            if isinstance(competitor, Stepping):
                if with_phases:
                    say(f"phases: {entry.name}")
                    phases = measure_phases(competitor.contestant, competitor.batches, max(2, plan.steps), clock)
                    made_outside = {} if entry.base == "electra-pytorch" else {"data": data_ms}
                    row["phases_ms"] = {**made_outside, **phases} if phases else {}
                if plan.sync_check:
                    row["waits_for_device"] = synchronises(lambda: competitor.contestant.step(first))  # noqa: B023
            found.append(row)
        del competitors
    naive = next((row["median_ms"] for row in found if row["name"] == "naive"), None)
    for row in found:
        row["speedup"] = None if naive is None else naive / row["median_ms"]
        row["peak_memory_bytes"] = None
    if memory_of is not None:
        for entry, row in zip(map(Entry.parse, seconds), found, strict=True):
            if entry.base not in APART:  # the loops run the model of `ours`
                say(f"peak memory: {entry.name}")
                row["peak_memory_bytes"] = memory_of(entry)
    return {"agreement": agreement, "rows": found, "left_out": left_out}


def _time_data(rows: Rows, device: str, clock: Clock) -> float:
    """Median ms to read a batch, mask it, and bring it to the device."""
    times = []
    for index in range(NUM_BATCHES):
        began = clock()
        for tensor in rows.collate(index).values():
            tensor.to(device)
        times.append(1000 * (clock() - began))
    return statistics.median(times)


# ---- Memory: a process a contestant ----


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
    flags = [f"--{name}={value}" for name, value in dataclasses.asdict(workload).items() if value is not None]
    flags += [f"--device={plan.device}", f"--threads={plan.threads}", "--warmup=1"]
    command = [
        sys.executable,
        str(Path(__file__).with_name("pretraining_step.py")),
        f"--measure_memory={entry.name}",
        *flags,
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise ValueError(f"The memory of {entry.name} was not measured: {ran.stderr.strip()[-2000:]}")
    return int(json.loads(ran.stdout.splitlines()[-1])["peak_memory_bytes"])
