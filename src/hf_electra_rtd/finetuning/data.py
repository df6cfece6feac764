"""From a task to its splits: examples, and the features that a model takes. Also the user's own tasks."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_electra_rtd import files
from hf_electra_rtd.cli import check_ranges
from hf_electra_rtd.files import hash_files, known_names
from hf_electra_rtd.finetuning import reading
from hf_electra_rtd.finetuning.scores import METRICS, find_chunks
from hf_electra_rtd.records import public
from hf_electra_rtd.tasks import HUB_SPLITS, SPANS, Task, guests


if TYPE_CHECKING:
    from datasets import Dataset

    from hf_electra_rtd.finetuning.kinds.base import Kind

logger = logging.getLogger(__name__)

LABELED = ("classification", "multi_label", "tagging")  # kinds whose tasks have `labels`
# Facts of one's own tasks, by kind, unless they are given.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "classification": {"metrics": ("accuracy", "macro_f1")},
    "multi_label": {"metrics": ("micro_f1", "macro_f1", "accuracy")},
    "regression": {"metrics": ("pearson", "spearman")},
    "multiple_choice": {"metrics": ("accuracy",)},
    "question_answering": SPANS,
    "tagging": {"metrics": ("f1",)},
    "correction": {"metrics": METRICS["correction"][:5], "label_column": "right"},
}
# The flags of fields of `Task`, and kinds that flags are for.
_FLAGS = {name: name for name in ("dataset", "validation_share", "language", "labels", "metrics", "unanswerable")}
_FLAGS |= {"kind": "task_kind", "label_column": "label_column_name", "id_column": "id_column_name"}
_FLAGS |= {"config": "dataset_config", "revision": "dataset_revision"}
_ONLY_FOR: dict[str, tuple[str, ...]] = {"second_text_column_name": ("classification", "multi_label", "regression")}
_ONLY_FOR |= {"unanswerable": ("question_answering",)}
# Of one's own task: what it does not name, and what else decides its examples.
_NOT_OWN = ("benchmark", "dev_splits", "test_splits", "trained_on", "majority", "submission", "submission_format")
_FACTS = (
    *("columns", "label_column", "validation_share", "format", "renamed", "headers", "renamed_labels", "language"),
    *("skip_broken_lines", "unanswerable", "double_unordered"),
)
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
    probabilities: Any = None  # (examples, labels), of the last predictions of classes

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
    A split that is not there or cannot be read, or has a row that cannot be used, or none, is a ValueError.
    """
    from datasets import Dataset, load_dataset
    from datasets.exceptions import DatasetGenerationError

    if data_dir or not task.dataset:
        paths = reading.find_files(task, split, data_dir)
        on_disk = {file for path in paths for file in (path.partition("::")[0], reading.answer_file(path))}
        name, there = paths[0], sorted(filter(os.path.isfile, on_disk))
        source: dict[str, Any] = {"files": {Path(file).name: hash_files([file]) for file in there}}
        rows: Any = (row for path in paths for row in reading.read_rows(task, split, path))
    else:
        on_hub = task.splits.get(split, split)
        name = f"The dataset {task.dataset}, split {on_hub!r},"
        with files.reading(name, _NO_HUB):
            hub = load_dataset(task.dataset, task.config, split=on_hub, revision=task.revision)
        source = {"dataset": public(task.dataset, "dataset"), "config": task.config, "split": on_hub}
        source |= {"revision": task.revision, "fingerprint": hub._fingerprint}
        rows = reading.hub_rows(name, hub)
    facts = json.loads(json.dumps(dataclasses.asdict(task)))  # as a record will have them
    if task.benchmark == "own":
        source |= {name: facts[name] for name in _FACTS}
    identity = json.dumps([facts, split, source, hash_files([reading.__file__])])
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
        share = f" with --validation_share {task.validation_share:g}" * bool(task.validation_share)
        raise ValueError(f"{name} has no row for the split {split!r} of {task.title}{share} ({skipped:,} skipped).")
    if split not in task.test_splits and all(label is None for label in examples["label"]):
        raise ValueError(f"{name}: no row is labeled, so it cannot be the split {split!r} of {task.title}.")
    return Split(examples, skipped, source)


def load_task(
    task: Task, data_dir: str | None, *, train: bool = True, test: bool = False, optional_test: bool = False
) -> dict[str, Split]:
    """Loads the splits that a run needs: `train`, the dev splits, and, with `test`, the test splits and those of tasks
    that this task's model predicts, under the guest's name. Of what may be missing (all dev splits but the first,
    guests, and with `optional_test` the test splits) it only warns. A split that cannot be used is a ValueError."""
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
    """Makes the features of all splits, and warns of what was skipped or truncated. Raises a ValueError if nothing is
    left to train on."""
    for name, split in splits.items():
        split.features = kind.encode(split.examples, training=name == "train")
        if not len(split.features) and name == "train":
            raise ValueError(f"{kind.task.title}: no example of the training split can be learned.")
        described = split.describe()
        for what, why in (("skipped", ""), ("truncated", f" (--max_seq_length {kind.max_seq_length})")):
            if count := described[what]:
                of_all = f"{count:,} of {len(split.examples):,} examples"
                logger.warning(f"{kind.task.title}, {name}: {of_all} {what}{why}.")


def _hold_out(task: Task, examples: Dataset, dev: bool) -> Dataset:
    """The examples of the training file that are held out, or the others. The hashes of texts (of a question: of its
    context) draw them, so that equal texts stay together in any order of the file. In classification they are drawn
    from each class, of two or more texts one at least, and never all; a text with several labels counts for the
    rarest. Other kinds draw from all texts. What has no label is kept for training."""
    if "question" in examples.column_names:
        texts = [one or other for one, other in zip(examples["context"], examples["question"], strict=True)]
    else:
        texts = ["\n".join(of_one) for of_one in examples["texts"]]
    hashes = [hashlib.sha256(text.encode()).digest() for text in texts]
    labels = zip(hashes, examples["label"], strict=True)
    labeled = [(text, label if task.kind == "classification" else "") for text, label in labels if label is not None]
    counts = Counter(label for _, label in labeled)
    rarest = dict(sorted(labeled, key=lambda pair: (-counts[pair[1]], pair[1])))  # the last one stays
    strata: dict[str, list[bytes]] = {}
    for text in sorted(rarest):
        strata.setdefault(rarest[text], []).append(text)
    held: set[bytes] = set()
    for of_class in strata.values():
        number = max(round(task.validation_share * len(of_class)), 1)
        held.update(of_class[: min(number, len(of_class) - 1)])
    return examples.select([index for index, text in enumerate(hashes) if (text in held) == dev])


# ---- The user's own task ----


def own_task(name: str | None, args: Any, labels: Sequence[str] | None = None) -> Task:
    """The user's task, from `OwnTaskArguments` or the file that they name (`--task_file`); reads the data where labels
    have to be collected. `labels` are those of a fine-tuned model that is evaluated: nothing is trained. Fields that
    contradict each other, data that cannot be read, and labels that are not clear are a ValueError."""
    given = read_task_file(args.task_file) if args.task_file else _fields_of_flags(args)
    kind, name = given.setdefault("kind", "classification"), name or given.get("name", "own")
    fields = {"title": name, "language": "", "columns": ("text",), **_DEFAULTS[kind], **given}
    fields |= {"name": name, "benchmark": "own"}
    _check_own(fields)
    place = "splits" if fields.get("dataset") else "files"
    places = dict(fields.get(place) or _find_splits(fields))
    share = fields.pop("validation_share", None)
    if labels is not None:
        share = None
        places.pop("train", None)
        if not places:
            raise ValueError("--evaluate_only reads no training data. Give --validation_file or --test_file.")
    has_dev = any(split.startswith("dev") for split in places)
    if share and (has_dev or "train" not in places):
        which = "a dev split is given" if has_dev else "there is no training split"
        raise ValueError(f"--validation_share holds out training examples, but {which}. Leave it out.")
    if "train" in places and not has_dev and share != 0:
        fields["validation_share"], places["dev"] = share or 0.1, places["train"]
    for part in ("dev", "test"):
        fields[f"{part}_splits"] = tuple(split for split in places if split.startswith(part))
    task = Task(**{**fields, place: places})
    if task.kind in LABELED:
        return _with_labels(task, labels)
    if kind == "question_answering" and "unanswerable" not in fields:
        whole = dataclasses.replace(task, validation_share=0.0)
        known = [load_split(whole, split).examples["label"] for split in places]
        return dataclasses.replace(task, unanswerable=any(answers == [] for column in known for answers in column))
    return task


def _fields_of_flags(args: Any) -> dict[str, Any]:
    """The fields of `Task` that flags give."""
    for name, kinds in _ONLY_FOR.items():
        if getattr(args, name) is not None and args.task_kind not in kinds:
            raise ValueError(f"--{name} has no place in {args.task_kind}. Leave it out.")
    fields = {name: getattr(args, flag) for name, flag in _FLAGS.items()}
    fields["columns"] = [args.text_column_name, *filter(None, [args.second_text_column_name])]
    if args.dataset_splits:
        fields["splits"] = dict(pair.partition("=")[::2] for pair in args.dataset_splits)
    paths = {"train": args.train_file, "dev": args.validation_file, "test": args.test_file}
    fields["files"] = {split: (os.path.abspath(path),) for split, path in paths.items() if path} or None
    known = {name: value for name, value in fields.items() if value is not None}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}


def read_task_file(path: str) -> dict[str, Any]:
    """The fields of `Task` in a YAML file; the files that it names are looked for beside it. A file that cannot be
    read, and a field that is unknown or of another type, are a ValueError."""
    import yaml

    with files.reading(path, "It must hold fields of a task in YAML, such as `kind: regression`."):
        # Without types, as `no` may be a label.
        given = dict(yaml.load(Path(path).read_text(encoding="utf-8"), yaml.BaseLoader))
    known = {field.name: field for field in dataclasses.fields(Task) if field.name not in _NOT_OWN}
    fields: dict[str, Any] = {"name": Path(path).stem}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"{path}: there is no field {name!r}. {known_names(name, known, 'fields')}")
        field = known[name]
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        try:
            fields[name] = _typed(name, default, value)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}: {name} cannot be {value!r} (`Task.{name}`).") from error
    for name, choices in (("kind", METRICS), ("format", reading.FORMAT_NAMES)):
        if name in fields and (value := fields[name]) not in choices:
            raise ValueError(f"{path}: there is no {name} {value!r}. {known_names(value, choices, f'{name}s')}")
    check_ranges(SimpleNamespace(**fields))
    for split, paths in fields.get("files", {}).items():
        fields["files"][split] = tuple(str(Path(path).absolute().parent / one) for one in paths)
    return fields


def _typed(name: str, default: Any, value: Any) -> Any:
    """A value of YAML (words, lists and mappings of words) as the field has it."""
    if isinstance(default, Mapping):
        is_list = name in ("files", "headers")
        return {key: _typed(name, () if is_list else "", of_key) for key, of_key in value.items()}
    if isinstance(default, tuple):
        return tuple(_typed(name, "", one) for one in ([value] if isinstance(value, str) else value))
    if not isinstance(value, str):
        raise TypeError
    if isinstance(default, bool):
        return {"true": True, "false": False}[value.lower()]
    return type(default)(value) if isinstance(default, (int, float)) else value


def _check_own(fields: Mapping[str, Any]) -> None:
    name, kind, labels = fields["name"], fields["kind"], fields.get("labels")
    if Path(name).name != name or name == "..":
        raise ValueError(f"--task_name is {name!r}: it names a directory in --output_dir, so it is a plain word.")
    if bool(fields.get("files")) == bool(fields.get("dataset")):
        raise ValueError("Give either files (--train_file, --validation_file, --test_file) or a --dataset of the Hub.")
    for key in ("config", "revision", "splits"):
        if key in fields and not fields.get("dataset"):
            raise ValueError(f"--dataset_{key} is for --dataset, a dataset of the Hub. Leave it out.")
    for split in fields.get("files") or fields.get("splits") or ():
        if split != "train" and not split.startswith(("dev", "test")):
            raise ValueError(f"There is no split {split!r}: name them train, dev and test.")
    if labels is not None and (kind not in LABELED or not len(set(labels)) == len(labels) > 1):
        raise ValueError(f"--labels must name two or more different classes or tags; there are none in {kind}.")
    if unknown := [metric for metric in fields["metrics"] if metric not in METRICS[kind]]:
        raise ValueError(f"--metrics: {known_names(unknown[0], METRICS[kind], f'metrics of {kind}')}")


def _find_splits(fields: Mapping[str, Any]) -> dict[str, str]:
    """The splits of a dataset on the Hub."""
    from datasets import get_dataset_split_names

    dataset = fields["dataset"]
    with files.reading(f"The dataset {dataset}", _NO_HUB):
        names = get_dataset_split_names(dataset, fields.get("config"), revision=fields.get("revision"))
    splits = {split: name for split, name in HUB_SPLITS.items() if name in names}
    if not splits:
        raise ValueError(f"{dataset} has the splits {', '.join(names)}. Say which is which (--dataset_splits).")
    return splits


def _with_labels(task: Task, labels: Sequence[str] | None) -> Task:
    """The task with the labels of the model that is evaluated, or of its training examples, unless it has some."""
    task = dataclasses.replace(task, labels=task.labels or tuple(labels or ()) or _collect_labels(task))
    if task.kind == "tagging":
        with files.reading(next(iter(task.files.values()), (task.name,))[0], "Tags are O, B-PER, I-PER, ..."):
            find_chunks(task.labels)
    if "f1" in task.metrics and task.kind == "classification" and len(task.labels) != 2:
        raise ValueError(f"{task.name}: f1 needs two labels, but there are {len(task.labels)}. Ask for macro_f1.")
    return task


def _collect_labels(task: Task) -> tuple[str, ...]:
    """The labels of all training examples, those held out too, sorted; as numbers if they all are. Where it is not
    certain that they are classes, a ValueError names the flags that decide."""
    if "train" not in {**task.files, **task.splits}:
        raise ValueError(f"{task.title} has nothing to train on, so --labels must name the labels in their order.")
    examples = load_split(dataclasses.replace(task, validation_share=0.0), "train").examples
    if task.kind == "tagging":
        tags = {tag for tags in examples["label"] for tag in tags or ()}
        # Other splits may have a rare type inside of which no training sentence goes on (`I-LST` of CoNLL-2000).
        return tuple(sorted(tags | {position + tag[1:] for tag in tags if tag[1:2] == "-" for position in "BI"}))
    unlabeled, counts = 0, Counter[str]()
    for label, texts in zip(examples["label"], examples["texts"], strict=True):
        unlabeled += label is None and any(texts)
        counts.update([label] if isinstance(label, str) else label or ())
    if len(counts) < 2:
        raise ValueError(f"{task.title}: all training examples have the same label, {next(iter(counts), 'none')!r}.")
    numbers = sorted(filter(_NUMBER.fullmatch, counts))
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
        return tuple(words or sorted(numbers, key=float))
    place = "".join(task.files.get("train", ())) or task.dataset
    other = "pass --task_kind regression to predict numbers" if numbers and not words else "correct the column"
    raise ValueError(f"{place}: {doubt}. If the labels are classes, name them all (--labels A B ...), else {other}.")
