"""The Hub's files of evaluation results, for benchmarks that are registered there."""

from __future__ import annotations

from collections.abc import Sequence

import yaml
from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml

from hf_electra_rtd.publishing.cards.metadata import by_task, is_official, metric_name, revision, spread_of
from hf_electra_rtd.records import EvaluationRecord


def eval_results_files(records: Sequence[EvaluationRecord]) -> dict[str, str]:
    """`.eval_results/<task>.yaml` of each task: the median over runs of its main metric, on the split that models are
    compared by.

    The Hub shows them where the task's dataset is registered as a benchmark; values are fractions and correlations.

    Args:
        records: of one model; several of a task differ in their seed.

    Returns:
        From path to text, without the tasks whose dataset is on no Hub or that have no finite score.
    """
    files = {}
    for runs in by_task(records):
        first = runs[0]
        split = next(iter(first.metrics), "")
        spread = spread_of(runs, split, first.main_metric)
        if spread is None or not is_official(first):
            continue
        notes = f"{metric_name(first.main_metric)}, split {first.dataset['splits'].get(split, split)}"
        notes += f", median of {spread.n} runs" if spread.n > 1 else ""
        entry = EvalResultEntry(
            dataset_id=first.dataset["id"],
            task_id=first.dataset["config"] or first.task,
            value=spread.median,
            dataset_revision=revision(runs, split),
            date=max(run.finished for run in runs),
            notes=f"{notes}; model of a run: {first.selection}",
        )
        text = yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False, allow_unicode=True)
        files[f".eval_results/{first.task}.yaml"] = text
    return files
