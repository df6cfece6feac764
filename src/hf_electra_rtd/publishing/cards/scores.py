"""What cards say of fine-tuned models: tables, and how weak figures are to be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from hf_electra_rtd.publishing.cards.metadata import by_task, metric_name
from hf_electra_rtd.publishing.cards.rendering import large, listed, percent, table
from hf_electra_rtd.publishing.published import published_for
from hf_electra_rtd.publishing.results import Spread, TaskResult, make_markdown, summarize
from hf_electra_rtd.records import EvaluationRecord


# Share of the most frequent label in the development set, counted in the official files.
_MAJORITY = {
    **{"mrpc": 279 / 408, "rte": 146 / 277, "sst2": 444 / 872, "qnli": 2761 / 5463, "wnli": 40 / 71},
    **{"afqmc": 2978 / 4316, "tnews": 1089 / 10_000, "ocnli": 1103 / 3000, "cluewsc2020": 193 / 304},
}


def name_models(
    own: Sequence[EvaluationRecord], compared: Sequence[EvaluationRecord], name: str
) -> tuple[list[EvaluationRecord], list[EvaluationRecord]]:
    """Records with names that mean something to others: a model's own by its name, those from random weights as such,
    and the last component of any other."""

    def named(record: EvaluationRecord, name: str) -> EvaluationRecord:
        return dataclasses.replace(record, model={**record.model, "name_or_path": name})

    others = [
        named(
            record,
            "same architecture"
            if record.model["from_scratch"]
            else record.model["name_or_path"].rstrip("/").rpartition("/")[2],
        )
        for record in compared
    ]
    return [named(record, name) for record in own], others


def score_tables(own: Sequence[EvaluationRecord], compared: Sequence[EvaluationRecord], size: str) -> str:
    """A table of each benchmark: the model's own runs, what they are compared with, and published figures; seeds and
    cautions below.

    Args:
        own, compared: as `name_models` gives them; of what is compared, tasks that the model has no run of are left
            out.
        size: whose published figures stand beside them; empty where it is none that has a name.
    """
    parts = []
    for benchmark in dict.fromkeys(record.benchmark for record in own):
        mine = [record for record in own if record.benchmark == benchmark]
        tasks = {record.task for record in mine}
        others = [record for record in compared if record.benchmark == benchmark and record.task in tasks]
        results = summarize([*mine, *others])
        published = published_for(benchmark, size)
        first = {result.task: result for result in summarize(mine)}
        notes = [_seeds(results), *_cautions(first, others)]
        if size and not published and benchmark != "own":
            notes.append("No figures of a model of this size are published on these tasks.")
        lines = "\n".join(f"- {note}" for note in notes)
        parts.append(f"{make_markdown(results, published)}\n{lines}")
    return "\n\n".join(parts)


def along_table(towers: Mapping[int, Sequence[EvaluationRecord]], tokens_per_step: float) -> str:
    """A table of the main metric's median by step of pre-training, of the tasks that more than one tower was tried on;
    empty where there are none.

    Args:
        towers: from step to the runs of the tower that was exported there.
        tokens_per_step: real tokens in a step.
    """
    tasks = {(r.benchmark, r.task): r for step in sorted(towers) for r in towers[step]}
    tried = [{(run.benchmark, run.task) for run in runs} for runs in towers.values()]
    tasks = {task: run for task, run in tasks.items() if sum(task in of_tower for of_tower in tried) > 1}
    if not tasks:
        return ""
    header = ["step", "tokens seen", *(f"{task} ({metric_name(r.main_metric)})" for (_, task), r in tasks.items())]
    rows = []
    for step in sorted(towers):
        if not any((run.benchmark, run.task) in tasks for run in towers[step]):
            continue
        results = {
            (result.benchmark, result.task): result for result in summarize(name_models(towers[step], (), "")[0])
        }
        cells = [_median_and_runs(results.get(task)) for task in tasks]
        rows.append([f"{step:,}", large(step * tokens_per_step), *cells])
    return table(header, rows, right=0)


def own_scores(runs: Sequence[EvaluationRecord], published: EvaluationRecord) -> str:
    """A table of one task: each metric on each split, of the weights that are published and over all runs."""
    rows = []
    (result,) = summarize(name_models(runs, (), "")[0])
    for split, metrics in published.metrics.items():
        for metric, score in metrics.items():
            spread = result.splits.get(split, {}).get(metric)
            cells = [split, metric_name(metric), "-" if score is None else f"{100 * score:.1f}"]
            if len(runs) > 1:
                cells += ["-"] * 3 if spread is None else _spread_cells(spread)
            rows.append(cells)
    header = ["split", "metric", "these weights"]
    if len(runs) > 1:
        header += [f"median of {len(runs)}", "mean ± sd", "best"]
    return table(header, rows, right=2)


def _spread_cells(spread: Spread) -> list[str]:
    deviation = "" if spread.deviation is None else f" ± {100 * spread.deviation:.1f}"
    return [f"{100 * spread.median:.1f}", f"{100 * spread.mean:.1f}{deviation}", f"{100 * spread.best:.1f}"]


def task_cautions(runs: Sequence[EvaluationRecord]) -> list[str]:
    """What must be said of weak figures of one task."""
    (result,) = summarize(name_models(runs, (), "")[0])
    return _cautions({result.task: result}, ())


def _seeds(results: Sequence[TaskResult]) -> str:
    """The seeds of each model's runs; tasks with the same seeds are told together."""
    models: dict[str, dict[tuple[int, ...], list[str]]] = {}
    for result in results:
        models.setdefault(result.model, {}).setdefault(result.seeds, []).append(result.task)
    told = [
        f"{model}: "
        + ", ".join(f"{', '.join(map(str, seeds))} ({', '.join(tasks)})" for seeds, tasks in groups.items())
        for model, groups in models.items()
    ]
    return f"Seeds: {'; '.join(told)}."


def _cautions(results: Mapping[str, TaskResult], others: Sequence[EvaluationRecord]) -> list[str]:
    """Figures that a model without what it learnt would reach too."""
    cautions = []
    constant = [
        task
        for task, result in results.items()
        if result.main_metric == "matthews" and result.main is not None and result.main.median == 0
    ]
    if constant:
        cautions.append(
            f"{listed(constant)}: a Matthews correlation of 0.0 is that of one and the same answer to everything. The "
            "model has not learnt this task."
        )
    for task, result in results.items():
        majority = _MAJORITY.get(task)
        if majority is not None and result.main is not None and result.main_metric == "accuracy":
            above = 100 * (result.main.median - majority)
            if above < 5:
                how = f"only {above:.1f} points above" if above > 0.05 else "not above"
                cautions.append(
                    f"{task}: the median is {how} always giving the most frequent label ({percent(majority)})."
                )
    random = {
        runs[0].task: summarize(runs)[0].main for runs in by_task([r for r in others if r.model["from_scratch"]])
    }
    worse = [
        task
        for task, result in results.items()
        if (chance := random.get(task)) is not None
        and result.main is not None
        and result.main.median <= chance.median
        and task not in constant
    ]
    if worse:
        cautions.append(f"{listed(worse)}: no better than the same architecture from random weights.")
    single = [task for task, result in results.items() if len(result.seeds) == 1]
    if single:
        cautions.append(
            f"{listed(single)}: a single run; seeds of such tasks commonly differ by a point or more, so small "
            "differences mean nothing."
        )
    return cautions


def _median_and_runs(result: TaskResult | None) -> str:
    if result is None or result.main is None:
        return ""
    return f"{100 * result.main.median:.1f} ({len(result.seeds)})"
