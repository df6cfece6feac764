"""The texts of a preparation: every file and dataset opened, identified, validated and counted before any is used."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tqdm.auto import tqdm

from hf_electra_rtd.data.files import hash_file, naming_errors, split_suffix
from hf_electra_rtd.data.hub import load_source, pin_stream, read_dataset
from hf_electra_rtd.data.readers import read_lines
from hf_electra_rtd.data.sources import AnySource, FileSource
from hf_electra_rtd.data.writing import ScratchDirectory, explaining_failures, publish


logger = logging.getLogger(__name__)

CACHE_FILE = "scanned.json"
_CACHE_FORMAT = 2
_SPOOL = "stream.txt.zst"
_TRUSTED_AGE = 2.0  # seconds: a file may change once more without a new time stamp if it was changed this moment


Stamp = tuple[int, int, int, int]  # of a file: size, times of modification and of change, inode


@dataclass(frozen=True)
class Counts:
    """What a text holds: bytes of UTF-8, lines that are not blank, documents."""

    num_bytes: int
    num_lines: int
    num_documents: int


class Text(Protocol):
    """A file or a dataset that can be read again and again.

    Attributes:
        name: without a local directory.
        weight: how often its documents are read in an epoch.
    """

    name: str
    weight: float

    def identity(self) -> dict[str, Any]:
        """Everything that decides its lines, as JSON."""
        ...

    def counts(self) -> Counts:
        """Reads and validates all of it."""
        ...

    def lines(self) -> Iterator[str]:
        """As `read_lines` gives them."""
        ...

    def close(self) -> None:
        """Removes what was stored for it."""
        ...


class Corpus:
    """Every file and dataset of some sources, in order; as a context manager, it removes what it stored for them.

    Args:
        sources: what to read.
        directory: of the preparation; what was found out about files is remembered there.
        disable_progress: show no bars.

    Raises:
        ValueError: for a dataset that cannot be loaded.
    """

    def __init__(self, sources: Sequence[AnySource], directory: Path, disable_progress: bool = False) -> None:
        self._cache = _Cache(directory / CACHE_FILE)
        self._disable_progress = disable_progress
        self.texts: list[Text] = []
        for source in sources:
            if isinstance(source, FileSource):
                self.texts += [FileText(file, source, self._cache, disable_progress) for file in source.files]
            elif source.streaming:
                self.texts.append(StreamText(source, directory, disable_progress))
            else:
                self.texts.append(DatasetText(source, disable_progress))

    def __enter__(self) -> Corpus:
        return self

    def __exit__(self, *exception: object) -> None:
        for text in self.texts:
            text.close()

    def identities(self) -> list[dict[str, Any]]:
        """Of every text.

        Raises:
            ValueError: for a file that cannot be read.
        """
        bar = tqdm(
            self.texts, desc="Identifying the corpus", unit=" files", disable=self._disable_progress, leave=False
        )
        found = [text.identity() for text in bar]
        self._cache.save()
        self._warn_of_equal_files(found)
        return found

    def _warn_of_equal_files(self, identities: list[dict[str, Any]]) -> None:
        first: dict[str, str] = {}
        for text, identity in zip(self.texts, identities, strict=True):
            digest = identity.get("sha256")
            if digest in first:
                logger.warning(
                    f"{first[digest]} and {text.name} are equal, and each is drawn from alone: what is "
                    "held out of one may be trained on in the other. Leave one out (weight=2 reads a file twice), or "
                    "say --drop_duplicates exact."
                )
            elif digest is not None:
                first[digest] = text.name

    def counts(self) -> list[Counts]:
        """Of every text, all of which is read and validated, unless that was done before.

        Raises:
            ValueError: for a text that is empty or cannot be read.
        """
        found = []
        for text in self.texts:
            found.append(text.counts())
            if not found[-1].num_documents:
                raise ValueError(f"{text.name} holds no text.")
        self._cache.save()
        return found


def count_lines(lines: Iterator[str], name: str, disable_progress: bool) -> Counts:
    """Reads lines to their end."""
    num_bytes = num_lines = num_documents = 0
    in_document = False
    with tqdm(desc=f"Reading {name}", unit=" documents", disable=disable_progress, leave=False) as bar:
        for line in lines:
            if line:
                in_document = True
                num_lines += 1
                num_bytes += (len(line) if line.isascii() else len(line.encode())) + 1
            elif in_document:
                in_document = False
                num_documents += 1
                bar.update()
    return Counts(num_bytes, num_lines, num_documents)


class FileText:
    """A file; its hash and counts are remembered for as long as its size, times and inode stay the same.

    What is read is compared with what was identified: a file that changes in between is refused.
    """

    def __init__(self, file: str, source: FileSource, cache: _Cache, disable_progress: bool) -> None:
        self.name, self.weight = os.path.basename(file), source.weight
        self._file, self._reading = file, source.reading
        self._cache, self._disable_progress = cache, disable_progress
        self._identified: Stamp | None = None

    def identity(self) -> dict[str, Any]:
        self._identified = self._stamp()
        found = self._cache.get(self._key, self._identified)
        if "sha256" not in found:
            found["sha256"] = hash_file(self._file)
            self._refuse_if_not(self._identified)
            self._cache.put(self._key, self._identified, found)
        kind = split_suffix(self._file)[0]
        used = {".txt": ("encoding", "encoding_errors"), ".parquet": ("text_column",)}
        names = used.get(kind, ("encoding", "encoding_errors", "text_column"))
        reading = {name: getattr(self._reading, name) for name in names}
        return {"sha256": found["sha256"], "kind": kind, **reading, "weight": self.weight}

    def counts(self) -> Counts:
        stamp = self._identified or self._stamp()
        found = self._cache.get(self._key, stamp)
        if "counts" not in found:
            counts = count_lines(self.lines(), self.name, self._disable_progress)
            self._refuse_if_not(stamp)
            found["counts"] = dataclasses.asdict(counts)
            self._cache.put(self._key, stamp, found)
        return Counts(**found["counts"])

    def lines(self) -> Iterator[str]:
        stamp = self._identified or self._stamp()
        yield from read_lines(self._file, self._reading)
        self._refuse_if_not(stamp)

    def close(self) -> None:
        pass

    @property
    def _key(self) -> str:
        described = [os.path.abspath(self._file), *dataclasses.astuple(self._reading)]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()

    def _stamp(self) -> Stamp:
        with naming_errors(self._file):
            status = os.stat(self._file)
        return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino

    def _refuse_if_not(self, stamp: Stamp) -> None:
        if self._stamp() != stamp:
            raise ValueError(f"{self._file} changed while it was read: wait until it is whole, and start again.")


class DatasetText:
    """A dataset that `datasets` keeps on the disk."""

    def __init__(self, source: Any, disable_progress: bool) -> None:
        self.name, self.weight = source.name, source.weight
        self._source, self._disable_progress = source, disable_progress
        self._dataset = load_source(source)

    def identity(self) -> dict[str, Any]:
        return {**_dataset_identity(self._source), "fingerprint": self._dataset._fingerprint}

    def counts(self) -> Counts:
        return count_lines(self.lines(), self.name, self._disable_progress)

    def lines(self) -> Iterator[str]:
        return read_dataset(self._source, self._dataset)

    def close(self) -> None:
        pass


class StreamText:
    """A dataset that is fetched while it is read: once, into a compressed file that lasts until `close`."""

    def __init__(self, source: Any, directory: Path, disable_progress: bool) -> None:
        self.name, self.weight = source.name, source.weight
        self._source, self._directory, self._disable_progress = source, directory, disable_progress
        self._state: dict[str, Any] | None = None
        self._scratch: ScratchDirectory | None = None

    def identity(self) -> dict[str, Any]:
        if self._state is None:
            self._source, self._state = pin_stream(self._source)
        return {**_dataset_identity(self._source), **self._state}

    def counts(self) -> Counts:
        return count_lines(self.lines(), self.name, self._disable_progress)

    def lines(self) -> Iterator[str]:
        if self._scratch is None:
            self._fetch()
        assert self._scratch is not None
        return read_lines(str(self._scratch.path / _SPOOL))

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.__exit__()
            self._scratch = None

    def _fetch(self) -> None:
        import zstandard

        self.identity()  # settles which revision is fetched
        lines = read_dataset(self._source, load_source(self._source))
        with ExitStack() as stack:
            scratch = stack.enter_context(ScratchDirectory(self._directory))
            with (
                explaining_failures(self._directory),  # the outermost: closing writes, too
                tqdm(desc=f"Fetching {self.name}", unit=" documents", disable=self._disable_progress) as bar,
                open(scratch.path / _SPOOL, "wb") as file,
                zstandard.ZstdCompressor().stream_writer(file, closefd=False) as packed,
            ):
                for line in lines:
                    bar.update(not line)
                    packed.write(line.encode() + b"\n")
            stack.pop_all()  # it is kept: `close` removes it
        self._scratch = scratch


def _dataset_identity(source: Any) -> dict[str, Any]:
    names = ("config", "split", "revision", "text_column", "weight")
    return {"dataset": source.name, **{name: getattr(source, name) for name in names}}


class _Cache:
    """What was found out about files, kept as JSON under a hash of their paths; losing it costs only time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, Any] = {}
        self._changed = False
        # There is none yet, or it is not ours.
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format"] == _CACHE_FORMAT:
                self._entries = {key: entry for key, entry in content["files"].items() if _is_entry(entry)}

    def get(self, key: str, stamp: Stamp) -> dict[str, Any]:
        entry = self._entries.get(key, {})
        return dict(entry["found"]) if entry.get("stamp") == list(stamp) else {}

    def put(self, key: str, stamp: Stamp, found: dict[str, Any]) -> None:
        self._entries[key] = {"stamp": list(stamp), "found": found}
        self._changed = True

    def save(self) -> None:
        if not self._changed:
            return
        latest = (time.time() - _TRUSTED_AGE) * 1e9
        lasting = {key: entry for key, entry in self._entries.items() if entry["stamp"][1] < latest}
        if not lasting:
            return
        with ScratchDirectory(self._path.parent) as scratch, explaining_failures(self._path):
            partial = scratch.path / CACHE_FILE
            partial.write_text(json.dumps({"format": _CACHE_FORMAT, "files": lasting}), encoding="utf-8")
            publish(partial, self._path)
        self._changed = False


def _is_entry(entry: Any) -> bool:
    """Whether this is what `_Cache.put` made: {"stamp": four integers, "found": {"sha256": ..., "counts": {...}}}."""
    if not isinstance(entry, dict) or entry.keys() != {"stamp", "found"}:
        return False
    stamp, found = entry["stamp"], entry["found"]
    if not isinstance(stamp, list) or [type(number) for number in stamp] != [int] * 4 or not isinstance(found, dict):
        return False
    names = {field.name for field in dataclasses.fields(Counts)}
    counts = found.get("counts", dict.fromkeys(names, 0))
    return (
        isinstance(found.get("sha256", ""), str)
        and isinstance(counts, dict)
        and counts.keys() == names
        and all(type(number) is int for number in counts.values())
    )
