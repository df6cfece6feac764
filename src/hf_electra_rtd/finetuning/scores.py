"""Scores of predicted labels, numbers and tags, as fractions or correlations: 1 is perfect.

Those of answers to questions are in `answer_scores`.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


logger = logging.getLogger(__name__)

METRICS: Mapping[str, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1", "f1", "matthews"),
    "regression": ("pearson", "spearman"),
    "multiple_choice": ("accuracy",),
    "question_answering": ("exact_match", "f1"),
    "tagging": ("f1", "precision", "recall", "macro_f1", "accuracy"),
}
_CORRELATIONS = ("matthews", "pearson", "spearman")


def score_labels(
    metrics: Sequence[str], predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[Any] = ()
) -> dict[str, float]:
    """Scores of labels or of numbers, one an example.

    `macro_f1` is the mean over the labels that are right or predicted somewhere. Where one side is constant there is
    no correlation, and `matthews`, `pearson` and `spearman` are 0.

    Args:
        labels: all labels in the task's order; of two, the second is the positive one of `f1`.

    Raises:
        ValueError: for an unknown metric, no example, lengths that differ, f1 without exactly two labels, a label that
            is none of `labels`, or a number that is not finite.
    """
    from scipy import stats
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    _check_lengths(predictions, references)
    if labels and (unknown := (set(predictions) | set(references)) - set(labels)):
        raise ValueError(f"{unknown.pop()!r} is none of the labels {', '.join(map(str, labels))}.")
    if "f1" in metrics and len(labels) != 2:
        raise ValueError(f"f1 needs two labels, but there are {len(labels)}. Ask for macro_f1.")
    options: dict[str, Any] = {"average": None, "zero_division": 0.0}
    functions: dict[str, Callable[..., Any]] = {
        "accuracy": accuracy_score,
        "f1": lambda right, predicted: f1_score(right, predicted, labels=[labels[1]], **options)[0],
        "macro_f1": lambda right, predicted: f1_score(right, predicted, **options).mean(),
        "matthews": matthews_corrcoef,
        "pearson": lambda right, predicted: stats.pearsonr(predicted, right).statistic,
        "spearman": lambda right, predicted: stats.spearmanr(predicted, right).statistic,
    }
    columns: list[Any] = [references, predictions]
    if {"pearson", "spearman"} & set(metrics):
        columns = [np.asarray(column, dtype=np.float64) for column in columns]
        if not np.isfinite(columns).all():
            raise ValueError(f"{metrics[0]} needs finite numbers.")
    scores = {}
    for name in metrics:
        if name not in functions:
            raise ValueError(f"There is no metric {name!r}.")
        if name in _CORRELATIONS and any(len(set(column)) == 1 for column in columns):
            logger.warning(f"All predictions or all references are the same, so {name} is given as 0.")
            scores[name] = 0.0
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("error", stats.NearConstantInputWarning)  # numbers that differ by rounding only
            try:
                scores[name] = float(functions[name](*columns))
            except stats.NearConstantInputWarning:
                scores[name] = 0.0
    return scores


def score_tags(
    metrics: Sequence[str], predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Scores of the chunks (entities, phrases) in sequences of BIO tags, by the rules of `conlleval` (CoNLL-2000).

    A chunk is right if its first word, its last word and its type are. `precision`, `recall` and `f1` are of all
    chunks together, `macro_f1` is the mean of the F1 of each type that is right or predicted somewhere (CLUENER 2020
    is scored so), `accuracy` is of words.

    Raises:
        ValueError: for an unknown metric, no sentence, lengths that differ, or a tag that is not BIO.
    """
    if unknown := set(metrics) - set(METRICS["tagging"]):
        raise ValueError(f"There is no metric {unknown.pop()!r} for tags.")
    report = tag_report(predictions, references)
    overall = report.pop("overall")
    overall["macro_f1"] = _ratio(math.fsum(values["f1"] for values in report.values()), len(report))
    return {name: overall[name] for name in metrics}


def tag_report(
    predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> dict[str, dict[str, float]]:
    """`precision`, `recall`, `f1` and `number` (of right chunks) of each type; under `overall` those of all chunks,
    and `accuracy`. What has no chunk to divide by is 0."""
    _check_lengths(predictions, references)
    predicted, right, shared = Counter[str](), Counter[str](), Counter[str]()  # chunks by type
    hits: list[bool] = []
    for row, (prediction, reference) in enumerate(zip(predictions, references, strict=True)):
        if len(prediction) != len(reference):
            raise ValueError(f"Sentence {row} has {len(prediction)} predicted tags for {len(reference)} words.")
        found, wanted = find_chunks(prediction), find_chunks(reference)
        for counter, chunks in ((predicted, found), (right, wanted), (shared, found & wanted)):
            counter.update(kind for _, _, kind in chunks)
        hits += [tag == other for tag, other in zip(prediction, reference, strict=True)]

    def values(shared: int, predicted: int, right: int) -> dict[str, float]:
        f1 = _ratio(2 * shared, predicted + right)
        return {"precision": _ratio(shared, predicted), "recall": _ratio(shared, right), "f1": f1, "number": right}

    report = {kind: values(shared[kind], predicted[kind], right[kind]) for kind in sorted(predicted | right)}
    overall = values(shared.total(), predicted.total(), right.total())
    return report | {"overall": overall | {"accuracy": _ratio(sum(hits), len(hits))}}


def find_chunks(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """The chunks in BIO tags: first word, word after the last, type.

    As in `conlleval`: a chunk begins at `B-`, and also at an `I-` that follows `O`, the beginning of the sentence or
    another type; it goes on as long as `I-` of its type follows.

    Raises:
        ValueError: for another tag than `O`, `B-TYPE` and `I-TYPE`.
    """
    chunks: set[tuple[int, int, str]] = set()
    start, inside = 0, None  # the chunk that is open, and its type
    for place, tag in enumerate([*tags, "O"]):
        prefix, hyphen, kind = tag.partition("-")
        if tag != "O" and not (prefix in ("B", "I") and hyphen):
            raise ValueError(f"Word {place}: {tag!r} is not a BIO tag (O, B-TYPE or I-TYPE).")
        if prefix == "I" and kind == inside:
            continue
        if inside is not None:
            chunks.add((start, place, inside))
        start, inside = place, None if tag == "O" else kind
    return chunks


def _check_lengths(predictions: Sequence[Any], references: Sequence[Any]) -> None:
    if len(predictions) != len(references):
        raise ValueError(f"There are {len(predictions)} predictions for {len(references)} references.")
    if not len(references):
        raise ValueError("There is nothing to score: no example has a label.")


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
