"""The directory of a run: who owns its files, which checkpoint the run continues from, and the results it writes."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from pathlib import Path
from platform import node
from tempfile import TemporaryDirectory
from typing import Any

from accelerate.utils import broadcast_object_list, gather_object

from hf_electra_rtd.base.files import (
    PARTIAL,
    check_output,
    lock_directory,
    naming,
    remove_directory,
    remove_partial,
    writing,
)
from hf_electra_rtd.base.records import FractionRecord, PretrainingRecord
from hf_electra_rtd.data.tokenization import save_tokenizer
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.publishing.pictures import CURVES_FILE, plot_curves
from hf_electra_rtd.training.arguments import RTDTrainingArguments
from hf_electra_rtd.training.checkpoints import (
    CHECKPOINT_PREFIX,
    FRACTIONS_DIRECTORY,
    MANIFEST_FILE,
    OUTPUTS,
    checkpoint_step,
    latest_checkpoint,
    list_checkpoints,
    read_checkpoint,
)


logger = logging.getLogger(__name__)

# What a run replaces: files (None), and directories, each with a file that identifies it as ours.
_REPLACED = {
    "config.json": None,
    "model.safetensors": None,
    "tokenizer.json": None,
    "tokenizer_config.json": None,
    "vocab.txt": None,
    CURVES_FILE: None,
    FRACTIONS_DIRECTORY: ".",
    "generator": "config.json",
    "discriminator": "config.json",
    "detector": "config.json",
}
# These show that a directory holds a run of ours, finished or not.
_MARKS = (
    PretrainingRecord.FILE,
    OUTPUTS,
    f"{CHECKPOINT_PREFIX}*/{MANIFEST_FILE}",
    f"{FRACTIONS_DIRECTORY}/*/{FractionRecord.FILE}",
)
# The replaced files that a tokenizer is loaded from.
_READ = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")


# ---- Whose files these are ----


def holds_run(output_dir: str | os.PathLike[str]) -> bool:
    """Returns whether a directory holds a run of ours, finished or not. Raises ValueError if it holds files that a run
    would replace, but that no run of ours has left."""
    directory = Path(output_dir)
    for path in list_checkpoints(directory):
        check_output(path, replaces=MANIFEST_FILE)
    check_outputs(directory)
    if any(path for mark in _MARKS for path in directory.glob(mark)):
        return True
    for name in _REPLACED:
        if (directory / name).exists():
            raise ValueError(
                f"{directory / name} is there, and no run of ours has left it. "
                "Move it away, or choose another --output_dir."
            )
    return False


def check_outputs(directory: Path) -> None:
    """Raises ValueError if something that is not ours lies where a run writes its outputs."""
    for name, known_by in _REPLACED.items():
        check_output(directory / name, replaces=known_by)


def check_sources(output_dir: str | os.PathLike[str], sources: dict[str, str]) -> None:
    """Raises ValueError for a model, named by its flag, that lies where a run in `output_dir` writes."""
    directory = Path(output_dir).resolve()
    for flag, source in sources.items():
        place = Path(source).resolve()
        if not place.exists() or not place.is_relative_to(directory):
            continue
        inside = place.relative_to(directory).parts
        if not inside or inside[0] in _REPLACED or inside[0].startswith(CHECKPOINT_PREFIX):
            raise ValueError(f"--{flag} {source} is where this run writes its results. Choose another --output_dir.")


# ---- Where a run continues ----


def settle_directory(
    args: RTDTrainingArguments, sources: dict[str, str], overwrite: bool, locks: bool, until_the_end: ExitStack
) -> str | None:
    """Returns the checkpoint to resume from (`find_checkpoint`) and, with `locks`, locks the output directory until
    `until_the_end` closes. The main process does this for all processes: they then resume from the same checkpoint, or
    raise the same error. `sources` are models by their flags. Raises the errors of `check_sources` and
    `find_checkpoint`, and ValueError if a process sees another directory under this name."""
    output_dir = str(args.output_dir)
    # From the main process: the checkpoint or the error, and the name of a directory that all must see.
    shared: list[Any] = [None, ""]
    with ExitStack() as until_seen:
        if args.process_index == 0:
            try:
                check_sources(output_dir, sources)
                holds_run(output_dir)  # files that are not ours are refused before anything is written
                if locks:
                    with naming(output_dir):
                        until_the_end.callback(lock_directory(output_dir).release)
                    remove_partial(output_dir)  # what killed processes left half-written or half-removed
                    remove_partial(Path(output_dir) / FRACTIONS_DIRECTORY)
                shared[0] = find_checkpoint(output_dir, args.resume_from_checkpoint, overwrite)
                if args.world_size > 1:
                    os.makedirs(output_dir, exist_ok=True)
                    directory = TemporaryDirectory(dir=output_dir, prefix=f".shared{PARTIAL}")
                    shared[1] = os.path.basename(until_seen.enter_context(directory))
            except (ValueError, OSError, SystemExit) as error:
                shared[0] = error
        broadcast_object_list(shared)
        checkpoint, name = shared
        if isinstance(checkpoint, BaseException):
            raise checkpoint
        is_there = os.path.exists(os.path.join(output_dir, name))
        without: list[str] = gather_object([] if is_there or args.world_size == 1 else [node()])
    if without:
        raise ValueError(
            f"--output_dir {output_dir} is not the first node's directory on {', '.join(sorted(set(without)))}. "
            "Name one that all nodes share: prepared text and checkpoints are written there."
        )
    return checkpoint


def find_checkpoint(output_dir: str, resume: str | None, overwrite: bool) -> str | None:
    """Returns the complete checkpoint to resume from, or None for a new run. `resume` is a directory, `latest`, or
    `auto`: the latest if there is one. `overwrite` lets a new run replace another. Raises ValueError if the checkpoint
    is missing, damaged or older than others in `output_dir`, or if another run lies there, and SystemExit for `auto`
    if the run there is finished and has no checkpoints."""
    is_run = holds_run(output_dir)
    saved = list_checkpoints(output_dir)
    if resume is None:
        if is_run and not overwrite:
            go_on = "To continue it, add --resume_from_checkpoint latest. " if saved else ""
            raise ValueError(
                f"{output_dir} holds another run. {go_on}To delete it, add --overwrite_output_dir, or choose another "
                "--output_dir."
            )
        return None
    if resume in ("latest", "auto"):
        latest = latest_checkpoint(output_dir)
        if latest is not None:
            return str(latest)
        if resume == "latest":
            raise ValueError(f"--resume_from_checkpoint latest: {output_dir} has no complete checkpoint.")
        if saved:
            if overwrite:
                return None
            raise ValueError(
                f"{output_dir} has only damaged checkpoints. Remove them, add --overwrite_output_dir, or choose "
                "another --output_dir."
            )
        if (Path(output_dir) / PretrainingRecord.FILE).exists():
            logger.info(f"The run in {output_dir} is finished and has no checkpoints. There is nothing to do.")
            raise SystemExit(0)
        return None
    step = read_checkpoint(resume)[1].global_step
    if any(checkpoint_step(path) > step for path in saved):
        raise ValueError(
            f"{output_dir} has checkpoints after step {step:,}. Remove them, or choose another --output_dir."
        )
    if is_run and os.path.realpath(Path(resume).parent) != os.path.realpath(output_dir):
        raise ValueError(
            f"{output_dir} holds another run than {resume}. Move it away, or choose another --output_dir."
        )
    return resume


# ---- What a run writes and removes ----


def save_outputs(
    model: ElectraForRTDPretraining, tokenizer: Any, record: PretrainingRecord, output_dir: str | os.PathLike[str]
) -> None:
    """Writes the results of a run, the record last, so that a directory with a record is complete. Only one process
    calls it. Raises OSError if anything could not be written. The old models are replaced only after all new ones were
    written."""
    directory = Path(output_dir)
    check_outputs(directory)
    outputs = directory / OUTPUTS
    with writing(outputs, ".") as partial:
        model.save_pretrained(partial)
        model.save_towers(partial, tokenizer)
        if tokenizer is not None:
            save_tokenizer(tokenizer, partial)
        plot_curves(record, partial / CURVES_FILE)
    for name in (PretrainingRecord.FILE, "vocab.txt"):  # they belong to the old models
        (directory / name).unlink(missing_ok=True)
    for path in outputs.iterdir():
        target = directory / path.name
        if target.is_dir():
            remove_directory(target)
        path.replace(target)
    record.save(directory)
    outputs.rmdir()  # until now it showed whose files these are


def remove_run(output_dir: str | os.PathLike[str]) -> None:
    """Removes the record, checkpoints and networks of a run for which `holds_run` was true. The prepared text and the
    tokenizer stay: they already belong to the new run."""
    directory = Path(output_dir)
    (directory / OUTPUTS).mkdir(exist_ok=True)  # shows whose files are left if this process is killed
    networks = (directory / name for name in _REPLACED if name not in _READ)
    for path in (directory / PretrainingRecord.FILE, *list_checkpoints(directory), *networks):
        if path.is_dir():
            remove_directory(path)
        else:
            path.unlink(missing_ok=True)
