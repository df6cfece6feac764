"""Reads the rows of files, each with its place: text, tables, JSON and Parquet, also compressed.

Files are read here and not by `datasets`, whose readers accept a truncated .zst file, and name neither file nor line
in errors. Its JSON reader turns strings that look like dates into dates. Its table reader, pandas, guesses types from
parts of a column, fills short lines, and ends lines at a lone \\r, which some sentences of the benchmarks contain.
"""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from hf_electra_rtd.base.files import open_text, reading


def records_of(
    path: str,
    format: str,
    *,
    encoding: str = "utf-8",
    encoding_errors: str = "strict",
    columns: Sequence[str] | None = None,
    skip_broken_lines: bool = False,
) -> Iterator[tuple[str, Any]]:
    """Yields the rows of a file as pairs of place (`a.csv, line 3`) and row.

    Raises ValueError, with the place if it is known, for content that cannot be read.

    Args:
        format: the kind of the file. `text`: rows are lines, with their ends. `jsonl`: rows are the values of the
            lines that are not blank; `json`: like `jsonl`, or the items of a single list. `csv` (RFC 4180) and `tsv`
            (quotes are ordinary characters): rows are dicts of strings by column. `parquet`: rows are dicts of any
            values.
        encoding: as in `open`, like `encoding_errors`. Parquet ignores both.
        columns: the header of a table, if the file does not begin with one; for Parquet, the columns to read.
        skip_broken_lines: yields None for a line of a table with another number of columns, instead of an error.
    """
    if format == "parquet":
        yield from _parquet_rows(path, columns)
        return
    newline = None if format in ("text", "jsonl") else "\n"
    with open_text(path, encoding, encoding_errors, newline) as file:
        if format == "text":
            for number, line in _lines(path, file):
                yield f"{path}, line {number}", line
        elif format in ("json", "jsonl"):
            yield from _json_rows(path, file, may_be_list=format == "json")
        else:
            yield from _table_rows(path, file, format == "csv", columns, skip_broken_lines)


def read_lines(path: str | os.PathLike[str] | None = None) -> Iterator[str]:
    """Yields the lines of a text file, plain or compressed, or of the standard input, without \\n or \\r\\n at their
    ends. Raises ValueError, with the line, for text that is not UTF-8."""
    name = "The standard input" if path is None else os.fspath(path)
    with reading(name, "It must be text in UTF-8."), open_text(path) as file:
        for _, line in _lines(name, file):
            yield line.rstrip("\r\n")


def _lines(path: str, file: Any) -> Iterator[tuple[int, str]]:
    """Yields the lines of a file as pairs of number and line, with the end of the line."""
    number = 0
    try:
        for number, line in enumerate(file, 1):
            yield number, line
    except UnicodeError as error:
        number += 1
        if isinstance(error, UnicodeDecodeError):  # several lines are decoded at once
            number += error.object.count(b"\n", 0, error.start)
        encoding = file.encoding.removesuffix("-sig").upper()
        raise ValueError(f"{path}, line {number} is not {encoding}. Save it as UTF-8, or name its encoding.") from None


def _json_rows(path: str, file: Any, may_be_list: bool) -> Iterator[tuple[str, Any]]:
    is_first = True
    for number, line in _lines(path, file):
        if not line.strip():
            continue
        if is_first and may_be_list and line.lstrip().startswith("["):
            rows = json.loads(line + file.read())
            yield from ((f"{path}, row {place}", row) for place, row in enumerate(rows, 1))
            return
        is_first = False
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}, line {number} is not a JSON record ({error}).") from None
        yield f"{path}, line {number}", row


def _table_rows(
    path: str, file: Any, quoted: bool, header: Sequence[str] | None, skip_broken_lines: bool
) -> Iterator[tuple[str, dict[str, str] | None]]:
    csv.field_size_limit(2**31 - 1)  # 131,072 by default
    lines = (line for _, line in _lines(path, file))
    reader = csv.reader(lines, strict=True)
    rows: Iterable[list[str]] = reader if quoted else (line.rstrip("\r\n").split("\t") for line in lines)
    for number, cells in enumerate(rows, 1):
        place = f"{path}, line {reader.line_num if quoted else number}"
        if cells == [] or (cells == [""] and (header is None or len(header) > 1)):
            continue
        if header is None:
            header = cells
            if quoted and len(header) == 1 and ";" in header[0]:
                raise ValueError(f"{path} has semicolons between its columns. Save it with commas.")
            check_columns(header, path)
        elif len(cells) == len(header):
            yield place, dict(zip(header, cells, strict=True))
        elif skip_broken_lines:
            yield place, None
        else:
            remedy = "Quote fields that hold commas." if quoted else "Remove tabs and line breaks in fields."
            raise ValueError(f"{place} has {len(cells)} columns instead of {len(header)}. {remedy}")


def check_columns(names: Iterable[str], path: str = "The table") -> None:
    """Raises ValueError for a duplicate column name. Columns without a name are not compared."""
    twice = [name for name, number in Counter(filter(None, names)).items() if number > 1]
    if twice:
        raise ValueError(f"{path} has the column {twice[0]!r} twice. Rename one.")


def _parquet_rows(path: str, columns: Sequence[str] | None) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow.parquet as pq

    number = 0
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as table:
        known = [name for name in columns or () if name in table.schema_arrow.names]
        for batch in table.iter_batches(batch_size=64, columns=known or None, use_threads=False):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row


def load_json(path: str) -> Any:
    """Returns the value of a JSON file."""
    with reading(path), open_text(path) as file:
        return json.load(file)
