#!/usr/bin/env python
"""Does the fast path train as the plain one does? Held-out curves of both, and a paired test of where they end.

    python benchmarks/held_out_curve.py                        # bundled corpus, tiny: about 7 minutes on two cores
    python benchmarks/held_out_curve.py --seeds 5 --steps 400 --output_dir benchmarks/results
    python benchmarks/held_out_curve.py --dropout 0 --given_fills --steps 50   # nothing is random: the curves coincide

For each seed the same initial weights are trained twice, on the same rows with the same masks, schedule, parameter
groups and clipping:

- `ours`: ElectraForRTDPretraining with all that makes it fast (its dropout, attention and gathered head), samples from
  the collator's uniforms, ElectraAdamW(bias_correction=True);
- `plain`: stock towers with torch.nn.Dropout, "sdpa" attention and cross_entropy, samples by torch's Gumbel noise,
  torch.optim.AdamW.

They differ in their random numbers (dropout and samples) and in rounding, so that their curves may differ, but not
their expectation. Both are evaluated by the same function: their weights in one ElectraForRTDPretraining, on the same
held-out rows, masks and samples.

A seed is a pair, and the test at the end a paired t-test of each metric over seeds. A difference that is not
significant is not proven to be none: its 95 % interval says how large it could still be. Of three tests where nothing
differs, one falls below p = 0.05 in up to one run of seven.

Last on stdout is the report as one line of JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import reporting
import torch
from accelerate import Accelerator
from contestants import EPSILON, MAX_GRAD_NORM, WEIGHT_DECAY, Arrangement, Gathered, Ours, make_pair
from reporting import say
from rich.console import Console
from rich.table import Table
from timing import Clock
from torch import nn
from torch.utils.data import DataLoader, Subset
from workload import Workload, make_batch

from hf_electra_rtd import (
    BlockFile,
    DataCollatorForRTD,
    ElectraAdamW,
    ElectraForRTDPretraining,
    SequenceStream,
    get_electra_schedule,
    get_parameter_groups,
)
from hf_electra_rtd.data.prepare import DataArguments, PreparationArguments, get_sequences, get_tokenizer
from hf_electra_rtd.recipes import SIZES
from hf_electra_rtd.records import count_cores
from hf_electra_rtd.training.meters import evaluate_held_out
from hf_electra_rtd.training.trainer import held_out_stream


BUNDLED_CORPUS = Path(__file__).parents[1] / "examples" / "data" / "eltec_eng_excerpts.txt.gz"
METRICS = {
    "generator_loss": "generator loss",
    "discriminator_loss": "discriminator loss",
    "discriminator_auc": "discriminator AUC",
}
SIGNIFICANT, CONFIDENCE = 0.05, 0.95
SPLIT_SEED = HELD_OUT_SEED = 0  # of which documents are held out, and of their masks: the same for all seeds
HELD_OUT_BATCH_SIZE = 64

Say = Callable[[str], None]
Point = dict[str, float]


@dataclasses.dataclass(frozen=True)
class Training:
    """How each run trains.

    Attributes:
        steps: of the optimizer.
        warmup_steps: of the schedule.
        learning_rate: its base.
        eval_every: steps between evaluations; there is one before the first step and one behind the last.
        given_fills: the discriminator reads made-up fills, the same in both variants, and nothing is sampled.
        device: `"cpu"` or `"cuda"`.
    """

    steps: int
    warmup_steps: int
    learning_rate: float
    eval_every: int
    given_fills: bool
    device: str


# ---- Text ----


class Text(NamedTuple):
    """Training rows that are full, held-out rows, and their tokenizer."""

    train: Subset
    held_out: BlockFile
    tokenizer: Any


def prepare(files: Sequence[str], vocab_size: int, max_seq_length: int, directory: str) -> Text:
    """Trains a tokenizer and prepares rows, once for all runs. The row at the end of the text, which is padded, is
    left out: the plain arrangement has no masks for padding."""
    data = DataArguments(train_files=list(files), vocab_size=vocab_size)
    arguments = PreparationArguments(max_seq_length=max_seq_length, seed=SPLIT_SEED, disable_tqdm=True)
    tokenizer = get_tokenizer(data, arguments, Path(directory))
    train, held_out = get_sequences(data, arguments, Path(directory), tokenizer)
    assert held_out is not None
    full = np.flatnonzero(train.lengths(np.arange(len(train))) == max_seq_length)
    if not len(full):
        raise ValueError(
            f"The text does not fill one row of {max_seq_length} tokens: give more text, or shorter rows."
        )
    return Text(Subset(train, full.tolist()), held_out, tokenizer)


# ---- Two variants ----


def make_ours(pair: ElectraForRTDPretraining, learning_rate: float) -> tuple[Arrangement, torch.optim.Optimizer]:
    arrangement = Ours(pair)
    groups = get_parameter_groups(arrangement, WEIGHT_DECAY)
    return arrangement, ElectraAdamW(groups, lr=learning_rate, eps=EPSILON, bias_correction=True)


def make_plain(pair: ElectraForRTDPretraining, learning_rate: float) -> tuple[Arrangement, torch.optim.Optimizer]:
    arrangement = Gathered(pair)
    # Stock embeddings never train [PAD]; the original does, and so do we. That is no matter of speed.
    embeddings: Any = arrangement.generator.get_input_embeddings()
    embeddings.padding_idx = None
    groups = get_parameter_groups(arrangement, WEIGHT_DECAY)
    return arrangement, torch.optim.AdamW(groups, lr=learning_rate, eps=EPSILON)


VARIANTS = {"ours": make_ours, "plain": make_plain}


class HeldOut:
    """Evaluates an arrangement: its weights in a pair of our own, on the same rows, masks and samples every time."""

    def __init__(self, text: Text, workload: Workload, device: str) -> None:
        self.accelerator = Accelerator(cpu=device == "cpu")
        collator = DataCollatorForRTD(
            text.tokenizer, workload.mask_probability, seed=HELD_OUT_SEED, max_seq_length=workload.max_seq_length
        )
        # A generator of its own: a loader that begins draws a number, which dropout is not to notice.
        self.loader = self.accelerator.prepare(
            DataLoader(
                held_out_stream(text.held_out), HELD_OUT_BATCH_SIZE, collate_fn=collator, generator=torch.Generator()
            )
        )
        self.pair = make_pair(workload.config(), 0, device)

    def __call__(self, arrangement: Arrangement) -> Point:
        towers: Any = arrangement.model if isinstance(arrangement, Ours) else arrangement
        self.pair.generator.load_state_dict(towers.generator.state_dict())
        self.pair.discriminator.load_state_dict(towers.discriminator.state_dict())
        found = evaluate_held_out(self.pair, self.loader, self.accelerator)
        return {name: found[f"eval_{name}"] for name in METRICS}


def train(
    variant: str, seed: int, workload: Workload, training: Training, text: Text, held_out: HeldOut, say: Say
) -> dict[str, Any]:
    """One run: `variant`, `seed`, `ms_per_step` (without evaluations), and the `points` of its curve.

    Raises:
        ValueError: if a held-out metric is not a number.
    """
    pair = make_pair(workload.config(), seed, training.device)
    arrangement, optimizer = VARIANTS[variant](pair, training.learning_rate)
    arrangement.to(training.device).train()
    schedule = get_electra_schedule(optimizer, training.warmup_steps, training.steps)
    collator = DataCollatorForRTD(
        text.tokenizer, workload.mask_probability, seed=seed, max_seq_length=workload.max_seq_length
    )
    stream = SequenceStream(text.train, training.steps * workload.batch_size, seed)
    loader = DataLoader(stream, workload.batch_size, collate_fn=collator, generator=torch.Generator())
    torch.manual_seed(seed)
    clock, seconds = Clock(training.device), 0.0
    points: list[Point] = []

    def evaluate(step: int) -> None:
        points.append({"step": step, **held_out(arrangement)})
        figures = ", ".join(f"{title} {points[-1][name]:.4f}" for name, title in METRICS.items())
        speed = f"; {1000 * seconds / step:,.0f} ms a step" if step else ""
        say(f"seed {seed}, {variant}: step {step:,} of {training.steps:,}: {figures}{speed}")
        if not all(map(math.isfinite, points[-1].values())):
            raise ValueError(
                f"{variant} with seed {seed} came to something that is not a number at step {step}: lower "
                "--learning_rate, or give more text."
            )

    evaluate(0)
    began = clock()
    for step, inputs in enumerate(loader, 1):
        batch = make_batch(inputs, workload.vocab_size, training.device)
        arrangement(batch, batch.corrupted if training.given_fills else None).total.backward()
        nn.utils.clip_grad_norm_(arrangement.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % training.eval_every == 0 or step == training.steps:
            seconds += clock() - began
            evaluate(step)
            began = clock()
    return {"variant": variant, "seed": seed, "ms_per_step": 1000 * seconds / training.steps, "points": points}


# ---- The test ----


def compare(ours: Sequence[float], plain: Sequence[float]) -> dict[str, Any]:
    """A paired t-test of results that belong together, one pair a seed.

    Returns:
        `ours` and `plain`, each with `mean` and `std`; `difference`, the mean of ours - plain, with its 95 %
        `interval`; `p`, two-sided; `significant`.
    """
    from scipy import stats

    differences = np.subtract(ours, plain, dtype=np.float64)
    mean, count = float(differences.mean()), len(differences)
    error = float(differences.std(ddof=1)) / math.sqrt(count)
    p = float(2 * stats.t.sf(abs(mean) / error, count - 1)) if error else float(mean == 0.0)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * error
    described = {
        name: {"mean": float(np.mean(values)), "std": float(np.std(values, ddof=1))}
        for name, values in (("ours", ours), ("plain", plain))
    }
    interval = [mean - reach, mean + reach]
    return {**described, "difference": mean, "interval": interval, "p": p, "significant": p < SIGNIFICANT}


def compare_ends(curves: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The comparison of each metric behind the last step."""
    ends = {(curve["variant"], curve["seed"]): curve["points"][-1] for curve in curves}
    seeds = sorted({seed for _, seed in ends})
    return {
        name: compare(*([ends[variant, seed][name] for seed in seeds] for variant in VARIANTS)) for name in METRICS
    }


def judge(tests: dict[str, dict[str, Any]], seeds: int, steps: int) -> list[str]:
    """The verdict, in words: first of all metrics, then of each."""
    differing = [METRICS[name] for name, test in tests.items() if test["significant"]]
    place = f"After {steps:,} steps, over {seeds} seeds,"
    if differing:
        verdict = f"{place} ours and plain differ significantly (p < {SIGNIFICANT}) in: {', '.join(differing)}."
    else:
        verdict = f"{place} no difference between ours and plain is significant (p < {SIGNIFICANT})."
    lines = [verdict]
    for name, test in tests.items():
        low, high = test["interval"]
        largest = max(abs(low), abs(high)) / abs(test["plain"]["mean"])
        said = "significant" if test["significant"] else "not significant"
        lines.append(
            f"{METRICS[name]}: {said}, p = {test['p']:.3g}; with {CONFIDENCE:.0%} confidence the difference is at "
            f"most {largest:.2%} of plain's value, either way."
        )
    return lines


# ---- What comes out ----


def make_table(report: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and cells."""
    headings = ["held out, at the end", "ours", "plain", "ours - plain", f"{CONFIDENCE:.0%} interval", "p"]
    cells = []
    for name, test in report["tests"].items():
        both = [f"{test[variant]['mean']:.4f} ± {test[variant]['std']:.4f}" for variant in VARIANTS]
        low, high = test["interval"]
        cells.append(
            [METRICS[name], *both, f"{test['difference']:+.2g}", f"{low:+.2g} to {high:+.2g}", f"{test['p']:.3g}"]
        )
    return headings, cells


def summary_lines(report: dict[str, Any]) -> list[str]:
    """What stands under the table."""
    config, hardware = report["config"], report["hardware"]
    workload, training = config["workload"], config["training"]
    machine = ", ".join(hardware["accelerators"]) if config["device"] == "cuda" else ""
    speeds = {
        variant: float(np.mean([curve["ms_per_step"] for curve in report["curves"] if curve["variant"] == variant]))
        for variant in VARIANTS
    }
    return [
        *report["verdict"],
        f"{workload['size']}, {training['steps']:,} steps of {workload['batch_size']} x {workload['max_seq_length']} "
        f"tokens, vocabulary {workload['vocab_size']:,}, dropout {workload['dropout']:g}; mean ± standard deviation "
        f"over {config['seeds']} seeds; {report['rows']['train']:,} rows to train on, {report['rows']['held_out']:,} "
        f"held out; {machine or hardware['processor']}, {config['threads']} threads.",
        f"ms a step: {', '.join(f'{variant} {speed:,.0f}' for variant, speed in speeds.items())} (not a benchmark of "
        "speed: the variants do not run by turns).",
    ]


def show(report: dict[str, Any]) -> None:
    """Prints the table, the verdict and, last, the report as one line of JSON."""
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    headings, cells = make_table(report)
    table = Table(title="Fast and plain, trained alike", title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == headings[0] else "right")
    for row in cells:
        table.add_row(*row)
    console.print(table)
    for line in summary_lines(report):
        console.print(line, markup=False)
    print(json.dumps(report, ensure_ascii=False, allow_nan=False), flush=True)


def save(report: dict[str, Any], directory: str | os.PathLike[str]) -> Path:
    """Writes the JSON and the curves; returns the path of the latter."""
    return draw(report, reporting.write_json(report, directory).with_suffix(".png"))


_PANELS = {
    "generator_loss": "Generator: loss at masked tokens",
    "discriminator_loss": "Discriminator: loss",
}
_LOOKS = {
    "plain": {"color": "#c8553d", "linewidth": 2.4, "alpha": 0.55},
    "ours": {"color": "#1f5fa8", "linewidth": 1.1, "linestyle": "--", "marker": "o", "markersize": 2.5},
}


def draw(report: dict[str, Any], path: Path) -> Path:
    """The held-out losses of all seeds, ours over plain; without those of the initial weights, which are the same."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    for axis, (name, title) in zip(figure.subplots(1, 2), _PANELS.items(), strict=True):
        for variant, look in _LOOKS.items():
            for curve in report["curves"]:
                if curve["variant"] == variant:
                    points = curve["points"][1:]
                    axis.plot([point["step"] for point in points], [point[name] for point in points], **look)
            axis.get_lines()[-1].set_label(f"{variant}, each seed")
        test = report["tests"][name]
        low, high = test["interval"]
        found = f"ours - plain at the end: {test['difference']:+.2g} ({low:+.2g} to {high:+.2g}), p = {test['p']:.2g}"
        axis.set_title(f"{title}\n{found}", fontsize=9, loc="left")
        axis.set_xlabel("step", fontsize=9)
        axis.set_ylabel("nats a token, held out", fontsize=9)
        reporting.style(axis)
    config = report["config"]
    workload = config["workload"]
    figure.suptitle(
        f"The fast path and the plain one: {workload['size']}, {workload['batch_size']} x "
        f"{workload['max_seq_length']} tokens, dropout {workload['dropout']:g}, {config['seeds']} seeds, "
        f"{config['device']}",
        fontsize=10,
    )
    figure.savefig(path, metadata={"Software": None})
    return path


# ---- Command line ----


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=[str(BUNDLED_CORPUS)], help="text (the bundled corpus)")
    parser.add_argument("--seeds", type=int, default=3, help="pairs of runs (%(default)s)")
    parser.add_argument("--size", default="tiny", choices=sorted(SIZES), help="named size (%(default)s)")
    parser.add_argument("--dropout", type=float, default=0.1, help="in both towers (%(default)s)")
    parser.add_argument("--steps", type=int, default=350, help="of each run (%(default)s)")
    parser.add_argument("--batch_size", type=int, default=16, help="rows a step (%(default)s)")
    parser.add_argument("--max_seq_length", type=int, default=128, help="tokens a row (%(default)s)")
    parser.add_argument("--vocab_size", type=int, default=8192, help="of the tokenizer that is trained (%(default)s)")
    parser.add_argument("--learning_rate", type=float, default=5e-4, help="(%(default)s)")
    parser.add_argument("--warmup_steps", type=int, help="(a tenth of the steps)")
    parser.add_argument("--eval_every", type=int, default=50, help="steps between evaluations (%(default)s)")
    parser.add_argument(
        "--given_fills", action="store_true", help="the discriminator reads made-up fills; nothing is sampled"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="(cuda where there is one)")
    parser.add_argument("--threads", type=int, help="CPU threads (all cores)")
    parser.add_argument("--output_dir", help="write the report there, as JSON and PNG")
    return parser


def read_options(argv: Sequence[str]) -> tuple[argparse.Namespace, Workload, Training]:
    """Options with what follows from them.

    Raises:
        ValueError: for what cannot be done here.
    """
    options = make_parser().parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("There is no CUDA device: leave --device out, or give --device cpu.")
    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if options.threads is None:
        options.threads = count_cores()
    if options.warmup_steps is None:
        options.warmup_steps = options.steps // 10
    if options.seeds < 2:
        raise ValueError(f"--seeds is {options.seeds}: it must be at least 2, for a deviation.")
    names = ("size", "vocab_size", "batch_size", "max_seq_length", "dropout")
    workload = Workload(**{name: getattr(options, name) for name in names})
    training = Training(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Training)})
    return options, workload, training


def main(argv: Sequence[str]) -> dict[str, Any]:
    """Trains, compares, saves, shows, and returns the report."""
    options, workload, training = read_options(argv)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as directory:
        say("Training a tokenizer and preparing rows.")
        text = prepare(options.files, workload.vocab_size, workload.max_seq_length, directory)
        workload = dataclasses.replace(workload, vocab_size=len(text.tokenizer))
        config = {
            "files": [Path(file).name for file in options.files],
            "seeds": options.seeds,
            "device": training.device,
            "threads": options.threads,
            "workload": {key: value for key, value in dataclasses.asdict(workload).items() if key != "seed"},
            "training": dataclasses.asdict(training),
        }
        report = reporting.describe_run("held_out_curve", config)
        report["versions"]["scipy"] = metadata.version("scipy")
        report["rows"] = {"train": len(text.train), "held_out": len(text.held_out)}
        held_out = HeldOut(text, workload, training.device)
        report["curves"] = [
            train(variant, seed, workload, training, text, held_out, say)
            for seed in range(options.seeds)
            for variant in VARIANTS
        ]
    report["tests"] = compare_ends(report["curves"])
    report["verdict"] = judge(report["tests"], options.seeds, training.steps)
    if options.output_dir is not None:
        say(f"Written: {save(report, options.output_dir)}")
    show(report)
    return report


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ValueError as failure:
        sys.exit(f"error: {failure}")
