"""The user's own task: files or a dataset of the Hub, with its columns named."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_electra_rtd.data.files import split_suffix
from hf_electra_rtd.finetuning.examples import Example, TaggedExample, TextExample
from hf_electra_rtd.finetuning.layouts import DatasetLayout, FileFormat, FileLayout, RowSkippedError, ToExample
from hf_electra_rtd.finetuning.loading import explain_hub_failure, is_labelled, load_split
from hf_electra_rtd.finetuning.scores import TAG_SCORES
from hf_electra_rtd.finetuning.tasks import TRAIN, KindName, Task


DEV, TEST = "dev", "test"
DEFAULT_METRICS: Mapping[str, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1"),
    "regression": ("pearson", "spearman"),
    "tagging": ("f1",),
}
_METRICS: Mapping[str, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1", "f1", "matthews"),
    "regression": ("pearson", "spearman"),
    "tagging": TAG_SCORES,
}
HUB_SPLITS = {TRAIN: "train", DEV: "validation", TEST: "test"}  # as most datasets of the Hub call them
_FORMATS: Mapping[str, FileFormat] = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "json_lines",
    ".json": "json_lines",
    ".conll": "conll",
    ".bio": "conll",
    ".txt": "conll",
}
_HELD_OUT, _NOT_HELD_OUT = "held out for dev", "left to train on"


@dataclass(frozen=True)
class OwnTask:
    """A task in the user's words.

    Attributes:
        name: on the command line, in tables and in records.
        kind: `classification`, `regression` or `tagging`.
        text_column: holds the text; for tagging the words: a list, or text with spaces between them. Files in CoNLL
            format (`.conll`, `.bio`, `.txt`) name no columns: theirs are `words` and `tags`.
        label_column: holds the label, number or tags (a list, or text with spaces between them). An empty one is no
            label. The files to train on and dev files must have it; a test file may.
        second_text_column: holds the second text of a pair.
        id_column: holds what predictions are called by; by default the place of the row, from 0.
        train_file, dev_file, test_file: `.csv` (RFC 4180), `.tsv` (quotes are characters like others), `.jsonl` or
            `.json`, also with `.gz` or `.zst`. Any of them may be missing, not all.
        dev_share: of the rows to train on, held out for dev where there is no `dev_file`: about so many, as each is
            drawn by the hash of its texts. They are always the same ones, and equal texts stay together. 0: there is
            no dev split.
        dataset: of the Hub, or a directory that `datasets` can load, instead of files.
        dataset_config: its configuration; None for the only one.
        dataset_revision: branch, tag or commit; None for the newest.
        dataset_splits: for `train`, `dev`, `test` the dataset's own splits, slices included (`train[:90%]`); by
            default those of `train`, `validation` and `test` that it has.
        labels: names of the classes or tags, in the order of the model's outputs; by default those of the rows to
            train on and of those held out, sorted (as numbers if they all are). Tags are BIO; a type has both its
            tags where one is there.
        metrics: by default those of `DEFAULT_METRICS`; the first one chooses the best model and stands in tables.
        language: `en` or `zh`; empty where it is neither.
    """

    name: str
    kind: KindName
    text_column: str = "text"
    label_column: str = "label"
    second_text_column: str | None = None
    id_column: str | None = None
    train_file: str | None = None
    dev_file: str | None = None
    test_file: str | None = None
    dev_share: float = 0.0
    dataset: str | None = None
    dataset_config: str | None = None
    dataset_revision: str | None = None
    dataset_splits: Mapping[str, str] | None = None
    labels: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    language: str = ""


def make_own_task(own: OwnTask) -> Task:
    """Makes a task; reads the split to train on where labels have to be collected.

    A split that is not there is not there in the task either: `train_split` is None, `dev_splits` or `test_splits` are
    empty. Its files are read from wherever they were named: `load_split` needs no `data_dir`.

    Raises:
        ValueError: for options that contradict each other, a file or dataset that cannot be read, columns that are not
            there, or labels that can neither be collected nor learnt.
    """
    _check(own)
    files: dict[str, FileLayout] = {}
    dataset = None
    if own.dataset is None:
        files = _lay_out_files(own)
    else:
        dataset = _lay_out_dataset(own)
    splits = files if dataset is None else dataset.splits
    metrics = own.metrics or DEFAULT_METRICS[own.kind]
    task = Task(
        name=own.name,
        benchmark="own",
        title=own.name,
        language=own.language,
        kind=own.kind,
        metrics=metrics,
        main_metric=metrics[0],
        labels=own.labels,
        files=files,
        dataset=dataset,
        train_split=TRAIN if TRAIN in splits else None,
        dev_splits=(DEV,) if DEV in splits else (),
        test_splits=(TEST,) if TEST in splits else (),
    )
    if own.kind == "regression":
        return task
    labels = own.labels
    if not labels:
        # Of the whole file: all the rows of a rare class may be held out.
        whole = _lay_out_files(dataclasses.replace(own, dev_share=0.0)) if own.dev_share else files
        labels = _collect_labels(dataclasses.replace(task, files=whole))
    if own.kind == "classification" and "f1" in metrics and len(labels) != 2:
        raise ValueError(f"{own.name}: f1 is of two labels, but there are {len(labels)}: ask for macro_f1.")
    return dataclasses.replace(task, labels=labels)


def _check(own: OwnTask) -> None:
    given = [file for file in (own.train_file, own.dev_file, own.test_file) if file is not None]
    if own.kind not in DEFAULT_METRICS:
        raise ValueError(f"The kind of {own.name} is {own.kind!r}. Known are: {', '.join(DEFAULT_METRICS)}.")
    if own.kind == "tagging" and own.second_text_column:
        raise ValueError(f"{own.name}: tagging takes no second text.")
    if bool(given) == bool(own.dataset):
        raise ValueError(f"{own.name}: name either files (train, dev, test) or a dataset of the Hub.")
    if own.kind == "regression" and own.labels:
        raise ValueError(f"{own.name}: regression has no labels to name.")
    if len(set(own.labels)) < len(own.labels) or len(own.labels) == 1:
        raise ValueError(f"{own.name}: labels ({', '.join(own.labels)}) must be two or more different ones.")
    if own.kind == "tagging":
        _check_tags(own.name, own.labels)
    if unknown := [metric for metric in own.metrics if metric not in _METRICS[own.kind]]:
        raise ValueError(
            f"{own.name}: {unknown[0]!r} is no metric of {own.kind}. Known are: {', '.join(_METRICS[own.kind])}."
        )
    if not own.dev_share:
        return
    if not 0 < own.dev_share < 1:
        raise ValueError(f"{own.name}: dev_share is {own.dev_share}: it must be at least 0 and below 1.")
    if own.dataset:
        raise ValueError(
            f"{own.name}: of a dataset, hold rows out by its splits: train[:90%] to train on, train[90%:] as dev."
        )
    if own.dev_file or not own.train_file:
        raise ValueError(f"{own.name}: dev_share needs a file to train on, and no dev file.")


def _lay_out_files(own: OwnTask) -> dict[str, FileLayout]:
    named = {TRAIN: own.train_file, DEV: own.dev_file, TEST: own.test_file}
    files = {
        split: _lay_out(own, file, must_have_label=split != TEST) for split, file in named.items() if file is not None
    }
    if own.dev_share:
        whole = files[TRAIN]
        files[TRAIN] = dataclasses.replace(whole, to_example=_hold_out(whole.to_example, own.dev_share, dev=False))
        files[DEV] = dataclasses.replace(whole, to_example=_hold_out(whole.to_example, own.dev_share, dev=True))
    return files


def _lay_out(own: OwnTask, file: str, must_have_label: bool) -> FileLayout:
    suffix = split_suffix(file)[0]
    known = [one for one, format in _FORMATS.items() if format != "conll" or own.kind == "tagging"]
    if suffix not in known:
        raise ValueError(f"{file}: the format is told by the name, which must end in {', '.join(known)}.")
    format = _FORMATS[suffix]
    if format == "conll":
        own = dataclasses.replace(own, text_column="words", label_column="tags")
    return FileLayout((os.path.abspath(file),), format, _to_example(own, must_have_label))


def _lay_out_dataset(own: OwnTask) -> DatasetLayout:
    from datasets import get_dataset_split_names

    assert own.dataset is not None
    layout = DatasetLayout(
        own.dataset, own.dataset_config, own.dataset_splits or {}, _to_example(own, True), own.dataset_revision
    )
    if unknown := set(layout.splits) - set(HUB_SPLITS):
        raise ValueError(f"{own.name}: splits are named {', '.join(HUB_SPLITS)}, not {', '.join(sorted(unknown))}.")
    if layout.splits:
        return layout
    try:
        names = get_dataset_split_names(own.dataset, own.dataset_config, revision=own.dataset_revision)
    except Exception as error:  # whatever the network, the Hub or the files of the dataset say
        raise explain_hub_failure(layout, "its splits", error, has_files=False) from error
    splits = {split: name for split, name in HUB_SPLITS.items() if name in names}
    if not splits:
        raise ValueError(
            f"{own.name}: the dataset {own.dataset} has neither train nor validation nor test, but the splits "
            f"{', '.join(names)}: say which is which."
        )
    return dataclasses.replace(layout, splits=splits)


def _hold_out(to_example: ToExample, share: float, dev: bool) -> ToExample:
    """The examples that are held out for dev, or the others: the rest raises RowSkippedError, and is counted so."""

    def convert(row: Mapping[str, Any], index: int) -> Example:
        example = to_example(row, index)
        assert isinstance(example, (TextExample, TaggedExample))
        texts = example.texts if isinstance(example, TextExample) else example.words
        drawn = hashlib.sha256("\n".join(texts).encode()).digest()[:8]
        if (int.from_bytes(drawn, "big") < share * 2**64) != dev:
            raise RowSkippedError(_NOT_HELD_OUT if dev else _HELD_OUT)
        return example

    return convert


def _collect_labels(task: Task) -> tuple[str, ...]:
    if task.train_split is None:
        raise ValueError(f"{task.name}: nothing to train on, so the labels must be named, in the order of the model.")
    labels: set[str] = set()
    for example in load_split(task, task.train_split, None).examples:
        if isinstance(example, TaggedExample):
            labels.update(example.tags or ())
        elif is_labelled(example):
            assert isinstance(example, TextExample)
            labels.add(str(example.label))
    if task.kind == "tagging":
        _check_tags(task.name, labels)
        # Other splits may have a rare type inside of which no training sentence goes on (`I-LST` of CoNLL-2000).
        labels |= {position + tag[1:] for tag in labels if tag != "O" for position in "BI"}
    if len(labels) < 2:
        raise ValueError(f"{task.name}: all rows to train on have the same label, {next(iter(labels))!r}.")
    in_order = sorted(labels)
    try:
        return tuple(sorted(in_order, key=float))
    except ValueError:
        return tuple(in_order)


def _check_tags(name: str, tags: Iterable[str]) -> None:
    for tag in sorted(tags):
        if tag != "O" and not (tag.startswith(("B-", "I-")) and len(tag) > 2):
            raise ValueError(f"{name}: {tag!r} is not a BIO tag (O, B-TYPE or I-TYPE).")


def _to_example(own: OwnTask, must_have_label: bool) -> ToExample:
    read_label = {"classification": _class_label, "regression": _number, "tagging": _tags}[own.kind]

    def convert(row: Mapping[str, Any], index: int) -> Example:
        id = str(index if own.id_column is None else row[own.id_column])
        value = row[own.label_column] if must_have_label else row.get(own.label_column)
        label = None if value is None else _named(own.label_column, read_label, value)
        if own.kind == "tagging":
            return TaggedExample(id, _named(own.text_column, _words, row[own.text_column]), label)
        columns = [own.text_column, *([own.second_text_column] if own.second_text_column else [])]
        return TextExample(id, tuple(_named(column, _text, row[column]) for column in columns), label)

    return convert


def _named(column: str, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise ValueError(f"column {column!r}: {error}") from None


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text.")
    return value


def _class_label(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int)):
        return str(value).strip() or None
    raise ValueError(f"{value!r} is no label: text, whole numbers, true and false are. Is this regression?")


def _number(value: Any) -> float | None:
    if isinstance(value, str) and not value.strip():
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a finite number.")
    return number


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split())
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise ValueError(f"{value!r} is neither a list of words nor text with spaces between them.")


def _tags(value: Any) -> tuple[str, ...] | None:
    return _words(value) or None
