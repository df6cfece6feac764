#!/usr/bin/env python
"""What only a GPU can show, within minutes: the part of benchmarks/on_gpu.sh in Python. See there.

Every part is a process of its own with a share of the time, so that one that fails, hangs or breaks the device leaves
the next ones alone. What is found is written at once: a line of JSON to results.jsonl, and one for people to
report.txt and stdout. The exit status is 1 if a check failed, or the part `correctness` did not end.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from agreement import TOLERANCES as AGREEMENT
from agreement import measure_work
from contest import NUM_BATCHES, Plan, make_competitor
from contestants import EPSILON, LEARNING_RATE, WEIGHT_DECAY, Contestant, Entry, copy_pair, make_pair, why_absent
from timing import Clock, Stepping, measure_gemm_peak, peak_memory, summarise
from torch import Tensor
from transformers import PrinterCallback, TrainerCallback
from workload import Batch, Rows, Workload

from hf_electra_rtd import BlockFile, ElectraAdamW, RTDTrainer, RTDTrainingArguments, get_parameter_groups
from hf_electra_rtd.publishing.pictures import CURVES_FILE, plot_curves
from hf_electra_rtd.recipes import SIZES
from hf_electra_rtd.records import collect_hardware, collect_versions
from hf_electra_rtd.training import pretrain
from hf_electra_rtd.training.console import RTDPrinterCallback


ROOT = Path(__file__).resolve().parents[1]
RESULTS, REPORT, ERRORS = "results.jsonl", "report.txt", "stderr.txt"
# The steps of both races; the other parts work on the first.
WORKLOADS = {
    "small": [Workload("small", batch_size=128), Workload("base", batch_size=32, max_seq_length=512)],
    "tiny": [Workload("tiny", vocab_size=600, batch_size=4, max_seq_length=32)],
}
# Who runs in them, the most telling first. What stands behind a contestant of `contestants.py`: `+tf32` in matrix
# products, AdamW by `+foreach` in place of one fused kernel, `torch.compile` with CUDA graphs (`+reduce-overhead`).
RACES = {
    "small": [
        *("naive", "naive-bf16", "gathered-bf16", "ours", "ours+tf32", "ours-bf16", "ours-bf16+foreach"),
        *("ours-bf16-graph", "trainer-bf16", "ours-bf16-compiled", "ours-bf16-compiled-graph"),
        *("trainer-bf16-compiled", "ours-bf16-compiled+reduce-overhead", "naive-bf16-compiled"),
    ],
    "base": ["naive-bf16", "ours-bf16", "ours-bf16-compiled", "ours-bf16-compiled-graph", "ours-bf16-graph", "naive"],
    "tiny": [
        *("naive", "gathered", "ours", "ours+tf32", "ours+foreach", "ours-bf16", "ours-graph", "trainer"),
        *("ours-compiled", "ours-compiled+reduce-overhead"),
    ],
}
TESTS = [
    *("tests/benchmarks/test_pretraining_step.py", "tests/ops", "tests/test_layers.py", "tests/test_modeling.py"),
    *("tests/test_parity.py", "tests/training/test_optimization.py", "tests/training/test_arguments.py"),
    *("tests/training/test_meters.py", "tests/training/test_no_trainer.py", "tests/training/test_trainer.py"),
]
SECONDS = 1.0  # of a round of a race
TRAINED_STEPS = 20
# Relative errors that are allowed, of: both losses of a step; its gradient, by the norm; the gradient's worst tensor,
# whose norm counts as a thousandth of the whole at least, as some are zero but for rounding; and the losses of the
# trained steps, on average. The first three are against float64 on the CPU, the last against float32 there.
TOLERANCES = {"float32": (1e-5, 1e-4, 1e-3, 1e-3), "bfloat16": (2e-2, 1e-1, 1.0, 2e-2)}


class Skipped(Exception):  # noqa: N818  # nothing went wrong
    """Why something cannot run here."""


@dataclass(frozen=True)
class Job:
    """A part, and where it tells what it finds. Its process works in a directory that is removed afterwards."""

    part: str
    device: str  # cuda or cpu
    size: str  # key of `WORKLOADS`
    blocks: Path | None
    out: Path
    until: float  # when it should end, in seconds since the epoch

    @property
    def left(self) -> float:
        return self.until - time.time()

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"

    def tell(self, finding: str, ok: bool | None = None, show: bool = True, **values: Any) -> None:
        """Writes a finding. `ok` says how a check ended; a figure has none. JSON has all `values`, people see those
        that fit a line."""
        line = {"time": round(time.time(), 1), "part": self.part, "finding": finding, "ok": ok, **values}
        append(self.out / RESULTS, json.dumps(line, default=str))
        if show:
            shown = ", ".join(f"{name} {text}" for name, value in values.items() if (text := _short(value)))
            mark = {True: "ok", False: "FAILED", None: ""}[ok]
            append(self.out / REPORT, f"{self.part:12}{mark:7}{finding}{': ' if shown else ''}{shown}", echo=True)


def append(path: Path, line: str, echo: bool = False) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(line + "\n")
    if echo:
        print(line, flush=True)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) and "\n" not in value else ""


def read_findings(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / RESULTS).read_text(encoding="utf-8").splitlines()]


def need(*packages: str) -> None:
    if lacking := [name for name in packages if importlib.util.find_spec(name) is None]:
        raise Skipped(f"it needs {', '.join(lacking)}")


class Track:
    """A step with its weights and rows, and how contestants come onto it."""

    def __init__(self, job: Job, workload: Workload) -> None:
        self.job, self.workload, self.clock = job, workload, Clock(job.device)
        self.rows = Rows(workload, Path.cwd(), NUM_BATCHES)
        self.pair = make_pair(workload.config(), workload.seed, job.device)

    def batches(self, number: int = NUM_BATCHES, device: str | None = None) -> list[Batch]:
        return self.rows.batches(number, device or self.job.device)

    def contestant(self, entry: str, pair: Any = None) -> Contestant:
        return Contestant(Entry.parse(entry), pair or self.pair, self.workload, self.rows.tokenizer)

    def competitor(self, name: str) -> Any:
        """A contestant with its changes, or a loop: what `run(steps)` times."""
        known, *changes = name.split("+")
        entry = Entry.parse(known)
        if reason := why_absent(entry):
            raise Skipped(reason)
        torch.set_float32_matmul_precision("high" if "tf32" in changes else "highest")
        plan = Plan(self.job.device, torch.get_num_threads(), rounds=3, steps=1, warmup=5)
        competitor = make_competitor(entry, self.pair, self.rows, plan, str(Path.cwd()), self.clock)
        if "foreach" in changes:
            groups = get_parameter_groups(competitor.contestant.arrangement, WEIGHT_DECAY)
            competitor.contestant.optimizer = ElectraAdamW(groups, LEARNING_RATE, eps=EPSILON, foreach=True)
        if "reduce-overhead" in changes:
            competitor.contestant.arrangement.model.compile(mode="reduce-overhead", dynamic=False)
        return competitor


# ---- Correctness ----


class Step(NamedTuple):
    """What a step computes."""

    losses: Tensor  # (2,) float64, on the CPU, as are the gradients
    gradients: dict[str, Tensor]
    corrupted: Tensor  # (B, L) ids


def correctness(job: Job) -> None:
    """Names the machine; then a step against float64 on the CPU, and some steps of training beside the CPU's."""
    facts = {**collect_hardware(), "versions": collect_versions(), "cuda": torch.version.cuda}
    job.tell("machine", torch=torch.__version__, **facts)
    if job.is_gpu and not torch.cuda.is_available():
        raise RuntimeError("There is no CUDA device. Try the script itself with --device cpu --size tiny.")
    torch.set_float32_matmul_precision("highest")
    track = Track(job, replace(WORKLOADS[job.size][0], batch_size=8, dropout=0.0))
    inputs, on_cpu = track.rows.collate(0), make_pair(track.pair.config, track.workload.seed, "cpu")
    on_cpu.load_state_dict(track.pair.state_dict())
    exact = take_step(copy_pair(on_cpu).double(), inputs)
    for dtype in TOLERANCES:
        compare_steps(job, dtype, take_step(track.pair, inputs, exact.corrupted, bf16=dtype == "bfloat16"), exact)
    drawn = take_step(track.pair, inputs).corrupted
    differ, masked = int(drawn.ne(exact.corrupted).sum()), inputs["masked_positions"].numel()
    job.tell("tokens drawn otherwise, float32", differ <= 1, tokens=differ, of=masked, allowed=1)
    expected = train(track.contestant("ours", on_cpu), track.batches(TRAINED_STEPS, "cpu"))
    for dtype, entry in {"float32": "ours", "bfloat16": "ours-bf16"}.items():
        losses = train(track.contestant(entry), track.batches(TRAINED_STEPS))
        errors, tolerance = (losses / expected - 1).abs(), TOLERANCES[dtype][-1]
        values = {"mean_error": errors.mean().item(), "tolerance": tolerance, "largest": errors.max().item()}
        values |= {"losses": losses.tolist(), "on_cpu": expected.tolist()}
        job.tell(f"losses of {TRAINED_STEPS} steps, {dtype}", values["mean_error"] <= tolerance, **values)


def take_step(model: Any, inputs: dict[str, Tensor], corrupted: Tensor | None = None, bf16: bool = False) -> Step:
    """Forward and backward on the model's device. The discriminator reads `corrupted`, or what the generator draws
    with the collator's random numbers."""
    moved = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    given = {} if corrupted is None else {"corrupted_input_ids": corrupted.to(model.device)}
    with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
        output = model(**moved, **given)
    model.zero_grad()
    output.loss.backward()
    losses = torch.stack([output.generator_loss, output.discriminator_loss]).detach().double().cpu()
    gradients = {name: parameter.grad.double().cpu() for name, parameter in model.named_parameters()}
    return Step(losses, gradients, output.corrupted_input_ids.cpu())


def compare_steps(job: Job, dtype: str, found: Step, exact: Step) -> None:
    """Tells how far a step in a dtype is from the exact one. NaN passes nowhere."""
    errors = torch.stack([(found.gradients[name] - each).norm() for name, each in exact.gradients.items()])
    norms = torch.stack([each.norm() for each in exact.gradients.values()])
    of_tensors = (errors / norms.clamp(min=1e-3 * norms.norm())).nan_to_num(torch.inf)
    worst = list(exact.gradients)[int(of_tensors.argmax())]
    measured = {
        "losses": (found.losses / exact.losses - 1).abs().max(),
        "gradient": errors.norm() / norms.norm(),
        f"gradient of {worst}, the worst": of_tensors.max(),
    }
    for (what, error), tolerance in zip(measured.items(), TOLERANCES[dtype], strict=False):
        job.tell(f"{what}, {dtype}", bool(error <= tolerance), error=error.item(), tolerance=tolerance)


def train(contestant: Contestant, batches: Sequence[Batch]) -> Tensor:
    """The loss of each step of training, float64, on the CPU. Nothing is drawn: the batches hold their fills."""
    losses = []
    for batch in batches:
        loss = contestant.losses(batch, batch.corrupted).total
        loss.backward()
        contestant.update()
        losses.append(loss.detach())
    return torch.stack(losses).double().cpu()


def tests(job: Job) -> None:
    """The tests that a GPU can change. Each failure is told when it happens."""
    need("pytest", "pytest_timeout")
    import pytest

    outcomes: Counter[str] = Counter()

    class Watch:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.when == "call" or report.outcome != "passed":
                outcomes[report.outcome] += 1
            if report.failed:
                text = str(report.longrepr)
                lines = [line for line in text.splitlines() if line.startswith("E  ")]
                job.tell(f"test {report.nodeid}", False, error=lines[0] if lines else "", text=text)
            if job.left < 0:
                pytest.exit("The time is over.", returncode=0)

    # A warning that another version of a library gives is no failure here.
    flags = ["--quiet", "--no-header", "-p", "no:cacheprovider", "-W", "default", "--timeout", "60"]
    if (os.cpu_count() or 1) >= 8 and importlib.util.find_spec("xdist"):
        flags += ["--numprocesses", "8"]
    os.chdir(ROOT)
    status = int(pytest.main([*flags, *TESTS], plugins=[Watch()]))
    job.tell("tests", status == 0 and outcomes["passed"] > 0, **outcomes, status=status, cut_short=job.left < 0)


# ---- Speed ----


def waits(job: Job) -> None:
    """Does a step, or the Trainer's loop between two logs, make the host wait for the device?"""
    track = Track(job, WORKLOADS[job.size][0])
    batches = track.batches()

    def judge(what: str, places: Counter[str], expected: bool = False) -> None:
        ok = bool(places) == expected if job.is_gpu else None
        job.tell(f"waits in {what}", ok, waits=places.total(), where=str(dict(places.most_common(5))))

    def check(name: str) -> None:
        contestant = track.contestant(name)
        for batch in batches:
            contestant.step(batch)
        with seen_waits(job.is_gpu) as places:
            for batch in batches:
                contestant.step(batch)
        # The naive step waits for sure: it shows that this check can see something.
        judge(f"{len(batches)} steps of {name}", places, expected=name == "naive")

    for name in ("naive", "ours", "ours-bf16"):
        check(name)
    judge("8 steps of RTDTrainer", waits_in_trainer(track))
    judge("8 steps of RTDTrainer, non_blocking", waits_in_trainer(track, accelerator_config={"non_blocking": True}))
    if job.is_gpu:
        check("ours-bf16-compiled")
    else:
        job.tell("a CPU has no waits to find")


@contextmanager
def seen_waits(is_gpu: bool) -> Iterator[Counter[str]]:
    """Counts, when it is closed, the places in Python that waited for the device."""
    places: Counter[str] = Counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if is_gpu:
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            if is_gpu:
                torch.cuda.set_sync_debug_mode("default")
    waited = (each for each in caught if "synchronizing CUDA operation" in str(each.message))
    places.update("/".join([*Path(each.filename).parts[-2:], str(each.lineno)]) for each in waited)


def waits_in_trainer(track: Track, **options: Any) -> Counter[str]:
    """Those of steps 12 to 19 of `RTDTrainer`'s loop, which logs after steps 10 and 20."""
    found, between_logs, workload = [], ExitStack(), track.workload

    class Watch(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 11:
                found.append(between_logs.enter_context(seen_waits(track.job.is_gpu)))
            if state.global_step == 19:
                between_logs.close()

    options |= {"max_seq_length": workload.max_seq_length, "per_device_train_batch_size": workload.batch_size}
    options |= {"max_steps": 20, "warmup_steps": 2, "logging_steps": 10, "eval_strategy": "no", "save_strategy": "no"}
    options |= {"report_to": [], "disable_tqdm": True, "use_cpu": not track.job.is_gpu}
    args, tokenizer = RTDTrainingArguments("waits", **options), track.rows.tokenizer
    trainer = RTDTrainer(copy_pair(track.pair), args, track.rows.blocks, None, tokenizer, callbacks=[Watch()])
    with between_logs:
        trainer.train()
    return found[0]


def race(job: Job, index: int) -> None:
    """Times the contestants of a step one after the other, and checks that each computes what the stock towers do."""
    if index >= len(WORKLOADS[job.size]):
        raise Skipped(f"--size {job.size} has one race")
    track = Track(job, WORKLOADS[job.size][index])
    first, workload, peaks, naive_ms = track.batches(1)[0], track.workload, {}, None
    for dtype in ("float32", "tf32", "bfloat16"):
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        operands = torch.bfloat16 if dtype == "bfloat16" else torch.float32
        peaks[dtype], shapes = measure_gemm_peak(workload.gemm_shapes(), operands, job.device, seconds=0.05)
        job.tell(f"peak of matrix products, {dtype}", gflops=peaks[dtype] / 1e9, shapes=shapes)
    torch.set_float32_matmul_precision("highest")
    reference = measure_work(track.contestant("naive"), first)
    for name in RACES[workload.size]:
        if job.left < 5:
            job.tell(f"{name} is left out: the time is over")
            continue
        if job.is_gpu:
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        dtype = "tf32" if "+tf32" in name else "bfloat16" if "bf16" in name else "float32"
        try:
            competitor, ok, row = track.competitor(name), None, {}
            began = time.perf_counter()
            if isinstance(competitor, Stepping):
                work = measure_work(competitor.contestant, first)
                errors = {what: abs(work[what] / exact - 1) for what, exact in reference.items()}
                allowed = AGREEMENT["float32" if dtype == "float32" else "bf16"]
                ok = all(error <= allowed[what.endswith("gradient")] for what, error in errors.items())
                row["errors"] = errors
            competitor.run(5)
            row["seconds_before"] = time.perf_counter() - began  # compilation, above all
            steps = int(min(100, max(2, SECONDS / competitor.run(2))))
            rounds = [competitor.run(steps) for _ in range(3)]
        except Skipped as reason:
            job.tell(f"{name} is left out: {reason}")
        except Exception as failure:
            what = f"{type(failure).__name__}: {failure}"[:300]
            job.tell(f"{name} broke off", error=what, traceback=traceback.format_exc())
        else:
            figures = summarise(rounds, workload.tokens, workload.flops(), peaks[dtype])
            naive_ms = figures["median_ms"] if name == "naive" else naive_ms
            speed = {"ms": figures["median_ms"], "tokens_per_second": figures["tokens_per_second"]}
            speed["of_peak"] = figures["gemm_share"]
            speed |= {"x_naive": naive_ms / speed["ms"]} if naive_ms else {}
            speed |= {"peak_gib": peak_memory(job.device) / 2**30} if job.is_gpu else {}  # a process keeps its peak
            job.tell(name, ok, **speed, **row, size=workload.size, rounds_ms=[1000 * each for each in rounds])
        competitor = None
        if "compiled" in name:
            torch._dynamo.reset()


def fastest(job: Job, start: str) -> str:
    """Of the first race, among those whose names begin so and who compute the right thing; what suits the device where
    there was no race."""
    rows = [row for row in read_findings(job.out) if row["part"] == "race" and "ms" in row and row["ok"] is not False]
    names = {row["finding"]: row["ms"] for row in rows if row["finding"].startswith(start)}
    return min(names, key=lambda name: names[name], default=f"{start}-bf16" if job.is_gpu else start)


def profile(job: Job) -> None:
    """Where the time of our fastest step goes."""
    name, steps = fastest(job, "ours"), 5
    competitor = Track(job, WORKLOADS[job.size][0]).competitor(name)
    competitor.run(5)
    seconds = competitor.run(20)  # without the profiler, which slows the host down
    with torch.profiler.profile() as profiler:
        competitor.run(steps)
    averages, key = profiler.key_averages(), f"self_{'device' if job.is_gpu else 'cpu'}_time_total"
    table = averages.table(sort_by=key, row_limit=40, max_name_column_width=90)
    (job.out / "profile.txt").write_text(table, encoding="utf-8")
    # On a GPU the kernels alone: operators have the time of their kernels, too.
    host = torch.autograd.DeviceType.CPU
    kernels = [each for each in averages if (each.device_type != host) == job.is_gpu and not each.is_user_annotation]
    ms = {each.key: getattr(each, key) / 1000 / steps for each in kernels}
    calls = {each.key: each.count / steps for each in kernels}
    busy = {"busy_ms": sum(ms.values()), "busy_share": sum(ms.values()) / 1000 / seconds}
    job.tell(f"profile of {name}", ms=1000 * seconds, **busy, calls=sum(calls.values()))
    for kernel in sorted(ms, key=lambda kernel: -ms[kernel])[:12]:
        share = ms[kernel] / busy["busy_ms"]
        job.tell(kernel[:90], share=share, ms=ms[kernel], calls=calls[kernel])


# ---- A real run ----


def pretraining(job: Job) -> None:
    """Pre-trains on the blocks while time is left, with held-out metrics along the way, and keeps the record."""
    if job.blocks is None:
        raise Skipped("no BLOCKS_DIR was given")
    need("sklearn", "matplotlib")
    train_file, held_out = (job.blocks / f"{name}.blocks" for name in ("train", "held_out"))
    header, batch_size = BlockFile(train_file).header, SIZES[job.size].pretraining["per_device_train_batch_size"]
    loop = fastest(job, "trainer")
    workload = Workload(job.size, header.vocab_size, batch_size, header.max_seq_length)
    seconds = Track(job, workload).competitor(loop).run(20)
    interval = max(2, int(0.075 * job.left / seconds))
    steps = 10 * interval
    job.tell(f"begins as {loop}", steps=steps, ms=1000 * seconds, sequences=header.num_sequences)

    class Watch(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            names = ("eval_generator_loss", "eval_discriminator_auc", "eval_bigram_auc")
            shown = {name: logs[name] for name in names if name in logs}
            job.tell(f"step {state.global_step}", show="eval_loss" in logs, **shown, log=logs)

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop |= job.left < 5

    flags = {"size": job.size, "train_files": train_file, "tokenizer": job.blocks / "tokenizer", "output_dir": "run"}
    flags |= {"held_out_files": held_out} if held_out.exists() else {"held_out_share": 0}
    flags |= {"max_steps": steps, "warmup_steps": 0.1, "logging_steps": max(1, interval // 5), "eval_steps": interval}
    flags |= {"max_seq_length": header.max_seq_length, "bf16": "bf16" in loop, "use_cpu": not job.is_gpu}
    flags |= {"save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    with pretrain.start(words, None, {}) as run:
        if "compiled" in loop:
            run.model.compile(dynamic=False)
        data = (run.stream, run.held_out, run.tokenizer, run.collator)
        trainer = RTDTrainer(run.model, run.args, *data, callbacks=[Watch()])
        for printer in (PrinterCallback, RTDPrinterCallback):
            trainer.pop_callback(printer)
        trainer.record_facts = run.record_facts
        trainer.train()
        record = trainer.make_record()
    record.save(job.out)
    plot_curves(record, job.out / CURVES_FILE)
    first, *_, last = [log["loss"] for log in record.curves if "loss" in log]
    values = {"steps": record.steps, "tokens": record.tokens, "speed": record.tokens / record.train_seconds}
    job.tell("trained", last < first if record.steps >= 100 else None, first_loss=first, last_loss=last, **values)


# ---- The parts, and the process that keeps the time ----


# What each does, and its weight where the time that is left is shared among those that are to come. What a part leaves
# over falls to the later ones, so that the first, on which all depends, may have much.
PARTS: dict[str, tuple[Callable[[Job], None], int]] = {
    "correctness": (correctness, 10),
    "tests": (tests, 4),
    "waits": (waits, 3),
    "race": (partial(race, index=0), 7),
    "race_base": (partial(race, index=1), 5),
    "profile": (profile, 3),
    "pretraining": (pretraining, 5),
}


def run_part(job: Job) -> int:
    """What the process of a part does; its exit status."""
    try:
        do, _ = PARTS[job.part]
        do(job)
    except Skipped as reason:
        job.tell(f"skipped: {reason}")
    except Exception as failure:
        job.tell("broke off", error=f"{type(failure).__name__}: {failure}"[:300], traceback=traceback.format_exc())
        traceback.print_exc()
        return 1
    return 0


def run_apart(job: Job) -> None:
    """Runs a part in a process and a directory of its own, to its time at most, and tells how it ended. Whatever the
    process began ends with it."""
    began = time.time()
    options = ["--out", str(job.out), "--device", job.device, "--size", job.size, "--parts", job.part]
    early = f"{job.until - 0.07 * job.left}"  # so that it can end by itself
    command = [sys.executable, str(Path(__file__).resolve()), *([str(job.blocks)] if job.blocks else []), *options]
    with tempfile.TemporaryDirectory() as directory, open(job.out / ERRORS, "a", encoding="utf-8") as errors:
        child = subprocess.Popen([*command, "--until", early], cwd=directory, stderr=errors, start_new_session=True)
        try:
            status = child.wait(job.left)
            how = {0: "done", 1: "failed"}.get(status, f"died with status {status}")
        except subprocess.TimeoutExpired:
            how = "stopped, its time was over"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    ok = False if job.part == "correctness" and how != "done" else None
    told = [] if how == "done" else (job.out / ERRORS).read_text(encoding="utf-8").splitlines()[-15:]
    job.tell(f"ended: {how}", ok, seconds=time.time() - began, stderr=told)


def summarize(findings: Sequence[dict[str, Any]]) -> list[str]:
    """Lines: the parts, the races, and the checks that failed."""
    lines = ["", f"{'part':14}{'checks':>8}{'failed':>8}{'seconds':>9}  how it ended"]
    for part in dict.fromkeys(finding["part"] for finding in findings):
        own = [finding for finding in findings if finding["part"] == part]
        checks = [finding["ok"] for finding in own if finding["ok"] is not None]
        ends = [each["finding"] for each in own if each["finding"].startswith(("skipped: ", "ended: "))]
        seconds = own[-1].get("seconds", 0.0)
        lines.append(f"{part:14}{len(checks):8}{checks.count(False):8}{seconds:9.0f}  {ends[0] if ends else ''}")
    lines += ["", f"{'step':6} {'contestant':36}{'ms':>10}{'tokens/s':>13}{'of peak':>9}{'GiB':>7}{'x naive':>9}"]
    for row in findings:
        if "of_peak" in row:
            memory, speedup = (f"{row[key]:.2f}" if key in row else "" for key in ("peak_gib", "x_naive"))
            speed = f"{row['ms']:10,.2f}{row['tokens_per_second']:13,.0f}{row['of_peak']:9.1%}"
            lines.append(f"{row['size']:6} {row['finding']:36}{speed}{memory:>7}{speedup:>9}")
    failed = [f"FAILED  {each['part']}: {each['finding']}" for each in findings if each["ok"] is False]
    return [*lines, "", *(failed or ["No check failed."])]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("blocks", nargs="?", type=Path, help="what `hf-electra-rtd prepare` wrote, for the real run")
    parser.add_argument("--minutes", type=float, default=9.0, help="for everything (%(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "on_gpu", help="for what is found (%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="(%(default)s)")
    parser.add_argument("--size", choices=WORKLOADS, default="small", help="tiny tries the script (%(default)s)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="(all)")
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)  # of the process of a part
    options = parser.parse_args(argv)
    blocks, out = options.blocks and options.blocks.resolve(), options.out.resolve()
    if blocks is not None and not (blocks / "train.blocks").is_file():
        parser.error(f"{options.blocks} holds no train.blocks. Make it with `hf-electra-rtd prepare`.")
    began = psutil.Process().create_time()  # the imports took time, too
    until = options.until or began + 60 * options.minutes - 3
    jobs = [Job(part, options.device, options.size, blocks, out, until) for part in options.parts]
    if options.until:
        return run_part(jobs[0])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the part, too
    out.mkdir(parents=True, exist_ok=True)
    for name in (RESULTS, REPORT, ERRORS):
        (out / name).write_text("", encoding="utf-8")
    for place, job in enumerate(jobs):
        weights = [PARTS[each.part][1] for each in jobs[place:]]
        share = weights[0] / sum(weights)
        run_apart(replace(job, until=time.time() + max(1.0, job.left * share)))
    findings = read_findings(out)
    for line in summarize(findings):
        append(out / REPORT, line, echo=True)
    return int(any(finding["ok"] is False for finding in findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
