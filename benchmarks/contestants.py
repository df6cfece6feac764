"""The contestants: ways to arrange the joint step of both towers, each with the same weights and batches.

A contestant's name is its arrangement and how it is run: `ours`, `naive-bf16`, `ours-bf16-compiled`. Each has a method
`run(steps)`, which takes so many steps and returns the seconds per step.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from measuring import Clock
from torch import Tensor, nn
from transformers import TrainerCallback
from workload import Batch, Rows

from hf_electra_rtd import (
    ElectraAdamW,
    ElectraForRTDPretraining,
    ElectraRTDConfig,
    RTDTrainer,
    RTDTrainingArguments,
    get_parameter_groups,
)
from hf_electra_rtd.base.recipes import get_size
from hf_electra_rtd.data.tokenization import SPECIAL_TOKENS
from hf_electra_rtd.encoders.families import inputs_of
from hf_electra_rtd.ops import IGNORED


LEARNING_RATE = 1e-4
WEIGHT_DECAY = 0.01
EPSILON = 1e-6
MAX_GRAD_NORM = 1.0


class Losses(NamedTuple):
    """Scalar losses; `total` is the one that is trained."""

    generator: Tensor
    discriminator: Tensor
    total: Tensor


# ---- Arrangements ----


class Arrangement(nn.Module, ABC):
    """Two towers, and how their losses are computed."""

    description: ClassVar[str]
    generator_encoder: nn.Module
    discriminator: nn.Module

    @abstractmethod
    def forward(self, batch: Batch, corrupted_BL: Tensor | None = None) -> Losses:
        """Computes the losses. With `corrupted_BL`, the discriminator reads these rows, and nothing is sampled."""

    @abstractmethod
    def compile_parts(self) -> None: ...

    def make_optimizer(self) -> torch.optim.Optimizer:
        groups = get_parameter_groups(self, WEIGHT_DECAY)
        return torch.optim.AdamW(groups, lr=LEARNING_RATE, eps=EPSILON, fused=True)


class StockTowers(Arrangement):
    """Stock towers that share one embedding block, with the weights of a pair."""

    def __init__(self, pair: ElectraForRTDPretraining) -> None:
        super().__init__()
        self.generator = _stock_copy(pair.generator)
        self.discriminator = _stock_copy(pair.discriminator)
        self.discriminator.base_model.embeddings = self.generator.base_model.embeddings
        self.generator_weight = pair.config.generator_weight
        self.discriminator_weight = pair.config.discriminator_weight
        self.generator_encoder = self.generator.base_model

    def compile_parts(self) -> None:
        self.generator.compile(dynamic=False)
        self.discriminator.compile(dynamic=False)

    def add_up(self, generator_loss: Tensor, discriminator_loss: Tensor) -> Losses:
        total = self.generator_weight * generator_loss + self.discriminator_weight * discriminator_loss
        return Losses(generator_loss, discriminator_loss, total)

    def discriminate(self, batch: Batch, corrupted_BL: Tensor) -> Tensor:
        replaced_BL = corrupted_BL.ne(batch.originals).long()
        loss: Tensor = self.discriminator(**self.read(batch, corrupted_BL), labels=replaced_BL).loss
        return loss

    def read(self, batch: Batch, ids_BL: Tensor) -> dict[str, Tensor]:
        """Returns the arguments of either tower."""
        inputs = {"input_ids": ids_BL, "token_type_ids": batch.inputs["token_type_ids"]}
        return inputs_of(self.generator.config, inputs)


def _stock_copy(tower: Any) -> Any:
    """Returns the stock model with a tower's weights, without the pair's changes of its layers."""
    stock = type(tower)(copy.deepcopy(tower.config))  # a copy, since the configuration names the pair's attention
    if stock._supports_sdpa:
        stock.set_attn_implementation("sdpa")
    stock.load_state_dict(tower.state_dict())
    return stock


class Naive(StockTowers):
    description = "stock towers called with labels (B, L): logits at every token, torch.multinomial"

    def forward(self, batch: Batch, corrupted_BL: Tensor | None = None) -> Losses:
        output = self.generator(**self.read(batch, batch.inputs["input_ids"]), labels=batch.labels)
        if corrupted_BL is None:
            masked_BL = batch.labels.ne(IGNORED)
            with torch.no_grad():
                probabilities_MV = output.logits[masked_BL].softmax(dim=-1)
                corrupted_BL = batch.inputs["input_ids"].clone()
                corrupted_BL[masked_BL] = torch.multinomial(probabilities_MV, 1).squeeze(-1)
        return self.add_up(output.loss, self.discriminate(batch, corrupted_BL))


class Ours(Arrangement):
    description = "ElectraForRTDPretraining, DataCollatorForRTD's batches, ElectraAdamW"

    def __init__(self, pair: ElectraForRTDPretraining) -> None:
        super().__init__()
        self.model = copy_pair(pair)
        self.generator_encoder = self.model.generator.base_model
        self.discriminator = self.model.discriminator

    def forward(self, batch: Batch, corrupted_BL: Tensor | None = None) -> Losses:
        inputs = dict(batch.inputs)
        if corrupted_BL is not None:
            inputs["corrupted_input_ids"] = corrupted_BL
        output = self.model(**inputs)
        return Losses(output.generator_loss, output.discriminator_loss, output.loss)

    def compile_parts(self) -> None:
        self.model.compile(dynamic=False)

    def make_optimizer(self) -> torch.optim.Optimizer:
        groups = get_parameter_groups(self.model, WEIGHT_DECAY)
        return ElectraAdamW(groups, lr=LEARNING_RATE, eps=EPSILON, weight_decay=WEIGHT_DECAY)


def make_pair(config: ElectraRTDConfig, seed: int, device: torch.device | str) -> ElectraForRTDPretraining:
    """Makes the pair from whose weights all contestants start."""
    torch.manual_seed(seed)
    pair: Any = ElectraForRTDPretraining(config)
    return pair.to(device)


def copy_pair(pair: ElectraForRTDPretraining) -> ElectraForRTDPretraining:
    """Makes another pair with the same weights."""
    copied: Any = ElectraForRTDPretraining(pair.config)
    copied.to(pair.device)
    copied.load_state_dict(pair.state_dict())
    return copied


# ---- Names ----


ARRANGEMENTS: dict[str, type[Arrangement]] = {"naive": Naive, "ours": Ours}
TRAINER = "trainer"
ORIGINAL = "google-electra"
DESCRIPTIONS = {
    **{name: arrangement.description for name, arrangement in ARRANGEMENTS.items()},
    TRAINER: "RTDTrainer around the model of `ours`, data included; without logging, evaluation and checkpoints",
    ORIGINAL: "google-research/electra's graph under TensorFlow, in its own process, with its own weights and masks",
}


@dataclass(frozen=True)
class Entry:
    """The parts of a contestant's name: a key of `DESCRIPTIONS`, and whether it has bfloat16 autocast and
    `torch.compile`."""

    base: str
    bf16: bool = False
    compiled: bool = False

    @classmethod
    def parse(cls, name: str) -> Entry:
        """Parses a name. Raises ValueError for an unknown one."""
        base, *modifiers = re.split("-(?=bf16|compiled)", name)
        if base not in DESCRIPTIONS or not set(modifiers) <= {"bf16", "compiled"} or (base == ORIGINAL and modifiers):
            raise ValueError(
                f"There is no contestant {name!r}: give one of {', '.join(DESCRIPTIONS)}, with -bf16 or -compiled or "
                f"both behind it ({ORIGINAL} has none)."
            )
        return cls(base, bf16="bf16" in modifiers, compiled="compiled" in modifiers)

    @property
    def name(self) -> str:
        return self.base + ("-bf16" if self.bf16 else "") + ("-compiled" if self.compiled else "")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the operands of its matrix products."""
        return torch.bfloat16 if self.bf16 else torch.float32


# ---- Contestants ----


class Contestant:
    """An arrangement with its optimizer, which trains on batches that lie on the device already."""

    def __init__(self, entry: Entry, pair: ElectraForRTDPretraining, batches: Sequence[Batch]) -> None:
        self.entry = entry
        self.device = pair.device
        self.batches = batches
        self.clock = Clock(pair.device)
        self.arrangement: Arrangement = ARRANGEMENTS[entry.base](pair).to(pair.device).train()
        self.optimizer = self.arrangement.make_optimizer()
        if entry.compiled:
            self.arrangement.compile_parts()

    def losses(self, batch: Batch, corrupted_BL: Tensor | None = None) -> Losses:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.entry.bf16):
            losses: Losses = self.arrangement(batch, corrupted_BL)
        return losses

    def update(self) -> None:
        nn.utils.clip_grad_norm_(self.arrangement.parameters(), MAX_GRAD_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, batch: Batch) -> None:
        self.losses(batch).total.backward()
        self.update()

    def run(self, steps: int) -> float:
        began = self.clock()
        for index in range(steps):
            self.step(self.batches[index % len(self.batches)])
        return (self.clock() - began) / steps


class TrainerLoop:
    """`RTDTrainer` on the same rows, with a directory of its own. It has at least one step of warm-up."""

    def __init__(
        self, entry: Entry, pair: ElectraForRTDPretraining, rows: Rows, warmup: int, directory: str | os.PathLike[str]
    ) -> None:
        self.entry = entry
        self.rows = rows
        self.warmup = max(1, warmup)
        self.directory = Path(directory) / "trainer"
        self.model = copy_pair(pair).train()
        if entry.compiled:
            self.model.compile(dynamic=False)

    def run(self, steps: int, callbacks: Sequence[TrainerCallback] = ()) -> float:
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
        watch = _Watch(self.warmup, Clock(self.model.device))
        trainer = RTDTrainer(
            self.model, args, self.rows.blocks, processing_class=self.rows.tokenizer, callbacks=[watch, *callbacks]
        )
        trainer.train()  # `accelerate` wraps the model's `forward` once; the next round's Trainer finds it wrapped
        return (watch.ended - watch.began) / steps


class _Watch(TrainerCallback):
    """Reads the clock after the last step that is not timed, and after the last step."""

    def __init__(self, warmup: int, clock: Clock) -> None:
        self.warmup = warmup
        self.clock = clock

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.warmup:
            self.began = self.clock()
        if state.global_step == state.max_steps:
            self.ended = self.clock()


class GoogleElectra:
    """The original's graph (`google_electra.py`) on the same rows. `checkout` is a directory with the original,
    `python` an interpreter with TensorFlow 2.15. Its weights, masks and samples are its own, so only its first loss
    can be compared. Raises ValueError, with the end of its log, if the process ends."""

    def __init__(self, rows: Rows, num_batches: int, threads: int, checkout: str, python: str, directory: str) -> None:
        workload = rows.workload
        batches = rows.batches(num_batches, "cpu")
        rows_file = Path(directory) / "rows.npy"
        np.save(rows_file, np.concatenate([batch.originals for batch in batches]))
        tower = workload.config().discriminator_config
        settings = {
            "checkout": os.path.abspath(checkout),
            "rows": str(rows_file),
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
                "model_hparam_overrides": {
                    "hidden_size": tower.hidden_size,
                    "num_hidden_layers": tower.num_hidden_layers,
                    "hidden_dropout_prob": workload.dropout,
                    "attention_probs_dropout_prob": workload.dropout,
                },
            },
        }
        command = [python, str(Path(__file__).with_name("google_electra.py")), json.dumps(settings)]
        self._log = Path(directory) / "google_electra.log"
        with self._log.open("w") as log:
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            self._process = subprocess.Popen(command, text=True, **pipes)
        self.first_loss = self._read()

    def run(self, steps: int) -> float:
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self._process.communicate()  # closing its input ends the process

    def _read(self) -> float:
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise ValueError(f"{ORIGINAL} ended: {self._log.read_text().strip()[-2000:]}")
        return float(line)
