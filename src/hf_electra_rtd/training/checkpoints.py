"""Checkpoints of a run: whole or not there, whichever loop writes them.

A checkpoint is written into a hidden directory beside the others, forced onto the disk, and only then given its name;
one that is removed loses its name first. So a process that is killed at any moment leaves whole checkpoints only.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers.trainer_callback import TrainerState

from hf_electra_rtd.sharing import refuse_other_look_up
from hf_electra_rtd.towers import CONFIG_FILE, listed, pickle_remedy, read_config


logger = logging.getLogger(__name__)

CHECKPOINT_PREFIX = "checkpoint-"
UNFINISHED_DIRECTORY = ".unfinished"
REMOVED_DIRECTORY = ".removed"
MANIFEST_FILE = "checkpoint.json"
STATE_FILE = "trainer_state.json"
WEIGHTS_FILE = "model.safetensors"


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
    """The state of the loop that wrote a checkpoint, after a look at whether the checkpoint is whole: every file that
    was written is there, in its full length.

    Raises:
        ValueError: for a checkpoint that is not whole; names what is wrong with it.
    """
    path = Path(checkpoint)
    written = _read_manifest(path)["files"]
    wrong = [
        name for name, size in written.items() if not (path / name).is_file() or (path / name).stat().st_size != size
    ]
    if wrong:
        raise ValueError(f"{path} is not whole: {listed(wrong)} missing or cut off.")
    try:
        return TrainerState.load_from_json(str(path / STATE_FILE))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is not whole: {STATE_FILE} is missing or damaged ({error}).") from None


def check_resumable(checkpoint: str | os.PathLike[str], loop: str, max_steps: int) -> TrainerState:
    """The state of a checkpoint that a run can go on from.

    Args:
        checkpoint: its directory.
        loop: that goes on; a checkpoint belongs to the loop that wrote it.
        max_steps: of the run.

    Raises:
        ValueError: for a checkpoint that is not whole, of another loop, without optimiser, or beyond the run's end.
    """
    state, manifest = read_state(checkpoint), _read_manifest(Path(checkpoint))
    if manifest["loop"] != loop:
        raise ValueError(f"{checkpoint} was written by {manifest['loop']}: {loop} cannot go on with it.")
    for part in ("optimizer", "scheduler"):
        if not any(name.startswith(part) for name in manifest["files"]):
            raise ValueError(f"{checkpoint} holds no {part}, so a run cannot go on from it (--save_only_model).")
    if state.global_step > max_steps:
        raise ValueError(
            f"{checkpoint} is of step {state.global_step:,}, beyond the end of the run: give at least that many "
            f"--max_steps, not {max_steps:,}."
        )
    return state


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((path / MANIFEST_FILE).read_text(encoding="utf-8"))
        if isinstance(manifest["files"], dict) and isinstance(manifest["loop"], str) and "stream" in manifest:
            return dict(manifest)
        problem = "is not one"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"is missing or damaged ({error})"
    if not (path / WEIGHTS_FILE).exists() and list(path.glob("pytorch_model*.bin")):
        raise ValueError(f"{path} holds its weights as a pickle. {pickle_remedy(path)}")
    raise ValueError(f"{path} is not whole: its list of files, {MANIFEST_FILE}, {problem}.")


def check_tensors(checkpoint: str | os.PathLike[str], model: Any) -> None:
    """Refuses a checkpoint whose tensors are not the model's, before any is loaded.

    Raises:
        ValueError: names tensors that are missing, foreign or of another shape.
    """
    file = Path(checkpoint) / WEIGHTS_FILE
    if (Path(checkpoint) / CONFIG_FILE).exists():
        wanted = model.config.sharing
        refuse_other_look_up(read_config(checkpoint).get("sharing", wanted), wanted)
    if not file.exists():
        return  # sharded: its loader compares
    found = _read_shapes(file)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    # A tied tensor is stored once, under any of its names.
    aliases: dict[int, set[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        aliases.setdefault(id(tensor), set()).add(name)
    missing = sorted(min(names) for names in aliases.values() if not names & found.keys())
    foreign = sorted(found.keys() - expected.keys())
    shapes = sorted(
        f"{name} {found[name]} instead of {expected[name]}"
        for name in found.keys() & expected.keys()
        if found[name] != expected[name]
    )
    wrong = [
        f"{kind}: {listed(names)}"
        for kind, names in (("missing", missing), ("foreign", foreign), ("of another shape", shapes))
        if names
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
    complete: Callable[[Path], None] = lambda staging: None,
    subdirectory: str = "",
) -> Iterator[Path]:
    """A hidden directory to write into: `with unfinished(run) as staging:`. What lies in it afterwards is forced onto
    the disk and moved into `output_dir`, whole, in the order of its names; what stood there under the same name is
    replaced. If writing fails, nothing is moved.

    Args:
        output_dir: of the run.
        writes: whether this process prepares and moves (one process a file system).
        wait_for_everyone: a barrier for the processes of the run.
        complete: called with the hidden directory when every process has written, before anything is moved.
        subdirectory: of the run's directory, where things belong that shall not lie there itself.

    Raises:
        CheckpointError: if anything could not be written.
    """
    directory = Path(output_dir)
    staging, target = directory / UNFINISHED_DIRECTORY, directory / subdirectory
    try:
        if writes:
            remove_unfinished(directory)
            staging.mkdir(parents=True)
        wait_for_everyone()
        yield staging
        wait_for_everyone()
        if writes:
            complete(staging)
            for path in sorted(staging.rglob("*")):
                _force_to_disk(path)
            target.mkdir(exist_ok=True)
            for path in sorted(staging.iterdir()):
                _move(path, target / path.name, staging)
            _force_to_disk(target)
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


@contextmanager
def writing_checkpoint(
    output_dir: str | os.PathLike[str],
    loop: str,
    state: TrainerState,
    stream: dict[str, Any] | None,
    writes: bool = True,
    wait_for_everyone: Callable[[], None] = lambda: None,
) -> Iterator[Path]:
    """A directory to write the checkpoint of a step into; it becomes `output_dir/checkpoint-<step>` when it is whole.

    Args:
        output_dir: of the run.
        loop: that writes, by name.
        state: of the loop.
        stream: the description of its rows, or None.
        writes, wait_for_everyone: as for `unfinished`.

    Raises:
        CheckpointError: if anything could not be written.
    """
    name = f"{CHECKPOINT_PREFIX}{state.global_step}"

    def complete(staging: Path) -> None:
        checkpoint = staging / name
        state.save_to_json(str(checkpoint / STATE_FILE))
        files = {
            str(path.relative_to(checkpoint)): path.stat().st_size for path in checkpoint.rglob("*") if path.is_file()
        }
        manifest = {"loop": loop, "stream": stream, "files": dict(sorted(files.items()))}
        (checkpoint / MANIFEST_FILE).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")

    with unfinished(output_dir, writes, wait_for_everyone, complete) as staging:
        yield staging / name


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
    """Removes what a process that was killed had begun to write, or to remove."""
    for name in (UNFINISHED_DIRECTORY, REMOVED_DIRECTORY):
        if (Path(output_dir) / name).exists():
            shutil.rmtree(Path(output_dir) / name)


def remove_directory(path: Path) -> None:
    """Removes a checkpoint or another part of a run, its name first, so that half of it is never taken for whole."""
    removed = path.parent / REMOVED_DIRECTORY
    removed.mkdir(exist_ok=True)
    path.rename(removed / path.name)
    shutil.rmtree(removed)


def remove_old_checkpoints(
    output_dir: str | os.PathLike[str], keep: int | None, newest: int, best: str | None = None
) -> None:
    """Leaves `keep` whole checkpoints: that of step `newest`, the best where it is known, and the last before. What is
    not whole does not count, and stays. None or 0 keeps all."""
    if keep is None or keep <= 0:
        return
    whole = [path for path in list_checkpoints(output_dir) if _is_whole(path)]
    protected = {f"{CHECKPOINT_PREFIX}{newest}"} | ({Path(best).name} if best is not None else set())
    others = [path for path in whole if path.name not in protected]
    kept = max(0, keep - sum(path.name in protected for path in whole))
    for path in others[: len(others) - kept]:
        remove_directory(path)


def _is_whole(path: Path) -> bool:
    try:
        read_state(path)
    except ValueError:
        return False
    return True


def refuse_another_stream(description: dict[str, Any] | None, checkpoint: str | os.PathLike[str]) -> None:
    """A resumed run must go on with the stream that it began.

    Args:
        description: of the stream now (`hf_electra_rtd.training.stream.describe_stream`), or None.
        checkpoint: that the run goes on from.

    Raises:
        ValueError: says what differs.
    """
    before = _read_manifest(Path(checkpoint))["stream"]
    if description is None or before is None:
        return
    changed = [f"{key} was {before.get(key)}, now {now}" for key, now in description.items() if before.get(key) != now]
    if changed:
        raise ValueError(
            f"{checkpoint} cannot be resumed with another stream of rows: {'; '.join(changed)}. Give the text and "
            "the flags that it began with (rows a step count over all processes and accumulated batches), or start "
            "anew (--generator and --discriminator take its towers)."
        )
