"""Tasks times seeds: what is missing is run, what is there is kept, and a table tells the rest."""

from __future__ import annotations

import json
import logging
import math
import shlex
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from accelerate.utils import broadcast_object_list
from rich.console import Console
from transformers.trainer_utils import HubStrategy
from transformers.utils import logging as transformers_logging

from hf_electra_rtd.finetuning.adapters import MERGED_DIRECTORY
from hf_electra_rtd.finetuning.arguments import (
    AdapterArguments,
    FineTuningArguments,
    OwnTaskArguments,
    TaskArguments,
)
from hf_electra_rtd.finetuning.benchmarks import BENCHMARKS, expand_task_names, get_task
from hf_electra_rtd.finetuning.data import TaskRows, read_task
from hf_electra_rtd.finetuning.job import (
    MODEL_DIRECTORY,
    Job,
    Loop,
    Outcome,
    Source,
    labels_of,
    make_job,
    open_source,
    run_seed,
)
from hf_electra_rtd.finetuning.own import OwnTask, make_own_task
from hf_electra_rtd.finetuning.publication import ModelPublication
from hf_electra_rtd.finetuning.submission import write_submission, zip_submission
from hf_electra_rtd.finetuning.tasks import Task
from hf_electra_rtd.publishing.arguments import CardArguments, FineTunedArguments
from hf_electra_rtd.publishing.delivery import print_deliveries
from hf_electra_rtd.publishing.published import published_for
from hf_electra_rtd.publishing.results import make_table, summarize, write_results
from hf_electra_rtd.records import EVALUATION_FILE, EvaluationRecord
from hf_electra_rtd.training.cli import parse_arguments
from hf_electra_rtd.training.progress import format_duration


logger = logging.getLogger(__name__)

SUBMISSION_DIRECTORY = "submission"
INTERRUPTED = 130
_ROWS = "rows of "

Result = TypeVar("Result")


@dataclass
class Suite:
    """What was asked for.

    Attributes:
        tasks: in their order.
        task_args, adapter_args, args: the flags.
        command: what was typed, without the directory that the script lies in.
        records: of the runs that are done, in this session or before.
        failures: what went wrong, by task.
        publication: what becomes of the models on the Hub; None for nothing.
    """

    tasks: list[Task]
    task_args: TaskArguments
    adapter_args: AdapterArguments
    args: FineTuningArguments
    command: str
    records: list[EvaluationRecord] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    publication: ModelPublication | None = None

    @property
    def directory(self) -> Path:
        return Path(str(self.args.output_dir))

    @property
    def is_main(self) -> bool:
        return self.args.process_index == 0

    def seeds(self) -> list[int]:
        return [self.args.seed + offset for offset in range(self.task_args.seeds)]


def start_suite(argv: Sequence[str], description: str | None, defaults: dict[str, Any]) -> Suite:
    """Reads the flags, and finds the tasks.

    Raises:
        ValueError: for flags that cannot be used.
        SystemExit: by `--help`, or for an unknown flag.
    """
    groups = (TaskArguments, AdapterArguments, OwnTaskArguments, CardArguments, FineTunedArguments)
    task_args, adapter_args, own_args, card_args, fine_tuned_args, args = parse_arguments(
        (*groups, FineTuningArguments),
        argv,
        description=description,
        defaults=defaults,
    )
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hf_electra_rtd").setLevel(logging.INFO if args.process_index == 0 else logging.ERROR)
    transformers_logging.disable_progress_bar()  # one for every file that is read or written
    if task_args.from_scratch and adapter_args.peft is not None:
        raise ValueError("--from_scratch with --peft would train adapters upon random weights that nobody keeps.")
    if task_args.evaluate_only:
        if task_args.from_scratch or adapter_args.peft is not None:
            raise ValueError("--evaluate_only judges a model as it is: leave out --from_scratch and --peft.")
        task_args.seeds = 1
    if own_args.is_given:
        tasks = [make_own_task(_own_task(own_args, task_args))]
        task_args.predict = task_args.predict or bool(tasks[0].test_splits)
    else:
        names = expand_task_names(task_args.benchmark, task_args.task_name)
        tasks = [get_task(task_args.benchmark, name) for name in names]
    command = shlex.join([Path(sys.argv[0]).name, *argv])
    suite = Suite(tasks, task_args, adapter_args, args, command)
    if args.push_to_hub:
        if task_args.evaluate_only or task_args.keep_models == "none":
            raise ValueError("--push_to_hub has no model to publish with --evaluate_only or --keep_models none.")
        if adapter_args.peft is not None and fine_tuned_args.base_model is None and _is_here(task_args):
            raise ValueError(
                "Adapters are published with the Hub id of the model that they belong to, and this one is a "
                "directory: publish it first, and give its id with --base_model."
            )
        args.push_to_hub = False  # the Trainer's own way would upload every seed's directory
        private = args.hub_private_repo is not False
        suite.publication = ModelPublication(
            str(args.hub_model_id), suite.directory, card_args, fine_tuned_args, private
        )
        if suite.is_main:
            suite.publication.check(tasks)
    return suite


def _is_here(args: TaskArguments) -> bool:
    return Path(str(args.model_name_or_path)).is_dir()


def _own_task(own: OwnTaskArguments, args: TaskArguments) -> OwnTask:
    if own.task_kind not in ("classification", "regression", "tagging"):
        raise ValueError(f"--task_kind is {own.task_kind!r}: it must be classification, regression or tagging.")
    name = args.task_name[0] if args.task_name != ["all"] else "own"
    if Path(name).name != name or name in (".", ".."):
        raise ValueError(f"--task_name is {name!r}: it names a directory in --output_dir, so it is a plain word.")
    labels = tuple(own.labels or ())
    if args.evaluate_only and not labels and own.task_kind != "regression":
        labels = labels_of(str(args.model_name_or_path))
    held_out = own.dev_file is None and own.dataset is None and not args.evaluate_only
    return OwnTask(
        name=name,
        kind=own.task_kind,  # type: ignore[arg-type]  # one of its names
        text_column=own.text_column,
        label_column=own.label_column,
        second_text_column=own.second_text_column,
        id_column=own.id_column,
        train_file=None if args.evaluate_only else own.train_file,
        dev_file=own.dev_file,
        test_file=own.test_file,
        dev_share=own.dev_share if held_out else 0.0,
        dataset=own.dataset,
        dataset_config=own.dataset_config,
        dataset_revision=own.dataset_revision,
        dataset_splits=_named_splits(own.dataset_splits),
        labels=labels,
        metrics=tuple(own.metrics or ()),
        language=own.language,
    )


def _named_splits(given: list[str] | None) -> dict[str, str] | None:
    if given is None:
        return None
    pairs = [text.partition("=") for text in given]
    for name, equals, split in pairs:
        if not (name and equals and split):
            raise ValueError(f"--dataset_splits {name}: write train=..., dev=... or test=..., each once.")
    return {name: split for name, _, split in pairs}


def run_suite(suite: Suite, loop: Loop) -> int:
    """Runs all tasks with all seeds, and shows the results.

    One task that fails does not stop the others, and every finished run is kept: the same command goes on with what
    is missing.

    Args:
        suite: what was asked for.
        loop: trains a model.

    Returns:
        The exit status: 0, 1 if a task failed, or 130 after Ctrl-C.

    Raises:
        ValueError: if the only task cannot be run, or the directory holds results of other settings.
    """
    source = open_source(suite.task_args)
    ready = _read_all(suite)
    if suite.task_args.overwrite_output_dir:
        _on_main(suite, lambda: _remove_results(suite))
    status = 0
    publication = suite.publication if suite.is_main else None
    at_the_end = suite.args.hub_strategy == HubStrategy.END
    try:
        try:
            for number, (task, rows) in enumerate(ready, start=1):
                try:
                    _run_task(suite, loop, task, rows, source, f"{number} of {len(ready)}")
                except Exception as error:
                    if suite.args.world_size > 1 or len(suite.tasks) == 1:
                        raise  # the other processes would wait for this one
                    _note_failure(suite, task, error)
                else:
                    if publication is not None and not at_the_end:
                        publication.publish(task)
        except KeyboardInterrupt:
            if suite.is_main:
                logger.warning("Interrupted. The same command goes on with what is missing.")
            status = INTERRUPTED
        if suite.is_main and suite.records:
            _show(suite, source)
        if publication is not None and at_the_end and status == 0:
            for task in suite.tasks:
                if task.title not in suite.failures:
                    publication.publish(task)
    finally:  # also where a task ended it all: the tasks before it may still be on their way
        if publication is not None:
            print_deliveries(publication.finish(), str(suite.directory))
    if suite.is_main:
        for name, reason in suite.failures.items():
            logger.error(f"{name} failed: {reason}")
    return status or int(bool(suite.failures))


def _read_all(suite: Suite) -> list[tuple[Task, TaskRows]]:
    """The rows of every task, before anything is trained."""
    ready = []
    for task in suite.tasks:
        guests = _guests_of(task) if suite.task_args.predict else ()
        try:
            rows = read_task(
                task,
                suite.task_args.data_dir,
                train=not suite.task_args.evaluate_only,
                test=suite.task_args.predict,
                guests=guests,
                spare_test=len(suite.tasks) > 1,
            )
        except ValueError as error:
            if len(suite.tasks) == 1:
                raise
            suite.failures[task.title] = str(error)
            logger.error(f"{task.title} is left out: {error}")
            continue
        ready.append((task, rows))
    return ready


def _guests_of(task: Task) -> tuple[Task, ...]:
    """Tasks that this task's model predicts, such as AX, which has no rows to train on."""
    return tuple(guest for guest in BENCHMARKS.get(task.benchmark, ()) if guest.trained_on == task.name)


def _run_task(suite: Suite, loop: Loop, task: Task, rows: TaskRows, source: Source, place: str) -> None:
    job = make_job(task, rows, source, suite.task_args, suite.adapter_args, suite.args, suite.command)
    logger.info(f"{task.title} ({place}): {_describe_rows(job)}; {_describe_recipe(job)}.")
    best: tuple[float, Path] | None = None
    for seed in suite.seeds():
        directory = suite.directory / task.name / f"seed_{seed}"
        record = _on_main(suite, partial(_finished, job, seed, directory))
        if record is not None:
            logger.info(f"{task.title}, seed {seed}: done before, {_describe_scores(record)}.")
            if suite.task_args.keep_models == "all" and not (directory / MODEL_DIRECTORY).exists():
                logger.warning(f"{task.title}, seed {seed}: its model was not kept then, and is not there.")
        else:
            logger.info(f"{task.title}, seed {seed}:")
            _on_main(suite, partial(_clear, directory))
            outcome = run_seed(job, loop, seed, directory)
            record = outcome.record
            if suite.is_main:
                _write_submissions(job, outcome, directory)
                record.save(directory)
            logger.info(
                f"{task.title}, seed {seed}: {_describe_scores(record)}; {format_duration(record.train_seconds)}, "
                f"{record.sentences_per_second:,.0f} rows/s."
            )
        suite.records.append(record)
        if suite.is_main and suite.task_args.keep_models == "best":
            score = _score(record)
            if best is None or score > best[0]:
                if best is not None:
                    _remove_model(best[1])
                best = (score, directory)
            else:
                _remove_model(directory)


def _on_main(suite: Suite, act: Callable[[], Result]) -> Result:
    """What the main process finds or does, for all of them; the others wait for it.

    Raises:
        ValueError: in every process, where the main one raised it.
    """
    if suite.args.world_size == 1:
        return act()
    said: list[Any] = [None, None]
    if suite.is_main:
        try:
            said[0] = act()
        except ValueError as error:
            said[1] = str(error)
    broadcast_object_list(said)
    if said[1] is not None:
        raise ValueError(said[1])
    return cast(Result, said[0])


def _finished(job: Job, seed: int, directory: Path) -> EvaluationRecord | None:
    """The record of a run that is done; None if there is none, or it lacks a split that is wanted now.

    Raises:
        ValueError: if it is of other settings, rows or another model.
    """
    if not (directory / EVALUATION_FILE).exists():
        return None
    record = EvaluationRecord.load(directory)
    wanted = _identify(asdict(job.settings), job.source.identity, job.source, job.data.describe())
    there = _identify(record.arguments, record.model, job.source, record.data)
    there |= {"head": record.model.get("head"), "from_scratch": record.model.get("from_scratch")}
    lacking = sorted(key for key in wanted.keys() - there.keys() if key.startswith(_ROWS))
    different = [key for key, value in wanted.items() if key not in lacking and there.get(key) != value]
    if different:
        told = ", ".join(f"{key} {there.get(key)!r} (now {wanted[key]!r})" for key in different)
        raise ValueError(
            f"{directory} holds a run with other settings: {told}. Choose another --output_dir, or delete the results "
            "with --overwrite_output_dir."
        )
    if lacking:
        logger.info(
            f"{job.task.title}, seed {seed}: run anew, with the {', '.join(lacking)} that the first one lacks."
        )
        return None
    return record


def _identify(
    settings: Mapping[str, Any], model: Mapping[str, Any], source: Source, data: Mapping[str, Any]
) -> dict[str, Any]:
    """What makes two runs the same, as JSON has it."""
    told: dict[str, Any] = json.loads(json.dumps(dict(settings)))
    told |= {f"model's {key}": model.get(key) for key in source.identity}
    told |= {"head": source.head, "from_scratch": source.from_scratch}
    return told | {f"{_ROWS}{name}": described.get("examples_sha256") for name, described in data.items()}


def _clear(directory: Path) -> None:
    """Removes what an earlier run left, its record first: a directory with a record is whole."""
    (directory / EVALUATION_FILE).unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)


def _score(record: EvaluationRecord) -> float:
    score = record.score()
    return -math.inf if score is None else score


def _write_submissions(job: Job, outcome: Outcome, directory: Path) -> None:
    for name, split in job.data.test.items():
        guest = next((task for task in _guests_of(job.task) if task.name == name), None)
        task, split_name = (job.task, name) if guest is None else (guest, guest.test_splits[0])
        rows, skipped = split.split.examples, split.split.skipped.total()
        try:
            write_submission(
                task, split_name, outcome.predictions[name], rows, directory / SUBMISSION_DIRECTORY, skipped
            )
        except ValueError as reason:
            logger.warning(str(reason))


def _note_failure(suite: Suite, task: Task, error: Exception) -> None:
    suite.failures[task.title] = (
        f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
    )
    if not isinstance(error, ValueError):
        logger.error(traceback.format_exc())
    logger.error(f"{task.title} failed; the other tasks go on.")


def _remove_model(directory: Path) -> None:
    for name in (MODEL_DIRECTORY, MERGED_DIRECTORY):
        shutil.rmtree(directory / name, ignore_errors=True)


def _remove_results(suite: Suite) -> None:
    model = Path(str(suite.task_args.model_name_or_path)).resolve()
    for task in suite.tasks:
        directory = suite.directory / task.name
        if model.is_relative_to(directory.resolve()):
            raise ValueError(f"{model} lies in {directory}, which --overwrite_output_dir deletes: choose another one.")
    for task in suite.tasks:
        shutil.rmtree(suite.directory / task.name, ignore_errors=True)


def _show(suite: Suite, source: Source) -> None:
    results = summarize(suite.records)
    size = str(suite.records[0].model.get("size"))
    published = published_for(suite.tasks[0].benchmark, size)
    Console(width=None if sys.stdout.isatty() else 160).print(make_table(results, published))
    write_results(results, published, suite.directory)
    logger.info(f"Records, predictions and tables: {suite.directory}")
    if suite.task_args.predict:
        _collect_submissions(suite)


def _collect_submissions(suite: Suite) -> None:
    """The files of the best seed of each task, and their zip."""
    target = suite.directory / SUBMISSION_DIRECTORY
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for task in suite.tasks:
        records = [record for record in suite.records if record.task == task.name]
        if not records:
            continue
        best = max(records, key=_score) if task.dev_splits else records[0]  # never chosen by the test split
        for path in sorted((suite.directory / task.name / f"seed_{best.seed}" / SUBMISSION_DIRECTORY).glob("*")):
            shutil.copy2(path, target / path.name)
    if any(target.iterdir()) and suite.tasks[0].benchmark in ("glue", "clue"):
        logger.info(f"For the benchmark's server: {zip_submission(suite.tasks[0].benchmark, target)}")


def _describe_rows(job: Job) -> str:
    def told(name: str, split: Any) -> str:
        return f"{name} {len(split.split.examples):,}"

    named = ({} if job.data.train is None else {"train": job.data.train}) | job.data.dev | job.data.test
    return "rows: " + ", ".join(told(name, split) for name, split in named.items())


def _describe_recipe(job: Job) -> str:
    settings = job.settings
    if job.data.train is None:
        return "judged as it is"
    decay = "no layer decay" if settings.layer_decay == 1 else f"layer decay {settings.layer_decay:g}"
    length = f"{settings.max_steps:,} steps" if settings.max_steps > 0 else f"{settings.epochs:g} epochs"
    return f"{length} of {settings.rows_per_step} rows a step, learning rate {settings.learning_rate:g}, {decay}"


def _describe_scores(record: EvaluationRecord) -> str:
    parts = []
    for split, scores in record.metrics.items():
        told = ", ".join(f"{name} {100 * score:.1f}" for name, score in scores.items() if score is not None)
        parts.append(f"{split}: {told}")
    return "; ".join(parts) or "nothing is labelled"
