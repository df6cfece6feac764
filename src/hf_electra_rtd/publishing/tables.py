"""Compares fine-tuning results: the median, mean and best of several seeds, beside published figures.

    hf-electra-rtd compare runs/glue_discriminator runs/glue_random

prints one table a benchmark of what `finetune` left there (`--markdown` for a page), and

    hf-electra-rtd compare --along 456=runs/glue_6 7300=runs/glue_100 --random_weights runs/glue_random

draws the scores of checkpoints against the steps of pre-training after which they were exported, as
along_pretraining.png in the current directory.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from hf_electra_rtd.cli import check_ranges, run
from hf_electra_rtd.files import read_json, write_text
from hf_electra_rtd.publishing.pictures import plot_along_pretraining
from hf_electra_rtd.records import EvaluationRecord
from hf_electra_rtd.tasks import BENCHMARKS


RESULTS_FILE, ALONG_FILE = "results.json", "along_pretraining.png"
_STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,  # what ELECTRA's authors report (paper, Section 3.1)
    "mean": statistics.fmean,
    "best": max,
}
_DIGITS = 8  # of hashes, in names
_HASHES = {"weights": "sha256", "revision": "revision", "tokenizer": "tokenizer"}
_SOURCE = ("files", "dataset", "config", "split", "revision", "columns", "validation_share")
Published = dict[str, Any]  # a published model: `size`, `name`, `source`, `scores` x 100 by task


# ---- Results ----


@dataclass(frozen=True)
class TaskResult:
    """The runs of one model on one task, which differ in their seed."""

    benchmark: str
    task: str
    model: str  # its name, and what else tells models apart: random weights, head, adapters, settings that differ
    main_metric: str
    seeds: tuple[int, ...]  # of the runs, in order
    selections: tuple[str, ...]  # how the model of a run was chosen
    scores: dict[str, dict[str, list[float]]]  # by split, dev splits first, and metric: the finite scores, by seed

    @property
    def main(self) -> list[float]:
        """The runs' scores by the main metric on the first evaluated split; empty without a finite one."""
        return next(iter(self.scores.values()), {}).get(self.main_metric, [])

    @property
    def dev_splits(self) -> list[str]:
        """The splits that tables show: `dev`, or `dev_matched` and `dev_mismatched`; else the first."""
        return [split for split in self.scores if split.startswith("dev")] or list(self.scores)[:1]


def read_evaluations(directories: Iterable[str | os.PathLike[str]]) -> list[EvaluationRecord]:
    """The evaluation records of all runs below some directories, by path."""
    return list(_read(directories).values())


def _read(directories: Iterable[str | os.PathLike[str]]) -> dict[Path, EvaluationRecord]:
    records: dict[Path, EvaluationRecord] = {}
    for directory in directories:
        paths = sorted(Path(directory).rglob(EvaluationRecord.FILE))
        if not paths:
            raise ValueError(f"{directory} holds no results. Pass the --output_dir of a fine-tuning.")
        records |= {path: EvaluationRecord.load(path) for path in paths}
    return records


def summarize(records: Iterable[EvaluationRecord]) -> list[TaskResult]:
    """The results of each model on each task, in the order of their first records; see `_group`. A ValueError for two
    runs of one group with the same seed, and for a task whose runs have different main metrics."""
    results: list[TaskResult] = []
    for (benchmark, task, model), runs in _group(records).items():
        runs.sort(key=lambda run: run.seed)
        seeds, metric = tuple(run.seed for run in runs), runs[0].main_metric
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"{task}: {model} has several runs with seed {statistics.mode(seeds)}. Pass one of them.")
        others = {result.main_metric for result in results if (result.benchmark, result.task) == (benchmark, task)}
        if {run.main_metric for run in runs} | others != {metric}:
            raise ValueError(f"{task}: the runs have different main metrics. Compare them separately.")
        scores: dict[str, dict[str, list[float]]] = {}
        for record in runs:
            for split, metrics in record.metrics.items():
                of_split = scores.setdefault(split, {})
                for name, score in metrics.items():
                    if score is not None:
                        of_split.setdefault(name, []).append(score)
        selections = tuple(dict.fromkeys(run.selection for run in runs))
        results.append(TaskResult(benchmark, task, model, metric, seeds, selections, scores))
    return results


def _group(records: Iterable[EvaluationRecord]) -> dict[tuple[str, str, str], list[EvaluationRecord]]:
    """The runs by benchmark, task and model. Runs of other weights, settings or training data are other models: what
    differs on one of the tasks is part of their names. Own tasks of one name are apart if their data are."""
    described = [(record, _model_name(record), _settings(record)) for record in records]
    own = {(record.task, _evaluated_data(record)) for record, _, _ in described if record.benchmark == "own"}
    ambiguous = {name for name, count in Counter(name for name, _ in own).items() if count > 1}
    alike: dict[tuple[str, str], dict[str, list[dict[str, str]]]] = {}  # settings, by model and by task
    for record, model, settings in described:
        task = record.task + _evaluated_data(record)
        alike.setdefault((record.benchmark, model), {}).setdefault(task, []).append(settings)
    groups: dict[tuple[str, str, str], list[EvaluationRecord]] = {}
    for record, model, settings in described:
        of_tasks = alike[record.benchmark, model].values()
        different = (name for name in settings if any(len({s.get(name) for s in same}) > 1 for same in of_tasks))
        name = _model_name(record, *(f"{name} {settings[name]}" for name in different))
        task = f"{record.task} (data {_evaluated_data(record)})" if record.task in ambiguous else record.task
        groups.setdefault((record.benchmark, task, name), []).append(record)
    return groups


def _model_name(record: EvaluationRecord, *more: str) -> str:
    model = record.model
    details = [*(["random weights"] if model["from_scratch"] else []), f"{model['head']} head", model.get("peft")]
    return f"{model['name_or_path']} ({', '.join(filter(None, [*details, *more]))})"


def _settings(record: EvaluationRecord) -> dict[str, str]:
    """What decides a run's result beside its task and seed."""
    settings: dict[str, Any] = {}
    for name, value in record.arguments.items():
        settings |= value if isinstance(value, dict) else {name: value}
    settings |= {name: str(record.model.get(key))[:_DIGITS] for name, key in _HASHES.items()}
    settings["training data"] = _hash(record.data.get("train", {}))
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}


def _evaluated_data(record: EvaluationRecord) -> str:
    """Of an own task; those of benchmarks are known by their names."""
    evaluated = (split for name, split in record.data.items() if name != "train")
    return _hash(next(evaluated, {})) if record.benchmark == "own" else ""


def _hash(described: Mapping[str, Any]) -> str:
    """Of a split's source; not of what reading it gave on one machine."""
    source = {name: described.get(name) for name in _SOURCE}
    return hashlib.sha256(json.dumps(source, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def differences(records: Mapping[Path, EvaluationRecord]) -> Iterator[str]:
    """For each task of a benchmark on which exactly two models are compared: the difference of their medians over
    seeds, with a 95 % interval. It is taken over the same samples of the examples for both (paired bootstrap), whose
    scores stand in the reports beside the records."""
    directories = {id(record): path.parent for path, record in records.items()}
    for benchmark in dict.fromkeys(record.benchmark for record in records.values()):
        groups = _group(record for record in records.values() if record.benchmark == benchmark)
        models, tasks = (list(dict.fromkeys(key[place] for key in groups)) for place in (2, 1))
        for task in tasks if len(models) == 2 else ():
            medians, scores, data = [], [], set()
            for of_model in (groups.get((benchmark, task, model), []) for model in models):
                paths = [directories[id(run)] / f"report_{next(iter(run.metrics), '')}.json" for run in of_model]
                reports = [read_json(path) for path in paths if path.exists()]
                if reports and len(reports) == len(of_model):
                    medians.append(np.median([report["resampled"] for report in reports], axis=0))
                    scores.append(statistics.median(report["score"] for report in reports))
                    data |= {report["data"] for report in reports}
            if len(medians) == 2 and len(data) == 1:
                low, high = 100 * np.quantile(medians[0] - medians[1], (0.025, 0.975))
                shown = f"{100 * (scores[0] - scores[1]):+.1f} (95 % interval over examples {low:+.1f} to {high:+.1f})"
            else:
                shown = "no interval, because the runs have no reports of the same examples"
            yield f"{task}, {models[0]} minus {models[1]}: {shown}."


def published_for(benchmark: str, size: str, metrics: Mapping[str, str] | None = None) -> list[Published]:
    """Published scores of models of a size (`tiny`, `small`, `small-ex`, `base`, `large`) on a benchmark's development
    sets, none from test servers. The first model is the one that averages are compared with. Scores by another metric
    than `metrics` has for the task (by default its main one) are left out."""
    text = (resources.files("hf_electra_rtd.publishing") / "published.json").read_text(encoding="utf-8")
    usual = {task.name: task.main_metric for task in BENCHMARKS.get(benchmark, ())}
    wanted = usual if metrics is None else metrics
    found = [row for row in json.loads(text) if row["size"] == size]
    for row in found:
        theirs = {**usual, **row.pop("metrics", {})}
        row["scores"] = {t: s for t, s in row["scores"].items() if t in usual and theirs[t] == wanted.get(t)}
    return [row for row in found if row["scores"]]


# ---- Tables ----


def results_table(records: Sequence[EvaluationRecord], published: bool = True) -> str:
    """One Markdown table for each benchmark, with a caption.

    A column is a task. The rows are the median of each model's runs, mean ± sample standard deviation and best, x 100;
    then published models of the size of the first record. A dash is a split without a finite score. Averages are over
    the tasks that every model here and the first published one have.
    """
    return "\n".join(comparison.table() for comparison in _compare(records, published))


def print_results(records: Sequence[EvaluationRecord]) -> None:
    """Prints the tables of `results_table`, drawn for the terminal."""
    from rich.console import Console
    from rich.markdown import Markdown

    Console(width=None if sys.stdout.isatty() else 160).print(Markdown(results_table(records)))


def write_results(records: Sequence[EvaluationRecord], directory: str | os.PathLike[str]) -> Path:
    """Writes `results.json`: every figure of the tables unrounded, all metrics and splits, and each run's score."""
    written: dict[str, list[Any]] = {"results": [], "averages": [], "published": []}
    for each in _compare(records):
        for result in each.results:
            scores = {split: {m: _spread(s) for m, s in metrics.items()} for split, metrics in result.scores.items()}
            written["results"].append({**dataclasses.asdict(result), "scores": scores})
        medians = {model: each.average(_main_scores(found, "median")) for model, found in each.models.items()}
        written["averages"].append({"benchmark": each.benchmark, "tasks": each.averaged, "medians": medians})
        written["published"] += each.published
    path = Path(directory) / RESULTS_FILE
    write_text(path, json.dumps(written, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; columns from the third on are figures, aligned to the right."""
    rule = ["-" if column < 2 else "-:" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def _compare(records: Sequence[EvaluationRecord], published: bool = True) -> list[_Comparison]:
    benchmarks = dict.fromkeys(record.benchmark for record in records)
    return [_Comparison([run for run in records if run.benchmark == name], published) for name in benchmarks]


class _Comparison:
    """The results on one benchmark, and the published models to compare them with."""

    def __init__(self, runs: Sequence[EvaluationRecord], published: bool) -> None:
        self.benchmark, self.results = runs[0].benchmark, summarize(runs)
        self.models: dict[str, dict[str, TaskResult]] = {}  # by model and task
        for result in self.results:
            self.models.setdefault(result.model, {})[result.task] = result
        self.metrics = {result.task: result.main_metric for result in self.results}
        known = [task.name for task in BENCHMARKS.get(self.benchmark, ())]
        self.tasks = sorted(self.metrics, key=lambda task: known.index(task) if task in known else len(known))
        size = str(runs[0].model.get("size"))
        self.published = published_for(self.benchmark, size, self.metrics) if published else []
        scored = [_main_scores(found, "median") for found in self.models.values()]
        scored += [row["scores"] for row in self.published[:1]]
        averaged = [task for task in self.tasks if all(task in scores for scores in scored)]
        self.averaged = averaged if len(averaged) > 1 else []

    def average(self, scores: Mapping[str, float]) -> float | None:
        """Mean over `averaged`; None where one has no score, because it could not be compared with other means."""
        if not self.averaged or not scores.keys() >= set(self.averaged):
            return None
        return statistics.fmean(scores[task] for task in self.averaged)

    def table(self) -> str:
        """As Markdown, with its caption."""
        lines = []
        for model, found in self.models.items():
            counts = [len(result.seeds) for result in found.values()]
            least, most = min(counts), max(counts)
            runs = f"median of {least}" + (f"-{most}" if most > least else "")
            titles = {"median": runs, "mean": "mean ± sd", "best": "best"}
            for name in titles if most > 1 else ["median"]:
                cells = [_cell(found[task], name) if task in found else "" for task in self.tasks]
                average = _percent(self.average(_main_scores(found, name)))
                lines.append([model if name == "median" else "", titles[name], *cells, average])
        for row in self.published:
            scores = {task: score / 100 for task, score in row["scores"].items()}
            cells = [_percent(scores.get(task)) for task in self.tasks]
            lines.append([row["name"], "published", *cells, _percent(self.average(scores))])
        header = ["model", "runs", *self.tasks, *(["avg"] if self.averaged else [])]
        table = markdown_table(header, [line[: len(header)] for line in lines])
        return table + "\n\n" + "  \n".join(dict.fromkeys(self._caption())) + "\n"

    def _caption(self) -> Iterator[str]:
        """What a reader must know to trust the figures, one fact a line."""
        tasks: dict[str, str] = {}
        for task, metric in self.metrics.items():
            tasks[metric] = f"{tasks[metric]}, {task}" if metric in tasks else task
        yield f"Figures x 100: {', '.join(f'{metric} ({tasks[metric]})' for metric in tasks)}."
        for result in self.results:
            if len(result.dev_splits) > 1:
                yield f"{result.task}: {'/'.join(result.dev_splits)}; the first counts in averages."
        if self.averaged:
            others = f" and {self.published[0]['name']} have" if self.published else " has"
            yield f"avg: over {', '.join(self.averaged)}, the tasks that every model here{others}."
        yield f"Model of a run: {'; '.join(dict.fromkeys(s for each in self.results for s in each.selections))}."
        for result in self.results:
            if missing := len(result.seeds) - len(result.main):
                yield f"{result.task}, {result.model}: {missing} of {len(result.seeds)} runs have no finite score."
        for row in self.published:
            yield f"{row['name']}: {row['source']}."


def _main_scores(found: Mapping[str, TaskResult], name: str) -> dict[str, float]:
    """A statistic of a model's main scores, by task."""
    return {task: _STATISTICS[name](result.main) for task, result in found.items() if result.main}


def _spread(scores: Sequence[float]) -> dict[str, Any]:
    figures = {name: function(scores) for name, function in _STATISTICS.items()}
    return {"values": scores, **figures, "deviation": statistics.stdev(scores) if scores[1:] else None}


def _cell(result: TaskResult, name: str) -> str:
    figures = []
    for split in result.dev_splits:
        scores = result.scores[split].get(result.main_metric, [])
        figure = _percent(_STATISTICS[name](scores)) if scores else "-"
        figures.append(f"{figure} ± {_percent(statistics.stdev(scores))}" if name == "mean" and scores[1:] else figure)
    return "/".join(figures) if set(figures) != {"-"} else ""


def _percent(score: float | None) -> str:
    return "" if score is None else f"{100 * score:.1f}"


# ---- The command ----


def main(argv: list[str]) -> None:
    """Prints tables, or draws checkpoints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("directories", nargs="*", metavar="DIRECTORY", help="output_dir of a fine-tuning")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.add_argument("--along", nargs="+", default=[], metavar="STEP=DIRECTORY", help="draw these checkpoints")
    parser.add_argument("--random_weights", nargs=1, default=[], metavar="DIRECTORY", help="of --along, untrained")
    parser.add_argument("--tokens_per_step", type=float, help="of pre-training: the axis counts tokens")
    arguments = parser.parse_args(argv)
    check_ranges(arguments)
    if not arguments.directories and not arguments.along:
        parser.error("pass directories to compare, or checkpoints with --along")
    if not arguments.along and (arguments.random_weights or arguments.tokens_per_step is not None):
        parser.error("--random_weights and --tokens_per_step are for --along")
    runs = _read(arguments.directories)
    records = list(runs.values())
    if arguments.markdown and records:
        print(results_table(records))
    elif records:
        print_results(records)
    for line in differences(runs):
        print(line)
    towers = {}
    for text in arguments.along:
        step, _, directory = text.partition("=")
        if not (step.isdigit() and int(step) > 0 and directory):
            raise ValueError(f"--along {text}: pass the step and the directory, such as 456=runs/glue_6.")
        towers[int(step)] = read_evaluations([directory])
    if towers:
        random = read_evaluations(arguments.random_weights)
        plot_along_pretraining(towers, random, ALONG_FILE, arguments.tokens_per_step)
        print(ALONG_FILE)


if __name__ == "__main__":
    run(main)
