"""Runs a plan: runs what is missing, and keeps the runs that are finished."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
from accelerate import PartialState

from hf_electra_rtd.base.files import lock_directory, naming, remove_directory, remove_partial
from hf_electra_rtd.base.records import EvaluationRecord
from hf_electra_rtd.finetuning.data import encode_task, load_task
from hf_electra_rtd.finetuning.plan import Job, Plan
from hf_electra_rtd.finetuning.results import (
    MODEL_DIRECTORY,
    best_seed,
    find_finished,
    remove_leftovers,
    remove_models,
    seed_directories,
    seed_directory,
)
from hf_electra_rtd.finetuning.seed import make_model, run_seed
from hf_electra_rtd.finetuning.trainer import layer_heights


logger = logging.getLogger(__name__)

_ROUNDING = 0.01  # the largest allowed rounding error in float32, as a share of the labels' standard deviation


def prepare_job(plan: Plan, job: Job, until_the_end: ExitStack) -> None:
    """Loads and encodes the data of a task, locks its directory until `until_the_end` closes, and checks which runs
    are finished. Raises a ValueError for anything that does not fit together, before anything is trained or deleted.
    """
    flags = plan.flags
    task = job.task
    job.splits = load_task(task, flags.data_dir, test=plan.predicts, optional_test=len(plan.jobs) > 1)
    train = job.splits["train"]
    if flags.max_train_samples is not None and flags.max_train_samples < len(train.examples):
        chosen = random.Random(0).sample(range(len(train.examples)), flags.max_train_samples)
        train.examples = train.examples.select(sorted(chosen))
    _fit_to_labels(plan, job)
    if plan.is_main:
        directory = plan.directory / task.name
        with naming(directory):
            until_the_end.callback(lock_directory(directory).release)
        remove_partial(directory)
    PartialState().wait_for_everyone()  # until the directory is locked, so that all see the same results
    job.finished = find_finished(plan, job)
    encode_task(job.kind, job.splits)
    model = make_model(plan, job, job.args.seed)
    if job.settings["layerwise_lr_decay"] != 1:
        layer_heights(model)


def _fit_to_labels(plan: Plan, job: Job) -> None:
    """Sets the unit of numbers and the weights of classes from the training labels. Raises a ValueError for numbers
    that cannot be learned."""
    task = job.task
    labels = [label for label in job.splits["train"].examples["label"] if label is not None]
    if task.kind == "regression":
        if min(labels) == max(labels):
            raise ValueError(f"{task.title}: all training labels are {labels[0]:g}, so there is nothing to learn.")
        mean = float(np.mean(labels))
        deviation = float(np.std(labels))
        if np.finfo(np.float32).eps * max(map(abs, labels)) > deviation * _ROUNDING:
            raise ValueError(
                f"{task.title}: the labels have a mean of {mean:.10g} and a standard deviation of {deviation:.3g}. "
                "Models answer in float32, which is too coarse for such numbers: subtract their mean from them."
            )
        job.unit = (mean, deviation)
    if plan.flags.class_weights == "balanced":
        counts = Counter(labels)
        job.kind.class_weights = [counts.total() / len(task.labels) / max(counts[label], 1) for label in task.labels]


def run_task(plan: Plan, job: Job) -> Iterator[EvaluationRecord]:
    """Runs a task with all seeds, and keeps the requested models. Yields each record when its run is finished."""
    title = job.task.title
    if plan.flags.overwrite_output_dir and plan.is_main:
        for path in seed_directories(plan.directory, job.task):
            remove_directory(path)
    PartialState().wait_for_everyone()
    counts = ", ".join(f"{name} {len(split.examples):,}" for name, split in job.splits.items())
    logger.info(f"{title}: examples: {counts}.")
    records: list[EvaluationRecord] = []
    is_trained = False  # a call that finds all runs finished deletes nothing
    for seed in plan.seeds:
        directory = seed_directory(plan.directory, job.task, seed)
        record = job.finished.get(seed)
        if record is None:
            is_trained = True
            record = run_seed(plan, job, seed, directory)
            fate = f"{record.train_seconds:,.0f} s"
        else:
            fate = "already done"
            if plan.is_main:
                remove_leftovers(directory)  # a process was killed after it wrote the record
        score = "no score" if record.score is None else f"{record.main_metric} {100 * record.score:.1f}"
        logger.info(f"{title}, seed {seed}: {score}; {fate}.")
        records.append(record)
        done = [record.seed for record in records]
        kept = {"best": [best_seed(records)], "all": done, "none": []}[plan.flags.keep_models]
        if is_trained and plan.is_main:
            remove_models(plan, job.task, set(done).difference(kept))
        yield record
    for seed in kept:
        directory = seed_directory(plan.directory, job.task, seed)
        if not (directory / MODEL_DIRECTORY).exists():
            logger.warning(f"The model of {directory} was not kept. Delete that directory to train it again.")
