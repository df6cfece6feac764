"""Where the rows of a task lie, and how they become examples: files in the official layout, or datasets of the Hub."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hf_electra_rtd.finetuning.examples import Example


FileFormat = Literal["tsv", "csv", "json_lines", "squad", "c3", "chid", "conll"]

# From a row and its place among the rows of its split (from 0) to an example.
ToExample = Callable[[Mapping[str, Any], int], Example]


class RowSkippedError(ValueError):
    """A row that cannot be used, but whose absence harms nothing (a label `-`, an empty text): its message is the
    reason, counted and told, without anything that differs from row to row."""


@dataclass(frozen=True)
class FileLayout:
    """The files of a split, under `--data_dir`.

    Attributes:
        paths: from the benchmark's directory, such as `MRPC/train.tsv`; the first that exists is read.
            Files joined with `+` (`c3/m-train.json+c3/d-train.json`) are read one after another, where all exist.
        format: `tsv` (quotes are characters like others), `csv` (RFC 4180), `json_lines` (a JSON array is read, too),
            `squad` (SQuAD's nested JSON: a row a question), `c3` (likewise), `chid` (JSON lines: a row a blank, with
            the answers of `train_answer.json` beside `train.json`; without that file they are not known), `conll` (a
            word a line, a blank line ends a sentence; a row a sentence).
        to_example: from a row, its keys as in the file, to an example.
        header: names of the columns of a tsv or csv without a first line that names them; empty: it has one.
        skip_broken_rows: whether lines of a tsv or csv with too few or too many columns are skipped and counted, not
            refused: for official files that are known to have some.
    """

    paths: tuple[str, ...]
    format: FileFormat
    to_example: ToExample
    header: tuple[str, ...] = ()
    skip_broken_rows: bool = False


@dataclass(frozen=True)
class DatasetLayout:
    """The rows of a task on the Hub.

    Attributes:
        path: of the dataset, such as `nyu-mll/glue`.
        config: name of its configuration; None for the only one.
        splits: from the task's names of splits to the dataset's.
        to_example: from a row, its keys as in the dataset and class labels as their names, to an example.
        revision: None for the newest.
        expand: from a row of the dataset to those that `to_example` takes, where it holds several (ChID: one a blank).
    """

    path: str
    config: str | None
    splits: Mapping[str, str]
    to_example: ToExample
    revision: str | None = None
    expand: Callable[[Mapping[str, Any]], Iterable[Mapping[str, Any]]] | None = None
