"""From a task to its splits: examples, and the features that a model takes. Also the user's own tasks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_electra_rtd.files import hash_files, known_names
from hf_electra_rtd.finetuning import reading
from hf_electra_rtd.finetuning.scores import METRICS
from hf_electra_rtd.records import public
from hf_electra_rtd.tasks import HUB_SPLITS, Task, guests


if TYPE_CHECKING:
    from datasets import Dataset

    from hf_electra_rtd.finetuning.kinds.base import Kind, Prediction

logger = logging.getLogger(__name__)

_OWN_METRICS = {"classification": ("accuracy", "macro_f1"), "regression": ("pearson", "spearman"), "tagging": ("f1",)}


@dataclass
class Split:
    """A split of a task."""

    examples: Dataset  # in the order of the file, with the columns of `reading.example_features`
    skipped: int  # rows without an example: a label `-`, a broken line, spans that cannot be right
    # `files`, from names without directories to SHA-256; or `dataset`, `config`, `split`, `revision`, `fingerprint`.
    source: dict[str, Any]
    features: Dataset | None = None  # what the model takes, once `encode_task` has made it

    def describe(self) -> dict[str, Any]:
        """What an `EvaluationRecord` holds of an encoded split."""
        assert self.features is not None
        owners = np.asarray(self.features["example"])
        return {
            **self.source,
            "examples": len(self.examples),
            "features": len(owners),
            "skipped": self.skipped + len(self.examples) - len(np.unique(owners)),
            "truncated": len(np.unique(owners[np.asarray(self.features["truncated"], dtype=bool)])),
        }


# ---- Splits ----


def load_split(task: Task, split: str, data_dir: str | None = None) -> Split:
    """Loads a split of a task; any label is taken where the task names none. The examples are cached by `datasets`, by
    the content of the files.

    Args:
        split: the task's name for it, such as `dev`.
        data_dir: directory with the files in the official layout; None for the Hub, or for files with absolute paths.

    Raises:
        ValueError: for a split that is not there, cannot be read, has a row that cannot be used (with file and line),
            or no usable row.
    """
    from datasets import Dataset
    from datasets.exceptions import DatasetGenerationError

    if data_dir or not task.dataset:
        paths = reading.find_files(task, split, data_dir)
        on_disk = {file for path in map(reading.on_disk, paths) for file in (path, reading.answer_file(path))}
        name = " and ".join(paths)
        source: dict[str, Any] = {
            "files": {Path(file).name: hash_files([file]) for file in sorted(filter(os.path.isfile, on_disk))}
        }
        rows: Any = (row for path in paths for row in reading.read_rows(task, split, path))
    else:
        name, hub = f"{task.dataset} ({task.splits.get(split, split)})", _load_hub(task, split)
        source = {
            "dataset": public(task.dataset, "dataset"),
            "config": task.config,
            "split": task.splits[split],
            "revision": task.revision,
            "fingerprint": hub._fingerprint,
        }
        rows = reading.hub_rows(name, hub)
    if task.benchmark == "own":  # what else decides the examples
        source |= {"columns": [*task.columns, task.label_column], "validation_share": task.validation_share}
    identity = json.dumps([dataclasses.asdict(task), split, source, hash_files([reading.__file__])])
    try:
        examples = Dataset.from_generator(
            lambda: reading.make_examples(task, split, name, rows),
            features=reading.example_features(task.kind),
            fingerprint=hashlib.sha256(identity.encode()).hexdigest()[:16],
        )
    except DatasetGenerationError as error:
        cause = error.__cause__
        if isinstance(cause, UnicodeEncodeError):
            raise ValueError(f"{name}: a text holds half of a surrogate pair. Clean it first.") from None
        raise (cause if isinstance(cause, ValueError) else error) from None
    if skipped := examples.data.column("id").null_count:
        examples = examples.filter(lambda id: id is not None, input_columns="id")
    if task.validation_share and split in ("train", "dev"):
        examples = _hold_out(task, examples, dev=split == "dev")
    if not len(examples):
        raise ValueError(f"{name}: all {skipped:,} rows are skipped, so it cannot be the split {split!r}.")
    label = {"question_answering": "answers", "tagging": "tags"}.get(task.kind, "label")
    if split not in task.test_splits and all(value is None for value in examples[label]):
        raise ValueError(f"{name}: no row is labeled, so it cannot be the split {split!r} of {task.title}.")
    return Split(examples, skipped, source)


def load_task(
    task: Task, data_dir: str | None, *, train: bool = True, test: bool = False, optional_test: bool = False
) -> dict[str, Split]:
    """Loads the splits that a run needs: `train`, the dev splits, and, with `test`, the test splits and those of tasks
    that this task's model predicts, under the guest's name.

    Args:
        data_dir: as for `load_split`.
        optional_test: a test split that is missing is only warned of.

    Raises:
        ValueError: for a split that is missing or cannot be used; all dev splits but the first may be missing.
    """
    wanted = [("train", task, "train", False)] if train else []
    wanted += [(name, task, name, place > 0) for place, name in enumerate(task.dev_splits)]
    if test:
        wanted += [(name, task, name, optional_test) for name in task.test_splits]
        wanted += [(guest.name, guest, name, True) for guest in guests(task) for name in guest.test_splits]
    splits = {}
    for key, owner, name, optional in wanted:
        try:
            splits[key] = load_split(owner, name, data_dir)
        except ValueError as error:
            if not optional:
                raise
            logger.warning(f"{owner.title} goes without its split {name}: {error}")
    return splits


def encode_task(kind: Kind, splits: Mapping[str, Split]) -> None:
    """Makes the features of all splits, and warns of what was skipped or truncated.

    Raises:
        ValueError: if nothing is left to train on.
    """
    for name, split in splits.items():
        split.features = kind.encode(split.examples, training=name == "train")
        if not len(split.features) and name == "train":
            raise ValueError(f"{kind.task.title}: no example of the training split can be learned.")
        described, title = split.describe(), f"{kind.task.title}, {name}"
        if described["skipped"]:
            logger.warning(f"{title}: {described['skipped']:,} examples skipped.")
        if described["truncated"]:
            logger.warning(
                f"{title}: {described['truncated']:,} of {described['examples']:,} examples are longer than "
                f"{kind.max_seq_length} tokens, and truncated (--max_seq_length)."
            )


def predict(kind: Kind, split: Split, run: Callable[[Dataset], Any]) -> list[Prediction]:
    """Predictions for the examples of a split with features.

    Args:
        run: gives the model's outputs for features, in their order, as `Kind.decode` takes them. It gets the features
            sorted by length, so that batches hold little padding.

    Raises:
        ValueError: if an output is not finite.
    """
    features = split.features
    assert features is not None
    outputs: Any = ()
    if len(features):
        order = np.argsort(features["length"], kind="stable")
        given = run(features.select(order))
        outputs = [
            array[np.argsort(order, kind="stable")] for array in (given if isinstance(given, tuple) else [given])
        ]
        if not all(np.isfinite(array).all() for array in outputs):
            raise ValueError(
                f"{kind.task.title}: the model's outputs are not finite, so training diverged. Lower --learning_rate."
            )
        outputs = tuple(outputs) if isinstance(given, tuple) else outputs[0]
    return kind.decode(outputs, features, split.examples)


def _hold_out(task: Task, examples: Dataset, dev: bool) -> Dataset:
    """The examples of the training file that are held out, or the others. Each is drawn by the hash of its texts, so
    that equal texts stay together."""
    column, share = "words" if task.kind == "tagging" else "texts", task.validation_share

    def belongs(texts: list[str]) -> bool:
        drawn = hashlib.sha256("\n".join(texts).encode()).digest()[:8]
        return (int.from_bytes(drawn, "big") < share * 2**64) == dev

    kept = examples.filter(belongs, input_columns=column)
    if not len(kept):
        raise ValueError(
            f"{task.title}: --validation_share {share:g} leaves no example {'to evaluate' if dev else 'to train'} on, "
            f"of {len(examples):,}. Change it, or give a --validation_file."
        )
    return kept


def _load_hub(task: Task, split: str) -> Dataset:
    from datasets import load_dataset

    if split not in task.splits:
        raise ValueError(f"{task.title} has no split {split!r} on the Hub. It has {', '.join(task.splits)}.")
    with _hub_errors(task, f"split {task.splits[split]!r}"):
        return load_dataset(str(task.dataset), task.config, split=task.splits[split], revision=task.revision)


@contextmanager
def _hub_errors(task: Task, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever the network, the Hub or the files of the dataset say
        said = " ".join(str(error).split())[:500].rstrip(".")
        remedy = "give a directory with the task's files (--data_dir)" if task.files else "give files instead"
        raise ValueError(
            f"The dataset {task.dataset}, {what}, cannot be loaded: {said} ({type(error).__name__}). Check its name "
            f"and the connection, or {remedy}."
        ) from error


# ---- The user's own task ----


def own_task(name: str, args: Any, labels: Sequence[str] = ()) -> Task:
    """The user's task; reads the training split where labels have to be collected.

    Args:
        args: `OwnTaskArguments`.
        labels: those of a fine-tuned model, where `args` names none.

    Raises:
        ValueError: for flags that contradict each other, a file or dataset that cannot be read, or labels that can
            neither be collected nor learned.
    """
    kind = args.task_kind
    if kind not in _OWN_METRICS:
        raise ValueError(f"--task_kind is {kind!r}. It must be one of {', '.join(_OWN_METRICS)}.")
    files = {"train": args.train_file, "dev": args.validation_file, "test": args.test_file}
    files = {split: (os.path.abspath(file),) for split, file in files.items() if file}
    share = args.validation_share if files.get("train") and not files.get("dev") else 0.0
    _check_own(args, files, share)
    if share:
        files["dev"] = files["train"]
    is_conll = any(reading.format_of(kind, file) == "conll" for (file,) in files.values())
    texts = (args.text_column_name, *filter(None, [args.second_text_column_name]))
    task = Task(
        *(name, name, "own", args.language, kind, tuple(args.metrics or _OWN_METRICS[kind])),
        labels=tuple(args.labels or (labels if kind != "regression" else ())),
        columns=("words",) if is_conll else texts,
        label_column="tags" if is_conll else args.label_column_name,
        id_column=args.id_column_name,
        dataset=args.dataset,
        config=args.dataset_config,
        revision=args.dataset_revision,
        files=files,
        validation_share=share,
    )
    splits = _own_splits(task, args.dataset_splits) if task.dataset else {}
    dev, test = ((split,) if split in (splits or files) else () for split in ("dev", "test"))
    task = dataclasses.replace(task, splits=splits, dev_splits=dev, test_splits=test)
    if kind == "regression":
        return task
    task = dataclasses.replace(task, labels=task.labels or _collect_labels(task))
    if kind == "tagging" and (wrong := [tag for tag in task.labels if tag[:2] not in ("O", "B-", "I-")]):
        raise ValueError(f"{name}: {wrong[0]!r} is not a BIO tag (O, B-TYPE or I-TYPE).")
    if "f1" in task.metrics and kind == "classification" and len(task.labels) != 2:
        raise ValueError(f"{name}: f1 needs two labels, but there are {len(task.labels)}. Ask for macro_f1.")
    return task


def _check_own(args: Any, files: Mapping[str, Any], share: float) -> None:
    kind = args.task_kind
    if bool(files) == bool(args.dataset):
        raise ValueError("Give either files (--train_file, --validation_file, --test_file) or a --dataset of the Hub.")
    if kind == "tagging" and args.second_text_column_name:
        raise ValueError("--second_text_column_name has no place in tagging.")
    if args.labels and (kind == "regression" or len(set(args.labels)) != len(args.labels) or len(args.labels) < 2):
        raise ValueError("--labels must name two or more different classes or tags; regression has none.")
    if unknown := [metric for metric in args.metrics or () if metric not in METRICS[kind]]:
        raise ValueError(f"--metrics: {known_names(unknown[0], METRICS[kind], f'metrics of {kind}')}")
    if not 0 <= share < 1:
        raise ValueError(f"--validation_share is {share:g}. It must be at least 0 and below 1.")
    for (file,) in files.values():
        if reading.format_of(kind, file) == "tsv" and ".tsv" not in file:
            known = [*reading.SUFFIXES, *(reading.CONLL_SUFFIXES if kind == "tagging" else ())]
            raise ValueError(f"{file} must have a name that ends in {', '.join(known)}.")


def _own_splits(task: Task, given: Sequence[str] | None) -> dict[str, str]:
    """Of a dataset on the Hub: `given` holds `train=train[:90%]`, ...; by default those that it has."""
    from datasets import get_dataset_split_names

    if given:
        splits = dict(pair.partition("=")[::2] for pair in given)
        if not all(name in HUB_SPLITS and split for name, split in splits.items()):
            raise ValueError(f"--dataset_splits {' '.join(given)}: write train=..., dev=... or test=..., each once.")
        return splits
    with _hub_errors(task, "its splits"):
        names = get_dataset_split_names(str(task.dataset), task.config, revision=task.revision)
    splits = {split: name for split, name in HUB_SPLITS.items() if name in names}
    if not splits:
        raise ValueError(f"{task.dataset} has the splits {', '.join(names)}. Say which is which (--dataset_splits).")
    return splits


def _collect_labels(task: Task) -> tuple[str, ...]:
    """The labels of all training examples, those held out too, sorted; as numbers if they all are."""
    if not task.has_training_data:
        raise ValueError(
            f"{task.title} has nothing to train on, so --labels must name the labels, in the model's order."
        )
    examples = load_split(dataclasses.replace(task, validation_share=0.0), "train").examples
    if task.kind == "tagging":
        tags = {tag for tags in examples["tags"] for tag in tags or ()}
        # Other splits may have a rare type inside of which no training sentence goes on (`I-LST` of CoNLL-2000).
        return tuple(sorted(tags | {position + tag[1:] for tag in tags if tag[1:2] == "-" for position in "BI"}))
    labels = sorted(set(examples["label"]) - {None})
    if len(labels) < 2:
        raise ValueError(f"{task.title}: all training examples have the same label, {labels[0]!r}.")
    try:
        return tuple(sorted(labels, key=float))
    except ValueError:
        return tuple(labels)
