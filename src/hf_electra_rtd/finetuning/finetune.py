"""Fine-tunes and evaluates an encoder on GLUE, CLUE, SQuAD or your own task.

    hf-electra-rtd finetune --model_name_or_path runs/small --task_name mrpc rte --seeds 5 --output_dir runs/glue

The recipe is the paper's for the model's size; flags win. Each run leaves a record, its predictions, and the best
seed's model; at the end stands a table beside published scores. If interrupted, the same command goes on with what is
missing. Several GPUs: `accelerate launch -m hf_electra_rtd.finetuning.finetune ...`.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import datasets
from accelerate import PartialState
from transformers.utils import logging as transformers_logging

from hf_electra_rtd.cli import INTERRUPTED, check_ranges, flag, parse_arguments, refuse, refuse_given, run
from hf_electra_rtd.files import write_text
from hf_electra_rtd.finetuning.predict import Classifier
from hf_electra_rtd.finetuning.run import SUBMISSION_DIRECTORY, FineTuning, Job, best_seed
from hf_electra_rtd.finetuning.submission import zip_submission
from hf_electra_rtd.finetuning.trainer import FineTuningArguments
from hf_electra_rtd.publishing.card import CardArguments
from hf_electra_rtd.publishing.hub import Published, Repository, check, publish
from hf_electra_rtd.publishing.publish import (
    FineTunedPublication,
    fine_tuned_repositories,
    first_start,
    publish_command,
    report,
)
from hf_electra_rtd.publishing.tables import print_results
from hf_electra_rtd.recipes import SIZES
from hf_electra_rtd.records import EvaluationRecord, public_command
from hf_electra_rtd.training.arguments import check_publishing


logger = logging.getLogger(__name__)


@dataclass
class TaskArguments:
    """Which model, which tasks, how often."""

    model_name_or_path: str = field(metadata={"help": "Directory or Hub id of an encoder, or a pre-training run."})
    benchmark: str = flag("glue", "glue, clue, more, or own (--train_file, ...).")
    task_name: list[str] = flag(["all"], "One or more tasks, or all.")
    data_dir: str | None = flag(None, "The benchmark in its official layout; by default it comes from the Hub.")
    seeds: int = flag(1, "Runs of each task, with the seeds seed, seed + 1, ...")
    tokenizer: str | None = flag(None, "Directory, Hub id or vocab.txt to use in place of the model's tokenizer.")
    from_scratch: bool = flag(False, "Use the model's architecture with random weights: no pre-training.")
    head: Literal["transformers", "paper"] = flag("transformers", "The stock head, or the paper's (ELECTRA only).")
    size: str | None = flag(None, f"Recipe to use: {', '.join(SIZES)}; by default guessed from the model.")
    layerwise_lr_decay: float | None = flag(None, "Of the learning rate from a layer to the one below; 1: none.")
    layerwise_lr_decay_off_by_one: bool = flag(False, "Decay the top layer twice, as the original's code does.")
    max_seq_length: int | None = flag(None, "Tokens of an example; by default the task's number.")
    doc_stride: int = flag(128, "Tokens that two windows of a context share.")
    max_query_length: int = flag(64, "Tokens of a question; the rest is cut off.")
    dropout: float | None = flag(None, "In the encoder and before its head; by default 0.1, or the model's own.")
    select: Literal["last", "best"] = flag("last", "The model after the last step, or the best by its dev score.")
    class_weights: Literal["none", "balanced"] = flag("none", "In classification; balanced: all count equally.")
    max_train_samples: int | None = flag(None, "Train on so many examples, drawn at random.")
    few_shot: int | None = flag(None, "Train on so many examples of each class, drawn by each seed; 0: on none.")
    label_words: list[str] | None = flag(None, "CLASS=WORD ...: classify by how original a word for each class looks.")
    template: str | None = flag(
        None, "The text with a word in it: '{text} It was {label}.'; of pairs also {text_pair}."
    )
    max_eval_samples: int | None = flag(None, "Evaluate on so many of a dev split; test splits stay whole.")
    predict: bool = flag(False, "Predict the test split and write the files for the benchmark's server.")
    keep_models: Literal["best", "all", "none"] = flag("best", "Fine-tuned models to keep; best: by its dev score.")
    overwrite_output_dir: bool = flag(False, "Delete the results of these tasks in output_dir.")
    lora: bool = flag(False, "Train low-rank adapters and the head only.")
    lora_r: int = flag(8, "Rank of the adapters.")
    lora_alpha: int = flag(16, "Alpha of LoRA: adapters are multiplied by alpha / rank.")
    lora_dropout: float = flag(0.1, "Before the adapters.")
    merge_adapter: bool = flag(False, "Also save the model with its adapters merged (loads without peft).")

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.lora:
            refuse_given(self, "lora_r lora_alpha lora_dropout merge_adapter", "needs --lora.")
        if self.keep_models == "none":
            refuse_given(self, "merge_adapter", "has no model to write with --keep_models none.")


@dataclass
class OwnTaskArguments:
    """Your own task, in place of a benchmark's."""

    train_file: str | None = flag(None, "Examples to train on: .csv, .tsv, .jsonl, .parquet, .conll or SQuAD's .json.")
    validation_file: str | None = flag(None, "Examples to evaluate on; without: --validation_share.")
    test_file: str | None = flag(None, "Examples to predict, labeled or not.")
    validation_share: float | None = flag(None, "Share of the training examples to hold out; 0.1 without a dev split.")
    dataset: str | None = flag(None, "A dataset of the Hub, in place of files.")
    dataset_config: str | None = flag(None, "Its configuration.")
    dataset_revision: str | None = flag(None, "Its branch, tag or commit.")
    dataset_splits: list[str] | None = flag(None, "Its splits: train=train[:90%%] dev=train[90%%:] test=test.")
    task_kind: Literal[
        "classification", "multi_label", "regression", "multiple_choice", "question_answering", "tagging", "correction"
    ] = flag("classification", "What a label is.")
    text_column_name: str = flag("text", "Column of the text, or of the words to tag.")
    second_text_column_name: str | None = flag(None, "Column of a pair's second text.")
    label_column_name: str | None = flag(
        None, "Column of label, number or tags (label), answers (answers), right sentence (right)."
    )
    id_column_name: str | None = flag(None, "Column of the ids that predictions are written with.")
    labels: list[str] | None = flag(None, "The classes in their order; by default those of the training data, sorted.")
    unanswerable: bool | None = flag(None, "A context may hold no answer; by default where some answers are empty.")
    metrics: list[str] | None = flag(None, "The first one is the main metric; by default those usual for the kind.")
    language: str = flag("", "en, zh, ko, ...: for the record, and the rules that answers are scored by.")

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def is_given(self) -> bool:
        """Whether there is such a task."""
        return any((self.train_file, self.validation_file, self.test_file, self.dataset))


# ---- From Python ----

Examples = str | Path | Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]]


def finetune(
    model: str, train: Examples, validation: Examples | None = None, output_dir: str = "runs/finetune", **flags: Any
) -> Classifier:
    """Does what the command `finetune` does, with its `flags` (`learning_rate=1e-4`), and returns the model of the
    best seed. `model` is a directory or Hub id of an encoder; examples are a file, rows (`[{"text": ...}]`)
    or columns (`{"text": [...], "label": [...]}`). What the command refuses is a ValueError."""
    refuse((flags.get("keep_models") == "none", "keep_models='none' leaves no model to return. Take 'best' or 'all'."))
    given = {"model_name_or_path": model, "output_dir": output_dir, "task_name": "own", "disable_tqdm": True, **flags}
    for name, examples in (("train", train), ("validation", validation)):
        if isinstance(examples, Mapping):
            columns = examples
            examples = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        if examples is not None and not isinstance(examples, (str, Path)):
            rows, examples = examples, Path(output_dir, f"{name}.jsonl")
            lines = [json.dumps(row, ensure_ascii=False, default=_plain) + "\n" for row in rows]
            write_text(examples, "".join(lines))
        if examples is not None:
            given[f"{name}_file"] = examples
    words: list[str] = []
    for name, value in given.items():
        if value is not None:
            words += [f"--{name}", *map(str, value if isinstance(value, (list, tuple)) else [value])]
    status, records = _fine_tune(words, "hf-electra-rtd finetune")
    if status:
        raise RuntimeError(f"Fine-tuning {model} did not end well: see the log.")
    best = Path(output_dir, records[0].task, f"seed_{best_seed(records)}")
    return Classifier(str(best), use_cpu=bool(flags.get("use_cpu")))


def _plain(value: Any) -> Any:
    """Of NumPy and pandas, what JSON can hold."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


# ---- The command ----


def main(argv: list[str]) -> int:
    """Runs all tasks with all seeds, and shows the results. Returns the exit status, as `_fine_tune`."""
    return _fine_tune(argv, sys.argv[0])[0]


def _fine_tune(argv: list[str], program: str) -> tuple[int, list[EvaluationRecord]]:
    """Runs all tasks with all seeds, and shows the results. A task that fails leaves the others their results; with
    several processes, which must all do the same, it ends them. Returns the exit status (0; 1 if a task or publishing
    failed; 130 after Ctrl-C) and the records. Raises a ValueError if nothing can be run, or the only task fails."""
    task_args, own_args, card_args, publication_args, args = parse_arguments(
        (TaskArguments, OwnTaskArguments, CardArguments, FineTunedPublication, FineTuningArguments),
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
    check_publishing(args, card_args, publication_args)
    args.push_to_hub = False  # the Trainer's own way would upload every seed's directory
    fine_tuning = FineTuning(task_args, own_args, args, public_command([program, *argv]))
    directory, name = Path(str(args.output_dir)), fine_tuning.name
    has_own_classes = any(job.task.kind == "correction" or job.task.label_words for job in fine_tuning.jobs)
    is_nameless = task_args.lora and not publication_args.base_model and Path(name).is_dir()
    if push_to_hub:
        refuse(
            (task_args.keep_models == "none", "--push_to_hub has no model to publish with --keep_models none."),
            (has_own_classes, "--push_to_hub: no stock class does what models of correction and --label_words do."),
            (is_nameless, f"--push_to_hub with --lora needs the Hub id of {name}, which was adapted (--base_model)."),
        )
    records: list[EvaluationRecord] = []
    failed: list[str] = []
    status, is_alone = 0, len(fine_tuning.jobs) == 1 or args.world_size > 1

    def succeeds(action: Callable[[Job], None], job: Job) -> bool:
        try:
            action(job)
        except Exception as error:
            if is_alone:
                raise
            failed.append(f"{job.task.title} failed: {error}")
            logger.error(failed[-1], exc_info=not isinstance(error, ValueError))
            return False
        return True

    jobs = [job for job in fine_tuning.jobs if succeeds(fine_tuning.prepare, job)]
    private, force = args.hub_private_repo is not False, publication_args.force
    publishes = push_to_hub and is_main and bool(jobs)
    if publishes:
        repositories = []
        for job in jobs:
            task = directory / job.task.name
            known = None if task_args.overwrite_output_dir else first_start(EvaluationRecord, task, 1)
            repositories.append(Repository(f"{args.hub_model_id}-{job.task.name}", {}, known))
        check(repositories, private, force)
    PartialState().wait_for_everyone()  # where one has failed, none goes on or deletes anything
    try:
        for job in jobs:
            succeeds(lambda job: records.extend(fine_tuning.run_task(job)), job)
    except KeyboardInterrupt:
        logger.warning("Interrupted. The same command goes on with what is missing.")
        status = INTERRUPTED
    if is_main and records:
        print_results(records)
        logger.info(f"Records and predictions: {directory}")
        if fine_tuning.predicts:
            _collect_submissions(jobs, records, directory)
    for message in failed:  # again, where it is seen
        logger.error(message)
    if publishes and records and status == 0:
        base_model = publication_args.base_model
        command = publish_command(
            run=str(directory),
            hub_model_id=args.hub_model_id,
            private=private,
            force=force,
            base_model=base_model,
            **asdict(card_args),
        )
        try:
            repositories = fine_tuned_repositories(directory, str(args.hub_model_id), card_args, base_model)
            published = publish(repositories, private, force, collection=args.hub_model_id)
        except (OSError, ValueError) as error:
            published = [Published(str(args.hub_model_id), error=str(error))]
        status = report(published, command)
    return status or int(bool(failed)), records


def _collect_submissions(jobs: list[Job], records: list[EvaluationRecord], directory: Path) -> None:
    """The files of the best seed of each task, beside those of earlier calls, and the zip of all."""
    target, sources = directory / SUBMISSION_DIRECTORY, []
    for job in jobs:
        if runs := [record for record in records if record.task == job.task.name]:
            source = directory / job.task.name / f"seed_{best_seed(runs)}" / SUBMISSION_DIRECTORY
            sources += [source] if source.is_dir() else []
    for source in sources:
        shutil.copytree(source, target, dirs_exist_ok=True)
    if sources:
        logger.info(f"For the benchmark's server: {zip_submission(jobs[0].task.benchmark, target)}")


if __name__ == "__main__":
    run(main)
