"""The plan of a call of `finetune`: a model, tasks with their settings, and seeds, all checked before data are
encoded."""

from __future__ import annotations

import copy
import json
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_electra_rtd.base.files import hash_files, hash_model
from hf_electra_rtd.base.recipes import EMBEDDING_LEARNING_RATE, FINETUNING, LORA_LEARNING_RATE, closest_size, get_size
from hf_electra_rtd.base.records import EvaluationRecord, public
from hf_electra_rtd.base.tasks import Task, expand_task_names, get_task
from hf_electra_rtd.data.tokenization import fit_tokenizer, load_tokenizer, refuse_other_tokens, tokenizer_hash
from hf_electra_rtd.data.units import MARKS
from hf_electra_rtd.encoders.families import max_length
from hf_electra_rtd.finetuning import heads
from hf_electra_rtd.finetuning.arguments import (
    NOT_OF_EMBEDDINGS,
    FineTuningArguments,
    OwnTaskArguments,
    TaskArguments,
)
from hf_electra_rtd.finetuning.data import Split, own_task
from hf_electra_rtd.finetuning.kinds import Kind, make_kind
from hf_electra_rtd.pair.places import identify
from hf_electra_rtd.pair.towers import fit_vocabulary
from hf_electra_rtd.training.arguments import OWN_OPTIMIZERS


logger = logging.getLogger(__name__)

LENGTHS = ("max_seq_length", "doc_stride", "max_query_length")
LORA = ("lora_r", "lora_alpha", "lora_dropout")
# Flags that determine the result of a run, recorded as given; `Plan._settings` adds derived settings.
_FLAGS = (
    "learning_rate",
    "num_train_epochs",
    "max_steps",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "weight_decay",
    "optim",
    "optim_args",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "bias_correction",
    "max_grad_norm",
    "train_sampling_strategy",
    "neftune_noise_alpha",
    "select",
    "doc_stride",
    "max_query_length",
    "class_weights",
    "max_train_samples",
)


class StartingModel:
    """The model that every run begins with. Raises a ValueError if the name is not that of an encoder, or if the
    tokenizer has other tokens than the model's own."""

    def __init__(self, flags: TaskArguments) -> None:
        self.name = flags.model_name_or_path  # as it was given
        place = identify(self.name)
        if place.adapter_base:
            raise ValueError(f"{self.name} holds adapters: train on from the model that --merge_adapter writes.")
        self.encoder, self.config, _ = heads.open_encoder(self.name, weights=False)
        self.tokenizer = load_tokenizer(flags.tokenizer or self.encoder)
        if flags.tokenizer and flags.from_scratch:
            fit_vocabulary(self.config, self.tokenizer)
        elif flags.tokenizer:
            refuse_other_tokens(self.encoder, self.tokenizer, f"The model {self.name}")
        fit_tokenizer(self.tokenizer, self.config)
        self.positions = min(max_length(self.config), self.tokenizer.model_max_length)  # the most tokens that it reads
        path = Path(self.encoder)
        sha256 = None
        if path.is_dir():
            sha256 = hash_files([path / "config.json"]) if flags.from_scratch else hash_model(path)
        self.identity = {  # the part that determines the result of a run
            "name_or_path": public(self.name, "model_name_or_path"),
            "sha256": sha256,
            "revision": getattr(self.config, "_commit_hash", None),
            "tokenizer": tokenizer_hash(self.tokenizer),
            "from_scratch": flags.from_scratch,
        }


@dataclass
class Job:
    """A task, ready to be run with any seed."""

    task: Task
    kind: Kind
    settings: dict[str, Any]  # determine the result with model, data and seed; `arguments` in records
    args: FineTuningArguments  # with everything filled in but seed and output_dir
    splits: dict[str, Split] = field(default_factory=dict)  # by name, `train` first; encoded
    finished: dict[int, EvaluationRecord] = field(default_factory=dict)  # by seed: runs that an earlier call finished
    unit: tuple[float, float] = (0.0, 1.0)  # mean and standard deviation of the numbers in training


class Plan:
    """The tasks and seeds of a call. Raises a ValueError for settings that a model or task cannot have, and for a
    model or task that does not exist."""

    def __init__(
        self, flags: TaskArguments, own: OwnTaskArguments, args: FineTuningArguments, command: str = ""
    ) -> None:
        self.flags = flags
        self.own = own
        self.args = args
        self.command = command
        self.directory = Path(str(args.output_dir))
        self.is_main = args.process_index == 0
        self.model = StartingModel(flags)
        self.size = flags.size or guess_size(self.model.config)
        self.seeds = [args.seed + offset for offset in range(flags.seeds)]
        names = flags.task_name
        if own.is_given:
            if names[1:]:
                raise ValueError("Several --task_name are for benchmarks. Your own task has one name.")
            tasks = [own_task(_name_of_data(own) if names == ["all"] else names[0], own)]
        else:
            tasks = [get_task(flags.benchmark, name) for name in expand_task_names(flags.benchmark, names)]
        # The user gave the test split of their own task to have it predicted.
        self.predicts = flags.predict or (tasks[0].benchmark == "own" and bool(tasks[0].test_splits))
        self.jobs = []  # without data: all jobs are checked before any split is encoded
        for task in tasks:
            try:
                self._check(task)
                filled = self._arguments(task)
                settings = self._settings(task, filled)
                kind = make_kind(task, self.model.tokenizer, **{name: settings[name] for name in LENGTHS})
                heads.find_class(kind.auto_class, self.model.name, self.model.config)
            except ValueError as error:
                raise ValueError(f"{task.title}: {error}") from error
            self.jobs.append(Job(task, kind, settings, filled))

    def _check(self, task: Task) -> None:
        """Checks what the table of rules cannot check, because it depends on the task. Raises a ValueError."""
        flags = self.flags
        is_chosen = flags.select == "best" or (flags.keep_models == "best" and len(self.seeds) > 1)
        if is_chosen and not any(name.startswith("dev") for name in task.dev_splits):
            raise ValueError(  # CoNLL-2000 is evaluated on its test split
                "there is no dev split to choose the best model by. Pass --select last, and --keep_models all or none."
            )
        if (self.args.eval_on_start or self.args.eval_strategy != "no") and not task.dev_splits:
            raise ValueError("--eval_on_start and --eval_strategy need a dev split. Leave them out.")
        if flags.class_weights != "none" and task.kind != "classification":
            raise ValueError(f"--class_weights is for classification, not {task.kind}.")

    def _arguments(self, task: Task) -> FineTuningArguments:
        """The arguments of the call, with open values filled in by the task and the recipe."""
        args = copy.copy(self.args)
        if args.learning_rate is None and task.kind == "embedding":
            args.learning_rate = EMBEDDING_LEARNING_RATE
        elif args.learning_rate is None:
            args.learning_rate = LORA_LEARNING_RATE if self.flags.lora else get_size(self.size).learning_rate
        args.num_train_epochs = args.num_train_epochs or task.epochs
        if self.flags.select == "best":
            args.metric_for_best_model = f"eval_{task.main_metric}"
            args.greater_is_better = True
            args.save_only_model = args.save_strategy == "no"  # with --save_strategy, checkpoints can be resumed
            if args.eval_strategy == "no":
                args.eval_strategy = "epoch" if args.save_only_model else args.save_strategy
                args.eval_steps = args.save_steps if args.eval_strategy == "steps" else None
            elif args.save_strategy not in ("no", args.eval_strategy):
                raise ValueError(
                    "--select best saves where it evaluates. Give only one of --eval_strategy and --save_strategy."
                )
            args.save_strategy = args.eval_strategy
            args.save_steps = args.eval_steps or args.save_steps
            args.load_best_model_at_end = True
        return args

    def _settings(self, task: Task, args: FineTuningArguments) -> dict[str, Any]:
        """The settings that determine the result, as the record of a run holds them. Raises a ValueError for flags
        that the optimizer or the model does not support."""
        flags = self.flags
        decay = flags.layerwise_lr_decay
        if decay is None:
            has_one_rate = flags.lora or task.kind in ("correction", "embedding")
            decay = 1.0 if has_one_rate else get_size(self.size).layerwise_lr_decay
        if decay != 1 and args.optim not in OWN_OPTIMIZERS:
            raise ValueError(f"--optim {args.optim} has one learning rate. Pass --layerwise_lr_decay 1.")
        dropout = flags.dropout  # None in the record: the encoder's own
        names_of_dropout = heads.dropouts_of(self.model.config)
        if dropout is None and heads.HIDDEN_DROPOUT in names_of_dropout:
            dropout = FINETUNING["dropout"]
        elif dropout is not None and not names_of_dropout:
            family = self.model.config.model_type
            raise ValueError(f"--dropout: the fields for the dropout of a {family} are not known. Leave it out.")
        positions = self.model.positions
        if flags.max_seq_length is not None and flags.max_seq_length > positions:
            raise ValueError(
                f"--max_seq_length is {flags.max_seq_length}, but {self.model.name} reads {positions} tokens at most."
            )
        known = {**args.to_dict(), **vars(flags)}
        names = [name for name in _FLAGS if task.kind != "embedding" or name not in NOT_OF_EMBEDDINGS]
        if flags.select == "best":
            names += ["eval_strategy", "eval_steps"]
        settings = {
            "labels": task.labels,
            "metrics": task.metrics,
            **{name: known[name] for name in names},
            "layerwise_lr_decay": decay,
            "batch_size": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
            "precision": "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32",
            "dropout": dropout,
            "max_seq_length": int(min(flags.max_seq_length or task.max_seq_length, positions)),
            "lora": {name: known[name] for name in (*LORA, "merge_adapter")} if flags.lora else None,
        }
        return dict(json.loads(json.dumps(settings)))


def _name_of_data(own: OwnTaskArguments) -> str:
    """The default name of the user's own task: the name of its first file without endings, or of its dataset, with a
    hyphen in place of spaces and signs."""
    source = own.train_file or own.validation_file or own.test_file or own.dataset or ""
    name = re.sub(r"(\.[a-z]+)(\.gz|\.zst)?$", "", Path(source).name, flags=re.IGNORECASE)
    return re.sub(rf"[^\w{re.escape(MARKS)}.-]+", "-", name).strip("-.") or "own"


def guess_size(config: Any) -> str:
    """Returns the named size closest to an encoder, whose recipe it gets. Logs it if their widths differ."""
    nearest = closest_size(config.hidden_size, config.num_hidden_layers)
    if config.hidden_size != get_size(nearest).architecture["hidden_size"]:
        logger.info(f"By its width and depth, the model gets the recipe of {nearest} (--size chooses another).")
    return nearest
