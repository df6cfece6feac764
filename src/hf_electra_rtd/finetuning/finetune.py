"""Fine-tunes and evaluates an encoder on GLUE, CLUE, SQuAD or your own task.

    hf-electra-rtd finetune --model_name_or_path runs/small --task_name mrpc rte --seeds 5 --output_dir runs/glue

The recipe is the paper's for the model's size; flags win. Each run leaves a record, its predictions, and the best
seed's model; at the end stands a table beside published scores. If interrupted, the same command goes on with what is
missing. Several GPUs: `accelerate launch -m hf_electra_rtd.finetuning.finetune ...`.
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from transformers.trainer_utils import HubStrategy
from transformers.utils import logging as transformers_logging

from hf_electra_rtd.cli import INTERRUPTED, parse_arguments, run
from hf_electra_rtd.finetuning.arguments import FineTuningArguments, LoraArguments, OwnTaskArguments, TaskArguments
from hf_electra_rtd.finetuning.run import SUBMISSION_DIRECTORY, FineTuning, Job, best_seed
from hf_electra_rtd.finetuning.submission import zip_submission
from hf_electra_rtd.publishing.card import CardArguments
from hf_electra_rtd.publishing.hub import Background, Published, check, publish, read_publication, remember
from hf_electra_rtd.publishing.publish import FineTunedPublication, fine_tuned_repositories, known_card, report
from hf_electra_rtd.publishing.tables import print_results, write_results
from hf_electra_rtd.records import EvaluationRecord, public_command
from hf_electra_rtd.tasks import Task


logger = logging.getLogger(__name__)


def make_publisher(
    args: FineTuningArguments, card: CardArguments, publication: FineTunedPublication, tasks: Sequence[Task]
) -> Callable[[Path], list[Published]]:
    """Checks that each task may have its repository, `ORG/NAME-mrpc`, and returns the function that publishes the best
    models of `output_dir` or of one of its tasks."""
    directory, private = str(args.output_dir), args.hub_private_repo is not False
    check([f"{args.hub_model_id}-{task.name}" for task in tasks], directory, private, publication.force)
    given = {"base_model": publication.base_model, "eval_results": publication.eval_results or None}
    remember(directory, hub_model_id=args.hub_model_id, private=private, **asdict(card), **given)
    flags = read_publication(directory)["flags"]  # what an earlier publication showed stays
    shown: dict[str, Any] = {name: flags[name] for name in given if name in flags}

    def publish_models(path: Path) -> list[Published]:
        repositories = fine_tuned_repositories(path, str(args.hub_model_id), known_card(flags), **shown)
        return publish(repositories, directory, private, publication.force)

    return publish_models


def main(argv: list[str]) -> int:
    """Runs all tasks with all seeds, and shows the results. A task that fails leaves the others their results.

    Returns the exit status: 0; 1 if a task or publishing failed; 130 after Ctrl-C.

    Raises:
        ValueError: if nothing can be run, or the only task fails.
    """
    import datasets

    task_args, own_args, lora_args, card_args, publication_args, args = parse_arguments(
        (TaskArguments, OwnTaskArguments, LoraArguments, CardArguments, FineTunedPublication, FineTuningArguments),
        argv,
        description=__doc__,
        defaults={"output_dir": "runs/finetune"},
    )
    is_main, push_to_hub = args.process_index == 0, args.push_to_hub
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hf_electra_rtd").setLevel(logging.INFO if is_main else logging.ERROR)
    # Its table of new and unused tensors: `load_with_head` checks them.
    logging.getLogger("transformers.modeling_utils").addFilter(lambda record: "LOAD REPORT" not in record.getMessage())
    transformers_logging.disable_progress_bar()  # one for every file that is read or written
    if args.disable_tqdm:
        datasets.disable_progress_bars()
    args.push_to_hub = False  # the Trainer's own way would upload every seed's directory
    fine_tuning = FineTuning(task_args, own_args, lora_args, args, public_command([sys.argv[0], *argv]))
    if push_to_hub and (task_args.evaluate_only or task_args.keep_models == "none"):
        raise ValueError("--push_to_hub has no model to publish with --evaluate_only or --keep_models none.")
    if push_to_hub and lora_args.lora and not publication_args.base_model and Path(fine_tuning.name).is_dir():
        raise ValueError(
            "--push_to_hub with --lora needs the Hub id of the model that the adapters belong to, and "
            f"{fine_tuning.name} is a directory. Publish it first, and pass its id with --base_model."
        )
    failures: dict[str, Exception] = {}
    jobs = []
    for task in fine_tuning.tasks:
        try:
            jobs.append(fine_tuning.prepare(task))
        except ValueError as error:
            if len(fine_tuning.tasks) == 1:
                raise
            failures[task.title] = error
            logger.error(f"{task.title} is left out: {error}")
    directory, publish_models, background = Path(str(args.output_dir)), None, Background()
    if push_to_hub and is_main and jobs:
        publish_models = make_publisher(args, card_args, publication_args, [job.task for job in jobs])
    records: list[EvaluationRecord] = []
    status = 0
    for job in jobs:
        try:
            records += fine_tuning.run_task(job)
            if publish_models is not None and args.hub_strategy != HubStrategy.END:
                background.start(partial(publish_models, directory / job.task.name))
        except KeyboardInterrupt:
            logger.warning("Interrupted. The same command goes on with what is missing.")
            status = INTERRUPTED
            break
        except Exception as error:
            if args.world_size > 1 or len(fine_tuning.tasks) == 1:
                raise  # the other processes would wait for this one
            failures[job.task.title] = error
            logger.error(f"{job.task.title} is given up.", exc_info=not isinstance(error, ValueError))
    if is_main and records:
        print_results(records)
        write_results(records, directory)
        logger.info(f"Records, predictions and tables: {directory}")
        if fine_tuning.predicts:
            _collect_submissions(jobs, records, directory)
    for title, reason in failures.items():
        logger.error(f"{title} failed: {reason}")
    if publish_models is not None and records and status == 0:
        background.wait()
        try:
            status = report(publish_models(directory), directory)
        except (OSError, ValueError) as error:
            logger.error(f"Not published: {error}")
            status = 1
    return status or int(bool(failures))


def _collect_submissions(jobs: list[Job], records: list[EvaluationRecord], directory: Path) -> None:
    """The files of the best seed of each task, and their zip."""
    target = directory / SUBMISSION_DIRECTORY
    shutil.rmtree(target, ignore_errors=True)
    for job in jobs:
        runs = [record for record in records if record.task == job.task.name]
        if runs:
            seed = best_seed(runs) if job.dev else runs[0].seed  # never chosen by the test split
            source = directory / job.task.name / f"seed_{seed}" / SUBMISSION_DIRECTORY
            if source.is_dir():
                shutil.copytree(source, target, dirs_exist_ok=True)
    if target.is_dir():
        logger.info(f"For the benchmark's server: {zip_submission(jobs[0].task.benchmark, target)}")


if __name__ == "__main__":
    run(main)
