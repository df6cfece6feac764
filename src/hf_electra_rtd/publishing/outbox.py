"""What could not be pushed is kept beside the run, whole, until it gets through.

An item is a directory with a manifest and every file. Files are linked, not copied, where the file system can: that
costs no room, and a checkpoint that is rotated away by `save_total_limit` still lies there. A link would follow a file
that is written anew in place, so the manifest holds hashes, and a file that changed is not sent. No token is kept.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_electra_rtd.publishing.hub import Publisher, Pushed
from hf_electra_rtd.publishing.hub_errors import HubError
from hf_electra_rtd.publishing.repositories import Repository, RepositoryFile


logger = logging.getLogger(__name__)

DIRECTORY = ".publish"  # in a run's directory
_MANIFEST_FILE = "manifest.json"
_FILES = "files"
_HIDDEN = "."  # begins what is being written or removed
_VERSION = 1
_ABANDONED = 24 * 3600.0  # seconds; nobody writes one item for a day
_NUMBER = re.compile(r"\d{6}")


@dataclass(frozen=True)
class Kept:
    """An item of the outbox.

    Attributes:
        path: its directory.
        repo_id, message, revision, tag: as in [`Repository`].
        private, force: as for [`Publisher.push`].
        reason: why it was not sent.
        files: a dict each: `path_in_repo`, `size`, `sha256`.
    """

    path: Path
    repo_id: str
    message: str
    revision: str | None
    tag: str | None
    private: bool | None
    force: bool
    reason: str
    files: list[dict[str, Any]]

    def repository(self) -> Repository:
        """What is to be pushed.

        Raises:
            HubError: if a file is gone or is not what it was, by name, or the manifest says what cannot be.
        """
        try:
            return self._repository()
        except (ValueError, KeyError, TypeError) as error:
            raise HubError(
                f"{self.repo_id}: what was kept in {self.path} cannot be read ({type(error).__name__}: {error}). "
                "Publish the run again, and remove that directory.",
                False,
            ) from None

    def _repository(self) -> Repository:
        files, wrong = [], []
        for index, described in enumerate(self.files):
            path = self.path / _FILES / str(index)
            file = RepositoryFile(described["path_in_repo"], path)
            if not path.is_file():
                wrong.append(f"{described['path_in_repo']} is gone")
            elif file.size != described["size"] or file.sha256 != described["sha256"]:
                wrong.append(f"{described['path_in_repo']} was written over")
            files.append(file)
        if wrong:
            raise HubError(
                f"{self.repo_id}: what was kept in {self.path} is not what it was: {'; '.join(wrong)}. Publish the "
                "run again, and remove that directory.",
                False,
            )
        return Repository(self.repo_id, tuple(files), self.message, self.revision, self.tag)


@dataclass(frozen=True)
class Sent:
    """What became of an item: `pushed` where it got through, else `error`."""

    kept: Kept
    pushed: Pushed | None
    error: HubError | None


class Outbox:
    """What a run could not push.

    Args:
        directory: of the run; items lie in its `.publish`.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory) / DIRECTORY

    def keep(self, repository: Repository, reason: str, private: bool | None = None, force: bool = False) -> Kept:
        """Keeps a repository to be pushed later. What was kept before for the same repository, branch and tag is out
        of date, and goes.

        Args:
            repository: that could not be pushed.
            reason: why, for people.
            private, force: as for [`Publisher.push`].

        Raises:
            OSError: if it cannot be written; what was kept before stays.
        """
        before = self.pending()
        self._remove_unfinished()
        numbers = [int(match[0]) for path in self._entries() if (match := _NUMBER.match(path.name))]
        name = f"{max(numbers, default=0) + 1:06}-{repository.repo_id.replace('/', '--')}"
        unfinished = self._directory / f"{_HIDDEN}{name}.{uuid.uuid4().hex}"
        (unfinished / _FILES).mkdir(parents=True)
        described = []
        for index, file in enumerate(repository.files):
            target = unfinished / _FILES / str(index)
            _place(file, target)
            described.append({"path_in_repo": file.path_in_repo, "size": file.size, "sha256": file.sha256})
        kept = Kept(
            self._directory / name,
            repository.repo_id,
            repository.message,
            repository.revision,
            repository.tag,
            private,
            force,
            reason,
            described,
        )
        manifest = {"version": _VERSION, **{name: value for name, value in vars(kept).items() if name != "path"}}
        text = json.dumps(manifest, indent=2, ensure_ascii=False)
        (unfinished / _MANIFEST_FILE).write_text(text + "\n", encoding="utf-8", newline="\n")
        unfinished.rename(kept.path)  # whole, or not there
        for old in before:
            if (old.repo_id, old.revision, old.tag) == (kept.repo_id, kept.revision, kept.tag):
                self._remove(old)
        return kept

    def forget(self, repository: Repository) -> None:
        """Removes what was kept for the same repository, branch and tag: something newer got through."""
        for old in self.pending():
            if (old.repo_id, old.revision, old.tag) == (repository.repo_id, repository.revision, repository.tag):
                self._remove(old)

    def pending(self) -> list[Kept]:
        """What waits, in the order in which it was kept. An item that cannot be read is warned about, and holds no
        other up."""
        found = []
        for path in sorted(self._entries()):
            try:
                found.append(_read(path))
            except ValueError as error:
                logger.warning(str(error))
        return found

    def send(self, publisher: Publisher, private: bool | None = None, force: bool = False) -> list[Sent]:
        """Pushes what waits, in order. What gets through goes; the rest stays, each with its error.

        Args:
            publisher: to push with.
            private: as for [`Publisher.push`]; None is as each was kept.
            force: True pushes all with force; False is as each was kept.

        Returns:
            What became of each.
        """
        self._remove_unfinished()
        sent = []
        for kept in self.pending():
            try:
                pushed = publisher.push(
                    kept.repository(), kept.private if private is None else private, kept.force or force
                )
            except HubError as error:
                logger.warning(f"Not sent, and kept in {kept.path}: {error}")
                sent.append(Sent(kept, None, error))
            else:
                self._remove(kept)
                sent.append(Sent(kept, pushed, None))
        return sent

    def _entries(self) -> Iterator[Path]:
        """Whole items."""
        if self._directory.is_dir():
            yield from (path for path in self._directory.iterdir() if not path.name.startswith(_HIDDEN))

    def _remove(self, kept: Kept) -> None:
        # Its name first, so that half of an item is never taken for a whole one.
        removed = kept.path.with_name(f"{_HIDDEN}{kept.path.name}.{uuid.uuid4().hex}")
        with suppress(FileNotFoundError):  # another process was quicker
            kept.path.rename(removed)
            shutil.rmtree(removed)

    def _remove_unfinished(self) -> None:
        """Removes what a process that was killed had begun to write, or to remove; what is younger may be another's
        work."""
        if self._directory.is_dir():
            for path in self._directory.iterdir():
                if path.name.startswith(_HIDDEN) and time.time() - path.stat().st_mtime > _ABANDONED:
                    shutil.rmtree(path)


def _place(file: RepositoryFile, target: Path) -> None:
    if isinstance(file.content, bytes):
        target.write_bytes(file.content)
        return
    try:
        # What a link points at is linked, not the link: a cache may remove it.
        os.link(file.content.resolve(), target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(file.content, target)


def _read(path: Path) -> Kept:
    place = path / _MANIFEST_FILE
    try:
        values = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} holds nothing to publish ({error}): remove it.") from None
    names = {field.name for field in dataclasses.fields(Kept)} - {"path"}
    if not isinstance(values, dict) or values.pop("version", None) != _VERSION or values.keys() != names:
        raise ValueError(f"{place} is no manifest of version {_VERSION}: publish the run again, and remove {path}.")
    return Kept(path, **values)
