"""What a run would do and cost, without training anything."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

import torch
from rich.console import Console
from rich.filesize import decimal as format_bytes
from rich.text import Text
from transformers import SchedulerType

from hf_electra_rtd.base.accounting import count_parameters, format_duration
from hf_electra_rtd.base.recipes import SIZES
from hf_electra_rtd.data.blocks import SequenceStream
from hf_electra_rtd.data.collator import DataCollatorForRTD
from hf_electra_rtd.data.sequences import describe_text
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.training import console, meters
from hf_electra_rtd.training.arguments import RTDTrainingArguments
from hf_electra_rtd.training.memory import RESERVE, fake_steps, fit_batches
from hf_electra_rtd.training.trainer import RTDTrainer


_SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "embedding_size")
_TIMED_STEPS = 3  # after one step to warm up
_MOST_PASSES = 40  # over one text; more passes add next to nothing (Muennighoff et al. 2023, arXiv 2305.16264)
_DAY = 86_400  # seconds
_LONG = 7  # days
_FLOAT = 4  # bytes of a parameter, and of its gradient


def dry_run(
    model: ElectraForRTDPretraining,
    args: RTDTrainingArguments,
    stream: SequenceStream,
    collator: DataCollatorForRTD,
    size: str,
    memory: int | None = None,
    screen: Console | None = None,
) -> None:
    """Prints what a run of a named size would do. It times a few steps with a learning rate of zero, so that every
    weight stays the same to the bit. With `memory`, the bytes of a GPU, it times nothing, but counts which batches
    would fit that GPU. Raises ValueError if a batch does not fit in the memory of the GPU that it runs on."""
    device = args.device if memory is None else torch.device("cpu")
    screen = screen or console.open_console(quiet=args.process_index != 0)
    model.to(device)  # type: ignore[arg-type]

    towers = model.config.towers
    counts = count_parameters(model)
    rows = [
        (name.replace("_", " "), *(str(getattr(tower, name, "-")) for tower in towers.values())) for name in _SIZES
    ]
    rows.append(("parameters", *(f"{counts[name]:,}" for name in towers)))
    console.print_rows("The networks", rows, screen, ("", *towers))
    num_parameters = counts.pop("total")
    num_shared = sum(counts.values()) - num_parameters
    screen.print(
        f"Together {num_parameters:,} parameters; {num_shared:,} are shared (--sharing {model.config.sharing}).\n"
    )

    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            console.print_samples(model, collator, stream.__getitems__(range(min(2, len(stream)))), screen)
            seconds, states = (0.0, 0) if memory is not None else _time_steps(model, args, stream, collator)
    except torch.OutOfMemoryError:
        raise ValueError(
            f"{args.train_batch_size} sequences do not fit in the memory of {device}. Lower "
            "--per_device_train_batch_size and raise --gradient_accumulation_steps by the same factor."
        ) from None
    if memory is not None:
        _print_memory(model, args, stream, collator, memory, screen)
    else:
        costs = _describe_costs(model, args, stream, size, seconds, states)
        console.print_rows("The run", costs.items(), screen)
        for advice in advise(size, len(stream.sequences), args.sequences_per_step, args.max_steps, seconds):
            console.print_folded(Text(advice), screen, "! ")
    screen.print(f"\nNothing was trained. The prepared sequences stay in {args.output_dir} for the run itself.")


def advise(size: str, num_sequences: int, sequences_per_step: int, max_steps: int, seconds: float) -> Iterator[str]:
    """Yields advice for a run of a named size that is too long for its text or its machine. `seconds` is the time of a
    step."""
    and_size = ""
    or_size = ""
    if size != next(iter(SIZES)):  # the smallest
        and_size = " and a smaller --size"
        or_size = "a smaller --size, "
    steps_of_a_pass = num_sequences / sequences_per_step
    passes = max_steps / steps_of_a_pass
    most = max(1, int(_MOST_PASSES * steps_of_a_pass))
    if passes > _MOST_PASSES:
        yield (
            f"The run reads its text {passes:,.0f} times; beyond about {_MOST_PASSES} passes it learns little more. "
            f"Use more text, or --max_steps {most} ({_MOST_PASSES} passes){and_size}."
        )
    steps_of_a_day = max(1, int(_DAY / seconds))
    if min(most, max_steps) * seconds > _LONG * _DAY:
        yield (
            f"A day on this machine is enough for {steps_of_a_day:,} steps. Use a faster machine, "
            f"{or_size}or --max_steps {steps_of_a_day}."
        )


def _describe_costs(
    model: ElectraForRTDPretraining,
    args: RTDTrainingArguments,
    stream: SequenceStream,
    size: str,
    seconds: float,
    states: int,
) -> dict[str, str]:
    """Returns the costs of a run. `seconds` is the time of a step, `states` the bytes of the optimizer's states."""
    text = stream.sequences
    num_sequences = args.max_steps * args.sequences_per_step
    passes = num_sequences / len(text)
    num_tokens = meters.count_tokens(stream, args, num_sequences)
    flops = meters.count_flops(model, args, num_sequences)
    num_parameters = count_parameters(model)["total"]
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    in_all = _FLOAT * (num_parameters + trained) + states
    memory = f"{format_bytes(in_all)} for weights, gradients and the optimizer's states"
    if args.device.type == "cuda":
        memory += f", at the peak {format_bytes(torch.cuda.max_memory_allocated(args.device))} on the GPU"
    duration = f"{format_duration(args.max_steps * seconds)} without evaluation and checkpoints"
    speed = num_tokens / args.max_steps / seconds
    return {
        "steps": f"{args.max_steps:,} of {args.sequences_per_step:,} sequences",
        "batch": _describe_batch(args, size),
        "text": describe_text(text.header),
        "tokens": f"{num_tokens:,}, {passes:,.{0 if passes >= 10 else 2}f} passes over the text",
        "FLOPs": f"{flops:.3g} (matrix products)",
        "time": f"{duration}: {seconds:.3g} s a step, {speed:,.0f} tokens/s",
        "memory": memory,
        "disk": f"{format_bytes(_FLOAT * num_parameters + states)} a checkpoint",
    }


def _print_memory(
    model: ElectraForRTDPretraining,
    args: RTDTrainingArguments,
    stream: SequenceStream,
    collator: DataCollatorForRTD,
    memory: int,
    screen: Console,
) -> None:
    """Prints which batches fit the memory of a GPU, with and without gradient checkpointing."""
    sequences: Any = stream.__getitems__(range(min(args.train_batch_size, len(stream))))
    batch = collator(sequences)
    wanted = args.train_batch_size * args.gradient_accumulation_steps
    columns = [[f"{wanted:,} at once", "most at once", f"{wanted:,} accumulated"]]
    half = torch.bfloat16 if args.bf16 or args.chooses_precision else None  # as a GPU does by default
    dtype = torch.float16 if args.fp16 else half
    for checkpointing in (False, True):
        with fake_steps(model, args, batch, dtype, checkpointing) as take_step:
            (fits,) = fit_batches(model, take_step, wanted, [memory])
        by = f"{fits.accumulated:,} x {wanted // fits.accumulated:,}" if fits.accumulated else "not even one fits"
        columns.append([format_bytes(fits.peak), f"{fits.largest:,}", by])
    header = ("sequences", "without", "with --gradient_checkpointing")
    title = f"What fits a GPU with {format_bytes(memory)}"
    console.print_rows(title, zip(*columns, strict=True), screen, header)
    screen.print(
        f"\nFor one GPU, counted: weights, gradients, the optimizer's states, activations. {RESERVE:.0%} is left for "
        "CUDA's context, workspaces and fragmentation.\nA x B stands for --per_device_train_batch_size A "
        "--gradient_accumulation_steps B."
    )


def _describe_batch(args: RTDTrainingArguments, size: str) -> str:
    """Describes how the sequences of an optimizer step are spread, and the batch size in the recipe of `size`."""
    batch = args.sequences_per_step
    on_a_node = int(os.environ.get("LOCAL_WORLD_SIZE", args.world_size))
    machines = f"{args.world_size // on_a_node:,} node(s) x {on_a_node:,} process(es)"
    of_a_process = f"{args.train_batch_size:,} sequence(s) x {args.gradient_accumulation_steps:,} accumulated"
    recipe = f"{SIZES[size].pretraining['per_device_train_batch_size']:,} in the recipe of {size}"
    return f"{machines} x {of_a_process} = {batch:,} ({recipe}), {batch * args.max_seq_length:,} tokens a step"


def _time_steps(
    model: ElectraForRTDPretraining, args: RTDTrainingArguments, stream: SequenceStream, collator: DataCollatorForRTD
) -> tuple[float, int]:
    """Returns the seconds per step, and the bytes of the optimizer's states."""
    args = copy.copy(args)
    args.max_steps = min(1 + _TIMED_STEPS, args.max_steps)
    args.warmup_steps = 0
    args.learning_rate = 0.0
    args.lr_scheduler_type = SchedulerType.CONSTANT  # "cosine_with_min_lr" would divide by zero
    args.lr_scheduler_kwargs = None
    args.generator_learning_rate = None
    args.eval_strategy = "no"
    args.eval_on_start = False
    args.save_strategy = "no"
    args.checkpoint_fractions = None
    args.logging_strategy = "steps"
    args.logging_first_step = True
    args.logging_steps = args.max_steps
    args.disable_tqdm = True
    args.report_to = []
    args.push_to_hub = False
    stream = copy.copy(stream)
    stream.num_positions = args.max_steps * args.sequences_per_step
    trainer = RTDTrainer(model, args, stream, data_collator=collator)
    trainer.remove_callback(console.LinesCallback)
    trainer.train()
    first, *others = (log["train_seconds"] for log in trainer.state.log_history if "loss" in log)
    seconds = float((others[-1] - first) / (args.max_steps - 1) if others else first)
    optimizer: Any = trainer.optimizer
    kept = [each for state in optimizer.state.values() for each in state.values()]
    return seconds, sum(each.nbytes for each in kept if isinstance(each, torch.Tensor) and each.dim())
