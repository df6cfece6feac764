"""The rows of a task as a model takes them."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from typing import Any

from hf_electra_rtd.finetuning.kinds.base import Encoded, Kind
from hf_electra_rtd.finetuning.loading import Split, load_split
from hf_electra_rtd.finetuning.tasks import Task


logger = logging.getLogger(__name__)


@dataclass
class EncodedSplit:
    """A split and its features."""

    split: Split
    encoded: Encoded

    def describe(self) -> dict[str, Any]:
        """For a record: where the rows came from, a hash of the examples, how many, and what became of them."""
        digest = hashlib.sha256()
        for example in self.split.examples:
            digest.update(repr(example).encode("utf-8", "surrogatepass"))
        return {
            **self.split.source,
            "examples_sha256": digest.hexdigest(),
            "examples": len(self.split.examples),
            "features": len(self.encoded.features),
            "skipped": dict(self.split.skipped + self.encoded.skipped),
            "cut": self.encoded.cut,
        }


@dataclass
class TaskRows:
    """The splits of a task, as they were read.

    Attributes:
        train: None where nothing is to be trained.
        dev: by name, in the task's order.
        test: by name, those of guests (AX with MNLI) by the guest's name.
    """

    train: Split | None = None
    dev: dict[str, Split] = field(default_factory=dict)
    test: dict[str, Split] = field(default_factory=dict)


@dataclass
class TaskData:
    """The splits of a task with their features; as in [`TaskRows`]."""

    train: EncodedSplit | None = None
    dev: dict[str, EncodedSplit] = field(default_factory=dict)
    test: dict[str, EncodedSplit] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """For a record, by split."""
        named = ({} if self.train is None else {"train": self.train}) | self.dev | self.test
        return {name: split.describe() for name, split in named.items()}


def read_task(
    task: Task,
    data_dir: str | None,
    train: bool,
    test: bool,
    guests: tuple[Task, ...] = (),
    spare_test: bool = False,
) -> TaskRows:
    """Reads what a run needs of a task.

    Args:
        task: the task.
        data_dir: the benchmark in its official layout; None for the Hub.
        train: whether the training split is wanted.
        test: whether the test splits are.
        guests: tasks that only test, by this task's model.
        spare_test: whether a test split that is missing is warned of, and left out.

    Raises:
        ValueError: for a split that is missing or cannot be used.
    """
    rows = TaskRows()
    if train:
        if task.train_split is None:
            host = f" It is predicted by a model of {task.trained_on}, with --predict." if task.trained_on else ""
            raise ValueError(f"{task.title} has no rows to train on.{host}")
        rows.train = load_split(task, task.train_split, data_dir)
    for name in task.dev_splits:
        try:
            rows.dev[name] = load_split(task, name, data_dir)
        except ValueError as error:
            if not rows.dev:
                raise
            logger.warning(f"{task.title} is not judged on {name}: {error}")  # MNLI without its mismatched half
    if test:
        wanted = [(task, name, name) for name in task.test_splits]
        wanted += [(guest, name, guest.name) for guest in guests for name in guest.test_splits]
        for owner, name, key in wanted:
            try:
                rows.test[key] = load_split(owner, name, data_dir)
            except ValueError as error:
                if owner is task and not spare_test:
                    raise
                logger.warning(f"{owner.title}, {name} is not predicted: {error}")
    return rows


def encode_task(kind: Kind, rows: TaskRows) -> TaskData:
    """Makes features of all splits, and says what was skipped or cut.

    Raises:
        ValueError: if nothing is left to train on.
    """
    data = TaskData()
    title = kind.task.title
    if rows.train is not None:
        data.train = _encode(kind, "train", rows.train, training=True)
        if not data.train.encoded.features:
            raise ValueError(
                f"{title}: no row of the training split can be learnt: {dict(data.train.encoded.skipped)}."
            )
    data.dev = {name: _encode(kind, name, split, training=False) for name, split in rows.dev.items()}
    data.test = {name: _encode(kind, name, split, training=False) for name, split in rows.test.items()}
    return data


def _encode(kind: Kind, name: str, split: Split, training: bool) -> EncodedSplit:
    result = EncodedSplit(split, kind.encode(split.examples, training))
    described = result.describe()
    for reason, count in described["skipped"].items():
        logger.warning(f"{kind.task.title}, {name}: {count:,} rows skipped: {reason}.")
    if result.encoded.cut:
        logger.warning(
            f"{kind.task.title}, {name}: {result.encoded.cut:,} of {len(split.examples):,} rows are longer than "
            f"{kind.encoding.max_length} tokens, and cut (--max_length)."
        )
    return result
