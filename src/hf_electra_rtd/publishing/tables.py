"""Tables of fine-tuning results: the median, mean and best of several seeds, beside published figures."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import statistics
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from hf_electra_rtd.files import write_text
from hf_electra_rtd.records import EvaluationRecord
from hf_electra_rtd.tasks import BENCHMARKS


RESULTS_FILE = "results.json"
_STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,  # what ELECTRA's authors report (paper, Section 3.1)
    "mean": statistics.fmean,
    "best": max,
}
Published = dict[str, Any]  # a published model: `name`, `source`, `scores` x 100 by task, `metrics` by task


@dataclass(frozen=True)
class TaskResult:
    """The runs of one model on one task, which differ in their seed."""

    benchmark: str
    task: str
    model: str  # its name, and what else tells models apart: random weights, head, adapters
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
    """The evaluation records of all runs below some directories, by path.

    Raises:
        ValueError: for a directory without any, or a record that cannot be read.
    """
    records = []
    for directory in directories:
        paths = sorted(Path(directory).rglob(EvaluationRecord.FILE))
        if not paths:
            raise ValueError(f"{directory} holds no results. Pass the --output_dir of a fine-tuning.")
        records += [EvaluationRecord.load(path) for path in paths]
    return records


def summarize(records: Iterable[EvaluationRecord]) -> list[TaskResult]:
    """The results of each model on each task, in the order of their first records.

    Raises:
        ValueError: for two runs of one model, task and seed, or runs with different main metrics.
    """
    groups: dict[tuple[str, str, str], list[EvaluationRecord]] = {}
    for record in records:
        groups.setdefault((_model_name(record), record.benchmark, record.task), []).append(record)
    results = []
    for (model, benchmark, task), runs in groups.items():
        runs.sort(key=lambda run: run.seed)
        for first, second in itertools.pairwise(runs):
            if first.seed == second.seed:
                raise ValueError(f"{task}: {model} has several runs with seed {first.seed}. Leave out all but one.")
            if first.main_metric != second.main_metric:
                raise ValueError(f"{task}: the runs of {model} have different main metrics. Compare them separately.")
        scores: dict[str, dict[str, list[float]]] = {}
        for run in runs:
            for split, metrics in run.metrics.items():
                of_split = scores.setdefault(split, {})
                for metric, score in metrics.items():
                    if score is not None:
                        of_split.setdefault(metric, []).append(score)
        seeds, selections = tuple(run.seed for run in runs), tuple(dict.fromkeys(run.selection for run in runs))
        results.append(TaskResult(benchmark, task, model, runs[0].main_metric, seeds, selections, scores))
    return results


def published_for(benchmark: str, size: str) -> list[Published]:
    """Published scores of models of a size (`tiny`, `small`, `small-ex`, `base`, `large`) on a benchmark's development
    sets, none from test servers. The first is the one that averages are compared with."""
    text = (resources.files("hf_electra_rtd.publishing") / "published.json").read_text(encoding="utf-8")
    rows, metrics = json.loads(text).get(size, []), _main_metrics(benchmark)
    for row in rows:
        row["scores"] = {task: row["scores"][task] for task in metrics if task in row["scores"]}
        row["metrics"] = {task: row.get("metrics", {}).get(task, metrics[task]) for task in row["scores"]}
    return [row for row in rows if row["scores"]]


def results_table(records: Sequence[EvaluationRecord], published: bool = True, spread: bool = True) -> str:
    """One Markdown table for each benchmark, with a caption.

    A column is a task. The rows are the median of each model's runs, with `spread` also mean ± sample standard
    deviation and best, x 100; then published models of the size of the first record, where their metric is the same.
    A task with two dev splits has two figures; a dash is a split without a finite score. Averages are over the tasks
    that every model here and the first published one have.

    Raises:
        ValueError: as `summarize`.
    """
    return "\n".join(_table(*comparison, spread) for comparison in _by_benchmark(records, published))


def print_results(records: Sequence[EvaluationRecord], published: bool = True) -> None:
    """Prints the tables of `results_table`, drawn for the terminal."""
    from rich.console import Console
    from rich.markdown import Markdown

    Console(width=None if sys.stdout.isatty() else 160).print(Markdown(results_table(records, published)))


def write_results(
    records: Sequence[EvaluationRecord], directory: str | os.PathLike[str], published: bool = True
) -> Path:
    """Writes `results.json`: every figure of the tables unrounded, all metrics and splits, and each run's score."""
    written: dict[str, list[Any]] = {"results": [], "averages": [], "published": []}
    for results, rows, _ in _by_benchmark(records, published):
        for result in results:
            scores = {split: {m: _spread(s) for m, s in metrics.items()} for split, metrics in result.scores.items()}
            written["results"].append({**dataclasses.asdict(result), "scores": scores})
        tasks = _averaged(results, rows)
        medians = {model: _average(_scores(results, model), tasks) for model in _models(results)}
        written["averages"].append({"benchmark": results[0].benchmark, "tasks": tasks, "medians": medians})
        written["published"] += rows
    path = Path(directory) / RESULTS_FILE
    write_text(path, json.dumps(written, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    return path


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 9) -> str:
    """A Markdown table; columns from `left` on are figures, aligned to the right."""
    rule = ["-" if column < left else "-:" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def _by_benchmark(
    records: Sequence[EvaluationRecord], published: bool
) -> Iterator[tuple[list[TaskResult], list[Published], list[str]]]:
    """The results of each benchmark, the published models to compare with, and which of their scores are left out."""
    for benchmark in dict.fromkeys(record.benchmark for record in records):
        runs = [record for record in records if record.benchmark == benchmark]
        results = summarize(runs)
        metrics = {result.task: result.main_metric for result in results}
        rows = published_for(benchmark, str(runs[0].model.get("size"))) if published else []
        left_out = [
            f"{row['name']}: {task} left out, because its metric is another one, {metric}."
            for row in rows
            for task, metric in row["metrics"].items()
            if metrics.get(task, metric) != metric
        ]
        for row in rows:
            row["scores"] = {t: score for t, score in row["scores"].items() if row["metrics"][t] == metrics.get(t)}
        yield results, [row for row in rows if row["scores"]], left_out


def _table(results: list[TaskResult], rows: list[Published], left_out: list[str], spread: bool) -> str:
    averaged = _averaged(results, rows)
    tasks = _in_order(results[0].benchmark, [result.task for result in results])
    lines = []
    for model in _models(results):
        found = {result.task: result for result in results if result.model == model}
        counts = sorted({len(result.seeds) for result in found.values()})
        runs = "-".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
        for name, title in (("median", f"median of {runs}"), ("mean", "mean ± sd"), ("best", "best")):
            if name == "median" or (spread and counts[-1] > 1):
                cells = [_cell(found[task], name) if task in found else "" for task in tasks]
                average = _average(_scores(results, model, name), averaged)
                lines.append([model if name == "median" else "", title, *cells, _percent(average)])
    for row in rows:
        scores = {task: score / 100 for task, score in row["scores"].items()}
        cells = [_percent(scores.get(task)) for task in tasks]
        lines.append([row["name"], "published", *cells, _percent(_average(scores, averaged))])
    header = ["model", "runs", *tasks, *(["avg"] if averaged else [])]
    caption = [*_caption(results, rows, averaged), *left_out, *(f"{row['name']}: {row['source']}." for row in rows)]
    table = markdown_table(header, [line[: len(header)] for line in lines], left=2)
    return table + "\n\n" + "  \n".join(dict.fromkeys(caption)) + "\n"


def _caption(results: list[TaskResult], rows: list[Published], averaged: list[str]) -> Iterator[str]:
    """What a reader must know to trust the figures, one fact a line."""
    metrics: dict[str, dict[str, None]] = {}
    for result in results:
        metrics.setdefault(result.main_metric, {})[result.task] = None
    yield "Figures x 100: " + ", ".join(f"{metric} ({', '.join(tasks)})" for metric, tasks in metrics.items()) + "."
    for result in results:
        if len(result.dev_splits) > 1:
            yield f"{result.task}: {'/'.join(result.dev_splits)}; the first counts in averages."
    if averaged:
        whose = f"every model here and {rows[0]['name']} have" if rows else "every model here has"
        yield f"avg: over {', '.join(averaged)}, the tasks that {whose}."
    yield f"Model of a run: {'; '.join(dict.fromkeys(s for result in results for s in result.selections))}."
    for result in results:
        if missing := len(result.seeds) - len(result.main):
            yield f"{result.task}, {result.model}: {missing} of {len(result.seeds)} runs have no finite score."


def _averaged(results: list[TaskResult], rows: list[Published]) -> list[str]:
    """The tasks that every model and the first published one have a score of; empty if that is less than two."""
    scored = [_scores(results, model) for model in _models(results)] + [row["scores"] for row in rows[:1]]
    tasks = _in_order(results[0].benchmark, [task for task in scored[0] if all(task in scores for scores in scored)])
    return tasks if len(tasks) > 1 else []


def _average(scores: Mapping[str, float], tasks: Sequence[str]) -> float | None:
    """Mean over tasks; None where one has no score, because other averages could not be compared with it."""
    return statistics.fmean(scores[task] for task in tasks) if tasks and all(t in scores for t in tasks) else None


def _models(results: Sequence[TaskResult]) -> list[str]:
    return list(dict.fromkeys(result.model for result in results))


def _scores(results: Sequence[TaskResult], model: str, name: str = "median") -> dict[str, float]:
    """The main score of a model by task."""
    return {result.task: _STATISTICS[name](result.main) for result in results if result.model == model and result.main}


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


def _main_metrics(benchmark: str) -> dict[str, str]:
    """The main metric of each task of a benchmark, in the order of its table; empty for a user's own tasks."""
    return {task.name: task.main_metric for task in BENCHMARKS.get(benchmark, ()) if task.has_training_data}


def _in_order(benchmark: str, tasks: Collection[str]) -> list[str]:
    """Tasks in the order of their benchmark's table, then those that are not in it."""
    return list(dict.fromkeys([*(task for task in _main_metrics(benchmark) if task in tasks), *tasks]))


def _model_name(record: EvaluationRecord) -> str:
    """The model's name, and what else tells models apart."""
    model = record.model
    details = [*(["random weights"] if model["from_scratch"] else []), f"{model['head']} head", model.get("peft")]
    return f"{model['name_or_path']} ({', '.join(filter(None, details))})"
