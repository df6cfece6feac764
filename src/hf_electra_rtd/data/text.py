"""From files and datasets to clean lines: where text lies, how it is read, and what tells one text from another.

A text is a stream of stripped lines; an empty line ends a document. Memory does not depend on the size of a text.
Files are read here and not by `datasets`, whose readers take a cut-off .zst file for a whole one, name neither file
nor line in errors, and turn JSON strings that look like dates into dates.
"""

from __future__ import annotations

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
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tqdm.auto import tqdm

from hf_electra_rtd.data.blocks import BLOCK_SUFFIX
from hf_electra_rtd.files import PARTIAL, known_names, lock_directory, naming, remove_partial


logger = logging.getLogger(__name__)

TEXT_SUFFIXES = (*(kind + packed for kind in (".txt", ".jsonl") for packed in ("", ".gz", ".zst")), ".parquet")
FILE_OPTIONS = ("text_column", "encoding", "encoding_errors", "weight")
DATASET_OPTIONS = ("config", "split", "streaming", "revision", "text_column", "weight")
MAX_WEIGHT = 1000
MAX_LINE, MAX_RECORD = 8 * 2**20, 64 * 2**20  # characters; a record is a line of JSON, which holds a whole document
_CONVERTED: dict[str, Callable[[str], Any]] = {
    "weight": float,
    "streaming": {"true": True, "false": False}.__getitem__,
}
_OPTION = re.compile(r",([A-Za-z_]+)=([^,]*)$")
_BATCH = 64  # documents in memory at once
_DATASET = "The dataset "  # begins what errors call a dataset


@dataclass(frozen=True)
class Source:
    """Text files, or a dataset, and how they are read. Raises ValueError for an encoding or weight that cannot be."""

    files: tuple[str, ...] = ()  # in the order in which they are read; empty for a dataset
    dataset: str = ""  # id on the Hub, or a directory that `load_dataset` or `load_from_disk` reads
    config: str | None = None  # this, `split` and `revision` as in `load_dataset`
    split: str = "train"
    revision: str | None = None
    streaming: bool = False  # only the text is downloaded, and stored compressed until it is prepared
    text_column: str = "text"  # key or column of a document's text
    encoding: str = "utf-8"  # of text and JSON lines, as in `open`
    encoding_errors: str = "strict"
    weight: float = 1.0  # how often each document is read in an epoch: 2 is twice, 0.5 a random half of them once

    def __post_init__(self) -> None:
        try:
            "".encode(self.encoding)
        except (LookupError, ValueError):
            raise ValueError(f"There is no encoding {self.encoding!r}. Examples: utf-8, utf-16, gb18030.") from None
        if self.encoding_errors not in ("strict", "replace", "ignore"):
            raise ValueError(f"There is no encoding_errors={self.encoding_errors!r}. Known: strict, replace, ignore.")
        if not 0 < self.weight <= MAX_WEIGHT:
            raise ValueError(f"weight={self.weight} is out of range. Choose a number above 0, at most {MAX_WEIGHT}.")

    @property
    def names(self) -> list[str]:
        """Of the files or the dataset, without a local directory."""
        if self.dataset and not os.path.exists(self.dataset):
            return [self.dataset]
        return [os.path.basename(os.path.abspath(place)) for place in self.files or (self.dataset,)]

    @property
    def is_prepared(self) -> bool:
        """Whether these are block files instead of text."""
        return any(file.endswith(BLOCK_SUFFIX) for file in self.files)


DEFAULT_SOURCE = Source()


def parse_source(text: str, defaults: Source = DEFAULT_SOURCE, is_dataset: bool = False) -> Source:
    """A source from a path, a directory, a glob or a dataset's id, with options behind it: `a/*.txt,weight=2`.

    A directory of `Dataset.save_to_disk` is a dataset in any case; `defaults` has the options that are not given.

    Raises:
        ValueError: for an unknown option or value, or if no file matches.
    """
    place, options = text, dict[str, Any]()
    known = DATASET_OPTIONS if is_dataset else FILE_OPTIONS
    while not os.path.exists(place) and (match := _OPTION.search(place)):
        key, value = match.groups()
        if key not in known:
            raise ValueError(f"{text}: there is no option {key!r}. {known_names(key, known, 'options')}")
        if key in options or not value:
            raise ValueError(f"{text}: the option {key!r} is {'given twice' if key in options else 'empty'}.")
        try:
            options[key] = _CONVERTED.get(key, str)(value)
        except (ValueError, KeyError):
            wanted = "a number" if key == "weight" else "true or false"
            raise ValueError(f"{text}: {key}={value} is not {wanted}.") from None
        place = place[: match.start()]
    if is_dataset or _is_saved_dataset(place):
        return replace(defaults, dataset=place, **options)
    return replace(defaults, files=tuple(find_files(place)), **options)


def find_files(pattern: str) -> list[str]:
    """The files that a path, a directory (searched to its depth, without hidden files) or a glob names, sorted.

    Raises:
        ValueError: if there is none, or one is named that is neither text nor prepared blocks.
        OSError: for a directory that cannot be read.
    """
    found: Iterable[str]
    if os.path.isdir(pattern):
        found = _walk(pattern)
    else:
        found = [pattern] if os.path.isfile(pattern) else filter(os.path.isfile, glob.glob(pattern, recursive=True))
    files, known = sorted(found), (*TEXT_SUFFIXES, BLOCK_SUFFIX)
    for file in files:
        if not file.lower().endswith(known):
            raise ValueError(f"{file} is neither text nor prepared. Known kinds: {', '.join(known)}.")
    if not files:
        raise ValueError(f"No file matches {pattern!r}. Known kinds: {', '.join(known)}.")
    return files


def _walk(directory: str) -> Iterator[str]:
    def refuse(error: OSError) -> NoReturn:
        raise error

    seen = set()
    for place, directories, names in os.walk(directory, followlinks=True, onerror=refuse):
        if (real := os.path.realpath(place)) in seen:  # a link that leads back
            directories.clear()
            continue
        seen.add(real)
        directories[:] = [name for name in directories if not name.startswith(".")]
        texts = (name for name in names if name.lower().endswith(TEXT_SUFFIXES) and not name.startswith("."))
        yield from (os.path.join(place, name) for name in texts)


# ---- Lines ----


class _UnusableError(Exception):
    """Why a line or record cannot be used; `_read` says which one it is."""


def read_lines(file: str, source: Source = DEFAULT_SOURCE) -> Iterator[str]:
    """The lines of a file, stripped, and an empty string where a document ends (the last one included).

    A record of JSON lines or Parquet is a document; blank lines in it separate paragraphs. Records without text (null
    or empty) are left out. Lines hold no NUL, lone surrogate or line break.

    Raises:
        ValueError: for a file that cannot be read, with the line or record where there is one, and the remedy.
    """
    kind, column = file.lower().removesuffix(".gz").removesuffix(".zst"), source.text_column
    if kind.endswith(".parquet"):
        return _read(_parquet_records(file, column), lambda record: _document(record, column), f"{file}, record")
    if kind.endswith(".jsonl"):
        lines = _raw_lines(file, source, MAX_RECORD)
        return _read(lines, lambda line: _json_document(line, column), f"{file}, line", source)
    return _read(_raw_lines(file, source, MAX_LINE), lambda line: (line,), f"{file}, line", source)


def _read(
    records: Iterable[Any], get_lines: Callable[[Any], Iterable[str]], place: str, source: Source = DEFAULT_SOURCE
) -> Iterator[str]:
    """The clean lines of records (of one line or one document each). The only place that says in errors where they
    are: `place` ends with what is counted."""
    number, before = 0, ""
    try:
        for number, record in enumerate(records, 1):  # noqa: B007  # errors name it
            for line in map(_clean, get_lines(record)):
                if line or before:
                    yield line
                before = line
    except _UnusableError as error:
        raise ValueError(f"{place} {number} {error}") from None
    except UnicodeError as error:
        byte = ""
        if isinstance(error, UnicodeDecodeError):
            read = error.object[: error.start]
            number += max(read.count(b"\n"), read.count(b"\r"))
            byte = f" (byte 0x{error.object[error.start]:02x})"
        raise ValueError(
            f"{place} {number + 1} is not {source.encoding.upper()}{byte}. Name the encoding (--encoding, such "
            "as utf-16 or latin-1), or use --encoding_errors replace."
        ) from None
    except Exception as error:  # whatever a decompressor, Parquet, the network or a loader says
        raise _unreadable(place.rpartition(",")[0], error) from error
    if before:
        yield ""


def _raw_lines(file: str, source: Source, longest: int) -> Iterator[str]:
    import pyarrow as pa

    encoding = source.encoding.lower().replace("_", "-")
    encoding = "utf-8-sig" if encoding in ("utf-8", "utf8") else encoding  # drops a byte order mark
    # Decompresses by the file's name. `readline` ends lines at \n, \r\n and \r alone.
    with io.TextIOWrapper(pa.input_stream(file), encoding, source.encoding_errors) as lines:
        while line := lines.readline(longest + 1):  # a line that is too long stays so: `_clean` refuses it
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
        for batch in table.iter_batches(batch_size=_BATCH, columns=columns, use_threads=False):
            yield from batch.to_pylist()


# ---- Datasets ----


def _is_saved_dataset(directory: str) -> bool:
    return any(os.path.isfile(os.path.join(directory, name)) for name in ("state.json", "dataset_dict.json"))


def _load_dataset(source: Source) -> Any:
    from datasets import DatasetDict, load_dataset, load_from_disk

    if _is_saved_dataset(source.dataset):
        dataset = load_from_disk(source.dataset)
        return dataset[source.split] if isinstance(dataset, DatasetDict) else dataset
    return load_dataset(
        source.dataset, source.config, split=source.split, streaming=source.streaming, revision=source.revision
    )


def _dataset_records(dataset: Any, column: str) -> Iterator[dict[str, Any]]:
    if column in (dataset.column_names or ()):
        dataset = dataset.select_columns([column])
    for batch in dataset.iter(batch_size=_BATCH):
        yield from (dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True))


def _unreadable(place: str, error: Exception) -> ValueError:
    said = " ".join(str(getattr(error, "strerror", None) or error).split())[:400].rstrip(".") or type(error).__name__
    remedy = "It may be cut off, damaged, or of another kind than its name says."
    if place.startswith(_DATASET):
        remedy = (
            "Check its id, config, split and revision, and the connection; a private or gated one needs a login "
            "(hf auth login)."
        )
        if os.environ.get("HF_HUB_OFFLINE"):
            remedy += " HF_HUB_OFFLINE is set: unset it, or name local files."
    return ValueError(f"{place} cannot be read ({said}). {remedy}")


# ---- Texts that are read several times ----


class Text(NamedTuple):
    """A file or a dataset whose lines (see `read_lines`) can be read again and again."""

    name: str  # without a local directory
    source: Source
    lines: Callable[[], Iterator[str]]

    @property
    def described(self) -> dict[str, Any]:
        """What a header says about it."""
        source, kept = self.source, ("config", "split", "revision", "weight") if self.source.dataset else ("weight",)
        return {"name": self.name, **{key: getattr(source, key) for key in kept}}


@contextmanager
def open_texts(sources: Sequence[Source], directory: Path) -> Iterator[tuple[list[Text], Path]]:
    """The texts of some sources, in order, each file once, and a directory for temporary files. Meanwhile `directory`,
    that of the preparation, is locked.

    Raises:
        ValueError: for a dataset that cannot be loaded, or if another process prepares in the directory.
    """
    with ExitStack() as stack:
        with naming(directory):
            stack.callback(lock_directory(directory).release)
            remove_partial(directory)
            partial = tempfile.TemporaryDirectory(prefix=f".scratch{PARTIAL}", dir=directory)
            scratch = Path(stack.enter_context(partial))
        texts, repeated = dict[str, Text](), list[str]()
        for number, source in enumerate(sources):
            for file, name in zip(source.files, source.names if source.files else (), strict=True):
                text = Text(name, source, _reader(file, source))
                if texts.setdefault(os.path.realpath(file), text) is not text:
                    repeated.append(file)
            if source.dataset:
                texts[f"dataset {number}"] = _open_dataset(source, scratch / f"{number}.txt.zst")
        if repeated:
            logger.warning(
                f"Named more than once: {', '.join(repeated[:5])}{', ...' * (len(repeated) > 5)}. The first mention "
                "and its options count (weight=2 reads a text twice)."
            )
        yield list(texts.values()), scratch


def _reader(file: str, source: Source = DEFAULT_SOURCE) -> Callable[[], Iterator[str]]:
    opened = os.stat(file)

    def lines() -> Iterator[str]:
        yield from read_lines(file, source)
        now = os.stat(file)
        if (now.st_size, now.st_ctime_ns, now.st_ino) != (opened.st_size, opened.st_ctime_ns, opened.st_ino):
            raise ValueError(f"{file} changed while it was read. Wait until it is whole, and start again.")

    return lines


def _open_dataset(source: Source, copy: Path) -> Text:
    """Loads a dataset. One that streams is downloaded once, to a compressed copy of its text."""
    place = f"{_DATASET}{source.dataset}"
    try:
        dataset = _load_dataset(source)
    except Exception as error:  # whatever the network, the Hub or a loader says
        raise _unreadable(place, error) from error

    def lines() -> Iterator[str]:
        records, column = _dataset_records(dataset, source.text_column), source.text_column
        return _read(records, lambda record: _document(record, column), f"{place}, row")

    (name,) = source.names
    if not source.streaming:
        return Text(name, source, lines)
    import zstandard

    with naming(copy.parent.parent), zstandard.open(copy, "wt", encoding="utf-8", newline="\n") as file:
        file.writelines(line + "\n" for line in tqdm(lines(), name, disable=None))
    return Text(name, source, _reader(str(copy)))


def scan(texts: Sequence[Text], disable_progress: bool = False) -> list[dict[str, Any]]:
    """Reads and validates every text: its `sha256`, `num_lines` (that are not blank) and `num_documents`.

    Raises:
        ValueError: for a text that is empty or cannot be read.
    """
    found, names = [], dict[str, str]()
    for text in texts:
        digest, num_lines, num_documents = hashlib.sha256(), 0, 0
        for line in tqdm(text.lines(), f"Reading {text.name}", disable=disable_progress, leave=False):
            digest.update(line.encode() + b"\n")
            num_lines, num_documents = num_lines + bool(line), num_documents + (not line)
        if not num_documents:
            raise ValueError(f"{text.name} holds no text.")
        sha256 = digest.hexdigest()
        found.append({"sha256": sha256, "num_lines": num_lines, "num_documents": num_documents})
        if names.setdefault(sha256, text.name) != text.name:
            logger.warning(
                f"{names[sha256]} and {text.name} hold the same text: what is held out of one may be trained on in "
                "the other. Leave one out (weight=2 reads it twice), or use --drop_duplicates exact."
            )
    return found
