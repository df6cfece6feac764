"""Scores of predicted labels, numbers and tags against the right ones, as fractions or correlations: 1 is perfect.

Answers to questions about a context are scored in `answer_scores`.
"""

from __future__ import annotations

import functools
import logging
import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


logger = logging.getLogger(__name__)

Score = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], float]
Chunk = tuple[int, int, str]  # first word, word after the last, type


def accuracy(predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[Any] = ()) -> float:
    """Share of predictions that are right."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(references, predictions))


def f1(predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[Any]) -> float:
    """F1 of the positive one of two labels, which is the second; 0 where there is no true positive.

    Raises:
        ValueError: for a task that has not two labels.
    """
    from sklearn.metrics import f1_score

    if len(labels) != 2:
        raise ValueError(
            f"f1 is of two labels, the second the positive one, but there are {len(labels)}: use macro_f1."
        )
    return float(f1_score(references, predictions, labels=[labels[1]], average=None, zero_division=0.0)[0])


def macro_f1(predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[Any] = ()) -> float:
    """Mean of the F1 of each label that is right or predicted somewhere; a label that is never both counts 0."""
    from sklearn.metrics import f1_score

    return float(f1_score(references, predictions, average="macro", zero_division=0.0))


def matthews(predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[Any] = ()) -> float:
    """Matthews' correlation coefficient (CoLA's score), for any number of labels; 0 where one side is constant."""
    from sklearn.metrics import matthews_corrcoef

    if _has_constant("matthews", predictions, references):
        return 0.0
    return float(matthews_corrcoef(references, predictions))


def pearson(predictions: Sequence[float], references: Sequence[float], labels: Sequence[Any] = ()) -> float:
    """Pearson's correlation coefficient; 0 where one side is constant.

    Raises:
        ValueError: for a number that is not finite.
    """
    from scipy.stats import pearsonr

    return _number_correlation("pearson", pearsonr, predictions, references)


def spearman(predictions: Sequence[float], references: Sequence[float], labels: Sequence[Any] = ()) -> float:
    """Spearman's rank correlation, ties by their mean rank; 0 where one side is constant.

    Raises:
        ValueError: for a number that is not finite.
    """
    from scipy.stats import spearmanr

    return _number_correlation("spearman", spearmanr, predictions, references)


SCORES: dict[str, Score] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}
TAG_SCORES = ("accuracy", "precision", "recall", "f1", "macro_f1")


def score_labels(
    metrics: Sequence[str], predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[Any] = ()
) -> dict[str, float]:
    """Scores of labels, or of numbers.

    Args:
        metrics: names in [`SCORES`].
        predictions: one a row.
        references: the right ones.
        labels: all that there are, in the order of the task; of two, the second is the positive one. Empty for
            numbers and for indices of choices.

    Returns:
        The value of each metric.

    Raises:
        ValueError: for an unknown metric, no row, lengths that differ, or a label that is not one of `labels`.
    """
    _check_metrics(metrics, tuple(SCORES))
    _check_lengths(predictions, references)
    if len(labels):
        known = set(labels)
        for what, column in (("prediction", predictions), ("reference", references)):
            for row, label in enumerate(column):
                if label not in known:
                    raise ValueError(f"Row {row}: the {what} {label!r} is none of the labels: {_listed(labels)}.")
    return {name: SCORES[name](predictions, references, labels) for name in metrics}


def score_tags(
    metrics: Sequence[str], predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Scores of the chunks (entities, phrases) in sequences of BIO tags, by the rules of `conlleval` (CoNLL-2000).

    `accuracy` is of words. A chunk is right if its first word, its last word and its type are. `precision`, `recall`
    and `f1` are of all chunks together. `macro_f1` is the mean of the F1 of each type that is right or predicted
    somewhere; CLUENER 2020 is scored so (the published 0.647 of BERT-base is the mean of its ten types). What has no
    chunk to divide by is 0.

    Args:
        metrics: names in [`TAG_SCORES`].
        predictions: a sequence of tags a sentence.
        references: the right ones.

    Returns:
        The value of each metric.

    Raises:
        ValueError: for an unknown metric, no sentence, lengths that differ, or a tag that is not BIO.
    """
    _check_metrics(metrics, TAG_SCORES)
    _check_lengths(predictions, references)
    predicted, right, shared = Counter[str](), Counter[str](), Counter[str]()  # chunks by type
    right_words = 0
    for row, (prediction, reference) in enumerate(zip(predictions, references, strict=True)):
        if len(prediction) != len(reference):
            raise ValueError(f"Sentence {row}: there are {len(prediction)} predicted tags for {len(reference)} words.")
        predicted_chunks, right_chunks = find_chunks(prediction), find_chunks(reference)
        for counter, chunks in (
            (predicted, predicted_chunks),
            (right, right_chunks),
            (shared, predicted_chunks & right_chunks),
        ):
            counter.update(kind for _, _, kind in chunks)
        right_words += sum(tag == other for tag, other in zip(prediction, reference, strict=True))
    types = predicted.keys() | right.keys()
    values = {
        "accuracy": _ratio(right_words, sum(map(len, references))),
        "precision": _ratio(shared.total(), predicted.total()),
        "recall": _ratio(shared.total(), right.total()),
        "f1": _ratio(2 * shared.total(), predicted.total() + right.total()),
        "macro_f1": _ratio(
            math.fsum(_ratio(2 * shared[kind], predicted[kind] + right[kind]) for kind in types), len(types)
        ),
    }
    return {name: values[name] for name in metrics}


def find_chunks(tags: Sequence[str]) -> set[Chunk]:
    """The chunks of a sequence of BIO tags.

    As in `conlleval`: a chunk begins at `B-`, and also at an `I-` that follows `O`, the beginning of the sentence or
    another type; it goes on as long as `I-` of its type follows.

    Args:
        tags: `O`, `B-TYPE` or `I-TYPE`; a type may hold hyphens.

    Returns:
        (first word, word after the last, type) of each.

    Raises:
        ValueError: for another tag.
    """
    chunks: set[Chunk] = set()
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


def _check_metrics(metrics: Sequence[str], known: Sequence[str]) -> None:
    for name in metrics:
        if name not in known:
            raise ValueError(f"There is no metric {name!r} here. Known are: {', '.join(known)}.")


def _check_lengths(predictions: Sequence[Any], references: Sequence[Any]) -> None:
    if len(predictions) != len(references):
        raise ValueError(f"There are {len(predictions)} predictions for {len(references)} references.")
    if not len(references):
        raise ValueError("There is nothing to score: no row has a label.")


def _listed(labels: Sequence[Any]) -> str:
    return ", ".join(str(label) for label in labels[:20]) + (", ..." if len(labels) > 20 else "")


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0


def _has_constant(name: str, predictions: Any, references: Any) -> bool:
    for what, column in (("predictions", predictions), ("references", references)):
        if all(value == column[0] for value in column):
            _warn_constant(name, what)
            return True
    return False


@functools.cache  # an untrained model would say so at every evaluation
def _warn_constant(name: str, what: str) -> None:
    logger.warning(f"All {what} are the same: there is no correlation, and {name} is given as 0.")


def _number_correlation(
    name: str, correlate: Callable[..., Any], predictions: Sequence[float], references: Sequence[float]
) -> float:
    from scipy.stats import ConstantInputWarning, NearConstantInputWarning

    columns = [np.asarray(column, dtype=np.float64) for column in (predictions, references)]
    for what, column in zip(("prediction", "reference"), columns, strict=True):
        for row in np.flatnonzero(~np.isfinite(column)):
            raise ValueError(f"Row {row}: the {what} is {column[row]}, which has no place in a correlation.")
    if _has_constant(name, *columns):
        return 0.0
    with warnings.catch_warnings():
        # Numbers that differ by rounding only.
        warnings.simplefilter("error", NearConstantInputWarning)
        warnings.simplefilter("error", ConstantInputWarning)
        try:
            return float(correlate(*columns).statistic)
        except (NearConstantInputWarning, ConstantInputWarning):
            _warn_constant(name, "predictions or references")
            return 0.0
