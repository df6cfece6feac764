"""Files that hold text: where they are, what they are, and their bytes, decompressed."""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import logging
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NoReturn


logger = logging.getLogger(__name__)

KINDS = (".txt", ".jsonl", ".parquet")
COMPRESSIONS = (".gz", ".zst")
TEXT_SUFFIXES = tuple(kind + compression for kind in KINDS for compression in ("", *COMPRESSIONS))
BLOCK_SUFFIX = ".blocks"

CHUNK_SIZE = 1 << 20  # bytes read at once
_ZSTD_INPUT = 1 << 10  # bytes decompressed at once: the output may be tens of thousands of times larger
_ZSTD_MAX_WINDOW = 1 << 31  # what `zstd --long=31` needs, as some corpora were made

# First bytes of files that are no text: (bytes, what it is, the suffix that it should have).
_SIGNATURES = (
    (b"\x1f\x8b", "gzip", ".gz"),
    (b"\x28\xb5\x2f\xfd", "Zstandard", ".zst"),
    (b"PAR1\x15", "Parquet", ".parquet"),
    (b"HF-RTD-BLOCKS\x00", "a block file", BLOCK_SUFFIX),
    (b"PK\x03\x04", "a zip archive", None),
    (b"BZh", "bzip2", None),
    (b"\xfd7zXZ\x00", "xz", None),
    (b"%PDF-", "a PDF document", None),
    (b"\x89PNG\r\n", "a PNG image", None),
    (b"\xff\xd8\xff", "a JPEG image", None),
    (b"\x7fELF", "a program", None),
)


def find_files(pattern: str) -> list[str]:
    """The files that a path, a directory or a glob pattern stands for, sorted.

    A directory is searched to its depth, hidden files left out; what is neither text nor compressed text is passed
    over there, with one line in the log.

    Raises:
        ValueError: if there are none, or a file is of another kind though it was named or matched.
    """
    if os.path.isdir(pattern):
        return _search(pattern)
    found = (
        [pattern] if os.path.isfile(pattern) else sorted(filter(os.path.isfile, glob.glob(pattern, recursive=True)))
    )
    if not found:
        raise ValueError(f"No file matches {pattern!r}.")
    for file in found:
        if not file.lower().endswith((*TEXT_SUFFIXES, BLOCK_SUFFIX)):
            raise ValueError(
                f"{file} is neither text ({', '.join(KINDS)}, each also with {' or '.join(COMPRESSIONS)}) nor a "
                f"prepared block file ({BLOCK_SUFFIX})."
            )
    return found


def refuse_directory(error: OSError) -> NoReturn:
    """For `os.walk`, which otherwise passes over what it cannot read."""
    raise ValueError(f"The directory {error.filename} cannot be read: {error.strerror or error}.") from None


def _search(directory: str) -> list[str]:
    found: list[str] = []
    num_others = num_blocks = 0
    seen = set()
    for place, directories, names in os.walk(directory, followlinks=True, onerror=refuse_directory):
        real = os.path.realpath(place)
        if real in seen:  # a link that leads back
            directories.clear()
            continue
        seen.add(real)
        directories[:] = [name for name in directories if not name.startswith(".")]
        for name in names:
            if name.lower().endswith(TEXT_SUFFIXES) and not name.startswith("."):
                found.append(os.path.join(place, name))
            else:
                num_others += 1
                num_blocks += name.endswith(BLOCK_SUFFIX)
    if not found:
        hint = f" (its block files have to be named one by one: {directory}/NAME{BLOCK_SUFFIX})" if num_blocks else ""
        raise ValueError(f"The directory {directory} holds no text file ({', '.join(KINDS)}){hint}.")
    if num_others:
        logger.info(f"{directory}: {num_others:,} files of other kinds are passed over.")
    return sorted(found)


def split_suffix(file: str) -> tuple[str, str]:
    """The kind of a text file and its compression: `(".txt", ".gz")`; the latter is empty where there is none."""
    name = file.lower()
    compression = next((suffix for suffix in COMPRESSIONS if name.endswith(suffix)), "")
    return os.path.splitext(name.removesuffix(compression))[1], compression


@contextmanager
def naming_errors(file: str) -> Iterator[None]:
    """Turns what can go wrong while a file is read into a ValueError that names it."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{file} was cut off or is damaged ({error}): fetch it again.") from None
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}.") from None


def open_bytes(file: str) -> IO[bytes] | gzip.GzipFile:
    """Opens a file for reading its decompressed bytes."""
    compression = split_suffix(file)[1]
    if compression == ".gz":
        return gzip.open(file, "rb")
    if compression == ".zst":
        return io.BufferedReader(_ZstdFile(file), CHUNK_SIZE)
    return open(file, "rb")


def read_chunks(file: str) -> Iterator[bytes]:
    """The decompressed bytes of a file, at most 1 MiB at a time.

    Raises:
        ValueError: for a file that cannot be read, was cut off, is damaged, or holds something else than its name
            says.
    """
    kind, compression = split_suffix(file)
    with naming_errors(file):
        if compression:
            with open(file, "rb") as packed:
                _check_signature(file, packed.read(16), compression)
        with open_bytes(file) as stream:
            first = True
            while chunk := stream.read(CHUNK_SIZE):
                if first:
                    _check_signature(file, chunk[:16], kind)
                    first = False
                yield chunk


def _check_signature(file: str, head: bytes, expected: str) -> None:
    for signature, description, suffix in _SIGNATURES:
        if head.startswith(signature) and suffix != expected:
            remedy = f"give it a name that ends so ({suffix})" if suffix else "extract its text first"
            raise ValueError(f"{file} looks like {description}, which its name does not say: {remedy}.")


class _ZstdFile(io.RawIOBase):
    """A .zst file of one or more frames. `zstandard`'s own reader takes a file that was cut off for a whole one."""

    def __init__(self, file: str) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        self._file = open(file, "rb")  # noqa: SIM115
        self._new_frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW).decompressobj
        self._frame = self._new_frame()
        self._in_frame = False
        self._packed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            self._packed = self._packed or self._file.read(_ZSTD_INPUT)
            if not self._packed:
                if self._in_frame:
                    raise EOFError("its last frame is not complete")
                return 0
            self._in_frame = True
            try:
                self._ready, self._packed = memoryview(self._frame.decompress(self._packed)), b""
            except self._error as error:
                raise EOFError(str(error)) from None
            if self._frame.eof:
                self._packed = self._frame.unused_data
                self._frame, self._in_frame = self._new_frame(), False
        taken = min(len(buffer), len(self._ready))
        buffer[:taken] = self._ready[:taken]
        self._ready = self._ready[taken:]
        return taken


def hash_file(file: str) -> str:
    """SHA-256 of a file's bytes as they lie on the disk."""
    with naming_errors(file), open(file, "rb") as stream:
        return hash_stream(stream)


def hash_stream(stream: IO[bytes], length: int | None = None) -> str:
    """SHA-256 of `length` bytes of an open file, from where it stands; of all that is left by default."""
    digest = hashlib.sha256()
    while (length is None or length > 0) and (
        chunk := stream.read(CHUNK_SIZE if length is None else min(CHUNK_SIZE, length))
    ):
        digest.update(chunk)
        length = None if length is None else length - len(chunk)
    return digest.hexdigest()
