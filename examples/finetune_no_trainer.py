#!/usr/bin/env python
"""The runs of `finetune.py` with a loop of your own in place of the Trainer: the same flags, rows, model, optimiser,
records and tables. Change the loop as you like.

    accelerate launch examples/finetune_no_trainer.py --model_name_or_path runs/small --task_name rte

Flags of the Trainer that this loop does not know are refused.
"""

import math
import time
from contextlib import nullcontext
from itertools import islice
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers.trainer_pt_utils import LengthGroupedSampler

from hf_electra_rtd.finetuning.arguments import FineTuningArguments
from hf_electra_rtd.finetuning.finetune import make_optimizer
from hf_electra_rtd.finetuning.job import Job, Trained
from hf_electra_rtd.finetuning.judging import Features, answer_split
from hf_electra_rtd.finetuning.layer_decay import get_layer_groups
from hf_electra_rtd.finetuning.suite import run_suite, start_suite
from hf_electra_rtd.training.arguments import refuse_other_options
from hf_electra_rtd.training.cli import run_as_script
from hf_electra_rtd.training.optimization import get_electra_schedule


# What the loop below does; every other option of the Trainer must be left as it is.
OPTIONS = {
    *("output_dir", "seed", "data_seed", "max_steps", "num_train_epochs", "disable_tqdm", "use_cpu", "bf16", "fp16"),
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "logging_steps"),
    *("learning_rate", "warmup_steps", "weight_decay", "max_grad_norm", "train_sampling_strategy"),
    *("adam_beta1", "adam_beta2", "adam_epsilon", "bias_correction"),
}


def fine_tune(job: Job, args: FineTuningArguments, model: Any) -> Trained:
    """The loop: trains the model in place, and says how to have it judged."""
    accelerator = Accelerator(
        mixed_precision="bf16" if args.bf16 else "fp16" if args.fp16 else None,
        # Batches are fetched a step at a time, and the last step of an epoch may have fewer of them.
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1, sync_with_dataloader=False),
        step_scheduler_with_optimizer=False,
    )
    log: list[dict[str, Any]] = []
    steps, epochs, seconds = 0, 0.0, 0.0
    if job.data.train is None:
        model = accelerator.prepare(model)
    else:
        features = Features(job.data.train.encoded.features)
        group = args.per_device_train_batch_size * args.gradient_accumulation_steps * accelerator.num_processes
        order: Any = None
        if args.train_sampling_strategy == "group_by_length":
            order = LengthGroupedSampler(
                group, lengths=features.lengths(), generator=torch.Generator().manual_seed(args.seed)
            )
        loader = DataLoader(
            features,
            args.per_device_train_batch_size,
            sampler=order,
            shuffle=args.train_sampling_strategy == "random",
            collate_fn=job.kind.collate,
            generator=torch.Generator().manual_seed(args.seed),
        )
        groups = get_layer_groups(
            model,
            args.learning_rate,
            job.settings.layer_decay,
            args.weight_decay,
            off_by_one=job.settings.layer_decay_off_by_one,
        )
        model, optimizer, loader = accelerator.prepare(model, make_optimizer(groups, args), loader)
        steps_an_epoch = math.ceil(len(loader) / args.gradient_accumulation_steps)
        total = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * steps_an_epoch)
        every = args.logging_steps if args.logging_steps >= 1 else args.logging_steps * total  # below 1: a share
        every = max(1, round(every))
        schedule = get_electra_schedule(optimizer, args.get_warmup_steps(total), total)
        model.train()
        began = time.perf_counter()
        losses = torch.zeros((), device=accelerator.device)
        hidden = args.disable_tqdm or not accelerator.is_main_process
        with tqdm(total=total, disable=hidden, unit="step") as bar:
            while steps < total:
                batches = iter(loader)
                for _ in range(min(steps_an_epoch, total - steps)):
                    step = list(islice(batches, args.gradient_accumulation_steps))
                    labels = accelerator.reduce(sum(batch["labels"].ne(-100).sum() for batch in step))
                    for number, batch in enumerate(step, start=1):
                        last = number == len(step)
                        with nullcontext() if last else accelerator.no_sync(model):
                            with accelerator.autocast():
                                outputs = model(**job.kind.inputs(batch, training=True))
                            # Processes average their gradients: each holds its share of the sum over all labels.
                            loss = job.kind.loss(outputs, batch).total * accelerator.num_processes / labels
                            accelerator.backward(loss)
                        losses += loss.detach()
                    accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
                    steps += 1
                    bar.update()
                    if steps % every == 0 or steps == total:
                        mean = accelerator.reduce(losses, "mean").item() / (steps - (log[-1]["step"] if log else 0))
                        log.append({"step": steps, "loss": mean, "learning_rate": schedule.get_last_lr()[0]})
                        bar.set_postfix(loss=f"{mean:.4f}")
                        losses.zero_()
        seconds, epochs = time.perf_counter() - began, steps / steps_an_epoch

    def run(rows: Features) -> Any:
        loader = accelerator.prepare(
            DataLoader(rows, args.per_device_eval_batch_size, collate_fn=job.kind.collate, shuffle=False)
        )
        parts = []
        model.eval()
        for batch in tqdm(loader, disable=args.disable_tqdm or not accelerator.is_main_process, leave=False):
            with torch.no_grad(), accelerator.autocast():
                outputs = model(**job.kind.inputs(batch, training=False))
            tensors = tuple(
                accelerator.pad_across_processes(tensor, dim=1, pad_index=-100) for tensor in outputs.values()
            )
            parts.append(accelerator.gather_for_metrics(tensors))
        arrays = tuple(join_rows([part[place] for part in parts]) for place in range(len(parts[0])))
        return arrays[0] if len(arrays) == 1 else arrays

    return Trained(steps, epochs, seconds, log, lambda split: answer_split(job.kind, split, run))


def join_rows(arrays: list[torch.Tensor]) -> Any:
    """Batches as one array, padded with -100 to the longest rows."""
    longest = [max(sizes) for sizes in zip(*(array.shape[1:] for array in arrays), strict=True)]
    padded = []
    for array in arrays:
        missing = [(0, size - have) for have, size in zip(array.shape[1:], longest, strict=True)]
        padded.append(np.pad(array.float().cpu().numpy(), [(0, 0), *missing], constant_values=-100))
    return np.concatenate(padded)


def main(argv: list[str]) -> int:
    suite = start_suite(argv, __doc__, {"output_dir": "runs/finetune_no_trainer"})
    refuse_other_options(suite.args, OPTIONS, "examples/finetune.py")
    if suite.task_args.select == "best":
        raise ValueError("This loop judges at its end alone: leave out --select best, or take examples/finetune.py.")
    return run_suite(suite, fine_tune)


if __name__ == "__main__":
    run_as_script(main)
