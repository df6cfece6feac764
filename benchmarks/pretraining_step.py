#!/usr/bin/env python
"""Times one optimizer step of the joint pre-training: a straightforward way, the original's graph, and ours.

    python benchmarks/pretraining_step.py                        # the paper's small model, 16 x 128 tokens
    python benchmarks/pretraining_step.py --short                # about a minute and a half on two cores
    python benchmarks/pretraining_step.py --size base --batch_size 32 --max_seq_length 512 --device cuda
    python benchmarks/pretraining_step.py --backbone examples/backbones/modernbert-tiny.json --dropout 0 --steps 4

All contestants run in one process, in turns (A B C A B C ...), with the same weights, rows, masked positions, dropout,
clipping and kind of optimizer (AdamW, decay in two groups). Before anything is timed, their losses and the norms of
their gradients are compared on the first batch, without dropout and with the same fills; a difference ends the run.
The FLOPs of a step are the same count for every contestant (matrix products, with a vocabulary projection of only the
masked tokens). So unnecessary computation lowers a contestant's share of the GEMM peak, which is measured in the same
run.

The contestants are `naive`, `ours`, and `trainer`, which is the model of `ours` in `RTDTrainer`, data included. Each
can have `-bf16` (autocast) and `-compiled` (torch.compile) behind its name. `google-electra` is the original's own
graph, in a process of its own. It needs a checkout of the original and an interpreter with TensorFlow 2.15
(`pip install tensorflow-cpu==2.15.*` into an environment of Python 3.9 to 3.11):

    python benchmarks/pretraining_step.py --google_electra electra --tensorflow_python tf/bin/python

Peak memory is that of a process with this contestant alone: allocated on CUDA, else resident (compiler included).
The last line on stdout is the report as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from contestants import (
    ARRANGEMENTS,
    DESCRIPTIONS,
    ORIGINAL,
    TRAINER,
    Contestant,
    Entry,
    GoogleElectra,
    TrainerLoop,
    make_pair,
)
from measuring import describe_run, finish, machine_of, measure_gemm_peak, peak_memory, say, summarise
from torch import nn
from workload import Batch, Rows, Workload

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.base.records import count_cores
from hf_electra_rtd.training.arguments import is_fast_in_bfloat16


NUM_BATCHES = 4
# Relative differences that are allowed: of losses, and of norms of gradients.
TOLERANCES = {torch.float32: (1e-4, 1e-3), torch.bfloat16: (2e-2, 1e-1)}
FIRST_LOSS_TOLERANCE = 0.2  # for a loss with other random weights, masks and fills


# ---- Do all contestants do the same work? ----


class DisagreementError(Exception):
    """A contestant does other work than the rest."""


def measure_work(contestant: Contestant, batch: Batch) -> dict[str, float]:
    """Returns the losses, and the norms of the gradients of the generator (without shared parameters) and of the
    discriminator; without dropout, on rows that are corrupted already."""
    arrangement = contestant.arrangement.eval()
    losses = contestant.losses(batch, batch.corrupted)
    losses.total.backward()
    arrangement.train()
    discriminator = {id(parameter): parameter for parameter in arrangement.discriminator.parameters()}
    generator = [
        parameter for parameter in arrangement.generator_encoder.parameters() if id(parameter) not in discriminator
    ]
    work = {
        "generator loss": losses.generator.item(),
        "discriminator loss": losses.discriminator.item(),
        "generator gradient": _gradient_norm(generator),
        "discriminator gradient": _gradient_norm(discriminator.values()),
    }
    contestant.optimizer.zero_grad(set_to_none=True)
    return work


def _gradient_norm(parameters: Iterable[nn.Parameter]) -> float:
    return nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None]).item()


def check_agreement(contestant: Contestant, batch: Batch, reference: dict[str, float]) -> dict[str, float]:
    """Returns the contestant's work. Raises DisagreementError if it differs from the reference."""
    work = measure_work(contestant, batch)
    loss_tolerance, norm_tolerance = TOLERANCES[contestant.entry.dtype]
    for quantity, expected in reference.items():
        tolerance = norm_tolerance if quantity.endswith("gradient") else loss_tolerance
        if not abs(work[quantity] - expected) <= tolerance * abs(expected):
            raise DisagreementError(
                f"{contestant.entry.name} does other work than the stock towers: its {quantity} is "
                f"{work[quantity]:.6g}, theirs {expected:.6g} (same weights, batch and fills, no dropout). Nothing "
                "was timed: repair it, or leave it out with --contestants."
            )
    return work


def check_first_loss(name: str, loss: float, reference: dict[str, float], config: Any) -> None:
    """Raises DisagreementError for a weighted loss that other random weights, masks and samples cannot explain."""
    expected = config.generator_weight * reference["generator loss"]
    expected += config.discriminator_weight * reference["discriminator loss"]
    if not abs(loss - expected) <= FIRST_LOSS_TOLERANCE * expected:
        raise DisagreementError(f"{name} does other work: its first loss is {loss:.4g}, others' {expected:.4g}.")


# ---- The race ----


def make_competitor(
    entry: Entry, pair: ElectraForRTDPretraining, rows: Rows, options: argparse.Namespace, directory: str
) -> Any:
    """Makes the competitor of an entry: an object with `run(steps)`."""
    if entry.base == TRAINER:
        return TrainerLoop(entry, pair, rows, options.warmup, directory)
    if entry.base == ORIGINAL:
        return GoogleElectra(
            rows, NUM_BATCHES, options.threads, options.google_electra, options.tensorflow_python, directory
        )
    return Contestant(entry, pair, rows.batches(NUM_BATCHES, options.device))


def compete(
    workload: Workload, entries: Sequence[Entry], options: argparse.Namespace, gemm_peak: dict[str, float]
) -> dict[str, Any]:
    """Checks that all do the same work, times them, and measures the memory of each in a process of its own.

    Returns:
        `agreement` and `rows` of a report.

    Raises:
        DisagreementError: if one does other work.
    """
    competitors: dict[Entry, Any] = {}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as at_the_end:
        rows = Rows(workload, directory, NUM_BATCHES)
        pair = make_pair(workload.config(), workload.seed, options.device)
        first = rows.batches(1, options.device)[0]
        reference = measure_work(Contestant(Entry("naive"), pair, [first]), first)
        agreement = {"stock towers": reference}
        for entry in entries:
            competitor = make_competitor(entry, pair, rows, options, directory)
            if isinstance(competitor, GoogleElectra):
                at_the_end.callback(competitor.close)
                check_first_loss(entry.name, competitor.first_loss, reference, pair.config)
            if isinstance(competitor, Contestant):
                agreement[entry.name] = check_agreement(competitor, first, reference)
            if options.warmup:
                say(f"warm-up: {entry.name}")
                competitor.run(options.warmup)
            competitors[entry] = competitor
        seconds = time_rounds(competitors, options.rounds, options.steps)
        del competitors, competitor, pair
    naive = Entry("naive")
    report_rows = []
    for entry, times in seconds.items():
        row: dict[str, Any] = {"name": entry.name, "description": DESCRIPTIONS[entry.base], "speedup": None}
        row |= summarise(times, workload.tokens, workload.flops(), gemm_peak[str(entry.dtype)])
        row["rounds_ms"] = [1000 * value for value in times]
        if naive in seconds:
            row["speedup"] = statistics.median(seconds[naive]) / statistics.median(times)
        row["peak_memory_bytes"] = None
        if entry.base in ARRANGEMENTS:  # the Trainer runs the model of `ours`
            row["peak_memory_bytes"] = memory_in_new_process(workload, entry, options)
        report_rows.append(row)
    return {"agreement": agreement, "rows": report_rows}


def time_rounds(competitors: dict[Entry, Any], rounds: int, steps: int) -> dict[Entry, list[float]]:
    """Returns the seconds per step of each competitor in every round. They take turns (A B C A B C ...), so that the
    changing speed of the machine affects all alike."""
    seconds: dict[Entry, list[float]] = {entry: [] for entry in competitors}
    for index in range(rounds):
        for entry, competitor in competitors.items():
            seconds[entry].append(competitor.run(steps))
            say(f"round {index + 1} of {rounds}: {entry.name} {1000 * seconds[entry][-1]:,.1f} ms a step")
    return seconds


def measure_memory(workload: Workload, entry: Entry, options: argparse.Namespace) -> int:
    """Returns the peak memory of this process after a few steps of this contestant."""
    with tempfile.TemporaryDirectory() as directory:
        rows = Rows(workload, directory, NUM_BATCHES)
        pair = make_pair(workload.config(), workload.seed, options.device)
        competitor = make_competitor(entry, pair, rows, options, directory)
        del pair
        competitor.run(2)
    return peak_memory(options.device)


def memory_in_new_process(workload: Workload, entry: Entry, options: argparse.Namespace) -> int:
    say(f"peak memory: {entry.name}")
    flags = {"measure_memory": entry.name, "device": options.device, "threads": options.threads}
    flags |= {name: value for name, value in dataclasses.asdict(workload).items() if value is not None}
    command = [sys.executable, __file__, *(f"--{name}={value}" for name, value in flags.items())]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise ValueError(f"The memory of {entry.name} was not measured: {completed.stderr.strip()[-2000:]}")
    return int(completed.stdout.splitlines()[-1])


# ---- Command line ----


def read_options(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the options, whose defaults depend on the device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in dataclasses.fields(Workload):
        kind = str if field.default is None else type(field.default)
        parser.add_argument(f"--{field.name}", type=kind, default=field.default, help="of the step (%(default)s)")
    parser.add_argument("--contestants", nargs="+", metavar="NAME", help="(all that suit the device)")
    parser.add_argument("--google_electra", metavar="DIR", help="a checkout of google-research/electra: a contestant")
    parser.add_argument("--tensorflow_python", metavar="PATH", help="interpreter with TensorFlow 2.15, to run it")
    parser.add_argument("--rounds", type=int, default=5, help="of each contestant, by turns (%(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="steps a round (%(default)s; on CUDA 50)")
    parser.add_argument("--warmup", type=int, default=1, help="steps that are not timed (%(default)s; on CUDA 20)")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", choices=("cpu", "cuda"), default=device, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=count_cores(), help="CPU threads (%(default)s)")
    parser.add_argument("--short", action="store_true", help="8 rows a step, few rounds, nothing that compiles")
    parser.add_argument("--output_dir", help="write the report there, as JSON")
    parser.add_argument("--measure_memory", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.device == "cuda":
        parser.set_defaults(steps=50, warmup=20, batch_size=128)
    if options.short:
        parser.set_defaults(batch_size=8, rounds=3, steps=1)
    options = parser.parse_args(argv)
    if options.contestants is None:
        options.contestants = default_contestants(options)
    if ORIGINAL in options.contestants and None in (options.google_electra, options.tensorflow_python):
        parser.error(f"{ORIGINAL} needs --google_electra DIR and --tensorflow_python PATH.")
    if ORIGINAL in options.contestants and options.backbone:
        parser.error(f"{ORIGINAL} trains ELECTRA alone, so it has no --backbone.")
    return options


def default_contestants(options: argparse.Namespace) -> list[str]:
    """Returns the contestants that suit the device."""
    names = ["naive", "ours", TRAINER]
    if options.device == "cuda":
        names += ["naive-bf16", "naive-bf16-compiled", "ours-bf16", "ours-bf16-compiled", "trainer-bf16"]
    elif not options.short:
        names.append("ours-compiled")
        if is_fast_in_bfloat16():
            names += ["naive-bf16", "ours-bf16"]
    if options.google_electra:
        names.append(ORIGINAL)
    return names


def make_cells(row: dict[str, Any]) -> list[str]:
    speedup = row["speedup"]
    memory = row["peak_memory_bytes"]
    return [
        row["name"],
        f"{row['median_ms']:,.1f}",
        f"{row['p10_ms']:,.1f} - {row['p90_ms']:,.1f}",
        f"{row['tokens_per_second']:,.0f}",
        "" if speedup is None else f"{speedup:.2f}",
        f"{row['gemm_share']:.1%}",
        "" if memory is None else f"{memory / 2**20:,.0f}",
    ]


def make_notes(report: dict[str, Any]) -> list[str]:
    """The lines below the table."""
    config = report["config"]
    workload = config["workload"]
    peaks = ", ".join(f"{name} {peak / 1e9:,.0f} GFLOP/s" for name, peak in report["gemm_peak"].items())
    return [
        f"{workload['backbone'] or workload['size']}, {workload['batch_size']} x {workload['max_seq_length']} tokens, "
        f"vocabulary {workload['vocab_size']:,}, dropout {workload['dropout']:g}; {config['rounds']} rounds of "
        f"{config['steps']} steps; {machine_of(report)}, {config['threads']} CPU threads",
        f"GEMM peak: {peaks}. Load average before the start: {report['load_average'][0]:.2f}.",
        f"{report['flops'] / 1e9:,.1f} GFLOP a step with a gathered head, the same count for everybody.",
        *(f"{row['name']}: {row['description']}" for row in report["rows"]),
    ]


def main(argv: Sequence[str]) -> None:
    options = read_options(argv)
    workload = Workload(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Workload)})
    torch.set_num_threads(options.threads)
    if options.measure_memory is not None:  # a process that `memory_in_new_process` began
        print(measure_memory(workload, Entry.parse(options.measure_memory), options))
        return
    entries = [Entry.parse(name) for name in dict.fromkeys(options.contestants)]
    config: dict[str, Any] = {"workload": dataclasses.asdict(workload)}
    for name in ("contestants", "device", "threads", "rounds", "steps", "warmup"):
        config[name] = getattr(options, name)
    report = describe_run("pretraining_step", config)
    if report["load_average"][0] > 0.5:
        say(f"The machine is busy (load average {report['load_average'][0]:.2f}): times will be too long.")
    report["flops"] = workload.flops()
    report["gemm_peak"] = {
        str(dtype): measure_gemm_peak(dtype, options.device)
        for dtype in dict.fromkeys(entry.dtype for entry in entries)
    }
    report |= compete(workload, entries, options, report["gemm_peak"])
    headings = ["contestant", "ms a step", "p10 - p90", "tokens/s", "x naive", "of GEMM peak", "peak MiB"]
    finish(report, headings, map(make_cells, report["rows"]), make_notes(report), options.output_dir)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ValueError, DisagreementError) as failure:
        sys.exit(f"error: {failure}")
