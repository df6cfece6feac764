"""The directory of a run: what may lie there when it begins, and what it leaves there at its end."""

from __future__ import annotations

import os
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.publishing.curves import CURVES_FILE, plot_curves
from hf_electra_rtd.publishing.outbox import DIRECTORY as OUTBOX_DIRECTORY
from hf_electra_rtd.records import RECORD_FILE, PretrainingRecord
from hf_electra_rtd.towers import save_tokenizer
from hf_electra_rtd.training.checkpoints import (
    checkpoint_step,
    latest_checkpoint,
    list_checkpoints,
    read_state,
    remove_directory,
    unfinished,
)
from hf_electra_rtd.training.disk import check_output_dir
from hf_electra_rtd.training.emissions import EMISSIONS_FILE
from hf_electra_rtd.training.fractions import FRACTIONS_DIRECTORY


def prepare_output_dir(output_dir: str, resume: str | None, overwrite: bool, writes: bool = True) -> str | None:
    """Makes the directory of the run, and finds the checkpoint to resume from. Deletes nothing; see `remove_run`.

    Args:
        output_dir: of the run.
        resume: a checkpoint's directory; `"latest"`; `"auto"`: the latest where there is one, else a new run; or None
            to start anew.
        overwrite: a run that lies there is in nobody's way.
        writes: whether this process makes the directory; one of the run does.

    Returns:
        The checkpoint's directory, or None.

    Raises:
        ValueError: if nothing can be written there, another run lies there, there is nothing to resume, or the
            checkpoint is not whole.
    """
    directory = Path(output_dir)
    if writes:
        check_output_dir(output_dir)
    latest = latest_checkpoint(directory)
    if resume in ("latest", "auto") and latest is not None:
        return str(latest)
    if resume == "latest":
        raise ValueError(f"There is no checkpoint to resume from: {output_dir} holds none that is whole.")
    if resume not in (None, "auto"):
        if not os.path.isdir(resume):
            raise ValueError(f"There is no checkpoint to resume from: {resume} is no directory.")
        step = read_state(resume).global_step
        later = [path.name for path in list_checkpoints(directory) if checkpoint_step(path) > step]
        if later:
            raise ValueError(
                f"{output_dir} holds checkpoints beyond step {step:,}, where the run would go on: {', '.join(later)}. "
                "Remove them, or choose another --output_dir."
            )
        return resume
    if not overwrite and (latest is not None or (directory / RECORD_FILE).exists()):
        whole = "" if latest is None else "Continue it with --resume_from_checkpoint latest, delete"
        raise ValueError(
            f"{output_dir} holds another run. {whole or 'Delete'} it with --overwrite_output_dir, or choose another "
            "--output_dir."
        )
    if writes:
        directory.mkdir(parents=True, exist_ok=True)
    return None


def is_finished(output_dir: str) -> bool:
    """Whether a run that ended lies there, with no checkpoint to look back at."""
    return (Path(output_dir) / RECORD_FILE).exists() and latest_checkpoint(output_dir) is None


def remove_run(output_dir: str) -> None:
    """Removes what a run leaves; the prepared text and the tokenizer, which a new one has made its own, stay."""
    directory = Path(output_dir)
    for name in (RECORD_FILE, CURVES_FILE, EMISSIONS_FILE, "model.safetensors"):
        (directory / name).unlink(missing_ok=True)
    parts = ("generator", "discriminator", FRACTIONS_DIRECTORY, OUTBOX_DIRECTORY)
    for path in (*list_checkpoints(directory), *(directory / name for name in parts)):
        if path.exists():
            remove_directory(path)


def save_outputs(
    model: ElectraForRTDPretraining, tokenizer: PreTrainedTokenizerBase, record: PretrainingRecord, output_dir: str
) -> None:
    """Writes the pair, both towers, the record and the picture of a run into its directory; the record last, so that
    a directory with a record is complete.

    Raises:
        CheckpointError: if anything could not be written.
    """
    with unfinished(output_dir) as staging:
        model.save_pretrained(staging)
        save_tokenizer(tokenizer, staging)
        model.save_towers(staging, tokenizer)
        plot_curves(record, staging)
    with unfinished(output_dir) as staging:
        record.save(staging)
