"""Loads the splits of a task: examples, and the features that a model takes. Also makes the user's own tasks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from hf_electra_rtd.base import files
from hf_electra_rtd.base.files import hash_files
from hf_electra_rtd.base.records import public
from hf_electra_rtd.base.tasks import HUB_SPLITS, SPANS, Task, guests
from hf_electra_rtd.data import reader
from hf_electra_rtd.data.tokenization import check_known
from hf_electra_rtd.finetuning import reading
from hf_electra_rtd.finetuning.kinds.base import Kind
from hf_electra_rtd.finetuning.scores import METRICS, find_chunks


logger = logging.getLogger(__name__)

LABELED = ("classification", "multi_label", "tagging")  # kinds whose tasks have `labels`
# Defaults of the user's own tasks, by kind; flags override them. Other kinds have all their metrics.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "classification": {"metrics": ("accuracy", "macro_f1")},
    "question_answering": SPANS,
    "tagging": {"metrics": ("f1",)},
    "correction": {"metrics": METRICS["correction"][:5], "label_column": "right"},
}
# The flag that sets each field of `Task`.
_FLAGS = {
    "dataset": "dataset",
    "config": "dataset_config",
    "revision": "dataset_revision",
    "language": "language",
    "labels": "labels",
    "label_column": "label_column_name",
    "id_column": "id_column_name",
    "metrics": "metrics",
    "unanswerable": "unanswerable",
}
# The fields that determine the examples of the user's own task, in addition to its files.
_FACTS = ("kind", "columns", "id_column", "label_column", "validation_share", "language", "unanswerable")
# Labels that stand for a missing value; and how many distinct whole numbers may be classes, and not measurements.
_ABSENT = ("nan", "na", "n/a", "<na>", "none", "null")
_MANY_NUMBERS = 20
_NO_HUB = "Check its name and the connection, or give files instead (data_dir, or your own)."


@dataclass
class Split:
    """A split of a task."""

    examples: datasets.Dataset  # in the order of the file, with the columns of `reading.example_features`
    skipped: int  # rows that give no example: a label `-`, a broken line, spans that cannot be right
    # `files`: SHA-256 by name without directory; or `dataset`, `config`, `split`, `revision`, `fingerprint`.
    source: dict[str, Any]
    features: datasets.Dataset | None = None  # what the model takes, once `encode_task` has made it
    # From the last predictions: an array (examples, labels), or an array for each example (see `Kind.probabilities`).
    probabilities: Any = None
    unknown_share: float = 0.0  # share of unknown tokens, once `encode_task` has counted them

    def describe(self) -> dict[str, Any]:
        """Returns what an `EvaluationRecord` holds of an encoded split."""
        assert self.features is not None
        owners = np.asarray(self.features["example"])
        return {
            **self.source,
            "examples": len(self.examples),
            "features": len(owners),
            "skipped": self.skipped + len(self.examples) - len(np.unique(owners)),
            "truncated": len(np.unique(owners[np.asarray(self.features["truncated"], dtype=bool)])),
            "unknown_share": self.unknown_share,
        }


# ---- Splits ----


def load_split(task: Task, split: str, data_dir: str | None = None) -> Split:
    """Loads a split (such as `dev`) of a task: from files in the official layout under `data_dir`, from the user's own
    files, or from the Hub. If the task names no labels, any label is accepted. `datasets` caches the examples by the
    content of the files. Raises ValueError for a split that is missing, cannot be read, is empty, has a row that
    cannot be used, or must be labeled and has no label."""
    if data_dir or not task.dataset:
        paths = reading.find_files(task, split, data_dir)
        name = paths[0]
        read = filter(os.path.isfile, [*paths, *map(reading.answer_file, paths)])
        source: dict[str, Any] = {"files": {Path(file).name: hash_files([file]) for file in sorted(read)}}
        rows: Any = (row for path in paths for row in reading.read_rows(task, split, path))
    else:
        on_hub = task.splits.get(split, split)
        name = f"The dataset {task.dataset}, split {on_hub!r},"
        with files.reading(name, _NO_HUB):
            hub = datasets.load_dataset(task.dataset, task.config, split=on_hub, revision=task.revision)
        source = {"dataset": public(task.dataset, "dataset"), "config": task.config, "split": on_hub}
        source |= {"revision": task.revision, "fingerprint": hub._fingerprint}
        rows = reading.hub_rows(name, hub)
    facts = json.loads(json.dumps(dataclasses.asdict(task)))  # as a record will have them
    if task.benchmark == "own":
        source |= {name: facts[name] for name in _FACTS}
    identity = json.dumps([facts, split, source, hash_files([reading.__file__, reader.__file__])])
    with files.reading(name):
        try:
            examples = datasets.Dataset.from_generator(
                lambda: reading.make_examples(task, split, rows),
                features=reading.example_features(task.kind),
                fingerprint=hashlib.sha256(identity.encode()).hexdigest()[:16],
            )
        except datasets.exceptions.DatasetGenerationError as error:
            raise error.__cause__ or error from None
    if skipped := examples.data.column("id").null_count:
        examples = examples.filter(lambda id: id is not None, input_columns="id")
    if task.validation_share and split in ("train", "dev"):
        examples = _hold_out(task, examples, dev=split == "dev")
    if not len(examples):
        share = f" with validation_share={task.validation_share:g}" if task.validation_share else ""
        raise ValueError(f"{name} has no row for the split {split!r} of {task.title}{share} ({skipped:,} skipped).")
    must_be_labeled = split not in task.test_splits and (task.kind, split) != ("embedding", "train")
    if must_be_labeled and all(label is None for label in examples["label"]):
        raise ValueError(f"{name}: no row is labeled, so it cannot be the split {split!r} of {task.title}.")
    if split in task.test_splits and all(label == [] for label in examples["label"]):  # all of its cells are empty
        unknown = dict.fromkeys({"label", "starts"} & set(examples.column_names))
        examples = examples.map(lambda row: unknown, features=examples.features)
    return Split(examples, skipped, source)


def load_task(
    task: Task, data_dir: str | None, *, test: bool = False, optional_test: bool = False
) -> dict[str, Split]:
    """Loads the splits that a run needs: `train`; the dev splits; and, with `test`, the test splits, and those of
    tasks without training data that this task's model predicts (`guests`), under the guest's name. A split that cannot
    be used is a ValueError. For optional splits, it is only a warning: all dev splits but the first, those of guests,
    and, with `optional_test`, the test splits."""
    wanted = [("train", task, "train", False)]
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
            logger.warning(f"{owner.title} runs without its split {name}: {error}")
    return splits


def encode_task(kind: Kind, splits: Mapping[str, Split]) -> None:
    """Makes the features of all splits, and warns of skipped and truncated examples. Raises a ValueError if no
    training example can be learned, and for text with too many unknown tokens (see `check_known`)."""
    for name, split in splits.items():
        split.features = kind.encode(split.examples, training=name == "train")
        if not len(split.features) and name == "train":
            why = " No answer occurs in its context." if kind.task.kind == "question_answering" else ""
            raise ValueError(f"{kind.task.title}: no example of the training split can be learned.{why}")
        split.unknown_share = check_known(f"{kind.task.title}, {name}", *kind.count_unknown(split.features))
        described = split.describe()
        fates = {
            "skipped": "no text or label, or nothing to learn",
            "truncated": f"max_seq_length={kind.max_seq_length}",
        }
        for fate, why in fates.items():
            if described[fate]:
                of_all = f"{described[fate]:,} of {len(split.examples):,} examples"
                logger.warning(f"{kind.task.title}, {name}: {of_all} {fate} ({why}).")


def _hold_out(task: Task, examples: datasets.Dataset, dev: bool) -> datasets.Dataset:
    """The held-out examples of the training file (`dev`), or the others. They are drawn by the hashes of their texts
    (for a question, of its context), so that equal texts stay together in any order of the file. In classification,
    texts are drawn from each class: at least one if there are two or more, and never all. A text with several labels
    counts for its rarest one. Other kinds draw from all texts. Texts without a label are kept for training."""
    if "question" in examples.column_names:
        pairs = zip(examples["context"], examples["question"], strict=True)
        texts = [context or question for context, question in pairs]
    else:
        texts = ["\n".join(parts) for parts in examples["texts"]]
    hashes = [hashlib.sha256(text.encode()).digest() for text in texts]
    labeled = [
        (text, label if task.kind == "classification" else "")
        for text, label in zip(hashes, examples["label"], strict=True)
        if label is not None
    ]
    counts = Counter(label for _, label in labeled)
    rarest = dict(sorted(labeled, key=lambda pair: (-counts[pair[1]], pair[1])))  # the last label of a text wins
    strata: dict[str, list[bytes]] = {}
    for text in sorted(rarest):
        strata.setdefault(rarest[text], []).append(text)
    held: set[bytes] = set()
    for of_class in strata.values():
        number = max(round(task.validation_share * len(of_class)), 1)
        held.update(of_class[: min(number, len(of_class) - 1)])
    return examples.select([index for index, text in enumerate(hashes) if (text in held) == dev])


# ---- The user's own task ----


def own_task(name: str, args: Any) -> Task:
    """Returns the user's own task, from `OwnTaskArguments`. Reads the data for what flags leave open: the labels, and
    whether questions have answers and pairs have numbers. Raises ValueError for flags that do not fit together, data
    that cannot be read, and labels that are not clear."""
    kind = args.task_kind
    share = args.validation_share
    facts = {"metrics": METRICS[kind], **_DEFAULTS.get(kind, {})}
    for fact, flag in _FLAGS.items():
        value = getattr(args, flag)
        if value is not None:
            facts[fact] = tuple(value) if isinstance(value, list) else value
    paths = {"train": args.train_file, "dev": args.validation_file, "test": args.test_file}
    splits: dict[str, Any] = {split: (os.path.abspath(path),) for split, path in paths.items() if path}
    if Path(name).name != name or name in ("..", "submission"):  # the directory of the files for servers
        raise ValueError(f"--task_name is {name!r}, but it must be a plain word other than 'submission'.")
    place = "splits" if args.dataset else "files"
    splits = splits or _hub_splits(args)
    if share and "dev" in splits:
        raise ValueError("--validation_share holds out training examples, but there is a dev split. Leave it out.")
    columns = [args.text_column_name]
    if args.second_text_column_name:
        columns.append(args.second_text_column_name)
    holds_out = "train" in splits and "dev" not in splits and share != 0
    if holds_out and share is None and kind == "embedding":  # only pairs with numbers can be scored
        whole = Task(name, name, kind=kind, columns=tuple(columns), **{**facts, place: splits})
        holds_out = len(columns) == 2 and any(
            label is not None for label in load_split(whole, "train").examples["label"]
        )
    if holds_out:
        facts["validation_share"] = share or 0.1
        splits["dev"] = splits["train"]
    if len(columns) == 1 and kind == "embedding" and splits.keys() != {"train"}:
        raise ValueError("Embeddings are scored on pairs of texts: --second_text_column_name names their second one.")
    facts |= {f"{split}_splits": tuple({split} & splits.keys()) for split in ("dev", "test")}
    task = Task(name, name, kind=kind, columns=tuple(columns), **{**facts, place: splits})
    if kind == "question_answering" and args.unanswerable is None:
        whole = dataclasses.replace(task, validation_share=0.0)
        labeled = [load_split(whole, split).examples["label"] for split in splits if split != "test"]
        return dataclasses.replace(task, unanswerable=any(answers == [] for column in labeled for answers in column))
    if kind in LABELED and not task.labels:
        task = dataclasses.replace(task, labels=_collect_labels(task))
    if kind == "tagging":
        with files.reading(next(iter(task.files.values()), (name,))[0], "Tags are O, B-PER, I-PER, ..."):
            find_chunks(task.labels)
    if kind == "classification" and "f1" in task.metrics and len(task.labels) != 2:
        raise ValueError(f"{name}: f1 needs two labels, but there are {len(task.labels)}. Ask for macro_f1.")
    return task


def _hub_splits(args: Any) -> dict[str, str]:
    """The splits of a dataset on the Hub: those in `--dataset_splits`, or those with the usual names."""
    if args.dataset_splits:
        splits = dict(pair.partition("=")[::2] for pair in args.dataset_splits)
        if splits.keys() - HUB_SPLITS.keys():
            raise ValueError("--dataset_splits: the names of splits are train, dev and test: train=A dev=B test=C.")
    else:
        with files.reading(f"The dataset {args.dataset}", _NO_HUB):
            names = datasets.get_dataset_split_names(args.dataset, args.dataset_config, revision=args.dataset_revision)
        splits = {split: name for split, name in HUB_SPLITS.items() if name in names}
        if not splits:
            raise ValueError(f"{args.dataset} has {', '.join(names)}. Pass --dataset_splits train=A dev=B test=C.")
    return splits


def _collect_labels(task: Task) -> tuple[str, ...]:
    """The labels of all training examples, including held-out ones, sorted; as numbers if all of them are. If it is
    not certain that they are classes, raises a ValueError that names the flags to decide it."""
    if "train" not in {**task.files, **task.splits}:
        raise ValueError(f"{task.title} has nothing to train on, so --labels must name the labels in their order.")
    examples = load_split(dataclasses.replace(task, validation_share=0.0), "train").examples
    if task.kind == "tagging":
        tags = {tag for tags in examples["label"] for tag in tags or ()}
        # In the training split, a rare type may have no `I-` tag, which other splits have (`I-LST` of CoNLL-2000).
        return tuple(sorted(tags | {position + tag[1:] for tag in tags if tag[1:2] == "-" for position in "BI"}))
    counts: Counter[str] = Counter()
    unlabeled = 0
    for label, texts in zip(examples["label"], examples["texts"], strict=True):
        unlabeled += label is None and any(texts)
        counts.update([label] if isinstance(label, str) else label or ())
    unlabeled += sum(count for label, count in counts.items() if label.lower() in _ABSENT)
    numbers = sorted(filter(reading.NUMBER.fullmatch, counts))
    words = sorted(counts.keys() - set(numbers))
    values = set(map(float, numbers))
    if len(counts) < 2:
        doubt = f"all examples have the same label, {next(iter(counts), 'none')!r}"
    elif unlabeled:
        doubt = f"{unlabeled:,} examples have no label (empty, {', '.join(_ABSENT)})"
    elif numbers and words:
        doubt = f"the label {numbers[0]!r} is a number, and {words[0]!r} is not"
    elif any(value % 1 for value in values) or len(values) < len(numbers) or len(numbers) > _MANY_NUMBERS:
        doubt = f"labels are {len(numbers):,} different numbers, such as {numbers[-1]!r}"
    elif len(counts) > max(2, counts.total() / 5):
        doubt = f"there are {len(counts):,} different labels for {counts.total():,} examples"
    else:
        return tuple(words or sorted(numbers, key=float))
    place = "".join(task.files.get("train", ())) or task.dataset
    raise ValueError(
        f"{place}: {doubt}. If the labels are classes, name them all (--labels A B ...). If not, correct the column, "
        "or pass --task_kind regression to predict numbers."
    )
