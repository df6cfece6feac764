"""The record of a run, at its end or on the way."""

from __future__ import annotations

import csv
import logging
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hf_electra_rtd.accounting import count_parameters, model_flops, paper_flops
from hf_electra_rtd.data.blocks import BlockFile
from hf_electra_rtd.data.stream import SequenceStream
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.ops import num_masked
from hf_electra_rtd.records import (
    FractionRecord,
    PretrainingRecord,
    collect_hardware,
    collect_versions,
    public,
    public_command,
    utc_now,
)
from hf_electra_rtd.training.arguments import RTDTrainingArguments
from hf_electra_rtd.training.stream import sequences_per_step


logger = logging.getLogger(__name__)

EMISSIONS_FILE = "emissions.csv"  # written by codecarbon, a line for each session


def make_record(
    model: ElectraForRTDPretraining,
    args: RTDTrainingArguments,
    stream: Any,
    held_out: Any,
    steps: int,
    train_seconds: float,
    curves: list[dict[str, Any]],
    metrics: dict[str, Any],
    fractions: Sequence[FractionRecord] = (),
    command: str | None = None,
    started: str | None = None,
    arguments: dict[str, Any] | None = None,
) -> PretrainingRecord:
    """The record of a run after `steps` steps. Of `model` only the configuration and numbers of parameters are read.

    `stream` and `held_out` are streams or any datasets; sources and exact numbers of tokens are known for a
    [`BlockFile`] only. `curves` is the log, `metrics` those held out, with `eval_`. By default `command` is that of
    this process, and it started now. `arguments` are groups beside `training`.
    """
    num_sequences = steps * sequences_per_step(args)
    return PretrainingRecord(
        command=public_command(sys.argv) if command is None else command,
        started=started or utc_now(),
        finished=utc_now(),
        arguments=public({**(arguments or {}), "training": args.to_dict()}),
        model=public(model.config.to_dict()),
        parameters=count_parameters(model).as_dict(),
        data={
            name: _describe(sequences)
            for name, sequences in (("train", stream), ("held_out", held_out))
            if sequences is not None
        },
        hardware=collect_hardware(),
        versions=collect_versions(),
        steps=steps,
        sequences=num_sequences,
        tokens=count_tokens(stream, args, num_sequences),
        train_seconds=train_seconds,
        flops=count_flops(model, args, num_sequences),
        curves=curves,
        metrics=metrics,
        fractions=[asdict(fraction) for fraction in fractions],
        emissions=_read_emissions(Path(str(args.output_dir)) / EMISSIONS_FILE),
    )


def count_tokens(stream: Any, args: RTDTrainingArguments, num_sequences: int) -> int:
    """Tokens in the first sequences of a run. Padding counts where the sequences are no [`BlockFile`]."""
    if isinstance(stream, SequenceStream) and isinstance(stream.sequences, BlockFile):
        return stream.num_tokens(num_sequences)
    return num_sequences * args.max_seq_length


def count_flops(model: ElectraForRTDPretraining, args: RTDTrainingArguments, num_sequences: int) -> dict[str, float]:
    """FLOPs of training on so many sequences, in both conventions of `hf_electra_rtd.accounting`."""
    length, masked = args.max_seq_length, num_masked(args.mask_probability, args.max_seq_length)
    return {
        "model": float(model_flops(model.config, num_sequences, length, masked)),
        "paper": paper_flops(model.config, num_sequences, length, masked / length),
    }


def _describe(sequences: Any) -> dict[str, Any]:
    sequences = sequences.sequences if isinstance(sequences, SequenceStream) else sequences
    is_prepared = isinstance(sequences, BlockFile)
    return public(asdict(sequences.header)) if is_prepared else {"num_sequences": len(sequences)}


def _read_emissions(path: Path) -> dict[str, Any]:
    """As in [`PretrainingRecord`], all sessions of the run together; empty where nothing was measured."""
    if not path.is_file():
        return {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            *_, last = sessions = list(csv.DictReader(file))
        sums = [math.fsum(float(each[name]) for each in sessions) for name in ("emissions", "energy_consumed")]
        if not math.isfinite(sum(sums)):
            raise ValueError(f"{sums[0]:g} kg, {sums[1]:g} kWh")
        source = f"codecarbon {last['codecarbon_version']}"
        return {"kg_co2_eq": sums[0], "energy_kwh": sums[1], "country": last["country_name"], "source": source}
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        logger.warning(f"The record has no emissions: {path} is not a file of codecarbon ({error!r}).")
        return {}
