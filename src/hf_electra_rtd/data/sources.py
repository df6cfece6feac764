"""What text is asked for: files or a Hub dataset, how they are read, and how often."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hf_electra_rtd.data.files import BLOCK_SUFFIX, find_files
from hf_electra_rtd.data.readers import DEFAULT_READING, Reading


logger = logging.getLogger(__name__)

FILE_OPTIONS = ("text_column", "encoding", "encoding_errors", "weight")
DATASET_OPTIONS = ("config", "split", "streaming", "revision", "text_column", "weight")
MAX_WEIGHT = 1000
_OPTION = re.compile(r",([A-Za-z_]+)=([^,]*)$")


@dataclass(frozen=True)
class FileSource:
    """Files that belong together.

    Attributes:
        files: their paths, in the order in which they are read.
        reading: how they are read.
        weight: how often each document is read in an epoch: 2.0 is twice, 0.5 a random half of them once.
    """

    files: tuple[str, ...]
    reading: Reading = DEFAULT_READING
    weight: float = 1.0

    def __post_init__(self) -> None:
        _check_weight(self.weight)

    @property
    def is_prepared(self) -> bool:
        """Whether these are block files instead of text."""
        return any(file.endswith(BLOCK_SUFFIX) for file in self.files)


@dataclass(frozen=True)
class DatasetSource:
    """A split of a dataset of the Hub, or of a local directory that `datasets` can load.

    Attributes:
        dataset: id or directory.
        config: of the dataset; by default its only one.
        split: of the dataset.
        streaming: fetch it while it is read instead of first downloading it as a whole.
        revision: branch, tag or commit of the dataset's repository.
        text_column: that holds a document's text.
        weight: as of [`FileSource`].
    """

    dataset: str
    config: str | None = None
    split: str = "train"
    streaming: bool = False
    revision: str | None = None
    text_column: str = "text"
    weight: float = 1.0

    def __post_init__(self) -> None:
        _check_weight(self.weight)

    @property
    def name(self) -> str:
        """The dataset's id; of a local one only the directory's name."""
        return os.path.basename(os.path.abspath(self.dataset)) if os.path.exists(self.dataset) else self.dataset


AnySource = FileSource | DatasetSource


def _check_weight(weight: float) -> None:
    if not (weight > 0 and math.isfinite(weight)):
        raise ValueError(f"weight is {weight}: it must be above 0 (2 reads twice an epoch, 0.5 half of it).")
    if weight > MAX_WEIGHT:
        raise ValueError(f"weight is {weight}: it must be at most {MAX_WEIGHT}; train for more steps instead.")


def parse_file_source(text: str, defaults: Reading = DEFAULT_READING) -> FileSource:
    """A source from a path, a directory or a glob pattern, with options behind it.

    Args:
        text: such as `news/*.jsonl.gz,text_column=body,weight=2`.
        defaults: where the source has no option of its own.

    Raises:
        ValueError: for an option that there is not or that cannot be read, or files that there are not.
    """
    pattern, options = _split_options(text, FILE_OPTIONS)
    weight = _number(text, options.pop("weight", "1"))
    return FileSource(tuple(find_files(pattern)), replace(defaults, **options), weight)


def parse_dataset_source(text: str, text_column: str = "text") -> DatasetSource:
    """A source from a dataset's id with options behind it.

    Args:
        text: such as `wikimedia/wikipedia,config=20231101.en,streaming=true,weight=0.5`.
        text_column: where the source has no such option.

    Raises:
        ValueError: for an option that there is not or that cannot be read.
    """
    dataset, options = _split_options(text, DATASET_OPTIONS)
    if not dataset:
        raise ValueError(f"{text!r} names no dataset.")
    streaming = options.pop("streaming", "false").lower()
    if streaming not in ("true", "false"):
        raise ValueError(f"{text}: streaming={streaming} is neither true nor false.")
    weight = _number(text, options.pop("weight", "1"))
    named = {"text_column": text_column, **options}
    return DatasetSource(dataset, streaming=streaming == "true", weight=weight, **named)


def _split_options(text: str, known: Sequence[str]) -> tuple[str, dict[str, str]]:
    options: dict[str, str] = {}
    rest = text
    while not os.path.exists(rest) and (match := _OPTION.search(rest)):
        key, value = match.groups()
        if key not in known:
            raise ValueError(f"{text}: there is no option {key!r}. Known are: {', '.join(known)}.")
        if key in options or not value:
            raise ValueError(f"{text}: the option {key!r} is " + ("given twice." if key in options else "empty."))
        options[key] = value
        rest = rest[: match.start()]
    return rest, options


def _number(text: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{text}: weight={value} is not a number.") from None


def drop_repeated_files(sources: Sequence[AnySource]) -> list[AnySource]:
    """The sources with every file once: in the first source that names it."""
    seen: set[str] = set()
    kept: list[AnySource] = []
    for source in sources:
        if isinstance(source, FileSource):
            new = {os.path.realpath(file): file for file in source.files if os.path.realpath(file) not in seen}
            seen.update(new)
            if len(new) < len(source.files):
                logger.warning(
                    f"{len(source.files) - len(new):,} files are named more than once, and belong to the first source "
                    "that names them."
                )
            if not new:
                continue
            source = replace(source, files=tuple(new.values()))
        kept.append(source)
    return kept
