"""Room on the disk: what a run will write, and whether it can."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers.trainer_utils import HubStrategy

from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.training.arguments import RTDTrainingArguments, fraction_steps


LOCK_FILE = ".lock"
# What files hold besides tensors, measured on files of `transformers` 5 and torch 2.
_HEADER_BYTES_PER_TENSOR = 130  # name, type, shape and place in a safetensors header
_OPTIMIZER_BYTES_PER_TENSOR = 1100  # three entries of a zip file, each with its header and padding
_BYTES_PER_LOG = 800  # a line of trainer_state.json
_SMALL_FILES = 25_000  # configuration, generator states, schedule


@dataclass(frozen=True)
class DiskNeed:
    """What a run writes, in bytes: `checkpoint` (one), `num_checkpoints` (that lie there at once, the one being
    written included), `final` (the pair and both towers), `fractions` (all towers that are exported on the way), and
    `snapshot` (what is on its way to the Hub, the pair included)."""

    checkpoint: int
    num_checkpoints: int
    final: int
    fractions: int = 0
    snapshot: int = 0

    @property
    def total(self) -> int:
        return self.checkpoint * self.num_checkpoints + self.final + self.fractions + self.snapshot


def estimate_disk(
    model: ElectraForRTDPretraining, tokenizer: Any, args: RTDTrainingArguments, num_steps: int
) -> DiskNeed:
    """What a run will write into its directory, rows and tokenizer that lie there already left out.

    Args:
        model: the pair.
        tokenizer: a fast one.
        args: of the run.
        num_steps: optimiser steps of the run.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = 2 * sum(map(tensor_bytes, trainable)) + _OPTIMIZER_BYTES_PER_TENSOR * len(trainable)
    words = len(tokenizer.backend_tokenizer.to_str(pretty=True).encode())
    logs = 0.0
    for strategy, interval in ((args.logging_strategy, args.logging_steps), (args.eval_strategy, args.eval_steps)):
        if strategy != "no" and interval:
            logs += num_steps / _in_steps(interval, num_steps)
    checkpoint = _weights_file(model) + optimizer + words + _SMALL_FILES + int(logs * _BYTES_PER_LOG)
    written = 0 if args.save_strategy == "no" else math.ceil(num_steps / _in_steps(args.save_steps, num_steps))
    # The oldest goes only when the newest is there.
    limit = args.save_total_limit or 0
    kept = min(written, limit + 1) if limit > 0 else written
    written_models = [model, *model.towers.values()]
    final = sum(map(_weights_file, written_models)) + len(written_models) * words + _SMALL_FILES
    towers = sum(map(_weights_file, model.towers.values())) + len(model.towers) * words + _SMALL_FILES
    fractions = towers * len(fraction_steps(args.checkpoint_fractions, num_steps))
    snapshots = args.push_to_hub and written > 0 and args.hub_strategy == HubStrategy.EVERY_SAVE
    return DiskNeed(checkpoint, kept, final, fractions, final if snapshots else 0)


def _in_steps(interval: float, num_steps: int) -> int:
    """`transformers` takes an interval below 1 as a share of the run."""
    return max(1, math.ceil(interval * num_steps) if interval < 1 else int(interval))


def _weights_file(model: Any) -> int:
    parameters = list(model.parameters())
    return sum(map(tensor_bytes, parameters)) + _HEADER_BYTES_PER_TENSOR * len(parameters)


def tensor_bytes(tensor: Tensor) -> int:
    """What its numbers take."""
    return tensor.numel() * tensor.element_size()


def check_output_dir(output_dir: str, needed_bytes: int = 0) -> int:
    """Makes sure that a run can write into its directory, which need not exist, and has room there.

    A file is written for a moment, into the directory or the nearest one above it that exists, and removed.

    Args:
        output_dir: of the run.
        needed_bytes: what the run will write; see `estimate_disk`.

    Returns:
        The bytes that are free.

    Raises:
        ValueError: if a file is in the way, nothing can be written, or there is too little room.
    """
    directory = Path(output_dir).absolute()
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not existing.is_dir():
        raise ValueError(f"{existing} is a file, so nothing can be written into {output_dir}: choose another one.")
    free = shutil.disk_usage(existing).free
    if free < needed_bytes:
        raise ValueError(
            f"There is not enough room for {output_dir}: the run needs {format_bytes(needed_bytes)} "
            f"({needed_bytes:,} bytes), and {format_bytes(free)} ({free:,} bytes) are free. Make room, choose another "
            "--output_dir, or keep fewer checkpoints (--save_total_limit)."
        )
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".writable-"):
            pass
    except OSError as error:
        raise ValueError(f"Nothing can be written into {existing}: {error.strerror or error}.") from None
    return free


def format_bytes(number: float) -> str:
    """Bytes with a unit: `512 B`, `5.8 MB`, `1.34 GB` (powers of 1,000)."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}" if number < 999.5 * size else f"{number / size:,.0f} {unit}"
    return f"{number:.0f} B"


class DirectoryLock:
    """Keeps other processes from training in a directory for as long as it lives; it goes with the process, however
    that ends. On systems without such locks it does nothing.

    Args:
        output_dir: of the run.

    Raises:
        ValueError: if another process holds it.
    """

    def __init__(self, output_dir: str) -> None:
        self._descriptor = os.open(Path(output_dir) / LOCK_FILE, os.O_RDWR | os.O_CREAT)
        try:
            import fcntl
        except ImportError:  # Windows
            return
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"Another process is training in {output_dir}: wait for it, stop it, or choose another --output_dir."
            ) from None

    def __del__(self) -> None:
        os.close(self._descriptor)
