"""Before a long run: what it would do, from its first batch and a few timed steps, and whether it fits.

A dry run leaves nothing behind. Its steps are those of the run with a learning rate of zero, so every weight stays the
same to the bit.
"""

from __future__ import annotations

import copy
import math
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import HubStrategy

from hf_electra_rtd.accounting import count_parameters
from hf_electra_rtd.data.stream import SequenceStream
from hf_electra_rtd.files import format_bytes
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.training.arguments import RTDTrainingArguments, fraction_steps
from hf_electra_rtd.training.checkpoints import list_checkpoints
from hf_electra_rtd.training.console import format_duration, format_flops, print_rows, print_samples
from hf_electra_rtd.training.record import count_flops, count_tokens
from hf_electra_rtd.training.stream import sequences_per_step
from hf_electra_rtd.training.trainer import RTDTrainer


_SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "embedding_size", "vocab_size"),
    "max_position_embeddings",
)
_WARMUP_STEPS, _TIMED_STEPS = 1, 3
_SEQUENCES_SHOWN = 2
_FLOAT = 4  # bytes of a parameter; a checkpoint holds three numbers for each: weight and two moments of Adam


def dry_run(
    model: ElectraForRTDPretraining,
    stream: SequenceStream,
    collator: Any,
    args: RTDTrainingArguments,
    console: Any = None,
) -> None:
    """Prints what a run of `args` would do: networks, first sequences, length, FLOPs, memory, disk, time. Only the
    main process prints. The model is moved to the device of `args`; `stream` is that of the whole run.

    Raises:
        ValueError: if the disk has not enough room, or a batch does not fit in the GPU's memory.
    """
    from rich.console import Console
    from rich.text import Text

    console = console or Console(highlight=False, quiet=args.process_index != 0)
    steps, per_step, batch_size = args.max_steps, sequences_per_step(args), args.train_batch_size
    needed, free = check_disk(model, args, steps)
    model.to(args.device)  # type: ignore[arg-type]

    towers, counts = model.config.towers, count_parameters(model)
    rows = [(key.replace("_", " "), *(f"{getattr(each, key):,}" for each in towers.values())) for key in _SIZES]
    rows.append(("parameters", *(f"{getattr(counts, name):,}" for name in towers)))
    print_rows("The networks", rows, console, ("", *towers))
    console.print(f"Together {counts.total:,} parameters; {counts.shared:,} are shared.\n")
    console.print("Tied tensors" if model.all_tied_weights_keys else "No tensor is tied", style="bold")
    for name, source in sorted(model.all_tied_weights_keys.items()):
        one, other = model.get_parameter(name), model.get_parameter(source)
        storage = "one storage" if one.data_ptr() == other.data_ptr() else "NOT ONE STORAGE"
        shape = " x ".join(map(str, one.shape))
        console.print(Text(f"{name} = {source} ({shape}, {storage})"), soft_wrap=True)
    console.print()

    weights = _FLOAT * sum(parameter.numel() for parameter in model.parameters())
    gradients = _FLOAT * sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    try:
        with torch.random.fork_rng([args.device] if args.device.type == "cuda" else []):
            first = stream.__getitems__(list(range(min(_SEQUENCES_SHOWN, len(stream)))))
            print_samples(model, collator, first, console, is_trained=False)
            seconds, optimizer = _time_steps(model, stream, collator, args)
    except torch.OutOfMemoryError:
        raise ValueError(
            f"A batch of {batch_size} sequences does not fit in the memory of {args.device}. Lower "
            "--per_device_train_batch_size and raise --gradient_accumulation_steps by the same factor."
        ) from None

    total = steps * per_step
    tokens, exports = count_tokens(stream, args, total), fraction_steps(args.checkpoint_fractions, steps)
    sizes = {"parameters": weights, "gradients": gradients, "optimizer": optimizer}
    if args.device.type == "cuda":
        sizes["peak"] = torch.cuda.max_memory_allocated(args.device)
        sizes["of the GPU's"] = torch.cuda.get_device_properties(args.device).total_memory
    duration = f"{format_duration(steps * seconds)} without evaluation and checkpoints"
    facts = {
        "steps": f"{steps:,} of {per_step:,} sequences",
        "tokens": f"{tokens:,}, {total / len(stream.sequences):.3g} passes over the sequences",
        "learning rate": f"{args.learning_rate:g} after {args.get_warmup_steps(steps):,} steps of warm-up",
        "FLOPs": format_flops(count_flops(model, args, total)),
        "time": f"{duration}: {seconds:.3g} s a step, {tokens / steps / seconds:,.0f} tokens/s",
        "memory": ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items()),
        "disk": f"about {format_bytes(needed)} of {format_bytes(free)} free",
        "exports": f"after steps {', '.join(f'{step:,}' for step in exports)}" if exports else "none",
    }
    print_rows("The run", facts.items(), console)
    console.print(f"\nNothing was trained. The prepared sequences stay in {args.output_dir} for the run itself.")


def check_disk(model: ElectraForRTDPretraining, args: RTDTrainingArguments, steps: int) -> tuple[int, int]:
    """The bytes that a run of `steps` steps needs, about, beside the checkpoints that are there, and the bytes free.

    Raises:
        ValueError: if there is not enough room.
    """
    output_dir = Path(str(args.output_dir)).absolute()
    checkpoints = 0
    if args.save_strategy != "no":
        checkpoints = math.ceil(
            steps / (math.ceil(args.save_steps * steps) if args.save_steps < 1 else args.save_steps)
        )
        if args.save_total_limit:  # the oldest is deleted after the newest is written
            checkpoints = min(checkpoints, args.save_total_limit + 1)
    exports = 2 + len(fraction_steps(args.checkpoint_fractions, steps))  # the pair, its two networks, fractions
    exports += 2 * (args.push_to_hub and args.hub_strategy == HubStrategy.EVERY_SAVE)
    existing = sum(file.stat().st_size for path in list_checkpoints(output_dir) for file in path.rglob("*"))
    needed = max(0, count_parameters(model).total * _FLOAT * (3 * checkpoints + exports) - existing)
    free = shutil.disk_usage(next(path for path in (output_dir, *output_dir.parents) if path.exists())).free
    if free < needed:
        raise ValueError(
            f"The run needs {format_bytes(needed)} in {args.output_dir}, but {format_bytes(free)} are free. Make "
            "room, choose another --output_dir, or keep fewer checkpoints (--save_total_limit)."
        )
    return needed, free


def _time_steps(
    model: ElectraForRTDPretraining, stream: SequenceStream, collator: Any, args: RTDTrainingArguments
) -> tuple[float, int]:
    """Seconds a step, and bytes of this process's optimizer state."""
    args = copy.copy(args)
    args.max_steps, args.warmup_steps, args.learning_rate = _WARMUP_STEPS + _TIMED_STEPS, 0, 0.0
    args.eval_strategy = args.save_strategy = args.logging_strategy = "no"
    args.report_to, args.push_to_hub, args.disable_tqdm, args.checkpoint_fractions = [], False, True, None
    few = SequenceStream(stream.sequences, args.max_steps * sequences_per_step(args), stream.seed)
    clock = _Clock()
    trainer = RTDTrainer(model, args, few, data_collator=collator, callbacks=[clock])
    trainer.train()
    seconds = (clock.times[-1] - clock.times[_WARMUP_STEPS - 1]) / _TIMED_STEPS
    optimizer: Any = trainer.optimizer
    states = [tensor for state in optimizer.state.values() for tensor in state.values()]
    return seconds, sum(tensor.nbytes for tensor in states if torch.is_tensor(tensor))


class _Clock(TrainerCallback):
    """Notes when steps end."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.device.type == "cuda":
            torch.cuda.synchronize(args.device)
        self.times.append(time.perf_counter())
