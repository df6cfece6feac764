"""The parts of a pre-training run, whichever loop drives it: tokenizer, rows, model, outputs."""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import ElectraForMaskedLM, ElectraForPreTraining, PreTrainedTokenizerBase
from transformers.trainer_callback import TrainerState

from hf_electra_rtd.accounting import count_parameters, model_flops, paper_flops
from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig, derive_generator_config
from hf_electra_rtd.data.blocks import BlockFile
from hf_electra_rtd.data.documents import BLOCK_SUFFIX, find_files, read_lines
from hf_electra_rtd.data.packing import check_packing
from hf_electra_rtd.data.preparation import check_held_out_share, describe, prepare_blocks
from hf_electra_rtd.data.stream import RowStream
from hf_electra_rtd.data.tokenization import MAX_LENGTH, load_tokenizer, tokenizer_hash, train_wordpiece
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.objectives import get_objective
from hf_electra_rtd.ops import num_masked
from hf_electra_rtd.publishing.curves import CURVES_FILE, plot_curves
from hf_electra_rtd.records import RECORD_FILE, PretrainingRecord, collect_hardware, collect_versions, utc_now
from hf_electra_rtd.sharing import get_sharing
from hf_electra_rtd.towers import save_tokenizer
from hf_electra_rtd.training.arguments import RTDTrainingArguments


logger = logging.getLogger(__name__)

TOKENIZER_DIRECTORY = "tokenizer"
BLOCKS_DIRECTORY = "blocks"
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
    def options(self) -> dict[str, Any]:
        """What was asked for, of the pair's configuration."""
        return {name: getattr(self, name) for name in _PAIR_OPTIONS if getattr(self, name) is not None}


@dataclass
class DataArguments:
    """Which text, and how it becomes rows."""

    train_files: list[str] = field(
        default_factory=list,
        metadata={"help": "Text files or globs (.txt, .txt.gz, .txt.zst), or one prepared block file (.blocks)."},
    )
    held_out_files: list[str] | None = field(
        default=None, metadata={"help": "Held-out text or a block file; by default a share of the documents."}
    )
    held_out_share: float = field(
        default=0.05, metadata={"help": "Share of the documents that is held out; 0 for none."}
    )
    packing: str = field(default="full", metadata={"help": "How text becomes rows: full or original."})
    tokenizer: str | None = field(
        default=None, metadata={"help": "Directory, Hub id or vocab.txt; by default one is trained on the text."}
    )
    vocab_size: int = field(default=8192, metadata={"help": "Tokens of a tokenizer that is trained."})
    lowercase: bool | None = field(
        default=None,
        metadata={"help": "For a trained tokenizer or a vocab.txt; by default as the vocab.txt is, or true."},
    )
    data_license: str | None = field(default=None, metadata={"help": "Licence of the text, for the run's record."})
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Delete the run that lies in output_dir, and start anew."}
    )

    def __post_init__(self) -> None:
        check_packing(self.packing)
        check_held_out_share(self.held_out_share)


def prepare_output_dir(output_dir: str, resume: str | None, overwrite: bool) -> str | None:
    """Makes the directory of the run, and finds the checkpoint to resume from.

    Args:
        output_dir: of the run.
        resume: a checkpoint's directory, `"latest"`, or None to start anew.
        overwrite: delete a run that lies there.

    Returns:
        The checkpoint's directory, or None.

    Raises:
        ValueError: if another run lies there, or there is nothing to resume.
    """
    directory = Path(output_dir)
    latest = _latest_checkpoint(directory)
    if resume is not None:
        checkpoint = latest if resume == "latest" else resume
        if checkpoint is None or not os.path.isdir(checkpoint):
            raise ValueError(f"There is no checkpoint to resume from: {checkpoint or f'{output_dir} holds none'}.")
        return checkpoint
    if latest is not None or (directory / RECORD_FILE).exists():
        if not overwrite:
            raise ValueError(
                f"{output_dir} holds another run. Continue it with --resume_from_checkpoint latest, delete it with "
                "--overwrite_output_dir, or choose another --output_dir."
            )
        parts = ("generator", "discriminator", TOKENIZER_DIRECTORY)
        for path in [*directory.glob("checkpoint-*"), *(directory / name for name in parts)]:
            shutil.rmtree(path, ignore_errors=True)
        for name in (RECORD_FILE, CURVES_FILE, "model.safetensors"):
            (directory / name).unlink(missing_ok=True)
    directory.mkdir(parents=True, exist_ok=True)
    return None


def _latest_checkpoint(directory: Path) -> str | None:
    """The checkpoint of the highest step that is whole: the Trainer writes its state last."""
    steps = {path: path.name.rpartition("-")[2] for path in directory.glob("checkpoint-*")}
    for path in sorted((path for path in steps if steps[path].isdigit()), key=lambda path: -int(steps[path])):
        try:
            TrainerState.load_from_json(str(path / "trainer_state.json"))
        except (OSError, ValueError):
            logger.warning(f"{path} is not whole, and is passed over.")
            continue
        return str(path)
    return None


def warn_of_idle_cores(training: RTDTrainingArguments) -> None:
    """Says when a run on the CPU leaves cores idle: `accelerate launch` gives a process one core by default."""
    threads, cores = torch.get_num_threads(), collect_hardware()["cpu_cores"]
    if training.device.type == "cpu" and training.world_size * threads < cores:
        logger.warning(
            f"Training on {training.world_size * threads} of {cores} CPU cores. To use all, launch with "
            f"--num_cpu_threads_per_process {cores // training.world_size} (or set OMP_NUM_THREADS)."
        )


def get_tokenizer(
    model: ModelArguments, data: DataArguments, output_dir: str, resumed: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer named by `--tokenizer`, or that of the towers to start from, or one trained on the text.

    A trained one is kept in the run's directory, where a run that is resumed finds it.

    Raises:
        ValueError: if there is neither a tokenizer nor text to train one on.
    """
    named = data.tokenizer or model.discriminator or model.generator
    if named is not None:
        return load_tokenizer(named, data.lowercase)
    trained = Path(output_dir) / TOKENIZER_DIRECTORY
    if resumed:
        return load_tokenizer(str(trained))
    files = find_files(data.train_files)
    if any(file.endswith(BLOCK_SUFFIX) for file in files):
        raise ValueError(
            "A block file holds no text to train a tokenizer on: name the one that made it (--tokenizer)."
        )
    logger.info(f"Training a tokenizer of {data.vocab_size:,} tokens.")
    tokenizer = train_wordpiece(
        lambda: (line for file in files for line in read_lines(file)),
        data.vocab_size,
        lowercase=data.lowercase is not False,
    )
    save_tokenizer(tokenizer, trained)
    return tokenizer


def get_rows(
    data: DataArguments, training: RTDTrainingArguments, tokenizer: PreTrainedTokenizerBase
) -> tuple[BlockFile, BlockFile | None]:
    """The training and the held-out rows, prepared from text or read from block files.

    Raises:
        ValueError: for files that cannot be used, by name.
    """
    share = 0.0 if data.held_out_files else data.held_out_share
    train, held_out = _rows(data.train_files, "train", share, data, training, tokenizer)
    if data.held_out_files:
        held_out, _ = _rows(data.held_out_files, "held_out", 0.0, data, training, tokenizer)
    for name, rows in (("Training", train), ("Held out", held_out)):
        if rows is not None:
            logger.info(f"{name}: {describe(rows)}")
    return train, held_out


def _rows(
    patterns: list[str],
    name: str,
    held_out_share: float,
    data: DataArguments,
    training: RTDTrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[BlockFile, BlockFile | None]:
    if not patterns:
        raise ValueError("There is nothing to train on: name text or block files (--train_files).")
    files = find_files(patterns)
    if not any(file.endswith(BLOCK_SUFFIX) for file in files):
        return prepare_blocks(
            files,
            tokenizer,
            Path(str(training.output_dir)) / BLOCKS_DIRECTORY,
            training.row_length,
            data.packing,
            held_out_share,
            training.seed,
            name,
            bool(training.disable_tqdm),
        )
    if len(files) > 1:
        raise ValueError(f"Give one block file alone, not {len(files)} files: {', '.join(files)}.")
    rows = BlockFile(files[0], verify=True)
    if rows.header.tokenizer_hash != tokenizer_hash(tokenizer):
        raise ValueError(f"{files[0]} was made with another tokenizer: name the one that made it (--tokenizer).")
    if rows.header.row_length != training.row_length:
        raise ValueError(
            f"{files[0]} has rows of {rows.header.row_length} tokens, not {training.row_length}: "
            f"say --row_length {rows.header.row_length}, or prepare the text again."
        )
    if held_out_share and name == "train":
        logger.warning(
            f"{files[0]} is prepared and cannot be split by document: the run is not evaluated. Name its held-out "
            "rows (--held_out_files)."
        )
    return rows, None


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
        discriminator = ElectraForPreTraining.from_pretrained(discriminator, dtype="float32")
        fraction = 0.25 if model.generator_hidden_size is None else model.generator_hidden_size
        generator = ElectraForMaskedLM(derive_generator_config(discriminator.config, fraction))
        _start_embeddings_from(discriminator, generator, model.sharing)
    elif discriminator is None:
        generator = ElectraForMaskedLM.from_pretrained(generator, dtype="float32")
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
    """Writes the pair, both towers, the record and the picture of a run into its directory."""
    model.save_pretrained(output_dir)
    save_tokenizer(tokenizer, output_dir)
    model.save_towers(output_dir, tokenizer)
    record.save(output_dir)
    plot_curves(record, output_dir)


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
