"""A pre-training run from its command line to its outputs; the loop in the middle is the caller's.

`start_run` reads flags, prepares text and model; a loop trains; `finish_run` leaves what a run leaves. Both scripts,
with `RTDTrainer` and with bare `accelerate`, are these three steps.
"""

from __future__ import annotations

import dataclasses
import logging
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, set_seed
from transformers.utils import logging as transformers_logging

from hf_electra_rtd.data.blocks import BlockFile
from hf_electra_rtd.data.collator import DataCollatorForRTD
from hf_electra_rtd.data.stream import RowStream
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.publishing.arguments import CardArguments, TowerArguments
from hf_electra_rtd.publishing.delivery import print_deliveries
from hf_electra_rtd.records import PretrainingRecord, count_cores, utc_now
from hf_electra_rtd.training.arguments import RECIPES, RTDTrainingArguments, refuse_other_options
from hf_electra_rtd.training.checkpoints import list_checkpoints, read_state, remove_unfinished
from hf_electra_rtd.training.cli import parse_arguments
from hf_electra_rtd.training.disk import DirectoryLock, check_output_dir, estimate_disk
from hf_electra_rtd.training.emissions import read_emissions
from hf_electra_rtd.training.fractions import FRACTIONS_DIRECTORY, read_fractions, warn_of_missed_fractions
from hf_electra_rtd.training.inputs import DataArguments, get_rows, get_tokenizer
from hf_electra_rtd.training.outputs import is_finished, prepare_output_dir, remove_run, save_outputs
from hf_electra_rtd.training.pair import ModelArguments, build_model
from hf_electra_rtd.training.publication import RunPublication
from hf_electra_rtd.training.rehearsal import print_rehearsal, rehearse
from hf_electra_rtd.training.showcase import judge_rows, pick_sentence, print_showcase
from hf_electra_rtd.training.stream import fit_stream, held_out_stream, make_collator, rows_per_step
from hf_electra_rtd.training.summary import make_record, print_summary


logger = logging.getLogger(__name__)

NUM_SHOWN_ROWS = 4


@dataclass
class RunArguments:
    """What is to be done at all."""

    dry_run: bool = field(
        default=False, metadata={"help": "Prepare the text, show what would happen and how long it takes, and stop."}
    )


@dataclass
class Run:
    """A run that is ready for its loop.

    Attributes:
        argv: what was typed, the script's path first.
        started: UTC, ISO 8601.
        run_args, model_args, data_args, args: the flags; `args` are the training arguments.
        checkpoint: directory to resume from, or None.
        tokenizer: of both towers.
        stream: the training rows, as long as the run.
        held_out: the held-out rows, or None.
        collator: masks both.
        model: the pair, as it begins.
        lock: keeps other processes out of the run's directory as long as it lives; None where it needs none.
        publication: what goes to the Hub along the run; None where nothing does.
    """

    argv: list[str]
    started: str
    run_args: RunArguments
    model_args: ModelArguments
    data_args: DataArguments
    args: RTDTrainingArguments
    checkpoint: str | None
    tokenizer: PreTrainedTokenizerBase
    stream: RowStream
    held_out: RowStream | None
    collator: DataCollatorForRTD
    model: ElectraForRTDPretraining
    lock: DirectoryLock | None
    publication: RunPublication | None = None

    @property
    def command(self) -> str:
        """What was typed, without the directory that the script lies in."""
        return shlex.join([Path(self.argv[0]).name, *self.argv[1:]])

    @property
    def resume_command(self) -> str:
        """What to type to go on after an interruption."""
        words = list(self.argv)
        for flag in ("--resume_from_checkpoint", "--overwrite_output_dir"):
            if flag in words:
                index = words.index(flag)
                has_value = index + 1 < len(words) and not words[index + 1].startswith("--")
                del words[index : index + 1 + has_value]
        return shlex.join([*words, "--resume_from_checkpoint", "latest"])


def start_run(
    argv: Sequence[str], description: str | None, defaults: dict[str, Any], options: set[str] | None = None
) -> Run:
    """Everything before the loop: flags, tokenizer, rows, model.

    Args:
        argv: the command line, without the program's name.
        description: for `--help`.
        defaults: of flags.
        options: the training arguments that the loop knows; by default all.

    Raises:
        ValueError: for flags or files that cannot be used, before any work is lost.
        SystemExit: by `--help`, or for an unknown flag.
    """
    started = utc_now()
    run_args, model_args, data_args, card_args, tower_args, args = parse_arguments(
        (RunArguments, ModelArguments, DataArguments, CardArguments, TowerArguments, RTDTrainingArguments),
        argv,
        description=description,
        defaults=defaults,
        recipes=RECIPES,
    )
    if options is not None:
        refuse_other_options(args, options)
    if args.push_to_hub:
        card_args.details()  # refuses what cards cannot say, before the text is prepared
    is_main = args.process_index == 0
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hf_electra_rtd").setLevel(logging.INFO if is_main else logging.ERROR)
    # It warns at every checkpoint that tied tensors are stored once; `check_tensors` looks after that.
    logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()  # one for every file that is read or written
    set_seed(args.seed)
    _warn_of_idle_cores(args)
    first_stage = model_args.two_stage_from
    if first_stage is not None and Path(first_stage).resolve() == Path(str(args.output_dir)).resolve():
        raise ValueError("--output_dir is the first stage itself (--two_stage_from): choose another one.")
    if args.resume_from_checkpoint == "auto" and is_finished(str(args.output_dir)):
        logger.info(f"The run in {args.output_dir} is finished, and left no checkpoint: there is nothing to do.")
        raise SystemExit(0)
    # One process prepares; the others wait and read what it made.
    with args.main_process_first(local=False, desc="preparing tokenizer and rows"):
        checkpoint = prepare_output_dir(
            str(args.output_dir), args.resume_from_checkpoint, data_args.overwrite_output_dir, writes=is_main
        )
        lock = DirectoryLock(str(args.output_dir)) if is_main and not run_args.dry_run else None
        tokenizer = get_tokenizer(
            data_args,
            str(args.output_dir),
            model_args.tokenizer_source,
            resumed=checkpoint is not None or not is_main,  # the first process has trained it, where one is trained
            disable_progress=bool(args.disable_tqdm),
        )
        train_rows, held_out_rows = get_rows(data_args, args, tokenizer)
    model = build_model(model_args, tokenizer, args.row_length)
    run = Run(
        argv=[sys.argv[0], *argv],
        started=started,
        run_args=run_args,
        model_args=model_args,
        data_args=data_args,
        args=args,
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        stream=fit_stream(train_rows, args),
        held_out=None if held_out_rows is None else held_out_stream(held_out_rows),
        collator=make_collator(tokenizer, args),
        model=model,
        lock=lock,
    )
    if args.push_to_hub:
        # Before the loop prepares the model, which may leave each process a share of its parameters.
        whole = _make_record(run, model, args.max_steps, 0.0, [], {})
        run.publication = RunPublication(
            args, card_args, tower_args, tokenizer, whole.model, partial(_record_so_far, run, whole)
        )
    if is_main and not run_args.dry_run:
        _check_room(run)
        if run.publication is not None:
            run.publication.check()
        if checkpoint is not None:
            warn_of_missed_fractions(args, args.max_steps, read_state(checkpoint).global_step)
        # The last act before the loop: a mistake found until here has cost nothing.
        remove_unfinished(str(args.output_dir))
        if data_args.overwrite_output_dir and checkpoint is None:
            remove_run(str(args.output_dir))
    return run


def show_rehearsal(run: Run) -> None:
    """What `--dry_run` shows, in place of the loop.

    Raises:
        ValueError: for a directory that has no room, or a step that does not fit in memory.
    """
    rehearsal = rehearse(run.model, run.tokenizer, run.stream, run.collator, run.args)
    if run.args.process_index == 0:
        print_rehearsal(rehearsal)
        print(
            f"\nNothing was trained. The prepared rows are kept in {run.args.output_dir}, and used by the run itself."
        )


def _warn_of_idle_cores(args: RTDTrainingArguments) -> None:
    """Says when a run on the CPU leaves cores idle: `accelerate launch` gives a process one core by default."""
    threads, cores = torch.get_num_threads(), count_cores()
    if args.device.type == "cpu" and args.world_size * threads < cores:
        logger.warning(
            f"Training on {args.world_size * threads} of {cores} CPU cores. To use all, launch with "
            f"--num_cpu_threads_per_process {cores // args.world_size} (or set OMP_NUM_THREADS)."
        )


def _check_room(run: Run) -> None:
    """Refuses a run that would fill the disk, before it begins."""
    output_dir = str(run.args.output_dir)
    need = estimate_disk(run.model, run.tokenizer, run.args, run.args.max_steps).total
    there = (*list_checkpoints(output_dir), Path(output_dir) / FRACTIONS_DIRECTORY)
    files = (file for directory in there for file in directory.rglob("*"))
    check_output_dir(output_dir, max(0, need - sum(file.stat().st_size for file in files)))


def evaluation_at(step: int, log_history: list[dict[str, Any]]) -> dict[str, float] | None:
    """The held-out metrics that the loop logged at a step, which need not be computed again; None where it did not."""
    logged = [log for log in log_history if log["step"] == step and "eval_loss" in log]
    return {name: value for name, value in logged[-1].items() if name.startswith("eval_")} if logged else None


def finish_run(
    run: Run,
    model: ElectraForRTDPretraining,
    steps: int,
    train_seconds: float,
    curves: list[dict[str, Any]],
    metrics: dict[str, float],
) -> None:
    """Writes the pair, both towers and the record, and shows how the run went. For one process of the run.

    Args:
        run: the run.
        model: the trained pair.
        steps: optimiser steps.
        train_seconds: time in training steps.
        curves: the log, a dict a line.
        metrics: of the held-out rows, at the end; empty without.

    Raises:
        CheckpointError: if anything could not be written.
    """
    record = _make_record(run, model, steps, train_seconds, curves, metrics)
    try:
        record = dataclasses.replace(record, emissions=read_emissions(str(run.args.output_dir)))
    except ValueError as error:
        logger.warning(f"The record says nothing of emissions: {error}")
    save_outputs(model, run.tokenizer, record, str(run.args.output_dir))
    if run.held_out is not None:
        rows = run.held_out.__getitems__(list(range(min(NUM_SHOWN_ROWS, len(run.held_out)))))
        print_showcase([pick_sentence(row) for row in judge_rows(model, run.collator, rows)])
    print_summary(record, str(run.args.output_dir))
    if run.publication is not None:
        print_deliveries(run.publication.finish(), str(run.args.output_dir))


def _record_so_far(
    run: Run, whole: PretrainingRecord, steps: int, train_seconds: float, curves: list[dict[str, Any]]
) -> PretrainingRecord:
    """The record of a run that goes on, from what it would be of the whole run."""
    share = steps / run.args.max_steps
    return dataclasses.replace(
        whole,
        finished=utc_now(),
        steps=steps,
        rows=steps * rows_per_step(run.args),
        tokens=round(whole.tokens * share),
        train_seconds=train_seconds,
        flops={name: flops * share for name, flops in whole.flops.items()},
        curves=curves,
        metrics=evaluation_at(steps, curves) or {},
        fractions=[
            asdict(fraction) for fraction in read_fractions(run.args, run.args.max_steps) if fraction.step <= steps
        ],
    )


def _make_record(
    run: Run,
    model: ElectraForRTDPretraining,
    steps: int,
    train_seconds: float,
    curves: list[dict[str, Any]],
    metrics: dict[str, float],
) -> PretrainingRecord:
    held_out = None if run.held_out is None else run.held_out.rows
    assert held_out is None or isinstance(held_out, BlockFile)
    return make_record(
        command=run.command,
        started=run.started,
        arguments={
            "model": asdict(run.model_args),
            "data": asdict(run.data_args),
            "training": run.args.to_sanitized_dict(),
        },
        model=model,
        rows=run.stream,
        held_out=held_out,
        mask_probability=run.args.mask_probability,
        steps=steps,
        train_seconds=train_seconds,
        curves=curves,
        metrics=metrics,
        fractions=read_fractions(run.args, run.args.max_steps),
    )


def say_how_to_resume(run: Run, step: int) -> None:
    """The last words of a run that was interrupted and saved."""
    print(
        f"\nInterrupted after step {step:,} of {run.args.max_steps:,}; everything up to it is saved in "
        f"{run.args.output_dir}. Go on by launching it as before, with these flags:\n  {run.resume_command}",
        flush=True,
    )
