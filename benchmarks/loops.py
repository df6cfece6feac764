"""The same step inside of a training loop: the Trainer's, and a plain one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from contestants import EPSILON, LEARNING_RATE, MAX_GRAD_NORM, WEIGHT_DECAY, Entry, copy_pair
from torch import nn
from torch.utils.data import DataLoader
from transformers import PrinterCallback, TrainerCallback
from workload import Rows

from hf_electra_rtd import (
    ElectraAdamW,
    ElectraForRTDPretraining,
    RTDTrainer,
    RTDTrainingArguments,
    get_electra_schedule,
    get_parameter_groups,
)
from hf_electra_rtd.training.console import RTDPrinterCallback


class Loop:
    """What both loops have.

    Args:
        entry: how it is run.
        pair: its weights are copied.
        rows: what it trains on.
        warmup: steps at the beginning of every run that are not timed.
        clock: of the device.
    """

    def __init__(
        self, entry: Entry, pair: ElectraForRTDPretraining, rows: Rows, warmup: int, clock: Callable[[], float]
    ) -> None:
        self.entry, self.rows, self.warmup, self.clock = entry, rows, warmup, clock
        self.model = copy_pair(pair).train()
        if entry.compiled:
            self.model.compile(dynamic=False)

    @property
    def name(self) -> str:
        return self.entry.name


class BareLoop(Loop):
    """Stream, collator, zero_grad, forward, backward, clip, step, schedule."""

    def run(self, steps: int) -> float:
        device, total = self.model.device, self.warmup + steps
        optimizer = ElectraAdamW(get_parameter_groups(self.model, WEIGHT_DECAY), lr=LEARNING_RATE, eps=EPSILON)
        schedule = get_electra_schedule(optimizer, 0, total)
        pinned = device.type == "cuda"
        loader = DataLoader(
            self.rows.stream(total), self.rows.workload.batch_size, collate_fn=self.rows.collator, pin_memory=pinned
        )
        began = self.clock()
        for index, batch in enumerate(loader):
            inputs = {name: tensor.to(device, non_blocking=pinned) for name, tensor in batch.items()}
            with torch.autocast(device.type, torch.bfloat16, enabled=self.entry.bf16):
                loss = self.model(**inputs).loss
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if index + 1 == self.warmup:
                began = self.clock()
        return (self.clock() - began) / steps


class TrainerLoop(Loop):
    """`RTDTrainer` over the same rows, with a directory for it. It has at least one step of warm-up."""

    def __init__(
        self,
        entry: Entry,
        pair: ElectraForRTDPretraining,
        rows: Rows,
        warmup: int,
        clock: Callable[[], float],
        directory: str | os.PathLike[str],
    ) -> None:
        super().__init__(entry, pair, rows, max(1, warmup), clock)
        self.directory = Path(directory) / "trainer"

    def run(self, steps: int) -> float:
        workload = self.rows.workload
        args = RTDTrainingArguments(
            output_dir=str(self.directory),
            max_steps=self.warmup + steps,
            per_device_train_batch_size=workload.batch_size,
            max_seq_length=workload.max_seq_length,
            mask_probability=workload.mask_probability,
            learning_rate=LEARNING_RATE,
            weight_decay=WEIGHT_DECAY,
            adam_epsilon=EPSILON,
            max_grad_norm=MAX_GRAD_NORM,
            warmup_steps=0,
            seed=workload.seed,
            logging_strategy="no",
            eval_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            bf16=self.entry.bf16,
            use_cpu=self.model.device.type == "cpu",
        )
        watch = _Watch(self.warmup, args.max_steps, self.clock)
        trainer = RTDTrainer(
            self.model, args, self.rows.blocks, processing_class=self.rows.tokenizer, callbacks=[watch]
        )
        for printer in (PrinterCallback, RTDPrinterCallback):
            trainer.pop_callback(printer)
        trainer.train()  # `accelerate` wraps the model's `forward` once; the next round's Trainer finds it wrapped
        return (watch.ended - watch.began) / steps


class _Watch(TrainerCallback):
    """Reads the clock behind the last step that is not timed and behind the last one."""

    def __init__(self, first: int, last: int, clock: Callable[[], float]) -> None:
        self.first, self.last, self.clock = first, last, clock
        self.began = self.ended = float("nan")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.first:
            self.began = self.clock()
        if state.global_step == self.last:
            self.ended = self.clock()
