"""The results of runs: `output_dir/TASK/seed_N` with record, model, predictions, reports and files for servers."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_electra_rtd.base.files import PARTIAL, check_output, naming, remove_directory, remove_partial
from hf_electra_rtd.base.records import EvaluationRecord
from hf_electra_rtd.base.tasks import Task, guests
from hf_electra_rtd.data.tokenization import save_tokenizer
from hf_electra_rtd.finetuning import heads
from hf_electra_rtd.finetuning.kinds.base import Prediction
from hf_electra_rtd.finetuning.plan import Job, Plan
from hf_electra_rtd.finetuning.report import write_report
from hf_electra_rtd.finetuning.submission import write_predictions, write_submission, zip_submission
from hf_electra_rtd.pair.places import ADAPTER_CONFIG, CONFIG_FILE, EMBEDDING_FILES, NETWORK_FILES
from hf_electra_rtd.training.checkpoints import (
    CHECKPOINT_PREFIX,
    OUTPUTS,
    latest_checkpoint,
    list_checkpoints,
    read_checkpoint,
)


logger = logging.getLogger(__name__)

MODEL_DIRECTORY = "model"
MERGED_DIRECTORY = "merged"
SUBMISSION_DIRECTORY = "submission"
# What a run writes into its directory, in addition to its record. `runs` is TensorBoard's.
_OURS = (
    MODEL_DIRECTORY,
    MERGED_DIRECTORY,
    SUBMISSION_DIRECTORY,
    OUTPUTS,
    f"{CHECKPOINT_PREFIX}*",
    f".*{PARTIAL}*",
    "predictions_*.jsonl",
    "report_*.json",
    "report_*.txt",
    "runs",
)


def seed_directory(directory: Path, task: Task, seed: int) -> Path:
    """Returns the directory that a run writes all its results into."""
    return directory / task.name / f"seed_{seed}"


def seed_directories(directory: Path, task: Task) -> list[Path]:
    """Returns the directories of all runs of a task, by any call. Anything else beside them is the user's."""
    return [path for path in (directory / task.name).glob("seed_*") if path.name[5:].isdecimal()]


def find_finished(plan: Plan, job: Job) -> dict[int, EvaluationRecord]:
    """Returns the records of the finished runs by seed. Raises a ValueError in three cases: the results have other
    settings, this call reads what it would delete, or a directory to be deleted is not a run's. A run's directory has
    its record or, until that is written, `OUTPUTS`."""
    finished: dict[int, EvaluationRecord] = {}
    if plan.flags.overwrite_output_dir:
        deleted = seed_directories(plan.directory, job.task)
    else:
        deleted = []
        for seed in plan.seeds:
            path = seed_directory(plan.directory, job.task, seed)
            record = finished_record(plan, job, path)
            if record is None:
                deleted.append(path)
            else:
                finished[seed] = record
    own = plan.own
    sources = (
        plan.model.name,
        plan.flags.tokenizer,
        plan.flags.data_dir,
        own.train_file,
        own.validation_file,
        own.test_file,
    )
    for path in deleted:
        for source in filter(None, sources):
            if Path(source).resolve().is_relative_to(path.resolve()):
                raise ValueError(f"This call would delete {source}. Choose another --output_dir.")
    for path in deleted:
        is_finished = (path / EvaluationRecord.FILE).exists()
        check_output(path, replaces=EvaluationRecord.FILE if is_finished else OUTPUTS, ours=_OURS)
        for name in (MODEL_DIRECTORY, MERGED_DIRECTORY):
            if (path / name).exists():
                _check_model(path / name)
    return finished


def _check_model(path: Path) -> None:
    """Raises a ValueError if a model's directory holds files that this package did not write."""
    is_adapter = (path / ADAPTER_CONFIG).exists()
    ours = (*NETWORK_FILES, *EMBEDDING_FILES)
    check_output(path, replaces=ADAPTER_CONFIG if is_adapter else CONFIG_FILE, ours=ours)


def finished_record(plan: Plan, job: Job, path: Path) -> EvaluationRecord | None:
    """Returns the record of a finished run, or None if there is none. Raises a ValueError if the record, or the
    checkpoint of an interrupted run, has other settings, other data or another model, or if the record lacks a split
    that is needed now."""
    record = None
    if (path / EvaluationRecord.FILE).exists():
        record = EvaluationRecord.load(path)
        settings = {**record.arguments, **record.model}
        data = record.data
    elif checkpoint := latest_checkpoint(path):
        path = checkpoint
        settings = read_checkpoint(checkpoint, verify=False)[0]["run"]
        data = settings.get("data", {})
    else:
        return None
    different = [
        f"{name} {settings.get(name)!r} (now {value!r})"
        for name, value in job.settings.items()
        if settings.get(name) != value
    ]
    different += [f"the model's {name}" for name, value in plan.model.identity.items() if settings.get(name) != value]
    different += [
        f"the data of {name}"
        for name, split in job.splits.items()
        if name in data and not split.source.items() <= data[name].items()
    ]
    if different:
        raise ValueError(
            f"{path} belongs to a run with other settings: {', '.join(different)}. Choose another --output_dir, or "
            "delete the results with --overwrite_output_dir."
        )
    lacking = sorted(job.splits.keys() - data.keys())
    if record is not None and lacking:
        raise ValueError(
            f"{path} belongs to a run without the split {', '.join(lacking)}. Pass --overwrite_output_dir to train it "
            "again, or choose another --output_dir."
        )
    return record


def save_result(
    plan: Plan,
    job: Job,
    model: Any,
    record: EvaluationRecord,
    answers: Mapping[str, tuple[list[Prediction], dict[str, float]]],
    directory: Path,
) -> None:
    """Writes all results of a run. `answers` has the predictions and scores of each split but `train`. The record is
    written last, and also if a report fails, because that is no reason to train again; the error is raised afterwards.
    """
    remove_partial(directory)
    splits = job.splits
    owners = {guest.name: (guest, guest.test_splits[0]) for guest in guests(job.task)}
    for name, (predictions, _) in answers.items():
        write_predictions(directory / record.predictions[name], predictions, splits[name], job.task.labels)
        owner, of_server = owners.get(name, (job.task, name))
        write_submission(owner, of_server, predictions, splits[name], directory / SUBMISSION_DIRECTORY)
    if plan.flags.keep_models != "none":
        with naming(directory):
            save_model(plan, job.task, model, directory)
    failure = None
    try:
        for name, (predictions, scores) in answers.items():
            record.reports |= write_report(directory, name, job.kind, predictions, scores, splits[name])
    except Exception as error:
        failure = error
    record.save(directory)
    remove_leftovers(directory)  # until now, checkpoints were all that was saved of the training
    if failure is not None:
        raise failure


def save_model(plan: Plan, task: Task, model: Any, directory: Path) -> None:
    """Writes the model or its adapters, with the tokenizer. With `--merge_adapter`, also writes the model with merged
    adapters."""
    target = directory / MODEL_DIRECTORY
    if plan.flags.lora:
        heads.save_adapters(model, target)
    elif task.kind == "embedding":
        from hf_electra_rtd.finetuning.embeddings import save_embeddings

        save_embeddings(model, target)
    else:
        model.save_pretrained(target)
    save_tokenizer(plan.model.tokenizer, target)
    if plan.flags.lora and plan.flags.merge_adapter:
        merged = directory / MERGED_DIRECTORY
        model.merge_and_unload().save_pretrained(merged)
        save_tokenizer(plan.model.tokenizer, merged)


def remove_leftovers(directory: Path) -> None:
    """Removes the checkpoints and `OUTPUTS`, which a run has only until its record is written."""
    for path in list_checkpoints(directory):
        remove_directory(path)
    if (directory / OUTPUTS).exists():
        (directory / OUTPUTS).rmdir()


def remove_models(plan: Plan, task: Task, seeds: Collection[int]) -> None:
    """Deletes the models of the runs with these seeds. A directory with files that this package did not write stays,
    with a warning."""
    for seed in seeds:
        for name in (MODEL_DIRECTORY, MERGED_DIRECTORY):
            path = seed_directory(plan.directory, task, seed) / name
            if path.exists():
                try:
                    _check_model(path)
                except ValueError as error:
                    # Only once, although it is called after each seed. transformers adds this method to loggers.
                    logger.warning_once(f"{task.title}: {path} is kept. {error}")  # type: ignore[attr-defined]
                    continue
                logger.info(f"{task.title}: deletes {path} (--keep_models {plan.flags.keep_models}).")
                remove_directory(path)


def best_seed(records: Sequence[EvaluationRecord]) -> int:
    """Returns the seed with the best `dev_score`; of equal ones, the first."""
    return max(records, key=lambda record: record.dev_score).seed


def collect_submissions(tasks: Sequence[Task], records: Sequence[EvaluationRecord], directory: Path) -> None:
    """Copies the files of each task's best seed beside those of earlier calls, and zips them all."""
    target = directory / SUBMISSION_DIRECTORY
    has_any = False
    for task in tasks:
        runs = [record for record in records if record.task == task.name]
        if not runs:
            continue
        source = seed_directory(directory, task, best_seed(runs)) / SUBMISSION_DIRECTORY
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
            has_any = True
    if has_any:
        logger.info(f"For the benchmark's server: {zip_submission(tasks[0].benchmark, target)}")
