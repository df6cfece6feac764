#!/usr/bin/env python
"""Does the fast path train as the plain one does? Held-out curves of both, and a paired test of their ends.

    python benchmarks/held_out_curve.py                        # bundled corpus, tiny: about 7 minutes on two cores
    python benchmarks/held_out_curve.py --seeds 5 --steps 400 --output_dir benchmarks/results
    python benchmarks/held_out_curve.py --dropout 0 --given_fills --steps 50   # nothing is random: the curves coincide

For each seed the same initial weights are trained twice, on the same rows with the same masks, schedule, parameter
groups and clipping:

- `ours`: ElectraForRTDPretraining (loss, gradient and sample in one pass over the masked tokens), samples from the
  collator's uniforms, ElectraAdamW(bias_correction=True);
- `plain`: stock towers with cross_entropy at every token, samples by torch.multinomial, torch.optim.AdamW.

They differ in their random numbers (dropout and samples) and in rounding. So single curves may differ, but not their
expectations. Both are evaluated in the same way: their weights are put into one ElectraForRTDPretraining, which reads
the same held-out rows, masks and samples.

Each seed gives a pair of runs. The test at the end is a paired t-test of each metric over seeds. A difference that is
not significant (p = 0.05) may still exist: its 95 % interval says how large it could be.

The last line on stdout is the report as JSON.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from contestants import EPSILON, MAX_GRAD_NORM, WEIGHT_DECAY, Arrangement, Naive, Ours, make_pair
from measuring import Clock, describe_run, finish, machine_of, say
from scipy import stats
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
from hf_electra_rtd.base.recipes import SIZES
from hf_electra_rtd.base.records import count_cores
from hf_electra_rtd.data.arguments import DataArguments, PreparationArguments
from hf_electra_rtd.data.sequences import get_sequences, get_tokenizer
from hf_electra_rtd.training.meters import held_out_metrics, held_out_tensors
from hf_electra_rtd.training.trainer import held_out_stream


BUNDLED_CORPUS = Path(__file__).parents[1] / "examples" / "data" / "eltec_eng_excerpts.txt.gz"
METRICS = {
    "generator_loss": "generator loss",
    "discriminator_loss": "discriminator loss",
    "discriminator_auc": "discriminator AUC",
}
HELD_OUT_SEED = 0  # for the choice of held-out documents and for their masks; the same for all seeds
HELD_OUT_BATCH_SIZE = 64


class Text(NamedTuple):
    """Full training rows, held-out rows, and their tokenizer."""

    train: Subset
    held_out: BlockFile
    tokenizer: Any


def prepare(files: Sequence[str], vocab_size: int, max_seq_length: int, directory: str) -> Text:
    """Trains a tokenizer and prepares rows, once for all runs. The row at the end of the text is padded and is left
    out, because the plain arrangement has no masks for padding."""
    data = DataArguments(train_files=list(files), vocab_size=vocab_size)
    arguments = PreparationArguments(max_seq_length=max_seq_length, seed=HELD_OUT_SEED, disable_tqdm=True)
    tokenizer = get_tokenizer(data, arguments, Path(directory))
    train, held_out = get_sequences(data, arguments, Path(directory), tokenizer)
    assert held_out is not None
    full = np.flatnonzero(train.lengths(np.arange(len(train))) == max_seq_length)
    return Text(Subset(train, full.tolist()), held_out, tokenizer)


# ---- Two variants ----


def make_ours(pair: ElectraForRTDPretraining, learning_rate: float) -> tuple[Arrangement, torch.optim.Optimizer]:
    arrangement = Ours(pair)
    groups = get_parameter_groups(arrangement, WEIGHT_DECAY)
    return arrangement, ElectraAdamW(groups, lr=learning_rate, eps=EPSILON, bias_correction=True)


def make_plain(pair: ElectraForRTDPretraining, learning_rate: float) -> tuple[Arrangement, torch.optim.Optimizer]:
    arrangement = Naive(pair)
    # Stock embeddings never train [PAD]; the original does, and so do we. This has nothing to do with speed.
    embeddings: Any = arrangement.generator.get_input_embeddings()
    embeddings.padding_idx = None
    groups = get_parameter_groups(arrangement, WEIGHT_DECAY)
    return arrangement, torch.optim.AdamW(groups, lr=learning_rate, eps=EPSILON)


VARIANTS = {"ours": make_ours, "plain": make_plain}


class HeldOut:
    """Evaluates the weights of an arrangement in a pair of ours, on the same rows, masks and samples every time."""

    def __init__(self, text: Text, workload: Workload, device: str) -> None:
        self.accelerator = Accelerator(cpu=device == "cpu")
        length = workload.max_seq_length
        collator = DataCollatorForRTD(
            text.tokenizer, workload.mask_probability, seed=HELD_OUT_SEED, max_seq_length=length
        )
        # A loader draws a number when it begins. With a generator of its own, this does not change dropout.
        drawn = torch.Generator()
        rows = held_out_stream(text.held_out)
        loader = DataLoader(rows, HELD_OUT_BATCH_SIZE, collate_fn=collator, generator=drawn)
        self.loader = self.accelerator.prepare(loader)
        self.pair = make_pair(workload.config(), 0, device)

    @torch.no_grad()
    def __call__(self, arrangement: Arrangement) -> dict[str, float]:
        towers: Any = arrangement.model if isinstance(arrangement, Ours) else arrangement
        self.pair.generator.load_state_dict(towers.generator.state_dict())
        self.pair.discriminator.load_state_dict(towers.discriminator.state_dict())
        self.pair.eval()
        batches = [held_out_tensors(self.pair.measures, self.pair(**batch), batch) for batch in self.loader]
        columns = [torch.cat(column).cpu().numpy() for column in zip(*batches, strict=True)]
        metrics = held_out_metrics(self.pair, columns)
        return {name: metrics[name] for name in METRICS}


def train(
    variant: str, seed: int, workload: Workload, options: argparse.Namespace, text: Text, held_out: HeldOut
) -> dict[str, Any]:
    """Trains one run. Returns `variant`, `seed`, `ms_per_step` (without evaluations), and the `points` of its curve,
    from before the first step to after the last. Raises ValueError for a held-out metric that is not finite."""
    pair = make_pair(workload.config(), seed, options.device)
    arrangement, optimizer = VARIANTS[variant](pair, options.learning_rate)
    arrangement.to(options.device).train()
    schedule = get_electra_schedule(optimizer, options.steps // 10, options.steps)
    length = workload.max_seq_length
    collator = DataCollatorForRTD(text.tokenizer, workload.mask_probability, seed=seed, max_seq_length=length)
    stream = SequenceStream(text.train, options.steps * workload.batch_size, seed)
    loader = DataLoader(stream, workload.batch_size, collate_fn=collator, generator=torch.Generator())
    torch.manual_seed(seed)
    clock = Clock(options.device)
    seconds = 0.0
    points: list[dict[str, float]] = []

    def evaluate(step: int) -> None:
        points.append({"step": step, **held_out(arrangement)})
        figures = ", ".join(f"{title} {points[-1][name]:.4f}" for name, title in METRICS.items())
        say(f"seed {seed}, {variant}: step {step:,} of {options.steps:,}: {figures}")
        if not all(map(math.isfinite, points[-1].values())):
            raise ValueError(f"{variant} with seed {seed} is no number at step {step}. Lower --learning_rate.")

    evaluate(0)
    began = clock()
    for step, inputs in enumerate(loader, 1):
        batch = make_batch(inputs, workload.vocab_size, options.device)
        arrangement(batch, batch.corrupted if options.given_fills else None).total.backward()
        nn.utils.clip_grad_norm_(arrangement.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % options.eval_every == 0 or step == options.steps:
            seconds += clock() - began
            evaluate(step)
            began = clock()
    return {"variant": variant, "seed": seed, "ms_per_step": 1000 * seconds / options.steps, "points": points}


# ---- What comes out ----


def compare(ours: Sequence[float], plain: Sequence[float]) -> dict[str, Any]:
    """Makes a paired t-test of results, one pair for each seed.

    Returns:
        `ours` and `plain`, each with `mean` and `std`; `difference`, the mean of ours - plain, with its 95 %
        `interval`; `p`, two-sided.
    """
    result: dict[str, Any] = {"difference": float(np.mean(ours) - np.mean(plain)), "interval": [0.0, 0.0], "p": 1.0}
    if list(ours) != list(plain):
        test = stats.ttest_rel(ours, plain)
        result["interval"] = [float(limit) for limit in test.confidence_interval(0.95)]
        result["p"] = float(test.pvalue)
    result["ours"] = {"mean": float(np.mean(ours)), "std": float(np.std(ours, ddof=1))}
    result["plain"] = {"mean": float(np.mean(plain)), "std": float(np.std(plain, ddof=1))}
    return result


def compare_ends(curves: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Compares each metric after the last step."""
    ends = {
        variant: [curve["points"][-1] for curve in curves if curve["variant"] == variant]  # by seed
        for variant in VARIANTS
    }
    return {
        name: compare([point[name] for point in ends["ours"]], [point[name] for point in ends["plain"]])
        for name in METRICS
    }


def make_cells(name: str, test: dict[str, Any]) -> list[str]:
    both = [f"{test[variant]['mean']:.4f} ± {test[variant]['std']:.4f}" for variant in VARIANTS]
    low, high = test["interval"]
    return [METRICS[name], *both, f"{test['difference']:+.2g}", f"{low:+.2g} to {high:+.2g}", f"{test['p']:.3g}"]


# ---- Command line ----


def read_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("files", nargs="*", default=[str(BUNDLED_CORPUS)], help="text (the bundled corpus)")
    parser.add_argument("--seeds", type=int, default=3, help="pairs of runs, at least 2 (%(default)s)")
    parser.add_argument("--size", default="tiny", choices=sorted(SIZES), help="named size (%(default)s)")
    parser.add_argument("--dropout", type=float, default=0.1, help="in both towers (%(default)s)")
    parser.add_argument("--steps", type=int, default=350, help="of each run (%(default)s)")
    parser.add_argument("--batch_size", type=int, default=16, help="rows a step (%(default)s)")
    parser.add_argument("--max_seq_length", type=int, default=128, help="tokens a row (%(default)s)")
    parser.add_argument("--vocab_size", type=int, default=8192, help="of the tokenizer that is trained (%(default)s)")
    parser.add_argument("--learning_rate", type=float, default=5e-4, help="(%(default)s)")
    parser.add_argument("--eval_every", type=int, default=50, help="steps between evaluations (%(default)s)")
    parser.add_argument("--given_fills", action="store_true", help="the discriminator reads made-up fills")
    parser.add_argument("--device", choices=("cpu", "cuda"), default=device, help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=count_cores(), help="CPU threads (%(default)s)")
    parser.add_argument("--output_dir", help="write the report there, as JSON")
    options = parser.parse_args(argv)
    if options.seeds < 2:
        parser.error(f"--seeds is {options.seeds}: it must be at least 2, for a deviation.")
    return options


def main(argv: Sequence[str]) -> dict[str, Any]:
    """Trains, compares, saves, shows, and returns the report."""
    options = read_options(argv)
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as directory:
        say("Training a tokenizer and preparing rows.")
        text = prepare(options.files, options.vocab_size, options.max_seq_length, directory)
        workload = Workload(
            options.size,
            vocab_size=len(text.tokenizer),
            batch_size=options.batch_size,
            max_seq_length=options.max_seq_length,
            dropout=options.dropout,
        )
        files = [Path(file).name for file in options.files]
        report = describe_run("held_out_curve", {**vars(options), "files": files, "output_dir": None})
        report["rows"] = {"train": len(text.train), "held_out": len(text.held_out)}
        held_out = HeldOut(text, workload, options.device)
        report["curves"] = [
            train(variant, seed, workload, options, text, held_out)
            for seed in range(options.seeds)
            for variant in VARIANTS
        ]
    report["tests"] = compare_ends(report["curves"])
    headings = ["held out, at the end", "ours", "plain", "ours - plain", "95% interval", "p"]
    cells = [make_cells(name, test) for name, test in report["tests"].items()]
    notes = [f"{options.size}, {options.steps:,} steps, {options.seeds} seeds; {machine_of(report)}"]
    finish(report, headings, cells, notes, options.output_dir)
    return report


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ValueError as failure:
        sys.exit(f"error: {failure}")
