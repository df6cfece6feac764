"""The parts of a pre-training run, whichever loop drives it: directory, model, outputs."""

from __future__ import annotations

import dataclasses
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import ElectraForMaskedLM, ElectraForPreTraining, PreTrainedTokenizerBase

from hf_electra_rtd.accounting import count_parameters, model_flops, paper_flops
from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig, derive_generator_config
from hf_electra_rtd.data.blocks import BlockFile
from hf_electra_rtd.data.stream import RowStream
from hf_electra_rtd.data.tokenization import MAX_LENGTH
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.objectives import get_objective
from hf_electra_rtd.ops import num_masked
from hf_electra_rtd.publishing.curves import CURVES_FILE, plot_curves
from hf_electra_rtd.records import RECORD_FILE, PretrainingRecord, collect_hardware, collect_versions, utc_now
from hf_electra_rtd.sharing import get_sharing
from hf_electra_rtd.towers import load_tower, save_tokenizer
from hf_electra_rtd.training.arguments import RTDTrainingArguments
from hf_electra_rtd.training.checkpoints import (
    checkpoint_step,
    latest_checkpoint,
    list_checkpoints,
    read_state,
    remove_directory,
    unfinished,
)
from hf_electra_rtd.training.disk import check_output_dir


logger = logging.getLogger(__name__)

# Options of the pair's configuration that are flags too.
_PAIR_OPTIONS = (
    "objective",
    "sharing",
    "generator_weight",
    "discriminator_weight",
    "temperature",
    "disallow_correct",
)


@dataclass
class ModelArguments:
    """Which towers, and how they play together."""

    size: str = field(
        default="tiny", metadata={"help": "Architecture and recipe: tiny, small, small++, base or large."}
    )
    model_config: str | None = field(
        default=None,
        metadata={"help": "A config.json (or its directory) of the pair, instead of the size's architecture."},
    )
    generator: str | None = field(
        default=None, metadata={"help": "Directory or Hub id of a pre-trained generator to start from."}
    )
    discriminator: str | None = field(
        default=None, metadata={"help": "Directory or Hub id of a pre-trained discriminator to start from."}
    )
    # None: as the configuration has it (its defaults are the paper's). What is given here wins over a file.
    objective: str | None = field(default=None, metadata={"help": "What the main tower learns: rtd (default)."})
    sharing: str | None = field(
        default=None, metadata={"help": "What the towers share: none, word or embeddings (default)."}
    )
    generator_hidden_size: float | None = field(
        default=None,
        metadata={"help": "Generator's width as a fraction of the discriminator's; by default the size's."},
    )
    generator_weight: float | None = field(default=None, metadata={"help": "Weight of the generator's loss (1)."})
    discriminator_weight: float | None = field(
        default=None, metadata={"help": "Weight of the discriminator's loss (50)."}
    )
    temperature: float | None = field(
        default=None, metadata={"help": "Of the generator when sampling (1); 0 is greedy."}
    )
    disallow_correct: bool | None = field(default=None, metadata={"help": "Never sample the original token."})

    def __post_init__(self) -> None:
        if self.objective is not None:
            get_objective(self.objective)
        if self.sharing is not None:
            get_sharing(self.sharing)
        towers = [name for name in ("generator", "discriminator") if getattr(self, name) is not None]
        if self.model_config is not None and towers:
            raise ValueError(f"--model_config describes new towers: it cannot be joined with --{towers[0]}.")
        if len(towers) == 2 and self.generator_hidden_size is not None:
            raise ValueError("--generator_hidden_size is for a generator made anew, but --generator names one.")

    @property
    def tokenizer_source(self) -> str | None:
        """The tower whose tokenizer is taken where none is named."""
        return self.discriminator or self.generator

    @property
    def options(self) -> dict[str, Any]:
        """What was asked for, of the pair's configuration."""
        return {name: getattr(self, name) for name in _PAIR_OPTIONS if getattr(self, name) is not None}


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
    for name in (RECORD_FILE, CURVES_FILE, "model.safetensors"):
        (directory / name).unlink(missing_ok=True)
    for path in (*list_checkpoints(directory), *(directory / name for name in ("generator", "discriminator"))):
        if path.exists():
            remove_directory(path)


def warn_of_idle_cores(training: RTDTrainingArguments) -> None:
    """Says when a run on the CPU leaves cores idle: `accelerate launch` gives a process one core by default."""
    threads, cores = torch.get_num_threads(), collect_hardware()["cpu_cores"]
    if training.device.type == "cpu" and training.world_size * threads < cores:
        logger.warning(
            f"Training on {training.world_size * threads} of {cores} CPU cores. To use all, launch with "
            f"--num_cpu_threads_per_process {cores // training.world_size} (or set OMP_NUM_THREADS)."
        )


def build_model(
    model: ModelArguments, tokenizer: PreTrainedTokenizerBase, row_length: int
) -> ElectraForRTDPretraining:
    """The pair: new from a size or a configuration, or from pre-trained towers, one or both.

    Raises:
        ValueError: for towers that do not fit the tokenizer, the rows or each other.
    """
    if model.generator is None and model.discriminator is None:
        pair = ElectraForRTDPretraining(_new_config(model, tokenizer, row_length))
    else:
        pair = _from_towers(model, tokenizer, row_length)
    for name in ("generator", "discriminator"):
        config = getattr(pair, name).config
        if config.vocab_size != len(tokenizer):
            raise ValueError(
                f"The {name} has {config.vocab_size} tokens, the tokenizer {len(tokenizer)}: they do not belong "
                "together. Name the tokenizer of the towers (--tokenizer), or set vocab_size in the configuration."
            )
        if config.max_position_embeddings < row_length:
            raise ValueError(
                f"The {name} has {config.max_position_embeddings} positions, too few for rows of {row_length} tokens "
                "(--row_length)."
            )
    return pair


def _new_config(model: ModelArguments, tokenizer: PreTrainedTokenizerBase, row_length: int) -> ElectraRTDConfig:
    if model.model_config is not None:
        described = ElectraRTDConfig.from_pretrained(model.model_config)
        generator = described.generator_config
        if model.generator_hidden_size is not None:
            generator = derive_generator_config(described.discriminator_config, model.generator_hidden_size)
        values = {name: getattr(described, name) for name in _PAIR_OPTIONS} | model.options
        return ElectraRTDConfig(
            generator_config=generator, discriminator_config=described.discriminator_config, **values
        )
    fraction = {} if model.generator_hidden_size is None else {"generator_hidden_size": model.generator_hidden_size}
    return ElectraRTDConfig.from_size(
        model.size,
        vocab_size=len(tokenizer),
        max_position_embeddings=max(MAX_LENGTH, row_length),
        pad_token_id=tokenizer.pad_token_id,
        **fraction,
        **model.options,
    )


def _from_towers(
    model: ModelArguments, tokenizer: PreTrainedTokenizerBase, row_length: int
) -> ElectraForRTDPretraining:
    generator: Any = model.generator
    discriminator: Any = model.discriminator
    if generator is None:
        discriminator = load_tower(ElectraForPreTraining, discriminator)
        fraction = 0.25 if model.generator_hidden_size is None else model.generator_hidden_size
        generator = ElectraForMaskedLM(derive_generator_config(discriminator.config, fraction))
        _start_embeddings_from(discriminator, generator, model.sharing)
    elif discriminator is None:
        generator = load_tower(ElectraForMaskedLM, generator)
        config = _new_config(model, tokenizer, row_length).discriminator_config
        for size in ("vocab_size", "embedding_size", "max_position_embeddings", "type_vocab_size"):
            setattr(config, size, getattr(generator.config, size))
        discriminator = ElectraForPreTraining(config)
        _start_embeddings_from(generator, discriminator, model.sharing)
    return ElectraForRTDPretraining.from_generator_discriminator_pretrained(generator, discriminator, **model.options)


def _start_embeddings_from(trained: Any, new: Any, sharing: str | None) -> None:
    """Lets what is shared begin with what the trained tower has learnt, whichever tower it is."""
    if sharing != "none":
        new.electra.embeddings.load_state_dict(trained.electra.embeddings.state_dict())


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
    """
    towers = model.config.generator_config, model.config.discriminator_config
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
            "model": float(model_flops(*towers, len(rows), row_length, masked)),
            "paper": paper_flops(*towers, len(rows), row_length, masked / row_length),
        },
        curves=curves,
        metrics=metrics,
    )


def print_summary(record: PretrainingRecord, output_dir: str, console: Any = None) -> None:
    """What a person wants to know at the end of a run."""
    from rich.console import Console
    from rich.table import Table

    from hf_electra_rtd.training.progress import format_duration

    console = console or Console(highlight=False)
    table = Table(title="The run", show_header=False, title_justify="left", box=None, padding=(0, 2))
    tokens_per_second = record.tokens / max(record.train_seconds, 1e-9)
    rows = [
        ("tokens", f"{record.tokens:,} in {record.rows:,} rows, {record.steps:,} steps"),
        ("training time", f"{format_duration(record.train_seconds)} ({tokens_per_second:,.0f} tokens/s)"),
        (
            "parameters",
            f"discriminator {record.parameters['discriminator']:,}, generator {record.parameters['generator']:,}, "
            f"together {record.parameters['total']:,}",
        ),
        ("FLOPs", f"{record.flops['model']:.3g} (matrix products), {record.flops['paper']:.3g} (as the paper counts)"),
    ]
    metrics = record.metrics
    if metrics:
        rows += [
            (
                "generator, held out",
                f"loss {metrics['eval_generator_loss']:.3f}, accuracy {metrics['eval_generator_accuracy']:.1%}",
            ),
            (
                "discriminator, held out",
                f"AUC {metrics['eval_discriminator_auc']:.3f}, "
                f"precision {metrics['eval_discriminator_precision']:.1%}, "
                f"recall {metrics['eval_discriminator_recall']:.1%}, accuracy "
                f"{metrics['eval_discriminator_accuracy']:.1%}, loss {metrics['eval_discriminator_loss']:.4f}",
            ),
        ]
    for row in rows:
        table.add_row(*row)
    console.print(table)
    directory = Path(output_dir)
    console.print(
        f"\nIn {output_dir}: the pair, {RECORD_FILE}, {CURVES_FILE}, checkpoints, and the towers:\n"
        f'  AutoModelForPreTraining.from_pretrained("{directory / "discriminator"}")\n'
        f'  AutoModelForMaskedLM.from_pretrained("{directory / "generator"}")',
        markup=False,
    )
