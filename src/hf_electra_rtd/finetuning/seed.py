"""A run of a task with one seed: trains, predicts, scores and saves."""

from __future__ import annotations

import copy
import logging
from itertools import chain
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import set_seed

from hf_electra_rtd.base.files import remove_directory
from hf_electra_rtd.base.records import (
    EvaluationRecord,
    collect_hardware,
    collect_versions,
    hub_id,
    pretraining_of,
    utc_now,
)
from hf_electra_rtd.finetuning import heads
from hf_electra_rtd.finetuning.plan import LENGTHS, LORA, Job, Plan
from hf_electra_rtd.finetuning.results import save_result
from hf_electra_rtd.finetuning.trainer import FineTuner
from hf_electra_rtd.training.arguments import keep_freed_memory
from hf_electra_rtd.training.checkpoints import OUTPUTS, checkpoint_step, latest_checkpoint, read_checkpoint


logger = logging.getLogger(__name__)

_OF_TASK = ("kind", "columns", "language", "unanswerable")  # the fields that `predict` needs


def run_seed(plan: Plan, job: Job, seed: int, directory: Path) -> EvaluationRecord:
    """Runs a task with one seed, saves the results, and returns their record. Training continues from the newest
    complete checkpoint in `directory`. If there is none that training can continue from, the contents of `directory`
    are deleted."""
    started = utc_now()
    checkpoint = _checkpoint(plan, job, seed, directory)
    args = copy.copy(job.args)
    args.seed = seed
    args.data_seed = seed
    args.output_dir = str(directory)
    args.eval_on_start = args.eval_on_start and checkpoint is None
    splits = job.splits
    job.kind.unit = job.unit
    model = make_model(plan, job, seed)
    described = {**job.settings, **plan.model.identity, "data": {name: split.source for name, split in splits.items()}}
    trainer: Any
    if job.task.kind == "embedding":
        from hf_electra_rtd.finetuning.embeddings import EmbeddingTuner

        trainer = EmbeddingTuner(model, args, job.kind, splits["train"])
    else:
        trainer = FineTuner(
            model,
            args,
            job.kind,
            job.settings["layerwise_lr_decay"],
            train=splits["train"],
            dev=splits[job.task.dev_splits[0]] if job.task.dev_splits else None,
            settings=described,  # saved in checkpoints
        )
    trained = _train(trainer, job, checkpoint)
    answers = {name: trainer.answer(split) for name, split in splits.items() if name != "train"}
    task = job.task
    record = EvaluationRecord(
        command=plan.command,
        started=started,
        finished=utc_now(),
        task=task.name,
        benchmark=task.benchmark,
        language=task.language,
        kind=task.kind,
        main_metric=task.main_metric,
        dataset={**task.describe(), "id": hub_id(task.dataset)},
        model={
            **plan.model.identity,
            **_describe_model(model),
            "size": plan.size,
            "pretraining": None if plan.flags.from_scratch else pretraining_of(plan.model.encoder),
        },
        arguments=job.settings,
        seed=seed,
        data={name: split.describe() for name, split in splits.items()},
        metrics={name: dict(scores) for name, (_, scores) in answers.items() if scores},
        steps=trainer.state.global_step,
        hardware=collect_hardware(),
        versions=collect_versions(),
        predictions={name: f"predictions_{name}.jsonl" for name in answers},
        curves=trainer.state.log_history,
        **trained,
    )
    if plan.is_main:
        save_result(plan, job, model, record, answers, directory)
    PartialState().wait_for_everyone()
    return record


def _checkpoint(plan: Plan, job: Job, seed: int, directory: Path) -> Path | None:
    """The newest complete checkpoint of an interrupted run, if a run can continue from it. Otherwise the main process
    clears the directory; `find_finished` has checked that it is a run's."""
    checkpoint = latest_checkpoint(directory)
    manifest = read_checkpoint(checkpoint, verify=False)[0] if checkpoint else {"files": {}}
    if "optimizer.pt" not in manifest["files"]:
        checkpoint = None
    PartialState().wait_for_everyone()  # all processes have read what the main one may delete
    keep_freed_memory()
    if checkpoint is not None:
        logger.info(f"{job.task.title}, seed {seed}: continues from {checkpoint}.")
    elif plan.is_main and directory.exists():
        remove_directory(directory)
    if plan.is_main:
        (directory / OUTPUTS).mkdir(parents=True, exist_ok=True)
    return checkpoint


def _train(trainer: Any, job: Job, checkpoint: Path | None) -> dict[str, Any]:
    """Trains, and returns the fields of the record that describe the training."""
    result = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    state: Any = trainer.state
    epochs = float(state.epoch or 0.0)
    before = checkpoint_step(checkpoint) if checkpoint else 0  # the seconds do not include the steps before it
    selection = "last step"
    if job.settings["select"] == "best":
        metric = job.task.main_metric
        count = sum(f"eval_{metric}" in entry and entry["step"] > 0 for entry in state.log_history)
        selection = f"best of {count} evaluations by {metric} on {job.task.dev_splits[0]}"
    if job.task.kind == "regression":  # from here on, outputs are in the labels' unit, also in the saved model
        mean, deviation = job.unit
        model: Any = trainer.model
        heads.rescale(model, deviation, mean)
        job.kind.unit = (0.0, 1.0)
    dataset: Any = trainer.train_dataset
    examples = epochs * len(dataset) * (1 - before / max(state.global_step, 1))
    seconds = result.metrics["train_runtime"] - trainer.evaluation_seconds
    return {
        "selection": selection,
        "epochs": epochs,
        "train_seconds": seconds,
        "examples_per_second": examples / seconds if seconds else 0.0,
    }


def make_model(plan: Plan, job: Job, seed: int) -> Any:
    """Sets the seed, and returns the model that a run begins with. Raises ValueError if it does not fit the task."""
    set_seed(seed)
    task = job.task
    config = plan.model.config
    options: dict[str, Any] = {}  # for the encoder's configuration
    if plan.flags.from_scratch:
        fitted = vars(config).items()  # `StartingModel` fitted it to the tokenizer
        options |= {name: value for name, value in fitted if name == "vocab_size" or name.endswith("_token_id")}
    if job.settings["dropout"] is not None:
        options |= dict.fromkeys(heads.dropouts_of(config), job.settings["dropout"])
    model = heads.load_with_head(
        job.kind.auto_class,
        plan.model.name,
        task.labels,
        from_scratch=plan.flags.from_scratch,
        unit=job.unit,
        **options,
    )
    tagged = job.splits["train"].examples["texts"] if task.kind == "tagging" else None
    model.config.problem_type = job.kind.problem_type
    model.config.fine_tuned_for = {  # for `predict`
        "task": {name: getattr(task, name) for name in _OF_TASK},
        "characters": tagged is not None and all(len(word) == 1 for word in chain(*tagged)),
        "lengths": {name: job.settings[name] for name in LENGTHS},
    }
    if task.kind == "embedding":
        from hf_electra_rtd.finetuning.embeddings import with_mean_pooling

        return with_mean_pooling(model, plan.model.tokenizer, job.settings["max_seq_length"])
    if not plan.flags.lora:
        return model
    numbers = {name.replace("lora_r", "r"): job.settings["lora"][name] for name in LORA}
    return heads.add_adapters(model, plan.model.encoder, **numbers)


def _describe_model(model: Any) -> dict[str, Any]:
    is_adapted = hasattr(model, "peft_config")
    core = model.get_base_model() if is_adapted else getattr(model, "transformers_model", model)
    own = (
        parameter
        for name, parameter in core.named_parameters()
        if "lora_" not in name and ".original_module." not in name
    )
    return {
        "architecture": type(core).__name__,
        "parameters": sum(parameter.numel() for parameter in own),
        "trained_parameters": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "peft": "lora" if is_adapted else None,
    }
