"""The stream of rows of a run: as long as the run, and the same again when it is resumed."""

from __future__ import annotations

import math
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.data.blocks import BlockFile
from hf_electra_rtd.data.collator import DataCollatorForRTD
from hf_electra_rtd.data.stream import HELD_OUT_POSITION, RowStream
from hf_electra_rtd.training.arguments import RTDTrainingArguments


def data_seed(args: RTDTrainingArguments) -> int:
    """The seed of order, masks and samples."""
    return args.seed if args.data_seed is None else args.data_seed


def rows_per_step(args: RTDTrainingArguments) -> int:
    """Rows of one optimiser step, over accumulated batches and all processes."""
    return int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)


def fit_stream(rows: Any, args: RTDTrainingArguments) -> RowStream:
    """A stream of exactly the run's length; sets `args.max_steps` where only `num_train_epochs` is given.

    Args:
        rows: rows, or a [`RowStream`] that must fit already.
        args: of the run.

    Raises:
        ValueError: if the rows do not fill one optimiser step, a stream has another length than the run, or something
            shall happen at the end of an epoch, which a stream does not have.
    """
    for strategy in ("eval_strategy", "save_strategy", "logging_strategy"):
        if getattr(args, strategy) == "epoch":
            raise ValueError(f"{strategy}='epoch' has no meaning for a run that is one stream of rows: take 'steps'.")
    global_batch = rows_per_step(args)
    if isinstance(rows, RowStream):
        if len(rows) != args.max_steps * global_batch:
            raise ValueError(
                f"The stream has {len(rows)} rows, but {args.max_steps} steps of {global_batch} rows need "
                f"{args.max_steps * global_batch}: give the rows themselves, and the stream is made to fit."
            )
        return rows
    if args.max_steps <= 0:
        args.max_steps = math.floor(args.num_train_epochs * len(rows) / global_batch)
        if args.max_steps < 1:
            raise ValueError(
                f"{args.num_train_epochs:g} epochs of {len(rows)} rows do not fill one step of {global_batch} "
                "rows: give more text, a smaller batch, more epochs, or --max_steps."
            )
    return RowStream(rows, args.max_steps * global_batch, data_seed(args))


def held_out_stream(rows: Any) -> RowStream:
    """Held-out rows in their order, with random numbers that no training row has."""
    return rows if isinstance(rows, RowStream) else RowStream(rows, shuffle=False, first_position=HELD_OUT_POSITION)


def make_collator(tokenizer: PreTrainedTokenizerBase, args: RTDTrainingArguments) -> DataCollatorForRTD:
    """The collator of a run: its masking, and its seed."""
    return DataCollatorForRTD(
        tokenizer, args.mask_probability, args.keep_probability, args.masking, data_seed(args), args.row_length
    )


def describe_stream(stream: Any, args: RTDTrainingArguments) -> dict[str, Any] | None:
    """What decides which rows, masks and samples a step sees; None for rows that are no [`RowStream`]."""
    if not isinstance(stream, RowStream):
        return None
    return {
        "rows": stream.rows.header.sha256 if isinstance(stream.rows, BlockFile) else len(stream.rows),
        "seed": stream.seed,
        "rows_per_step": rows_per_step(args),
        "mask_probability": args.mask_probability,
        "keep_probability": args.keep_probability,
        "masking": args.masking,
    }
