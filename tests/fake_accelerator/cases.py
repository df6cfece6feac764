"""Whole runs of the trainers and commands on the fake device, in a process of their own. The command

    PYTHONPATH=benchmarks FAKE_ACCELERATOR=shim.so python -m tests.fake_accelerator.cases DIRECTORY [REGEX]

writes `outcomes.json`, with what was noted in each case, as (phase, kind, what, times), and its error, if any. The
phases of a run are `begin` (also for its end), `step`, `log` and `evaluation`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import io
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch


from tests.fake_accelerator.device import FakeAccelerator, pretend  # isort: skip  # before torch

import datasets
import numpy as np
import on_gpu
import torch
from accelerate.state import AcceleratorState, GradientState
from transformers import set_seed

from hf_electra_rtd import ElectraForRTDPretraining, ElectraRTDConfig, RTDTrainingArguments
from hf_electra_rtd.base.tasks import Task
from hf_electra_rtd.data.collator import MASKING
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.encoders.families import FAMILIES
from hf_electra_rtd.finetuning.arguments import FineTuningArguments
from hf_electra_rtd.finetuning.data import Split
from hf_electra_rtd.finetuning.heads import add_adapters, load_with_head
from hf_electra_rtd.finetuning.kinds import KINDS, make_kind
from hf_electra_rtd.finetuning.reading import example_features
from hf_electra_rtd.finetuning.trainer import FineTuner
from hf_electra_rtd.inference import correction, detection, likelihood
from hf_electra_rtd.ops import masking
from hf_electra_rtd.pair import modeling_electra_rtd
from hf_electra_rtd.pair.generators import GENERATORS
from hf_electra_rtd.pair.objectives import OBJECTIVES
from hf_electra_rtd.pair.sharing import SHARING
from hf_electra_rtd.training.trainer import RTDTrainer
from tests.conftest import VOCABULARY, make_text, save_corrector, tiny_config
from tests.families_for_tests import make_tokenizer, tiny_family_config


WORK = Path(sys.argv[1])
LENGTH = 32
STEPS = 2
SPECIAL = {"special_token_ids": (2, 3, 4)}


# ---- Pre-training ----


@dataclasses.dataclass
class Run:
    """A run of `RTDTrainer`: the options of its pair, its arguments, its sequences, and a change to its model."""

    pair: dict[str, Any] = dataclasses.field(default_factory=dict)
    args: dict[str, Any] = dataclasses.field(default_factory=dict)
    packing: str = "full"  # or `original`, whose batches are padded
    family: str | None = None
    change: Callable[[Any], Any] = lambda model: model

    def make(self) -> RTDTrainer:
        dropout = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
        config = tiny_config(**dropout, **SPECIAL, **self.pair) if self.family is None else self._of_family()
        model = self.change(ElectraForRTDPretraining(config))
        defaults = {"max_steps": STEPS, "logging_steps": STEPS, "eval_steps": STEPS, "per_device_train_batch_size": 4}
        defaults |= {"max_seq_length": LENGTH, "save_strategy": "no", "warmup_steps": 1, "disable_tqdm": True}
        args = RTDTrainingArguments(str(WORK / "run"), report_to="none", **{**defaults, **self.args})
        assert args.device.type == "cuda"
        train, held_out = blocks(self.packing)
        return RTDTrainer(model, args, train, held_out, tokenizer())

    def _of_family(self) -> ElectraRTDConfig:
        config = tiny_family_config(self.family, vocab_size=len(VOCABULARY))
        return ElectraRTDConfig(discriminator_config=config, **SPECIAL, **self.pair)


@cache
def tokenizer() -> Any:
    return make_tokenizer("WordPiece")


@cache
def blocks(packing: str) -> Any:
    directory = WORK / packing
    directory.mkdir()
    (directory / "text.txt").write_text(make_text(40))
    return prepare_blocks(
        [directory / "text.txt"],
        tokenizer(),
        directory,
        LENGTH,
        packing=packing,
        held_out_share=0.1,
        disable_progress=True,
    )


def combinations() -> Iterator[tuple[str, Run]]:
    """Yields every valid combination of objective, generator and sharing. The kinds of masking take turns."""
    masks = itertools.cycle(MASKING)
    for objective, generator, sharing in itertools.product(OBJECTIVES, GENERATORS, SHARING):
        options = {"objective": objective, "generator": generator, "sharing": sharing}
        try:
            tiny_config(**SPECIAL, **options).check()
        except ValueError:
            continue
        made = Run({**options, "num_hidden_layers": 1}, {"masking": next(masks)})
        if tiny_config(**SPECIAL, **options).sharing == sharing:
            yield " ".join(options.values()), made


def checkpointed(model: Any) -> Any:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def continued(model: Any) -> Any:
    return ElectraForRTDPretraining.from_generator_discriminator_pretrained(model.generator, model.discriminator)


def eager(model: Any) -> Any:
    model.set_attn_implementation("eager")
    return model


ACCUMULATED = {"gradient_accumulation_steps": 2}
WITHIN = {"document_attention": True}
RUNS: dict[str, Run] = {
    **dict(combinations()),
    "accumulated": Run(args=ACCUMULATED),
    "two rates": Run(args={"generator_learning_rate": 1e-4}),
    "muon": Run({"sharing": "gdes"}, {"optim": "muon", "bias_correction": True}),
    "float32": Run(args={"bf16": False}),
    "padded, eager": Run(packing="original", change=eager),
    "padded, electric": Run({"objective": "electric", "generator": "two_tower"}, packing="original"),
    "padded, all tokens": Run({"objective": "all_tokens_mlm"}, packing="original"),
    "documents, eager": Run(args=WITHIN, change=eager),
    "checkpointing, documents": Run(args=WITHIN, change=checkpointed),
    "frozen": Run({"sharing": "none", "freeze_generator": True}),
    "sampling": Run({"temperature": 0.7, "disallow_correct": True}),
    "greedy": Run({"temperature": 0.0}),
    "continued": Run(change=continued),
    **{f"family {name}": Run(family=name, packing="original") for name in FAMILIES},
    **{f"family {name}, full": Run(family=name) for name in ("convbert", "deberta-v2")},
    **{f"family {name}, documents": Run(family=name, args=WITHIN) for name in ("distilbert", "modernbert", "roberta")},
}


def pretrain(run: Run, device: FakeAccelerator) -> None:
    watch(run.make(), device).train()


def watch(trainer: Any, device: FakeAccelerator) -> Any:
    """Makes the methods of a trainer tell the device the phase, and returns the trainer."""
    phases = {"train": "begin", "_run_epoch": "step", "_maybe_log_save_evaluate": "log", "evaluate": "evaluation"}
    for name, phase in phases.items():
        setattr(trainer, name, partial(_during, device, phase, getattr(trainer, name)))
    return trainer


def _during(device: FakeAccelerator, phase: str, method: Any, *args: Any, **kwargs: Any) -> Any:
    with device.during(phase):
        return method(*args, **kwargs)


# ---- Planted faults ----


def plant(fault: Any, device: FakeAccelerator) -> None:
    with patch.object(modeling_electra_rtd, "original_ids", fault):
        pretrain(Run(), device)


def _with_cpu_tensor(ids: Any, slots: Any) -> Any:
    return masking.original_ids(ids, slots) + torch.zeros(ids.shape[1], dtype=torch.int64)


def _with_shape_of_data(ids: Any, slots: Any) -> Any:
    return masking.original_ids(ids, slots) + ids[ids.ne(0)].sum()


FAULTS: dict[str, Callable[[FakeAccelerator], Any]] = {
    "a tensor left on the CPU": partial(plant, _with_cpu_tensor),
    "a shape of data": partial(plant, _with_shape_of_data),
    "memory that is not pinned": partial(pretrain, Run(args={"dataloader_pin_memory": False})),
}


# ---- Fine-tuning ----

WORDS = [
    "the",
    "river",
    "mill",
    "letter",
    "garden",
    "horse",
    "night",
    "morning",
    "window",
    "door",
    "street",
    "old",
    "young",
]
LABELS = ("no", "yes")
TAGS = ("O", "B-X", "I-X")
OF_KIND: dict[str, dict[str, Any]] = {
    "classification": {"metrics": ("accuracy",), "labels": LABELS},
    "multi_label": {"metrics": ("micro_f1",), "labels": LABELS},
    "regression": {"metrics": ("pearson",)},
    "tagging": {"metrics": ("f1",), "labels": TAGS},
    "correction": {"metrics": ("sentence_correction_f1",)},
    "multiple_choice": {"metrics": ("accuracy",)},
    "question_answering": {"metrics": ("f1",)},
}


def examples(kind: str) -> datasets.Dataset:
    draw = np.random.default_rng(0)
    rows = []
    for index in range(16):
        words = draw.choice(WORDS, 3 + index % 9).tolist()
        text = " ".join(words)
        rows.append(
            {
                "classification": {"texts": [text], "label": LABELS[index % 2]},
                "multi_label": {"texts": [text], "label": list(LABELS[: index % 3])},
                "regression": {"texts": [text], "label": index / 4},
                "tagging": {"texts": words, "label": draw.choice(TAGS, len(words)).tolist()},
                "correction": {"texts": [text], "label": " ".join(["river", *words[1:]])},
                "multiple_choice": {"context": text, "question": "which ?", "choices": WORDS[:3], "label": index % 3},
                "question_answering": {"question": "which ?", "context": text, "label": words[:1], "starts": [0]},
            }[kind]
            | {"id": str(index)}
        )
    return datasets.Dataset.from_list(rows, features=example_features(kind))


def tune(
    kind: str,
    device: FakeAccelerator,
    family: str = "electra",
    lora: bool = False,
    **options: Any,
) -> None:
    weights = options.pop("class_weights", None)
    task = Task("own", "Own", kind=kind, **OF_KIND[kind], **options)
    made = make_kind(task, tokenizer(), LENGTH, 4, 8)
    made.class_weights = weights
    model = load_with_head(made.auto_class, encoder(family), task.labels)
    if lora:
        model = add_adapters(model, encoder(family), r=2)
    args = FineTuningArguments(
        str(WORK / "tuned"),
        learning_rate=1e-3,
        num_train_epochs=2,
        per_device_train_batch_size=8,
        logging_steps=2,
        gradient_accumulation_steps=2,
        report_to="none",
        disable_tqdm=True,
    )
    rows = examples(kind)
    splits = {name: Split(rows, 0, {}, made.encode(rows, training=name == "train")) for name in ("train", "dev")}
    trainer = watch(FineTuner(model, args, made, 1.0 if lora else 0.8, **splits), device)
    trainer.train()
    trainer.evaluate()


@cache
def encoder(family: str) -> str:
    config = tiny_family_config(family, vocab_size=len(VOCABULARY))
    pair = ElectraForRTDPretraining(ElectraRTDConfig(discriminator_config=config, **SPECIAL))
    pair.save_towers(WORK / family, tokenizer())
    pair.save_pretrained(WORK / family / "pair")
    tokenizer().save_pretrained(WORK / family / "pair")
    return str(WORK / family / "discriminator")


TUNED: dict[str, Callable[[FakeAccelerator], Any]] = {
    # Embeddings are trained by sentence-transformers.
    **{kind: partial(tune, kind) for kind in KINDS if kind != "embedding"},
    "class weights": partial(tune, "classification", class_weights=[0.5, 1.5]),
    "adapters": partial(tune, "classification", lora=True),
    "tagging, modernbert": partial(tune, "tagging", family="modernbert"),
}


# ---- Commands ----


def command(main: Any, device: FakeAccelerator, *argv: str, model: str = "pair") -> str:
    encoder("electra")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main(["--model", str(WORK / "electra" / model), *argv])
    return printed.getvalue()


def correct(device: FakeAccelerator) -> str:
    directory = Path(encoder("electra")).parent
    save_corrector(directory / "generator", tokenizer(), directory / "corrector")
    flags = ("--threshold", "0", "--margin", "-100")
    return command(correction.main, device, *TEXTS, *flags, model="corrector")


def compare_with_float64(device: FakeAccelerator) -> None:
    """Runs the first part of benchmarks/on_gpu.py. It finds every number wrong, as fake tensors have no values. The
    parts `waits` and `race` need more of CUDA than is pretended."""
    with patch.object(on_gpu, "TRAINED_STEPS", STEPS), contextlib.redirect_stdout(io.StringIO()):
        on_gpu.main(["--only", "correctness", "--size", "tiny", "--out", str(WORK)])


TEXTS = ("the old river .", "the young mill was great .")
COMMANDS: dict[str, Callable[[FakeAccelerator], Any]] = {
    "score": lambda device: command(likelihood.main, device, *TEXTS),
    "detect": lambda device: command(detection.main, device, *TEXTS),
    "detect --as_is": lambda device: command(detection.main, device, *TEXTS, "--as_is"),
    "correct": correct,
    "on_gpu": compare_with_float64,
}


# ---- Running ----


CASES: dict[str, Callable[[FakeAccelerator], Any]] = {
    **{f"pretrain {name}": partial(pretrain, run) for name, run in RUNS.items()},
    **{f"finetune {name}": case for name, case in TUNED.items()},
    **{f"command {name}": case for name, case in COMMANDS.items()},
    **{f"fault {name}": case for name, case in FAULTS.items()},
}


def outcome(case: Callable[[FakeAccelerator], Any]) -> dict[str, Any]:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    set_seed(0)
    device = FakeAccelerator()
    failed = None
    found = None
    with device:
        try:
            found = case(device)
        except Exception as error:
            failed = f"{type(error).__name__}: {str(error)[:200]}"
    return {"failed": failed, "found": found, "noted": [[*what, times] for what, times in device.noted.items()]}


def main() -> None:
    pretend()
    datasets.disable_progress_bars()
    datasets.config.HF_DATASETS_CACHE = WORK / "datasets"
    gc.freeze()  # the trainers collect garbage in every run, which is faster without the imports
    chosen = {name: case for name, case in CASES.items() if re.search((*sys.argv, "")[2], name)}
    (WORK / "outcomes.json").write_text(json.dumps({name: outcome(case) for name, case in chosen.items()}))


if __name__ == "__main__":
    main()
