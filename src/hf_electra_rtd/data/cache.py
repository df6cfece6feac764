"""Copies of files from elsewhere, in a directory of bounded size.

The caches of fsspec (`filecache`, `simplecache`) have no bound and compare no hashes.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
from filelock import FileLock, Timeout
from huggingface_hub.constants import HF_HOME
from rich.filesize import decimal as format_bytes

from hf_electra_rtd.files import naming, reading


logger = logging.getLogger(__name__)

CACHE_SIZE = 32 * 10**9
CACHE_DIRECTORY = os.path.join(HF_HOME, "rtd-shards")
PAUSE = 1.0  # seconds between looks at what is missing
_PATIENCE = 3600.0  # seconds to wait for room, or for another process that copies
_NETWORK = "Check the address, the network, your rights there, and the room in cache_dir."
# The name of a copy: the hash, and the size of one that is not finished. Other files are not of the cache.
_OURS = re.compile(r"([0-9a-f]{64})(?:\.blocks|-([0-9]+)\.partial)")


class Cache:
    """Copies of files in a directory of bounded size, named by their hashes. Any number of processes may share it: one
    copies a file while the others wait. A file that another process still reads may make room, and leaves the disk
    when that process closes it. A copy that is not finished has its whole size in its name, and counts with it."""

    def __init__(self, url: str, directory: str, size: int) -> None:
        self.url, self.directory, self.size, self._has_warned = url, Path(directory), size, False
        with reading(url, "Check the address, and install the package of its protocol."):
            self._place()

    def _place(self) -> tuple[Any, str]:
        """The file system, of which each thread and process has its own, and the path there."""
        system, root = fsspec.core.url_to_fs(self.url)
        return system, root.rstrip("/")

    def read(self, name: str) -> bytes:
        system, root = self._place()
        return system.cat_file(f"{root}/{name}")

    def path(self, sha256: str) -> Path:
        return self.directory / f"{sha256}.blocks"

    def sizes(self) -> dict[str, int]:
        """Bytes of the files there by their names."""
        with reading(self.url, _NETWORK):
            system, root = self._place()
            listing = system.find(root, detail=True).items()
            return {path[len(root) + 1 :]: found["size"] for path, found in listing if found["size"] is not None}

    def check_room(self, needed: int, number: int) -> None:
        """Raises ValueError if `number` shards of so many bytes together do not fit at once."""
        with naming(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        free = self._free(self._files())
        if needed > min(self.size, free):
            what = f"{number} shard(s) of {self.url} are read at once and need {format_bytes(needed)}"
            there = f"cache_size is {format_bytes(self.size)}, {format_bytes(free)} are free in {self.directory}"
            remedy = "Change cache_size or cache_dir, or lower shuffle_window (without it, all are read at once)"
            raise ValueError(f"{what}: {there}. {remedy}.")

    def fetch(
        self,
        name: str,
        size: int,
        sha256: str,
        accept: Callable[[str], Any],
        keep: Collection[str] = (),
        idle: float = 0.0,
        waits: bool = True,
    ) -> Path:
        """The path of a file, which is copied if it is not there, once `accept(path)` raised nothing. Files with a
        hash of `keep`, and those that were read in the last `idle` seconds, make no room for it. If it does not wait
        (for room, or for another process that copies it), the path may not exist."""
        path, until = self.path(sha256), time.monotonic() + _PATIENCE
        if path.exists():
            return path
        with naming(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        partial, where = self.directory / f"{sha256}-{size}.partial", f"{self.url.rstrip('/')}/{name}"
        try:
            with self._lock(sha256, _PATIENCE if waits else 0):
                if path.exists():
                    return path
                while not self._make_room(partial, size, keep, idle):
                    if not waits:
                        return path
                    what = f"{self.directory} has no room for {where}: others copy, or fill the disk."
                    remedy = "Raise cache_size, free some of the disk, or give each run its own cache_dir."
                    if time.monotonic() > until:
                        raise ValueError(f"{what} {remedy}")
                    if not self._has_warned:
                        logger.warning(f"{what} Waiting up to {_PATIENCE / 60:.0f} minutes. {remedy}")
                        self._has_warned = True
                    time.sleep(PAUSE / 10)
                try:
                    with reading(where, _NETWORK):
                        system, root = self._place()
                        system.get_file(f"{root}/{name}", str(partial))
                    with open(partial, "rb") as file:
                        os.fsync(file.fileno())
                    accept(str(partial))
                    with self._lock("room", _PATIENCE):  # so that nobody counts files meanwhile
                        os.replace(partial, path)
                finally:
                    partial.unlink(missing_ok=True)
        except Timeout:
            if waits:
                raise ValueError(f"{path} was not copied in {_PATIENCE:.0f} seconds by another process.") from None
        return path

    def _lock(self, name: str, timeout: float) -> FileLock:
        return FileLock(self.directory / f"{name}.lock", timeout=timeout)

    def _files(self) -> list[tuple[float, int, int, Path]]:
        """Time of the last use, bytes, bytes that are written by now, and path of each copy."""
        found = []
        for path in self.directory.iterdir():
            with suppress(FileNotFoundError):
                if ours := _OURS.fullmatch(path.name):
                    used, size = path.stat().st_mtime, path.stat().st_size
                    found.append((0.0, int(ours[2]), size, path) if ours[2] else (used, size, size, path))
        return sorted(found)

    def _free(self, files: list[tuple[float, int, int, Path]]) -> int:
        """Bytes of the disk that copies can take, those that are there included."""
        return shutil.disk_usage(self.directory).free + sum(written for _, _, written, _ in files)

    def _make_room(self, partial: Path, needed: int, keep: Collection[str], idle: float) -> bool:
        """Reserves room for a copy, for which the files that were not used for the longest time are removed."""
        with self._lock("room", _PATIENCE):
            partial.unlink(missing_ok=True)  # of a process that was killed
            files = self._files()
            total, room = needed + sum(size for _, size, _, _ in files), min(self.size, self._free(files))
            for used, size, _, path in files:
                may_go = path.stem not in keep and time.time() - used >= idle
                if total > room and may_go and self._remove(path):
                    total -= size
            if total <= room:
                with naming(self.directory):
                    partial.touch()
            return total <= room

    def _remove(self, path: Path) -> bool:
        """Removes a file with its lock, unless it is being copied."""
        lock = self._lock(path.name[:64], 0)
        with suppress(Timeout, OSError), lock:
            path.unlink()
            os.unlink(lock.lock_file)  # who waits for it sees that it was removed, and makes another
            return True
        return False
