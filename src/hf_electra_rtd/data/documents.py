"""Plain text files as documents: one paragraph or sentence a line, an empty line or the end of a file ends a
document."""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from tqdm.auto import tqdm


TEXT_SUFFIXES = (".txt", ".txt.gz", ".txt.zst")
BLOCK_SUFFIX = ".blocks"


@dataclass(frozen=True)
class Source:
    """A text file that was read from end to end.

    Attributes:
        name: its file name, without the directory.
        sha256: of its bytes as they lie on the disk.
        num_bytes: of its text, decompressed.
        num_documents: documents in it.
    """

    name: str
    sha256: str
    num_bytes: int
    num_documents: int


def find_files(patterns: list[str]) -> list[str]:
    """Expands paths and glob patterns, keeping their order; the files of a pattern come sorted.

    Raises:
        ValueError: for a pattern that matches nothing, or a file of another kind.
    """
    files: list[str] = []
    for pattern in patterns:
        found = (
            [pattern]
            if os.path.isfile(pattern)
            else sorted(filter(os.path.isfile, glob.glob(pattern, recursive=True)))
        )
        if not found:
            raise ValueError(f"No file matches {pattern!r}.")
        files.extend(found)
    files = list(dict.fromkeys(files))
    for file in files:
        if not file.endswith((*TEXT_SUFFIXES, BLOCK_SUFFIX)):
            raise ValueError(
                f"{file} is neither text ({', '.join(TEXT_SUFFIXES)}) nor a prepared block file ({BLOCK_SUFFIX})."
            )
    return files


def open_bytes(file: str) -> IO[bytes] | gzip.GzipFile:
    """Opens a file for reading its decompressed bytes."""
    if file.endswith(".gz"):
        return gzip.open(file, "rb")
    if file.endswith(".zst"):
        return io.BufferedReader(_ZstdFile(file))
    return open(file, "rb")


class _ZstdFile(io.RawIOBase):
    """A .zst file of one or more frames. `zstandard`'s own reader takes a file that was cut off for a whole one."""

    def __init__(self, file: str) -> None:
        import zstandard

        self._file = open(file, "rb")  # noqa: SIM115
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._frame = self._new_frame()
        self._in_frame = False
        self._packed = b""
        self._ready = b""

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            self._packed = self._packed or self._file.read(1 << 16)
            if not self._packed:
                if self._in_frame:
                    raise EOFError("its last frame is not complete")
                return 0
            self._in_frame = True
            self._ready, self._packed = self._frame.decompress(self._packed), b""
            if self._frame.eof:
                self._packed = self._frame.unused_data
                self._frame, self._in_frame = self._new_frame(), False
        taken, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(taken)] = taken
        return len(taken)


def _whole_lines(stream: Iterable[bytes], file: str) -> Iterator[bytes]:
    try:
        yield from stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{file} was cut off or is damaged ({error}): fetch it again.") from None


def read_lines(file: str) -> Iterator[str]:
    """The lines of a text file, stripped; an empty string where a document ends (the file's end included).

    Raises:
        ValueError: for bytes that are not UTF-8, naming the file and the byte, or a compressed file that was cut off.
    """
    position = 0
    with open_bytes(file) as stream:
        for raw in _whole_lines(stream, file):
            try:
                yield raw.decode("utf-8-sig" if position == 0 else "utf-8").strip()
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{file} is not UTF-8: byte {position + error.start} is 0x{raw[error.start]:02x}. "
                    "Convert it first, for instance with iconv."
                ) from None
            position += len(raw)
    yield ""


def scan(files: list[str], disable_progress: bool = False) -> list[Source]:
    """Reads every file once: hashes it, decodes it, and counts its documents, before any work depends on it.

    Raises:
        ValueError: for a file without text, or one that is not UTF-8.
    """
    sources = []
    for file in tqdm(files, desc="Reading the corpus", unit="file", disable=disable_progress):
        num_bytes = num_documents = 0
        in_document = False
        for line in read_lines(file):
            num_documents += in_document and not line
            in_document = bool(line)
            num_bytes += len(line.encode()) + 1
        if not num_documents:
            raise ValueError(f"{file} holds no text.")
        sources.append(Source(os.path.basename(file), _sha256(file), num_bytes, num_documents))
    return sources


def _sha256(file: str) -> str:
    with open(file, "rb") as stream:
        return hash_stream(stream)


def hash_stream(stream: IO[bytes], length: int | None = None) -> str:
    """SHA-256 of `length` bytes of an open file, from where it stands; of all that is left by default."""
    digest = hashlib.sha256()
    while (length is None or length > 0) and (chunk := stream.read(min(1 << 20, length) if length else 1 << 20)):
        digest.update(chunk)
        length = None if length is None else length - len(chunk)
    return digest.hexdigest()
