"""Files on disk: atomic writing, errors that name the file, hashes, and locks."""

from __future__ import annotations

import codecs
import difflib
import errno
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout


PARTIAL = ".partial-"  # part of the names of unfinished files
LOCK_FILE = ".lock"
_MOST_NAMES = 40  # in a message; of our tables, only the one of flags has more
_NEAREST = 5
_LONGEST_REASON = 400  # characters of a library's message
_REPLACED = "replaced"  # where `writing` keeps the old directory until the new one has its name


@contextmanager
def writing(path: str | os.PathLike[str], replaces: str | None = None, ours: Sequence[str] = ("*",)) -> Iterator[Path]:
    """Writes a file or, with `replaces`, a directory, whole or not at all. Yields a scratch path at which the caller
    creates it. When the block ends without an error, it is flushed to disk and renamed to `path`. `remove_partial`
    removes what a killed process left. Raises the errors of `check_output`, before anything is written, and of
    `naming`."""
    path = Path(path)
    check_output(path, replaces=replaces, ours=ours)
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}{PARTIAL}", dir=path.parent))
        try:
            partial = scratch / path.name
            yield partial
            for file in (partial, *partial.rglob("*")):
                _sync(file)
            if path.is_dir():
                os.replace(path, scratch / _REPLACED)
            os.replace(partial, path)
            _sync(path.parent)
        finally:
            _discard(scratch, path)


def check_output(
    path: str | os.PathLike[str], *inputs: str | None, replaces: str | None = None, ours: Sequence[str] = ("*",)
) -> None:
    """Raises ValueError for an output path that must not be replaced: one of the `inputs` or a path inside one, or,
    where a file is written, anything but an ordinary file. A directory (see `writing`) may only replace an empty
    directory, or one that holds the file `replaces`, by which we know our own, and beside it only entries that match
    the patterns `ours`."""
    path = Path(path)
    for given in inputs:
        if given is not None and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(given)):
            raise ValueError(f"{path} would replace a part of {given}, which is read. Choose another name.")
    if not path.exists():
        return
    with naming(path):
        is_ours = path.is_file() if replaces is None else (path / replaces).exists() or not any(path.iterdir())
    if not is_ours:
        kind = "no ordinary file" if replaces is None else "nothing that this program made"
        raise ValueError(f"{path} is there, and {kind}. Move it away, or choose another name.")
    if replaces is None:
        return
    for entry in path.iterdir():
        if not any(fnmatch(entry.name, pattern) for pattern in (replaces, *ours)):
            raise ValueError(f"{entry} would be deleted with its directory. Move it away, or choose another name.")


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a UTF-8 file whole or not at all, with `\\n` between lines on every system."""
    with writing(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def remove_directory(path: str | os.PathLike[str]) -> None:
    """Removes a directory. It is renamed first, so that a killed process never leaves half of it under its name. What
    cannot be deleted yet, such as a file that is open on NFS, is left to `remove_partial`."""
    path = Path(path)
    scratch = tempfile.mkdtemp(prefix=f".{path.name}{PARTIAL}", dir=path.parent)
    os.replace(path, Path(scratch) / path.name)
    shutil.rmtree(scratch, ignore_errors=True)


def remove_partial(directory: str | os.PathLike[str]) -> None:
    """Removes what killed processes left unfinished in a directory, whose lock the caller holds. A directory that was
    about to be replaced gets its name back."""
    for scratch in Path(directory).glob(f".*{PARTIAL}*"):
        _discard(scratch, scratch.with_name(scratch.name[1:].rpartition(PARTIAL)[0]))


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Adds the path and a remedy to an `OSError` that is raised while `path` is written. Also converts the errors by
    which torch, safetensors and tokenizers report an `OSError`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message = f"No space left to write {os.fspath(path)}. Free some, or choose another directory."
        else:
            message = f"{os.fspath(path)} cannot be written: {error.strerror or error}. Choose another directory."
        raise OSError(error.errno, message) from error
    except Exception as error:  # tokenizers raises a plain Exception
        system = re.search(r"\(os error (\d+)\)", str(error))
        if not system and not re.search("inline_container|iostream", str(error)):  # torch's writer gives no reason
            raise
        code = int(system[1]) if system else errno.ENOSPC
        with naming(path):
            raise OSError(code, os.strerror(code)) from error


@contextmanager
def reading(path: object, remedy: str = "") -> Iterator[None]:
    """Turns any exception that a library raises while it reads a file (or a flag) into `ValueError: PATH cannot be
    read: REASON. REMEDY`. A ValueError whose text begins with the path stays as it is. Keep only the library's call
    in the block: a bug of ours inside it would look like a broken file."""
    try:
        yield
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith(str(path)):
            raise
        what = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        reason = (what or type(error).__name__)[:_LONGEST_REASON].rstrip(". ")
        raise ValueError(f"{path} cannot be read: {reason}. {remedy}".rstrip()) from error


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the JSON object in a file. Raises ValueError with the path if the file cannot be read or holds none."""
    with reading(path):
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it holds no JSON object")
        return content


def open_text(
    path: str | os.PathLike[str] | None = None,
    encoding: str = "utf-8",
    encoding_errors: str = "strict",
    newline: str | None = "\n",
) -> Any:
    """Opens a text file, plain or compressed (.gz, .zst), or without a path the standard input, which must be plain
    text. The encoding does not depend on the locale. `newline` is that of `open`; by default, only \\n ends a line. A
    byte order mark is skipped."""
    encoding = codecs.lookup(encoding).name
    encoding = "utf-8-sig" if encoding == "utf-8" else encoding
    if path is None:
        try:
            return open(sys.stdin.fileno(), encoding=encoding, errors=encoding_errors, newline=newline, closefd=False)
        except OSError:  # a replacement of stdin may have no file descriptor
            return nullcontext(sys.stdin)
    import pyarrow as pa

    # Unlike other libraries, pyarrow tells a cut-off .zst file from a whole one.
    compression = {".gz": "gzip", ".zst": "zstd"}.get(Path(path).suffix.lower())
    stream = pa.input_stream(os.fspath(path), compression=compression)
    return io.TextIOWrapper(stream, encoding, encoding_errors, newline)


def load_pretrained(stock_class: Any, source: Any, **options: Any) -> Any:
    """Calls `from_pretrained` of a class of transformers. Every model, tokenizer and configuration is loaded by this
    function, so that code in its directory never runs, and transformers never asks on the standard input. Raises
    ValueError for a source that cannot be loaded without its own code."""
    try:
        return stock_class.from_pretrained(source, **{**options, "trust_remote_code": False})
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(f"{source} brings code of its own, which is not run. Name a model of transformers.") from None


def lock_directory(directory: str | os.PathLike[str]) -> BaseFileLock:
    """Locks a directory, creating it if needed, until `release()` or the end of this process, however it ends. Raises
    ValueError if another process holds the lock."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    lock = FileLock(Path(directory) / LOCK_FILE)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(f"Another process is using {os.fspath(directory)}. Choose another output_dir.") from None
    return lock


def hash_files(paths: Iterable[str | os.PathLike[str]]) -> str:
    """Returns the SHA-256, in hexadecimal, of the files' contents one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with reading(path), open(path, "rb") as file:
            while part := file.read(2**20):
                digest.update(part)
    return digest.hexdigest()


def hash_model(directory: str | os.PathLike[str]) -> str:
    """Returns the SHA-256 by which evaluation records identify a checkpoint: that of its `config.json` followed by its
    files of weights in the order of their names (`.safetensors`, or pickled files where there are none)."""
    directory = Path(directory)
    weights = sorted(directory.glob("*.safetensors")) or sorted(directory.glob("*model*.bin"))
    return hash_files([directory / "config.json", *weights])


def known_names(name: str, known: Iterable[str], what: str) -> str:
    """Returns the end of a message about an unknown name: `Did you mean 'x'?`, or the known names (only the nearest if
    there are many)."""
    names = sorted(known)
    if close := difflib.get_close_matches(name, names, n=1):
        return f"Did you mean {close[0]!r}?"
    if len(names) > _MOST_NAMES:
        return f"Some known {what}: {', '.join(difflib.get_close_matches(name, names, n=_NEAREST, cutoff=0))}."
    return f"Known {what}: {', '.join(names)}."


def check_name(what: str, name: str, known: Collection[str]) -> None:
    """Raises ValueError for a value of `what`, such as an argument, that is not a known name."""
    if name not in known:
        raise ValueError(f"{what}: there is no {name!r}. {known_names(str(name), known, 'names')}")


def _discard(scratch: Path, path: Path) -> None:
    if (scratch / _REPLACED).is_dir() and not path.exists():
        os.replace(scratch / _REPLACED, path)
    shutil.rmtree(scratch, ignore_errors=True)


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open directories
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
