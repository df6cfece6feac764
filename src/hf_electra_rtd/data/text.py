"""From files and datasets to clean lines: where text lies, and how it is read.

A text is a stream of stripped lines; an empty line ends a document. Memory does not depend on the size of a text.
Files are read here and not by `datasets`, whose readers take a cut-off .zst file for a whole one, name neither file
nor line in errors, and turn JSON strings that look like dates into dates.
"""

from __future__ import annotations

import codecs
import glob
import hashlib
import io
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from tqdm.auto import tqdm

from hf_electra_rtd.cli import check_ranges
from hf_electra_rtd.data.blocks import BLOCK_SUFFIX
from hf_electra_rtd.data.tokenization import TOKENIZER_FILE
from hf_electra_rtd.files import LOCK_FILE, PARTIAL, known_names, lock_directory, naming, reading, remove_partial


logger = logging.getLogger(__name__)

TEXT_SUFFIXES = (*(kind + packed for kind in (".txt", ".jsonl") for packed in ("", ".gz", ".zst")), ".parquet")
FILE_OPTIONS = ("text_column", "encoding", "encoding_errors", "weight")
DATASET_OPTIONS = ("config", "split", "streaming", "revision", "text_column", "weight")
MAX_LINE, MAX_RECORD = 8 * 2**20, 64 * 2**20  # characters; a record is a line of JSON, which holds a whole document
_REMEDIES = {  # by whether it is a dataset
    False: "It may be cut off, damaged, or of another kind than its name says.",
    True: "Check its id, config, split, revision and the network (HF_HUB_OFFLINE); some need a login (hf auth login).",
}
_OPTION = re.compile(r",([A-Za-z_]+)=([^,]*)$")
_CONVERTED: dict[str, tuple[Callable[[str], Any], str]] = {
    "weight": (float, "a number"),
    "streaming": ({"true": True, "false": False}.__getitem__, "true or false"),
}


@dataclass(frozen=True)
class Source:
    """A text file, a file of prepared blocks or a dataset, and how it is read."""

    place: str  # a file; the id of a dataset on the Hub, or a directory that `load_dataset` or `load_from_disk` reads
    is_dataset: bool = False
    config: str | None = None  # this, `split` and `revision` as in `load_dataset`
    split: str = "train"
    revision: str | None = None
    streaming: bool = False  # only the text is downloaded, and stored compressed until it is prepared
    text_column: str = "text"  # key or column of a document's text
    encoding: str = "utf-8"  # of text and JSON lines, as in `open`
    encoding_errors: str = "strict"
    weight: float = 1.0  # how often each document is read in an epoch: 2 is twice, 0.5 a random half of them once

    def __post_init__(self) -> None:
        check_ranges(self)
        try:
            codecs.lookup(self.encoding)
            codecs.lookup_error(self.encoding_errors)
        except LookupError as error:
            raise ValueError(f"{error}. Examples: utf-8, utf-16, gb18030; strict, replace, ignore.") from None

    def __str__(self) -> str:
        return f"The dataset {self.place}" if self.is_dataset else self.place

    @property
    def name(self) -> str:
        """Without a local directory."""
        on_the_hub = self.is_dataset and not os.path.exists(self.place)
        return self.place if on_the_hub else os.path.basename(os.path.abspath(self.place))

    @property
    def is_prepared(self) -> bool:
        return self.place.endswith(BLOCK_SUFFIX)


def parse_sources(text: str, is_dataset: bool = False, **defaults: Any) -> list[Source]:
    """The sources that a path, directory, glob or dataset's id names, with options behind it: `a/*.txt,weight=2`.

    A directory of `Dataset.save_to_disk` is a dataset in any case. `defaults` are fields of [`Source`]. Raises
    ValueError for an unknown option or value, or if no file matches.
    """
    place, options, known = text, dict[str, Any](), DATASET_OPTIONS if is_dataset else FILE_OPTIONS
    while not os.path.exists(place) and (match := _OPTION.search(place)):
        key, value = match.groups()
        if key in options:
            raise ValueError(f"{text}: {key} is given twice.")
        if key not in known:
            raise ValueError(f"{text}: there is no option {key!r}. {known_names(key, known, 'options')}")
        convert, wanted = _CONVERTED.get(key, (str, ""))
        try:
            options[key] = convert(value)
        except (ValueError, KeyError):
            raise ValueError(f"{text}: {key}={value} is not {wanted}.") from None
        place = place[: match.start()]
    is_dataset = is_dataset or _is_saved_dataset(place)
    options = defaults | options
    return [Source(found, is_dataset, **options) for found in ([place] if is_dataset else find_files(place))]


def find_files(pattern: str) -> list[str]:
    """The files that a path, a directory (searched to its depth, without hidden files) or a glob names, sorted.

    What is no file (FIFOs, devices, links that lead nowhere or back) and directories that this program wrote are
    passed over with a warning. Raises ValueError if there is none, or one is neither text nor prepared, OSError for a
    directory that cannot be read.
    """
    known = (*TEXT_SUFFIXES, BLOCK_SUFFIX)
    if os.path.isdir(pattern):
        found = list(_walk(pattern, set()))
        passed = [file for file in found if not os.path.isfile(file)]
        found = [file for file in found if file.lower().endswith(TEXT_SUFFIXES)]
    else:
        found = [pattern] if os.path.isfile(pattern) else glob.glob(pattern, recursive=True)
        passed = [file for file in found if not os.path.isfile(file) and not os.path.isdir(file)]
    if passed:
        logger.warning(f"Passed over, for they are no texts: {', '.join(sorted(passed))}.")
    files = sorted(filter(os.path.isfile, found))
    unknown = [file for file in files if not file.lower().endswith(known)]
    if unknown or not files:
        problem = f"{unknown[0]} is neither text nor prepared." if unknown else f"No file matches {pattern!r}."
        raise ValueError(f"{problem} Known kinds: {', '.join(known)}.")
    return files


def _walk(directory: str, seen: set[str]) -> Iterator[str]:
    """Files, and the directories that are passed over."""
    real, names = os.path.realpath(directory), sorted(os.listdir(directory))
    # A link that leads back; a tokenizer, a model or the output of a run, unless it was named itself.
    if real in seen or (seen and {TOKENIZER_FILE, LOCK_FILE} & {*names}):
        yield directory
        return
    seen.add(real)
    for path in (os.path.join(directory, name) for name in names if not name.startswith(".")):
        yield from _walk(path, seen) if os.path.isdir(path) else (path,)


class _UnusableError(Exception):
    """Why a line or record cannot be used."""


def read_lines(source: Source, dataset: Any = None) -> Iterator[str]:
    """The lines of a file, or of a dataset that was loaded, and an empty string where a document ends.

    A record of JSON lines or Parquet and a row of a dataset are documents; blank lines in them separate paragraphs.
    Those without text (null or empty) are left out. Lines are stripped, and hold no NUL, lone surrogate or line break.
    Raises ValueError for what cannot be read, with the line, record or row where there is one, and the remedy.
    """
    column, kind = source.text_column, source.place.lower().removesuffix(".gz").removesuffix(".zst")
    records: Iterable[Any]
    get_lines: Callable[[Any, str], Iterable[str]] = _document
    if source.is_dataset:
        unit, records = "row", dataset
    elif kind.endswith(".parquet"):
        unit, records = "record", _parquet_records(source.place, column)
    elif kind.endswith(".jsonl"):
        unit, records, get_lines = "line", _raw_lines(source, MAX_RECORD), _json_document
    else:
        unit, records, get_lines = "line", _raw_lines(source, MAX_LINE), lambda line, _: (line,)
    number, before = 0, ""
    with reading(source, _REMEDIES[source.is_dataset]):
        try:
            for number, record in enumerate(records, 1):  # noqa: B007  # errors name it
                for line in map(_clean, get_lines(record, column)):
                    if line or before:
                        yield line
                    before = line
        except _UnusableError as error:
            raise ValueError(f"{source}, {unit} {number} {error}") from None
        except UnicodeError as error:
            if isinstance(error, UnicodeDecodeError):  # it was found while several lines were decoded
                number += error.object.count(b"\n", 0, error.start)
            raise ValueError(
                f"{source}, {unit} {number + 1} is not {source.encoding.upper()}. Name the encoding (--encoding, such "
                "as utf-16 or latin-1), or use --encoding_errors replace."
            ) from None
    if before:
        yield ""


def _raw_lines(source: Source, longest: int) -> Iterator[str]:
    import pyarrow as pa

    encoding = source.encoding.lower().replace("_", "-")
    encoding = "utf-8-sig" if encoding in ("utf-8", "utf8") else encoding  # drops a byte order mark
    # Decompresses by the file's name. `readline` ends lines at \n, \r\n and \r alone.
    with io.TextIOWrapper(pa.input_stream(source.place), encoding, source.encoding_errors) as lines:
        while line := lines.readline(longest + 1):  # a line that is too long stays so, to be refused
            yield line


def _clean(line: str) -> str:
    if len(line.removesuffix("\n")) > MAX_LINE:
        raise _UnusableError(f"has more than {MAX_LINE:,} characters in a line. Split it.")
    line = line.strip()
    with suppress(UnicodeEncodeError):
        if "\0" not in line and (line.isascii() or line.encode()):
            return line
    raise _UnusableError(
        "holds a NUL character or half of a surrogate pair: it is no text, or in another encoding (--encoding utf-16)."
    )


def _json_document(line: str, column: str) -> Iterable[str]:
    if len(line.removesuffix("\n")) > MAX_RECORD:
        raise _UnusableError(f"has more than {MAX_RECORD:,} characters. Split it.")
    if line.isspace():
        return ()
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _UnusableError(f"is not a JSON record ({error}).") from None
    return _document(record if isinstance(record, dict) else {}, column)


def _document(record: dict[str, Any], column: str) -> Iterable[str]:
    if not isinstance(record.get(column, 0), str | None):
        found = f"it is {type(record[column]).__name__}" if column in record else f"there are: {', '.join(record)}"
        raise _UnusableError(f"has no text in a column {column!r} ({found}). Name its column (text_column).")
    return chain(filter(str.strip, io.StringIO(record[column] or "", newline=None)), [""])


def _parquet_records(file: str, column: str) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20) as table:
        columns = [column] if column in table.schema_arrow.names else None
        for batch in table.iter_batches(batch_size=64, columns=columns, use_threads=False):
            yield from batch.to_pylist()


class Text(NamedTuple):
    """A source whose lines (see `read_lines`) can be read again and again."""

    source: Source
    lines: Callable[[], Iterator[str]]


@contextmanager
def open_texts(sources: Sequence[Source], directory: Path) -> Iterator[tuple[list[Text], Path]]:
    """The texts of some sources, and a directory for temporary files. Meanwhile `directory` is locked.

    Raises ValueError for a dataset that cannot be loaded, or if another process prepares in the directory.
    """
    with ExitStack() as stack:
        with naming(directory):
            stack.callback(lock_directory(directory).release)
            remove_partial(directory)
            temporary = tempfile.TemporaryDirectory(prefix=f".scratch{PARTIAL}", dir=directory)
            scratch = Path(stack.enter_context(temporary))
        yield [_open(source, scratch / f"{number}.txt.zst") for number, source in enumerate(sources)], scratch


def _open(source: Source, copy: Path) -> Text:
    if not source.is_dataset:
        return Text(source, partial(_read_unchanged, source, os.stat(source.place)))
    with reading(source, _REMEDIES[source.is_dataset]):
        dataset = _load_dataset(source)
    if not source.streaming:
        return Text(source, partial(read_lines, source, dataset))
    import zstandard  # a stream is downloaded once, to a compressed copy of its text

    with naming(copy.parent.parent), zstandard.open(copy, "wt", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in tqdm(read_lines(source, dataset), source.name, disable=None))
    return Text(source, partial(read_lines, Source(str(copy))))


def _read_unchanged(source: Source, before: os.stat_result) -> Iterator[str]:
    yield from read_lines(source)
    now = os.stat(source.place)
    if (now.st_size, now.st_ctime_ns, now.st_ino) != (before.st_size, before.st_ctime_ns, before.st_ino):
        raise ValueError(f"{source} changed while it was read. Wait until it is whole, and start again.")


def _is_saved_dataset(directory: str) -> bool:
    return any(os.path.isfile(os.path.join(directory, name)) for name in ("state.json", "dataset_dict.json"))


def _load_dataset(source: Source) -> Any:
    from datasets import DatasetDict, load_dataset, load_from_disk

    if _is_saved_dataset(source.place):
        dataset = load_from_disk(source.place)
        dataset = dataset[source.split] if isinstance(dataset, DatasetDict) else dataset
    else:
        options = {"split": source.split, "streaming": source.streaming, "revision": source.revision}
        dataset = load_dataset(source.place, source.config, **options)
    has_column = source.text_column in (dataset.column_names or ())
    return dataset.select_columns([source.text_column]) if has_column else dataset


def scan(texts: Sequence[Text], disable_progress: bool = False) -> list[dict[str, Any]]:
    """Reads and validates every text: what a header says about it, with `sha256`, `num_lines` (that are not blank) and
    `num_documents`. Raises ValueError for a text that is empty or cannot be read."""
    found, names = [], dict[str, str]()
    for source, lines in texts:
        digest, num_lines, num_documents = hashlib.sha256(), 0, 0
        for line in tqdm(lines(), f"Reading {source.name}", disable=disable_progress, leave=False):
            digest.update(line.encode() + b"\n")
            num_lines, num_documents = num_lines + bool(line), num_documents + (not line)
        if not num_documents:
            raise ValueError(f"{source.name} holds no text.")
        sha256 = digest.hexdigest()
        if sha256 in names:
            logger.warning(
                f"{names[sha256]} and {source.name} hold the same text: what is held out of one may be trained on in "
                "the other. Leave one out (weight=2 reads it twice), or use --drop_duplicates exact."
            )
        names[sha256] = source.name
        kept = ("name", "weight", *(("config", "split", "revision") if source.is_dataset else ()))
        counts = {"sha256": sha256, "num_lines": num_lines, "num_documents": num_documents}
        found.append({key: getattr(source, key) for key in kept} | counts)
    return found
