#!/usr/bin/env python
"""Times one optimizer step of the joint pre-training: naive ways, peers, and ours, side by side.

    python benchmarks/pretraining_step.py                        # the paper's small model, 16 x 128 tokens
    python benchmarks/pretraining_step.py --short                # about a minute and a half on two cores
    python benchmarks/pretraining_step.py --size base --batch_size 32 --max_seq_length 512 --device cuda
    python benchmarks/pretraining_step.py --contestants naive ours ours-compiled loop trainer
    python benchmarks/pretraining_step.py --backbone examples/backbones/modernbert-tiny.json --dropout 0 --steps 4
    python benchmarks/pretraining_step.py --sweep max_seq_length vocab_size --output_dir benchmarks/results

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
import sweeps
import torch
from agreement import DisagreementError
from contest import Plan, compete, measure_memory, memory_in_new_process
from contestants import ORIGINAL, Entry, default_entries, why_absent
from reporting import say
from timing import bf16_pays, measure_gemm_peak
from workload import Workload

from hf_electra_rtd.ops import products
from hf_electra_rtd.recipes import SIZES
from hf_electra_rtd.records import count_cores


SHORT = {"batch_size": 8, "rounds": 3, "steps": 1}
SHORT_CONTESTANTS = ["naive", "gathered", "electra-pytorch", "ours", "loop", "trainer"]


# ---- Command line ----


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    step = parser.add_argument_group("the step")
    default = Workload()
    step.add_argument("--size", default=default.size, choices=sorted(SIZES), help="named size (%(default)s)")
    step.add_argument("--backbone", metavar="FILE", help="configuration of another encoder, in place of --size")
    step.add_argument("--vocab_size", type=int, default=default.vocab_size, help="(%(default)s)")
    step.add_argument(
        "--batch_size", type=int, help=f"rows a step ({default.batch_size}; on CUDA 128, as in the paper)"
    )
    step.add_argument("--max_seq_length", type=int, default=default.max_seq_length, help="tokens a row (%(default)s)")
    step.add_argument(
        "--mask_probability", type=float, default=default.mask_probability, help="share that is masked (%(default)s)"
    )
    step.add_argument(
        "--generator_size", type=float, help="generator's width as a fraction of the discriminator's (the size's own)"
    )
    step.add_argument("--dropout", type=float, default=default.dropout, help="in both towers (%(default)s)")
    step.add_argument("--seed", type=int, default=default.seed, help="of weights, rows and masks (%(default)s)")
    how = parser.add_argument_group("how to measure")
    how.add_argument("--contestants", nargs="+", metavar="NAME", help="(all that suit the device)")
    how.add_argument("--google_electra", metavar="DIR", help="a checkout of google-research/electra: a contestant")
    how.add_argument("--tensorflow_python", metavar="PATH", help="interpreter with TensorFlow 2.15, to run it")
    how.add_argument("--rounds", type=int, help="of each contestant, by turns (5)")
    how.add_argument("--steps", type=int, help="steps a round (2; on CUDA 50)")
    how.add_argument("--warmup", type=int, help="steps that are not timed (1; on CUDA 20)")
    how.add_argument("--device", choices=("cpu", "cuda"), help="(cuda where there is one)")
    how.add_argument("--threads", type=int, help="CPU threads (all cores)")
    how.add_argument("--sync_check", action="store_true", help="CUDA: report who waits for the device within a step")
    how.add_argument("--short", action="store_true", help="8 rows a step, few rounds, nothing that compiles")
    what = parser.add_argument_group("what comes out")
    what.add_argument("--output_dir", help="write the report there, as JSON and Markdown")
    what.add_argument(
        "--sweep",
        nargs="*",
        choices=list(sweeps.AXES),
        metavar="AXIS",
        help=f"vary {', '.join(sweeps.AXES)} (all, or those given) for few contestants, and draw curves",
    )
    parser.add_argument("--measure_memory", metavar="NAME", help=argparse.SUPPRESS)
    return parser


def read_options(argv: Sequence[str]) -> tuple[argparse.Namespace, Workload, Plan]:
    """Options with what follows from the device.

    Raises:
        ValueError: for what cannot be measured here.
    """
    parser = make_parser()
    if parser.parse_args(argv).short:
        parser.set_defaults(**SHORT)
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("There is no CUDA device: leave --device out, or give --device cpu.")
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    cuda = device == "cuda"
    if options.sync_check and not cuda:
        raise ValueError("--sync_check asks who waits for a CUDA device: leave it out on a CPU.")
    if (options.google_electra is None) != (options.tensorflow_python is None):
        raise ValueError("--google_electra and --tensorflow_python go together.")
    original = None if options.google_electra is None else (options.google_electra, options.tensorflow_python)
    if original is None and ORIGINAL in (options.contestants or ()):
        raise ValueError(f"{ORIGINAL} needs --google_electra DIR and --tensorflow_python PATH.")
    defaults = {
        "threads": count_cores(),
        "rounds": 5,
        "steps": 50 if cuda else 2,
        "warmup": 20 if cuda else 1,
        "batch_size": 128 if cuda else Workload().batch_size,
    }
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    workload = Workload(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Workload)})
    workload.config()  # refuses a generator that cannot be built
    plan = Plan(device, options.threads, options.rounds, options.steps, options.warmup, options.sync_check, original)
    return options, workload, plan


def default_names(options: argparse.Namespace, plan: Plan) -> list[str]:
    if options.sweep is not None:
        return sweeps.default_names(bf16_pays(plan.device))
    original = [] if plan.original is None else [ORIGINAL]
    if options.short:
        return [*SHORT_CONTESTANTS, *original]
    return [*default_entries(plan.device == "cuda", bf16_pays(plan.device)), *original]


def choose_entries(names: Sequence[str], workload: Workload, asked_for: bool) -> tuple[list[Entry], dict[str, str]]:
    """Who competes, and who is left out, with the reason.

    Raises:
        ValueError: for a name that means nothing, or, where the names were asked for, who cannot compete.
    """
    entries, left_out = [], {}
    for name in dict.fromkeys(names):
        entry = Entry.parse(name)
        reason = why_absent(entry, workload)
        if reason is None:
            entries.append(entry)
        elif asked_for:
            raise ValueError(f"{name} cannot compete: {reason}.")
        else:
            left_out[entry.name] = reason
    return entries, left_out


def measure_peaks(workload: Workload, entries: Sequence[Entry], device: str) -> dict[str, dict[str, Any]]:
    """Of each dtype in use: `best` FLOP/s, and those of each of the `shapes`."""
    found = {}
    for name in sorted({entry.dtype_name for entry in entries}):
        best, shapes = measure_gemm_peak(workload.gemm_shapes(), getattr(torch, name), device)
        found[name] = {"best": best, "shapes": shapes}
    return found


def _best(peak: dict[str, Any]) -> float:
    return float(peak["best"])


def main(argv: Sequence[str]) -> dict[str, Any]:
    """Measures, saves, shows, and returns the report."""
    options, workload, plan = read_options(argv)
    torch.set_num_threads(plan.threads)
    if options.measure_memory is not None:  # a process that `memory_in_new_process` began
        alone = {"peak_memory_bytes": measure_memory(workload, Entry.parse(options.measure_memory), plan)}
        print(json.dumps(alone))
        return alone
    names = options.contestants or default_names(options, plan)
    entries, left_out = choose_entries(names, workload, asked_for=options.contestants is not None)
    for name, reason in left_out.items():
        say(f"{name} is left out: {reason}")

    how = {**dataclasses.asdict(plan), "original": plan.original is not None}  # no path of this machine
    config = {"workload": dataclasses.asdict(workload), "contestants": names, **how}
    benchmark = "pretraining_step" if options.sweep is None else "pretraining_step_sweep"
    report = reporting.describe_run(benchmark, config)
    if report["load_average"] and report["load_average"][0] > 0.5:
        say(f"The machine is busy (load average {report['load_average'][0]:.2f}): times will be too long.")
    if plan.device == "cpu":
        report["products"] = {"library": products.library(), "gflops": products.speeds()}
        say(f"Matrix products in float32 by {products.library()}; GFLOP/s: {products.speeds()}")
    report["gemm_peak"] = measure_peaks(workload, entries, plan.device)

    if options.sweep is not None:

        def compete_at(point: Workload) -> dict[str, Any]:
            return compete(point, entries, plan, report["gemm_peak"], say, with_phases=False)

        axes = options.sweep or list(sweeps.AXES)
        report["points"] = sweeps.sweep(workload, axes, plan.device == "cuda", compete_at, say)
        report["left_out"] = left_out
        save, show = sweeps.save, sweeps.show
    else:

        def memory_of(entry: Entry) -> int:
            return memory_in_new_process(workload, entry, plan)

        report["flops"] = workload.flops()
        report |= compete(workload, entries, plan, report["gemm_peak"], say, memory_of=memory_of)
        report["left_out"] |= left_out
        # A neighbour on the machine can spoil one measurement of the peak: take the better of before and after.
        later = measure_peaks(workload, entries, plan.device)
        report["gemm_peak"] = {name: max(report["gemm_peak"][name], later[name], key=_best) for name in later}
        for row in report["rows"]:
            peak = report["gemm_peak"][Entry.parse(row["name"]).dtype_name]["best"]
            row["gemm_share"] = row["model_flops_per_second"] / peak
        save, show = reporting.save, reporting.show
    if options.output_dir is not None:
        say(f"Written: {save(report, options.output_dir)}")
    show(report)
    return report


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ValueError, DisagreementError) as failure:
        sys.exit(f"error: {failure}")
