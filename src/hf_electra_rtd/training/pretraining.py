"""The parts of a pre-training run, whichever loop drives it: directory, model, outputs."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import ElectraForMaskedLM, PreTrainedTokenizerBase

from hf_electra_rtd.accounting import count_parameters, model_flops, paper_flops
from hf_electra_rtd.configuration_electra_rtd import (
    GENERATOR_NAMES,
    OBJECTIVE_TRAITS,
    SHARED_SIZES,
    ElectraRTDConfig,
    derive_generator_config,
    needs_generator_network,
    refuse_unknown_names,
)
from hf_electra_rtd.data.blocks import BlockFile
from hf_electra_rtd.data.stream import RowStream
from hf_electra_rtd.data.tokenization import MAX_LENGTH
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.objectives import get_objective
from hf_electra_rtd.ops import num_masked
from hf_electra_rtd.publishing.curves import CURVES_FILE, plot_curves
from hf_electra_rtd.records import (
    RECORD_FILE,
    PretrainingRecord,
    collect_hardware,
    collect_versions,
    count_cores,
    utc_now,
)
from hf_electra_rtd.sharing import get_sharing
from hf_electra_rtd.towers import load_tower, read_config, save_tokenizer
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
    "sampling_dropout",
    "freeze_generator",
)


# Width and depth of a generator that is made for a discriminator, as fractions of it.
DEFAULT_FRACTIONS = {"generator_hidden_size": 0.25, "generator_layers": 1.0}
# What the second stage of two-stage training is, in options of the pair's configuration.
SECOND_STAGE = {"sharing": "none", "freeze_generator": True}


def _choices(known: Iterable[str], field_name: str) -> str:
    """The names for a flag's help; the default is said."""
    default = getattr(ElectraRTDConfig, field_name)
    return ", ".join(f"{name} (default)" if name == default else name for name in known)


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
    two_stage_from: str | None = field(
        default=None,
        metadata={
            "help": "The run of a first stage (--objective mlm): its main tower becomes the generator, frozen, and "
            "what the discriminator's encoder starts from."
        },
    )
    # None: as the configuration has it (its defaults are the paper's). What is given here wins over a file.
    objective: str | None = field(
        default=None, metadata={"help": f"What the main tower learns: {_choices(OBJECTIVE_TRAITS, 'objective')}."}
    )
    sharing: str | None = field(
        default=None, metadata={"help": f"What the towers share: {_choices(SHARED_SIZES, 'sharing')}."}
    )
    generator_type: str | None = field(
        default=None, metadata={"help": f"What fills masked tokens: {_choices(GENERATOR_NAMES, 'generator')}."}
    )
    generator_hidden_size: float | None = field(
        default=None,
        metadata={"help": "Generator's width as a fraction of the discriminator's; by default the size's."},
    )
    generator_layers: float | None = field(
        default=None, metadata={"help": "Generator's depth as a fraction of the discriminator's (1)."}
    )
    generator_weight: float | None = field(default=None, metadata={"help": "Weight of the generator's loss (1)."})
    discriminator_weight: float | None = field(
        default=None,
        metadata={"help": "Weight of the main tower's loss (50 for discriminators, 1 where it predicts tokens)."},
    )
    temperature: float | None = field(
        default=None, metadata={"help": "Of the generator when sampling (1); 0 is greedy."}
    )
    disallow_correct: bool | None = field(default=None, metadata={"help": "Never sample the original token."})
    sampling_dropout: bool | None = field(
        default=None, metadata={"help": "Sample from the generator with its dropout, as it trains (true)."}
    )
    freeze_generator: bool | None = field(
        default=None, metadata={"help": "Train the main tower alone (false; true with --two_stage_from)."}
    )

    def __post_init__(self) -> None:
        refuse_unknown_names(self.options)
        towers = [name for name in ("generator", "discriminator") if getattr(self, name) is not None]
        if self.model_config is not None and towers:
            raise ValueError(f"--model_config describes new towers: it cannot be joined with --{towers[0]}.")
        if self.generator is not None and self.fractions:
            raise ValueError(
                f"--{next(iter(self.fractions))} is for a generator made anew, but --generator names one."
            )
        if self.two_stage_from is not None:
            self._check_second_stage()
        elif self.model_config is None and not towers:
            ElectraRTDConfig.from_size(self.size, **self.fractions, **self.options)  # refuses before any work is lost

    def _check_second_stage(self) -> None:
        """A second stage leaves little to choose."""
        taken = {"model_config", "generator", "discriminator", "generator_type", *self.fractions}
        for name in sorted(taken):
            if getattr(self, name) is not None:
                raise ValueError(f"--two_stage_from says which towers there are: leave --{name} out.")
        if self.objective is not None and not OBJECTIVE_TRAITS[self.objective].has_generator:
            raise ValueError(
                f"--two_stage_from is for a generator's use, but objective={self.objective!r} has no generator."
            )
        for name, value in SECOND_STAGE.items():
            if getattr(self, name) not in (None, value):
                raise ValueError(f"--two_stage_from means {name}={value!r}, not {getattr(self, name)!r}.")

    @property
    def fractions(self) -> dict[str, float]:
        """What was asked for, of a generator's size."""
        given = {name: getattr(self, name) for name in ("generator_hidden_size", "generator_layers")}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def tokenizer_source(self) -> str | None:
        """The tower whose tokenizer is taken where none is named."""
        if self.two_stage_from is not None:
            return str(Path(self.two_stage_from) / "discriminator")
        return self.discriminator or self.generator

    @property
    def options(self) -> dict[str, Any]:
        """What was asked for, of the pair's configuration."""
        given = {name: getattr(self, name) for name in _PAIR_OPTIONS} | {"generator": self.generator_type}
        return {name: value for name, value in given.items() if value is not None}


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
    threads, cores = torch.get_num_threads(), count_cores()
    if training.device.type == "cpu" and training.world_size * threads < cores:
        logger.warning(
            f"Training on {training.world_size * threads} of {cores} CPU cores. To use all, launch with "
            f"--num_cpu_threads_per_process {cores // training.world_size} (or set OMP_NUM_THREADS)."
        )


def build_model(
    model: ModelArguments, tokenizer: PreTrainedTokenizerBase, row_length: int
) -> ElectraForRTDPretraining:
    """The pair: new from a size or a configuration, from pre-trained towers, one or both, or from a first stage.

    Raises:
        ValueError: for towers that do not fit the tokenizer, the rows or each other.
    """
    if model.two_stage_from is not None:
        pair = _second_stage(model)
    elif model.generator is None and model.discriminator is None:
        pair = ElectraForRTDPretraining(_new_config(model, tokenizer, row_length))
    else:
        pair = _from_towers(model, tokenizer, row_length)
    if pair.config.freeze_generator and model.two_stage_from is None and model.generator is None:
        raise ValueError("--freeze_generator would freeze a generator that never learnt: name one (--generator).")
    for name, config in pair.config.towers.items():
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
        options = dict(model.options)
        if model.fractions:
            options["generator_config"] = derive_generator_config(
                described.discriminator_config, *(DEFAULT_FRACTIONS | model.fractions).values()
            )
        return described.changed(**options)
    return ElectraRTDConfig.from_size(
        model.size,
        vocab_size=len(tokenizer),
        max_position_embeddings=max(MAX_LENGTH, row_length),
        pad_token_id=tokenizer.pad_token_id,
        **model.fractions,
        **model.options,
    )


def _second_stage(model: ModelArguments) -> ElectraForRTDPretraining:
    """The second stage of two-stage training (paper, section 3.2): the generator as the first stage left it, frozen,
    and a main tower whose encoder begins as the generator's."""
    run = Path(str(model.two_stage_from))
    tower = run / "discriminator"
    ended = (run / "config.json").is_file() and tower.is_dir()
    objective = read_config(run).get("objective") if ended else None
    if objective != "mlm":
        found = f"was made with objective={objective!r}" if ended else "has not ended"
        raise ValueError(
            f"--two_stage_from needs the run of a first stage (--objective mlm), at its end: {run} {found}."
        )
    generator = load_tower(ElectraForMaskedLM, tower)
    options = {**SECOND_STAGE, **model.options}
    config = ElectraRTDConfig(generator_config=generator.config, discriminator_config=generator.config, **options)
    pair = ElectraForRTDPretraining(config, generator=generator)
    pair.discriminator.electra.load_state_dict(generator.electra.state_dict())
    return pair


def _from_towers(
    model: ModelArguments, tokenizer: PreTrainedTokenizerBase, row_length: int
) -> ElectraForRTDPretraining:
    generator: Any = model.generator
    discriminator: Any = model.discriminator
    main_tower_class: Any = get_objective(model.objective or ElectraRTDConfig.objective).main_tower_class
    if discriminator is None:
        generator = load_tower(ElectraForMaskedLM, generator)
        config = _new_config(model, tokenizer, row_length).discriminator_config
        for size in SHARED_SIZES[model.sharing or ElectraRTDConfig.sharing]:
            setattr(config, size, getattr(generator.config, size))
        discriminator = main_tower_class(config)
        _start_from(generator, discriminator, model.sharing)
    elif generator is None and needs_generator_network(**model.options):
        discriminator = load_tower(main_tower_class, discriminator)
        fractions = DEFAULT_FRACTIONS | model.fractions
        if model.sharing == "all" and not model.fractions:
            generator = ElectraForMaskedLM(discriminator.config)
        else:
            generator = ElectraForMaskedLM(derive_generator_config(discriminator.config, *fractions.values()))
        _start_from(discriminator, generator, model.sharing)
    options = {{"generator": "generator_type"}.get(name, name): value for name, value in model.options.items()}
    return ElectraForRTDPretraining.from_generator_discriminator_pretrained(generator, discriminator, **options)


@torch.no_grad()
def _start_from(trained: Any, new: Any, sharing: str | None) -> None:
    """Lets what is shared begin with what the trained tower has learnt, whichever tower it is."""
    mode = get_sharing(sharing or ElectraRTDConfig.sharing)
    for name in mode.starting_parameters(new.electra):
        new.electra.get_parameter(name).copy_(trained.electra.get_parameter(name))


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
    )


def print_summary(record: PretrainingRecord, output_dir: str, console: Any = None) -> None:
    """What a person wants to know at the end of a run."""
    from rich.console import Console
    from rich.table import Table

    from hf_electra_rtd.training.progress import describe_towers, format_duration

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
