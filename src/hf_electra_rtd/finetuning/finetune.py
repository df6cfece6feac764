"""Fine-tunes and evaluates an encoder on GLUE, CLUE, SQuAD or your own task.

    hf-electra-rtd finetune --model_name_or_path runs/small --task_name mrpc rte --seeds 5 \\
        --output_dir runs/glue
    hf-electra-rtd finetune --model_name_or_path runs/small --train_file reviews.csv \\
        --output_dir runs/reviews

The recipe is the paper's for the model's size; flags override it. Each run writes a record and its predictions; the
model of the best seed is kept. The output ends with a table beside published scores. After an interruption, repeat the
command: it continues with what is missing. Several GPUs:
`accelerate launch -m hf_electra_rtd.finetuning.finetune ...`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import datasets
from accelerate import PartialState

from hf_electra_rtd.base.cli import check_arguments, parse_arguments, run, status_of
from hf_electra_rtd.base.files import known_names, write_text
from hf_electra_rtd.base.records import EvaluationRecord, FractionRecord, public_command
from hf_electra_rtd.finetuning.arguments import (
    HELP_GROUPS,
    RULES,
    TRAINER_RULES,
    FineTuningArguments,
    OwnTaskArguments,
    TaskArguments,
)
from hf_electra_rtd.finetuning.plan import Job, Plan
from hf_electra_rtd.finetuning.predict import Classifier, without_progress_bars
from hf_electra_rtd.finetuning.reading import Table, rows_of
from hf_electra_rtd.finetuning.results import MODEL_DIRECTORY, best_seed, collect_submissions, seed_directory
from hf_electra_rtd.finetuning.run import prepare_job, run_task
from hf_electra_rtd.publishing.card import CardArguments, flag_words
from hf_electra_rtd.publishing.hub import Repository, check
from hf_electra_rtd.publishing.pictures import SCORES_FILE, plot_scores
from hf_electra_rtd.publishing.publish import (
    FineTunedPublication,
    fine_tuned_repositories,
    first_start,
    publish_run,
)
from hf_electra_rtd.publishing.tables import print_table, results_table
from hf_electra_rtd.training.arguments import HUB_RULES, check_publishing


logger = logging.getLogger(__name__)

_ARGUMENTS = (TaskArguments, OwnTaskArguments, CardArguments, FineTunedPublication, FineTuningArguments)


# ---- From Python ----

Examples: TypeAlias = str | os.PathLike[str] | Table
# The flags that the arguments of `finetune` replace, and `fractions`, which it does not support.
_NOT_FLAGS = {"model_name_or_path", "train_file", "validation_file", "test_file", "fractions"}


def finetune(
    model: str | os.PathLike[str],
    train: Examples | datasets.DatasetDict,
    validation: Examples | None = None,
    output_dir: str | os.PathLike[str] = "runs/finetune",
    *,
    test: Examples | None = None,
    **flags: Any,
) -> Classifier:
    """Does what the command `finetune` does, with its `flags` (`learning_rate=1e-4`), and returns the model of the
    best seed. `model` is a directory or Hub id of an encoder. Examples are a file, a pandas DataFrame, a
    `datasets.Dataset`, rows (`[{"text": ...}]`) or columns (`{"text": [...], "label": [...]}`); a `DatasetDict` has
    the splits `train`, `validation` and `test`. Raises TypeError for other examples and for an unknown flag,
    ValueError for what the command refuses, and RuntimeError if the command fails or is interrupted."""
    known = {entry.name for arguments in _ARGUMENTS for entry in fields(arguments)} - _NOT_FLAGS
    for name in flags.keys() - known:
        raise TypeError(f"finetune() has no argument {name!r}. {known_names(name, known, 'arguments')}")
    if flags.get("keep_models") == "none":
        raise ValueError("keep_models='none' leaves no model to return. Take 'best' or 'all'.")
    given: dict[str, Any] = {"train": train, "validation": validation, "test": test}
    if isinstance(train, datasets.DatasetDict):
        if validation is not None or test is not None:
            raise ValueError("train is a DatasetDict, which brings its own splits. Leave validation and test out.")
        if "train" not in train or train.keys() - given.keys():
            raise ValueError(f"A DatasetDict has train, validation and test, but this one has {', '.join(train)}.")
        given = dict(train)
    values = {
        "model_name_or_path": os.fspath(model),
        "output_dir": os.fspath(output_dir),
        "task_name": None if isinstance(train, (str, os.PathLike)) else "own",
        "disable_tqdm": True,
        **flags,
    }
    with TemporaryDirectory() as directory, without_progress_bars():
        for split, examples in given.items():
            if examples is not None:
                values[f"{split}_file"] = _file(examples, Path(directory, f"{split}.jsonl"))
        call = _Call(list(flag_words(values)), "hf-electra-rtd finetune")
        if any(Path(directory).iterdir()):
            call.plan.command = ""  # no command repeats a run whose files are gone
        if call.run():
            raise RuntimeError(f"Fine-tuning {model} failed: see the log.")
    best = seed_directory(call.plan.directory, call.plan.jobs[0].task, best_seed(call.records))
    if not (best / MODEL_DIRECTORY).exists():  # an earlier call may not have kept it
        raise ValueError(f"The model of {best} was not kept (keep_models). Delete that directory to train it again.")
    return Classifier(str(best), use_cpu=bool(flags.get("use_cpu")))


def _file(examples: Examples, path: Path) -> str:
    """The file of the examples: their own, or `path`, to which they are written."""
    if isinstance(examples, (str, os.PathLike)):
        return os.fspath(examples)
    lines = [json.dumps(row, ensure_ascii=False, default=_plain) + "\n" for row in rows_of(examples)]
    write_text(path, "".join(lines))
    return str(path)


def _plain(value: Any) -> Any:
    """Converts a value of NumPy or pandas to one that JSON can hold."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


# ---- The command ----


@without_progress_bars()
def main(argv: list[str]) -> int:
    """Runs all tasks with all seeds, and shows the results. Returns the exit status, like `_Call.run`."""
    call = _Call(argv, sys.argv[0])
    return _run_fractions(argv, call.plan) if call.plan.flags.fractions else call.run()


def _run_fractions(argv: list[str], plan: Plan) -> int:
    """Makes one call for each export of a run, ordered by step, and shows one table and a picture at the end. Stops
    after the first call that fails, and returns its exit status."""
    exports = [(FractionRecord.load(path).step, path.parent) for path in FractionRecord.find(plan.model.name, 2)]
    if not exports:
        raise ValueError(f"{plan.model.name} has no fractions. Pre-train with --checkpoint_fractions.")
    records: list[EvaluationRecord] = []
    for _, export in sorted(exports):
        flags = {
            "fractions": False,
            "model_name_or_path": export / "discriminator",
            "output_dir": plan.directory / export.name,
        }
        call = _Call([*argv, *flag_words(flags)], sys.argv[0])
        status = call.run()
        records += call.records
        if status:
            return status
    if plan.is_main:
        print_table(results_table(records))
        plot_scores({Path(plan.model.name).resolve().name: records}, plan.directory / SCORES_FILE)
        logger.info(f"Scores along the run: {plan.directory / SCORES_FILE}")
    return 0


class _Call:
    """One call of the command. Raises a ValueError if nothing can be run."""

    def __init__(self, argv: list[str], program: str) -> None:
        flags, own, self.card, self.publication, args = parse_arguments(
            _ARGUMENTS,
            argv,
            description=__doc__,
            defaults={"output_dir": "runs/finetune"},
            help_groups=HELP_GROUPS,
            rules=(*TRAINER_RULES, *HUB_RULES),
        )
        check_arguments(flags, own, args, rules=RULES)
        check_publishing(args, self.card, self.publication)
        self.pushes = args.push_to_hub
        self._is_private = args.hub_private_repo is not False
        args.push_to_hub = False  # the Trainer itself would upload the directory of every seed
        self.args = args
        _set_up_logging(args)
        self.plan = Plan(flags, own, args, public_command([program, *argv]))
        self.records: list[EvaluationRecord] = []
        self._failed: list[str] = []
        name = self.plan.model.name
        if self.pushes and flags.lora and not self.publication.base_model and Path(name).is_dir():
            raise ValueError(f"--push_to_hub with --lora needs the Hub id of {name}, which is adapted (--base_model).")

    def run(self) -> int:
        """Runs all tasks with all seeds, and shows the results. Returns the exit status: 0; 1 if a task or publishing
        failed; 130 after Ctrl-C. If there is only one task, its error is raised; with several processes, every error
        is."""
        plan = self.plan
        status = 0
        with ExitStack() as until_the_end:  # it unlocks the directories of the tasks
            jobs = []
            for job in plan.jobs:
                with self._noting_errors(job):
                    prepare_job(plan, job, until_the_end)
                    jobs.append(job)
            publishes = self.pushes and plan.is_main and bool(jobs)
            if publishes:
                self._check_publication(jobs)
            PartialState().wait_for_everyone()  # if one has failed, none continues or deletes anything
            try:
                for job in jobs:
                    with self._noting_errors(job):
                        for record in run_task(plan, job):  # the records before a failure are kept
                            self.records.append(record)
            except KeyboardInterrupt as interrupt:
                without = " without --overwrite_output_dir" if plan.flags.overwrite_output_dir else ""
                logger.warning(f"Interrupted. Repeat the command{without}: it continues with what is missing.")
                status = status_of(interrupt)
            if plan.is_main and self.records:
                print_table(results_table(self.records))
                logger.info(f"Records and predictions: {plan.directory}")
                if plan.predicts:
                    collect_submissions([job.task for job in jobs], self.records, plan.directory)
            for message in self._failed:  # again, where the user sees it
                logger.error(message)
            if publishes and self.records and status == 0:
                for name in dict.fromkeys(record.task for record in self.records):  # not the tasks of earlier calls
                    published = publish_run(
                        fine_tuned_repositories,
                        plan.directory / name,
                        str(self.args.hub_model_id),
                        self.card,
                        self._is_private,
                        self.publication.force,
                        base_model=self.publication.base_model,
                    )
                    status |= int(any(each.error is not None for each in published))
        return status or int(bool(self._failed))

    @contextmanager
    def _noting_errors(self, job: Job) -> Iterator[None]:
        """Notes the error of a task, so that the other tasks still run. If there is only one task, its error is
        raised; with several processes, every error is, because all processes must do the same."""
        try:
            yield
        except Exception as error:
            if len(self.plan.jobs) == 1 or self.args.world_size > 1:
                raise
            self._failed.append(f"{job.task.title} failed: {error}")
            logger.error(self._failed[-1], exc_info=not isinstance(error, ValueError))

    def _check_publication(self, jobs: Sequence[Job]) -> None:
        """Raises a ValueError for repositories that cannot be written, before anything is trained."""
        repositories = []
        for job in jobs:
            known = None
            if not self.plan.flags.overwrite_output_dir:
                known = first_start(EvaluationRecord, self.plan.directory / job.task.name, 1)
            repositories.append(Repository(f"{self.args.hub_model_id}-{job.task.name}", {}, known))
        check(repositories, self._is_private, self.publication.force)


def _set_up_logging(args: FineTuningArguments) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hf_electra_rtd").setLevel(logging.INFO if args.process_index == 0 else logging.ERROR)
    # Hides the table of new and unused tensors, which `load_with_head` checks.
    logging.getLogger("transformers.modeling_utils").addFilter(lambda record: "LOAD REPORT" not in record.getMessage())


if __name__ == "__main__":
    run(main)
