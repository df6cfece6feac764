"""Reads files and datasets as clean lines, in memory that does not depend on the size of the text.

A text is a stream of stripped lines; an empty line ends a document.
"""

from __future__ import annotations

import glob
import hashlib
import io
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from hf_electra_rtd.base.cli import check_number, warn_once
from hf_electra_rtd.base.files import LOCK_FILE, PARTIAL, known_names, lock_directory, naming, reading, remove_partial
from hf_electra_rtd.data.blocks import BLOCK_SUFFIX
from hf_electra_rtd.data.reader import records_of
from hf_electra_rtd.data.shards import INDEX_FILE
from hf_electra_rtd.data.tokenization import TOKENIZER_FILE


logger = logging.getLogger(__name__)

TEXT_SUFFIXES = (".txt", ".txt.gz", ".txt.zst", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
FILE_OPTIONS = ("text_column", "encoding", "encoding_errors", "weight")
DATASET_OPTIONS = ("config", "split", "streaming", "revision", "text_column", "weight")
_SHOWN = 20  # names in a warning
_REMEDIES = {  # by whether the source is a dataset
    False: "It may be cut off, damaged, in another encoding, or of another kind than its name says.",
    True: "Check its id, config, split, revision and the network (HF_HUB_OFFLINE); some need a login (hf auth login).",
}
_OPTION = re.compile(r",([A-Za-z_]+)=([^,]*)$")
_CONVERT: dict[str, Callable[[str], Any]] = {"weight": float, "streaming": {"true": True, "false": False}.__getitem__}


@dataclass(frozen=True)
class Source:
    """A text file, prepared blocks or a dataset, and how it is read."""

    # A file; a directory of shards; the id of a dataset on the Hub, or a directory that `load_dataset` or
    # `load_from_disk` reads.
    place: str
    is_dataset: bool = False
    config: str | None = None  # `config`, `split` and `revision` are those of `load_dataset`
    split: str = "train"
    revision: str | None = None
    streaming: bool = False  # only the text is downloaded, and stored compressed until it is prepared
    text_column: str = "text"  # key or column of a document's text
    encoding: str = "utf-8"  # of text and JSON lines, as in `open`
    encoding_errors: str = "strict"
    weight: float = 1.0  # how often each document is read in an epoch: 2 is twice, 0.5 a random half of them once
    # Data that is read instead of `place`, which is then only a name: a `datasets.Dataset`, or a dict of column lists.
    in_memory: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_number("weight", self.weight, "(0, 1000]")

    def __str__(self) -> str:
        return f"The dataset {self.place}" if self.is_dataset else self.place

    @property
    def name(self) -> str:
        """The name for records: a Hub id, or the last part of a local path."""
        on_the_hub = self.is_dataset and not os.path.exists(self.place)
        return self.place if on_the_hub else os.path.basename(os.path.abspath(self.place))

    @property
    def format(self) -> str:
        """The format of a file, as `records_of` names it."""
        name = self.place.lower().removesuffix(".gz").removesuffix(".zst")
        return {".parquet": "parquet", ".jsonl": "jsonl"}.get(Path(name).suffix, "text")

    @property
    def is_prepared(self) -> bool:
        is_sharded = os.path.isfile(os.path.join(self.place, INDEX_FILE))
        return self.place.endswith(BLOCK_SUFFIX) or (is_sharded and not self.is_dataset)


def find_sources(sources: Any, text_column: str = "text") -> list[Source]:
    """Returns the sources of one item or a list of items: paths with options, as in `parse_sources`; a
    `datasets.Dataset` or a dict of texts, `{"text": texts}`, in which each row of the `text_column` is a document; and
    [`Source`]s. Raises TypeError for anything else, and ValueError as `parse_sources` does."""
    found: list[Source] = []
    for source in sources if isinstance(sources, (list, tuple)) else [sources]:
        if isinstance(source, Source):
            found.append(source)
        elif isinstance(source, (str, os.PathLike)):
            found += parse_sources(os.fspath(source), text_column=text_column)
        elif isinstance(source, Mapping) and not isinstance(source.get(text_column), (str, Iterator, type(None))):
            found.append(Source("the texts in memory", text_column=text_column, in_memory=source))
        elif hasattr(source, "select_columns") and not isinstance(source, Mapping):
            rows = _with_column(source, text_column)
            found.append(Source("the dataset in memory", text_column=text_column, in_memory=rows))
        else:
            kind = type(source).__name__
            raise TypeError(f"{kind} is not text: pass paths, a datasets.Dataset or {{{text_column!r}: texts}}.")
    return found


def parse_sources(text: str, is_dataset: bool = False, **defaults: Any) -> list[Source]:
    """Returns the sources that a path, directory, glob or dataset id names, with options after it: `a/*.txt,weight=2`.
    `defaults` are fields of [`Source`]. Raises ValueError for an unknown option or value, for options of prepared
    blocks, and if no file matches."""
    place = text
    options: dict[str, Any] = {}
    known = DATASET_OPTIONS if is_dataset else FILE_OPTIONS
    while not os.path.exists(place) and (match := _OPTION.search(place)):
        key, value = match.groups()
        if key not in known:
            raise ValueError(f"{text}: there is no option {key!r}. {known_names(key, known, 'options')}")
        try:
            options[key] = _CONVERT.get(key, str)(value)
        except (ValueError, KeyError):
            wanted = "a number" if key == "weight" else "true or false"
            raise ValueError(f"{text}: {key}={value} is not {wanted}.") from None
        place = place[: match.start()]
    is_dataset = is_dataset or _is_saved_dataset(place)
    named = [place] if is_dataset else find_files(place)
    sources = [Source(name, is_dataset, **defaults | options) for name in named]
    if options and any(source.is_prepared for source in sources):
        raise ValueError(f"{text}: {place} is prepared already. Leave {next(iter(options))} out.")
    return sources


def find_files(pattern: str) -> list[str]:
    """Returns the sorted files that a path, a directory (searched recursively, without hidden files) or a glob names.
    A directory of shards is returned as it is.

    These are passed over with a warning: what is not a regular file (FIFOs, devices, broken or circular links); what
    this program wrote; and, in a directory, files of other kinds. Raises ValueError if no file is left, or one is
    neither text nor prepared blocks, or is one of several shards, and OSError for a directory that cannot be read.
    """
    if os.path.isdir(pattern):
        if _holds_shards(os.listdir(pattern)):
            return [pattern]
        paths = set(_walk(pattern, set()))
        files = [path for path in paths if os.path.isfile(path) and path.lower().endswith(TEXT_SUFFIXES)]
    elif os.path.isfile(pattern):
        paths = {pattern}
        files = [pattern]
    else:
        paths = set(glob.glob(pattern, recursive=True))
        # The `vocab.txt` of a tokenizer is not text.
        files = [
            path for path in paths if os.path.isfile(path) and not os.path.isfile(Path(path).with_name(TOKENIZER_FILE))
        ]
    files.sort()
    passed = sorted(paths.difference(files))
    if passed:
        shown = ", ".join(passed[:_SHOWN])
        more = f" and {len(passed) - _SHOWN:,} more" if len(passed) > _SHOWN else ""
        warn_once(f"Passed over, because they are not text: {shown}{more}.")
    kinds = (*TEXT_SUFFIXES, BLOCK_SUFFIX)
    for file in files:
        if not file.lower().endswith(kinds):
            raise ValueError(f"{file} is neither text nor prepared. Known kinds: {', '.join(kinds)}.")
        if file.lower().endswith(BLOCK_SUFFIX) and os.path.isfile(Path(file).with_name(INDEX_FILE)):
            raise ValueError(
                f"{file} lies beside {INDEX_FILE}, so it is one of several shards. Name their directory "
                f"({os.path.dirname(file) or '.'}), or move the file to another one."
            )
    if not files:
        if prepared := [path for path in passed if path.endswith(BLOCK_SUFFIX)]:
            raise ValueError(f"{pattern} holds prepared blocks and no text. Name one file: {prepared[-1]}.")
        raise ValueError(f"No file matches {pattern!r}. Known kinds: {', '.join(kinds)}.")
    return files


def _holds_shards(names: Sequence[str]) -> bool:
    """Returns whether a directory with these file names holds shards and their index, possibly among other files."""
    return INDEX_FILE in names and any(name.endswith(BLOCK_SUFFIX) for name in names)


def _walk(directory: str, seen: set[str]) -> Iterator[str]:
    """Yields the files below a directory, and the directories that are passed over."""
    real = os.path.realpath(directory)
    names = sorted(os.listdir(directory))
    # Passed over: a circular link; a tokenizer, a model, shards or the output of a run, unless the user named it.
    is_ours = _holds_shards(names) or not {TOKENIZER_FILE, LOCK_FILE}.isdisjoint(names)
    if real in seen or (seen and is_ours):
        yield directory
        return
    seen.add(real)
    for name in names:
        path = os.path.join(directory, name)
        if name.startswith("."):
            continue
        if os.path.isdir(path):
            yield from _walk(path, seen)
        else:
            yield path


def read_text(source: Source, dataset: Any = None) -> Iterator[str]:
    """Yields the lines of a file, or of a loaded `dataset`, and an empty string where a document ends.

    Each record of JSON lines or Parquet, and each row of a dataset, is a document; those without text are left out.
    Lines are stripped, and contain no NUL, lone surrogate or line break. Raises ValueError for content that cannot be
    read, with the line or row, if known, and the remedy.
    """
    records: Iterator[tuple[str, Any]]
    is_plain = dataset is None and source.format == "text"
    if dataset is not None:
        rows: Any = dataset
        if isinstance(dataset, Mapping):
            rows = ({source.text_column: text} for text in dataset[source.text_column])
        records = ((f"{source}, row {number}", row) for number, row in enumerate(rows, 1))
    else:
        records = records_of(
            source.place,
            source.format,
            encoding=source.encoding,
            encoding_errors=source.encoding_errors,
            columns=[source.text_column],
        )
    before = ""
    with reading(source, _REMEDIES[source.is_dataset]):
        for place, record in records:
            try:
                lines = [_clean(record)] if is_plain else [*document_lines(_text(record, source.text_column)), ""]
            except ValueError as error:
                raise ValueError(f"{place} {error}") from None
            for line in lines:
                if line or before:
                    yield line
                before = line
    if before:
        yield ""


def _clean(line: str) -> str:
    line = line.strip()
    with suppress(UnicodeEncodeError):
        if "\0" not in line and (line.isascii() or line.encode()):
            return line
    raise ValueError("holds a NUL character or half of a surrogate pair. Is it text, or in another encoding?")


def document_lines(text: str) -> list[str]:
    """Returns the lines of a document, as `read_text` yields them. Raises ValueError for a NUL or a lone surrogate."""
    return [_clean(line) for line in io.StringIO(text, newline=None) if line.strip()]


def _text(record: Any, column: str) -> str:
    """Returns the text of a record, which may be empty. Raises ValueError if the record has none in this column."""
    if not isinstance(record, dict) or column not in record:
        names = ", ".join(record) if isinstance(record, dict) else type(record).__name__
        raise ValueError(f"has no text in a column {column!r} (there are: {names}). Name its column (text_column).")
    text = record[column]
    if text is not None and not isinstance(text, str):
        raise ValueError(f"has no text in a column {column!r} (it is {type(text).__name__}).")
    return text or ""


class Text:
    """A source whose lines can be read repeatedly. A stream is downloaded once, to a compressed `copy`."""

    def __init__(self, source: Source, copy: Path, disable_progress: bool) -> None:
        self.source = source
        self._source = source  # what is read: the source, or the copy of a stream
        self._dataset: Any = source.in_memory
        self._disable = disable_progress
        if source.is_dataset:
            with reading(source, _REMEDIES[True]):
                self._dataset = _load_dataset(source)
        if source.streaming:
            import pyarrow as pa

            with naming(copy.parent.parent), pa.output_stream(copy, compression="zstd") as file:
                lines = tqdm(read_text(source, self._dataset), source.name, disable=disable_progress or None)
                for line in lines:
                    file.write(f"{line}\n".encode())
            self._source = Source(str(copy))
            self._dataset = None
        self._before = self._state()

    def read(self, what: str) -> Iterator[str]:
        """Yields lines as `read_text` does; `what` labels the progress bar. Raises ValueError if the file changed
        while it was read or since it was opened."""
        lines = read_text(self._source, self._dataset)
        yield from tqdm(lines, f"{what}: {self.source.name}", disable=self._disable or None, leave=False)
        if self._state() != self._before:
            raise ValueError(f"{self.source} changed while it was read. Wait until it is whole, and start again.")

    def _state(self) -> tuple[int, ...]:
        if self._dataset is not None:
            return ()
        file = os.stat(self._source.place)
        return (file.st_size, file.st_ctime_ns, file.st_ino)


@contextmanager
def open_texts(sources: Sequence[Source], directory: Path, disable_progress: bool = False) -> Iterator[list[Text]]:
    """Opens sources as texts. Until they are closed, `directory` is locked, and holds the copies of streams. Raises
    ValueError for a dataset that cannot be loaded, and if another process prepares in the directory."""
    with ExitStack() as stack:
        with naming(directory):
            stack.callback(lock_directory(directory).release)
            remove_partial(directory)
            temporary = tempfile.TemporaryDirectory(prefix=f".scratch{PARTIAL}", dir=directory)
            scratch = Path(stack.enter_context(temporary))
        yield [Text(source, scratch / f"{place}.txt.zst", disable_progress) for place, source in enumerate(sources)]


def _is_saved_dataset(directory: str) -> bool:
    return any(os.path.isfile(os.path.join(directory, name)) for name in ("state.json", "dataset_dict.json"))


def _load_dataset(source: Source) -> Any:
    from datasets import DatasetDict, load_dataset, load_from_disk

    if _is_saved_dataset(source.place):
        dataset = load_from_disk(source.place)
        is_single = not isinstance(dataset, DatasetDict)
        if source.config or source.revision or (is_single and source.split != Source.split):
            raise ValueError("a saved dataset has no config, no revision, and no split unless several were saved")
        if not is_single and source.split not in dataset:
            raise ValueError(f"it has no split {source.split!r}, only {', '.join(dataset)}")
        dataset = dataset if is_single else dataset[source.split]
    else:
        options = {"split": source.split, "streaming": source.streaming, "revision": source.revision}
        dataset = load_dataset(source.place, source.config, **options)
    return _with_column(dataset, source.text_column)


def _with_column(dataset: Any, column: str) -> Any:
    """Returns the dataset with this column alone, or unchanged if it does not have the column."""
    return dataset.select_columns([column]) if column in (dataset.column_names or ()) else dataset


def scan(texts: Sequence[Text]) -> list[dict[str, Any]]:
    """Reads and validates every text. Returns what the header of a block file records about each: name, weight and
    origin, `sha256`, `num_lines` (that are not blank) and `num_documents`. Warns of sources with the same text. Raises
    ValueError for a text that is empty or cannot be read."""
    facts: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for text in texts:
        source = text.source
        digest = hashlib.sha256()
        num_lines = 0
        num_documents = 0
        for line in text.read("Reading"):
            digest.update(line.encode() + b"\n")
            if line:
                num_lines += 1
            else:
                num_documents += 1
        if not num_documents:
            raise ValueError(f"{source} holds no text.")
        sha256 = digest.hexdigest()
        if sha256 in names:
            logger.warning(
                f"{names[sha256]} and {source} hold the same text: what is held out of one may be trained on in the "
                "other. Leave one out."
            )
        names[sha256] = str(source)
        kept = ["name", "weight"]
        if source.is_dataset:
            kept += ["config", "split", "revision"]
        counts = {"sha256": sha256, "num_lines": num_lines, "num_documents": num_documents}
        facts.append({name: getattr(source, name) for name in kept} | counts)
    return facts
