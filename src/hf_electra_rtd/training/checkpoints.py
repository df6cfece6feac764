"""Checkpoints: whole or not there, whichever loop writes them; and the networks exported along a run.

Everything is written by `files.writing`, which forces it to disk before it gets its name, and removed by
`files.remove_directory`. So a process that is killed at any moment leaves whole checkpoints only.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import random
from collections.abc import Iterator, Sized
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DistributedType
from accelerate.utils import broadcast_object_list
from accelerate.utils.other import load
from safetensors.torch import load_file
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import SchedulerType
from transformers.training_args import OptimizerNames

from hf_electra_rtd.data.blocks import Blocks, SequenceStream
from hf_electra_rtd.data.tokenization import save_tokenizer
from hf_electra_rtd.files import check_output, hash_files, reading, remove_directory, writing
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.ops import products
from hf_electra_rtd.publishing.pictures import CURVES_FILE, plot_curves
from hf_electra_rtd.records import FractionRecord, PretrainingRecord
from hf_electra_rtd.training.arguments import RTDTrainingArguments, fraction_steps


logger = logging.getLogger(__name__)

CHECKPOINT_PREFIX = "checkpoint-"
FRACTIONS_DIRECTORY = "fractions"
MANIFEST_FILE = "checkpoint.json"
STATE_FILE = "trainer_state.json"
OUTPUTS = ".outputs"  # in the directory of a run, while its outputs are written or those of another are replaced
# What a run replaces at its end, directories with a file by which we know our own.
_REPLACED = dict.fromkeys(["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"])
_REPLACED |= {CURVES_FILE: None, FRACTIONS_DIRECTORY: "."}
_REPLACED |= dict.fromkeys(("generator", "discriminator", "detector"), "config.json")
_STATES = ("optimizer.", "scheduler.", "custom_checkpoint_0.", "rng_state", "random_states")  # files of either loop
# What is in the file of random numbers: of the Trainer, and of accelerate.
_RANDOM = {".pth": ("python", "numpy", "cpu"), ".pkl": ("random_state", "numpy_random_seed", "torch_manual_seed")}
# What a resumed run must have in common with its checkpoint, of the model's configuration and of the arguments.
_OF_MODEL = (
    *("sharing", "objective", "generator", "generator_weight", "discriminator_weight", "temperature"),
    *("generator_objective", "confusions", "freeze_generator"),
    *("disallow_correct", "sampling_dropout", "temperature_schedule", "temperature_start", "temperature_decay"),
)
_OF_OPTIMIZER = (
    *("learning_rate", "generator_learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("bias_correction", "mixed_precision", "lr_scheduler_type", "warmup_steps", "max_grad_norm", "clip_separately"),
    *("exact_loss_normalization", "lr_scheduler_kwargs", "optim_args"),
)
SAME_FLAGS = "Give the flags that the run began with (--size, --model_config, --sharing, --tokenizer)."


# ---- Reading ----


def list_checkpoints(output_dir: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints of a run, by step."""
    found = (path for path in Path(output_dir).glob(f"{CHECKPOINT_PREFIX}*") if path.is_dir())
    return sorted((path for path in found if path.name.rpartition("-")[2].isdigit()), key=checkpoint_step)


def checkpoint_step(path: Path) -> int:
    """The optimizer steps before a checkpoint, from its name."""
    return int(path.name.rpartition("-")[2])


def latest_checkpoint(output_dir: str | os.PathLike[str]) -> Path | None:
    """The last whole checkpoint, or None. Warns of later ones that are damaged."""
    for path in reversed(list_checkpoints(output_dir)):
        try:
            read_checkpoint(path)
            return path
        except ValueError as error:
            logger.warning(f"{error} It is ignored.")
    return None


def holds_run(output_dir: str | os.PathLike[str]) -> bool:
    """Whether a run of ours, finished or not, lies in a directory. Raises ValueError if something is there that a run
    would replace, and that none of ours has left."""
    directory, found = Path(output_dir), list_checkpoints(output_dir)
    if has_record := os.path.lexists(directory / PretrainingRecord.FILE):
        PretrainingRecord.load(directory)
    exports = any(directory.glob(f"{FRACTIONS_DIRECTORY}/*/{FractionRecord.FILE}"))
    is_run = has_record or exports or any(map(has_manifest, found)) or (directory / OUTPUTS).exists()
    for name, known_by in _REPLACED.items():
        check_output(directory / name, replaces=known_by)
    for path in [] if is_run else [*found, *(directory / name for name in _REPLACED)]:
        if os.path.lexists(path):
            remedy = "Move it away, or choose another --output_dir."
            raise ValueError(f"{path} is there, and no run of ours has left it. {remedy}")
    return is_run


def has_manifest(checkpoint: Path) -> bool:
    """Whether a checkpoint was ours when it was written; half a copy of one is not."""
    return (checkpoint / MANIFEST_FILE).exists()


def check_sources(output_dir: str | os.PathLike[str], sources: dict[str, str]) -> None:
    """Raises ValueError for a model, by its flag, that lies where a run in `output_dir` writes."""
    for flag, source in sources.items():
        place, directory = Path(source).resolve(), Path(output_dir).resolve()
        first = place.relative_to(directory).parts[:1] if place.is_relative_to(directory) else ("elsewhere",)
        if place.exists() and (not first or first[0] in _REPLACED or first[0].startswith(CHECKPOINT_PREFIX)):
            raise ValueError(f"--{flag} {source} lies where this run writes. Choose another --output_dir.")


def read_checkpoint(checkpoint: str | os.PathLike[str]) -> tuple[dict[str, Any], TrainerState]:
    """The manifest of a checkpoint (`loop`, `run`, `files`, and `products`, the library that multiplied), and the
    state of the loop. Raises ValueError if a file is missing or not as it was written."""
    path = Path(checkpoint)
    with reading(path, "It is not a whole checkpoint."):
        manifest = json.loads((path / MANIFEST_FILE).read_text(encoding="utf-8"))
        files = {STATE_FILE: "", **manifest["files"]}
        whole = {name: (path / name).is_file() and hash_files([path / name]) == known for name, known in files.items()}
        if not all(whole.values()):
            raise ValueError(f"{', '.join(name for name in whole if not whole[name])} missing or altered")
        found = {"run": dict(manifest["run"]), **{name: manifest[name] for name in ("loop", "files")}}
        found["products"] = manifest.get("products")
        return found, TrainerState.load_from_json(str(path / STATE_FILE))


def describe_run(
    model: ElectraForRTDPretraining, stream: Any, held_out: Any, args: RTDTrainingArguments
) -> dict[str, Any]:
    """What a resumed run must have in common with its checkpoint: what the networks do, what the optimizer would take
    from the checkpoint whatever the flags say, and what decides the sequences, masks and samples of a step, and what
    its metrics are of."""
    described = {name: getattr(model.config, name) for name in _OF_MODEL}
    if (confusions := model.config.confusions) is not None:
        described["confusions"] = {name: confusions[name] for name in ("sha256", "share")}  # a file may be renamed
    described |= {name: getattr(args, name) for name in _OF_OPTIMIZER}
    described["vocab_size"] = model.config.discriminator_config.vocab_size
    described["lr_scheduler_type"] = SchedulerType(args.lr_scheduler_type).value
    described["optim"] = OptimizerNames(args.optim).value.removesuffix("_fused")  # which is the same
    if not isinstance(stream, SequenceStream):
        return described
    return described | {
        "sequences": _identify(stream),
        "held_out": _identify(held_out),
        "shuffle_window": stream.shuffle_window,
        "seed": stream.seed,
        "sequences_per_step": args.sequences_per_step,
        "mask_probability": args.mask_probability,
        "masking": args.masking,
        "document_attention": args.document_attention,
        "keep_probability": args.keep_probability,
        # Of the run along which the temperature falls.
        "num_sequences": None if model.config.temperature_schedule == "constant" else len(stream),
    }


def _identify(stream: Any) -> str | int | None:
    sequences = getattr(stream, "sequences", stream)
    if isinstance(sequences, Blocks):
        return sequences.header.sha256
    return len(sequences) if isinstance(sequences, Sized) else None


def check_resumable(
    checkpoint: str | os.PathLike[str], max_steps: int, loop: str, described: dict[str, Any]
) -> TrainerState:
    """The state of a checkpoint that a run can resume from, which then multiplies by the same library as before, to
    round alike. `loop` and `described` are as in [`writing_checkpoint`]. Raises ValueError for one that is not whole,
    has no optimizer, is of another loop, stream, model or optimizer, or is beyond the end of the run."""
    manifest, state = read_checkpoint(checkpoint)
    before, step = manifest["run"], state.global_step
    changed = [f"{key} was {before[key]}, now {now}" for key, now in described.items() if before.get(key, now) != now]
    begun = "Give the text and the flags that the run began with, or start a new run by --continue_from it"
    for kind, value in ((described.get("mixed_precision"), False), (before.get("mixed_precision"), True)):
        if kind not in ("no", None) and any(text.startswith("mixed_precision ") for text in changed):
            begun = f"Add --{kind} {value}. {begun}"
    for is_refused, why in (
        (manifest["loop"] != loop, f"was written by {manifest['loop']}, so {loop} cannot resume from it"),
        ("pytorch_model.bin" in os.listdir(checkpoint), "holds a pickle, so it is no checkpoint of ours"),
        (not any(name.startswith("optimizer") for name in manifest["files"]), "has no optimizer (--save_only_model)"),
        (step > max_steps, f"is of step {step:,}, but --max_steps is {max_steps:,}. Raise --max_steps"),
        (changed, f"cannot be resumed by another run: {'; '.join(changed)}. {begun}"),
    ):
        if is_refused:
            raise ValueError(f"{checkpoint} {why}.")
    products.use_library(manifest["products"])
    return state


def check_states(checkpoint: str | os.PathLike[str], optimizer: Any, schedule: Any) -> None:
    """Raises ValueError, with the file's name, for weights, optimizer, schedule or random numbers that a run could not
    have left at the checkpoint's step. What FSDP shards has other files, which it checks."""
    path = Path(checkpoint)
    step = TrainerState.load_from_json(str(path / STATE_FILE)).global_step
    steps = range(step + 1) if any(path.glob("scaler.*")) else [step]  # in float16, steps are skipped
    for file in path.iterdir():
        is_weights = file.suffix == ".safetensors"
        if file.is_dir() or not (is_weights or file.name.startswith(_STATES)):
            continue
        with reading(file, "It is no checkpoint of ours."):
            try:
                state: Any = load_file(file) if is_weights else load(file, map_location="cpu")
            except Exception:  # torch would advise to run what the file holds
                raise ValueError(f"{file} is no checkpoint of ours.") from None
            if is_weights:
                if not all(tensor.is_floating_point() and tensor.isfinite().all() for tensor in state.values()):
                    raise ValueError("it holds numbers that are not finite, or whole")
            elif file.stem == "optimizer":
                _check_optimizer(state, optimizer, steps)
            elif file.stem in ("scheduler", "custom_checkpoint_0"):
                if isinstance(schedule, LambdaLR) and state["last_epoch"] not in steps:
                    raise ValueError(f"it is of step {state['last_epoch']}")
            else:  # random numbers: accelerate would leave out those that it cannot read
                python, numpy, of_torch = (state[name] for name in _RANDOM[file.suffix])
                random.Random().setstate(python)
                np.random.RandomState().set_state(numpy)
                torch.Generator().set_state(of_torch)


def _check_optimizer(state: dict[str, Any], optimizer: Any, steps: range | list[int]) -> None:
    groups, saved = optimizer.param_groups, state["param_groups"]
    own = isinstance(getattr(optimizer, "optimizer", optimizer), torch.optim.AdamW)
    if not own or isinstance(groups[0]["params"][0], DTensor):
        return
    for one, group in zip(saved, groups, strict=True):
        expected = steps if one.get("bias_correction", True) else [math.inf]  # see `ElectraAdamW`
        for index, parameter in zip(one["params"], group["params"], strict=True):
            kept = state["state"].get(index, {})
            for name in ("exp_avg", "exp_avg_sq"):
                is_like = name in kept and (kept[name].shape, kept[name].dtype) == (parameter.shape, parameter.dtype)
                if not is_like or not kept[name].isfinite().all():
                    raise ValueError(f"{name} of parameter {index} is missing, not finite or of another shape or type")
            if float(kept["step"]) not in expected:
                raise ValueError(f"parameter {index} is of step {kept['step']:g}")


def load_state(checkpoint: str, accelerator: Accelerator, optimizer: Any, schedule: Any) -> None:
    """`accelerator.load_state`, for checkpoints of ours only, and the learning rate of the next step by this run's
    schedule."""
    check_states(checkpoint, optimizer, schedule)
    with reading(checkpoint, SAME_FLAGS):
        accelerator.load_state(checkpoint)
    follow_schedule(schedule)


def follow_schedule(schedule: Any) -> None:
    """Sets the learning rate of the next step after loading: that in the checkpoint is by the length of the run that
    left it, which may have had fewer steps."""
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
    keep: int | None,  # this checkpoint and the last ones before, beside the best one; None keeps all
    state: TrainerState,  # read when the block ends
    loop: str,  # its name: each loop reads its own checkpoints only
    described: dict[str, Any],  # by `describe_run`
) -> Iterator[Path]:
    """Yields a path, the same in every process, to write the files of a checkpoint into. It becomes
    `output_dir/checkpoint-<step>` when all processes have left the block; then old checkpoints are removed. Raises
    OSError if anything could not be written; earlier checkpoints stay as they are."""
    target, is_main = Path(output_dir) / f"{CHECKPOINT_PREFIX}{state.global_step}", accelerator.is_main_process
    with writing(target, MANIFEST_FILE) if is_main else nullcontext() as partial:
        shared = [str(partial)]
        broadcast_object_list(shared)
        checkpoint = Path(shared[0])
        yield checkpoint
        accelerator.wait_for_everyone()
        if is_main:
            state.save_to_json(str(checkpoint / STATE_FILE))
            paths = [path for path in sorted(checkpoint.rglob("*")) if path.is_file()]
            files = {str(path.relative_to(checkpoint)): hash_files([path]) for path in paths}
            library = products.library() if accelerator.device.type == "cpu" else None
            manifest = {"loop": loop, "run": described, "files": files, "products": library}
            (checkpoint / MANIFEST_FILE).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    if is_main and keep:
        # Later ones go first: they were damaged, so that this run fell back to one before them.
        best = Path(state.best_model_checkpoint or "").name
        there = [path for path in list_checkpoints(output_dir) if path.name != best and has_manifest(path)]
        there.sort(key=lambda path: checkpoint_step(path) <= state.global_step)
        for path in there[:-keep]:
            remove_directory(path)
    accelerator.wait_for_everyone()


def fraction_directory(output_dir: str, fraction: float) -> Path:
    """The export at a fraction of a run, with `generator/`, `discriminator/` and `fraction.json`: `fractions/6.25`."""
    return Path(output_dir) / FRACTIONS_DIRECTORY / f"{100 * fraction:.10g}"


def read_fractions(args: RTDTrainingArguments, max_steps: int, last_step: int) -> list[FractionRecord]:
    """The exports of a run up to a step, in order; those of a run of another length do not count."""
    found = []
    for step, fraction in fraction_steps(args.checkpoint_fractions, max_steps).items():
        path = fraction_directory(str(args.output_dir), fraction)
        if step <= last_step and path.exists() and (record := FractionRecord.load(path)).step == step:
            found.append(record)
    return found


def save_outputs(
    model: ElectraForRTDPretraining, tokenizer: Any, record: PretrainingRecord, output_dir: str | os.PathLike[str]
) -> None:
    """Writes what a run leaves, the record last, so that a directory with a record is complete. For one process.
    Raises OSError if anything could not be written; models are as before unless all of them could be."""
    directory = Path(output_dir)
    outputs = directory / OUTPUTS
    with writing(outputs, ".") as partial:
        model.save_pretrained(partial)
        model.save_towers(partial, tokenizer)
        if tokenizer is not None:
            save_tokenizer(tokenizer, partial)
        plot_curves(record, partial / CURVES_FILE)
    for path in outputs.iterdir():
        check_output(directory / path.name, replaces="config.json" if path.is_dir() else None)
    for name in (PretrainingRecord.FILE, "vocab.txt"):  # they are not those of the models that come now
        (directory / name).unlink(missing_ok=True)
    for path in outputs.iterdir():
        target = directory / path.name
        if target.is_dir():
            remove_directory(target)
        path.replace(target)
    record.save(directory)
    outputs.rmdir()  # until now it shows whose files these are


# ---- Sharded training (FSDP2) ----


def keep_tied_tensors_together(pair: ElectraForRTDPretraining, accelerator: Accelerator) -> None:
    """Lets FSDP2 shard tied tensors; call it before `accelerator.prepare`, which would shard the input and the output
    embeddings in groups of their own, where torch refuses a tensor in two. Raises ValueError for shared layers."""
    if accelerator.distributed_type == DistributedType.FSDP:
        if pair.config.sharing == "all":
            what = "sharing='all' makes each layer part of two networks, and torch shards a layer once."
            raise ValueError(f"{what} Train a copy on each GPU (examples/accelerate_configs/multi_gpu.yaml).")
        pair.get_input_embeddings = pair.get_output_embeddings = lambda: None  # type: ignore[assignment]


def gather_pair(
    pair: ElectraForRTDPretraining, prepared: nn.Module, accelerator: Accelerator
) -> ElectraForRTDPretraining:
    """The model with all of its tensors: `pair` itself, or a copy on the main process where training shards it. Draws
    no random number. Every process must call it; `prepared` is what `accelerator` made of the model."""
    if accelerator.distributed_type != DistributedType.FSDP:
        return pair
    tensors = accelerator.get_state_dict(prepared)
    if not accelerator.is_main_process:
        return pair
    with torch.random.fork_rng(devices=[]):  # the copy is initialized before it is filled
        whole = ElectraForRTDPretraining(copy.deepcopy(pair.config))  # a new model changes its configuration
    whole.load_state_dict(tensors)
    return whole
