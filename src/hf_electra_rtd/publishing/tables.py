"""Compares fine-tuning results: the median, mean and best of several seeds, beside published figures.

    hf-electra-rtd compare runs/glue_discriminator runs/glue_random

prints one table a benchmark of what `finetune` left there, as Markdown where the output is no terminal.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from hf_electra_rtd.cli import flag, parse_arguments, run
from hf_electra_rtd.files import read_json
from hf_electra_rtd.records import EvaluationRecord
from hf_electra_rtd.tasks import BENCHMARKS


_DIGITS = 8  # of hashes, in names
_HASHES = {"weights": "sha256", "revision": "revision", "tokenizer": "tokenizer"}
_READ = ("examples", "features", "skipped", "truncated", "fingerprint")  # of a split: what reading it gave


# ---- Results ----


@dataclass(frozen=True)
class TaskResult:
    """The runs of one model on one task, which differ in their seed."""

    benchmark: str
    task: str
    model: str  # its name, and what else tells models apart: random weights, head, adapters, settings that differ
    runs: list[EvaluationRecord]  # by seed

    @property
    def main(self) -> list[float]:
        """The runs' finite scores by the main metric on the first evaluated split."""
        return [run.score for run in self.runs if run.score is not None]

    @property
    def figures(self) -> dict[str, float]:
        """Of `main`: `median` (what ELECTRA's authors report; paper, Section 3.1), `mean`, `best` and `sd`."""
        if not (main := self.main):
            return {}
        figures = {"median": statistics.median(main), "mean": statistics.fmean(main), "best": max(main)}
        return {**figures, "sd": statistics.stdev(main)} if main[1:] else figures

    def scores(self, split: str, metric: str) -> list[float]:
        """The runs' finite scores."""
        return [score for run in self.runs if (score := run.metrics.get(split, {}).get(metric)) is not None]


def read_evaluations(directories: Iterable[str | os.PathLike[str]]) -> dict[Path, EvaluationRecord]:
    """The evaluation records of all runs below some directories, by their paths."""
    records: dict[Path, EvaluationRecord] = {}
    for directory in directories:
        paths = EvaluationRecord.find(directory)
        if not paths:
            raise ValueError(f"{directory} holds no results. Pass the --output_dir of a fine-tuning.")
        records |= {path: EvaluationRecord.load(path) for path in paths}
    return records


def summarize(records: Iterable[EvaluationRecord]) -> list[TaskResult]:
    """The results of each model on each task. Runs of other weights, settings or data are other models: what differs
    on a task is part of their names. A ValueError for two runs of a model on a task with the same seed, and for a task
    whose runs have different main metrics."""
    models: dict[tuple[str, str], dict[str, list[tuple[EvaluationRecord, dict[str, str]]]]] = {}
    for record in records:
        of_model = models.setdefault((record.benchmark, _model_name(record)), {})
        of_model.setdefault(record.task, []).append((record, _settings(record)))
    groups: dict[tuple[str, str, str], list[EvaluationRecord]] = {}
    for (benchmark, _), of_model in models.items():
        alike = [[settings for _, settings in runs] for runs in of_model.values()]
        for task, runs in of_model.items():
            for record, settings in runs:
                different = [name for name in settings if any(len({s.get(name) for s in same}) > 1 for same in alike)]
                model = _model_name(record, *(f"{name} {settings[name]}" for name in different if settings[name]))
                groups.setdefault((benchmark, task, model), []).append(record)
    metrics: dict[tuple[str, str], str] = {}
    for (benchmark, task, model), group in groups.items():
        group.sort(key=lambda record: record.seed)
        seed = statistics.mode(record.seed for record in group)
        if [record.seed for record in group].count(seed) > 1:
            raise ValueError(f"{task}: {model} has several runs with seed {seed}. Pass one of them.")
        if {record.main_metric for record in group} != {metrics.setdefault((benchmark, task), group[0].main_metric)}:
            raise ValueError(f"{task}: the runs have different main metrics. Compare them separately.")
    return [TaskResult(*key, group) for key, group in groups.items()]


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
    settings["evaluation data"] = _hash(next((split for name, split in record.data.items() if name != "train"), {}))
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}


def _hash(described: Mapping[str, Any]) -> str:
    """Of a split's source; not of what reading it gave on one machine."""
    source = {name: value for name, value in described.items() if name not in _READ}
    return hashlib.sha256(json.dumps(source, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def limits(run: EvaluationRecord) -> list[str]:
    """What a run's score is of, where it was evaluated or trained on fewer examples than the task has."""
    args, split, found = run.arguments, next(iter(run.metrics), "dev"), []
    if args.get("max_eval_samples"):
        found.append(f"on {run.data.get(split, {}).get('examples', args['max_eval_samples'])} examples of {split}")
    chosen = [f"{name} {args[name]}" for name in ("max_train_samples", "few_shot") if args.get(name) is not None]
    if chosen:
        number = run.data.get("train", {}).get("examples", 0)
        found.append(f"trained on {number} examples ({', '.join(chosen)})")
    return found


def _by_benchmark(records: Iterable[EvaluationRecord]) -> dict[str, dict[str, dict[str, TaskResult]]]:
    """The results by benchmark, model and task."""
    found: dict[str, dict[str, dict[str, TaskResult]]] = {}
    for result in summarize(records):
        found.setdefault(result.benchmark, {}).setdefault(result.model, {})[result.task] = result
    return found


def differences(records: Mapping[Path, EvaluationRecord]) -> Iterator[str]:
    """Where exactly two models are compared on a benchmark: for each task of both the difference of their medians over
    seeds, with a 95 % interval. It is taken over the same samples of the examples for both (paired bootstrap), whose
    scores stand in the reports beside the records."""
    reports = {id(run): path.parent / f"report_{next(iter(run.metrics), '')}.json" for path, run in records.items()}
    for models in _by_benchmark(records.values()).values():
        both = set.intersection(*map(set, models.values())) if len(models) == 2 else ()
        for task in [task for task in next(iter(models.values())) if task in both]:
            paths = [[reports[id(run)] for run in of_model[task].runs] for of_model in models.values()]
            shown = "no interval, because the runs have no reports of the same examples"
            if all(path.exists() for of_model in paths for path in of_model):
                read = [[read_json(path) for path in of_model] for of_model in paths]
                if len({(report["data"], len(report["resampled"])) for of_model in read for report in of_model}) == 1:
                    scores = [statistics.median(report["score"] for report in of_model) for of_model in read]
                    samples = [np.median([report["resampled"] for report in of_model], axis=0) for of_model in read]
                    low, high = 100 * np.quantile(samples[0] - samples[1], (0.025, 0.975))
                    difference = 100 * (scores[0] - scores[1])
                    shown = f"{difference:+.1f} (95 % interval over examples {low:+.1f} to {high:+.1f})"
            yield f"{task}, {' minus '.join(models)}: {shown}."


# ---- Tables ----


def results_table(records: Iterable[EvaluationRecord], published: bool = True) -> str:
    """One Markdown table for each benchmark, with a caption. A column is a task. Rows are the median of each model's
    runs, mean ± sample standard deviation and best, x 100; then published models (`published.json`) of the size of the
    first one here, by the same metrics on the same development sets.
    `avg` is over the tasks that every model here and the first published one have."""
    return "\n".join(_table(*found, published) for found in _by_benchmark(records).items())


def _table(benchmark: str, models: Mapping[str, Mapping[str, TaskResult]], published: bool) -> str:
    results = [result for of_model in models.values() for result in of_model.values()]
    known = [task.name for task in BENCHMARKS.get(benchmark, ())]
    tasks = sorted({r.task: r for r in results}, key=lambda task: known.index(task) if task in known else len(known))
    official = {*tasks} & {*known}
    size = str(results[0].runs[0].model.get("size"))
    text = (resources.files("hf_electra_rtd.publishing") / "published.json").read_text(encoding="utf-8")
    beside = [row for row in json.loads(text) if published and row["size"] == size and official & row["scores"].keys()]
    figures = {name: {task: each.figures for task, each in of.items() if each.main} for name, of in models.items()}
    for row in beside:
        shared = [task for task in tasks if task in official and task in row["scores"]]
        figures[row["name"]] = {task: {"median": row["scores"][task] / 100} for task in shared}
    compared = [*models, *(row["name"] for row in beside[:1])]
    averaged = [task for task in tasks if all(task in figures[name] for name in compared)]
    columns = [*tasks, *(["avg"] if len(averaged) > 1 else [])]

    lines = []
    for name, of_tasks in figures.items():
        counts = [len(result.runs) for result in models.get(name, {}).values()]
        runs = "-".join(dict.fromkeys((str(min(counts)), str(max(counts))))) if counts else ""
        titles = {"median": f"median of {runs}" if counts else "published"}
        titles |= {"mean": "mean ± sd", "best": "best"} if runs not in ("", "1") else {}
        for statistic, title in titles.items():
            scores = {task: 100 * found[statistic] for task, found in of_tasks.items()}
            if averaged and scores.keys() >= set(averaged):
                scores["avg"] = statistics.fmean(scores[task] for task in averaged)
            cells = {column: f"{score:.1f}" for column, score in scores.items()}
            for task in [task for task, found in of_tasks.items() if statistic == "mean" and "sd" in found]:
                cells[task] += f" ± {100 * of_tasks[task]['sd']:.1f}"
            shown = [cells.get(column, "") for column in columns]
            lines.append([name if statistic == "median" else "", title, *shown])

    metrics = {result.task: result.runs[0].main_metric for result in results}
    of_metric = {name: ", ".join(task for task in metrics if metrics[task] == name) for name in metrics.values()}
    selections = dict.fromkeys(record.selection for result in results for record in result.runs)
    caption = [f"Figures x 100: {', '.join(f'{name} ({of_metric[name]})' for name in of_metric)}."]
    evaluated = {each.task: next(iter(each.runs[0].metrics), "dev") for each in results}
    caption += [f"{task}: on {split}." for task, split in evaluated.items() if split != "dev"]
    caption += [f"{each.task}, {each.model}: {'; '.join(few)}." for each in results if (few := limits(each.runs[0]))]
    caption += [f"avg: over {', '.join(averaged)}."] if "avg" in columns else []
    caption += [f"Model of a run: {'; '.join(selections)}."]
    for each in results:
        if missing := len(each.runs) - len(each.main):
            caption.append(f"{each.task}, {each.model}: {missing} of {len(each.runs)} runs have no finite score.")
    caption += [f"{row['name']}: {row['source']}." for row in beside]
    return markdown_table(["model", "runs", *columns], lines) + "\n\n" + "  \n".join(dict.fromkeys(caption)) + "\n"


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; columns from the third on are figures, aligned to the right."""
    rule = ["-" if column < 2 else "-:" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def print_results(records: Iterable[EvaluationRecord]) -> None:
    """Prints the tables of `results_table`: drawn in a terminal, else as Markdown."""
    from rich.console import Console
    from rich.markdown import Markdown

    table = results_table(records)
    Console().print(Markdown(table)) if sys.stdout.isatty() else print(table)


# ---- The command ----


@dataclass
class CompareArguments:
    """Which results."""

    directories: list[str] = flag([], "Output directory of a fine-tuning.", words="DIRECTORY")


def main(argv: list[str]) -> None:
    """Prints tables, and the difference of two models."""
    (arguments,) = parse_arguments((CompareArguments,), argv, __doc__)
    if not arguments.directories:
        raise ValueError("There is nothing to compare. Name the output directories of fine-tunings.")
    records = read_evaluations(arguments.directories)
    print_results(records.values())
    for line in differences(records):
        print(line)


if __name__ == "__main__":
    run(main)
