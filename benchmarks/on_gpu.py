#!/usr/bin/env python
"""Shows what only a GPU can, in one call of a few minutes, from a checkout alone: nothing is installed or fetched.

    PYTHONPATH=src python benchmarks/on_gpu.py [--out runs/on_gpu] [--parts PART ...]
    PYTHONPATH=src python benchmarks/on_gpu.py --device cpu --size tiny                    # tries the script itself

The parts are, in this order: `correctness` (compares a step with float64 on the CPU, and some steps of training with
the CPU's); `waits` (what makes the host wait for the device within a step); `race` and `race_base` (speed, memory and
share of the peak); `profile` (of our step). `pytest` runs the tests that may depend on a GPU, and
`hf-electra-rtd pretrain` does a real run.

Each part runs in a process of its own with a time limit (`PARTS`), so that a part that fails, hangs or breaks the
device does not stop the others. Each finding is written at once, to OUT/results.json and to the page OUT/report.md.
The exit status is 1 if a check failed, or `correctness` did not finish.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from contestants import Contestant, Entry, make_pair
from measuring import measure_gemm_peak, peak_memory, summarise
from pretraining_step import NUM_BATCHES, check_agreement, make_competitor, measure_work
from torch import Tensor
from workload import Batch, Rows, Workload

from hf_electra_rtd.base.records import collect_hardware, collect_versions


ROOT = Path(__file__).resolve().parents[1]
# The steps of both races; the other parts work on the first.
WORKLOADS = {
    "small": [Workload("small", batch_size=128), Workload("base", batch_size=32, max_seq_length=512)],
    "tiny": [Workload("tiny", vocab_size=600, batch_size=4, max_seq_length=32)],
}
RACE = [  # the most telling first
    "naive",
    "naive-bf16",
    "ours",
    "ours-bf16",
    "trainer-bf16",
    "ours-bf16-compiled",
    "trainer-bf16-compiled",
    "naive-bf16-compiled",
]
SECONDS = 1.0  # a round of a race
TRAINED_STEPS = 20
# Allowed relative errors: of a loss and of the whole gradient, compared with float64 on the CPU; and of the losses of
# the trained steps, on average, compared with float32 on the CPU.
TOLERANCES = {torch.float32: (1e-5, 1e-4, 1e-3), torch.bfloat16: (2e-2, 1e-1, 2e-2)}


@dataclass(frozen=True)
class Job:
    """A part, and where it writes its findings."""

    part: str
    device: str  # cuda or cpu
    size: str  # key of `WORKLOADS`
    out: Path

    def tell(self, finding: str, ok: bool | None = None, **values: Any) -> None:
        """Writes a finding. `ok` says how a check ended, None for a figure."""
        findings = read_findings(self.out)
        findings.append({"part": self.part, "finding": finding, "ok": ok, **values})
        texts = {"results.json": json.dumps(findings, indent=1, default=str), "report.md": make_page(findings)}
        for name, text in texts.items():
            written = self.out / f"{name}.new"  # a part that is killed leaves the old text or the new one
            written.write_text(text, encoding="utf-8")
            written.replace(self.out / name)
        print(self.part, finding, {True: "ok", False: "FAILED", None: ""}[ok], flush=True)


def read_findings(out: Path) -> list[dict[str, Any]]:
    file = out / "results.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else []


def make_page(findings: Sequence[dict[str, Any]]) -> str:
    """Returns a page in Markdown: the checks that failed, then every finding with its numbers."""
    failed = [f"- FAILED {row['part']}: {row['finding']}" for row in findings if row["ok"] is False]
    lines = ["# On a GPU", "", *(failed or ["No check failed."]), "", "| part | finding | ok | |", "|---|---|---|---|"]
    for row in findings:
        numbers = [f"{name} {value:,.4g}" for name, value in row.items() if type(value) in (int, float)]
        lines.append(f"| {row['part']} | {row['finding']} | {row['ok']} | {', '.join(numbers)} |")
    return "\n".join(lines) + "\n"


class Track:
    """A workload with its weights and rows, on which contestants are made."""

    def __init__(self, job: Job, workload: Workload) -> None:
        self.job = job
        self.rows = Rows(workload, job.out, NUM_BATCHES)
        self.pair = make_pair(workload.config(), workload.seed, job.device)

    def competitor(self, name: str) -> Any:
        options = argparse.Namespace(warmup=5, device=self.job.device)
        return make_competitor(Entry.parse(name), self.pair, self.rows, options, str(self.job.out))


# ---- Correctness ----


def correctness(job: Job) -> None:
    """Names the machine, compares a step with float64 on the CPU, and some steps of training with the CPU's."""
    job.tell("machine", **collect_hardware(), versions=collect_versions(), cuda=torch.version.cuda)
    torch.set_float32_matmul_precision("highest")
    track = Track(job, replace(WORKLOADS[job.size][0], batch_size=8, dropout=0.0))
    on_cpu = make_pair(track.pair.config, 0, "cpu")
    on_cpu.load_state_dict(track.pair.state_dict())
    double = Contestant(Entry("ours"), on_cpu, [])
    double.arrangement.double()
    exact = take_step(double, track.rows.batches(1, "cpu")[0])
    expected = train(Contestant(Entry("ours"), on_cpu, []), track.rows.batches(TRAINED_STEPS, "cpu"))
    batches = track.rows.batches(TRAINED_STEPS, job.device)
    for dtype, allowed in TOLERANCES.items():
        entry = Entry("ours", bf16=dtype == torch.bfloat16)
        step = take_step(Contestant(entry, track.pair, []), batches[0])
        compare_steps(job, dtype, step, exact)
        error = (train(Contestant(entry, track.pair, []), batches) / expected - 1).abs().mean().item()
        job.tell(f"losses of {TRAINED_STEPS} steps, {dtype}", error <= allowed[2], mean_error=error)


class Step(NamedTuple):
    """The losses and the gradient of a step, in float64 on the CPU."""

    losses: Tensor  # (2,)
    gradient: Tensor  # the gradients of all parameters, concatenated


def take_step(contestant: Contestant, batch: Batch) -> Step:
    """Computes the losses and the gradient for a batch, without sampling."""
    losses = contestant.losses(batch, batch.corrupted)
    losses.total.backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in contestant.arrangement.parameters()])
    pair_of_losses = torch.stack([losses.generator, losses.discriminator])
    return Step(pair_of_losses.detach().double().cpu(), gradient.double().cpu())


def compare_steps(job: Job, dtype: torch.dtype, step: Step, exact: Step) -> None:
    """Records how far losses and gradient in a dtype are from the exact ones. NaN fails every check."""
    of_losses, of_gradient, _ = TOLERANCES[dtype]
    error = (step.losses / exact.losses - 1).abs().max().item()
    job.tell(f"losses, {dtype}", error <= of_losses, error=error, allowed=of_losses)
    error = ((step.gradient - exact.gradient).norm() / exact.gradient.norm()).item()
    job.tell(f"gradient, {dtype}", error <= of_gradient, error=error, allowed=of_gradient)


def train(contestant: Contestant, batches: Sequence[Batch]) -> Tensor:
    """Trains on the batches and returns the loss of each step, float64, on the CPU. Nothing is sampled: the batches
    hold their fills."""
    losses = []
    for batch in batches:
        loss = contestant.losses(batch, batch.corrupted).total
        loss.backward()
        contestant.update()
        losses.append(loss.detach())
    return torch.stack(losses).double().cpu()


# ---- Speed ----


def waits(job: Job) -> None:
    """Finds the lines that make the host wait for the device in every step."""
    track = Track(job, WORKLOADS[job.size][0])
    steps = 20
    for name in ("naive", "ours", "ours-bf16", "trainer"):
        competitor = track.competitor(name)
        competitor.run(5)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if job.device == "cuda":
                torch.cuda.set_sync_debug_mode("warn")
            competitor.run(steps)
            if job.device == "cuda":
                torch.cuda.set_sync_debug_mode("default")
        waited = [warning for warning in caught if "synchronizing CUDA operation" in str(warning.message)]
        lines = Counter(f"{Path(warning.filename).name}:{warning.lineno}" for warning in waited)
        in_every_step = [line for line, count in lines.items() if count >= steps]
        # The naive step certainly waits, which shows that this check can find something.
        ok = bool(in_every_step) == (name == "naive") if job.device == "cuda" else None
        job.tell(f"lines that wait in every step of {name}", ok, number=len(in_every_step), lines=in_every_step)


def race(job: Job, index: int) -> None:
    """Times the contestants of a step one after the other, and checks that each computes what the stock towers do."""
    if index >= len(WORKLOADS[job.size]):
        job.tell(f"skipped: --size {job.size} has one race")
        return
    workload = WORKLOADS[job.size][index]
    track = Track(job, workload)
    first = track.rows.batches(1, job.device)[0]
    peaks = {}
    for dtype in TOLERANCES:
        peaks[dtype] = measure_gemm_peak(dtype, job.device)
        job.tell(f"peak of matrix products, {dtype}", gflops=peaks[dtype] / 1e9)
    reference = measure_work(track.competitor("naive"), first)
    for name in RACE:
        entry = Entry.parse(name)
        if job.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            competitor = track.competitor(name)
            if isinstance(competitor, Contestant):
                check_agreement(competitor, first, reference)
            began = time.time()
            competitor.run(5)
            seconds_before = time.time() - began  # mostly compilation
            steps = int(min(100, max(2, SECONDS / competitor.run(2))))
            rounds = [competitor.run(steps) for _ in range(3)]
        except Exception as failure:  # a compiler failed, or the work is not that of the stock towers
            job.tell(f"{name} broke off", False, error=f"{type(failure).__name__}: {failure}"[:300])
        else:
            figures = summarise(rounds, workload.tokens, workload.flops(), peaks[entry.dtype])
            job.tell(name, True, **figures, seconds_before=seconds_before, peak_bytes=peak_memory(job.device))
        torch._dynamo.reset()


def profile(job: Job) -> None:
    """Records where the time of our step goes."""
    competitor = Track(job, WORKLOADS[job.size][0]).competitor("ours-bf16" if job.device == "cuda" else "ours")
    competitor.run(5)
    ms = 1000 * competitor.run(20)  # without the profiler, which slows the host down
    with torch.profiler.profile() as profiler:
        competitor.run(5)
    key = f"self_{'device' if job.device == 'cuda' else 'cpu'}_time_total"
    table = profiler.key_averages().table(sort_by=key, row_limit=40, max_name_column_width=90)
    job.tell("profile of 5 steps", ms_without_it=ms, table=table)


# ---- The parts, and the process that keeps the time ----


# Each with its limit in seconds.
PARTS: dict[str, tuple[Callable[[Job], None], int]] = {
    "correctness": (correctness, 120),
    "waits": (waits, 60),
    "race": (partial(race, index=0), 150),
    "race_base": (partial(race, index=1), 150),
    "profile": (profile, 60),
}


def run_apart(job: Job) -> None:
    """Runs a part in a process of its own, up to its time limit, and records how it ended."""
    log = job.out / f"{job.part}.log"
    flags = {"out": job.out, "device": job.device, "size": job.size, "only": job.part}
    command = [sys.executable, __file__, *(f"--{name}={value}" for name, value in flags.items())]
    began = time.time()
    with open(log, "w", encoding="utf-8") as file:
        try:
            _, limit = PARTS[job.part]
            status = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=limit).returncode
            how = "done" if status == 0 else f"died with status {status}"
        except subprocess.TimeoutExpired:
            how = "stopped, its time was over"
    ok = False if job.part == "correctness" and how != "done" else None
    last_lines = log.read_text(encoding="utf-8").splitlines()[-15:]
    job.tell(f"ended: {how}", ok, seconds=time.time() - began, last_lines=last_lines)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "on_gpu", help="for the findings (%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="(%(default)s)")
    parser.add_argument("--size", choices=WORKLOADS, default="small", help="tiny tries the script (%(default)s)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="(all)")
    parser.add_argument("--only", choices=PARTS, help=argparse.SUPPRESS)  # the part of a process
    options = parser.parse_args(argv)
    if options.only:
        do, _ = PARTS[options.only]
        do(Job(options.only, options.device, options.size, options.out))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").unlink(missing_ok=True)
    for part in options.parts:
        run_apart(Job(part, options.device, options.size, options.out.resolve()))
    return int(any(finding["ok"] is False for finding in read_findings(options.out)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
