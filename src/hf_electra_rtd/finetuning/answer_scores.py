"""Scores of answers to questions about a context: by the rules of SQuAD 1.1 and 2.0, and by those of CMRC 2018."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher


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

    Returns:
        `exact_match` and `f1`, means over the questions, as fractions.

    Raises:
        ValueError: for no question, lengths that differ, or a question without an answer.
    """
    return _means(predictions, answers, _squad_normalized, _squad_f1)


def score_squad_v2(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], no_answer_scores: Sequence[float], threshold: float
) -> dict[str, float]:
    """Exact match and F1 of words, by the rules of SQuAD 2.0 (`evaluate-v2.0.py` of the data set).

    As `score_squad`, but the right answer to a question without answers is the empty text. As in the official script,
    the best threshold is sought question by question, and is 0 where it is best to answer none.

    Args:
        predictions: one a question: the answer that would be given if there must be one.
        answers: the right ones of each question; none for an unanswerable one.
        no_answer_scores: probabilities or differences of logits; the higher, the more likely there is no answer.
        threshold: above it, a question counts as left unanswered (the script's `--na-prob-thresh`).

    Returns:
        `exact_match` and `f1`; the same of the questions with an answer (`has_answer_exact_match`, `has_answer_f1`)
        and of those without (`no_answer_exact_match`, `no_answer_f1`), where there are any; `best_exact_match`,
        `best_exact_match_threshold`, `best_f1` and `best_f1_threshold`. All but thresholds are fractions.

    Raises:
        ValueError: for no question, lengths that differ, or a score that is not finite.
    """
    _check(predictions, answers)
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
                result[prefix + name] = _mean(chosen)
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


def score_cmrc(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> dict[str, float]:
    """Exact match and F1 for Chinese, by the rules of CMRC 2018, which DRCD is scored by too.

    Texts are compared in lower case and without punctuation. For F1 they are cut into single Chinese characters
    (U+4E00 to U+9FA5) and, between them, words; what two texts share is their longest common run of these, without
    gaps. A prediction gets the best of its scores against each answer; an empty one has an F1 of 0.

    Source: `cmrc2018_evaluate.py` (ymcui/cmrc2018). It cuts words by `nltk.word_tokenize`; here the rules of that
    (Penn Treebank) are followed for what answers hold, but without its list of abbreviations and its rarer
    contractions (`cannot`, `gonna`).

    Args, returns and errors are those of `score_squad`.
    """
    return _means(predictions, answers, _without_chinese_punctuation, _cmrc_f1)


PairScore = Callable[[str, str], float]  # of a prediction and an answer


def _means(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], normalized: Callable[[str], str], f1: PairScore
) -> dict[str, float]:
    _check(predictions, answers)
    if not all(answers):
        raise ValueError("A question has no answer. Score unanswerable questions by the rules of SQuAD 2.0.")
    scores = {"exact_match": _equal_after(normalized), "f1": f1}
    return {name: _mean(_best_of_each(predictions, answers, score)) for name, score in scores.items()}


def _check(predictions: Sequence[str], answers: Sequence[Sequence[str]]) -> None:
    if len(predictions) != len(answers) or not len(predictions):
        raise ValueError(f"There are {len(predictions)} predictions for {len(answers)} questions.")


def _best_of_each(predictions: Sequence[str], answers: Sequence[Sequence[str]], score: PairScore) -> list[float]:
    return [max(score(one, answer) for answer in given) for one, given in zip(predictions, answers, strict=True)]


def _equal_after(normalized: Callable[[str], str]) -> PairScore:
    return lambda prediction, answer: float(normalized(prediction) == normalized(answer))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _f1(shared: int, predicted: int, right: int) -> float:
    """Harmonic mean of shared / predicted and shared / right."""
    return 2 * shared / (predicted + right) if shared else 0.0


def _squad_normalized(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _squad_f1(prediction: str, answer: str) -> float:
    predicted, right = _squad_normalized(prediction).split(), _squad_normalized(answer).split()
    return _f1((Counter(predicted) & Counter(right)).total(), len(predicted), len(right))


def _squad_f1_or_empty(prediction: str, answer: str) -> float:
    """F1 as of SQuAD 2.0: 1 where nothing is left of both texts."""
    return _squad_f1(prediction, answer) if _squad_normalized(prediction + " " + answer) else 1.0


def _cmrc_f1(prediction: str, answer: str) -> float:
    predicted, right = _cmrc_segments(prediction), _cmrc_segments(answer)
    shared = SequenceMatcher(None, predicted, right, autojunk=False).find_longest_match().size
    return _f1(shared, len(predicted), len(right))


def _without_chinese_punctuation(text: str) -> str:
    return text.lower().strip().translate(_CHINESE_PUNCTUATION)


def _cmrc_segments(text: str) -> list[str]:
    segments: list[str] = []
    for match in _CHINESE_OR_OTHER.finditer(_without_chinese_punctuation(text)):
        segments += [match[0]] if match[1] else _WORD_BREAKS.sub(r" \g<0> ", match[0]).split()
    return segments
