"""The same step elsewhere: in the Trainer's loop, in a plain one, and by the original in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
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
from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS
from hf_electra_rtd.recipes import get_size
from hf_electra_rtd.training.console import RTDPrinterCallback


class Loop:
    """What both loops have. The first `warmup` steps of every run are not timed."""

    def __init__(
        self, entry: Entry, pair: ElectraForRTDPretraining, rows: Rows, warmup: int, clock: Callable[[], float]
    ) -> None:
        self.entry, self.rows, self.warmup, self.clock = entry, rows, warmup, clock
        self.model = copy_pair(pair).train()
        if entry.compiled:
            self.model.compile(dynamic=False)


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


class GoogleElectra:
    """The original's graph (`google_electra.py`) on the same rows, from a `checkout`, run by `python`, an interpreter
    with TensorFlow 2.15. Its weights, masks and samples are its own, so only its first loss can be compared. Raises
    ValueError, with its last words, if the process ends."""

    def __init__(
        self, entry: Entry, rows: Rows, num_batches: int, threads: int, checkout: str, python: str, directory: str
    ) -> None:
        self.entry, workload = entry, rows.workload
        batches = rows.batches(num_batches, "cpu")
        np.save(path := Path(directory) / "rows.npy", np.concatenate([batch.originals for batch in batches]))
        tower = workload.config().discriminator_config
        sizes = {name: getattr(tower, name) for name in ("hidden_size", "num_hidden_layers")}
        dropouts = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), workload.dropout)
        given = {
            "checkout": os.path.abspath(checkout),
            "rows": str(path),
            "shape": [workload.batch_size, workload.max_seq_length],
            "segments": batches[0].inputs["token_type_ids"][0].tolist(),
            "special_tokens": SPECIAL_TOKENS,
            "threads": threads,
            "optimizer": {"learning_rate": LEARNING_RATE, "weight_decay_rate": WEIGHT_DECAY, "warmup_steps": 10_000},
            "config": {
                "vocab_size": workload.vocab_size,
                "embedding_size": tower.embedding_size,
                "generator_hidden_size": get_size(workload.size).generator_hidden_size,
                "mask_prob": workload.mask_probability,
                "max_seq_length": workload.max_seq_length,
                "model_hparam_overrides": {**sizes, **dropouts},
            },
        }
        command = [python, str(Path(__file__).with_name("google_electra.py")), json.dumps(given)]
        self._said = Path(directory) / "google_electra.log"
        with self._said.open("w") as log:
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            self._process = subprocess.Popen(command, text=True, **pipes)
        self.first_loss = self._read()

    def run(self, steps: int) -> float:
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self._process.communicate()  # the end of its input ends it

    def _read(self) -> float:
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise ValueError(f"{self.entry.name} ended: {self._said.read_text().strip()[-2000:]}")
        return float(line)
