"""The stream of sequences of a run: exactly as long as the run, and the same again when it is resumed."""

from __future__ import annotations

import math
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.data.blocks import BlockFile
from hf_electra_rtd.data.collator import DataCollatorForRTD
from hf_electra_rtd.data.stream import HELD_OUT_POSITION, SequenceStream
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.training.arguments import RTDTrainingArguments


def sequences_per_step(args: RTDTrainingArguments) -> int:
    """Sequences of one optimizer step, over accumulated batches and all processes."""
    return int(args.train_batch_size * args.gradient_accumulation_steps * args.world_size)


def fit_stream(sequences: Any, args: RTDTrainingArguments) -> SequenceStream:
    """A stream of exactly the run's length; sets `args.max_steps` where only `num_train_epochs` is given.

    Raises:
        ValueError: if the sequences do not fill one optimizer step, a stream has another length, or something shall
            happen at the end of an epoch, which a stream does not have.
    """
    for strategy in ("eval_strategy", "save_strategy", "logging_strategy"):
        if getattr(args, strategy) == "epoch":
            raise ValueError(f"--{strategy} epoch: a run is one stream of sequences without epochs. Use 'steps'.")
    batch = sequences_per_step(args)
    if isinstance(sequences, SequenceStream):
        if len(sequences) != args.max_steps * batch:
            raise ValueError(
                f"The stream has {len(sequences)} sequences, but {args.max_steps} steps of {batch} sequences need "
                f"{args.max_steps * batch}. Pass its sequences instead, to get a stream that fits."
            )
        return sequences
    if args.max_steps <= 0:
        args.max_steps = math.floor(args.num_train_epochs * len(sequences) / batch)
        if args.max_steps < 1:
            raise ValueError(
                f"{args.num_train_epochs:g} epochs of {len(sequences)} sequences do not fill one step of {batch}. "
                "Use more text, a smaller batch, more epochs, or --max_steps."
            )
    return SequenceStream(sequences, args.max_steps * batch, _data_seed(args))


def held_out_stream(sequences: Any) -> SequenceStream:
    """Held-out sequences in their order, with random numbers that no training sequence has."""
    if isinstance(sequences, SequenceStream):
        return sequences
    return SequenceStream(sequences, shuffle=False, first_position=HELD_OUT_POSITION)


def make_collator(tokenizer: PreTrainedTokenizerBase, args: RTDTrainingArguments) -> DataCollatorForRTD:
    """The collator of a run, with its masking and its seed."""
    masking, length = (args.mask_probability, args.keep_probability), args.max_seq_length
    return DataCollatorForRTD(tokenizer, *masking, seed=_data_seed(args), max_seq_length=length)


def describe_run(model: ElectraForRTDPretraining, stream: Any, args: RTDTrainingArguments) -> dict[str, Any]:
    """What a resumed run must have in common with its checkpoint: what decides the sequences, masks and samples of a
    step (nothing of a dataset that is no [`SequenceStream`]), and the sharing, as tensors of 'gdes' have the names and
    shapes of others, but mean differences."""
    if not isinstance(stream, SequenceStream):
        return {"sharing": model.config.sharing}
    sequences = stream.sequences
    return {
        "sharing": model.config.sharing,
        "sequences": sequences.header.sha256 if isinstance(sequences, BlockFile) else len(sequences),
        "seed": stream.seed,
        "sequences_per_step": sequences_per_step(args),
        "mask_probability": args.mask_probability,
        "keep_probability": args.keep_probability,
    }


def _data_seed(args: RTDTrainingArguments) -> int:
    return args.seed if args.data_seed is None else args.data_seed
