"""This package's scores as a metric of `evaluate`, which needs no network.

metric = TaskMetric("glue", "mrpc")
metric.add_batch(predictions=[1, 0], references=[1, 1])
metric.compute()  # {"accuracy": 0.5, "f1": 0.667}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import evaluate
from datasets import Features, List, Value

from hf_electra_rtd.finetuning.scores import score_answers, score_labels, score_squad_v2, tag_report
from hf_electra_rtd.tasks import get_task


_HUB_NAMES = {"matthews": "matthews_correlation", "spearman": "spearmanr"}
_SQUAD_V2_NAMES = {"has_answer_": "HasAns_", "no_answer_": "NoAns_", "exact_match": "exact", "threshold": "thresh"}


class TaskMetric(evaluate.Metric):
    """The official metrics of a task, with the keys and the scale of the Hub's metric that it stands for. `options`
    are those of `evaluate.Metric`; an unknown benchmark or task is a ValueError.

    Predictions and references of classification are indices of the task's labels, of multiple choice indices of
    choices (`evaluate.load("glue", ...)`: fractions), of tagging lists of BIO tags (`seqeval`: fractions), of question
    answering what `squad` and `squad_v2` take (per cent). CMRC 2018 and DRCD have the keys of `squad`. For `squad2`,
    `compute` takes `no_answer_threshold`, above which a question counts as left unanswered.
    """

    def __init__(self, benchmark: str, task: str, **options: Any) -> None:
        self.task = get_task(benchmark, task)
        super().__init__(config_name=task, **options)

    def _info(self) -> evaluate.MetricInfo:
        task, text = self.task, Value("string")
        column: Any = {"regression": Value("float64"), "tagging": List(text)}.get(task.kind, Value("int64"))
        features: dict[str, Any] = {"predictions": column, "references": column}
        if task.kind == "question_answering":
            no_answer = {"no_answer_probability": Value("float64")} if task.unanswerable else {}
            features = {
                "predictions": {"id": text, "prediction_text": text, **no_answer},
                "references": {"id": text, "answers": {"text": List(text), "answer_start": List(Value("int32"))}},
            }
        described, usage = f"The metrics of {task.title}: {', '.join(task.metrics)}.", str(type(self).__doc__)
        return evaluate.MetricInfo(described, citation="", inputs_description=usage, features=Features(features))

    def _compute(
        self, predictions: Sequence[Any], references: Sequence[Any], no_answer_threshold: float = 1.0
    ) -> dict[str, Any]:
        task = self.task
        if task.kind == "question_answering":
            return self._score_answers(predictions, references, no_answer_threshold)
        if task.kind == "tagging":
            types, overall = tag_report(predictions, references)
            return types | {f"overall_{name}": overall[name] for name in ("precision", "recall", "f1", "accuracy")}
        scores = score_labels(task.metrics, predictions, references, range(len(task.labels)))
        return {_HUB_NAMES.get(name, name): score for name, score in scores.items()}

    def _score_answers(
        self, predictions: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]], threshold: float
    ) -> dict[str, float]:
        by_id = {prediction["id"]: prediction for prediction in predictions}
        if missing := {reference["id"] for reference in references} - by_id.keys():
            raise ValueError(f"The question {min(missing)!r} has no prediction.")
        given = [by_id[reference["id"]] for reference in references]
        texts, answers = [one["prediction_text"] for one in given], [one["answers"]["text"] for one in references]
        if not self.task.unanswerable:
            return {name: 100 * value for name, value in score_answers(texts, answers, self.task.language).items()}
        scores = score_squad_v2(texts, answers, [one["no_answer_probability"] for one in given], threshold)
        result = {}
        for name, value in scores.items():
            for ours, theirs in _SQUAD_V2_NAMES.items():
                name = name.replace(ours, theirs)
            result[name] = value if name.endswith("thresh") else 100 * value
        answerable = sum(map(bool, answers))
        numbers = {"total": len(answers), "HasAns_total": answerable, "NoAns_total": len(answers) - answerable}
        return result | {name: number for name, number in numbers.items() if number}
