"""The JSON records that a run leaves behind, from which curves, tables and cards are made. Records are published, so
`public` keeps local paths, passwords and tokens out of them."""

import dataclasses
import json
import math
import os
import platform
import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import strict
from typing_extensions import Self

from hf_electra_rtd.base.files import reading, write_text


SCHEMA_VERSION = 2
Number = float | int
_PACKAGES = (
    "hf-electra-rtd",
    "torch",
    "transformers",
    "accelerate",
    "datasets",
    "tokenizers",
    "huggingface_hub",
    "numpy",
    "scikit-learn",
    "peft",
)


class _Record:
    """The base of all records: strict dataclasses, each saved as one JSON file."""

    FILE = ""

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Writes the record into a directory and returns its path. Numbers that are not finite become null."""
        path = Path(directory) / self.FILE
        values = dataclasses.asdict(self) | {"schema_version": SCHEMA_VERSION}  # type: ignore[call-overload]
        write_text(path, json.dumps(finite(values), indent=2, ensure_ascii=False) + "\n")
        return path

    @classmethod
    def find(cls, directory: str | os.PathLike[str], depth: int | None = None) -> list[Path]:
        """Returns the sorted paths of all records of this kind in a directory and down to `depth` below it, through
        links, or (None) in all of its directories."""
        levels = ["**/"] if depth is None else ["*/" * level for level in range(depth + 1)]
        paths = chain.from_iterable(Path(directory).glob(level + cls.FILE) for level in levels)
        return sorted(paths, key=_in_order)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a record from its file, or from the directory that holds it. Raises ValueError, with the path, for a
        file that is not JSON, has another version, or has fields that are missing, unknown or of another type."""
        path = Path(path)
        path = path / cls.FILE if path.is_dir() else path
        with reading(path, f"It must be a {cls.__name__} of this version of hf-electra-rtd."):
            values = json.loads(path.read_text(encoding="utf-8"))
            json.dumps(values, allow_nan=False)  # raises an error for numbers that are not finite
            if not isinstance(values, dict):
                raise ValueError("it holds no JSON object")
            version = values.pop("schema_version", None)
            if version != SCHEMA_VERSION:
                raise ValueError(f"it has schema version {version}, and this is {SCHEMA_VERSION}")
            return cls(**values)


@strict
@dataclass
class PretrainingRecord(_Record):
    """A pre-training run, in `run_record.json`."""

    FILE = "run_record.json"

    command: str  # as typed
    started: str  # UTC, ISO 8601
    finished: str
    arguments: dict[str, dict[str, Any]]  # every argument of the run, in the groups `model`, `data` and `training`
    model: dict[str, Any]  # configuration of the joint model
    parameters: dict[str, int]  # `generator`, `discriminator`, `head`, `total` (shared ones counted once)
    data: dict[str, dict[str, Any]]  # headers of the block files `train`, `held_out` and `old_held_out`
    hardware: dict[str, Any]
    versions: dict[str, str]  # of Python and the packages
    steps: int  # optimizer steps
    sequences: int  # trained on, over all steps and processes
    tokens: int  # real tokens in them, estimated by the mean length of the text's sequences
    train_seconds: Number  # spent in training steps, without evaluation and saving; over all sessions of a resumed run
    flops: dict[str, Number]  # `model`: of the training so far (`hf_electra_rtd.base.accounting`)
    curves: list[dict[str, Any]]  # the log, one dict a line, each with `step`
    metrics: dict[str, Number | None] = field(default_factory=dict)  # on held-out text, at the end
    fractions: list[dict[str, Any]] = field(default_factory=list)  # a `FractionRecord` for each export, by step
    # For a run that was evaluated before its first step: metrics `before` and `after`, each for `new` and for `old`
    # text.
    before_and_after: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    # A held-out sentence for cards, in three forms: `original`; `replaced`, with one word replaced; `gap`, with {} for
    # it.
    example: dict[str, str] = field(default_factory=dict)


@strict
@dataclass
class FractionRecord(_Record):
    """The generator and discriminator exported after a fraction of a run, in `fraction.json`."""

    FILE = "fraction.json"

    fraction: Number  # share of the run's steps, as requested
    step: int  # optimizer steps until then
    sequences: int  # trained on until then, over all processes
    train_seconds: Number  # as in `PretrainingRecord`


def _in_order(path: Path) -> list[tuple[float, str]]:
    """The key by which paths are sorted, with numbers by size: `fractions/6.25` comes before `fractions/25`."""
    return [(float(part), "") if re.fullmatch(r"\d+(\.\d+)?", part) else (-1.0, part) for part in path.parts]


def pretraining_of(network: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Returns the run that a network comes from: `run`, the name of its directory; the time when it `started`; and the
    `tokens` that the network was trained on. They come from the record of the finished run in whose directory the
    network lies and, for a network exported at a fraction of it, from the record of the export. Returns None without
    these records."""
    path = Path(network).resolve()
    if path.name not in ("generator", "discriminator", "detector"):
        return None  # such as a checkpoint, which has seen only a part of its run
    place = path.parent
    is_export = (place / FractionRecord.FILE).is_file()
    directory = place.parent.parent if is_export else place
    if not (directory / PretrainingRecord.FILE).is_file():
        return None
    run = PretrainingRecord.load(directory)
    share = FractionRecord.load(place).sequences / run.sequences if is_export else 1.0
    return {"run": directory.name, "started": run.started, "tokens": round(run.tokens * share)}


@strict
@dataclass
class EvaluationRecord(_Record):
    """Fine-tuning on one task with one seed, and its scores, in `evaluation_record.json`."""

    FILE = "evaluation_record.json"

    command: str  # as typed; empty for examples from Python
    started: str  # UTC, ISO 8601
    finished: str
    benchmark: str  # `glue`, `clue`, `more`, or `own` for a user's task
    task: str  # its name, such as `mrpc`
    language: str  # `en`, `zh`, or empty where it is not known
    kind: str  # a key of `finetuning.kinds.KINDS`, such as `classification`
    # `title`; `id` and `config` on the Hub (null where it is not there); `splits`, from the names here to those there;
    # `text_columns`, the names of the one or two columns of text.
    dataset: dict[str, Any]
    # `name_or_path`, `sha256` (`files.hash_model`), `tokenizer`, `architecture`, `parameters`,
    # `trained_parameters`, `from_scratch`, `peft`, `size`, `pretraining` (`pretraining_of`).
    model: dict[str, Any]
    arguments: dict[str, Any]  # as used, with the defaults of size and task filled in
    seed: int
    # For each split: source, `examples`, `features`, `skipped`, `truncated`, `unknown_share` (of tokens).
    data: dict[str, dict[str, Any]]
    # For each evaluated split, dev splits first: metric to score, as a fraction or correlation (1 is perfect); null if
    # not finite.
    metrics: dict[str, dict[str, Number | None]]
    main_metric: str  # the one in tables
    selection: str  # how the model was chosen: `last step`, or `best of 3 evaluations by accuracy on dev`
    steps: int  # optimizer steps
    epochs: Number  # passes over the training examples
    train_seconds: Number  # in training since the run was last resumed, without evaluation
    examples_per_second: Number  # over all processes
    hardware: dict[str, Any]
    versions: dict[str, str]
    predictions: dict[str, str] = field(default_factory=dict)  # for each predicted split: its file beside the record
    curves: list[dict[str, Any]] = field(default_factory=list)  # the log, one dict a line, each with `step`
    # For each split with labels, from its report: `interval`, `baseline`, `classes`, `mae`, `rmse`, the value that is
    # always predicted (`constant_prediction`), and `data`, the hash of the scored examples.
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def score(self) -> float | None:
        """The main metric on the first evaluated split; None if it is not finite or nothing was evaluated."""
        return next(iter(self.metrics.values()), {}).get(self.main_metric)

    @property
    def dev_score(self) -> float:
        """The score on a dev split, by which models are chosen; -infinity without one, since a test split must not
        choose."""
        is_dev = next(iter(self.metrics), "").startswith("dev")
        return self.score if is_dev and self.score is not None else -math.inf


@strict
@dataclass
class ExportRecord(_Record):
    """The export of a model as an ONNX graph, and the checks that it passed, in `export_record.json`."""

    FILE = "export_record.json"

    command: str  # as typed
    finished: str  # UTC, ISO 8601
    name: str  # `detector`, `generator`, `discriminator`, or the name of the task
    kind: str  # `detector`, `generator`, or a key of `finetuning.kinds.KINDS`
    model: dict[str, Any]  # what was exported: `name_or_path`, `sha256` (null if not a directory), `architecture`
    inputs: list[str]  # int64, (batch, sequence); in multiple choice (batch, choices, sequence)
    outputs: list[str]
    megabytes: dict[str, Number]  # sizes of `torch` (its parameters), `onnx` (the float32 graph) and `onnx-int8`
    shapes: list[list[int]]  # those of the batches on which the float32 graph was compared with torch
    largest_difference: Number  # between the outputs for these batches
    tolerance: Number
    # Results on the rows of a file; empty without one. `predictions` is their number; `equal`, how many of each
    # graph's predictions equal torch's; `scores` and `classes`, the overall scores and those of each class, for each
    # graph and torch.
    dev: dict[str, Any]
    # `sentences_per_second` of each graph and `torch`, the `shape` of the batches, and `threads`
    speed: dict[str, Any]
    hardware: dict[str, Any]
    versions: dict[str, str]

    @property
    def int8_loss(self) -> tuple[float, str] | None:
        """What the int8 graph loses on the rows of a file, in points of 100, and the name of the measure: the main
        metric or, without labels, the share of predictions that equal torch's. None without such rows."""
        if not self.dev:
            return None
        scores = self.dev["scores"]
        if scores:
            metric, score = next(iter(scores["torch"].items()))
            return 100 * (score - scores["onnx-int8"][metric]), metric
        return 100 * (1 - self.dev["equal"]["onnx-int8"] / self.dev["predictions"]), "equal predictions"


# ---- What may be published ----

# Endings of `_NAME` for flags whose values are paths, and names of flags whose values are Hub ids or paths.
_PATH_FLAGS = (
    "_dir",
    "_file",
    "_files",
    "_config",
    "_resume_from_checkpoint",
    "_run",
    "_evaluations",
    "_compared",
    "_counted_on",
    "_deepspeed",
    "_pairs",
)
_PATH_OR_ID_FLAGS = (
    "dataset",
    "train_datasets",
    "tokenizer",
    "generator",
    "discriminator",
    "continue_from",
    "model",
    "model_name_or_path",
    "base_model",
    "name_or_path",
    "_name_or_path",
    "backbone",
    "generator_backbone",
)
# Names, or endings of names, of values that are never paths: classes, and the tokens in `tokenizer_config.json`.
_NO_PATHS = ("labels", "classes", "prediction", "id2label", "label2id", "_token", "_tokens", "_tokens_decoder")
# Absolute paths, which are private if they exist on this machine; and paths that are always private.
_ABSOLUTE = re.compile(r"~|[\\/]|[A-Za-z]:[\\/]|file:")
_PRIVATE = re.compile(r"\.\.?[\\/]|(?:file:(?://)?)?/(?:home|Users|root)/|~[\\/]|[A-Za-z]:[\\/](?!/)|\\\\[\w.-]+\\")
_PATH_WITH_OPTIONS = re.compile(r"(.*?)((?:,\w+=[^,]*)*)")
HUB_TOKEN = re.compile(r"(?:hf|api_org)_[A-Za-z0-9]{30,}")
_URL_SECRET = re.compile(r"([?&][\w-]*(?:token|key|secret|password|signature|sig)=)[^&#\s<\\][^&#\s]*", re.IGNORECASE)
# In lower case, `key` counts only as a word of its own, not as the end of one such as monkey.
_KEY_SECRET = re.compile(
    r"^(\s*(?:\w*(?:TOKEN|SECRET|PASSWORD|PASSWD)\w*|(?-i:[A-Z0-9_]*KEY[A-Z0-9_]*)"
    r"|(?:\w*_)?(?:API|ACCESS|PRIVATE)?KEYS?(?:_\w*)?)=)(?!<secret>$).+$",
    re.IGNORECASE | re.MULTILINE,
)
# Patterns of secrets in a value, and what replaces each.
_SECRETS = (
    (_KEY_SECRET, r"\1<secret>"),
    (re.compile(r"(?<=://)[^/@\s]+@"), ""),
    (HUB_TOKEN, "<token>"),
    (_URL_SECRET, r"\1<secret>"),
)


def public(value: Any, name: str = "") -> Any:
    """Returns a value as it may be published: dicts, lists and strings, at any depth, without directories of this
    machine, passwords and tokens. This is the only filter of secrets: records and messages go through it, and a file
    that it would change is not published.

    A path is reduced to its last component and the options behind it (`a/b.jsonl,weight=2` becomes
    `b.jsonl,weight=2`). Only a whole line counts as a path. It is recognized by `name`, its flag or its key in a dict;
    because it is absolute and exists here; or because it begins with a home, a drive, a server, `../` or `./`. Labels
    and tokens of a vocabulary are not treated as paths.
    """
    if isinstance(value, Mapping):
        inside = name if name.endswith(_NO_PATHS) else ""
        return {public(key, inside): public(item, inside or str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [public(item, name) for item in value]
    if not isinstance(value, str):
        return value
    for secret, substitute in _SECRETS:
        value = secret.sub(substitute, value)
    if name.endswith(_NO_PATHS):
        return value
    return "\n".join(_without_directory(line, name) for line in value.split("\n"))


def _without_directory(line: str, name: str) -> str:
    """Returns the line or, if it is a path, its last component with its options."""
    path, options = _PATH_WITH_OPTIONS.fullmatch(line.strip()).groups()  # type: ignore[union-attr]
    if not path or ("://" in path and not path.startswith("file:")):
        return line
    is_path = f"_{name}".endswith(_PATH_FLAGS) or (name in _PATH_OR_ID_FLAGS and hub_id(path) is None)
    is_here = _ABSOLUTE.match(path) and os.path.exists(os.path.expanduser(path))
    if not (is_path or is_here or _PRIVATE.match(path)):
        return line
    last = re.split(r"[\\/]+", path.rstrip("\\/"))[-1]
    return ("." if last in ("", "..") else last) + options


def hub_id(name: str | None) -> str | None:
    """Returns the name of a model or dataset if it is a Hub id; None for a path."""
    if not name or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", name) or os.path.exists(name):
        return None
    return name


def public_command(argv: Sequence[str]) -> str:
    """Returns a command line as a record may hold it (see `public`). Its first word is the program: a path, or
    `hf-electra-rtd COMMAND`."""
    words = Path(argv[0]).name.split()
    if words and words[0].endswith(".py"):
        words.insert(0, "python")
    flag = ""
    for word in argv[1:]:
        if word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            if re.fullmatch(r"[\w-]+", flag):
                flag = flag.replace("-", "_")
            words.append(f"--{flag}{equals}{public(value, flag)}")
        else:
            words.append(public(word, flag))
    return shlex.join(words)


# ---- Where a run ran ----


def finite(value: Any) -> Any:
    """Returns a value as JSON can hold it: at any depth, numbers that are not finite become None, and objects of other
    types their text."""
    return json.loads(json.dumps(value, default=str), parse_constant=lambda constant: None)


def utc_now() -> str:
    """Returns the current time as records hold it: UTC, ISO 8601."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def collect_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide a run's result."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):  # some are not needed for training on prepared blocks
            versions[package] = metadata.version(package)
    return versions


def count_cores() -> int:
    """The CPU cores that this process may use, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_hardware(hardware: Mapping[str, Any]) -> str:
    """Describes the hardware that did the work: `2 x NVIDIA H100`, or `1 thread of AMD EPYC 9B14`."""
    if hardware["accelerators"]:
        counts = Counter(hardware["accelerators"])
        return ", ".join(f"{count} x {name}" for name, count in counts.items())
    threads = hardware["torch_threads"] * hardware.get("processes", 1)
    return f"{threads} {'thread' if threads == 1 else 'threads'} of {hardware['processor']}"


def collect_hardware() -> dict[str, Any]:
    """Describes the machine: system, processor, cores, memory, accelerators."""
    import torch
    from accelerate import PartialState

    state = PartialState()
    on_gpus = state.device.type == "cuda"
    hardware: dict[str, Any] = {
        "system": platform.platform(terse=True),
        "processor": platform.processor() or platform.machine(),
        "cpu_cores": count_cores(),
        "torch_threads": torch.get_num_threads(),  # of each process
        "processes": state.num_processes,
        # Of all processes, on the assumption that their GPUs are equal.
        "accelerators": [torch.cuda.get_device_name(state.device)] * state.num_processes if on_gpus else [],
    }
    if sys.platform == "linux":
        model_name = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if model_name:
            hardware["processor"] = model_name[1]
        hardware["memory_gib"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    return hardware
