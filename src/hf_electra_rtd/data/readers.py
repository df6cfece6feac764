"""From a file to clean lines: text, JSON lines or Parquet; an empty line ends a document.

Whatever bytes a file holds, its reader either yields lines without NUL, lone surrogates or line breaks, or raises a
ValueError that names the file. Memory does not depend on the size of a file; lines and records have a longest size.
"""

from __future__ import annotations

import codecs
import io
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from hf_electra_rtd.data.files import read_chunks, split_suffix
from hf_electra_rtd.data.writing import explaining_failures


MAX_LINE = 8 * 2**20  # characters
MAX_RECORD = 64 * 2**20  # characters of a line of JSON, which holds a whole document
_TOO_LONG_LINE = "has more than {:,} characters. Break it into lines, one paragraph or sentence each."
_TOO_LONG_RECORD = "has more than {:,} characters. Split the document into several records."
ENCODING_ERRORS = ("strict", "replace", "ignore")
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PARQUET_BATCH = 64  # documents in memory at once


@dataclass(frozen=True)
class Reading:
    """How files are read.

    Attributes:
        text_column: of JSON lines and Parquet: the key or column that holds a document's text.
        encoding: of text and JSON lines, by its name in Python.
        encoding_errors: what becomes of bytes that are not of the encoding: `"strict"` refuses the file, `"replace"`
            puts U+FFFD in their place, `"ignore"` leaves them out.

    Raises:
        ValueError: for an encoding that Python does not know or a way to treat errors that there is not.
    """

    text_column: str = "text"
    encoding: str = "utf-8"
    encoding_errors: str = "strict"

    def __post_init__(self) -> None:
        try:
            known = codecs.lookup(self.encoding)
        except (LookupError, ValueError):
            known = None
        if known is None or known.incrementaldecoder is None or not known._is_text_encoding:
            raise ValueError(f"There is no encoding {self.encoding!r}. Common are utf-8, utf-16, latin-1, gb18030.")
        if self.encoding_errors not in ENCODING_ERRORS:
            raise ValueError(
                f"There is no encoding_errors={self.encoding_errors!r}. Known are: {', '.join(ENCODING_ERRORS)}."
            )


DEFAULT_READING = Reading()


def read_lines(file: str, reading: Reading = DEFAULT_READING) -> Iterator[str]:
    """The lines of a file, stripped; an empty string where a document ends (the end of a text file included).

    A record of JSON lines or Parquet is a document; blank lines inside it part paragraphs. Records without text (null
    or empty) are passed over.

    Raises:
        ValueError: for a file that cannot be read, by name and place (byte, line or record), with the remedy.
    """
    kind = split_suffix(file)[0]
    if kind == ".jsonl":
        yield from _read_jsonl(file, reading)
    elif kind == ".parquet":
        yield from _read_parquet(file, reading.text_column)
    else:
        for line in _raw_lines(file, reading, MAX_LINE, _TOO_LONG_LINE):
            yield line.strip()
        yield ""


def document_lines(text: str, place: str) -> Iterator[str]:
    """The lines of one document that are not blank, and an empty string; nothing for a document without text.

    Args:
        text: of the document.
        place: for the error message.

    Raises:
        ValueError: for text with NUL or lone surrogates, or a line that is too long.
    """
    problem = _uncleanness(text)
    if problem is not None:
        raise ValueError(f"{place}: the text holds {problem[1]}: clean it first.")
    found = False
    for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line := line.strip():
            if len(line) > MAX_LINE:
                raise ValueError(f"{place}: a line {_TOO_LONG_LINE.format(MAX_LINE)}")
            found = True
            yield line
    if found:
        yield ""


def _uncleanness(text: str) -> tuple[int, str] | None:
    """The first character that no text should hold: where it is, and what; None for clean text."""
    index = text.find("\0")
    if index >= 0:
        return index, "a NUL character"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return error.start, f"half of a surrogate pair (U+{ord(text[error.start]):04X})"
    return None


def _decoded(file: str, reading: Reading) -> Iterator[str]:
    utf8 = codecs.lookup(reading.encoding).name == "utf-8"
    name = "utf-8-sig" if utf8 else reading.encoding  # drops a byte order mark
    decoder = codecs.getincrementaldecoder(name)(reading.encoding_errors)
    head = b""
    position = 0  # of the end of what the decoder was given, in decompressed bytes

    def decode(chunk: bytes, final: bool = False) -> str:
        try:
            return decoder.decode(chunk, final)
        except UnicodeDecodeError as error:
            # `error.object` begins with bytes kept from the chunk before, so the place is counted from its end.
            place = position - len(error.object) + error.start
            remedy = "Name its encoding (--encoding latin-1, for instance), or --encoding_errors replace."
            if utf8 and head.startswith(_UTF16_MARKS):
                remedy = "It begins as UTF-16 does: say --encoding utf-16."
            raise ValueError(
                f"{file} is not {reading.encoding.upper()}: byte {place} is 0x{error.object[error.start]:02x}. "
                f"{remedy}"
            ) from None
        except UnicodeError as error:  # of codecs that say no place
            raise ValueError(
                f"{file} is not {reading.encoding.upper()} ({error}) before byte {position}. Name its encoding "
                "(--encoding)."
            ) from None

    for chunk in read_chunks(file):
        head = head or chunk[:2]
        position += len(chunk)
        yield decode(chunk)
    yield decode(b"", final=True)


def _raw_lines(file: str, reading: Reading, longest: int, too_long: str) -> Iterator[str]:
    """Lines as they stand, without what ends them (any of \\n, \\r\\n, \\r).

    Raises:
        ValueError: for text that is not clean, or a line of more than `longest` characters: `too_long` says so.
    """
    translate = io.IncrementalNewlineDecoder(None, translate=True).decode
    number = 1  # of the line that is gathered
    parts: list[str] = []
    gathered = 0
    for text in _with_end(_decoded(file, reading)):
        translated = translate("" if text is None else text, text is None)
        problem = _uncleanness(translated)
        if problem is not None:
            index, what = problem
            raise ValueError(
                f"{file}, line {number + translated.count(chr(10), 0, index)}: the text holds {what}. It is a binary "
                "file, or in another encoding (UTF-16: --encoding utf-16)."
            )
        head, *rest = translated.split("\n")
        parts.append(head)
        gathered += len(head)
        if gathered > longest:
            raise ValueError(f"{file}, line {number}: it {too_long.format(longest)}")
        if rest:
            yield "".join(parts)
            yield from rest[:-1]
            number += len(rest)
            parts, gathered = [rest[-1]], len(rest[-1])
    if gathered:
        yield "".join(parts)


def _with_end(texts: Iterator[str]) -> Iterator[str | None]:
    yield from texts
    yield None


def _read_jsonl(file: str, reading: Reading) -> Iterator[str]:
    column = reading.text_column
    for number, line in enumerate(_raw_lines(file, reading, MAX_RECORD, _TOO_LONG_RECORD), 1):
        if not line or line.isspace():
            continue
        place = f"{file}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{place} is not a JSON record ({error}).") from None
        if not isinstance(record, dict):
            raise ValueError(f'{place} is a JSON {type(record).__name__}, not an object such as {{"{column}": ...}}.')
        if column not in record:
            raise ValueError(f"{place} {_no_column(column, record)}")
        text = record[column]
        if text is None:
            continue
        if not isinstance(text, str):
            raise ValueError(f"{place}: {column!r} is a {type(text).__name__}, not text.")
        yield from document_lines(text, place)


def _no_column(column: str, columns: Any) -> str:
    there = ", ".join(str(name) for name in columns) or "none"
    return f"has no column {column!r}. Name the one that holds the text (--text_column); there are: {there}."


def _read_parquet(file: str, column: str) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with ExitStack() as stack:
        record = 0
        content = _seekable(file, stack)
        try:
            table = stack.enter_context(pq.ParquetFile(content, pre_buffer=False, buffer_size=1 << 20))
            schema = table.schema_arrow
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            raise _damaged_parquet(file, error) from None
        if column not in schema.names:
            raise ValueError(f"{file} {_no_column(column, schema.names)}")
        kind = schema.field(column).type
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)):
            raise ValueError(f"{file}: column {column!r} holds {kind}, not text (--text_column).")
        batches = table.iter_batches(batch_size=_PARQUET_BATCH, columns=[column], use_threads=False)
        while True:
            try:
                batch = next(batches, None)
                texts = [] if batch is None else batch.column(0).to_pylist()
            except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
                raise _damaged_parquet(file, error) from None
            if batch is None:
                return
            for text in texts:
                record += 1
                if text is not None:
                    yield from document_lines(text, f"{file}, record {record}")


def _damaged_parquet(file: str, error: Exception) -> ValueError:
    said = str(error).strip().split("\n")[0].rstrip(".")
    return ValueError(f"{file} is no whole Parquet file ({said}): it was cut off, damaged, or is something else.")


def _seekable(file: str, stack: ExitStack) -> Any:
    """What Parquet can seek in: the file itself, or its decompressed content in a temporary file."""
    chunks = read_chunks(file)
    if not split_suffix(file)[1]:
        next(chunks, None)  # tells files that cannot be opened or are of another kind
        return file
    # For as long as the file is open: closing one that could not be written writes, too.
    stack.enter_context(explaining_failures("a temporary file (TMPDIR)"))
    whole = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
    for chunk in chunks:
        whole.write(chunk)
    whole.seek(0)
    return whole
