"""Files that appear whole or not at all: they grow in a scratch directory and are named when they are finished."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


_SCRATCH_SUFFIX = ".partial"
_LOCK_FILE = "lock"


class ScratchDirectory:
    """A directory beside the results for what is not finished yet; as a context manager, it removes itself.

    Its process holds a lock on it, so that `remove_leftovers` can tell what a dead process left from what a live one
    is using.

    Args:
        parent: the directory of the results; made if it is not there.

    Raises:
        ValueError: if it cannot be made.
    """

    def __init__(self, parent: str | os.PathLike[str]) -> None:
        with explaining_failures(parent):
            Path(parent).mkdir(parents=True, exist_ok=True)
            self.path = Path(tempfile.mkdtemp(_SCRATCH_SUFFIX, ".", parent))
            self._lock: IO[bytes] = open(self.path / _LOCK_FILE, "wb")  # noqa: SIM115
            _lock(self._lock, wait=True)

    def __enter__(self) -> ScratchDirectory:
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.close()
        shutil.rmtree(self.path, ignore_errors=True)


def remove_leftovers(directory: str | os.PathLike[str]) -> None:
    """Removes the scratch directories of processes that were killed."""
    for scratch in Path(directory).glob(f".*{_SCRATCH_SUFFIX}"):
        try:
            with open(scratch / _LOCK_FILE, "r+b") as file:
                _lock(file, wait=False)
        except OSError:
            continue  # in use, or being made or removed this moment
        shutil.rmtree(scratch, ignore_errors=True)


def _lock(file: IO[bytes], wait: bool) -> None:
    """Takes the file's lock; it is given back when the file is closed, or its process dies.

    Raises:
        OSError: if another process has it and this one is not to wait.
    """
    if sys.platform == "win32":
        return  # there, the open lock file itself keeps its directory from being removed
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def sync(file: IO[bytes]) -> None:
    """Waits until what was written to a file lies on the disk."""
    file.flush()
    os.fsync(file.fileno())


def publish(partial: Path, path: Path) -> None:
    """Gives a finished (and synced) file its name, for good: the directory is synced too."""
    os.replace(partial, path)
    if sys.platform != "win32":
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextmanager
def explaining_failures(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns what the system says while `path` is written into a ValueError with the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"There is no space left for {os.fspath(path)}: free some, or choose another directory."
        else:
            message = f"{os.fspath(path)} cannot be written ({error.strerror or error}): choose another directory."
        raise ValueError(f"{message} Nothing incomplete was kept.") from error
