"""Before a long run: what would happen, from its first batch and a few timed steps, and whether there is room for it.

A rehearsal leaves nothing behind. Its steps have a learning rate of zero, so every weight stays what it is to the bit,
and the states of the optimiser and of torch's random generators go as they came.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers.training_args import OptimizerNames

from hf_electra_rtd.accounting import ParameterCount, count_parameters, model_flops, paper_flops
from hf_electra_rtd.data.blocks import BlockFile
from hf_electra_rtd.data.collator import DataCollatorForRTD
from hf_electra_rtd.data.stream import RowStream
from hf_electra_rtd.judgement import print_columns
from hf_electra_rtd.measures import observe
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.ops import num_masked
from hf_electra_rtd.training.arguments import RTDTrainingArguments, fraction_steps
from hf_electra_rtd.training.disk import DiskNeed, check_output_dir, estimate_disk, format_bytes, tensor_bytes
from hf_electra_rtd.training.optimization import make_optimizer
from hf_electra_rtd.training.progress import format_duration
from hf_electra_rtd.training.stream import rows_per_step


SIZES_SHOWN = (
    ("layers", "num_hidden_layers"),
    ("hidden size", "hidden_size"),
    ("attention heads", "num_attention_heads"),
    ("feed-forward size", "intermediate_size"),
    ("embedding size", "embedding_size"),
    ("vocabulary", "vocab_size"),
    ("positions", "max_position_embeddings"),
)
WARMUP_STEPS, TIMED_STEPS = 1, 3
ROWS_SHOWN, TOKENS_SHOWN = 2, 48


@dataclass(frozen=True)
class Tie:
    """A parameter of the pair that is another one, and whether both really are one storage now."""

    name: str
    source: str
    shape: tuple[int, ...]
    same_storage: bool


@dataclass(frozen=True)
class RehearsedToken:
    """A token of a row: the original, what the generator reads, what the main tower reads, and the label (1:
    replaced)."""

    original: str
    masked_input: str
    corrupted: str
    label: int
    masked: bool


@dataclass(frozen=True)
class Rehearsal:
    """What a run would do.

    Attributes:
        towers: sizes of the towers that there are, by name.
        ties: what the towers share.
        parameters: of both towers; what is shared is counted once in the total.
        steps: optimiser steps.
        rows_per_step: over all processes.
        tokens: over the whole run; with padding where the rows do not know their lengths.
        passes: over the rows.
        warmup_steps, learning_rate: of the schedule.
        rows: the first rows of the first step; [CLS] and [SEP] included.
        samples: whether masked tokens are replaced by samples.
        model_flops, paper_flops: of the whole run, in the conventions of `hf_electra_rtd.accounting`.
        parameter_bytes, gradient_bytes, optimizer_bytes: of this process, unless they are sharded.
        peak_bytes: on a GPU, the most that was allocated in a step; on a CPU, the most that the process ever held.
        device_bytes: memory of the device.
        disk: what is written.
        free_bytes: on the disk of the output directory.
        seconds_per_step: mean of the timed steps.
        export_steps: after which towers are exported.
        caveats: what the rehearsal did not do as the run will.
    """

    towers: dict[str, dict[str, int]]
    ties: list[Tie]
    parameters: ParameterCount
    steps: int
    rows_per_step: int
    tokens: int
    passes: float
    warmup_steps: int
    learning_rate: float
    rows: list[list[RehearsedToken]]
    samples: bool
    model_flops: float
    paper_flops: float
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    peak_bytes: int
    device_bytes: int
    disk: DiskNeed
    free_bytes: int
    seconds_per_step: float
    export_steps: list[int]
    caveats: list[str]

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.steps / self.seconds_per_step

    @property
    def seconds(self) -> float:
        """Of all training steps; evaluations and checkpoints come on top."""
        return self.steps * self.seconds_per_step


def rehearse(
    model: ElectraForRTDPretraining,
    tokenizer: Any,
    stream: RowStream,
    collator: DataCollatorForRTD,
    args: RTDTrainingArguments,
    clock: Callable[[], float] = time.perf_counter,
) -> Rehearsal:
    """Looks at the first batch of a run, times a few steps, and checks the output directory.

    Args:
        model: the pair, as it would be trained; it is moved to the device of `args`.
        tokenizer: of the rows.
        stream: of the whole run.
        collator: masks the rows.
        args: of the run.
        clock: gives seconds.

    Raises:
        ValueError: for a directory that cannot be written or has no room, a stream of less than a step, or a step
            that does not fit in the GPU's memory.
    """
    step_rows = rows_per_step(args)
    steps = len(stream) // step_rows
    if steps < 1:
        raise ValueError(f"The run has {len(stream)} rows, too few for one step of {step_rows}.")
    disk = estimate_disk(model, tokenizer, args, steps)
    free = check_output_dir(str(args.output_dir), disk.total)
    model.to(args.device)  # type: ignore[arg-type]

    try:
        rows, row_length = _first_rows(model, tokenizer, stream, collator, args)
        seconds, optimizer_bytes, peak = _time_steps(model, stream, collator, args, clock)
    except torch.OutOfMemoryError:
        raise ValueError(
            f"A batch of {args.train_batch_size} rows does not fit in the memory of {args.device}: lower "
            "--per_device_train_batch_size, and raise --gradient_accumulation_steps by the same factor."
        ) from None

    masked, total_rows = num_masked(args.mask_probability, row_length), steps * step_rows
    known = isinstance(stream.rows, BlockFile)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Rehearsal(
        towers={
            name: {label: getattr(config, key) for label, key in SIZES_SHOWN}
            for name, config in model.config.towers.items()
        },
        ties=find_ties(model),
        parameters=count_parameters(model),
        steps=steps,
        rows_per_step=step_rows,
        tokens=stream.num_tokens(total_rows) if known else total_rows * row_length,
        passes=total_rows / len(stream.rows),
        warmup_steps=args.get_warmup_steps(steps),
        learning_rate=args.learning_rate,
        rows=rows,
        samples=model.config.has_generator,
        model_flops=float(model_flops(model.config, total_rows, row_length, masked)),
        paper_flops=paper_flops(model.config, total_rows, row_length, masked / row_length),
        parameter_bytes=sum(map(tensor_bytes, model.parameters())),
        gradient_bytes=sum(map(tensor_bytes, trainable)),
        optimizer_bytes=optimizer_bytes,
        peak_bytes=peak,
        device_bytes=_device_bytes(args.device),
        disk=disk,
        free_bytes=free,
        seconds_per_step=seconds,
        export_steps=list(fraction_steps(args.checkpoint_fractions, steps)),
        caveats=_caveats(args),
    )


def find_ties(model: ElectraForRTDPretraining) -> list[Tie]:
    """The tied parameters of the pair, by the names that `transformers` ties them by."""
    ties = []
    for name, source in sorted(model.all_tied_weights_keys.items()):
        one, other = model.get_parameter(name), model.get_parameter(source)
        ties.append(Tie(name, source, tuple(one.shape), one.data_ptr() == other.data_ptr()))
    return ties


def _caveats(args: RTDTrainingArguments) -> list[str]:
    caveats = []
    if args.world_size > 1:
        caveats.append(f"the exchange of gradients between {args.world_size} processes is not in the time")
    optimizer = OptimizerNames(args.optim)
    if optimizer not in (OptimizerNames.ADAMW_TORCH, OptimizerNames.ADAMW_TORCH_FUSED):
        caveats.append(f"timed with ElectraAdamW, not with {optimizer.value}")
    if args.torch_compile:
        caveats.append("timed without torch.compile")
    if args.fsdp or args.deepspeed or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        caveats.append("timed and measured without sharding")
    return caveats


def _micro_batches(stream: RowStream, args: RTDTrainingArguments) -> Iterator[Any]:
    """The batches of this process in the first step: batches go to the processes in turn."""
    for index in range(args.gradient_accumulation_steps):
        start = (index * args.world_size + args.process_index) * args.train_batch_size
        yield stream.__getitems__(list(range(start, start + args.train_batch_size)))


def _autocast(args: RTDTrainingArguments) -> Any:
    dtype = torch.float16 if args.fp16 else torch.bfloat16
    return torch.autocast(args.device.type, dtype=dtype, enabled=bool(args.bf16 or args.fp16))


@contextmanager
def _undisturbed(model: ElectraForRTDPretraining, args: RTDTrainingArguments) -> Iterator[None]:
    """Trains with activation checkpointing where the run does; afterwards brings back what a step changes: that, the
    mode, gradients, and torch's random generators."""
    training = model.training
    devices = [args.device] if args.device.type == "cuda" else []
    already = any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    checkpointing = args.gradient_checkpointing and not already
    try:
        with torch.random.fork_rng(devices):
            if checkpointing:
                given: Any = args.gradient_checkpointing_kwargs
                options = dict(given or {})
                extra = {key: options.pop(key) for key in ("every_n_layers", "offload") if key in options}
                _renamed(model, "checkpointing_enable")(options or None, **extra)
            yield
    finally:
        if checkpointing:
            _renamed(model, "checkpointing_disable")()
        model.zero_grad(set_to_none=True)
        model.train(training)


def _renamed(model: ElectraForRTDPretraining, method: str) -> Callable[..., Any]:
    """`activation_...`, or `gradient_...` as the older supported versions of `transformers` call it."""
    found: Callable[..., Any] = getattr(model, f"activation_{method}", None) or getattr(model, f"gradient_{method}")
    return found


@torch.no_grad()
def _first_rows(
    model: ElectraForRTDPretraining,
    tokenizer: Any,
    stream: RowStream,
    collator: DataCollatorForRTD,
    args: RTDTrainingArguments,
) -> tuple[list[list[RehearsedToken]], int]:
    """The first rows in readable tokens, and L. Samples are those of a step, as far as dropout does not change
    them."""
    with _undisturbed(model, args), _autocast(args):
        batch = collator(next(_micro_batches(stream, args)))
        row_length = batch["input_ids"].shape[1]
        batch = {key: value[:ROWS_SHOWN].to(args.device) for key, value in batch.items()}
        output = model.eval()(**batch)
    seen = observe(output, batch)
    lengths = seen.real.sum(dim=1).tolist()
    columns = (seen.originals, batch["input_ids"], output.corrupted_input_ids, output.replaced_labels, seen.masked)
    name = tokenizer.convert_ids_to_tokens
    rows = []
    for length, original, read, corrupted, label, hidden in zip(
        lengths, *(column.tolist() for column in columns), strict=True
    ):
        rows.append(
            [
                RehearsedToken(name(original[i]), name(read[i]), name(corrupted[i]), label[i], hidden[i])
                for i in range(length)
            ]
        )
    return rows, row_length


def _time_steps(
    model: ElectraForRTDPretraining,
    stream: RowStream,
    collator: DataCollatorForRTD,
    args: RTDTrainingArguments,
    clock: Callable[[], float],
) -> tuple[float, int, int]:
    """Seconds a step, bytes of the optimiser's states, and peak bytes."""
    on_gpu = args.device.type == "cuda"
    optimizer = make_optimizer(model, args)
    for group in optimizer.param_groups:
        group["lr"] = 0.0  # leaves every weight as it is, and takes the same time

    def step() -> None:
        for rows in _micro_batches(stream, args):
            batch = {key: value.to(args.device) for key, value in collator(rows).items()}
            with _autocast(args):
                loss = model(**batch).loss
            (loss / args.gradient_accumulation_steps).backward()
        if args.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    def now() -> float:
        if on_gpu:
            torch.cuda.synchronize(args.device)
        return clock()

    with _undisturbed(model, args):
        model.train()
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(args.device)
        for _ in range(WARMUP_STEPS):
            step()
        start = now()
        for _ in range(TIMED_STEPS):
            step()
        seconds = (now() - start) / TIMED_STEPS
    states = sum(tensor_bytes(tensor) for state in optimizer.state.values() for tensor in state.values())
    return seconds, states, torch.cuda.max_memory_allocated(args.device) if on_gpu else _process_peak()


def _process_peak() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, kibibytes elsewhere


def _device_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# ---- What a person reads ----


def print_rehearsal(rehearsal: Rehearsal, console: Any = None) -> None:
    """Prints what a run would do.

    Args:
        rehearsal: of the run.
        console: a `rich.console.Console`; by default, standard output.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = console or Console(highlight=False)

    def table(title: str, *headers: str) -> Table:
        made = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
        for header in headers:
            made.add_column(header, header_style="dim", justify="right" if header in rehearsal.towers else "left")
        made.show_header = any(headers)
        return made

    towers = table("The towers", "", *rehearsal.towers)
    for label, _ in SIZES_SHOWN:
        towers.add_row(label, *(f"{sizes[label]:,}" for sizes in rehearsal.towers.values()))
    counts = rehearsal.parameters
    towers.add_row("parameters", *(f"{getattr(counts, name):,}" for name in rehearsal.towers))
    console.print(towers)
    console.print(f"Together {counts.total:,} parameters; {counts.shared:,} are shared.\n")

    console.print(Text("Tied tensors" if rehearsal.ties else "No tensor is tied", style="bold"))
    for tie in rehearsal.ties:
        storage = Text("one storage") if tie.same_storage else Text("NOT ONE STORAGE", style="bold red")
        shape = " x ".join(map(str, tie.shape))
        console.print(Text(f"{tie.name} = {tie.source} ({shape}, ").append_text(storage).append(")"), soft_wrap=True)
    console.print()

    for row in rehearsal.rows:
        left_out = f", {TOKENS_SHOWN} of {len(row)} tokens" if len(row) > TOKENS_SHOWN else ""
        meaning = " (label 1: replaced)" if rehearsal.samples else ""
        console.print(Text(f"A row of the first step{left_out}{meaning}", style="bold"))
        labels = ("original", "masked", "sampled", "label")[: 4 if rehearsal.samples else 2]
        print_columns(labels, (_rehearsed_cells(token)[: len(labels)] for token in row[:TOKENS_SHOWN]), console)

    run = table("The run", "", "")
    disk = rehearsal.disk
    for name, value in (
        ("steps", f"{rehearsal.steps:,} of {rehearsal.rows_per_step:,} rows"),
        ("tokens", f"{rehearsal.tokens:,}, {rehearsal.passes:.3g} passes over the rows"),
        ("learning rate", f"{rehearsal.learning_rate:g} after {rehearsal.warmup_steps:,} steps of warm-up"),
        ("FLOPs", f"{rehearsal.model_flops:.3g} (matrix products), {rehearsal.paper_flops:.3g} (as the paper counts)"),
        (
            "time",
            f"{format_duration(rehearsal.seconds)} and what evaluation and checkpoints take: "
            f"{rehearsal.seconds_per_step:.3g} s a step, {rehearsal.tokens_per_second:,.0f} tokens/s",
        ),
        (
            "memory",
            f"parameters {format_bytes(rehearsal.parameter_bytes)}, gradients "
            f"{format_bytes(rehearsal.gradient_bytes)}, optimiser {format_bytes(rehearsal.optimizer_bytes)}; peak "
            f"{format_bytes(rehearsal.peak_bytes)} of {format_bytes(rehearsal.device_bytes)}",
        ),
        (
            "disk",
            f"{format_bytes(disk.total)} of {format_bytes(rehearsal.free_bytes)} that are free: "
            f"{disk.num_checkpoints} checkpoints of {format_bytes(disk.checkpoint)}, "
            f"results {format_bytes(disk.final)}"
            + (f", towers on the way {format_bytes(disk.fractions)}" if disk.fractions else ""),
        ),
        *(("towers", f"exported after step {step:,}") for step in rehearsal.export_steps),
        *(("but", caveat) for caveat in rehearsal.caveats),
    ):
        run.add_row(name, value)
    console.print(run)


def _rehearsed_cells(token: RehearsedToken) -> tuple[Any, ...]:
    from rich.text import Text

    return (
        Text(token.original),
        Text(token.masked_input if token.masked else "", style="dim"),
        Text(token.corrupted if token.masked else "", style="bold" if token.label else ""),
        Text(str(token.label), style="bold" if token.label else "dim"),
    )
