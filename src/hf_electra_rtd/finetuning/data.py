"""From a task to its splits: examples, and the features that a model takes. Also the user's own tasks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import softmax

from hf_electra_rtd import files
from hf_electra_rtd.files import hash_files, known_names
from hf_electra_rtd.finetuning import reading
from hf_electra_rtd.finetuning.scores import METRICS, find_chunks
from hf_electra_rtd.records import public
from hf_electra_rtd.tasks import HUB_SPLITS, Task, guests


if TYPE_CHECKING:
    from datasets import Dataset

    from hf_electra_rtd.finetuning.kinds.base import Kind, Prediction

logger = logging.getLogger(__name__)

_OWN_METRICS = {"classification": ("accuracy", "macro_f1"), "regression": ("pearson", "spearman"), "tagging": ("f1",)}
# Of labels: numbers; words that stand for no value; more whole numbers than this may be measured rather than classes.
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_ABSENT = ("nan", "na", "n/a", "<na>", "none", "null")
_MANY_NUMBERS = 20
_NO_HUB = "Check its name and the connection, or give files instead (--data_dir, or your own)."


@dataclass
class Split:
    """A split of a task."""

    examples: Dataset  # in the order of the file, with the columns of `reading.example_features`
    skipped: int  # rows without an example: a label `-`, a broken line, spans that cannot be right
    # `files`, from names without directories to SHA-256; or `dataset`, `config`, `split`, `revision`, `fingerprint`.
    source: dict[str, Any]
    features: Dataset | None = None  # what the model takes, once `encode_task` has made it
    probabilities: Any = None  # (examples, labels), of the last predictions in classification

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
    """Loads a split (`dev`) of a task, from files in the official layout under `data_dir`, from those of one's own, or
    from the Hub. Any label is taken where the task names none. `datasets` caches the examples by the files' content.

    Raises:
        ValueError: for a split that is not there, cannot be read, has a row that cannot be used (with file and line),
            or no usable row.
    """
    from datasets import Dataset, load_dataset
    from datasets.exceptions import DatasetGenerationError

    if data_dir or not task.dataset:
        paths = reading.find_files(task, split, data_dir)
        on_disk = {file for path in paths for file in (path.partition("::")[0], reading.answer_file(path))}
        name = paths[0]
        source: dict[str, Any] = {
            "files": {Path(file).name: hash_files([file]) for file in sorted(filter(os.path.isfile, on_disk))}
        }
        rows: Any = (row for path in paths for row in reading.read_rows(task, split, path))
    else:
        on_hub = task.splits.get(split, split)
        name = f"The dataset {task.dataset}, split {on_hub!r},"
        with files.reading(name, _NO_HUB):
            hub = load_dataset(task.dataset, task.config, split=on_hub, revision=task.revision)
        source = {"dataset": public(task.dataset, "dataset"), "config": task.config, "split": on_hub}
        source |= {"revision": task.revision, "fingerprint": hub._fingerprint}
        rows = reading.hub_rows(name, hub)
    if task.benchmark == "own":  # what else decides the examples
        source |= {"columns": [*task.columns, task.label_column], "validation_share": task.validation_share}
    identity = json.dumps([dataclasses.asdict(task), split, source, hash_files([reading.__file__])])
    with files.reading(name):
        try:
            examples = Dataset.from_generator(
                lambda: reading.make_examples(task, split, rows),
                features=reading.example_features(task.kind),
                fingerprint=hashlib.sha256(identity.encode()).hexdigest()[:16],
            )
        except DatasetGenerationError as error:
            raise error.__cause__ or error from None
    if skipped := examples.data.column("id").null_count:
        examples = examples.filter(lambda id: id is not None, input_columns="id")
    if task.validation_share and split in ("train", "dev"):
        examples = _hold_out(task, examples, dev=split == "dev")
    if not len(examples):
        held_out = f" with --validation_share {task.validation_share:g}" * bool(task.validation_share)
        raise ValueError(f"{name} has no row for the split {split!r} of {task.title}{held_out} ({skipped:,} skipped).")
    label = {"question_answering": "answers", "tagging": "tags"}.get(task.kind, "label")
    if split not in task.test_splits and all(value is None for value in examples[label]):
        raise ValueError(f"{name}: no row is labeled, so it cannot be the split {split!r} of {task.title}.")
    return Split(examples, skipped, source)


def load_task(
    task: Task, data_dir: str | None, *, train: bool = True, test: bool = False, optional_test: bool = False
) -> dict[str, Split]:
    """Loads the splits that a run needs: `train`, the dev splits, and, with `test`, the test splits and those of tasks
    that this task's model predicts, under the guest's name. Of what may be missing (all dev splits but the first,
    guests, and with `optional_test` the test splits) it only warns.

    Raises:
        ValueError: for a split that is missing or cannot be used.
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
        if skipped := described["skipped"]:
            logger.warning(f"{title}: {skipped:,} examples skipped.")
        if truncated := described["truncated"]:
            longer = f"are longer than {kind.max_seq_length} tokens, and truncated (--max_seq_length)"
            logger.warning(f"{title}: {truncated:,} of {described['examples']:,} examples {longer}.")


def predict(kind: Kind, split: Split, run: Callable[[Dataset], Any]) -> list[Prediction]:
    """Predictions for the examples of a split with features. `run` gives the model's outputs for features, as
    `Kind.decode` takes them. It gets the features sorted by length, so that batches hold little padding.

    Raises:
        ValueError: if an output is not finite.
    """
    features = split.features
    assert features is not None
    outputs: Any = ()
    if len(features):
        order = np.argsort(features["length"], kind="stable")
        back = np.argsort(order, kind="stable")
        given = run(features.select(order))
        arrays = given if isinstance(given, tuple) else (given,)
        if not all(np.isfinite(array).all() for array in arrays):
            raise ValueError(f"{kind.task.title}: outputs are not finite: training diverged. Lower --learning_rate.")
        outputs = tuple(array[back] for array in arrays) if isinstance(given, tuple) else given[back]
        split.probabilities = softmax(outputs, axis=-1) if kind.task.kind == "classification" else None
    return kind.decode(outputs, features, split.examples)


def _hold_out(task: Task, examples: Dataset, dev: bool) -> Dataset:
    """The examples of the training file that are held out, or the others. The hashes of texts draw them, so that equal
    texts stay together, and the order of the file does not matter.

    The share is drawn from each class (largest remainders): of two or more texts one at least, and never all. A text
    with several labels counts for the rarest. Regression and tagging draw from all texts. What has no label is kept
    for training.
    """
    tags = task.kind == "tagging"
    labels = list(examples["tags" if tags else "label"])
    texts = [hashlib.sha256("\n".join(of_one).encode()).digest() for of_one in examples["words" if tags else "texts"]]
    classes = [label if label is None or task.kind == "classification" else "" for label in labels]
    counts = Counter(classes)
    labeled = [pair for pair in zip(texts, classes, strict=True) if pair[1] is not None]
    rarest = dict(sorted(labeled, key=lambda pair: (-counts[pair[1]], pair[1])))  # the last one stays
    strata: dict[str, list[bytes]] = {}
    for text in sorted(rarest):
        strata.setdefault(rarest[text], []).append(text)
    exact = {label: task.validation_share * len(strata[label]) for label in sorted(strata)}
    missing = round(sum(exact.values())) - sum(map(int, exact.values()))
    raised = sorted(exact, key=lambda label: int(exact[label]) - exact[label])[:missing]
    held: set[bytes] = set()
    for label, share in exact.items():
        of_class = strata[label]
        held.update(of_class[: min(max(int(share) + (label in raised), 1), len(of_class) - 1)])
    return examples.select([index for index, text in enumerate(texts) if (text in held) == dev])


# ---- The user's own task ----


def own_task(name: str, args: Any, labels: Sequence[str] = ()) -> Task:
    """The user's task, from `OwnTaskArguments`; reads the training split where labels have to be collected. `labels`
    are those of a fine-tuned model, where `args` names none.

    Raises:
        ValueError: for flags that contradict each other, a file or dataset that cannot be read, or labels that can
            neither be collected nor learned.
    """
    kind, paths = args.task_kind, {"train": args.train_file, "dev": args.validation_file, "test": args.test_file}
    paths = {split: os.path.abspath(path) for split, path in paths.items() if path}
    _check_own(args, paths)
    splits = _own_splits(args) if args.dataset else {}
    places = splits or paths
    share = (0.1 if args.validation_share is None else args.validation_share) if "train" in places else 0.0
    if "dev" in places:
        share = 0.0
    elif share:
        places["dev"] = places["train"]
    if args.validation_share and not share:
        which = "a dev split is given" if "dev" in places else "there is no training split"
        raise ValueError(f"--validation_share holds out training examples, but {which}. Leave it out.")
    is_conll = any(reading.format_of(kind, path) == "conll" for path in paths.values())
    texts = (args.text_column_name, *filter(None, [args.second_text_column_name]))
    dev, test = ((split,) if split in places else () for split in ("dev", "test"))
    task = Task(
        *(name, name, "own", args.language, kind, tuple(args.metrics or _OWN_METRICS[kind])),
        labels=tuple(args.labels or (labels if kind != "regression" else ())),
        columns=("words",) if is_conll else texts,
        label_column="tags" if is_conll else args.label_column_name,
        id_column=args.id_column_name,
        dataset=args.dataset,
        config=args.dataset_config,
        revision=args.dataset_revision,
        splits=splits,
        files={split: (path,) for split, path in paths.items()},
        dev_splits=dev,
        test_splits=test,
        validation_share=share,
    )
    if kind == "regression":
        return task
    task = dataclasses.replace(task, labels=task.labels or _collect_labels(task))
    if kind == "tagging":
        with files.reading(next(iter(paths.values()), name), "Tags are words such as O, B-PER and I-PER."):
            find_chunks(task.labels)
    if "f1" in task.metrics and kind == "classification" and len(task.labels) != 2:
        raise ValueError(f"{name}: f1 needs two labels, but there are {len(task.labels)}. Ask for macro_f1.")
    return task


def _check_own(args: Any, paths: Mapping[str, str]) -> None:
    kind = args.task_kind
    if bool(paths) == bool(args.dataset):
        raise ValueError("Give either files (--train_file, --validation_file, --test_file) or a --dataset of the Hub.")
    for name in ("dataset_config", "dataset_revision", "dataset_splits"):
        if getattr(args, name) and not args.dataset:
            raise ValueError(f"--{name} is for --dataset, a dataset of the Hub. Leave it out.")
    if kind == "tagging" and args.second_text_column_name:
        raise ValueError("--second_text_column_name has no place in tagging.")
    if args.labels and (kind == "regression" or len(set(args.labels)) != len(args.labels) or len(args.labels) < 2):
        raise ValueError("--labels must name two or more different classes or tags; regression has none.")
    if unknown := [metric for metric in args.metrics or () if metric not in METRICS[kind]]:
        raise ValueError(f"--metrics: {known_names(unknown[0], METRICS[kind], f'metrics of {kind}')}")


def _own_splits(args: Any) -> dict[str, str]:
    """Of a dataset on the Hub: `train=train[:90%]`, ...; by default those that it has."""
    from datasets import get_dataset_split_names

    if given := args.dataset_splits:
        splits = dict(pair.partition("=")[::2] for pair in given)
        if not all(name in HUB_SPLITS and split for name, split in splits.items()):
            raise ValueError(f"--dataset_splits {' '.join(given)}: write train=..., dev=... or test=..., each once.")
        return splits
    with files.reading(f"The dataset {args.dataset}", _NO_HUB):
        names = get_dataset_split_names(args.dataset, args.dataset_config, revision=args.dataset_revision)
    splits = {split: name for split, name in HUB_SPLITS.items() if name in names}
    if not splits:
        raise ValueError(f"{args.dataset} has the splits {', '.join(names)}. Say which is which (--dataset_splits).")
    return splits


def _collect_labels(task: Task) -> tuple[str, ...]:
    """The labels of all training examples, those held out too, sorted; as numbers if they all are."""
    if not task.has_training_data:
        raise ValueError(f"{task.title} has nothing to train on, so --labels must name the labels in their order.")
    examples = load_split(dataclasses.replace(task, validation_share=0.0), "train").examples
    if task.kind == "tagging":
        tags = {tag for tags in examples["tags"] for tag in tags or ()}
        # Other splits may have a rare type inside of which no training sentence goes on (`I-LST` of CoNLL-2000).
        return tuple(sorted(tags | {position + tag[1:] for tag in tags if tag[1:2] == "-" for position in "BI"}))
    pairs = zip(examples["label"], examples["texts"], strict=True)
    unlabeled = sum(label is None and any(texts) for label, texts in pairs)
    counts = Counter(examples["label"])
    del counts[None]
    if len(counts) < 2:
        raise ValueError(f"{task.title}: all training examples have the same label, {next(iter(counts))!r}.")
    _ask_about_labels("".join(task.files.get("train", ())) or str(task.dataset), counts, unlabeled)
    return tuple(sorted(counts, key=float if all(map(_NUMBER.fullmatch, counts)) else str))


def _ask_about_labels(place: str, counts: Counter[str], unlabeled: int) -> None:
    """Raises a ValueError, with the flags that decide, where it is not certain that the labels are classes."""
    numbers = [label for label in sorted(counts) if _NUMBER.fullmatch(label)]
    words = sorted(counts.keys() - set(numbers))
    if unlabeled:
        doubt = f"{unlabeled:,} examples have no label"
    elif absent := [word for word in words if word.lower() in _ABSENT]:
        doubt = f"{counts[absent[0]]:,} examples have the label {absent[0]!r}"
    elif numbers and words:
        doubt = f"the label {numbers[0]!r} is a number, and {words[0]!r} is not"
    elif decimals := [number for number in numbers if float(number) % 1]:
        doubt = f"labels are numbers with decimals, such as {decimals[0]!r}"
    elif len(set(map(float, numbers))) < len(numbers) or len(numbers) > _MANY_NUMBERS:
        doubt = f"labels are {len(numbers):,} different numbers, such as {numbers[-1]!r}"
    elif len(counts) > max(2, counts.total() / 5):
        doubt = f"there are {len(counts):,} different labels for {counts.total():,} examples"
    else:
        return
    other = "pass --task_kind regression to predict numbers" if numbers and not words else "correct the column"
    raise ValueError(f"{place}: {doubt}. If the labels are classes, name them all (--labels A B ...), else {other}.")
