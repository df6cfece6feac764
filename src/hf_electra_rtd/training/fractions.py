"""Towers on the way: what a run has learnt after a fraction of its steps, to fine-tune and compare.

`checkpoint_fractions=[0.0625, 0.125, 0.25, 0.5, 1.0]` are the points of ELECTRA-Small in the paper's Table 1. After
the step that completes a fraction, and before a checkpoint of that step, the run leaves

    OUTPUT_DIR/fractions/6.25/generator        native checkpoints with the tokenizer, as at the end of a run
    OUTPUT_DIR/fractions/6.25/discriminator
    OUTPUT_DIR/fractions/6.25/fraction.json    a `FractionRecord`

each fraction whole or not there.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn

from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.records import FRACTION_FILE, FractionRecord
from hf_electra_rtd.training.arguments import RTDTrainingArguments, fraction_steps
from hf_electra_rtd.training.checkpoints import unfinished
from hf_electra_rtd.training.sharding import gather_pair
from hf_electra_rtd.training.stream import rows_per_step


logger = logging.getLogger(__name__)

FRACTIONS_DIRECTORY = "fractions"


def fraction_directory(output_dir: str, fraction: float) -> Path:
    """Where the towers of a fraction lie: named by its percentage."""
    return Path(output_dir) / FRACTIONS_DIRECTORY / f"{100 * fraction:.10g}"


def export_fraction(
    pair: ElectraForRTDPretraining,
    prepared: nn.Module,
    accelerator: Accelerator,
    tokenizer: Any,
    args: RTDTrainingArguments,
    fraction: float,
    step: int,
    train_seconds: float,
) -> None:
    """Writes both towers as they are now. Draws no random number. To be called by every process of the run.

    Args:
        pair, prepared, accelerator: as for `gather_pair`.
        tokenizer: written beside each tower; None for none.
        args: of the run.
        fraction: that is complete.
        step: optimiser steps until now.
        train_seconds: time in training steps until now.

    Raises:
        CheckpointError: if anything could not be written.
    """
    whole, is_main = gather_pair(pair, prepared, accelerator), accelerator.is_main_process
    output_dir = str(args.output_dir)
    with unfinished(output_dir, is_main, accelerator.wait_for_everyone, subdirectory=FRACTIONS_DIRECTORY) as staging:
        if is_main:
            directory = staging / fraction_directory(output_dir, fraction).name
            whole.save_towers(directory, tokenizer)
            FractionRecord(fraction, step, step * rows_per_step(args), train_seconds).save(directory)


def read_fractions(args: RTDTrainingArguments, max_steps: int) -> list[FractionRecord]:
    """What a run has exported so far, by step. What lies there of a run of another length does not count.

    Raises:
        ValueError: for a record that cannot be read.
    """
    records = []
    for step, fraction in fraction_steps(args.checkpoint_fractions, max_steps).items():
        directory = fraction_directory(str(args.output_dir), fraction)
        if (directory / FRACTION_FILE).exists():
            record = FractionRecord.load(directory)
            if record.step == step:
                records.append(record)
    return records


def warn_of_missed_fractions(args: RTDTrainingArguments, max_steps: int, step: int) -> None:
    """Says which towers a run that goes on after `step` will not leave: it went past them without exporting any."""
    there = {record.step for record in read_fractions(args, max_steps)}
    steps = fraction_steps(args.checkpoint_fractions, max_steps)
    missed = [f"{fraction:g}" for passed, fraction in steps.items() if passed <= step and passed not in there]
    if missed:
        logger.warning(
            f"The run goes on after step {step:,}, so no towers are exported at --checkpoint_fractions "
            f"{' '.join(missed)}: these steps are past."
        )
