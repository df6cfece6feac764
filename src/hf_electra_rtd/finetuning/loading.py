"""A split of a task as examples, from its files or from the Hub."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hf_electra_rtd.finetuning.examples import ChoiceExample, Example, QuestionExample, TaggedExample
from hf_electra_rtd.finetuning.layouts import DatasetLayout, FileLayout, RowSkippedError, ToExample
from hf_electra_rtd.finetuning.reading import Row, describe_known, file_exists, identify_files, read_rows
from hf_electra_rtd.finetuning.tasks import Task


BROKEN_ROW = "too few or too many columns"


@dataclass(frozen=True)
class Split:
    """The examples of a split.

    Attributes:
        examples: in the order of the rows.
        skipped: rows without an example, by reason.
        source: JSON for the record: `files`, from their names without directories to their SHA-256, or `dataset`,
            `config`, `split`, `revision` and `fingerprint` (of the `datasets` library); `rows`, the skipped ones
            included.
    """

    examples: list[Example]
    skipped: Counter[str]
    source: dict[str, Any]


@dataclass(frozen=True)
class _Opened:
    name: str  # for messages
    rows: Iterator[tuple[str, Row | None]]  # each after its place, the file included
    to_example: ToExample
    source: dict[str, Any]


def load_split(task: Task, split: str, data_dir: str | None) -> Split:
    """Loads a split of a task.

    Args:
        task: the task. Where its `labels` are empty, any label is taken.
        split: by the task's name for it, such as `dev`.
        data_dir: directory with the files in the official layout. None: the Hub; for a task that is not there, files
            whose paths are absolute.

    Raises:
        ValueError: for a split that is not there or cannot be read; for a row that cannot be used, by file and place:
            no such column, an unknown label, a list where the layout has text; for a split in which no row can be
            used, or, unless it is a test split, none is labelled.
    """
    opened = _open_files(task, split, data_dir) if data_dir or task.dataset is None else _open_dataset(task, split)
    examples: list[Example] = []
    skipped: Counter[str] = Counter()
    for index, (place, row) in enumerate(opened.rows):
        if row is None:
            skipped[BROKEN_ROW] += 1
            continue
        try:
            with _naming_place(place):
                example = opened.to_example(row, index)
                _check_label(task, example)
        except RowSkippedError as reason:
            skipped[str(reason)] += 1
        else:
            examples.append(example)
    num_rows = len(examples) + skipped.total()
    told = ", ".join(f"{reason} ({count:,})" for reason, count in skipped.most_common())
    if not examples:
        raise ValueError(f"{opened.name}: none of the {num_rows:,} rows can be used: {told or 'there is none'}.")
    if split not in task.test_splits and not any(is_labelled(example) for example in examples):
        raise ValueError(f"{opened.name}: no row is labelled, so {task.title} cannot use it as its split {split!r}.")
    return Split(examples, skipped, {**opened.source, "rows": num_rows})


@contextmanager
def _naming_place(place: str) -> Iterator[None]:
    """Errors of a row, with its place. What converters take for granted of a layout shows as errors of other types."""
    try:
        yield
    except RowSkippedError:
        raise
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{place}: the row is not of the layout ({type(error).__name__}: {error}).") from error


def is_labelled(example: Example) -> bool:
    """Whether an example can be learnt from, or predictions be judged by it."""
    if isinstance(example, QuestionExample):
        return example.answers is not None
    if isinstance(example, TaggedExample):
        return example.tags is not None
    return example.label is not None


def _check_label(task: Task, example: Example) -> None:
    if not is_labelled(example) or isinstance(example, QuestionExample):
        return
    if isinstance(example, TaggedExample):
        assert example.tags is not None
        if len(example.tags) != len(example.words):
            raise ValueError(f"there are {len(example.words)} words, but {len(example.tags)} tags.")
        for tag in example.tags:
            _check_known(task, tag)
    elif isinstance(example, ChoiceExample):
        if example.label not in range(len(example.choices)):
            raise ValueError(f"the label {example.label} is not the index of one of {len(example.choices)} choices.")
    elif task.kind == "regression":
        if not isinstance(example.label, (int, float)) or not math.isfinite(example.label):
            raise ValueError(f"the label {example.label!r} is not a finite number.")
    else:
        _check_known(task, example.label)


def _check_known(task: Task, label: Any) -> None:
    if task.labels and label not in task.labels:
        known = describe_known(str(label), task.labels, f"Labels of {task.title}")
        of_training = " They are those of the rows to train on unless they are named." * (task.benchmark == "own")
        raise ValueError(f"there is no label {label!r}. {known}{of_training}")


def _open_files(task: Task, split: str, data_dir: str | None) -> _Opened:
    if split not in task.files:
        raise ValueError(
            f"{task.title} has no file for a split {split!r}, only for: {', '.join(task.files) or 'none'}."
        )
    layout = task.files[split]
    if data_dir is None and not all(os.path.isabs(path) for path in layout.paths):
        raise ValueError(f"{task.title} is not on the Hub: say where its files are (--data_dir).")
    paths = _find_files(task, split, layout, data_dir or "")
    identities = {name: sha256 for path in paths for name, sha256 in identify_files(path, layout).items()}
    return _Opened(" and ".join(paths), _file_rows(paths, layout), layout.to_example, {"files": identities})


def _find_files(task: Task, split: str, layout: FileLayout, data_dir: str) -> list[str]:
    for path in layout.paths:
        # A name may have a `+` of its own, so it is first looked for as a whole.
        for parts in ([path], path.split("+")):
            found = [os.path.join(data_dir, part) for part in parts]
            if all(map(file_exists, found)):
                return found
    if data_dir and not os.path.isdir(data_dir):
        raise ValueError(f"There is no directory {data_dir} (--data_dir).")
    nearest = os.path.dirname(
        os.path.join(data_dir, layout.paths[0])
    )  # what lies in the nearest directory shows best what went wrong
    while not os.path.isdir(nearest):
        nearest = os.path.dirname(nearest)
    holds = describe_known(os.path.basename(layout.paths[0]), sorted(os.listdir(nearest)), f"{nearest} holds")
    where = f" in {data_dir}" if data_dir else ""
    raise ValueError(
        f"{task.title}: no file for its split {split!r}{where}: there is no {', no '.join(layout.paths)}. {holds}"
    )


def _file_rows(paths: Sequence[str], layout: FileLayout) -> Iterator[tuple[str, Row | None]]:
    for path in paths:
        for place, row in read_rows(path, layout):
            yield f"{path}, {place}", row


def _open_dataset(task: Task, split: str) -> _Opened:
    from datasets import load_dataset

    layout = task.dataset
    assert layout is not None
    if split not in layout.splits:
        raise ValueError(f"{task.title} has no split {split!r} on the Hub, only: {', '.join(layout.splits)}.")
    name = layout.splits[split]
    try:
        dataset = load_dataset(layout.path, layout.config, split=name, revision=layout.revision)
    except Exception as error:  # whatever the network, the Hub or the files of the dataset say
        raise explain_hub_failure(layout, f"split {name!r}", error, bool(task.files)) from error
    source = {
        "dataset": os.path.basename(os.path.abspath(layout.path)) if os.path.exists(layout.path) else layout.path,
        "config": layout.config,
        "split": name,
        "revision": layout.revision,
        "fingerprint": dataset._fingerprint,
    }
    described = f"{_describe_dataset(layout)}, split {name!r}"
    return _Opened(described, _dataset_rows(described, dataset, layout), layout.to_example, source)


def explain_hub_failure(layout: DatasetLayout, what: str, error: Exception, has_files: bool) -> ValueError:
    """What to tell where something of a dataset cannot be had.

    Args:
        layout: of the dataset.
        what: cannot be had, such as `split 'dev'`.
        error: of the `datasets` library.
        has_files: whether the task can be loaded from files instead.
    """
    said = " ".join(line.strip() for line in str(error).splitlines() if line.strip())[:500].rstrip(".")
    remedy = "give a directory with the task's files (--data_dir)" if has_files else "name files instead"
    return ValueError(
        f"{_describe_dataset(layout)}, {what}, cannot be loaded: {said or 'no reason given'} "
        f"({type(error).__name__}). Check its name and the connection, or {remedy}."
    )


def _describe_dataset(layout: DatasetLayout) -> str:
    return f"The dataset {layout.path}" + (f" ({layout.config})" if layout.config else "")


def _dataset_rows(name: str, dataset: Any, layout: DatasetLayout) -> Iterator[tuple[str, Row]]:
    converters = {column: _label_names(feature) for column, feature in dataset.features.items()}
    for number, values in enumerate(dataset, 1):
        place = f"{name}, row {number}"
        row = Row({column: convert(values[column]) for column, convert in converters.items()})
        if layout.expand is None:
            yield place, row
            continue
        with _naming_place(place):
            rows = [Row(one) for one in layout.expand(row)]
        for one in rows:
            yield place, one


def _label_names(feature: Any) -> Callable[[Any], Any]:
    """From a value to itself, or, of a class label, to its name; None for -1, which stands for no label on the Hub."""
    from datasets import ClassLabel, LargeList, List

    if isinstance(feature, ClassLabel):
        return lambda value: None if value is None or value < 0 else feature.names[value]
    if isinstance(feature, (List, LargeList)):
        inner = _label_names(feature.feature)
        return lambda values: None if values is None else [inner(value) for value in values]
    return lambda value: value
