"""What is told of a run that has ended: its record, and a summary of it on the screen."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import ElectraForMaskedLM

from hf_electra_rtd.accounting import count_parameters, model_flops, paper_flops
from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.data.blocks import BlockFile
from hf_electra_rtd.data.stream import RowStream
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.objectives import get_objective
from hf_electra_rtd.ops import num_masked
from hf_electra_rtd.publishing.curves import CURVES_FILE
from hf_electra_rtd.records import (
    RECORD_FILE,
    FractionRecord,
    PretrainingRecord,
    collect_hardware,
    collect_versions,
    utc_now,
)
from hf_electra_rtd.training.progress import describe_towers, format_duration


def make_record(
    command: str,
    started: str,
    arguments: dict[str, Any],
    model: ElectraForRTDPretraining,
    rows: RowStream,
    held_out: BlockFile | None,
    mask_probability: float,
    steps: int,
    train_seconds: float,
    curves: list[dict[str, Any]],
    metrics: dict[str, float],
    fractions: Sequence[FractionRecord] = (),
) -> PretrainingRecord:
    """The record of a run that is at its end.

    Args:
        command: what was typed.
        started: when, as `utc_now` gives it.
        arguments: of the run, by group.
        model: the trained pair.
        rows: the stream, read to the end.
        held_out: rows of the evaluation, or None.
        mask_probability: decides K.
        steps: optimiser steps.
        train_seconds: time in training steps.
        curves: the log.
        metrics: of the held-out rows, at the end.
        fractions: the towers that were exported on the way.
    """
    trained = rows.rows
    if not isinstance(trained, BlockFile):
        raise TypeError("A record describes a run on block files: only they know their sources and tokens.")
    row_length = trained.header.row_length
    masked = num_masked(mask_probability, row_length)
    parts = {"train": trained, "held_out": held_out}
    return PretrainingRecord(
        command=command,
        started=started,
        finished=utc_now(),
        arguments=arguments,
        model=model.config.to_dict(),
        parameters=count_parameters(model).as_dict(),
        data={name: dataclasses.asdict(part.header) for name, part in parts.items() if part is not None},
        hardware=collect_hardware(),
        versions=collect_versions(),
        steps=steps,
        rows=len(rows),
        tokens=rows.num_tokens(),
        train_seconds=train_seconds,
        flops={
            "model": float(model_flops(model.config, len(rows), row_length, masked)),
            "paper": paper_flops(model.config, len(rows), row_length, masked / row_length),
        },
        curves=curves,
        metrics=metrics,
        fractions=[dataclasses.asdict(fraction) for fraction in fractions],
    )


def print_summary(record: PretrainingRecord, output_dir: str, console: Any = None) -> None:
    """What a person wants to know at the end of a run."""
    from rich.console import Console
    from rich.table import Table

    console = console or Console(highlight=False)
    table = Table(title="The run", show_header=False, title_justify="left", box=None, padding=(0, 2))
    tokens_per_second = record.tokens / max(record.train_seconds, 1e-9)
    config = ElectraRTDConfig.from_dict(record.model)
    towers = list(config.towers)[::-1]
    rows = [
        ("objective", config.objective),
        ("tokens", f"{record.tokens:,} in {record.rows:,} rows, {record.steps:,} steps"),
        ("training time", f"{format_duration(record.train_seconds)} ({tokens_per_second:,.0f} tokens/s)"),
        (
            "parameters",
            ", ".join(f"{name} {record.parameters[name]:,}" for name in towers)
            + f", together {record.parameters['total']:,}",
        ),
        ("FLOPs", f"{record.flops['model']:.3g} (matrix products), {record.flops['paper']:.3g} (as the paper counts)"),
    ]
    rows += [(f"{name}, held out", text) for name, text in describe_towers(record.metrics, "eval_").items()]
    for row in rows:
        table.add_row(*row)
    console.print(table)
    native = {"discriminator": get_objective(config.objective).main_tower_class, "generator": ElectraForMaskedLM}
    loading = "\n".join(f'  {native[name].__name__}.from_pretrained("{Path(output_dir) / name}")' for name in towers)
    console.print(
        f"\nIn {output_dir}: the model, {RECORD_FILE}, {CURVES_FILE}, checkpoints, and what stock `transformers` "
        f"loads:\n{loading}",
        markup=False,
    )
