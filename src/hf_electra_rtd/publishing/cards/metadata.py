"""Front matter of cards, as the Hub reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from hf_electra_rtd.publishing.cards.details import Details
from hf_electra_rtd.publishing.results import Spread
from hf_electra_rtd.records import EvaluationRecord, PretrainingRecord


PACKAGE = "hf-electra-rtd"  # the pair's library, and a tag of all that comes from here
ELECTRA = "electra"  # a tag of models of this architecture

# Tasks of the Hub (huggingface.js, packages/tasks) and the stock class of each kind of fine-tuning.
PIPELINES = {
    "classification": "text-classification",
    "regression": "text-classification",
    "multiple_choice": "multiple-choice",
    "question_answering": "question-answering",
    "tagging": "token-classification",
}
# Our metrics by the Hub's id (hf.co/metrics), the name that people know, and the arguments that tell it apart.
_METRICS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "accuracy": ("accuracy", "Accuracy", {}),
    "f1": ("f1", "F1", {}),
    "macro_f1": ("f1", "Macro F1", {"average": "macro"}),
    "matthews": ("matthews_correlation", "Matthews correlation", {}),
    "pearson": ("pearsonr", "Pearson correlation", {}),
    "spearman": ("spearmanr", "Spearman correlation", {}),
    "exact_match": ("exact_match", "Exact match", {}),
}


def metric_name(metric: str) -> str:
    """A metric for people."""
    return _METRICS[metric][1] if metric in _METRICS else metric.replace("_", " ")


def make_metadata(
    repo_id: str,
    details: Details,
    *,
    tags: Sequence[str],
    library: str,
    pipeline: str | None,
    datasets: Sequence[str],
    evaluations: Sequence[EvaluationRecord] = (),
    base_model: str | None = None,
    relation: str | None = None,
    languages: Sequence[str] = (),
    trained: PretrainingRecord | None = None,
) -> ModelCardData:
    """Front matter.

    Args:
        repo_id: of the model.
        details: licence and languages.
        tags: all of them.
        library: that loads the model.
        pipeline: the Hub's task, or None where the model answers none.
        datasets: ids.
        evaluations: for `model-index` and metrics.
        base_model, relation: what the model's weights were made from, and how: `finetune` or `adapter`.
        languages: codes, where they are fewer than those of the details.
        trained: the record whose emissions are told.
    """
    results = model_index(evaluations)
    more: dict[str, Any] = {}
    if relation is not None:
        more["base_model_relation"] = relation
    if trained is not None and trained.emissions.get("kg_co2_eq") is not None:
        more["co2_eq_emissions"] = _emissions(trained)
    if details.license == "other":
        more |= {"license_name": details.license_name, "license_link": details.license_link}
    return ModelCardData(
        language=list(languages or details.languages),
        license=details.license,
        library_name=library,
        pipeline_tag=pipeline,
        tags=list(tags),
        datasets=list(dict.fromkeys(datasets)) or None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        base_model=base_model,
        model_name=repo_id.rpartition("/")[2] if results else None,
        eval_results=results or None,
        **more,
    )


def model_index(records: Sequence[EvaluationRecord]) -> list[EvalResult]:
    """The median over runs of each metric on each split, of tasks whose dataset is on the Hub.

    Values are fractions and correlations, as `evaluate` and the cards of `transformers.Trainer` give them.

    Args:
        records: of one model; several of a task differ in their seed.
    """
    results = []
    for runs in by_task(records):
        first = runs[0]
        if not is_official(first):
            continue
        for split, metric in dict.fromkeys((s, m) for run in runs for s in run.metrics for m in run.metrics[s]):
            spread = spread_of(runs, split, metric)
            if spread is None or split not in first.dataset["splits"]:
                continue
            kind, name, args = _METRICS.get(metric, (metric, metric_name(metric), {}))
            results.append(
                EvalResult(
                    task_type=PIPELINES[first.kind],
                    dataset_type=first.dataset["id"],
                    dataset_name=first.dataset["title"],
                    dataset_config=first.dataset["config"],
                    dataset_split=first.dataset["splits"][split],
                    dataset_revision=revision(runs, split),
                    metric_type=kind,
                    metric_name=name if spread.n == 1 else f"{name} (median of {spread.n} runs)",
                    metric_args=args or None,
                    metric_value=spread.median,
                )
            )
    return results


def by_task(records: Sequence[EvaluationRecord]) -> list[list[EvaluationRecord]]:
    """Runs of each task, by seed."""
    groups: dict[tuple[str, str], list[EvaluationRecord]] = {}
    for record in sorted(records, key=lambda record: record.seed):
        groups.setdefault((record.benchmark, record.task), []).append(record)
    order = dict.fromkeys((record.benchmark, record.task) for record in records)
    return [groups[key] for key in order]


def is_official(record: EvaluationRecord) -> bool:
    """Whether the task's dataset is one of a benchmark, and on the Hub."""
    return record.benchmark != "own" and record.dataset.get("id") is not None


def spread_of(runs: Sequence[EvaluationRecord], split: str, metric: str) -> Spread | None:
    """A metric over runs; None where no run has a finite score."""
    scores = [run.metrics.get(split, {}).get(metric) for run in runs]
    defined = tuple(score for score in scores if score is not None)
    return Spread(defined) if defined else None


def revision(runs: Sequence[EvaluationRecord], split: str) -> str | None:
    """Of the dataset, where all runs read one from the Hub."""
    revisions = {run.data.get(split, {}).get("revision") for run in runs}
    return revisions.pop() if len(revisions) == 1 else None


def _emissions(record: PretrainingRecord) -> dict[str, Any]:
    """Grams, and what the Hub knows beside them."""
    machine = record.hardware["accelerators"] or [record.hardware["processor"]]
    emissions = {
        "emissions": 1000 * record.emissions["kg_co2_eq"],
        "source": record.emissions.get("source"),
        "training_type": "pre-training",
        "geographical_location": record.emissions.get("country"),
        "hardware_used": f"{len(machine)} x {machine[0]}" if record.hardware["accelerators"] else machine[0],
    }
    return {key: value for key, value in emissions.items() if value is not None}
