"""Tables of fine-tuning results: the median, mean and best of several seeds, next to published figures."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import statistics
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from hf_electra_rtd.base.files import read_json
from hf_electra_rtd.base.records import EvaluationRecord
from hf_electra_rtd.base.tasks import BENCHMARKS


HASH_DIGITS = 8  # of each hash in a name
_LONGEST = 60  # characters of a setting in a name; a longer one is shown by its hash
_ORIGIN = {"weights": "sha256", "revision": "revision", "tokenizer": "tokenizer"}
# Entries about a split that depend on how it was read.
_READ = ("examples", "features", "skipped", "truncated", "unknown_share", "fingerprint")


# ---- Results ----


@dataclass(frozen=True)
class Column:
    """What the scores in one column of a table have in common. Only these scores are comparable."""

    benchmark: str
    task: str
    kind: str
    metric: str
    data: str  # hash of the scored examples


@dataclass(frozen=True)
class TaskResult:
    """The runs of one model on one task. They differ only in their seed."""

    benchmark: str
    task: str  # its name, and where it differs from others of that name: kind, metric, data
    model: str  # its name, and what else distinguishes it: random weights, adapters, settings that differ
    runs: list[EvaluationRecord]  # by seed

    @property
    def main(self) -> list[float]:
        """The runs' finite scores by the main metric on the first evaluated split."""
        return [run.score for run in self.runs if run.score is not None]

    @property
    def figures(self) -> dict[str, float]:
        """The `median` (which ELECTRA's authors report; paper, Section 3.1), `mean` and `best` of `main`, and for
        several scores their `sd`; empty without scores."""
        scores = self.main
        if not scores:
            return {}
        figures = {
            "median": statistics.median(scores),
            "mean": statistics.fmean(scores),
            "best": max(scores),
        }
        if len(scores) > 1:
            figures["sd"] = statistics.stdev(scores)
        return figures

    def scores(self, split: str, metric: str) -> list[float]:
        """Returns the runs' finite scores by a metric on a split."""
        return [score for run in self.runs if (score := run.metrics.get(split, {}).get(metric)) is not None]


def read_evaluations(directories: Iterable[str | os.PathLike[str]]) -> dict[Path, EvaluationRecord]:
    """Returns the evaluation records of all runs below some directories, by their paths. Raises ValueError for a
    directory without records."""
    records: dict[Path, EvaluationRecord] = {}
    for directory in directories:
        paths = EvaluationRecord.find(directory)
        if not paths:
            raise ValueError(f"{directory} holds no results. Pass the --output_dir of a fine-tuning.")
        records |= {path: EvaluationRecord.load(path) for path in paths}
    return records


def summarize(records: Iterable[EvaluationRecord]) -> list[TaskResult]:
    """Returns the results of each model on each task. Tasks with the same name, but other data, kinds or metrics, are
    different tasks. Runs with other weights, settings or training data are different models. The differences are part
    of the names. Raises ValueError for two runs of a model on a task with the same seed."""
    columns: dict[Column, list[EvaluationRecord]] = {}
    for record in records:
        examples = _examples_hash(record)
        column = Column(record.benchmark, record.task, record.kind, record.main_metric, examples)
        columns.setdefault(column, []).append(record)
    # Settings in which the runs of a task differ, by benchmark: a row then has one name for all tasks.
    settings: dict[str, set[str]] = defaultdict(set)
    # Weights and tokenizers, by the model's name: models with different names are different anyway.
    origins: dict[str, list[dict[str, str]]] = defaultdict(list)
    for column, runs in columns.items():
        settings[column.benchmark] |= different([_settings(record) for record in runs])
        for record in runs:
            origins[_model_name(record)].append(_origin(record))
    results = []
    for column, runs in columns.items():
        models: dict[str, list[EvaluationRecord]] = {}
        for record in runs:
            named = settings[column.benchmark] | different(origins[_model_name(record)])
            values = {**_settings(record), **_origin(record)}
            models.setdefault(_model_name(record, *apart(values, named)), []).append(record)
        task = _title(column, columns)
        for model, of_model in models.items():
            of_model.sort(key=lambda record: record.seed)
            check_seeds(f"{task}: {model}", [record.seed for record in of_model])
            results.append(TaskResult(column.benchmark, task, model, of_model))
    return results


def check_seeds(name: str, seeds: Sequence[int]) -> None:
    """Raises ValueError for two equal runs with the same seed."""
    twice = [seed for seed in seeds if seeds.count(seed) > 1]
    if twice:
        raise ValueError(f"{name}: there are several runs with seed {twice[0]}. Pass one of them.")


def _examples_hash(record: EvaluationRecord) -> str:
    """Returns the hash of the scored examples or, if no report has it, of their source."""
    split = _scored_split(record)
    return str(record.reports.get(split, {}).get("data") or _hash(record.data.get(split, {})))


def _title(column: Column, columns: Iterable[Column]) -> str:
    """Returns the name of a column's task, with what distinguishes it from other tasks of this name."""
    values = [
        {"kind": other.kind, "metric": other.metric, "data": f"data {other.data[:HASH_DIGITS]}"}
        for other in (column, *columns)
        if (other.benchmark, other.task) == (column.benchmark, column.task)
    ]
    names = different(values)
    return with_details(column.task, [value for name, value in values[0].items() if name in names])


def with_details(name: str, details: Sequence[str]) -> str:
    """Returns a name with details in parentheses."""
    return f"{name} ({', '.join(details)})" if details else name


def apart(values: Mapping[str, str], names: Collection[str]) -> list[str]:
    """Returns those of the named values that are set, as details for a name."""
    return [f"{name} {value}" for name, value in values.items() if name in names and value]


def different(values: Sequence[Mapping[str, str]]) -> set[str]:
    """Returns the names whose values differ. A missing value counts as empty."""
    names = set().union(*values)
    return {name for name in names if len({of_run.get(name, "") for of_run in values}) > 1}


def _model_name(record: EvaluationRecord, *more: str) -> str:
    model = record.model
    details = ["random weights"] if model["from_scratch"] else []
    if model.get("peft"):
        details.append(model["peft"])
    run = model.get("pretraining")
    name = model["name_or_path"] if run is None else f"{run['run']}, {run['tokens'] / 1e6:.3g} M tokens"
    return with_details(name, [*details, *more])


def _settings(record: EvaluationRecord) -> dict[str, str]:
    """Returns the settings that decide a run's result, except model, task and seed, as they would be typed. A setting
    that is not set is empty."""
    arguments = {**record.arguments, **(record.arguments.get("lora") or {})}
    settings = {name: typed(value) for name, value in arguments.items() if name not in ("lora", "metrics")}
    settings["training data"] = _hash(record.data.get("train", {}))[:HASH_DIGITS]
    return settings


def typed(value: Any) -> str:
    """Returns a setting as it would be typed, or its hash if that is long. A setting that is not set or off is empty,
    like a flag that older records do not have."""
    if value is None or value is False or value == -1:  # `max_steps` -1: as many as the epochs have
        return ""
    if isinstance(value, float):  # 100.0 is 100
        return f"{value:.9g}"
    if isinstance(value, dict):
        value = [f"{name}={item}" for name, item in value.items()]
    if isinstance(value, list):
        value = shlex.join(map(str, value))
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]


def _origin(record: EvaluationRecord) -> dict[str, str]:
    return {name: str(record.model.get(key))[:HASH_DIGITS] for name, key in _ORIGIN.items()}


def _hash(described: Mapping[str, Any]) -> str:
    """Returns the hash of a split's source. It covers neither the results of reading it on one machine nor the names
    of its files."""
    source = {name: value for name, value in described.items() if name not in _READ}
    if "files" in source:
        source["files"] = sorted(source["files"].values())
    return hashlib.sha256(json.dumps(source, sort_keys=True).encode()).hexdigest()


def limits(run: EvaluationRecord) -> list[str]:
    """Returns in words how a run was limited: to fewer pairs in its evaluation, or to fewer examples in its
    training."""
    arguments = run.arguments
    sentences = []
    if arguments.get("max_pairs"):
        sentences.append(f"on the first {arguments['max_pairs']} pairs of each paradigm")
    most = arguments.get("max_train_samples")
    if most and run.data.get("train", {}).get("examples", most) == most:  # else there were fewer
        sentences.append(f"trained on {most} examples")
    return sentences


def _scored_split(run: EvaluationRecord) -> str:
    """The split of a run's score."""
    return next(iter(run.metrics), "dev")


def differences(records: Mapping[Path, EvaluationRecord]) -> Iterator[str]:
    """Yields for each task with exactly two models the difference of their medians over seeds, with a 95 % interval.
    The interval compares both models on the same samples of the examples, or of the paradigms of minimal pairs (paired
    bootstrap). The scores of these samples are in the reports next to the records."""
    directories = {id(run): path.parent for path, run in records.items()}
    columns: dict[tuple[str, str], list[TaskResult]] = {}
    for result in summarize(records.values()):
        columns.setdefault((result.benchmark, result.task), []).append(result)
    for (_, task), results in columns.items():
        if len(results) == 2:
            difference = _difference(*(_read_reports(result, directories) for result in results))
            yield f"{task}, {' minus '.join(result.model for result in results)}: {difference}."


def _read_reports(result: TaskResult, directories: Mapping[int, Path]) -> list[dict[str, Any]]:
    """Returns the report of each run, from the directory of its record; empty if one is missing."""
    paths = [directories[id(run)] / f"report_{next(iter(run.metrics), '')}.json" for run in result.runs]
    return [read_json(path) for path in paths] if all(path.exists() for path in paths) else []


def _difference(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> str:
    """Returns in words the difference of the medians of two models' reports, with its interval."""
    examples = {(report["data"], len(report["resampled"])) for report in (*first, *second)}
    if not first or not second or len(examples) > 1:
        return "no difference, because the runs have no reports of the same examples"
    scores = [statistics.median(report["score"] for report in reports) for reports in (first, second)]
    samples = [np.median([report["resampled"] for report in reports], axis=0) for reports in (first, second)]
    low, high = 100 * np.quantile(samples[0] - samples[1], (0.025, 0.975))
    drawn = "paradigms" if "paradigms" in first[0] else "examples"
    return f"{100 * (scores[0] - scores[1]):+.2f} (95 % interval over {drawn} {low:+.2f} to {high:+.2f})"


# ---- Tables ----


def results_table(records: Iterable[EvaluationRecord], published: bool = True) -> str:
    """Returns a Markdown table with a caption for each benchmark. A column is a task. The rows of a model are median,
    mean ± sample standard deviation, and best of its runs, x 100. With `published`, rows follow for the published
    models (`published.json`) of the first model's size, by the same metrics on the same development sets. `avg` is
    over those tasks of the benchmark that have one column, and that every model here and the first published one have.
    The user's own tasks have no `avg`."""
    benchmarks: dict[str, dict[str, dict[str, TaskResult]]] = {}  # by model and task
    for result in summarize(records):
        benchmarks.setdefault(result.benchmark, {}).setdefault(result.model, {})[result.task] = result
    return "\n".join(_table(name, models, published) for name, models in benchmarks.items())


def _table(benchmark: str, models: Mapping[str, Mapping[str, TaskResult]], published: bool) -> str:
    results = [result for tasks in models.values() for result in tasks.values()]
    official = [task.name for task in BENCHMARKS.get(benchmark, ())]
    present = list(dict.fromkeys(result.task for result in results))
    tasks = [task for task in official if task in present] + [task for task in present if task not in official]
    beside = []
    if published:
        beside = _published(results[0].runs[0].model.get("size"), [task for task in tasks if task in official])

    figures = {
        name: {task: result.figures for task, result in of_tasks.items() if result.main}
        for name, of_tasks in models.items()
    }
    for row in beside:
        scores = {task: score for task, score in row["scores"].items() if task in tasks}
        figures[row["name"]] = {task: {"median": score / 100} for task, score in scores.items()}
    compared = [*models, *(row["name"] for row in beside[:1])]
    averaged = [task for task in tasks if task in official and all(task in figures[name] for name in compared)]
    columns = [*tasks, "avg"] if len(averaged) > 1 else tasks

    lines = []
    for name, of_tasks in figures.items():
        for statistic, title in _statistics(models.get(name, {}).values()).items():
            scores = {task: 100 * values[statistic] for task, values in of_tasks.items()}
            if averaged and scores.keys() >= set(averaged):
                scores["avg"] = statistics.fmean(scores[task] for task in averaged)
            cells = {column: f"{score:.1f}" for column, score in scores.items()}
            if statistic == "mean":
                for task, values in of_tasks.items():
                    if "sd" in values:
                        cells[task] += f" ± {100 * values['sd']:.1f}"
            shown = [cells.get(column, "") for column in columns]
            lines.append([name if statistic == "median" else "", title, *shown])

    caption = _caption(results, averaged if "avg" in columns else [])
    caption += [f"{row['name']}: {row['source']}." for row in beside]
    return markdown_table(["model", "runs", *columns], lines) + "\n\n" + "  \n".join(dict.fromkeys(caption)) + "\n"


def _published(size: str | None, tasks: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the published models of a size that have a score on one of the tasks."""
    text = (resources.files("hf_electra_rtd.publishing") / "published.json").read_text(encoding="utf-8")
    return [row for row in json.loads(text) if row["size"] == size and not row["scores"].keys().isdisjoint(tasks)]


def _statistics(results: Iterable[TaskResult]) -> dict[str, str]:
    """Returns the statistics to show for a model, each with its title. A model without results is a published one."""
    counts = [len(result.runs) for result in results]
    if not counts:
        return {"median": "published"}
    least = min(counts)
    most = max(counts)
    titles = {"median": f"median of {most}" if least == most else f"median of {least}-{most}"}
    if most > 1:
        titles |= {"mean": "mean ± sd", "best": "best"}
    return titles


def _caption(results: Sequence[TaskResult], averaged: Sequence[str]) -> list[str]:
    """Returns sentences that explain the figures of a table; some may occur twice."""
    by_metric: dict[str, dict[str, None]] = {}
    for result in results:
        by_metric.setdefault(result.runs[0].main_metric, {})[result.task] = None
    metrics = [f"{metric} ({', '.join(tasks)})" for metric, tasks in by_metric.items()]
    sentences = [f"Figures x 100: {', '.join(metrics)}."]
    for result in results:
        split = _scored_split(result.runs[0])
        if split != "dev":
            sentences.append(f"{result.task}: on {split}.")
    for result in results:
        few = limits(result.runs[0])
        if few:
            sentences.append(f"{result.task}, {result.model}: {'; '.join(few)}.")
    if averaged:
        sentences.append(f"avg: over {', '.join(averaged)}.")
    selections = dict.fromkeys(record.selection for result in results for record in result.runs)
    sentences.append(f"Model of a run: {'; '.join(selections)}.")
    for result in results:
        missing = len(result.runs) - len(result.main)
        if missing:
            sentences.append(
                f"{result.task}, {result.model}: {missing} of {len(result.runs)} runs have no finite score."
            )
    return sentences


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean of values, and half of its 95 % interval by Student's t: NaN for a single value, 0 for equal
    values."""
    from scipy import stats

    if len(values) < 2:
        return float(np.mean(values)), float("nan")
    quantile = stats.t.ppf(0.975, len(values) - 1)
    return float(np.mean(values)), float(quantile * stats.sem(values))


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table. Columns from the third on are figures, aligned to the right."""
    rule = ["-" if column < 2 else "-:" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def print_table(table: str) -> None:
    """Prints a Markdown table: rendered in a terminal, else as it is."""
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(table)) if sys.stdout.isatty() else print(table)
