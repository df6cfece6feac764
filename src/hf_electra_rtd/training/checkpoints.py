"""Checkpoints, which are complete or absent; and models that several processes share.

Everything is written by `files.writing`, which forces it to disk before it gets its name, and removed by
`files.remove_directory`. So a process that is killed at any moment leaves only complete checkpoints. Each checkpoint
has a manifest with the SHA-256 of every file. Files that match the manifest are not checked any further.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
from collections.abc import Iterator, Sized
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedType
from accelerate.utils import broadcast_object_list
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import SchedulerType

from hf_electra_rtd.base.files import hash_files, reading, remove_directory, writing
from hf_electra_rtd.base.records import FractionRecord
from hf_electra_rtd.data.blocks import Blocks, SequenceStream
from hf_electra_rtd.encoders.families import DROPOUTS
from hf_electra_rtd.pair.configuration_electra_rtd import OPTIONS
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.training.arguments import RTDTrainingArguments


logger = logging.getLogger(__name__)

CHECKPOINT_PREFIX = "checkpoint-"
FRACTIONS_DIRECTORY = "fractions"
MANIFEST_FILE = "checkpoint.json"
STATE_FILE = "trainer_state.json"
OUTPUTS = ".outputs"  # in the directory of a run, while its outputs are written or those of another are removed
# The settings that a resumed run must share with its checkpoint, in addition to the `OPTIONS` of the pair:
# fields of the configuration of each tower, and arguments.
_OF_TOWERS = (
    "model_type",
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    *DROPOUTS,
)
_OF_OPTIMIZER = (
    "learning_rate",
    "generator_learning_rate",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "bias_correction",
    "mixed_precision",
    "lr_scheduler_type",
    "max_grad_norm",
    "lr_scheduler_kwargs",
    "optim_args",
)


# ---- Reading checkpoints ----


def list_checkpoints(output_dir: str | os.PathLike[str]) -> list[Path]:
    """Returns the checkpoints of a run, sorted by step."""
    paths = Path(output_dir).glob(f"{CHECKPOINT_PREFIX}*")
    ours = (path for path in paths if path.is_dir() and path.name.removeprefix(CHECKPOINT_PREFIX).isdigit())
    return sorted(ours, key=checkpoint_step)


def checkpoint_step(path: Path) -> int:
    """Returns the number of optimizer steps before a checkpoint, from its name."""
    return int(path.name.removeprefix(CHECKPOINT_PREFIX))


def latest_checkpoint(output_dir: str | os.PathLike[str]) -> Path | None:
    """Returns the last complete checkpoint, or None. Warns of later ones that are damaged."""
    for path in reversed(list_checkpoints(output_dir)):
        try:
            read_checkpoint(path)
            return path
        except ValueError as error:
            logger.warning(f"{error} It is ignored.")
    return None


def read_checkpoint(checkpoint: str | os.PathLike[str], verify: bool = True) -> tuple[dict[str, Any], TrainerState]:
    """Returns the manifest of a checkpoint (`run`, `files`), and the state of the training loop. With `verify`, the
    hash of every file is compared. Raises ValueError if a file is missing or was altered."""
    path = Path(checkpoint)
    with reading(path, "It is not a complete checkpoint."):
        manifest = json.loads((path / MANIFEST_FILE).read_text(encoding="utf-8"))
        if verify:
            altered = [
                name
                for name, sha256 in manifest["files"].items()
                if not (path / name).is_file() or hash_files([path / name]) != sha256
            ]
            if altered:
                raise ValueError(f"{', '.join(altered)} missing or altered")
        return manifest, TrainerState.load_from_json(str(path / STATE_FILE))


def describe_run(
    model: ElectraForRTDPretraining, stream: Any, held_out: Any, args: RTDTrainingArguments
) -> dict[str, Any]:
    """Returns the settings that a resumed run must share with its checkpoint: the architecture and objective of the
    networks, and the optimizer settings (which the checkpoint would override silently). For a [`SequenceStream`], also
    what decides the sequences, masks and samples of a step, and which held-out sequences are evaluated."""
    described: dict[str, Any] = {name: getattr(model.config, name) for name in OPTIONS}
    for name, tower in model.config.towers.items():
        described |= {f"{name}.{key}": getattr(tower, key, None) for key in _OF_TOWERS}
    described |= {name: getattr(args, name) for name in _OF_OPTIMIZER}
    described["lr_scheduler_type"] = SchedulerType(args.lr_scheduler_type).value
    described["optim"] = args.optim.removesuffix("_fused")  # both compute the same
    if not isinstance(stream, SequenceStream):
        return described
    if not isinstance(stream.sequences, Blocks):
        described["max_seq_length"] = args.max_seq_length  # the hash of blocks includes their length
    return described | {
        "sequences": _identify(stream),
        "held_out": _identify(held_out),
        "seed": stream.seed,
        "sequences_per_step": args.sequences_per_step,
        "mask_probability": args.mask_probability,
        "masking": args.masking,
        "document_attention": args.document_attention,
        "keep_probability": args.keep_probability,
    }


def _identify(stream: Any) -> str | int | None:
    sequences = getattr(stream, "sequences", stream)
    if isinstance(sequences, Blocks):
        return sequences.header.sha256
    return len(sequences) if isinstance(sequences, Sized) else None


def check_resumable(
    checkpoint: str | os.PathLike[str], max_steps: int, described: dict[str, Any], verify: bool
) -> tuple[dict[str, Any], TrainerState]:
    """Checks that this run can resume from a checkpoint. Returns the description of the run that wrote it, and its
    state. `described` describes this run as in [`writing_checkpoint`]; `verify` is as in [`read_checkpoint`]. Raises
    ValueError for a checkpoint that is damaged, belongs to another stream, model or optimizer, or is beyond the end of
    the run."""
    manifest, state = read_checkpoint(checkpoint, verify)
    before = manifest["run"]
    changed = [
        f"{name} was {before.get(name)}, now {value}" for name, value in described.items() if before.get(name) != value
    ]
    if changed:
        raise ValueError(
            f"{checkpoint} cannot be resumed by another run: {'; '.join(changed)}. Give the text and the options that "
            "the run began with, or start a new run that continues from it."
        )
    if state.global_step > max_steps:
        raise ValueError(f"{checkpoint} is from step {state.global_step:,}, beyond max_steps={max_steps:,}. Raise it.")
    return before, state


def follow_schedule(schedule: Any) -> None:
    """Sets the learning rate of the next step after loading. The rate in the checkpoint follows from the length of the
    run that wrote it, which may have had fewer steps."""
    schedule = getattr(schedule, "scheduler", schedule)  # as `accelerate` prepared it
    if isinstance(schedule, LambdaLR):
        pairs = zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
        rates = [rate * factor(schedule.last_epoch) for rate, factor in pairs]
        schedule._last_lr = rates
        for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


# ---- Writing ----


@contextmanager
def writing_checkpoint(
    output_dir: str | os.PathLike[str],
    accelerator: Accelerator,
    keep: int | None,  # the number of checkpoints to keep, this one included, the best one not; None keeps all
    state: TrainerState,  # read when the block ends
    described: dict[str, Any],  # by `describe_run`
) -> Iterator[Path]:
    """Yields a path, the same in every process, to write the files of a checkpoint into. The path becomes
    `output_dir/checkpoint-<step>` when all processes have left the block; then old checkpoints are removed. Raises
    OSError if anything could not be written; earlier checkpoints stay as they are."""
    target = Path(output_dir) / f"{CHECKPOINT_PREFIX}{state.global_step}"
    is_main = accelerator.is_main_process
    with writing(target, MANIFEST_FILE) if is_main else nullcontext() as partial:
        shared = [str(partial)]
        broadcast_object_list(shared)
        checkpoint = Path(shared[0])
        yield checkpoint
        accelerator.wait_for_everyone()
        if is_main:
            state.save_to_json(str(checkpoint / STATE_FILE))
            paths = [path for path in sorted(checkpoint.rglob("*")) if path.is_file()]
            manifest = {
                "run": described,
                "files": {str(path.relative_to(checkpoint)): hash_files([path]) for path in paths},
            }
            (checkpoint / MANIFEST_FILE).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    if is_main and keep:
        _remove_old_checkpoints(output_dir, keep, state)
    accelerator.wait_for_everyone()


def _remove_old_checkpoints(output_dir: str | os.PathLike[str], keep: int, state: TrainerState) -> None:
    best = Path(state.best_model_checkpoint or "").name
    ours = [path for path in list_checkpoints(output_dir) if (path / MANIFEST_FILE).exists() and path.name != best]
    # Later ones are removed first: they were damaged, so that this run resumed from an earlier one.
    ours.sort(key=lambda path: checkpoint_step(path) <= state.global_step)
    for path in ours[:-keep]:
        remove_directory(path)


# ---- Exports at fractions of a run ----


def fraction_steps(fractions: list[float] | None, max_steps: int) -> dict[int, float]:
    """Returns the steps after which a run exports its models, in order, with the fraction of each. If several
    fractions come to the same step, the largest one counts."""
    # Without the rounding, 0.07 of 100 steps would be 7.000000000000001, and end up at 8.
    return {max(1, math.ceil(round(fraction * max_steps, 6))): fraction for fraction in sorted(fractions or ())}


def fraction_directory(output_dir: str, fraction: float) -> Path:
    """Returns the directory of the export at a fraction of a run, such as `fractions/6.25`. It holds `generator/`,
    `discriminator/` and `fraction.json`."""
    return Path(output_dir) / FRACTIONS_DIRECTORY / f"{100 * fraction:.10g}"


def read_fractions(args: RTDTrainingArguments, max_steps: int, last_step: int) -> list[FractionRecord]:
    """Returns the records of a run's exports up to a step, in order. Exports of a run of another length are left
    out."""
    records = []
    for step, fraction in fraction_steps(args.checkpoint_fractions, max_steps).items():
        path = fraction_directory(str(args.output_dir), fraction)
        if step <= last_step and path.exists():
            record = FractionRecord.load(path)
            if record.step == step:
                records.append(record)
    return records


# ---- Sharded training (FSDP2) ----


def keep_tied_tensors_together(pair: ElectraForRTDPretraining, accelerator: Accelerator) -> None:
    """Lets FSDP2 shard tied tensors. Call it before `accelerator.prepare`, which would shard the input and the output
    embeddings in two groups; torch refuses a tensor that is in both. Raises ValueError for shared layers, and for
    FSDP1, whose flat parameters would get no weight decay and no checkpoint."""
    if accelerator.distributed_type == DistributedType.FSDP:
        if not accelerator.is_fsdp2:
            raise ValueError("FSDP1 is not supported. Use FSDP2: examples/accelerate_configs/fsdp2.yaml.")
        if pair.config.sharing == "all":
            raise ValueError(
                "sharing='all' makes each layer part of two networks, and torch shards a layer once. "
                "Train a copy on each GPU (examples/accelerate_configs/multi_gpu.yaml)."
            )
        pair.get_input_embeddings = pair.get_output_embeddings = lambda: None  # type: ignore[assignment]


def gather_pair(
    pair: ElectraForRTDPretraining, prepared: nn.Module, accelerator: Accelerator
) -> ElectraForRTDPretraining:
    """Returns the model with all of its tensors: `pair` itself or, if training shards it, a copy on the main process
    and `pair` on the others. Draws no random number. Every process must call it. `prepared` is the model that
    `accelerator` prepared."""
    if accelerator.distributed_type != DistributedType.FSDP:
        return pair
    tensors = accelerator.get_state_dict(prepared)
    if not accelerator.is_main_process:
        return pair
    with torch.random.fork_rng(devices=[]):  # the copy is initialized before it is filled
        whole = ElectraForRTDPretraining(copy.deepcopy(pair.config))  # a new model changes its configuration
    whole.load_state_dict(tensors)
    return whole
