"""This package's scores as metrics of `evaluate`, which need no network.

They take what the Hub's metrics of the same tasks take, so that they can stand in for them. What they give has the
names of this package, which differ for `glue` (`matthews` for `matthews_correlation`, `spearman` for `spearmanr`) and
`squad_v2` (`exact_match` for `exact`, `has_answer_f1` for `HasAns_f1` and so on; no `total`), and is in fractions,
where the Hub's `squad` and `squad_v2` give per cent. AX is there, HANS is not. Importing this module imports
`evaluate` and `datasets`, which takes seconds: the scores themselves are in `scores` and `answer_scores`.

    metric = GlueMetric("mrpc")
    metric.add_batch(predictions=[1, 0], references=[1, 1])
    metric.compute()  # {"accuracy": 0.5, "f1": 0.667}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import evaluate
from datasets import Features, List, Value

from hf_electra_rtd.finetuning.answer_scores import score_cmrc, score_squad, score_squad_v2
from hf_electra_rtd.finetuning.benchmarks import get_task
from hf_electra_rtd.finetuning.scores import score_labels, score_tags
from hf_electra_rtd.finetuning.tasks import KindName


_HALVES = {"mnli_matched": "mnli", "mnli_mismatched": "mnli"}  # as the Hub's metric calls them, too
_INDEX, _NUMBER, _TEXT = Value("int64"), Value("float64"), Value("string")
_ANSWERS = {"id": _TEXT, "answers": {"text": List(_TEXT), "answer_start": List(Value("int32"))}}
_PREDICTED_ANSWER = {"id": _TEXT, "prediction_text": _TEXT}
_OF_KIND: dict[KindName, tuple[Any, str]] = {
    "classification": (_INDEX, "indices of labels in the order of the task's labels"),
    "multiple_choice": (_INDEX, "indices of choices"),
    "regression": (_NUMBER, "numbers"),
    "tagging": (List(_TEXT), "a list of BIO tags a sentence"),
}
_ANSWER_INPUTS = """
Args:
    predictions: dicts with the `id` of a question and `prediction_text`.
    references: dicts with `id` and `answers`, a dict of the lists `text` and `answer_start`, as in the data set.
Returns:
    `exact_match` and `f1`, as fractions.
"""


class _TaskMetric(evaluate.Metric):
    """The metrics of a benchmark's task, which is the `config_name`."""

    _benchmark: ClassVar[str]
    _description: ClassVar[str]
    _citation: ClassVar[str]
    _homepage: ClassVar[str]

    def _info(self) -> evaluate.MetricInfo:
        name = str(self.config_name)
        self._task = get_task(self._benchmark, _HALVES.get(name, name))
        if self._task.kind not in _OF_KIND:
            raise ValueError(
                f"{self._task.title} asks for answers in a context: use SquadMetric, SquadV2Metric or CmrcMetric."
            )
        feature, what = _OF_KIND[self._task.kind]
        return evaluate.MetricInfo(
            description=f"{self._description} This is {self._task.title}: {', '.join(self._task.metrics)}.",
            citation=self._citation,
            inputs_description=(
                f"\nArgs:\n    predictions: {what}.\n    references: the right ones.\n"
                f"Returns:\n    {', '.join(f'`{name}`' for name in self._task.metrics)}; 1 is perfect.\n"
            ),
            features=Features({"predictions": feature, "references": feature}),
            reference_urls=[self._homepage],
        )

    def _compute(self, predictions: Sequence[Any], references: Sequence[Any]) -> dict[str, float]:
        if self._task.kind == "tagging":
            return score_tags(self._task.metrics, predictions, references)
        return score_labels(self._task.metrics, predictions, references, range(len(self._task.labels)))


class GlueMetric(_TaskMetric):
    """The official metrics of a GLUE task, as of `evaluate.load("glue", config_name)`.

    Args:
        config_name: of the task, such as `mrpc`.
        **options: of `evaluate.Metric`.

    Raises:
        ValueError: for a task that there is not.
    """

    _benchmark = "glue"
    _description = "The metrics of GLUE, a benchmark of English language understanding, computed without a network."
    _citation = """\
@inproceedings{wang2019glue,
  title={{GLUE}: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding},
  author={Wang, Alex and Singh, Amanpreet and Michael, Julian and Hill, Felix and Levy, Omer and Bowman, Samuel R.},
  booktitle={International Conference on Learning Representations},
  year={2019}
}
"""
    _homepage = "https://gluebenchmark.com"


class ClueMetric(_TaskMetric):
    """The official metrics of a CLUE task other than CMRC 2018 and DRCD, which are [`CmrcMetric`]'s.

    Args:
        config_name: of the task, such as `afqmc`.
        **options: of `evaluate.Metric`.

    Raises:
        ValueError: for a task that there is not, or that asks for answers in a context.
    """

    _benchmark = "clue"
    _description = "The metrics of CLUE, a benchmark of Chinese language understanding, computed without a network."
    _citation = """\
@inproceedings{xu-etal-2020-clue,
  title={{CLUE}: A {C}hinese Language Understanding Evaluation Benchmark},
  author={Xu, Liang and Hu, Hai and Zhang, Xuanwei and others},
  booktitle={Proceedings of the 28th International Conference on Computational Linguistics},
  year={2020}
}
"""
    _homepage = "https://www.cluebenchmarks.com"


class _AnswerMetric(evaluate.Metric):
    """A score of answers, which are joined with the right ones by their ids."""

    _description: ClassVar[str]
    _citation: ClassVar[str]
    _homepage: ClassVar[str]
    _inputs: ClassVar[str] = _ANSWER_INPUTS
    _prediction: ClassVar[Mapping[str, Value]] = _PREDICTED_ANSWER

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self._description,
            citation=self._citation,
            inputs_description=self._inputs,
            features=Features({"predictions": dict(self._prediction), "references": _ANSWERS}),
            reference_urls=[self._homepage],
        )


class SquadMetric(_AnswerMetric):
    """Exact match and F1 of SQuAD 1.1 (see [`score_squad`]); takes what `evaluate.load("squad")` takes.

    Args:
        **options: of `evaluate.Metric`.
    """

    _description = "Exact match and F1 of SQuAD 1.1, English questions about a context, computed without a network."
    _citation = """\
@inproceedings{rajpurkar-etal-2016-squad,
  title={{SQ}u{AD}: 100,000+ Questions for Machine Comprehension of Text},
  author={Rajpurkar, Pranav and Zhang, Jian and Lopyrev, Konstantin and Liang, Percy},
  booktitle={Proceedings of the 2016 Conference on Empirical Methods in Natural Language Processing},
  year={2016}
}
"""
    _homepage = "https://rajpurkar.github.io/SQuAD-explorer/"

    def _compute(
        self, predictions: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        return score_squad(_texts(_joined(predictions, references)), _answers(references))


class SquadV2Metric(_AnswerMetric):
    """Exact match and F1 of SQuAD 2.0 (see [`score_squad_v2`]); takes what `evaluate.load("squad_v2")` takes.

    `compute` takes a `threshold`: above it, a question counts as left unanswered.

    Args:
        **options: of `evaluate.Metric`.
    """

    _description = (
        "Exact match and F1 of SQuAD 2.0, English questions that a context may leave unanswered, computed without a "
        "network."
    )
    _citation = """\
@inproceedings{rajpurkar-etal-2018-know,
  title={Know What You Don't Know: Unanswerable Questions for {SQ}u{AD}},
  author={Rajpurkar, Pranav and Jia, Robin and Liang, Percy},
  booktitle={Proceedings of the 56th Annual Meeting of the Association for Computational Linguistics},
  year={2018}
}
"""
    _homepage = "https://rajpurkar.github.io/SQuAD-explorer/"
    _inputs = """
Args:
    predictions: dicts with the `id` of a question, `prediction_text` (empty for no answer) and
        `no_answer_probability`, which may also be a difference of logits.
    references: dicts with `id` and `answers`, a dict of the lists `text` and `answer_start`, as in the data set.
    threshold: of `no_answer_probability`, above which a question counts as left unanswered; by default none.
Returns:
    `exact_match` and `f1`, over all questions and over those with and without an answer, and the best that a
    threshold could reach; fractions.
"""
    _prediction: ClassVar[Mapping[str, Value]] = {**_PREDICTED_ANSWER, "no_answer_probability": Value("float64")}

    def _compute(
        self,
        predictions: Sequence[Mapping[str, Any]],
        references: Sequence[Mapping[str, Any]],
        threshold: float | None = None,
    ) -> dict[str, float]:
        joined = _joined(predictions, references)
        no_answer_scores = [prediction["no_answer_probability"] for prediction in joined]
        return score_squad_v2(_texts(joined), _answers(references), no_answer_scores, threshold)


class CmrcMetric(_AnswerMetric):
    """Exact match and F1 of CMRC 2018 and DRCD (see [`score_cmrc`]); takes what [`SquadMetric`] takes.

    Args:
        **options: of `evaluate.Metric`.
    """

    _description = (
        "Exact match and F1 of CMRC 2018, Chinese questions about a context, computed without a network. DRCD is "
        "scored by the same rules."
    )
    _citation = """\
@inproceedings{cui-etal-2019-span,
  title={A Span-Extraction Dataset for {C}hinese Machine Reading Comprehension},
  author={Cui, Yiming and Liu, Ting and Che, Wanxiang and others},
  booktitle={Proceedings of the 2019 Conference on Empirical Methods in Natural Language Processing},
  year={2019}
}
"""
    _homepage = "https://ymcui.com/cmrc2018/"

    def _compute(
        self, predictions: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        return score_cmrc(_texts(_joined(predictions, references)), _answers(references))


def _joined(
    predictions: Sequence[Mapping[str, Any]], references: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The predictions in the order of the references."""
    by_id = {prediction["id"]: prediction for prediction in predictions}
    ids = [reference["id"] for reference in references]
    if len(by_id) < len(predictions) or len(set(ids)) < len(ids):
        raise ValueError(
            f"Several {'predictions' if len(by_id) < len(predictions) else 'references'} have the same id."
        )
    for id in ids:
        if id not in by_id:
            raise ValueError(f"The question {id!r} has no prediction.")
    return [by_id[id] for id in ids]


def _texts(predictions: Sequence[Mapping[str, Any]]) -> list[str]:
    return [prediction["prediction_text"] for prediction in predictions]


def _answers(references: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [reference["answers"]["text"] for reference in references]
