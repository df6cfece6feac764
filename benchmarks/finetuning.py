#!/usr/bin/env python
"""Times fine-tuning: examples of similar length together and padded to the longest, against a fixed length.

    python benchmarks/finetuning.py --data_dir glue --task_name mrpc --size small --output_dir benchmarks/results

The same rows, model, optimizer and number of rows a step, by turns; the median over rounds of rows a second:

- `by length`: what `hf-electra-rtd finetune` does
- `random`: in random order, padded to the longest of the batch
- `fixed`: in random order, all padded to `--max_seq_length` (as the original does)

Weights are random: they do not matter here. Last on stdout is the report as one line of JSON.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from typing import Any

import reporting
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import ElectraForPreTraining
from transformers.utils import logging as transformers_logging

from hf_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.data.tokenization import load_tokenizer
from hf_electra_rtd.finetuning.finetune import OwnTaskArguments, TaskArguments
from hf_electra_rtd.finetuning.run import FineTuning, Job
from hf_electra_rtd.finetuning.trainer import FineTuner, FineTuningArguments
from hf_electra_rtd.recipes import SIZES


CONTESTANTS = {"by length": "group_by_length", "random": "random", "fixed": "random"}


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", required=True, help="the benchmark in its official layout")
    parser.add_argument("--benchmark", default="glue", help="(%(default)s)")
    parser.add_argument("--task_name", default="mrpc", help="a task of it (%(default)s)")
    parser.add_argument("--tokenizer", required=True, help="directory or vocab.txt")
    parser.add_argument("--size", default="small", choices=sorted(SIZES), help="(%(default)s)")
    parser.add_argument("--batch_size", type=int, default=32, help="(%(default)s)")
    parser.add_argument("--max_seq_length", type=int, default=128, help="tokens of an example (%(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="a round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of each, by turns (%(default)s)")
    parser.add_argument("--output_dir", help="write the report there, too")
    return parser.parse_args(argv)


def prepare(options: argparse.Namespace, directory: str) -> tuple[FineTuning, Job]:
    """The task with a model of random weights."""
    tokenizer = load_tokenizer(options.tokenizer)
    config: Any = ElectraRTDConfig.from_size(options.size, vocab_size=len(tokenizer)).discriminator_config
    ElectraForPreTraining(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    names = ("benchmark", "data_dir", "max_seq_length", "size")
    given = {name: getattr(options, name) for name in names}
    task_args = TaskArguments(model_name_or_path=directory, task_name=[options.task_name], **given)
    steps: Any = {"max_steps": options.steps, "per_device_train_batch_size": options.batch_size}
    args = FineTuningArguments(output_dir=directory, disable_tqdm=True, report_to="none", **steps)
    fine_tuning = FineTuning(task_args, OwnTaskArguments(), args)
    (job,) = fine_tuning.jobs
    fine_tuning.prepare(job)
    return fine_tuning, job


def examples_per_second(fine_tuning: FineTuning, job: Job, contestant: str, seed: int) -> tuple[float, float]:
    """Examples a second over one round, and the share of the tokens that are no padding."""
    job.args.train_sampling_strategy, job.args.seed = CONTESTANTS[contestant], seed
    decay = job.settings["layerwise_lr_decay"]
    trainer = FineTuner(fine_tuning.make_model(job, seed), job.args, job.kind, decay, train=job.splits["train"])
    real = padded = 0

    def collate(features: list[dict[str, Any]]) -> dict[str, Tensor]:
        nonlocal real, padded
        batch = job.kind.collate(features)
        missing = job.settings["max_seq_length"] - batch["input_ids"].shape[1]
        if contestant == "fixed":
            wide = {name for name, tensor in batch.items() if tensor.shape == batch["input_ids"].shape}
            batch = {name: F.pad(tensor, (0, missing)) if name in wide else tensor for name, tensor in batch.items()}
        real += int(batch["attention_mask"].sum())
        padded += batch["attention_mask"].numel()
        return batch

    trainer.data_collator = collate
    seconds = trainer.train().metrics["train_runtime"]
    return job.settings["batch_size"] * trainer.state.global_step / seconds, real / padded


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    transformers_logging.disable_progress_bar()  # one for every model that is read
    asked = ("task_name", "size", "batch_size", "max_seq_length", "steps", "rounds")
    config = {"device": "cuda" if torch.cuda.is_available() else "cpu"}
    report = reporting.describe_run("finetuning", config | {name: getattr(options, name) for name in asked})
    with tempfile.TemporaryDirectory() as directory:
        fine_tuning, job = prepare(options, directory)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTESTANTS}
        for round_number in range(options.rounds):
            for name, rounds in found.items():
                rounds.append(examples_per_second(fine_tuning, job, name, seed=round_number))
                reporting.say(f"round {round_number + 1} of {options.rounds}: {name} {rounds[-1][0]:,.1f} examples/s")
    base, cells = statistics.median(speed for speed, _ in found["fixed"]), []
    report["rows"] = []
    for name, rounds in found.items():
        speed, real = (statistics.median(values) for values in zip(*rounds, strict=True))
        row = {"what": name, "examples_per_second": speed, "x_fixed": speed / base, "real_share": real}
        report["rows"].append(row)
        cells.append([name, f"{speed:,.1f}", f"{speed / base:.2f}", f"{real:.0%}"])
    headings = ["batches", "examples/s", "x fixed", "tokens that are no padding"]
    reporting.finish(report, headings, cells, output_dir=options.output_dir)


if __name__ == "__main__":
    main()
