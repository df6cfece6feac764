"""Pre-trains a generator and a discriminator by replaced-token detection, from text to checkpoints that stock
transformers loads.

    hf-electra-rtd pretrain --train_files 'corpus/*.txt' --size small --output_dir runs/small

On several GPUs, launch it with accelerate; the flags are the same:

    accelerate launch -m hf_electra_rtd.training.pretrain --train_files 'corpus/*.txt' --output_dir runs/small

Every flag can stand in a YAML file instead (--config FILE). --dry_run shows what the run would do and how long it
would take. Ctrl-C saves a checkpoint and prints the command that continues.
"""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, set_seed
from transformers.utils import logging as transformers_logging

from hf_electra_rtd.cli import INTERRUPTED, flag, parse_arguments
from hf_electra_rtd.cli import run as run_command
from hf_electra_rtd.data.collator import DataCollatorForRTD
from hf_electra_rtd.data.prepare import TOKENIZER_DIRECTORY, DataArguments, get_sequences, get_tokenizer
from hf_electra_rtd.data.stream import SequenceStream
from hf_electra_rtd.files import lock_directory, naming, remove_directory, write_text
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.publishing.card import CardArguments
from hf_electra_rtd.publishing.hub import PUBLISH_FILE
from hf_electra_rtd.publishing.pictures import CURVES_FILE
from hf_electra_rtd.publishing.publish import PretrainingPublication, report
from hf_electra_rtd.recipes import SIZES
from hf_electra_rtd.records import PretrainingRecord, count_cores, public_command, utc_now
from hf_electra_rtd.training import checkpoints
from hf_electra_rtd.training.arguments import RTDTrainingArguments
from hf_electra_rtd.training.console import print_samples, print_summary
from hf_electra_rtd.training.dry_run import check_disk, dry_run
from hf_electra_rtd.training.interruption import StopSignal, StopSignalCallback
from hf_electra_rtd.training.model import ModelArguments, build_model
from hf_electra_rtd.training.record import EMISSIONS_FILE
from hf_electra_rtd.training.stream import fit_stream, held_out_stream, make_collator
from hf_electra_rtd.training.trainer import RTDTrainer


logger = logging.getLogger(__name__)

NUM_SAMPLES = 4  # held-out sequences shown at the end


@dataclass
class RunArguments:
    """How the run starts."""

    dry_run: bool = flag(False, "Prepare the text, show what the run would do and how long it takes, and stop.")
    overwrite_output_dir: bool = flag(False, "Delete the run that lies in --output_dir, and start anew.")


@dataclass
class Run:
    """A run that is ready for its loop."""

    argv: list[str]  # the command line, the program first
    arguments: RunArguments
    args: RTDTrainingArguments
    card: CardArguments
    publication: PretrainingPublication
    checkpoint: str | None  # directory to resume from
    tokenizer: PreTrainedTokenizerBase
    stream: SequenceStream  # the training sequences, as long as the run
    held_out: SequenceStream | None
    collator: DataCollatorForRTD
    model: ElectraForRTDPretraining
    record_facts: dict[str, Any]  # arguments of `make_record` that only the command line knows

    @property
    def directory(self) -> Path:
        return Path(str(self.args.output_dir))

    @property
    def replaces_another(self) -> bool:
        """Whether the run that lies in `directory` is deleted."""
        return self.arguments.overwrite_output_dir and self.checkpoint is None


def main(
    argv: Sequence[str],
    description: str | None = __doc__,
    defaults: Mapping[str, Any] | None = None,
    default_text: Sequence[str] = (),
) -> int:
    """Pre-trains from flags to the published models. `description` is that of `--help`, `defaults` those of flags;
    `default_text` is used where no flag names text.

    Returns:
        The exit status: 0; 1 where the run is complete but could not be published; 130 after an interruption.
    """
    with start(argv, description, defaults or {}, default_text) as run:
        if run.arguments.dry_run:
            dry_run(run.model, run.stream, run.collator, run.args)
            return 0
        with StopSignal() as signal:
            stop = StopSignalCallback(signal)
            with _publication_of_its_own(run):
                data = (run.stream, run.held_out, run.tokenizer, run.collator)
                trainer = RTDTrainer(run.model, run.args, *data, run.card, run.publication, callbacks=[stop])
                prepare_output_dir(run)
            trainer.record_facts = run.record_facts
            trainer.train(resume_from_checkpoint=run.checkpoint)
        if stop.stopped:
            print_resume_command(run, trainer.state.global_step)
            return INTERRUPTED
        record = trainer.save_run()
        if not trainer.is_world_process_zero():
            return 0
        print_results(run, record, None if trainer.is_fsdp_enabled else run.model)
        return report(trainer.published, str(run.directory)) if run.args.push_to_hub else 0


# ---- Before the loop ----


@contextmanager
def start(
    argv: Sequence[str], description: str | None, defaults: Mapping[str, Any], default_text: Sequence[str] = ()
) -> Iterator[Run]:
    """Everything before the loop: flags, checkpoint, tokenizer, sequences, model. Locks the output directory inside
    the `with`. Writes nothing there but the prepared text.

    Raises:
        ValueError, OSError: for flags, files or directories that cannot be used.
        SystemExit: after `--help`, for an unknown flag, and if `--resume_from_checkpoint auto` finds a finished run.
    """
    started = utc_now()
    run_args, model_args, data_args, card, publication, args = parse_arguments(
        (RunArguments, ModelArguments, DataArguments, CardArguments, PretrainingPublication, RTDTrainingArguments),
        argv,
        description=description,
        defaults=defaults,
        recipes={name: size.pretraining for name, size in SIZES.items()},
    )
    data_args.set_default_text(default_text)
    output_dir, is_main = str(args.output_dir), args.process_index == 0
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hf_electra_rtd").setLevel(logging.INFO if is_main else logging.ERROR)
    # It warns at every checkpoint that tied tensors are stored once; loading checks them.
    logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()  # one for every file that is read or written
    set_seed(args.seed)
    threads, cores = torch.get_num_threads(), count_cores()
    if args.device.type == "cpu" and args.world_size * threads < cores:  # `accelerate launch` gives each process one
        logger.warning(
            f"Training on {args.world_size * threads} of {cores} CPU cores. To use all, launch with "
            f"--num_cpu_threads_per_process {cores // args.world_size} (or set OMP_NUM_THREADS)."
        )
    first_stage = model_args.two_stage_from
    if first_stage is not None and Path(first_stage).resolve() == Path(output_dir).resolve():
        raise ValueError("--output_dir is the first stage (--two_stage_from). Choose another --output_dir.")
    with ExitStack() as until_the_end:
        # One process prepares; the others wait and read what it made.
        with args.main_process_first(local=False, desc="preparing tokenizer and sequences"):
            checkpoint = find_checkpoint(output_dir, args.resume_from_checkpoint, run_args.overwrite_output_dir)
            if is_main and not run_args.dry_run:
                with naming(output_dir):
                    until_the_end.callback(lock_directory(output_dir).release)
            trained = checkpoint or (None if is_main else f"{output_dir}/{TOKENIZER_DIRECTORY}")
            source, quiet = model_args.tokenizer_source, bool(args.disable_tqdm)
            tokenizer = get_tokenizer(data_args, output_dir, source, trained, disable_progress=quiet)
            trained_on = None if checkpoint is None else checkpoints.trained_sequences(checkpoint)
            train, held_out = get_sequences(data_args, args, tokenizer, trained_on)
        model = build_model(model_args, tokenizer, args.max_seq_length)
        stream, evaluated = fit_stream(train, args), None if held_out is None else held_out_stream(held_out)
        words, flags = [sys.argv[0], *argv], (run_args, args, card, publication)
        arguments = {"model": asdict(model_args), "data": asdict(data_args)}
        facts = {"command": public_command(words), "started": started, "arguments": arguments}
        collator = make_collator(tokenizer, args)
        yield Run(words, *flags, checkpoint, tokenizer, stream, evaluated, collator, model, facts)


def find_checkpoint(output_dir: str, resume: str | None, overwrite: bool) -> str | None:
    """The checkpoint to resume from, None for a new run, which may replace another (`overwrite`). `resume` is the
    directory of a checkpoint, `latest`, `auto` (the latest where there is one, else a new run) or None.

    Raises:
        ValueError: if there is nothing to resume from, the checkpoint is incomplete or older than others there, or
            another run lies there.
        SystemExit: for `auto`, if a finished run without checkpoints lies there.
    """
    latest = checkpoints.latest_checkpoint(output_dir)
    is_finished = (Path(output_dir) / PretrainingRecord.FILE).exists()
    if resume in ("latest", "auto") and latest is not None:
        return str(latest)
    if resume == "latest":
        raise ValueError(f"--resume_from_checkpoint latest: {output_dir} has no complete checkpoint.")
    if resume == "auto" and is_finished:
        logger.info(f"The run in {output_dir} is finished and has no checkpoints. There is nothing to do.")
        raise SystemExit(0)
    if resume not in (None, "auto"):
        step = checkpoints.read_state(resume).global_step
        if later := [
            path.name for path in checkpoints.list_checkpoints(output_dir) if checkpoints.checkpoint_step(path) > step
        ]:
            raise ValueError(
                f"{output_dir} has checkpoints after step {step:,}: {', '.join(later)}. Remove them to resume from "
                f"{resume}, or choose another --output_dir."
            )
        return resume
    if not overwrite and (latest is not None or is_finished):
        resuming = "" if latest is None else " To continue it, add --resume_from_checkpoint latest."
        raise ValueError(
            f"{output_dir} holds another run.{resuming} To delete it, add --overwrite_output_dir, or choose another "
            "--output_dir."
        )
    return None


@contextmanager
def _publication_of_its_own(run: Run) -> Iterator[None]:
    """A run that replaces another one must not be taken for it on the Hub, so the key of the other is gone before the
    Hub is asked. It comes back if this run cannot start."""
    path = run.directory / PUBLISH_FILE
    old = None
    if run.args.process_index == 0 and run.replaces_another and path.exists():
        old = path.read_text(encoding="utf-8")
        path.unlink()
    try:
        yield
    except BaseException:
        if old is not None:
            write_text(path, old)
        raise


def prepare_output_dir(run: Run) -> None:
    """The last act before the loop, when everything else is checked: refuses a run that would fill the disk, and
    removes what killed processes left and, with `--overwrite_output_dir`, the run before. For every process."""
    if run.args.process_index != 0:
        return
    check_disk(run.model, run.args, run.args.max_steps)
    checkpoints.remove_unfinished(run.directory)
    if run.replaces_another:
        # The prepared text and the tokenizer are the new run's already, and so is the key of one that publishes.
        names = [PretrainingRecord.FILE, CURVES_FILE, EMISSIONS_FILE, "model.safetensors"]
        for name in names if run.args.push_to_hub else [*names, PUBLISH_FILE]:
            (run.directory / name).unlink(missing_ok=True)
        parts = [run.directory / name for name in ("generator", "discriminator", checkpoints.FRACTIONS_DIRECTORY)]
        for part in (*checkpoints.list_checkpoints(run.directory), *parts):
            if part.exists():
                remove_directory(part)


# ---- After the loop ----


def print_results(run: Run, record: PretrainingRecord, model: ElectraForRTDPretraining | None = None) -> None:
    """Prints some held-out sentences and the summary of a finished run. `model` None loads what the run saved."""
    if run.held_out is not None:
        model = ElectraForRTDPretraining.from_pretrained(run.directory) if model is None else model
        shown = list(range(min(NUM_SAMPLES, len(run.held_out))))
        print_samples(model, run.collator, run.held_out.__getitems__(shown))
    print_summary(record, str(run.args.output_dir))


def print_resume_command(run: Run, step: int) -> None:
    """The last words of a run that was interrupted and saved. For every process."""
    if run.args.process_index != 0:
        return
    program, words, name = run.argv[0], [], ""
    for word in run.argv[1:]:
        name = word.partition("=")[0] if word.startswith("--") else name
        if name not in ("--resume_from_checkpoint", "--overwrite_output_dir"):
            words.append(word)
    program = program if program.startswith("hf-electra-rtd ") else shlex.quote(program)
    print(
        f"\nInterrupted after step {step:,} of {run.args.max_steps:,} and saved in {run.args.output_dir}. Continue "
        "with the same launcher and these flags:\n"
        f"  {program} {shlex.join(words)} --resume_from_checkpoint latest",
        flush=True,
    )


if __name__ == "__main__":
    run_command(main)
