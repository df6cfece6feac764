"""Tables of results: what several runs with different seeds came to, beside published figures."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_electra_rtd.publishing.published import MAIN_METRICS, PublishedRow
from hf_electra_rtd.records import EvaluationRecord, write_whole


if TYPE_CHECKING:
    from rich.table import Table


RESULTS_FILE = "results.json"
_AVERAGE = "avg"
_UNDEFINED = "-"


@dataclass(frozen=True)
class Spread:
    """One metric over the runs of a task.

    Attributes:
        values: a run each, by seed, as fractions or correlations; runs without a finite score left out; at least one.
    """

    values: tuple[float, ...]

    @property
    def n(self) -> int:
        """Runs."""
        return len(self.values)

    @property
    def median(self) -> float:
        """What ELECTRA's authors report (paper, Section 3.1)."""
        return statistics.median(self.values)

    @property
    def mean(self) -> float:
        """Arithmetic mean."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation (n - 1); None for a single run."""
        return statistics.stdev(self.values) if self.n > 1 else None

    @property
    def best(self) -> float:
        """The highest."""
        return max(self.values)


@dataclass(frozen=True)
class TaskResult:
    """The runs of a model on a task, which differ in their seed.

    Attributes:
        benchmark: the task's.
        task: its name.
        model: name, and what else tells models apart: random weights, head, adapters.
        main_metric: that stands in tables.
        seeds: of the runs, in order.
        selections: how models were chosen; one, unless runs differ in it.
        main: the main metric on the split that models are chosen by, the first that was judged; None where no run has
            it.
        splits: for each split that was judged, dev splits first, the spread of each metric. A metric that no run has a
            finite score of is not there.
    """

    benchmark: str
    task: str
    model: str
    main_metric: str
    seeds: tuple[int, ...]
    selections: tuple[str, ...]
    main: Spread | None
    splits: Mapping[str, Mapping[str, Spread]]

    @property
    def dev_splits(self) -> tuple[str, ...]:
        """Splits that tables show: those called `dev`, `dev_matched` and so on; without one, the first."""
        return tuple(split for split in self.splits if split.startswith("dev")) or tuple(self.splits)[:1]


def summarize(records: Sequence[EvaluationRecord]) -> list[TaskResult]:
    """What runs came to, by model and task, in the order of their first records.

    Args:
        records: of any models, tasks and seeds.

    Raises:
        ValueError: for two runs of the same model, task and seed, or runs of a task with different main metrics.
    """
    groups: dict[tuple[str, str, str], list[EvaluationRecord]] = {}
    for record in records:
        groups.setdefault((_model_name(record), record.benchmark, record.task), []).append(record)
    results = []
    for (model, benchmark, task), runs in groups.items():
        runs = sorted(runs, key=lambda run: run.seed)
        seeds = tuple(run.seed for run in runs)
        for seed, following in itertools.pairwise(seeds):
            if seed == following:
                raise ValueError(f"{task}: there are several runs of {model} with seed {seed}. Give one of them.")
        metrics = {run.main_metric for run in runs}
        if len(metrics) > 1:
            raise ValueError(f"{task}: runs of {model} differ in their main metric: {', '.join(sorted(metrics))}.")
        results.append(
            TaskResult(
                benchmark=benchmark,
                task=task,
                model=model,
                main_metric=runs[0].main_metric,
                seeds=seeds,
                selections=tuple(dict.fromkeys(run.selection for run in runs)),
                main=_spread([run.score() for run in runs]),
                splits=_spreads(runs),
            )
        )
    return results


def average(scores: Mapping[str, float], tasks: Sequence[str]) -> float | None:
    """Mean over tasks; None where one of them has no score, as it could not be compared with other averages then.

    Args:
        scores: by task.
        tasks: at least one.
    """
    if any(task not in scores for task in tasks):
        return None
    return statistics.fmean(scores[task] for task in tasks)


def make_table(results: Sequence[TaskResult], published: Sequence[PublishedRow]) -> Table:
    """A table for the terminal: a column a task; median, mean ± deviation and best of each model, then published rows.

    Figures are x 100 with one decimal. A task with several dev splits shows one figure a split (MNLI: matched and
    mismatched), a dash where it has none. What a model has no result of is blank. Averages are all over the same
    tasks: those that every model here and the first published row have; a row that lacks one of them has none.

    Args:
        results: of one benchmark.
        published: as `published_for` gives them. Scores of other tasks than those of the results, or of another metric
            than theirs, are left out, and rows of which nothing is left.

    Raises:
        ValueError: for results of several benchmarks, or none.
    """
    from rich.table import Table
    from rich.text import Text

    grid = _make_grid(results, published)
    table = Table(title=grid.title, caption=Text(grid.caption), caption_justify="left")
    for column, header in enumerate(grid.header):
        table.add_column(Text(header), justify="left" if column < 2 else "right", overflow="fold")
    for row in grid.rows:
        table.add_row(*map(Text, row))
    return table


def make_markdown(results: Sequence[TaskResult], published: Sequence[PublishedRow]) -> str:
    """The table of [`make_table`] as Markdown, its caption below.

    Args:
        results, published: likewise.

    Raises:
        ValueError: likewise.
    """
    grid = _make_grid(results, published)
    rule = ["-", "-", *["-:"] * (len(grid.header) - 2)]
    lines = [f"| {' | '.join(row)} |" for row in (grid.header, rule, *grid.rows)]
    return "\n".join([*lines, "", "  \n".join(grid.caption.split("\n")), ""])


def write_results(
    results: Sequence[TaskResult], published: Sequence[PublishedRow], directory: str | os.PathLike[str]
) -> Path:
    """Writes `results.json`, whole or not at all: every figure of [`make_table`] unrounded, those of test splits, and
    the score of each run.

    Args:
        results, published: likewise.
        directory: that the file is written to.

    Returns:
        Its path.

    Raises:
        ValueError: likewise.
    """
    grid = _make_grid(results, published)
    text = json.dumps(
        {
            "benchmark": results[0].benchmark,
            "results": [_as_json(result) for result in results],
            "averages": {
                "tasks": grid.averaged,
                "medians": {
                    model: average(_main_scores(of_model, "median"), grid.averaged) if grid.averaged else None
                    for model, of_model in _by_model(results).items()
                },
            },
            "published": [dataclasses.asdict(row) for row in grid.published],
        },
        indent=2,
        ensure_ascii=False,
        allow_nan=False,
    )
    path = Path(directory) / RESULTS_FILE
    write_whole(path, text + "\n")
    return path


@dataclass(frozen=True)
class _Grid:
    """A table as text, before it is drawn; `averaged` are the tasks of the average, `published` the rows of others."""

    title: str
    header: list[str]
    rows: list[list[str]]
    caption: str
    averaged: list[str]
    published: list[PublishedRow]


def _make_grid(results: Sequence[TaskResult], published: Sequence[PublishedRow]) -> _Grid:
    benchmarks = sorted({result.benchmark for result in results})
    if len(benchmarks) != 1:
        raise ValueError(f"A table is of one benchmark, but these results are of {', '.join(benchmarks) or 'none'}.")
    models = _by_model(results)
    ours = {result.task: result for result in results}  # of any model
    rows = [row for row in (_comparable(row, ours) for row in published) if row.scores]
    tasks = [task for task in MAIN_METRICS.get(benchmarks[0], {}) if task in ours]
    tasks += [task for task in ours if task not in tasks]
    of_all = [set(_main_scores(of_model, "median")) for of_model in models.values()] + [
        set(row.scores) for row in rows[:1]
    ]
    averaged = [task for task in tasks if all(task in scored for scored in of_all)]
    averaged = averaged if len(averaged) > 1 else []

    lines: list[list[str]] = []
    for model, of_model in models.items():
        statistics_of = _STATISTICS if any(len(result.seeds) > 1 for result in of_model.values()) else _STATISTICS[:1]
        for place, (name, attribute) in enumerate(statistics_of):
            cells = [_cell(of_model.get(task), attribute) for task in tasks]
            mean = average(_main_scores(of_model, attribute), averaged) if averaged else None
            lines.append(["" if place else model, name.format(runs=_runs(of_model)), *cells, _percent(mean)])
    for row in rows:
        mean = average(row.scores, averaged) if averaged else None
        cells = [f"{row.scores[task]:.1f}" if task in row.scores else "" for task in tasks]
        lines.append([row.name, "published", *cells, "" if mean is None else f"{mean:.1f}"])
    header = ["model", "runs", *tasks, _AVERAGE]
    if not averaged:
        header, lines = header[:-1], [line[:-1] for line in lines]
    return _Grid(
        title=f"{benchmarks[0].upper()}, development sets",
        header=header,
        rows=lines,
        caption="\n".join(_caption(results, rows, published, averaged)),
        averaged=averaged,
        published=rows,
    )


_STATISTICS = (("median of {runs}", "median"), ("mean ± sd", "mean"), ("best", "best"))


def _caption(
    results: Sequence[TaskResult], rows: Sequence[PublishedRow], published: Sequence[PublishedRow], averaged: list[str]
) -> list[str]:
    """What a reader must know to trust the figures, a line each."""
    ours = {result.task: result for result in results}
    metrics: dict[str, list[str]] = {}
    for task, result in ours.items():
        metrics.setdefault(result.main_metric, []).append(task)
    lines = [
        "Figures x 100: " + ", ".join(f"{metric} ({', '.join(tasks)})" for metric, tasks in metrics.items()) + "."
    ]
    for task, result in ours.items():
        if len(result.dev_splits) > 1:
            lines.append(f"{task}: {'/'.join(result.dev_splits)}; the first counts in averages.")
    if averaged:
        whose = f"every model here and {rows[0].name} have" if rows else "every model here has"
        lines.append(f"{_AVERAGE}: over {', '.join(averaged)}, the tasks that {whose}.")
    lines.append(f"Model of a run: {'; '.join(dict.fromkeys(s for result in results for s in result.selections))}.")
    for result in results:
        missing = len(result.seeds) - (result.main.n if result.main else 0)
        if missing:
            lines.append(f"{result.task}, {result.model}: {missing} of {len(result.seeds)} runs have no finite score.")
    for row in published:
        for task in row.scores:
            if task in ours and row.metric(task) != ours[task].main_metric:
                lines.append(f"{row.name}: {task} left out, as it is of another metric, {row.metric(task)}.")
    lines += [f"{row.name}: {row.source}." for row in rows]
    return list(dict.fromkeys(lines))


def _comparable(row: PublishedRow, ours: Mapping[str, TaskResult]) -> PublishedRow:
    """A row with the scores alone that are of our tasks and metrics."""
    scores = {
        task: score
        for task, score in row.scores.items()
        if task in ours and ours[task].main_metric == row.metric(task)
    }
    return dataclasses.replace(row, scores=scores)


def _cell(result: TaskResult | None, attribute: str) -> str:
    if result is None:
        return ""
    figures = []
    for split in result.dev_splits:
        spread = result.splits[split].get(result.main_metric)
        if spread is None:
            figures.append(_UNDEFINED)
        elif attribute == "mean" and spread.deviation is not None:
            figures.append(f"{_percent(spread.mean)} ± {_percent(spread.deviation)}")
        else:
            figures.append(_percent(getattr(spread, attribute)))
    return "/".join(figures) if set(figures) != {_UNDEFINED} else ""


def _percent(score: float | None) -> str:
    return "" if score is None else f"{100 * score:.1f}"


def _runs(results: Mapping[str, TaskResult]) -> str:
    counts = sorted({len(result.seeds) for result in results.values()})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"


def _by_model(results: Sequence[TaskResult]) -> dict[str, dict[str, TaskResult]]:
    models: dict[str, dict[str, TaskResult]] = {}
    for result in results:
        models.setdefault(result.model, {})[result.task] = result
    return models


def _main_scores(results: Mapping[str, TaskResult], attribute: str) -> dict[str, float]:
    return {task: getattr(result.main, attribute) for task, result in results.items() if result.main is not None}


def _model_name(record: EvaluationRecord) -> str:
    model = record.model
    details = ["random weights"] if model["from_scratch"] else []
    details.append(f"{model['head']} head")
    if model["peft"] is not None:
        details.append(str(model["peft"]))
    return f"{model['name_or_path']} ({', '.join(details)})"


def _spreads(runs: Sequence[EvaluationRecord]) -> dict[str, dict[str, Spread]]:
    spreads: dict[str, dict[str, Spread]] = {}
    for split in dict.fromkeys(split for run in runs for split in run.metrics):
        judged = [run.metrics.get(split, {}) for run in runs]
        spreads[split] = {}
        for metric in dict.fromkeys(metric for scores in judged for metric in scores):
            spread = _spread([scores.get(metric) for scores in judged])
            if spread is not None:
                spreads[split][metric] = spread
    return spreads


def _spread(scores: Sequence[float | None]) -> Spread | None:
    defined = tuple(score for score in scores if score is not None)
    return Spread(defined) if defined else None


def _as_json(result: TaskResult) -> dict[str, Any]:
    def figures(spread: Spread) -> dict[str, Any]:
        names = ("n", "median", "mean", "deviation", "best", "values")
        return {name: getattr(spread, name) for name in names}

    values = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    values["main"] = None if result.main is None else figures(result.main)
    values["splits"] = {
        split: {metric: figures(spread) for metric, spread in spreads.items()}
        for split, spreads in result.splits.items()
    }
    return values
