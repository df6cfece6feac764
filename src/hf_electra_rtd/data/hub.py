"""Text from a dataset of the Hub, through the `datasets` library."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hf_electra_rtd.data.files import naming_errors, refuse_directory
from hf_electra_rtd.data.readers import document_lines
from hf_electra_rtd.data.sources import DatasetSource


logger = logging.getLogger(__name__)

_BATCH = 64  # documents in memory at once


def load_source(source: DatasetSource) -> Any:
    """Loads (or, streaming, opens) the dataset of a source.

    Raises:
        ValueError: for a dataset, config or split that does not exist, that cannot be reached or accessed, or that
            lacks the column with the text.
    """
    from datasets import Value, load_dataset

    with _explaining(source):
        dataset = load_dataset(
            source.dataset, source.config, split=source.split, streaming=source.streaming, revision=source.revision
        )
    features = dataset.features
    if features is not None:
        if source.text_column not in features:
            raise ValueError(_no_column(source, features))
        feature = features[source.text_column]
        kind = feature.dtype if isinstance(feature, Value) else type(feature).__name__
        if kind not in ("string", "large_string"):
            raise ValueError(f"The dataset {source.dataset}: column {source.text_column!r} holds {kind}, not text.")
    return dataset


def pin_stream(source: DatasetSource) -> tuple[DatasetSource, dict[str, Any]]:
    """The source with its content settled as far as can be told without reading it, and what tells that content apart.

    A revision of the Hub becomes its commit (where that cannot be had, the revision stays as it was given); the files
    of a local directory are told by their sizes and times.
    """
    if os.path.exists(source.dataset):
        return source, {"state": _local_state(source.dataset)}
    from huggingface_hub import dataset_info

    try:
        commit = dataset_info(source.dataset, revision=source.revision).sha
    except Exception as error:  # whatever the network or the Hub says; loading the dataset explains it
        logger.warning(
            f"The commit of the dataset {source.dataset} cannot be had ({_first_line(error)}): blocks that were "
            "prepared from it are used again by its name and revision alone. A commit as its revision "
            "(revision=...) is always the same text."
        )
        return source, {}
    return replace(source, revision=commit), {}


def _local_state(path: str) -> str:
    """A hash of where a dataset lies, and of the names, sizes and times of its files."""
    files = [path] if os.path.isfile(path) else []
    for place, _, names in os.walk(path, onerror=refuse_directory):
        files += [os.path.join(place, name) for name in names]
    described: list[Any] = [os.path.abspath(path)]
    for file in sorted(files):
        with naming_errors(file):
            status = os.stat(file)
        described.append([os.path.relpath(file, path), status.st_size, status.st_mtime_ns])
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def read_dataset(source: DatasetSource, dataset: Any) -> Iterator[str]:
    """The lines of a dataset's documents, one document a row; an empty string where one ends.

    Raises:
        ValueError: for text that cannot be used, or a connection that breaks.
    """
    column = source.text_column
    if dataset.features is not None:
        dataset = dataset.select_columns([column])
    batches = iter(dataset.iter(batch_size=_BATCH))
    row = 0
    while True:
        with _explaining(source):
            batch = next(batches, None)
        if batch is None:
            return
        if column not in batch:
            raise ValueError(_no_column(source, batch))
        for text in batch[column]:
            row += 1
            if text is None:
                continue
            if not isinstance(text, str):
                raise ValueError(f"The dataset {source.dataset}, row {row}: {column!r} is not text.")
            yield from document_lines(text, f"The dataset {source.dataset}, row {row}")


def _no_column(source: DatasetSource, columns: Iterable[str]) -> str:
    return (
        f"The dataset {source.dataset} has no column {source.text_column!r}. Name the one that holds the text "
        f"(text_column=...); there are: {', '.join(columns)}."
    )


@contextmanager
def _explaining(source: DatasetSource) -> Iterator[None]:
    """Turns what `datasets` and the network raise into a ValueError that says which dataset, what and why."""
    from datasets.exceptions import DatasetNotFoundError

    what = f"The dataset {source.dataset}"
    try:
        yield
    except DatasetNotFoundError as error:
        raise ValueError(
            f"{what} cannot be had: {_first_line(error)} Check its id (owner/name) and revision; a private or gated "
            "one needs a login (hf auth login)."
        ) from error
    except Exception as error:
        said = _first_line(error)
        if _is_network_error(error):
            offline = os.environ.get("HF_HUB_OFFLINE", "0").lower() in ("1", "true", "yes", "on")
            remedy = "HF_HUB_OFFLINE is set: unset it" if offline else "Check the connection"
            raise ValueError(f"{what} cannot be reached: {said} {remedy}, or name local files.") from error
        if isinstance(error, FileNotFoundError):
            raise ValueError(f"{what} does not exist: {said}") from error
        if isinstance(error, ValueError) and "split" in said.lower():
            raise ValueError(f"{what} has no split {source.split!r} (split=...): {said}") from error
        if isinstance(error, ValueError) and "config" in said.lower():
            raise ValueError(f"{what} has no config {source.config!r} (config=...): {said}") from error
        raise ValueError(f"{what} cannot be read: {said} ({type(error).__name__})") from error


def _is_network_error(error: BaseException) -> bool:
    """Whether this, or what led to it, is a failure of the network (of whichever client library)."""
    seen: BaseException | None = error
    while seen is not None:
        module = type(seen).__module__.partition(".")[0]
        if isinstance(seen, (ConnectionError, TimeoutError)) or module in ("httpx", "httpx2", "httpcore", "aiohttp"):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[:3]) or type(error).__name__
    return said if said.endswith((".", "!", "?")) else f"{said}."
