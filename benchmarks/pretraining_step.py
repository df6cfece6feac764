#!/usr/bin/env python
"""Times one optimizer step of the joint pre-training: naive ways, peers, and ours, side by side.

    python benchmarks/pretraining_step.py                        # the paper's small model, 16 x 128 tokens
    python benchmarks/pretraining_step.py --short                # about a minute and a half on two cores
    python benchmarks/pretraining_step.py --size base --batch_size 32 --max_seq_length 512 --device cuda
    python benchmarks/pretraining_step.py --contestants naive ours ours-compiled loop trainer
    python benchmarks/pretraining_step.py --backbone examples/backbones/modernbert-tiny.json --dropout 0 --steps 4

All contestants run in one process, by turns (A B C A B C ...), with the same weights, rows, masked positions, dropout,
clipping and kind of optimizer (AdamW, decay in two groups). Before anything is timed, their losses and the norm of
their gradients are compared on the first batch, without dropout and with the same fills: one that differs ends the
run. The FLOPs of a step are counted alike for everybody (matrix products, vocabulary projection of the masked tokens
alone), so what a contestant computes in vain lowers its share of the GEMM peak, which is measured in the same run.

Contestants, each with `-bf16` (autocast), `-compiled` (torch.compile) and `-graph` (the whole step as one CUDA graph)
behind it: `naive`, `gathered`, `electra-pytorch` (if installed: pip install --no-deps electra-pytorch==0.1.2), `ours`;
and `loop` and `trainer`, the same model in a plain loop and in `RTDTrainer`, data included. `google-electra` is the
original's own graph, if there is a checkout of it and an interpreter with TensorFlow 2.15 (`pip install
tensorflow-cpu==2.15.*` into an environment of Python 3.9 to 3.11):

    python benchmarks/pretraining_step.py --google_electra electra --tensorflow_python tf/bin/python

Peak memory is that of a process with this contestant alone: allocated on CUDA, else resident (compiler included).
Last on stdout is the report as one line of JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

import reporting
import torch
from agreement import DisagreementError
from contest import Plan, compete, measure_memory
from contestants import ORIGINAL, Entry, default_entries, why_absent
from reporting import say
from timing import measure_gemm_peak
from workload import Workload

from hf_electra_rtd.ops import products
from hf_electra_rtd.records import count_cores


STEP = {  # fields of `Workload`
    "size": "named size",
    "backbone": "configuration of another encoder, in place of --size",
    "vocab_size": "tokens of the vocabulary",
    "batch_size": "rows a step; on CUDA 128, as in the paper",
    "max_seq_length": "tokens a row",
    "mask_probability": "share that is masked",
    "dropout": "in both towers",
    "seed": "of weights, rows and masks",
}
SHORT = {"batch_size": 8, "rounds": 3, "steps": 1}
SHORT_CONTESTANTS = ["naive", "gathered", "electra-pytorch", "ours", "loop", "trainer"]
HEADINGS = ["contestant", "ms a step", "p10 - p90", "tokens/s", "x naive", "GFLOP/s", "of GEMM peak", "peak MiB"]


def read_options(argv: Sequence[str]) -> tuple[argparse.Namespace, Workload, Plan]:
    """Options with what follows from the device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, about in STEP.items():
        default = getattr(Workload(), name)
        kind = str if default is None else type(default)
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"{about} (%(default)s)")
    parser.add_argument("--contestants", nargs="+", metavar="NAME", help="(all that suit the device)")
    parser.add_argument("--google_electra", metavar="DIR", help="a checkout of google-research/electra: a contestant")
    parser.add_argument("--tensorflow_python", metavar="PATH", help="interpreter with TensorFlow 2.15, to run it")
    parser.add_argument("--rounds", type=int, default=5, help="of each contestant, by turns (%(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="steps a round (%(default)s; on CUDA 50)")
    parser.add_argument("--warmup", type=int, default=1, help="steps that are not timed (%(default)s; on CUDA 20)")
    cuda = torch.cuda.is_available()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if cuda else "cpu", help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=count_cores(), help="CPU threads (%(default)s)")
    parser.add_argument("--short", action="store_true", help="8 rows a step, few rounds, nothing that compiles")
    parser.add_argument("--output_dir", help="write the report there, as JSON")
    parser.add_argument("--measure_memory", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.device == "cuda":
        parser.set_defaults(steps=50, warmup=20, batch_size=128)
    if options.short:
        parser.set_defaults(**SHORT)
    options = parser.parse_args(argv)
    original = (options.google_electra, options.tensorflow_python)
    if None in original and (any(original) or ORIGINAL in (options.contestants or ())):
        parser.error(f"{ORIGINAL} needs --google_electra DIR and --tensorflow_python PATH.")
    workload = Workload(**{name: getattr(options, name) for name in STEP})
    plan = {name: getattr(options, name) for name in ("device", "threads", "rounds", "steps", "warmup")}
    return options, workload, Plan(**plan, original=original if any(original) else None)


def choose_entries(options: argparse.Namespace, workload: Workload) -> tuple[list[Entry], dict[str, str]]:
    """Who competes, and who is left out, with the reason.

    Raises:
        ValueError: for a name that means nothing, or, where the names were asked for, who cannot compete.
    """
    cuda = options.device == "cuda"
    names = options.contestants
    if names is None:
        names = SHORT_CONTESTANTS if options.short else default_entries(cuda, cuda or products.bfloat16_gain() > 1)
        names = [*names, *([ORIGINAL] if options.google_electra else [])]
    entries, left_out = [], {}
    for name in dict.fromkeys(names):
        entry = Entry.parse(name)
        reason = why_absent(entry, workload)
        if reason is None:
            entries.append(entry)
        elif options.contestants is not None:
            raise ValueError(f"{name} cannot compete: {reason}.")
        else:
            left_out[name] = reason
            say(f"{name} is left out: {reason}")
    return entries, left_out


def measure_peaks(workload: Workload, entries: Sequence[Entry], device: str) -> dict[str, dict[str, Any]]:
    """Of each dtype in use: `best` FLOP/s, and those of each of the `shapes`."""
    found = {}
    for name in sorted({entry.dtype_name for entry in entries}):
        best, shapes = measure_gemm_peak(workload.gemm_shapes(), getattr(torch, name), device)
        found[name] = {"best": best, "shapes": shapes}
    return found


def make_cells(row: dict[str, Any]) -> list[str]:
    speedup, memory = row["speedup"], row["peak_memory_bytes"]
    return [
        row["name"],
        f"{row['median_ms']:,.1f}",
        f"{row['p10_ms']:,.1f} - {row['p90_ms']:,.1f}",
        f"{row['tokens_per_second']:,.0f}",
        "" if speedup is None else f"{speedup:.2f}",
        f"{row['model_flops_per_second'] / 1e9:,.0f}",
        f"{row['gemm_share']:.1%}",
        "" if memory is None else f"{memory / 2**20:,.0f}",
    ]


def make_notes(report: dict[str, Any]) -> list[str]:
    """What stands below the table."""
    config, hardware = report["config"], report["hardware"]
    workload = config["workload"]
    machine = ", ".join(hardware["accelerators"]) if config["device"] == "cuda" else hardware["processor"]
    peaks = ", ".join(f"{name} {peak['best'] / 1e9:,.0f} GFLOP/s" for name, peak in report["gemm_peak"].items())
    return [
        f"{workload['backbone'] or workload['size']}, {workload['batch_size']} x {workload['max_seq_length']} tokens, "
        f"vocabulary {workload['vocab_size']:,}, dropout {workload['dropout']:g}; "
        f"{config['rounds']} rounds of {config['steps']} steps; {machine}, {config['threads']} CPU threads",
        f"GEMM peak: {peaks}. Load average before the start: {report['load_average'][0]:.2f}.",
        f"{report['flops'] / 1e9:,.1f} GFLOP a step with a gathered head, the same count for everybody.",
        *(f"{row['name']}: {row['description']}" for row in report["rows"]),
        *(f"{name} was left out: {reason}" for name, reason in report["left_out"].items()),
    ]


def main(argv: Sequence[str]) -> None:
    options, workload, plan = read_options(argv)
    torch.set_num_threads(plan.threads)
    if options.measure_memory is not None:  # a process that `memory_in_new_process` began
        print(json.dumps({"peak_memory_bytes": measure_memory(workload, Entry.parse(options.measure_memory), plan)}))
        return
    entries, left_out = choose_entries(options, workload)
    how = {**dataclasses.asdict(plan), "original": plan.original is not None}  # no path of this machine
    config = {"workload": dataclasses.asdict(workload), "contestants": [entry.name for entry in entries], **how}
    report = reporting.describe_run("pretraining_step", config)
    if report["load_average"][0] > 0.5:
        say(f"The machine is busy (load average {report['load_average'][0]:.2f}): times will be too long.")
    if plan.device == "cpu":
        report["products"] = {"library": products.library(), "gflops": products.speeds()}
        say(f"Matrix products in float32 by {products.library()}; GFLOP/s: {products.speeds()}")
    before, report["flops"] = measure_peaks(workload, entries, plan.device), workload.flops()
    report |= compete(workload, entries, plan, before)
    report["left_out"] |= left_out
    # A neighbour on the machine can spoil one measurement of the peak: take the better of before and after.
    after = measure_peaks(workload, entries, plan.device)
    report["gemm_peak"] = {name: max(before[name], after[name], key=lambda peak: peak["best"]) for name in after}
    for row in report["rows"]:
        peak = report["gemm_peak"][Entry.parse(row["name"]).dtype_name]["best"]
        row["gemm_share"] = row["model_flops_per_second"] / peak
    cells = map(make_cells, report["rows"])
    reporting.finish(report, HEADINGS, cells, make_notes(report), options.output_dir)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ValueError, DisagreementError) as failure:
        sys.exit(f"error: {failure}")
