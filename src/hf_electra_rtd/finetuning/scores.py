"""Scores of predictions as fractions or correlations: 1 is perfect."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from statistics import fmean
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
CORRELATIONS = ("matthews", "pearson", "spearman")


# ---- Labels and numbers ----


def score_labels(
    metrics: Sequence[str], predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[Any] = ()
) -> dict[str, float]:
    """Scores of labels or of numbers, one an example.

    `macro_f1` is the mean over the labels that are right or predicted somewhere. Where one side is constant there is
    no correlation, and `matthews`, `pearson` and `spearman` are 0.

    Args:
        labels: all labels in the task's order; of two, the second is the positive one of `f1`.

    Raises:
        ValueError: for no example, lengths that differ, a label that is none of `labels`, or a number that is not
            finite.
    """
    from scipy import stats
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    _check_lengths(predictions, references)
    if labels and (unknown := (set(predictions) | set(references)) - set(labels)):
        raise ValueError(f"{unknown.pop()!r} is none of the labels {', '.join(map(str, labels))}.")
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
        scores[name] = 0.0
        if name in CORRELATIONS and any(len(set(column)) == 1 for column in columns):
            logger.warning(f"All predictions or all references are the same, so {name} is given as 0.")
            continue
        with warnings.catch_warnings(), contextlib.suppress(stats.NearConstantInputWarning):
            warnings.simplefilter("error", stats.NearConstantInputWarning)  # numbers that differ by rounding only
            scores[name] = float(functions[name](*columns))
    return scores


def number_errors(predictions: Sequence[float], references: Sequence[float]) -> dict[str, float]:
    """`mae`, the mean absolute error, and `rmse`, the root of the mean squared one, in the unit of the labels."""
    _check_lengths(predictions, references)
    errors = np.subtract(predictions, references)
    return {"mae": float(np.abs(errors).mean()), "rmse": float(np.sqrt(np.square(errors).mean()))}


# ---- Tags ----


def score_tags(
    metrics: Sequence[str], predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Scores of the chunks (entities, phrases) in sequences of BIO tags, by the rules of `conlleval` (CoNLL-2000).

    A chunk is right if its first word, its last word and its type are. `precision`, `recall` and `f1` are of all
    chunks together, `macro_f1` is the mean of the F1 of each type that is right or predicted somewhere (CLUENER 2020
    is scored so), `accuracy` is of words.

    Raises:
        ValueError: for no sentence, lengths that differ, or a tag that is not BIO.
    """
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


# ---- Answers to questions about a context ----

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")

# The characters that `cmrc2018_evaluate.py` takes out. Its list holds "……", two characters, which never equals one:
# a single "…" stays.
_CHINESE_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")  # noqa: RUF001
_CHINESE_OR_OTHER = re.compile(r"([\u4e00-\u9fa5])|[^\u4e00-\u9fa5]+")
# Where `nltk.word_tokenize` (Penn Treebank) breaks a run without Chinese characters, besides at spaces.
_WORD_BREAKS = re.compile(
    r"""[;@\#$%&?!*\[\](){}<>"«»“”‘’„‒-―]   # stand alone
    | \.{2,} | \.(?=[\])}>"'»”’\s]*$)       # an ellipsis; the last full stop, also before closing quotes
    | [,:](?!\d)                            # not inside 1,000 or 3:2
    | (?<=\w)'(?:s|m|d|ll|re|ve)\b | (?<=\w)n't\b | '(?=\s|$)
    """,  # noqa: RUF001
    re.VERBOSE,
)

_PairScore = Callable[[str, str], float]  # of a prediction and an answer


def score_answers(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], language: str = "en"
) -> dict[str, float]:
    """`exact_match` and `f1`, means over the questions: by the rules of SQuAD 1.1 (its `evaluate-v1.1.py`), or for
    Chinese (`zh`) by those of CMRC 2018 (ymcui/cmrc2018, `cmrc2018_evaluate.py`), which score DRCD, too.

    A prediction gets the best of its scores against each answer. SQuAD compares texts in lower case, without ASCII
    punctuation, without the words a, an and the, and with single spaces; F1 is of words. CMRC compares in lower case
    and without punctuation. For F1 it cuts texts into single Chinese characters (U+4E00 to U+9FA5) and, between them,
    words; what two texts share is their longest common run of these, without gaps. The script cuts words by
    `nltk.word_tokenize`; here the rules of that (Penn Treebank) are followed for what answers hold, but without its
    list of abbreviations and its rarer contractions (`cannot`, `gonna`).

    Raises:
        ValueError: for no question, lengths that differ, or a question without an answer.
    """
    _check_lengths(predictions, answers)
    if not all(answers):
        raise ValueError("A question has no answer. Score unanswerable questions by the rules of SQuAD 2.0.")
    normalized, f1 = (_cmrc_normalized, _cmrc_f1) if language == "zh" else (_squad_normalized, _squad_f1)
    scores = {"exact_match": _equal_after(normalized), "f1": f1}
    return {name: fmean(_best_of_each(predictions, answers, score)) for name, score in scores.items()}


def score_squad_v2(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], no_answer_scores: Sequence[float], threshold: float
) -> dict[str, float]:
    """Exact match and F1 of words, by the rules of SQuAD 2.0 (its `evaluate-v2.0.py`): as `score_answers`, but to a
    question without answers the empty text is right. As in the official script, the best threshold is sought question
    by question, and is 0 where it is best to answer none.

    Args:
        predictions: the answers that would be given if there must be one.
        no_answer_scores: probabilities or differences of logits; the higher, the more likely there is no answer.
        threshold: above it, a question counts as left unanswered (the script's `--na-prob-thresh`).

    Returns:
        `exact_match` and `f1`; the same of the questions with an answer (`has_answer_f1`, ...) and of those without
        (`no_answer_f1`, ...), where there are any; `best_f1`, `best_f1_threshold`, ... All but thresholds are
        fractions.

    Raises:
        ValueError: for no question, lengths that differ, or a score that is not finite.
    """
    _check_lengths(predictions, answers)
    if len(no_answer_scores) != len(predictions) or not all(map(math.isfinite, no_answer_scores)):
        raise ValueError(f"There must be a finite no_answer_score for each of the {len(predictions)} questions.")
    golds = [[answer for answer in given if _squad_normalized(answer)] or [""] for given in answers]
    raw = {
        "exact_match": _best_of_each(predictions, golds, _equal_after(_squad_normalized)),
        "f1": _best_of_each(predictions, golds, _squad_f1_or_empty),
    }
    result: dict[str, float] = {}
    for prefix, wanted in (("", (True, False)), ("has_answer_", (True,)), ("no_answer_", (False,))):
        for name, values in raw.items():
            chosen = [
                float(not given) if score > threshold else value
                for value, score, given in zip(values, no_answer_scores, answers, strict=True)
                if bool(given) in wanted
            ]
            if chosen:
                result[prefix + name] = fmean(chosen)
    surest = sorted(range(len(answers)), key=lambda row: no_answer_scores[row])
    for name, values in raw.items():  # begin with no question answered, and answer them from the surest on
        total = best = float(sum(not given for given in answers))
        best_threshold = 0.0
        for row in surest:
            total += values[row] if answers[row] else -bool(predictions[row])
            if total > best:
                best, best_threshold = total, float(no_answer_scores[row])
        result |= {f"best_{name}": best / len(values), f"best_{name}_threshold": best_threshold}
    return result


def _best_of_each(predictions: Sequence[str], answers: Sequence[Sequence[str]], score: _PairScore) -> list[float]:
    return [max(score(one, answer) for answer in given) for one, given in zip(predictions, answers, strict=True)]


def _equal_after(normalized: Callable[[str], str]) -> _PairScore:
    return lambda prediction, answer: float(normalized(prediction) == normalized(answer))


def _squad_normalized(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _squad_f1(prediction: str, answer: str) -> float:
    predicted, right = _squad_normalized(prediction).split(), _squad_normalized(answer).split()
    return _ratio(2 * (Counter(predicted) & Counter(right)).total(), len(predicted) + len(right))


def _squad_f1_or_empty(prediction: str, answer: str) -> float:
    """F1 as of SQuAD 2.0: 1 where nothing is left of both texts."""
    return _squad_f1(prediction, answer) if _squad_normalized(prediction + " " + answer) else 1.0


def _cmrc_normalized(text: str) -> str:
    return text.lower().strip().translate(_CHINESE_PUNCTUATION)


def _cmrc_f1(prediction: str, answer: str) -> float:
    predicted, right = _cmrc_segments(prediction), _cmrc_segments(answer)
    shared = SequenceMatcher(None, predicted, right, autojunk=False).find_longest_match().size
    return _ratio(2 * shared, len(predicted) + len(right))


def _cmrc_segments(text: str) -> list[str]:
    segments: list[str] = []
    for match in _CHINESE_OR_OTHER.finditer(_cmrc_normalized(text)):
        segments += [match[0]] if match[1] else _WORD_BREAKS.sub(r" \g<0> ", match[0]).split()
    return segments


def _check_lengths(predictions: Sequence[Any], references: Sequence[Any]) -> None:
    if len(predictions) != len(references):
        raise ValueError(f"There are {len(predictions)} predictions for {len(references)} references.")
    if not len(references):
        raise ValueError("There is nothing to score: no example has a label.")


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
