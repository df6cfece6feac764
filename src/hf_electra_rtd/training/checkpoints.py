"""Checkpoints of a run: whole or not there, whichever loop writes them.

A checkpoint is written into a hidden directory beside the others, forced onto the disk, and only then given its name;
one that is removed loses its name first. So a process that is killed at any moment leaves whole checkpoints only.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import nn
from transformers.trainer_callback import TrainerState


logger = logging.getLogger(__name__)

CHECKPOINT_PREFIX = "checkpoint-"
UNFINISHED_DIRECTORY = ".unfinished"
STATE_FILE = "trainer_state.json"
WEIGHTS_FILE = "model.safetensors"
_SHOWN = 10  # names in a message


class CheckpointError(OSError):
    """A checkpoint could not be written; those before it are whole."""


# ---- Finding ----


def list_checkpoints(output_dir: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints of a run, by step."""
    found = [path for path in Path(output_dir).glob(f"{CHECKPOINT_PREFIX}*") if path.is_dir()]
    return sorted((path for path in found if path.name.rpartition("-")[2].isdigit()), key=checkpoint_step)


def checkpoint_step(path: Path) -> int:
    """The step that a checkpoint's name gives."""
    return int(path.name.rpartition("-")[2])


def latest_checkpoint(output_dir: str | os.PathLike[str]) -> Path | None:
    """The last checkpoint that is whole, or None. One that is damaged is passed over with a warning."""
    for path in reversed(list_checkpoints(output_dir)):
        try:
            read_state(path)
        except ValueError as error:
            logger.warning(f"{error} It is passed over.")
            continue
        return path
    return None


def read_state(checkpoint: str | os.PathLike[str]) -> TrainerState:
    """The state of the loop that wrote a checkpoint, after a look at whether the checkpoint is whole.

    Raises:
        ValueError: for a checkpoint that is not whole; names what is wrong with it.
    """
    path = Path(checkpoint)
    try:
        state = TrainerState.load_from_json(str(path / STATE_FILE))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is not whole: {STATE_FILE} is missing or damaged ({error}).") from None
    pickles = sorted(file.name for file in path.glob("pytorch_model*.bin"))
    if pickles and not (path / WEIGHTS_FILE).exists():
        raise ValueError(
            f"{path} holds its weights as a pickle ({', '.join(pickles)}), which can run code when it is read. Only "
            f"{WEIGHTS_FILE} is read: load the file with `torch.load(..., weights_only=True)` where you trust it, and "
            "save it with `safetensors.torch.save_model`."
        )
    sharded = any(child.is_dir() for child in path.iterdir())  # fully sharded runs keep a directory of shards
    if not sharded:
        _read_shapes(path / WEIGHTS_FILE)
    return state


def check_tensors(checkpoint: str | os.PathLike[str], model: nn.Module) -> None:
    """Refuses a checkpoint whose tensors are not the model's, before any is loaded.

    Raises:
        ValueError: names tensors that are missing, foreign or of another shape.
    """
    file = Path(checkpoint) / WEIGHTS_FILE
    if not file.exists():
        return  # sharded: its loader compares
    found = _read_shapes(file)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    # A tied tensor is stored once, under any of its names.
    names: dict[int, set[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), set()).add(name)
    missing = sorted(min(aliases) for aliases in names.values() if not aliases & found.keys())
    foreign = sorted(found.keys() - expected.keys())
    shapes = sorted(
        f"{name} {found[name]} instead of {expected[name]}"
        for name in found.keys() & expected.keys()
        if found[name] != expected[name]
    )
    wrong = [
        f"{kind}: {', '.join(listed[:_SHOWN])}{f' and {len(listed) - _SHOWN} more' if len(listed) > _SHOWN else ''}"
        for kind, listed in (("missing", missing), ("foreign", foreign), ("of another shape", shapes))
        if listed
    ]
    if wrong:
        raise ValueError(
            f"{file} does not hold this model. Tensors that are {'; '.join(wrong)}. Give the flags that the run began "
            "with (--size, --model_config, --sharing, --tokenizer), or another checkpoint."
        )


def _read_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(file, framework="pt") as tensors:
            return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file.parent} is not whole: {file.name} is missing or damaged ({error}).") from None


# ---- Writing ----


@contextmanager
def unfinished(
    output_dir: str | os.PathLike[str],
    writes: bool = True,
    wait_for_everyone: Callable[[], None] = lambda: None,
) -> Iterator[Path]:
    """A hidden directory to write into: `with unfinished(run) as staging:`. What lies in it afterwards is forced onto
    the disk and moved into `output_dir`, whole, in the order of its names; what stood there under the same name is
    replaced. If writing fails, nothing is moved.

    Args:
        output_dir: of the run.
        writes: whether this process prepares and moves (one process a file system).
        wait_for_everyone: a barrier for the processes of the run.

    Raises:
        CheckpointError: if anything could not be written.
    """
    directory = Path(output_dir)
    staging = directory / UNFINISHED_DIRECTORY
    try:
        if writes:
            remove_unfinished(directory)
            staging.mkdir(parents=True)
        wait_for_everyone()
        yield staging
        wait_for_everyone()
        if writes:
            for path in sorted(staging.rglob("*")):
                _force_to_disk(path)
            for path in sorted(staging.iterdir()):
                _move(path, directory / path.name, staging)
            _force_to_disk(directory)
            remove_unfinished(directory)
        wait_for_everyone()
    except (OSError, SafetensorError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _is_write_error(error):
            raise
        if writes:
            shutil.rmtree(staging, ignore_errors=True)
        whole = latest_checkpoint(directory)
        raise CheckpointError(
            f"{directory} could not be written to ({error}). Nothing incomplete was kept"
            + (f"; the last checkpoint is {whole}. " if whole else ", and there is no checkpoint yet. ")
            + "Make room, then go on with --resume_from_checkpoint auto."
        ) from error


def _is_write_error(error: RuntimeError) -> bool:
    # torch.save reports a full disk as a RuntimeError of its zip writer.
    return any(sign in str(error) for sign in ("PytorchStreamWriter", "unexpected pos", "No space left", "iostream"))


def _force_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _move(path: Path, target: Path, staging: Path) -> None:
    if target.is_dir():  # a directory cannot be replaced in one step: its old content goes first
        target.rename(staging / f".old-{target.name}")
    path.replace(target)


def remove_unfinished(output_dir: str | os.PathLike[str]) -> None:
    """Removes what a process that was killed had begun to write."""
    staging = Path(output_dir) / UNFINISHED_DIRECTORY
    if staging.exists():
        shutil.rmtree(staging)


def remove_directory(path: Path) -> None:
    """Removes a checkpoint or another part of a run, its name first, so that half of it is never taken for whole."""
    grave = path.parent / UNFINISHED_DIRECTORY / path.name
    grave.parent.mkdir(exist_ok=True)
    path.rename(grave)
    shutil.rmtree(grave.parent)


def remove_old_checkpoints(output_dir: str | os.PathLike[str], keep: int | None, best: str | None = None) -> None:
    """Leaves the last `keep` checkpoints, the best among them where it is known. None or 0 keeps all."""
    if not keep:
        return
    others = [path for path in list_checkpoints(output_dir) if best is None or path.name != Path(best).name]
    kept = max(1, keep - (best is not None))
    for path in others[:-kept]:
        remove_directory(path)
