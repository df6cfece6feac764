"""What a run leaves behind, as JSON: the source of curves, tables and cards."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import sys
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any


SCHEMA_VERSION = 1
RECORD_FILE = "run_record.json"
FRACTION_FILE = "fraction.json"
EVALUATION_FILE = "evaluation_record.json"
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
)


@dataclass
class PretrainingRecord:
    """A pre-training run.

    Attributes:
        command: what was typed.
        started, finished: UTC, ISO 8601.
        arguments: every argument of the run, by group.
        model: configuration of the pair.
        parameters: `generator`, `discriminator`, `total` (what is shared counted once).
        data: for each part, the block file's header: sources with hashes, tokens, rows.
        hardware: machine and accelerators.
        versions: of Python and the packages.
        steps: optimiser steps.
        rows: rows that were trained on, over all steps and processes.
        tokens: real tokens in these rows.
        train_seconds: time in training steps, evaluation and saving left out; of a resumed run, with the sessions
            before as far as they were logged.
        flops: `model` and `paper`, the two conventions of `hf_electra_rtd.accounting`.
        curves: the log, a dict a line, each with `step`.
        metrics: held-out metrics at the end; empty without held-out rows.
        fractions: the towers that were exported on the way, a [`FractionRecord`] each, by step; empty in records from
            before there were any.
        emissions: `kg_co2_eq`, `energy_kwh`, `country` and `source`, all as codecarbon measured them; empty where
            nothing was measured.
        schema_version: of this format.
    """

    command: str
    started: str
    finished: str
    arguments: dict[str, Any]
    model: dict[str, Any]
    parameters: dict[str, int]
    data: dict[str, Any]
    hardware: dict[str, Any]
    versions: dict[str, str]
    steps: int
    rows: int
    tokens: int
    train_seconds: float
    flops: dict[str, float]
    curves: list[dict[str, Any]]
    metrics: dict[str, float] = field(default_factory=dict)
    fractions: list[dict[str, Any]] = field(default_factory=list)
    emissions: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def check(self, name: str = "The record") -> None:
        """Refuses a record without what every run leaves, at any depth.

        Args:
            name: of the record, in errors.

        Raises:
            ValueError: for fields missing or of the wrong type, by their dotted path.
        """
        _check_nested(dataclasses.asdict(self), _PRETRAINING_FIELDS, name)

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Writes `run_record.json`, whole or not at all, and returns its path. Numbers that are not finite become
        null."""
        return _write(self, Path(directory) / RECORD_FILE)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PretrainingRecord:
        """Reads a record from its file, or from the directory that it lies in.

        Raises:
            ValueError: for a record of another version, or with fields missing, unknown or of the wrong type, by name.
        """
        path, values = _read(path, RECORD_FILE)
        _check_version(values, path, "a run record")
        _check_fields(cls, path, {"fractions": [], "emissions": {}, **values})
        record = cls(**values)
        record.check(str(path))
        return record


@dataclass
class FractionRecord:
    """Towers that a run exported on its way.

    Attributes:
        fraction: of the run's steps, as it was asked for.
        step: optimiser steps until then.
        rows: rows that were trained on until then, over all processes.
        train_seconds: time in training steps until then, as in [`PretrainingRecord`].
    """

    fraction: float
    step: int
    rows: int
    train_seconds: float

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Writes `fraction.json`, whole or not at all, and returns its path."""
        return _write(self, Path(directory) / FRACTION_FILE)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FractionRecord:
        """Reads a record from its file, or from the directory that it lies in.

        Raises:
            ValueError: for what is no such record, or has fields missing, unknown or of the wrong type, by name.
        """
        path, values = _read(path, FRACTION_FILE)
        _check_fields(cls, path, values)
        return cls(**values)


@dataclass
class EvaluationRecord:
    """A fine-tuning run on one task with one seed, and how its model was judged.

    Attributes:
        command: what was typed.
        started, finished: UTC, ISO 8601.
        benchmark: the task's: `glue`, `clue`, `more` or `own`.
        task: its name, such as `mrpc`.
        language: `en`, `zh`, or empty where it is not known.
        kind: `classification`, `regression`, `multiple_choice`, `question_answering` or `tagging`.
        model: `name_or_path` as it was given, of a local directory its last two components alone; `architecture`;
            `parameters`; `from_scratch`, whether its weights were random; `head`; `peft`, null without adapters.
        arguments: every argument of the run, by group.
        seed: of the run.
        data: for each split, what loading counted: `source`, `rows`, `skipped` by reason, `cut`.
        metrics: for each split that was judged, dev splits first, from metric to score as a fraction or correlation
            (1 is perfect); null for one that is not finite.
        main_metric: the one of them that stands in tables.
        selection: how the model was chosen, such as `last step` or `best of 3 evaluations by accuracy on dev`.
        steps: optimiser steps.
        epochs: passes over the rows to train on.
        train_seconds: time in training steps, evaluation and saving left out.
        sentences_per_second: rows trained on in a second of `train_seconds`, over all processes.
        hardware: machine and accelerators.
        versions: of Python and the packages.
        predictions: for each split that was predicted, the name of its file beside the record.
        curves: the log, a dict a line, each with `step`.
        dataset: the task as the Hub knows it: `title`; `id` of the dataset there, null where it is on no Hub;
            `config`; `splits`, from the names of splits here to those there; empty in records from before it was kept.
        schema_version: of this format.
    """

    command: str
    started: str
    finished: str
    benchmark: str
    task: str
    language: str
    kind: str
    model: dict[str, Any]
    arguments: dict[str, Any]
    seed: int
    data: dict[str, Any]
    metrics: dict[str, dict[str, float | None]]
    main_metric: str
    selection: str
    steps: int
    epochs: float
    train_seconds: float
    sentences_per_second: float
    hardware: dict[str, Any]
    versions: dict[str, str]
    predictions: dict[str, str] = field(default_factory=dict)
    curves: list[dict[str, Any]] = field(default_factory=list)
    dataset: dict[str, Any] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION

    def check(self, name: str = "The record") -> None:
        """Refuses a record without what every run leaves, at any depth.

        Args:
            name: of the record, in errors.

        Raises:
            ValueError: for fields missing or of the wrong type, by their dotted path.
        """
        _check_nested(dataclasses.asdict(self), _EVALUATION_FIELDS, name)

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Writes `evaluation_record.json`, whole or not at all, and returns its path. Numbers that are not finite
        become null."""
        return _write(self, Path(directory) / EVALUATION_FILE)

    def score(self) -> float | None:
        """The main metric on the first split that was judged, by which models are chosen and compared; None where it
        is not finite, or nothing was judged."""
        return next(iter(self.metrics.values()), {}).get(self.main_metric)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> EvaluationRecord:
        """Reads a record from its file, or from the directory that it lies in.

        Raises:
            ValueError: for a record of another version, or with fields missing, unknown or of the wrong type, by name.
        """
        path, values = _read(path, EVALUATION_FILE)
        _check_version(values, path, "an evaluation record")
        _check_fields(cls, path, {"dataset": {}, **values})
        record = cls(**values)
        record.check(str(path))
        return record


def _write(record: PretrainingRecord | FractionRecord | EvaluationRecord, path: Path) -> Path:
    text = json.dumps(finite(dataclasses.asdict(record)), indent=2, ensure_ascii=False, default=str, allow_nan=False)
    write_whole(path, text + "\n")
    return path


def _read(path: str | os.PathLike[str], name: str) -> tuple[Path, dict[str, Any]]:
    """The file of that name in a directory, or the file itself, and what it holds."""
    path = Path(path)
    path = path / name if path.is_dir() else path
    values = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError(f"{path} is no record: it does not hold fields.")
    return path, values


def _check_version(values: dict[str, Any], path: Path, what: str) -> None:
    version = values.get("schema_version")
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise ValueError(
            f"{path} is {what} of version {version}, and this package reads version {SCHEMA_VERSION}: upgrade it "
            "(pip install --upgrade hf-electra-rtd)."
        )
    if version != SCHEMA_VERSION:
        raise ValueError(f"{path} is not {what} of version {SCHEMA_VERSION}.")


def _check_fields(cls: type, path: Path, values: dict[str, Any]) -> None:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for name in fields.keys() ^ values.keys():
        raise ValueError(f"{path}: field {name!r} is {'missing' if name in fields else 'not known'}.")
    for name, value in values.items():
        wanted = _JSON_TYPES[str(fields[name].type).partition("[")[0]]
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise ValueError(f"{path}: field {name!r} is a {type(value).__name__}, not a {fields[name].type}.")


_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "dict": (dict,),
    "list": (list,),
}


# What lies deeper in records, by dotted path: `[]` is every item of a list, `*` every entry of a dict, and what ends
# in `?` may be missing or null. A type is its name in `_NESTED_TYPES`.
_TOWER = {
    "vocab_size": "whole number",
    "embedding_size": "whole number",
    "hidden_size": "whole number",
    "num_hidden_layers": "whole number",
    "num_attention_heads": "whole number",
    "intermediate_size": "whole number",
    "max_position_embeddings": "whole number",
    "hidden_dropout_prob": "number",
    "attention_probs_dropout_prob": "number",
    "initializer_range": "number",
}
_MACHINE = {"hardware.processor": "text", "hardware.cpu_cores": "whole number", "hardware.accelerators[]": "text"}
_PRETRAINING_FIELDS: dict[str, str] = {
    "arguments.model.size": "text",
    "arguments.model.model_config?": "text",
    "arguments.data.data_license?": "text",
    "arguments.data.held_out_share?": "number",
    "arguments.data.drop_duplicates?": "text",
    "arguments.training.learning_rate": "number",
    "arguments.training.lr_scheduler_type": "text",
    "arguments.training.warmup_steps": "number",
    "arguments.training.weight_decay": "number",
    "arguments.training.adam_beta1": "number",
    "arguments.training.adam_beta2": "number",
    "arguments.training.adam_epsilon": "number",
    "arguments.training.max_grad_norm": "number",
    "arguments.training.bf16": "truth value",
    "arguments.training.fp16": "truth value",
    "arguments.training.seed": "whole number",
    "arguments.training.mask_probability": "number",
    "arguments.training.keep_probability": "number",
    "arguments.training.masking": "text",
    "arguments.training.bias_correction": "truth value",
    "model.objective": "text",
    "model.sharing": "text",
    "model.generator": "text",
    "model.generator_weight": "number",
    "model.discriminator_weight": "number",
    "model.temperature": "number",
    **{f"model.discriminator_config.{name}": kind for name, kind in _TOWER.items()},
    **{f"model.generator_config?.{name}": kind for name, kind in _TOWER.items()},
    "parameters.discriminator": "whole number",
    "parameters.total": "whole number",
    "data.train.row_length": "whole number",
    "data.train.packing": "text",
    "data.train.tokenizer_hash": "text",
    "data.train.num_rows": "whole number",
    "data.train.num_tokens": "whole number",
    "data.train.sha256": "text",
    "data.train.statistics.documents": "whole number",
    "data.train.statistics.corpus_tokens": "whole number",
    "data.train.statistics.unknown_tokens": "whole number",
    "data.train.sources[].name": "text",
    "data.train.sources[].sha256?": "text",
    "data.train.sources[].weight?": "number",
    "data.train.sources[].num_documents?": "whole number",
    "data.held_out?.num_rows": "whole number",
    "data.held_out?.num_tokens": "whole number",
    **_MACHINE,
    "versions.*": "text",
    "flops.model": "number",
    "flops.paper": "number",
    "metrics.*?": "number",
    "fractions[].step": "whole number",
    "emissions.kg_co2_eq?": "number",
    "emissions.energy_kwh?": "number",
    "emissions.country?": "text",
    "emissions.source?": "text",
}
_EVALUATION_FIELDS: dict[str, str] = {
    "model.name_or_path": "text",
    "model.head": "text",
    "model.from_scratch": "truth value",
    "model.peft?": "text",
    "metrics.*.*?": "number",
    **_MACHINE,
    "versions.*": "text",
    "predictions.*": "text",
    "dataset.title?": "text",
    "dataset.id?": "text",
    "dataset.config?": "text",
    "dataset.splits?.*": "text",
}
_NESTED_TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "whole number": (int,),
    "number": (int, float),
    "truth value": (bool,),
}


def _check_nested(values: Any, table: dict[str, str], name: str) -> None:
    for path, kind in table.items():
        _check_path(values, path.replace("[]", ".[]").split("."), kind, name, "")


def _check_path(value: Any, parts: list[str], kind: str, name: str, path: str) -> None:
    """Checks what lies under a value by the parts of a path that are left; `path` is how far it has come."""
    if not parts:
        is_truth = isinstance(value, bool)
        if not isinstance(value, _NESTED_TYPES[kind]) or is_truth != (kind == "truth value"):
            raise ValueError(f"{name}: field {path!r} is {json.dumps(value, default=str)[:80]}, not a {kind}.")
        return
    part, optional = parts[0].removesuffix("?"), parts[0].endswith("?")
    if part == "[]" and isinstance(value, list):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    elif part == "[]" or not isinstance(value, dict):
        what = "list" if part == "[]" else "group of fields"
        raise ValueError(f"{name}: field {path!r} is {json.dumps(value, default=str)[:80]}, not a {what}.")
    elif part == "*":
        items = [(f"{path}.{key}", item) for key, item in value.items()]
    else:
        inner = f"{path}.{part}".removeprefix(".")
        if part not in value and not optional:
            raise ValueError(f"{name}: field {inner!r} is missing.")
        items = [(inner, value.get(part))]
    for inner, item in items:
        if item is not None or not optional:
            _check_path(item, parts[1:], kind, name, inner)


def write_whole(path: Path, text: str) -> None:
    """Writes a file in UTF-8, whole or not at all, with `\\n` between lines on every system."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8", newline="\n")
    os.replace(partial, path)


def finite(value: Any) -> Any:
    """What JSON can hold of a value: numbers that are not finite become None, at any depth."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def utc_now() -> str:
    """The time, as records give it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def collect_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide a run's result."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue  # not needed for training on prepared blocks
    return versions


def count_cores() -> int:
    """The CPU cores that this process may use, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def collect_hardware() -> dict[str, Any]:
    """The machine: system, processor, cores, memory, accelerators."""
    import torch

    hardware: dict[str, Any] = {
        "system": platform.platform(terse=True),
        "processor": _processor_name(),
        "cpu_cores": count_cores(),
        "torch_threads": torch.get_num_threads(),
        "accelerators": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }
    if sys.platform == "linux":
        hardware["memory_gib"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    return hardware


def _processor_name() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
