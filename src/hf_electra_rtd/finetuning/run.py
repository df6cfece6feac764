"""Fine-tuning on tasks with seeds: what is missing is run, what is there is kept."""

from __future__ import annotations

import copy
import json
import logging
import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import set_seed

from hf_electra_rtd.data.tokenization import load_tokenizer, save_tokenizer, tokenizer_hash
from hf_electra_rtd.files import hash_files, hash_model
from hf_electra_rtd.finetuning.adapters import adapter_base, add_adapters, load_fine_tuned, save_adapters
from hf_electra_rtd.finetuning.arguments import FineTuningArguments, LoraArguments, OwnTaskArguments, TaskArguments
from hf_electra_rtd.finetuning.data import Split, encode_task, load_task, own_task
from hf_electra_rtd.finetuning.heads import head_of, labels_of, load_with_head, open_encoder
from hf_electra_rtd.finetuning.kinds import Kind, make_kind
from hf_electra_rtd.finetuning.optimization import check_layers, guess_size
from hf_electra_rtd.finetuning.submission import write_predictions, write_submission
from hf_electra_rtd.finetuning.trainer import LAYERWISE_OPTIMIZERS, FineTuner
from hf_electra_rtd.layers import exchange_layers
from hf_electra_rtd.recipes import FINETUNING, LORA_LEARNING_RATE, get_size
from hf_electra_rtd.records import EvaluationRecord, collect_hardware, collect_versions, hub_id, public, utc_now
from hf_electra_rtd.tasks import Task, expand_task_names, get_task, guests


logger = logging.getLogger(__name__)

MODEL_DIRECTORY, MERGED_DIRECTORY, SUBMISSION_DIRECTORY = "model", "merged", "submission"
_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
# Flags that decide the result of a run as they are; `_settings` adds what it derives.
_TASK_FLAGS = ("layerwise_lr_decay_off_by_one", "doc_stride", "max_query_length", "select")
_TRAINING_FLAGS = (
    *("learning_rate", "num_train_epochs", "max_steps", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"),
    *("weight_decay", "optim", "optim_args", "adam_beta1", "adam_beta2", "adam_epsilon", "bias_correction"),
    *("max_grad_norm", "train_sampling_strategy", "neftune_noise_alpha"),
)


@dataclass
class Job:
    """A task, ready to be run with any seed."""

    task: Task
    kind: Kind
    splits: dict[str, Split]  # by name, `train` first; encoded
    settings: dict[str, Any]  # what decides the result beside model, data and seed: the `arguments` of its records
    args: FineTuningArguments  # with everything filled in but seed and output_dir
    dev: str | None  # the split that models are chosen by


class FineTuning:
    """Fine-tunes a model on tasks.

    Raises:
        ValueError: for flags that contradict each other, and a model or task that does not exist.
    """

    def __init__(
        self,
        task_args: TaskArguments,
        own_args: OwnTaskArguments,
        lora_args: LoraArguments,
        args: FineTuningArguments,
        command: str = "",
    ) -> None:
        self.task_args, self.own_args, self.lora_args, self.args = task_args, own_args, lora_args, args
        self.command, self.directory, self.name = command, Path(str(args.output_dir)), task_args.model_name_or_path
        self.is_main = args.process_index == 0
        lora, decay = lora_args.lora, task_args.layerwise_lr_decay
        if lora and task_args.from_scratch:
            raise ValueError("--lora with --from_scratch would train adapters for random weights that nobody keeps.")
        if lora and decay not in (None, 1):
            raise ValueError("--layerwise_lr_decay is not for --lora: adapters have one learning rate.")
        if task_args.evaluate_only and (task_args.from_scratch or lora):
            raise ValueError("--evaluate_only takes a model as it is. Leave out --from_scratch and --lora.")
        if not task_args.evaluate_only and adapter_base(self.name) is not None:
            raise ValueError(
                f"{self.name} holds adapters, which can only be evaluated (--evaluate_only). Merge them first "
                "(--merge_adapter), and pass the merged model."
            )
        self.encoder_name, self.config, _ = open_encoder(self.name, weights=False)
        self.tokenizer = load_tokenizer(task_args.tokenizer or self.encoder_name)
        self.size = task_args.size or guess_size(self.config)
        path, sha256 = Path(self.encoder_name), None
        if path.is_dir():
            sha256 = hash_files([path / "config.json"]) if task_args.from_scratch else hash_model(path)
        self.identity = {
            "name_or_path": public(self.name, "model_name_or_path"),
            "sha256": sha256,
            "revision": getattr(self.config, "_commit_hash", None),
            "tokenizer": tokenizer_hash(self.tokenizer),
            "from_scratch": task_args.from_scratch,
            "head": head_of(self.config) if task_args.evaluate_only else task_args.head,
        }
        names = [] if own_args.is_given else expand_task_names(task_args.benchmark, task_args.task_name)
        self.tasks = [get_task(task_args.benchmark, name) for name in names] or [self._own_task()]
        self.predicts = task_args.predict or (own_args.is_given and bool(self.tasks[0].test_splits))
        self.seeds = [args.seed + offset for offset in range(1 if task_args.evaluate_only else task_args.seeds)]

    def _own_task(self) -> Task:
        name = "own" if self.task_args.task_name == ["all"] else self.task_args.task_name[0]
        if Path(name).name != name or name in (".", ".."):
            raise ValueError(f"--task_name is {name!r}: it names a directory in --output_dir, so it is a plain word.")
        own, labels = self.own_args, tuple(self.own_args.labels or ())
        if self.task_args.evaluate_only:
            own = replace(own, train_file=None, validation_share=0.0)
            if not labels and own.task_kind != "regression":
                labels = labels_of(self.config)
        return own_task(name, own, labels)

    # ---- Preparation ----

    def prepare(self, task: Task) -> Job:
        """Reads and encodes the data of a task, fills in its recipe, and compares what is in its directory.

        Raises:
            ValueError: for flags or data that do not fit the task or the model, and for results of other settings,
                data or weights.
        """
        given, args = self.task_args, copy.copy(self.args)
        settings = self._settings(task, args)
        if not task.dev_splits and (given.select == "best" or (given.keep_models == "best" and len(self.seeds) > 1)):
            flag = "--select last" if given.select == "best" else "--keep_models all or none"
            raise ValueError(f"{task.title} has no dev split to choose the best model by. Pass {flag}.")
        if given.select == "best":
            args.load_best_model_at_end, args.save_total_limit, args.save_only_model = True, 1, True
            args.metric_for_best_model, args.greater_is_better = f"eval_{task.main_metric}", True
        kind = make_kind(task, self.tokenizer, **_lengths(settings))
        train, optional_test = not given.evaluate_only, len(self.tasks) > 1
        splits = load_task(task, given.data_dir, train=train, test=self.predicts, optional_test=optional_test)
        dev = next((name for name in task.dev_splits if name in splits), None)
        job = Job(task, kind, splits, settings, args, dev)
        if not given.overwrite_output_dir:
            for seed in self.seeds:
                self._finished(job, seed)
        elif Path(self.name).resolve().is_relative_to((self.directory / task.name).resolve()):
            raise ValueError(f"--overwrite_output_dir would delete {self.name}. Choose another --output_dir.")
        encode_task(kind, splits)
        self.make_model(job, args.seed)  # what is wrong with it is said before anything is trained or deleted
        return job

    def _settings(self, task: Task, args: FineTuningArguments) -> dict[str, Any]:
        """Fills in the recipe, and returns what decides the result beside model, data and seed."""
        given, lora, size = self.task_args, asdict(self.lora_args), get_size(self.size)
        if args.learning_rate is None:
            args.learning_rate = LORA_LEARNING_RATE if lora["lora"] else size.learning_rate
        args.num_train_epochs = task.epochs if args.num_train_epochs is None else args.num_train_epochs
        decay = given.layerwise_lr_decay or (1.0 if lora["lora"] else size.layerwise_lr_decay)
        if decay != 1 and not given.evaluate_only:
            check_layers(self.config)
            if args.optim not in LAYERWISE_OPTIMIZERS:
                raise ValueError(f"--optim {args.optim} has one learning rate. Pass --layerwise_lr_decay 1.")
        if given.select == "best":
            args.eval_strategy = "epoch" if args.eval_strategy == "no" else args.eval_strategy
            args.save_strategy, args.save_steps = args.eval_strategy, args.eval_steps or args.save_steps
        training, evaluations = args.to_dict(), ("eval_strategy", "eval_steps") if given.select == "best" else ()
        del lora["merge_adapter"]
        settings = {
            "labels": task.labels,
            "metrics": task.metrics,
            **{name: training[name] for name in _TRAINING_FLAGS + evaluations},
            **{name: getattr(given, name) for name in _TASK_FLAGS},
            "layerwise_lr_decay": decay,
            "batch_size": args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
            "precision": "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32",
            "dropout": self._dropout(),
            "max_seq_length": self._max_seq_length(task),
            "lora": lora if lora["lora"] else None,
        }
        plain: dict[str, Any] = json.loads(json.dumps(settings))
        return plain

    def _max_seq_length(self, task: Task) -> int:
        wanted = self.task_args.max_seq_length or task.max_seq_length
        # Encoders with relative positions have no limit; RoBERTa's positions begin behind that of padding.
        positions = min(getattr(self.config, "max_position_embeddings", wanted), self.tokenizer.model_max_length)
        if wanted > positions and self.task_args.max_seq_length is not None:
            raise ValueError(f"--max_seq_length is {wanted}, but the model has only {positions} positions.")
        return int(min(wanted, positions))

    def _dropout(self) -> float | None:
        if set(_DROPOUTS) <= self.config.to_dict().keys():
            return float(FINETUNING["dropout"] if self.task_args.dropout is None else self.task_args.dropout)
        if self.task_args.dropout is not None:
            raise ValueError(f"--dropout: {self.name} has no {' and '.join(_DROPOUTS)} to set. Leave it out.")
        return None

    def _finished(self, job: Job, seed: int) -> EvaluationRecord | None:
        """The record of a run that is done; None if there is none, or it lacks a split that is wanted now. Raises a
        ValueError if it has other settings, data or another model."""
        directory = self._directory(job.task, seed)
        if not (directory / EvaluationRecord.FILE).exists():
            return None
        record = EvaluationRecord.load(directory)
        missing = [name for name in job.splits if name not in record.data]
        then, model = record.arguments, record.model
        different = [
            f"{key} {then.get(key)!r} (now {now!r})" for key, now in job.settings.items() if then.get(key) != now
        ]
        different += [f"the model's {key}" for key, now in self.identity.items() if model.get(key) != now]
        different += [
            f"the data of {name}"
            for name, split in job.splits.items()
            if name in record.data and not split.source.items() <= record.data[name].items()
        ]
        if different:
            raise ValueError(
                f"{directory} holds a run with other settings: {', '.join(different)}. Choose another --output_dir, "
                "or delete the results with --overwrite_output_dir."
            )
        return None if missing else record

    def _directory(self, task: Task, seed: int) -> Path:
        return self.directory / task.name / f"seed_{seed}"

    # ---- Runs ----

    def run_task(self, job: Job) -> list[EvaluationRecord]:
        """Runs a task with all seeds, keeps the models that are asked for, and returns the records."""
        title, keep = job.task.title, self.task_args.keep_models
        if self.task_args.overwrite_output_dir and self.is_main:
            shutil.rmtree(self.directory / job.task.name, ignore_errors=True)
        PartialState().wait_for_everyone()
        logger.info(f"{title}: {_describe(job)}")
        records: dict[int, EvaluationRecord] = {}
        kept: list[int] = []
        for seed in self.seeds:
            record = self._finished(job, seed)
            if record is not None:
                logger.info(f"{title}, seed {seed}: already done, {_describe_score(record)}.")
            records[seed] = record or self._run(job, seed)
            kept = {"all": list(records), "best": [best_seed(list(records.values()))], "none": []}[keep]
            for other in records.keys() - set(kept) if self.is_main else ():
                for name in (MODEL_DIRECTORY, MERGED_DIRECTORY):
                    shutil.rmtree(self._directory(job.task, other) / name, ignore_errors=True)
        for seed in kept if "train" in job.splits else ():
            if not (self._directory(job.task, seed) / MODEL_DIRECTORY).exists():
                logger.info(f"{title}, seed {seed}: its model was not kept, so it is trained again.")
                records[seed] = self._run(job, seed)
        return list(records.values())

    def _run(self, job: Job, seed: int) -> EvaluationRecord:
        """Trains, evaluates and predicts with one seed; the record is written last, when all else is there."""
        task, splits, directory, started = job.task, job.splits, self._directory(job.task, seed), utc_now()
        if self.is_main:
            shutil.rmtree(directory, ignore_errors=True)
        args = copy.copy(job.args)
        args.seed, args.data_seed, args.output_dir = seed, seed, str(directory)
        train, dev = splits.get("train"), splits.get(job.dev or "")
        model = self.make_model(job, seed)
        decay, off_by_one = (job.settings[f"layerwise_lr_decay{suffix}"] for suffix in ("", "_off_by_one"))
        trainer = FineTuner(model, args, job.kind, decay, off_by_one, train, dev)
        seconds, epochs, selection = 0.0, 0.0, "as it was given"
        if train is not None:
            seconds = trainer.train().metrics["train_runtime"] - trainer.evaluation_seconds
            epochs, selection = float(trainer.state.epoch or 0.0), "last step"
            if self.task_args.select == "best":
                count = sum(f"eval_{task.main_metric}" in entry for entry in trainer.state.log_history)
                selection = f"best of {count} evaluations by {task.main_metric} on {job.dev}"
        examples = epochs * len(train.features or ()) if train else 0
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
            for checkpoint in directory.glob("checkpoint-*"):
                shutil.rmtree(checkpoint)
            owners = {guest.name: (guest, guest.test_splits[0]) for guest in guests(task)}
            for name, (predictions, _) in answers.items():
                owner, split = owners.get(name, (task, name))
                write_predictions(directory / record.predictions[name], predictions, splits[name].examples)
                write_submission(owner, split, predictions, splits[name], directory / SUBMISSION_DIRECTORY)
            if self.task_args.keep_models != "none" and train is not None:
                self._save_model(model, directory)
            record.save(directory)
        PartialState().wait_for_everyone()
        logger.info(f"{task.title}, seed {seed}: {_describe_score(record)}; {seconds:,.0f} s.")
        return record

    def make_model(self, job: Job, seed: int) -> Any:
        """The model that a run begins with. Raises a ValueError if it does not fit the task."""
        set_seed(seed)
        task, settings, auto_class = job.task, job.settings, job.kind.auto_class
        labels = task.labels if task.kind in ("classification", "tagging") else ()
        if self.task_args.evaluate_only:
            model = load_fine_tuned(auto_class, self.name, labels, task.unanswerable)
            core = model if adapter_base(self.name) is None else model.get_base_model()
            if type(core).__name__ not in (self.config.architectures or ()):
                raise ValueError(
                    f"{self.name} was not fine-tuned for {task.title}: its head would be random. Pass a fine-tuned "
                    "model, or leave out --evaluate_only."
                )
            return model
        options: dict[str, Any] = {"unanswerable": task.unanswerable, "from_scratch": self.task_args.from_scratch}
        if settings["dropout"] is not None:
            options |= dict.fromkeys(_DROPOUTS, settings["dropout"])
        model = load_with_head(auto_class, self.name, self.task_args.head, labels, **options)
        exchange_layers(model)
        facts = {name: getattr(task, name) for name in ("kind", "language", "unanswerable", "label_scale")}
        sentences = job.splits["train"].examples["words"] if task.kind == "tagging" else ()
        characters = bool(sentences) and all(len(word) == 1 for words in sentences for word in words)
        model.config.fine_tuned_for = {"task": facts, "characters": characters, "lengths": _lengths(settings)}
        if self.lora_args.lora:
            return add_adapters(model, self.encoder_name, self.lora_args)
        return model

    def _save_model(self, model: Any, directory: Path) -> None:
        target = directory / MODEL_DIRECTORY
        save_adapters(model, target) if self.lora_args.lora else model.save_pretrained(target)
        save_tokenizer(self.tokenizer, target)
        if self.lora_args.merge_adapter:
            model.merge_and_unload().save_pretrained(directory / MERGED_DIRECTORY)
            save_tokenizer(self.tokenizer, directory / MERGED_DIRECTORY)


def _lengths(settings: dict[str, Any]) -> dict[str, int]:
    return {name: settings[name] for name in ("max_seq_length", "doc_stride", "max_query_length")}


def _describe_model(model: Any) -> dict[str, Any]:
    is_adapted = hasattr(model, "peft_config")
    core = model.get_base_model() if is_adapted else model
    own = [p.numel() for name, p in core.named_parameters() if "lora_" not in name and ".original_module." not in name]
    return {
        "architecture": type(core).__name__,
        "parameters": sum(own),
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "peft": "lora" if is_adapted else None,
    }


def best_seed(records: Sequence[EvaluationRecord]) -> int:
    """The seed with the best score; the first of several."""
    return max(records, key=lambda record: -math.inf if record.score is None else record.score).seed


def _describe(job: Job) -> str:
    counts = ", ".join(f"{name} {len(split.examples):,}" for name, split in job.splits.items())
    names = ("learning_rate", "layerwise_lr_decay", "batch_size", "num_train_epochs", "max_steps")
    recipe = ", ".join(f"{name} {job.settings[name]:g}" for name in names)
    return f"examples: {counts}; {recipe if 'train' in job.splits else 'evaluated as it is'}."


def _describe_score(record: EvaluationRecord) -> str:
    return "no score" if record.score is None else f"{record.main_metric} {100 * record.score:.1f}"
