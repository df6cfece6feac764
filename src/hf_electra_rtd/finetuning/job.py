"""One task and one model: from flags to everything that its runs share, and a run with one seed."""

from __future__ import annotations

import copy
import dataclasses
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase, set_seed
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

from hf_electra_rtd.data.tokenization import load_tokenizer, tokenizer_hash
from hf_electra_rtd.finetuning.adapters import (
    ADAPTER_FILE,
    MERGED_DIRECTORY,
    Adapted,
    add_adapters,
    load_adapters,
    read_adapted,
    save_adapters,
    save_merged,
)
from hf_electra_rtd.finetuning.arguments import AdapterArguments, FineTuningArguments, TaskArguments
from hf_electra_rtd.finetuning.data import EncodedSplit, TaskData, TaskRows, encode_task
from hf_electra_rtd.finetuning.heads import Encoder, open_encoder
from hf_electra_rtd.finetuning.kinds.base import Encoding, Kind, Prediction
from hf_electra_rtd.finetuning.kinds.registry import make_kind
from hf_electra_rtd.finetuning.recipe import Recipe, recipe_for
from hf_electra_rtd.finetuning.submission import write_predictions
from hf_electra_rtd.finetuning.tasks import Task
from hf_electra_rtd.layers import exchange_layers
from hf_electra_rtd.publishing.identity import hash_model
from hf_electra_rtd.records import EvaluationRecord, collect_hardware, collect_versions, utc_now
from hf_electra_rtd.towers import save_tokenizer


logger = logging.getLogger(__name__)

MODEL_DIRECTORY = "model"
_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


@dataclass(frozen=True)
class Settings:
    """What decides the outcome of a run beside model, rows and seed, with everything filled in."""

    labels: tuple[str, ...]
    metrics: tuple[str, ...]
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
    max_query_length: int
    select: str
    evaluated: str
    peft: dict[str, Any] | None


@dataclass
class Source:
    """The model that every run begins with.

    Attributes:
        name: as it was given.
        encoder: its architecture, and where its weights lie.
        adapted: what the adapters in `name` were trained for; None without adapters.
        tokenizer: of it.
        identity: for records: the name without local directories, and a hash of its files or its revision.
        from_scratch: whether weights are drawn anew.
        head: asked for.
    """

    name: str
    encoder: Encoder
    adapted: Adapted | None
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
    adapted = read_adapted(name) if (Path(name) / ADAPTER_FILE).is_file() else None
    if adapted is not None and not args.evaluate_only:
        raise ValueError(
            f"{name} holds adapters: they are judged (--evaluate_only), not trained further. Merge them first "
            "(--merge_adapter), and give the merged model."
        )
    encoder = open_encoder(name if adapted is None else adapted.base, weights=False)
    tokenizer = load_tokenizer(args.tokenizer or (encoder.name if adapted is None else name))
    identity = {
        "name_or_path": _without_directories(name),
        **_fingerprint(encoder, None if adapted is None else name, args.from_scratch),
        "tokenizer": tokenizer_hash(tokenizer),
    }
    head = args.head if adapted is None else adapted.head
    return Source(name, encoder, adapted, tokenizer, identity, args.from_scratch, head)


def labels_of(name: str) -> tuple[str, ...]:
    """The labels that a model was fine-tuned for.

    Args:
        name: a directory or Hub id.
    """
    if (Path(name) / ADAPTER_FILE).is_file():
        return read_adapted(name).labels
    config: Any = open_encoder(name, weights=False).config
    return tuple(config.id2label[index] for index in sorted(config.id2label))


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
    if not task.dev_splits and task_args.keep_models == "best" and task_args.seeds > 1:
        raise ValueError(f"{task.title} has no dev split to choose the best seed by: say --keep_models all or none.")
    args = copy.deepcopy(args)
    args.learning_rate = recipe.learning_rate if args.learning_rate is None else args.learning_rate
    args.num_train_epochs = recipe.epochs if args.num_train_epochs is None else args.num_train_epochs
    if task_args.select == "best":
        _choose_best(args, task)
    decay = recipe.layer_decay if task_args.layer_decay is None else task_args.layer_decay
    encoding = Encoding(
        _max_length(task, task_args, config, source.tokenizer), task_args.doc_stride, task_args.max_query_length
    )
    kind = make_kind(task, source.tokenizer, encoding)
    settings = Settings(
        labels=task.labels,
        metrics=task.metrics,
        learning_rate=args.learning_rate,
        layer_decay=decay,
        layer_decay_off_by_one=task_args.layer_decay_off_by_one,
        epochs=args.num_train_epochs,
        max_steps=args.max_steps,
        rows_per_step=args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size,
        lr_scheduler_type=SchedulerType(args.lr_scheduler_type).value,
        warmup_steps=args.warmup_steps,
        weight_decay=args.weight_decay,
        optimizer=OptimizerNames(args.optim).value,
        adam_betas=(args.adam_beta1, args.adam_beta2),
        adam_epsilon=args.adam_epsilon,
        bias_correction=args.bias_correction,
        max_grad_norm=args.max_grad_norm,
        sampling=args.train_sampling_strategy,
        precision="bfloat16" if args.bf16 else "float16" if args.fp16 else "float32",
        dropout=_dropout(task_args, source, recipe),
        max_length=encoding.max_length,
        doc_stride=encoding.doc_stride,
        max_query_length=encoding.max_query_length,
        select=task_args.select,
        evaluated=_describe_evaluation(args, task_args),
        peft=_describe_adapters(adapter_args),
    )
    return Job(task, kind, encode_task(kind, rows), source, settings, recipe, task_args, adapter_args, args, command)


def run_seed(job: Job, loop: Loop, seed: int, directory: Path) -> Outcome:
    """Trains, judges and predicts with one seed; leaves model and predictions. The record is the caller's to save,
    when all that belongs to the run is there.

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
    rows = 0.0 if job.data.train is None else trained.epochs * len(job.data.train.encoded.features)
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
        dataset=job.task.describe_dataset(),
    )
    if args.process_index == 0:
        _save(job, model, predictions, record.predictions, directory)
    return Outcome(record, predictions)


def make_model(job: Job, seed: int) -> Any:
    """The model that a run begins with.

    Raises:
        ValueError: if it does not fit the task, or nothing in it was trained for it and it is only to be judged.
    """
    source = job.source
    set_seed(seed)
    if source.adapted is not None and source.adapted.labels != job.task.labels:
        raise ValueError(
            f"{source.name} was fine-tuned for other labels than the task's, or in another order: it has "
            f"{', '.join(source.adapted.labels)}, the task {', '.join(job.task.labels)}."
        )
    options = {} if job.settings.dropout is None else dict.fromkeys(_DROPOUTS, job.settings.dropout)
    base = source.name if source.adapted is None else source.adapted.base
    model: Any = job.kind.make_model(base, source.head, from_scratch=source.from_scratch, **options)
    exchange_layers(model)
    if source.adapted is not None:
        return load_adapters(model, source.name)
    if job.data.train is None and type(model).__name__ not in (source.encoder.config.architectures or ()):
        raise ValueError(
            f"{source.name} was not fine-tuned for {job.task.title}: its head would be random. Give a fine-tuned "
            "model, or leave out --evaluate_only."
        )
    if job.adapter_args.peft is not None:
        directory = Path(source.encoder.name)
        name = str(directory.resolve()) if directory.is_dir() else source.encoder.name
        return add_adapters(model, name, job.adapter_args)
    return model


def _choose_best(args: FineTuningArguments, task: Task) -> None:
    if not task.dev_splits:
        raise ValueError(f"{task.title} has no dev split to choose the best model by: leave out --select best.")
    if args.eval_strategy == "no":
        args.eval_strategy = "epoch"
    args.save_strategy, args.save_steps = args.eval_strategy, args.eval_steps or args.save_steps
    args.load_best_model_at_end, args.save_total_limit, args.save_only_model = True, 1, True
    args.metric_for_best_model, args.greater_is_better = f"eval_{task.main_metric}", True


def _max_length(task: Task, args: TaskArguments, config: Any, tokenizer: PreTrainedTokenizerBase) -> int:
    wanted = args.max_length or task.max_length
    # Encoders with relative positions have no limit; RoBERTa's positions begin behind that of padding.
    positions = min(getattr(config, "max_position_embeddings", wanted), tokenizer.model_max_length)
    if wanted <= positions:
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
    return {"sha256": hash_model(directory, weights=not from_scratch, adapters=adapters)}


def _describe_evaluation(args: FineTuningArguments, task_args: TaskArguments) -> str:
    """When a run that keeps the best model looks at it."""
    if task_args.select != "best":
        return "at the end"
    return "every epoch" if args.eval_strategy == "epoch" else f"every {args.eval_steps or args.logging_steps:g} steps"


def _describe_adapters(args: AdapterArguments) -> dict[str, Any] | None:
    """What decides the outcome of training with adapters."""
    if args.peft is None:
        return None
    return {key: value for key, value in dataclasses.asdict(args).items() if key != "merge_adapter"}


def _describe_model(job: Job, model: Any) -> dict[str, Any]:
    adapted = job.adapter_args.peft is not None or job.source.adapted is not None
    core = model.get_base_model() if adapted else model
    own = [
        parameter
        for name, parameter in core.named_parameters()
        if "lora_" not in name and ".original_module." not in name
    ]
    return {
        **job.source.identity,
        "architecture": type(core).__name__,
        "parameters": sum(parameter.numel() for parameter in own),
        "trained_parameters": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "from_scratch": job.source.from_scratch,
        "head": job.source.head,
        "peft": "lora" if adapted else None,
        "size": job.recipe.size,
    }


def _describe_selection(job: Job, log: list[dict[str, Any]]) -> str:
    if job.data.train is None:
        return "as it was given"
    if job.task_args.select == "last":
        return "last step"
    count = sum(f"eval_{job.task.main_metric}" in entry for entry in log)
    assert count, "a loop that cannot choose refuses to"
    return f"best of {count} evaluations by {job.task.main_metric} on {next(iter(job.data.dev))}"


def _save(
    job: Job, model: Any, predictions: dict[str, list[Prediction]], files: dict[str, str], directory: Path
) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for checkpoint in directory.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    for name, split in (job.data.dev | job.data.test).items():
        write_predictions(directory / files[name], predictions[name], split.split.examples)
    if job.task_args.keep_models == "none" or job.data.train is None:
        return
    target, tokenizer = directory / MODEL_DIRECTORY, job.kind.tokenizer
    if job.adapter_args.peft is None:
        model.save_pretrained(target)
        save_tokenizer(tokenizer, target)
        return
    save_adapters(model, tokenizer, job.source.head, job.task.labels, target)
    if job.adapter_args.merge_adapter:
        save_merged(model, tokenizer, directory / MERGED_DIRECTORY)
