"""Scores of answers to questions about a context: by the rules of SQuAD 1.1 and 2.0, and by those of CMRC 2018."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence


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


def score_squad(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Exact match and F1 of words, by the rules of SQuAD 1.1 (`evaluate-v1.1.py` of the data set).

    Texts are compared in lower case, without ASCII punctuation, without the words a, an and the, and with single
    spaces; a prediction gets the best of its scores against each answer.

    Args:
        predictions: one a question.
        answers: the right ones of each question, at least one.

    Returns:
        `exact_match` and `f1`, means over the questions, as fractions.

    Raises:
        ValueError: for no question, lengths that differ, or a question without an answer.
    """
    _check(predictions, answers, unanswerable=False)
    return _means(predictions, answers, _squad_exact, _squad_f1)


def score_squad_v2(
    predictions: Sequence[str],
    answers: Sequence[Sequence[str]],
    no_answer_scores: Sequence[float] | None = None,
    threshold: float | None = None,
) -> dict[str, float]:
    """Exact match and F1 of words, by the rules of SQuAD 2.0 (`evaluate-v2.0.py` of the data set).

    As [`score_squad`], but the right answer to a question without answers is the empty text. With `no_answer_scores`,
    also the best that a threshold could reach: a question is answered up to the threshold, and left unanswered above
    it. As in the official script, questions of the same score are taken one by one in their order, and the threshold
    is 0 where it is best to answer none.

    Args:
        predictions: one a question; empty for none. What a best threshold is sought for, and what `threshold` is put
            to, are the answers that would be given if there must be one.
        answers: the right ones of each question; none for an unanswerable one.
        no_answer_scores: of each question, a probability or a difference of logits: the higher, the more likely it is
            unanswerable.
        threshold: above it, a question counts as left unanswered (the script's `--na-prob-thresh`; google-research/
            electra uses -2.75 on differences of logits); None takes predictions as they are.

    Returns:
        `exact_match` and `f1`; the same of the questions with an answer (`has_answer_exact_match`, `has_answer_f1`)
        and of those without (`no_answer_exact_match`, `no_answer_f1`), where there are any; with `no_answer_scores`,
        `best_exact_match`, `best_exact_match_threshold`, `best_f1` and `best_f1_threshold`. All but thresholds are
        fractions.

    Raises:
        ValueError: for no question, lengths that differ, a score that is not finite, or a threshold without scores.
    """
    _check(predictions, answers, unanswerable=True)
    if threshold is not None and no_answer_scores is None:
        raise ValueError("A threshold needs the no_answer_scores that it is put to.")
    if no_answer_scores is not None:
        _check_no_answer_scores(no_answer_scores, len(predictions))
    golds = [_golds(given) for given in answers]
    answerable = [bool(given) for given in answers]
    values = {
        "exact_match": _best_of_each(predictions, golds, _squad_exact),
        "f1": _best_of_each(predictions, golds, _squad_f1_or_empty),
    }
    judged = values
    if threshold is not None:
        assert no_answer_scores is not None
        judged = {
            name: [
                float(not has_answer) if no_answer > threshold else value
                for value, no_answer, has_answer in zip(column, no_answer_scores, answerable, strict=True)
            ]
            for name, column in values.items()
        }
    result = {name: _mean(column) for name, column in judged.items()}
    for prefix, wanted in (("has_answer", True), ("no_answer", False)):
        if wanted in answerable:
            for name, column in judged.items():
                chosen = [value for value, has in zip(column, answerable, strict=True) if has is wanted]
                result[f"{prefix}_{name}"] = _mean(chosen)
    if no_answer_scores is not None:
        for name, column in values.items():
            best, best_threshold = _best_threshold(predictions, column, no_answer_scores, answerable)
            result[f"best_{name}"] = best
            result[f"best_{name}_threshold"] = best_threshold
    return result


def score_cmrc(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Exact match and F1 for Chinese, by the rules of CMRC 2018, which DRCD is scored by too.

    Texts are compared in lower case and without punctuation. For F1 they are cut into single Chinese characters
    (U+4E00 to U+9FA5) and, between them, words; what two texts share is their longest common run of these, without
    gaps. A prediction gets the best of its scores against each answer; an empty one has an F1 of 0.

    Source: `cmrc2018_evaluate.py` (ymcui/cmrc2018). It cuts words by `nltk.word_tokenize`; here the rules of that
    (Penn Treebank) are followed for what answers hold, but without its list of abbreviations and its rarer
    contractions (`cannot`, `gonna`).

    Args:
        predictions: one a question.
        answers: the right ones of each question, at least one.

    Returns:
        `exact_match` and `f1`, means over the questions, as fractions.

    Raises:
        ValueError: for no question, lengths that differ, or a question without an answer.
    """
    _check(predictions, answers, unanswerable=False)
    return _means(predictions, answers, _cmrc_exact, _cmrc_f1)


PairScore = Callable[[str, str], float]  # of a prediction and an answer


def _check(predictions: Sequence[str], answers: Sequence[Sequence[str]], unanswerable: bool) -> None:
    if len(predictions) != len(answers):
        raise ValueError(f"There are {len(predictions)} predictions for {len(answers)} questions.")
    if not len(predictions):
        raise ValueError("There is no question to score.")
    for row, (prediction, given) in enumerate(zip(predictions, answers, strict=True)):
        if not isinstance(prediction, str):
            raise ValueError(f"Question {row}: the prediction is a {type(prediction).__name__}, not text.")
        if isinstance(given, str):  # whose characters would be taken for answers
            raise ValueError(f"Question {row}: its answers are one text ({given!r}), not a list of texts.")
        if not len(given) and not unanswerable:
            raise ValueError(f"Question {row} has no answer. Score unanswerable questions by the rules of SQuAD 2.0.")


def _check_no_answer_scores(scores: Sequence[float], questions: int) -> None:
    if len(scores) != questions:
        raise ValueError(f"There are {len(scores)} no_answer_scores for {questions} questions.")
    for row, score in enumerate(scores):
        if not math.isfinite(score):
            raise ValueError(f"Question {row}: its no_answer_score is {score}, which cannot be compared.")


def _means(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], exact: PairScore, f1: PairScore
) -> dict[str, float]:
    return {
        "exact_match": _mean(_best_of_each(predictions, answers, exact)),
        "f1": _mean(_best_of_each(predictions, answers, f1)),
    }


def _best_of_each(predictions: Sequence[str], answers: Sequence[Sequence[str]], score: PairScore) -> list[float]:
    return [
        max(score(prediction, answer) for answer in given)
        for prediction, given in zip(predictions, answers, strict=True)
    ]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _f1(shared: int, predicted: int, right: int) -> float:
    """Harmonic mean of shared / predicted and shared / right."""
    return 2 * shared / (predicted + right) if shared else 0.0


def _squad_normalized(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _squad_exact(prediction: str, answer: str) -> float:
    return float(_squad_normalized(prediction) == _squad_normalized(answer))


def _squad_f1(prediction: str, answer: str) -> float:
    predicted, right = _squad_normalized(prediction).split(), _squad_normalized(answer).split()
    return _f1((Counter(predicted) & Counter(right)).total(), len(predicted), len(right))


def _squad_f1_or_empty(prediction: str, answer: str) -> float:
    """F1 as of SQuAD 2.0: 1 where nothing is left of both texts."""
    if not _squad_normalized(prediction) and not _squad_normalized(answer):
        return 1.0
    return _squad_f1(prediction, answer)


def _golds(answers: Sequence[str]) -> list[str]:
    """The answers of which something is left; the empty text where there is none."""
    return [answer for answer in answers if _squad_normalized(answer)] or [""]


def _best_threshold(
    predictions: Sequence[str], values: Sequence[float], no_answer_scores: Sequence[float], answerable: Sequence[bool]
) -> tuple[float, float]:
    """The best mean and its threshold: begin with no question answered, and answer them from the surest on."""
    total = best = float(sum(not has_answer for has_answer in answerable))
    threshold = 0.0
    for row in sorted(range(len(values)), key=lambda row: no_answer_scores[row]):
        if answerable[row]:
            total += values[row]
        elif predictions[row]:
            total -= 1
        if total > best:
            best, threshold = total, float(no_answer_scores[row])
    return best / len(values), threshold


def _cmrc_exact(prediction: str, answer: str) -> float:
    return float(_without_chinese_punctuation(prediction) == _without_chinese_punctuation(answer))


def _cmrc_f1(prediction: str, answer: str) -> float:
    predicted, right = _cmrc_segments(prediction), _cmrc_segments(answer)
    return _f1(_longest_common_run(predicted, right), len(predicted), len(right))


def _without_chinese_punctuation(text: str) -> str:
    return text.lower().strip().translate(_CHINESE_PUNCTUATION)


def _cmrc_segments(text: str) -> list[str]:
    segments: list[str] = []
    for match in _CHINESE_OR_OTHER.finditer(_without_chinese_punctuation(text)):
        segments += [match[0]] if match[1] else _WORD_BREAKS.sub(r" \g<0> ", match[0]).split()
    return segments


def _longest_common_run(first: Sequence[str], second: Sequence[str]) -> int:
    longest = 0
    ending = [0] * (len(second) + 1)  # for each place in `second`, the length of the common run that ends before it
    for item in first:
        previous = ending
        ending = [0] * (len(second) + 1)
        for place, other in enumerate(second):
            if item == other:
                ending[place + 1] = previous[place] + 1
        longest = max(longest, max(ending))
    return longest
