"""Fine-tuning on tasks with seeds: what is missing is run, what is there is kept."""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from accelerate import PartialState
from transformers import set_seed

from hf_electra_rtd.cli import refuse, refuse_given
from hf_electra_rtd.data.tokenization import (
    fit_tokenizer,
    load_tokenizer,
    refuse_other_tokens,
    save_tokenizer,
    tokenizer_hash,
)
from hf_electra_rtd.families import max_length
from hf_electra_rtd.files import hash_files, hash_model, remove_partial
from hf_electra_rtd.finetuning import heads
from hf_electra_rtd.finetuning.data import Split, draw_few, encode_task, load_task, own_task
from hf_electra_rtd.finetuning.kinds import Kind, make_kind
from hf_electra_rtd.finetuning.kinds.label_words import with_label_words
from hf_electra_rtd.finetuning.report import write_report
from hf_electra_rtd.finetuning.submission import write_predictions, write_submission
from hf_electra_rtd.finetuning.trainer import FineTuner, FineTuningArguments, layer_heights
from hf_electra_rtd.layers import exchange_layers
from hf_electra_rtd.ops import products
from hf_electra_rtd.places import identify
from hf_electra_rtd.recipes import FINETUNING, LORA_LEARNING_RATE, SIZES, get_size
from hf_electra_rtd.records import EvaluationRecord, collect_hardware, collect_versions, hub_id, public, utc_now
from hf_electra_rtd.tasks import Task, expand_task_names, get_task, guests
from hf_electra_rtd.towers import fit_vocabulary
from hf_electra_rtd.training.arguments import OWN_OPTIMIZERS, keep_freed_memory
from hf_electra_rtd.training.checkpoints import checkpoint_step, latest_checkpoint, list_checkpoints, read_checkpoint


if TYPE_CHECKING:
    from hf_electra_rtd.finetuning.finetune import OwnTaskArguments, TaskArguments

logger = logging.getLogger(__name__)

MODEL_DIRECTORY, MERGED_DIRECTORY, SUBMISSION_DIRECTORY = "model", "merged", "submission"
_LENGTHS, _LORA = ("max_seq_length", "doc_stride", "max_query_length"), ("lora_r", "lora_alpha", "lora_dropout")
# Flags that decide the result of a run as they are; `_check` adds what it derives.
_FLAGS: tuple[str, ...] = (
    *("learning_rate", "num_train_epochs", "max_steps", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"),
    *("weight_decay", "optim", "optim_args", "adam_beta1", "adam_beta2", "adam_epsilon", "bias_correction"),
    *("max_grad_norm", "train_sampling_strategy", "neftune_noise_alpha", "early_stopping_patience", "select"),
    *("layerwise_lr_decay_off_by_one", "doc_stride", "max_query_length", "class_weights"),
    *("max_train_samples", "max_eval_samples", "few_shot"),
)
_FEW_STEPS = 100  # of a run with --few_shot: few examples make few steps in the epochs of a whole task
# What `predict` has to know of a task.
_OF_TASK = ("kind", "columns", "language", "unanswerable", "label_words", "template")


@dataclass
class Job:
    """A task, ready to be run with any seed."""

    task: Task
    kind: Kind
    settings: dict[str, Any]  # what decides the result beside model, data and seed: the `arguments` of its records
    args: FineTuningArguments  # with everything filled in but seed and output_dir
    splits: dict[str, Split] = field(default_factory=dict)  # by name, `train` first; encoded
    drawn: dict[int, Split] = field(default_factory=dict)  # by seed: the examples of --few_shot; encoded
    unit: tuple[float, float] = (0.0, 1.0)  # of numbers in training: their mean and standard deviation

    @property
    def dev(self) -> str | None:
        """The split that models are chosen by."""
        return next((name for name in self.task.dev_splits if name in self.splits), None)


@dataclass
class FineTuning:
    """Fine-tunes a model on tasks. Raises a ValueError for flags that contradict each other, and for a model or task
    that does not exist."""

    task_args: TaskArguments
    own_args: OwnTaskArguments
    args: FineTuningArguments
    command: str = ""

    def __post_init__(self) -> None:
        given, own, lora = self.task_args, self.own_args, self.task_args.lora
        self.directory, self.name = Path(str(self.args.output_dir)), given.model_name_or_path
        self.is_main, names = self.args.process_index == 0, given.task_name
        is_adapted, is_decayed = identify(self.name).adapter_base, given.layerwise_lr_decay not in (None, 1)
        of_benchmarks = own.is_given and (given.data_dir or names[1:])
        refuse(
            (lora and given.from_scratch, "--lora with --from_scratch would adapt random weights that nobody keeps."),
            (lora and is_decayed, "--layerwise_lr_decay is not for --lora: adapters have one learning rate."),
            (is_adapted, f"{self.name} holds adapters: train on from the model that --merge_adapter writes."),
            (of_benchmarks, "--data_dir and several --task_name are for benchmarks. Your own task has one name."),
            (own.is_given and given.benchmark not in ("glue", "own"), "Name a --benchmark or a task of your own."),
        )
        self.encoder_name, self.config, _ = heads.open_encoder(self.name, weights=False)
        self.tokenizer = load_tokenizer(given.tokenizer or self.encoder_name)
        if given.tokenizer and given.from_scratch:
            fit_vocabulary(self.config, self.tokenizer)
        elif given.tokenizer:
            refuse_other_tokens(self.encoder_name, self.tokenizer, f"The model {self.name}")
        fit_tokenizer(self.tokenizer, self.config)
        self.size = given.size or guess_size(self.config)
        path, sha256 = Path(self.encoder_name), None
        if path.is_dir():
            sha256 = hash_files([path / "config.json"]) if given.from_scratch else hash_model(path)
        self.identity = {
            "name_or_path": public(self.name, "model_name_or_path"),
            "sha256": sha256,
            "revision": getattr(self.config, "_commit_hash", None),
            "tokenizer": tokenizer_hash(self.tokenizer),
            "from_scratch": given.from_scratch,
            "head": given.head,
        }
        if own.is_given or given.benchmark == "own":
            tasks = [own_task("own" if names == ["all"] else names[0], own)]
        else:
            refuse_given(
                own, " ".join(vars(own)), "is for a task of your own, and this is of a benchmark. Leave it out."
            )
            tasks = [get_task(given.benchmark, name) for name in expand_task_names(given.benchmark, names)]
        if all(task.kind != "question_answering" for task in tasks):
            refuse_given(given, "doc_stride max_query_length", "is for question answering. Leave it out.")
        tasks = [with_label_words(task, given.label_words, given.template) for task in tasks]
        if given.label_words:
            identify(self.encoder_name).refuse_energies()
        # What one's own task has to predict was given for that.
        self.predicts = given.predict or (tasks[0].benchmark == "own" and bool(tasks[0].test_splits))
        self.seeds = [self.args.seed + offset for offset in range(given.seeds)]
        self.jobs = []  # without data: all are checked before any are read
        for task in tasks:
            try:
                self.jobs.append(self._check(task))
            except ValueError as error:
                raise ValueError(f"{task.title}: {error}") from error

    def _check(self, task: Task) -> Job:
        """A task with its recipe. Settings that it or the model cannot have are a ValueError."""
        given, args, size, lora = self.task_args, copy.copy(self.args), get_size(self.size), self.task_args.lora
        selects, few = given.select == "best", given.few_shot is not None
        has_dev = any(name.startswith("dev") for name in task.dev_splits)  # CoNLL-2000 is evaluated on its test split
        is_chosen = selects or (given.keep_models == "best" and len(self.seeds) > 1)
        has_classes, keeps_head = task.kind == "classification", task.kind == "correction" or task.label_words
        weighs = given.class_weights == "balanced"
        no_choice = "Pass --select last, and --keep_models all or none."
        refuse(
            (args.eval_on_start and not task.dev_splits, "--eval_on_start needs a dev split. Leave it out."),
            (is_chosen and not has_dev, f"there is no dev split to choose the best model by. {no_choice}"),
            (few and not has_classes, f"--few_shot is for classification, not {task.kind}."),
            (few and weighs, "--class_weights is not for --few_shot, which draws as many of each class."),
            (few and selects, "--few_shot leaves no examples to choose a step by: dev is for scores alone."),
            (given.few_shot == 0 and not task.label_words, "--few_shot 0 needs --label_words: a new head must learn."),
            (given.few_shot == 0 and given.seeds > 1, "--few_shot 0 trains on nothing: --seeds changes nothing."),
            (weighs and not has_classes, f"--class_weights is for classification, not {task.kind}."),
            (weighs and task.label_words, "--class_weights is not for --label_words, whose loss is pre-training's."),
            (lora and keeps_head, "--lora is not for correction and --label_words, whose heads are kept."),
            (args.early_stopping_patience and not selects, "--early_stopping_patience needs --select best."),
        )
        if args.learning_rate is None:
            args.learning_rate = LORA_LEARNING_RATE if lora else size.learning_rate
        if given.few_shot and args.num_train_epochs is None and args.max_steps < 1:
            args.max_steps = _FEW_STEPS
        args.num_train_epochs = args.num_train_epochs or task.epochs
        decay = given.layerwise_lr_decay or (1.0 if lora else size.layerwise_lr_decay)
        if decay != 1 and args.optim not in OWN_OPTIMIZERS:
            raise ValueError(f"--optim {args.optim} has one learning rate. Pass --layerwise_lr_decay 1.")
        if decay == 1:
            refuse_given(
                given, "layerwise_lr_decay_off_by_one", "is for a --layerwise_lr_decay below 1. Leave it out."
            )
        if args.optim not in OWN_OPTIMIZERS:
            refuse_given(args, "bias_correction", f"is not for --optim {args.optim}. Leave it out.")
        flags = _FLAGS
        if selects:
            args.eval_strategy = "epoch" if args.eval_strategy == "no" else args.eval_strategy
            args.save_only_model = args.save_strategy == "no"  # the flag asks for checkpoints to go on from
            args.save_strategy, args.save_steps = args.eval_strategy, args.eval_steps or args.save_steps
            args.metric_for_best_model, args.greater_is_better = f"eval_{task.main_metric}", True
            args.load_best_model_at_end = True
            flags += ("eval_strategy", "eval_steps")
        length = given.max_seq_length or task.max_seq_length
        positions = min(max_length(self.config), self.tokenizer.model_max_length)
        if given.max_seq_length is not None and length > positions:
            raise ValueError(f"--max_seq_length is {length}, but {self.name} reads {positions} tokens at most.")
        dropout, dropouts = given.dropout, heads.dropouts_of(self.config)
        if dropout is None and heads.HIDDEN_DROPOUT in dropouts:
            dropout = FINETUNING["dropout"]
        elif dropout is not None and not dropouts:
            raise ValueError(f"--dropout: it is not known what sets that of a {self.config.model_type}. Leave it out.")
        known = {**args.to_dict(), **vars(given)}
        settings = {
            **{name: getattr(task, name) for name in ("labels", "label_words", "template")},
            "metrics": task.metrics,
            **{name: known[name] for name in flags},
            "layerwise_lr_decay": decay,
            "batch_size": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
            "precision": "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32",
            "dropout": dropout,
            "max_seq_length": int(min(length, positions)),
            "lora": {name: known[name] for name in (*_LORA, "merge_adapter")} if lora else None,
        }
        kind = make_kind(task, self.tokenizer, **{name: settings[name] for name in _LENGTHS})
        types = self.tokenizer("a", "b").get("token_type_ids", ())
        if given.head == heads.PAPER_HEAD and task.unanswerable and 1 not in types:
            raise ValueError("--head paper needs a tokenizer that gives token types. Leave it out.")
        heads.find_class(kind.auto_class, self.name, self.config, given.head, task.unanswerable)
        return Job(task, kind, json.loads(json.dumps(settings)), args)  # as the record will have them

    def prepare(self, job: Job) -> None:
        """Reads and encodes the data of a task, and compares what is in its directory. Raises a ValueError for what
        does not fit together, before anything is trained or deleted."""
        given, task, is_trained = self.task_args, job.task, self.task_args.few_shot != 0
        options = {"test": self.predicts, "optional_test": len(self.jobs) > 1}
        job.splits = splits = load_task(task, given.data_dir, train=is_trained, **options)
        for name, split in splits.items():
            number = given.max_train_samples if name == "train" else given.max_eval_samples
            if number and (name == "train" or name in task.dev_splits) and number < len(split.examples):
                chosen = random.Random(0).sample(range(len(split.examples)), number)
                split.examples = split.examples.select(sorted(chosen))
        if is_trained and task.kind == "regression":
            labels = np.array([label for label in splits["train"].examples["label"] if label is not None])
            if labels.min() == labels.max():
                raise ValueError(f"{task.title}: all training labels are {labels[0]:g}, so there is nothing to learn.")
            job.unit = (float(labels.mean()), float(labels.std()))
        if is_trained and given.class_weights == "balanced":
            counts = Counter(label for label in splits["train"].examples["label"] if label is not None)
            job.kind.class_weights = [counts.total() / len(task.labels) / max(counts[one], 1) for one in task.labels]
        if given.overwrite_output_dir:
            deleted = self._runs(task)
        else:
            deleted = [self._directory(task, seed) for seed in self.seeds if self._finished(job, seed) is None]
        own = self.own_args
        sources = (self.name, given.tokenizer, given.data_dir, own.train_file, own.validation_file, own.test_file)
        for path, source in product(deleted, filter(None, sources)):
            if Path(source).resolve().is_relative_to(path.resolve()):
                raise ValueError(f"This call would delete {source}. Choose another --output_dir.")
        encode_task(job.kind, {name: split for name, split in splits.items() if name != "train" or not given.few_shot})
        if given.few_shot:
            number, train = given.few_shot, splits["train"]
            job.drawn = {seed: draw_few(train, task.labels, number, seed) for seed in self.seeds}
            splits["train"] = job.drawn[self.seeds[0]]
        for train in job.drawn.values():
            encode_task(job.kind, {"train": train})
        model = self.make_model(job, job.args.seed)
        if job.settings["layerwise_lr_decay"] != 1:
            layer_heights(model)

    def _finished(self, job: Job, seed: int) -> EvaluationRecord | None:
        """The record of a run that is done; None if there is none. Raises a ValueError if it, or a checkpoint of a run
        that was broken off, has other settings, data or another model, or it lacks a split that is wanted now."""
        path, record = self._directory(job.task, seed), None
        if os.path.lexists(path / EvaluationRecord.FILE):  # a broken link, too
            record = EvaluationRecord.load(path)
            then, data = {**record.arguments, **record.model}, record.data
        elif checkpoint := latest_checkpoint(path):
            path, then = checkpoint, read_checkpoint(checkpoint)[0]["run"]
            data = then.get("data", {})
        else:
            return None
        changed = {key: now for key, now in job.settings.items() if then.get(key) != now}
        different = [f"{key} {then.get(key)!r} (now {now!r})" for key, now in changed.items()]
        different += [f"the model's {key}" for key, now in self.identity.items() if then.get(key) != now]
        sources = ((name, split.source) for name, split in job.splits.items() if name in data)
        different += [f"the data of {name}" for name, now in sources if not now.items() <= data[name].items()]
        if different:
            remedy = "Choose another --output_dir, or delete the results with --overwrite_output_dir."
            raise ValueError(f"{path} is of a run with other settings: {', '.join(different)}. {remedy}")
        if record is not None and (lacking := sorted(job.splits.keys() - data.keys())):
            remedy = "Pass --overwrite_output_dir to train it again, or choose another --output_dir."
            raise ValueError(f"{path} is of a run without the split {', '.join(lacking)}. {remedy}")
        return record

    def _directory(self, task: Task, seed: int) -> Path:
        return self.directory / task.name / f"seed_{seed}"

    def _runs(self, task: Task) -> list[Path]:
        """The directories of a task's runs, by any call. What else lies beside them is the user's."""
        return [path for path in (self.directory / task.name).glob("seed_*") if path.name[5:].isdecimal()]

    def run_task(self, job: Job) -> list[EvaluationRecord]:
        """Runs a task with all seeds, keeps the models that are asked for, and returns the records."""
        title, keep = job.task.title, self.task_args.keep_models
        for path in self._runs(job.task) if self.task_args.overwrite_output_dir and self.is_main else ():
            shutil.rmtree(path)
        PartialState().wait_for_everyone()
        counts = ", ".join(f"{name} {len(split.examples):,}" for name, split in job.splits.items())
        logger.info(f"{title}: examples: {counts}.")
        records: dict[int, EvaluationRecord] = {}
        kept: list[int] = []
        is_trained = False  # a call that finds all runs done deletes nothing
        for seed in self.seeds:
            record = self._finished(job, seed)
            if record is not None:
                logger.info(f"{title}, seed {seed}: already done, {_describe_score(record)}.")
                for path in list_checkpoints(self._directory(job.task, seed)) if self.is_main else ():
                    shutil.rmtree(path)  # it was killed after the record
            records[seed] = record or self._run(job, seed)
            is_trained |= record is None
            kept = {"all": list(records), "best": [best_seed(list(records.values()))], "none": []}[keep]
            for other in records.keys() - set(kept) if self.is_main and is_trained else ():
                for path in (self._directory(job.task, other) / name for name in (MODEL_DIRECTORY, MERGED_DIRECTORY)):
                    if path.exists():
                        logger.info(f"{title}: deletes {path} (--keep_models {keep}).")
                        shutil.rmtree(path)
        for directory in (self._directory(job.task, seed) for seed in kept if "train" in job.splits):
            if not (directory / MODEL_DIRECTORY).exists():
                logger.warning(f"The model of {directory} was not kept. Delete that directory to train it again.")
        return list(records.values())

    def _run(self, job: Job, seed: int) -> EvaluationRecord:
        """Trains, evaluates and predicts with one seed. The record is written when all else is there, or when a report
        fails, which is no reason to train again."""
        task, directory, started = job.task, self._directory(job.task, seed), utc_now()
        splits = {**job.splits, "train": job.drawn[seed]} if job.drawn else job.splits
        # The newest whole checkpoint of a run that was broken off, if a run can go on from it.
        checkpoint = latest_checkpoint(directory)
        manifest = read_checkpoint(checkpoint)[0] if checkpoint else {"files": {}}
        checkpoint = checkpoint if "optimizer.pt" in manifest["files"] else None
        PartialState().wait_for_everyone()  # all have read what the main one may delete
        keep_freed_memory()
        if checkpoint is not None:
            products.use_library(manifest["products"])
            logger.info(f"{task.title}, seed {seed}: goes on from {checkpoint}.")
        elif self.is_main:
            shutil.rmtree(directory, ignore_errors=True)
        args = copy.copy(job.args)
        args.seed, args.data_seed, args.output_dir = seed, seed, str(directory)
        args.eval_on_start = args.eval_on_start and checkpoint is None
        model = self.make_model(job, seed)
        decay = (job.settings["layerwise_lr_decay"], job.settings["layerwise_lr_decay_off_by_one"])
        job.kind.unit = job.unit
        train = splits.get("train")
        data = {name: split.source for name, split in splits.items()}
        described = {**job.settings, **self.identity, "data": data}  # in checkpoints
        trainer = FineTuner(model, args, job.kind, *decay, train, splits.get(job.dev or ""), described)
        seconds, epochs, examples, selection = 0.0, 0.0, 0.0, "as it was given"
        if train is not None:
            result = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            seconds = result.metrics["train_runtime"] - trainer.evaluation_seconds
            epochs, selection = float(trainer.state.epoch or 0.0), "last step"
            before = checkpoint_step(checkpoint) if checkpoint else 0  # seconds are of what came after it
            examples = epochs * len(train.features or ()) * (1 - before / max(trainer.state.global_step, 1))
            if self.task_args.select == "best":
                count = sum(f"eval_{task.main_metric}" in entry for entry in trainer.state.log_history)
                selection = f"best of {count} evaluations by {task.main_metric} on {job.dev}"
            if task.kind == "regression":  # from here on the outputs are the numbers, as those of the saved model
                heads.rescale(model, job.unit[1], job.unit[0])
                job.kind.unit = (0.0, 1.0)
        answers = {name: trainer.answer(split) for name, split in splits.items() if name != "train"}
        record = EvaluationRecord(
            command=self.command,
            started=started,
            finished=utc_now(),
            task=task.name,
            **{name: getattr(task, name) for name in ("benchmark", "language", "kind", "main_metric")},
            dataset={**task.describe(), "id": hub_id(task.dataset)},
            model={**self.identity, **_describe_model(model), "size": self.size},
            arguments=job.settings,
            seed=seed,
            data={name: split.describe() for name, split in splits.items()},
            metrics={name: dict(scores) for name, (_, scores) in answers.items() if scores},
            selection=selection,
            steps=trainer.state.global_step,
            epochs=epochs,
            train_seconds=seconds,
            examples_per_second=examples / seconds if seconds else 0.0,
            hardware=collect_hardware(),
            versions=collect_versions(),
            predictions={name: f"predictions_{name}.jsonl" for name in answers},
            curves=trainer.state.log_history,
        )
        if self.is_main:
            remove_partial(directory)
            owners = {guest.name: (guest, guest.test_splits[0]) for guest in guests(task)}
            for name, (predictions, _) in answers.items():
                owner, split = owners.get(name, (task, name))
                write_predictions(directory / record.predictions[name], predictions, splits[name], task.labels)
                write_submission(owner, split, predictions, splits[name], directory / SUBMISSION_DIRECTORY)
            if self.task_args.keep_models != "none":
                self._save_model(model, directory)
            failure = None
            try:
                for name, (predictions, scores) in answers.items():
                    write_report(directory, name, job.kind, predictions, scores, splits[name])
            except Exception as error:
                failure = error
            record.save(directory)
            for path in list_checkpoints(directory):  # until now they were all that was kept of the training
                shutil.rmtree(path)
            if failure is not None:
                raise failure
        PartialState().wait_for_everyone()
        logger.info(f"{task.title}, seed {seed}: {_describe_score(record)}; {seconds:,.0f} s.")
        return record

    def make_model(self, job: Job, seed: int) -> Any:
        """The model that a run begins with. Raises a ValueError if it does not fit the task."""
        set_seed(seed)
        task, given = job.task, self.task_args
        options: dict[str, Any] = {"unanswerable": task.unanswerable, "from_scratch": given.from_scratch}
        options["unit"] = job.unit
        if given.from_scratch:
            fitted = vars(self.config).items()  # to the tokenizer
            options |= {name: value for name, value in fitted if name == "vocab_size" or name.endswith("_token_id")}
        if job.settings["dropout"] is not None:
            options |= dict.fromkeys(heads.dropouts_of(self.config), job.settings["dropout"])
        model = heads.load_with_head(job.kind.auto_class, self.name, given.head, task.labels, **options)
        exchange_layers(model)
        model.config.problem_type = job.kind.problem_type
        model.config.fine_tuned_for = {  # for `predict`
            "task": {name: getattr(task, name) for name in _OF_TASK},
            "characters": task.kind == "tagging"
            and all(len(word) == 1 for words in job.splits["train"].examples["texts"] for word in words),
            "lengths": {name: job.settings[name] for name in _LENGTHS},
        }
        if given.lora:
            numbers = {name.replace("lora_r", "r"): job.settings["lora"][name] for name in _LORA}
            model = heads.add_adapters(model, self.encoder_name, **numbers)
        return model

    def _save_model(self, model: Any, directory: Path) -> None:
        target, merged = directory / MODEL_DIRECTORY, directory / MERGED_DIRECTORY
        heads.save_adapters(model, target) if self.task_args.lora else model.save_pretrained(target)
        save_tokenizer(self.tokenizer, target)
        if self.task_args.merge_adapter:
            model.merge_and_unload().save_pretrained(merged)
            save_tokenizer(self.tokenizer, merged)


def best_seed(records: Sequence[EvaluationRecord]) -> int:
    """The seed with the best `dev_score`; the first of several."""
    return max(records, key=lambda record: record.dev_score).seed


def guess_size(config: Any) -> str:
    """The named size whose recipe fits an encoder: the one of the nearest width."""
    widths = {name: size.architecture["hidden_size"] for name, size in SIZES.items()}
    nearest = min(widths, key=lambda name: abs(math.log(config.hidden_size / widths[name])))
    if config.hidden_size != widths[nearest]:
        logger.info(f"By the width of its layers, the model gets the recipe of {nearest} (--size chooses another).")
    return nearest


def _describe_model(model: Any) -> dict[str, Any]:
    is_adapted = hasattr(model, "peft_config")
    core = model.get_base_model() if is_adapted else model
    own = (p for name, p in core.named_parameters() if "lora_" not in name and ".original_module." not in name)
    return {
        "architecture": type(core).__name__,
        "module": type(core).__module__,
        "parameters": sum(p.numel() for p in own),
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "peft": "lora" if is_adapted else None,
    }


def _describe_score(record: EvaluationRecord) -> str:
    return "no score" if record.score is None else f"{record.main_metric} {100 * record.score:.1f}"
