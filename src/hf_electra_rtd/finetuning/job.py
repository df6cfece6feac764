"""One task and one model: from flags to everything that its runs share, and a run with one seed."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, set_seed

from hf_electra_rtd.data.tokenization import load_tokenizer
from hf_electra_rtd.finetuning.adapters import MERGED_DIRECTORY, add_adapters, load_adapters, read_adapted, save_merged
from hf_electra_rtd.finetuning.arguments import AdapterArguments, FineTuningArguments, TaskArguments
from hf_electra_rtd.finetuning.data import EncodedSplit, TaskData, TaskRows, encode_task
from hf_electra_rtd.finetuning.heads import Encoder, open_encoder
from hf_electra_rtd.finetuning.kinds.base import Encoding, Kind, Prediction
from hf_electra_rtd.finetuning.kinds.registry import make_kind
from hf_electra_rtd.finetuning.recipe import Recipe, recipe_for
from hf_electra_rtd.finetuning.submission import write_predictions
from hf_electra_rtd.finetuning.tasks import Task
from hf_electra_rtd.layers import exchange_layers
from hf_electra_rtd.records import EvaluationRecord, collect_hardware, collect_versions, utc_now


logger = logging.getLogger(__name__)

MODEL_DIRECTORY = "model"
_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


@dataclass(frozen=True)
class Settings:
    """What decides the outcome of a run beside task, model and seed, with everything filled in."""

    learning_rate: float
    layer_decay: float
    layer_decay_off_by_one: bool
    epochs: float
    max_steps: int
    rows_per_step: int
    lr_scheduler_type: str
    warmup_steps: float
    weight_decay: float
    optimizer: str
    adam_betas: tuple[float, float]
    adam_epsilon: float
    bias_correction: bool
    max_grad_norm: float
    sampling: str
    precision: str
    dropout: float | None
    max_length: int
    doc_stride: int
    select: str
    peft: dict[str, Any] | None


@dataclass
class Source:
    """The model that every run begins with.

    Attributes:
        name: as it was given.
        encoder: its architecture.
        adapters: directory of adapters upon it; None without.
        tokenizer: of it.
        identity: for records: the name without local directories, and a hash of its files or its revision.
        from_scratch: whether weights are drawn anew.
        head: asked for.
    """

    name: str
    encoder: Encoder
    adapters: str | None
    tokenizer: PreTrainedTokenizerBase
    identity: dict[str, Any]
    from_scratch: bool
    head: str


@dataclass
class Job:
    """A task, ready for its runs."""

    task: Task
    kind: Kind
    data: TaskData
    source: Source
    settings: Settings
    recipe: Recipe
    task_args: TaskArguments
    adapter_args: AdapterArguments
    args: FineTuningArguments
    command: str


@dataclass
class Trained:
    """What the loop of a run leaves.

    Attributes:
        steps: optimiser steps.
        epochs: passes over the rows.
        seconds: in training steps, evaluation and saving left out.
        log: a dict a line, each with `step`.
        answer: gives predictions and scores of a split, by the trained model.
    """

    steps: int
    epochs: float
    seconds: float
    log: list[dict[str, Any]]
    answer: Callable[[EncodedSplit], tuple[list[Prediction], dict[str, float]]]


Loop = Callable[[Job, FineTuningArguments, Any], Trained]


@dataclass
class Outcome:
    """What a run found.

    Attributes:
        record: of the run.
        predictions: by split, one for each of its examples.
    """

    record: EvaluationRecord
    predictions: dict[str, list[Prediction]]


def open_source(args: TaskArguments) -> Source:
    """Finds the model and its tokenizer.

    Raises:
        ValueError: if one of them is missing or cannot be read.
    """
    name = str(args.model_name_or_path)
    adapters = name if (Path(name) / "adapter_config.json").is_file() else None
    base = name if adapters is None else read_adapted(name)
    encoder = open_encoder(base, weights=False)
    tokenizer = load_tokenizer(args.tokenizer or (name if adapters else encoder.name))
    identity = {"name_or_path": _without_directories(name), **_fingerprint(encoder, adapters, args.from_scratch)}
    return Source(base, encoder, adapters, tokenizer, identity, args.from_scratch, args.head)


def make_job(
    task: Task,
    rows: TaskRows,
    source: Source,
    task_args: TaskArguments,
    adapter_args: AdapterArguments,
    args: FineTuningArguments,
    command: str,
) -> Job:
    """Fills in the recipe, and encodes the rows.

    Raises:
        ValueError: for flags that do not fit the task or the model.
    """
    config = source.encoder.config
    recipe = recipe_for(config, task, size=task_args.size, peft=adapter_args.peft)
    args = copy.deepcopy(args)
    args.learning_rate = recipe.learning_rate if args.learning_rate is None else args.learning_rate
    args.num_train_epochs = recipe.epochs if args.num_train_epochs is None else args.num_train_epochs
    if task_args.select == "best":
        _choose_best(args, task)
    decay = recipe.layer_decay if task_args.layer_decay is None else task_args.layer_decay
    encoding = Encoding(_max_length(task, task_args, config), task_args.doc_stride)
    kind = make_kind(task, source.tokenizer, encoding)
    settings = Settings(
        learning_rate=args.learning_rate,
        layer_decay=decay,
        layer_decay_off_by_one=task_args.layer_decay_off_by_one,
        epochs=args.num_train_epochs,
        max_steps=args.max_steps,
        rows_per_step=args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        lr_scheduler_type=str(args.lr_scheduler_type),
        warmup_steps=args.warmup_steps,
        weight_decay=args.weight_decay,
        optimizer=str(args.optim),
        adam_betas=(args.adam_beta1, args.adam_beta2),
        adam_epsilon=args.adam_epsilon,
        bias_correction=args.bias_correction,
        max_grad_norm=args.max_grad_norm,
        sampling=args.train_sampling_strategy,
        precision="bfloat16" if args.bf16 else "float16" if args.fp16 else "float32",
        dropout=_dropout(task_args, source, recipe),
        max_length=encoding.max_length,
        doc_stride=encoding.doc_stride,
        select=task_args.select,
        peft=dataclasses.asdict(adapter_args) if adapter_args.peft else None,
    )
    return Job(task, kind, encode_task(kind, rows), source, settings, recipe, task_args, adapter_args, args, command)


def run_seed(job: Job, loop: Loop, seed: int, directory: Path) -> Outcome:
    """Trains, judges and predicts with one seed; leaves model, predictions and, last of all, the record.

    Args:
        job: the task.
        loop: trains the model, in place.
        seed: of the head, dropout and the order of rows.
        directory: of this run.

    Raises:
        ValueError: if the model does not fit the task.
    """
    started = utc_now()
    args = copy.deepcopy(job.args)
    args.seed, args.data_seed, args.output_dir = seed, seed, str(directory)
    model = make_model(job, seed)
    trained = loop(job, args, model)
    predictions: dict[str, list[Prediction]] = {}
    metrics: dict[str, dict[str, float | None]] = {}
    for name, split in (job.data.dev | job.data.test).items():
        predictions[name], scores = trained.answer(split)
        if scores:
            metrics[name] = dict(scores)
    rows = trained.steps * job.settings.rows_per_step
    record = EvaluationRecord(
        command=job.command,
        started=started,
        finished=utc_now(),
        benchmark=job.task.benchmark,
        task=job.task.name,
        language=job.task.language,
        kind=job.task.kind,
        model=_describe_model(job, model),
        arguments=dataclasses.asdict(job.settings),
        seed=seed,
        data=job.data.describe(),
        metrics=metrics,
        main_metric=job.task.main_metric,
        selection=_describe_selection(job, trained.log),
        steps=trained.steps,
        epochs=trained.epochs,
        train_seconds=trained.seconds,
        sentences_per_second=rows / trained.seconds if trained.seconds else 0.0,
        hardware=collect_hardware(),
        versions=collect_versions(),
        predictions={name: f"predictions_{name}.jsonl" for name in predictions},
        curves=trained.log,
    )
    if args.process_index == 0:
        _save(job, model, predictions, record, directory)
    return Outcome(record, predictions)


def make_model(job: Job, seed: int) -> Any:
    """The model that a run begins with.

    Raises:
        ValueError: if it does not fit the task, or nothing in it was trained for it and it is only to be judged.
    """
    source = job.source
    set_seed(seed)
    options = {} if job.settings.dropout is None else dict.fromkeys(_DROPOUTS, job.settings.dropout)
    model: Any = job.kind.make_model(source.name, source.head, from_scratch=source.from_scratch, **options)
    exchange_layers(model)
    if source.adapters is not None:
        model = load_adapters(model, source.adapters, trainable=job.data.train is not None)
    elif job.data.train is None and type(model).__name__ not in (source.encoder.config.architectures or ()):
        raise ValueError(
            f"{source.name} was not fine-tuned for {job.task.title}: its head would be random. Give a fine-tuned "
            "model, or leave out --evaluate_only."
        )
    if job.adapter_args.peft is not None:
        model = add_adapters(model, source.name, job.adapter_args)
    return model


def _choose_best(args: FineTuningArguments, task: Task) -> None:
    if not task.dev_splits:
        raise ValueError(f"{task.title} has no dev split to choose the best model by: leave out --select best.")
    if args.eval_strategy == "no":
        args.eval_strategy = "epoch"
    args.save_strategy, args.save_steps = args.eval_strategy, args.eval_steps or args.save_steps
    args.load_best_model_at_end, args.save_total_limit = True, 1
    args.metric_for_best_model, args.greater_is_better = f"eval_{task.main_metric}", True


def _max_length(task: Task, args: TaskArguments, config: Any) -> int:
    wanted = args.max_length or task.max_length
    positions = getattr(config, "max_position_embeddings", None)  # encoders with relative positions have no limit
    if positions is None or wanted <= positions:
        return wanted
    if args.max_length is not None:
        raise ValueError(f"--max_length is {wanted}: the model has {positions} positions.")
    logger.warning(f"{task.title}: rows of {positions} tokens, not {wanted}: the model has no more positions.")
    return int(positions)


def _dropout(args: TaskArguments, source: Source, recipe: Recipe) -> float | None:
    names = source.encoder.config.to_dict()
    if all(name in names for name in _DROPOUTS):
        return recipe.dropout if args.dropout is None else args.dropout
    if args.dropout is not None:
        raise ValueError(
            f"--dropout: the configuration of {source.name} has no {' and '.join(_DROPOUTS)}. Leave it out: the "
            "model's own stays."
        )
    return None


def _without_directories(name: str) -> str:
    return "/".join(Path(name).parts[-2:]) if Path(name).exists() else name


def _fingerprint(encoder: Encoder, adapters: str | None, from_scratch: bool) -> dict[str, Any]:
    """What tells this model from another of the same name: a hash of its local files, or the Hub's revision."""
    directory = Path(encoder.name)
    if not directory.is_dir():
        return {"revision": getattr(encoder.config, "_commit_hash", None)}
    files = [directory / "config.json"] if from_scratch else sorted(directory.glob("*.safetensors"))
    files += [] if adapters is None else sorted(Path(adapters).glob("*.safetensors"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.read_bytes())
    return {"sha256": digest.hexdigest()}


def _describe_model(job: Job, model: Any) -> dict[str, Any]:
    core = model.get_base_model() if hasattr(model, "get_base_model") else model
    return {
        **job.source.identity,
        "architecture": type(core).__name__,
        "parameters": sum(parameter.numel() for parameter in core.parameters()),
        "trained_parameters": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "from_scratch": job.source.from_scratch,
        "head": job.source.head,
        "peft": job.adapter_args.peft,
        "size": job.recipe.size,
    }


def _describe_selection(job: Job, log: list[dict[str, Any]]) -> str:
    if job.data.train is None:
        return "as it was given"
    if job.task_args.select == "last":
        return "last step"
    count = sum(f"eval_{job.task.main_metric}" in entry for entry in log)
    return f"best of {count} evaluations by {job.task.main_metric} on {next(iter(job.data.dev))}"


def _save(
    job: Job, model: Any, predictions: dict[str, list[Prediction]], record: EvaluationRecord, directory: Path
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for checkpoint in directory.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    for name, split in (job.data.dev | job.data.test).items():
        write_predictions(directory / record.predictions[name], predictions[name], split.split.examples)
    if job.task_args.keep_models != "none" and job.data.train is not None:
        model.save_pretrained(directory / MODEL_DIRECTORY)
        job.kind.tokenizer.save_pretrained(directory / MODEL_DIRECTORY)
        if job.adapter_args.merge_adapter:
            save_merged(model, job.kind.tokenizer, directory / MERGED_DIRECTORY)
    record.save(directory)
