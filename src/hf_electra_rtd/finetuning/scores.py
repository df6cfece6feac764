"""Scores of predictions as fractions or correlations: 1 is perfect."""

from __future__ import annotations

import contextlib
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


METRICS: Mapping[str, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1", "f1", "matthews"),
    "multi_label": ("micro_f1", "macro_f1", "accuracy"),
    "regression": ("pearson", "spearman"),
    "embedding": ("spearman", "pearson"),
    "multiple_choice": ("accuracy",),
    "question_answering": ("exact_match", "f1"),
    "tagging": ("f1", "precision", "recall", "macro_f1", "accuracy"),
    "correction": (
        "sentence_correction_f1",
        "bakeoff_correction_f1",
        "character_correction_f1",
        "false_positive_rate",
        "sentence_detection_f1",
        "bakeoff_detection_f1",
        "character_detection_f1",
        "sentence_correction_precision",
        "sentence_correction_recall",
        "bakeoff_correction_accuracy",
    ),
}


# ---- Labels and numbers ----


def score_labels(
    metrics: Sequence[str], predictions: Sequence[Any], references: Sequence[Any], labels: Sequence[Any] = ()
) -> dict[str, float]:
    """Returns the scores of labels or of numbers, one for each example. `labels` are all labels in the task's order;
    of two labels, the second is the positive one of `f1`. `macro_f1` is the mean over the labels that occur among
    references or predictions. If references or predictions are constant, `matthews`, `pearson` and `spearman` are 0.
    """
    from scipy import stats
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

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
    scores = dict.fromkeys(metrics, 0.0)
    is_constant = any(len(set(column)) == 1 for column in columns)
    for name in metrics:
        if not (is_constant and name in ("matthews", "pearson", "spearman")):
            with warnings.catch_warnings(), contextlib.suppress(stats.NearConstantInputWarning):
                warnings.simplefilter("error", stats.NearConstantInputWarning)  # if numbers differ by rounding only
                scores[name] = float(functions[name](*columns))
    return scores


# ---- Sets of labels, and tags ----

Report = tuple[dict[str, dict[str, float]], dict[str, float]]


def label_report(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Report:
    """Returns two dicts of scores for examples with any number of labels. The first has `precision`, `recall`, `f1`
    and `number` (of references) of each label that occurs among references or predictions. The second has the same of
    all labels of all examples together, with `micro_f1` (equal to `f1`), `macro_f1` (the mean over the labels) and
    `accuracy` (the share of examples with exactly the right labels). A ratio with denominator 0 is 0."""
    pairs = [(set(predicted), set(right)) for predicted, right in zip(predictions, references, strict=True)]
    items = [({(label,) for label in predicted}, {(label,) for label in right}) for predicted, right in pairs]
    return _report(items, [predicted == right for predicted, right in pairs])


def tag_report(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> Report:
    """Does the same as `label_report` for the chunks (entities, phrases) in sequences of BIO tags, by the rules of
    `conlleval` (CoNLL-2000): a chunk is right if its first word, its last word and its type are right. `macro_f1` is
    the mean over the types, as in CLUENER 2020; `accuracy` is the share of words with the right tag. Raises ValueError
    for a tag that is not BIO."""
    sentences = list(zip(predictions, references, strict=True))
    hits = [tag == other for sentence in sentences for tag, other in zip(*sentence, strict=True)]
    return _report([(find_chunks(predicted), find_chunks(right)) for predicted, right in sentences], hits)


def _report(pairs: Sequence[tuple[set[Any], set[Any]]], hits: Sequence[bool]) -> Report:
    """The report from the predicted and the right items of each example, which are tuples with the type as last entry.
    `accuracy` is the share of `hits`."""
    counts = [Counter[str](), Counter[str](), Counter[str]()]  # by type: predicted, right, both
    for predicted_items, right_items in pairs:
        both_items = predicted_items & right_items
        for counter, items in zip(counts, (predicted_items, right_items, both_items), strict=True):
            counter.update(item[-1] for item in items)

    def values(predicted: int, right: int, both: int) -> dict[str, float]:
        f1 = ratio(2 * both, predicted + right)
        return {"precision": ratio(both, predicted), "recall": ratio(both, right), "f1": f1, "number": right}

    report = {kind: values(*(counter[kind] for counter in counts)) for kind in sorted(counts[0] | counts[1])}
    overall = values(*(counter.total() for counter in counts))
    overall |= {"micro_f1": overall["f1"], "accuracy": ratio(sum(hits), len(hits))}
    return report, overall | {"macro_f1": ratio(math.fsum(of_type["f1"] for of_type in report.values()), len(report))}


def find_chunks(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """Returns the chunks in BIO tags, each as its first word, the word after its last one, and its type. As in
    `conlleval`, a chunk begins at `B-`, and also at an `I-` that follows `O`, the beginning of the sentence or another
    type. It continues as long as `I-` of its type follows. Raises ValueError for a tag that is not `O`, `B-TYPE` or
    `I-TYPE`."""
    chunks: set[tuple[int, int, str]] = set()
    start = 0  # start of the open chunk
    inside = None  # type of the open chunk
    for place, tag in enumerate([*tags, "O"]):
        prefix, hyphen, kind = tag.partition("-")
        if tag != "O" and not (prefix in ("B", "I") and hyphen):
            raise ValueError(f"Word {place}: {tag!r} is not a BIO tag (O, B-TYPE or I-TYPE).")
        if prefix == "I" and kind == inside:
            continue
        if inside is not None:
            chunks.add((start, place, inside))
        start = place
        inside = None if tag == "O" else kind
    return chunks


# ---- Answers to questions about a context ----

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_KOREAN_SPACES = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))  # noqa: RUF001

# The characters that `cmrc2018_evaluate.py` removes. Its list holds "……", which never equals a single character, so
# that "…" stays.
_CHINESE_PUNCTUATION = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")  # noqa: RUF001
_CHINESE_OR_OTHER = re.compile(r"([\u4e00-\u9fa5])|[^\u4e00-\u9fa5]+")
# Where `nltk.word_tokenize` (Penn Treebank) splits text without Chinese characters, besides at spaces.
_WORD_BREAKS = re.compile(
    r"""[;@\#$%&?!*\[\](){}<>"«»“”‘’„‒-―]   # stand alone
    | \.{2,} | \.(?=[\])}>"'»”’\s]*$)       # an ellipsis; the last full stop, also before closing quotes
    | [,:](?!\d)                            # not inside 1,000 or 3:2
    | (?<=\w)'(?:s|m|d|ll|re|ve)\b | (?<=\w)n't\b | '(?=\s|$)
    """,  # noqa: RUF001
    re.VERBOSE,
)


def score_answers(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], language: str = "en"
) -> dict[str, float]:
    """Returns `exact_match` and `f1`, means over the questions. The rules are those of SQuAD 1.1 (its
    `evaluate-v1.1.py`); for Chinese (`zh`), those of CMRC 2018 (ymcui/cmrc2018, `cmrc2018_evaluate.py`), by which DRCD
    is scored, too; for Korean (`ko`), those of KorQuAD 1.0 (its `evaluate-v1.0.py`).

    A prediction gets the best of its scores against each answer. SQuAD compares texts in lower case, without ASCII
    punctuation, without the words a, an and the, and with single spaces; F1 is over words. CMRC compares texts in
    lower case and without punctuation. For F1, it splits texts into single Chinese characters (U+4E00 to U+9FA5) and
    the words between them; the overlap of two texts is their longest common run of these, without gaps. The script
    splits words by `nltk.word_tokenize`. Here, its rules (Penn Treebank) are followed as far as answers need them,
    without its list of abbreviations and its rarer contractions (`cannot`, `gonna`). KorQuAD compares texts as SQuAD
    does, but keeps a, an and the, and reads quotes and brackets as spaces; F1 is over characters other than spaces, in
    any order.

    Raises ValueError for a question without an answer.
    """
    if not all(answers):
        raise ValueError("A question has no answer. Score unanswerable questions by the rules of SQuAD 2.0.")
    return {name: fmean(values) for name, values in _score_each(predictions, answers, language).items()}


def score_squad_v2(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], language: str = "en"
) -> dict[str, float]:
    """Returns exact match and F1 by the rules of SQuAD 2.0 (its `evaluate-v2.0.py`). They are those of
    `score_answers`, except that the empty text is right for a question without answers.

    Returns:
        `exact_match` and `f1`; the same of the questions with an answer (`has_answer_f1`, ...) and of those without
        (`no_answer_f1`, ...), if there are any. All are fractions.
    """
    normalized = _NORMALIZED.get(language, _squad_normalized)
    golds = [list(filter(normalized, texts)) or [""] for texts in answers]
    has_answer = np.array(list(map(bool, answers)))
    result: dict[str, float] = {}
    for name, values in _score_each(predictions, golds, language, f1_of_nothing=1.0).items():
        for prefix, rows in (("", has_answer | True), ("has_answer_", has_answer), ("no_answer_", ~has_answer)):
            if rows.any():
                result[prefix + name] = fmean(np.array(values)[rows])
    return result


def _score_each(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], language: str, f1_of_nothing: float = 0.0
) -> dict[str, list[float]]:
    """The best scores of each question. F1 is `f1_of_nothing` if nothing is left of both texts."""
    normalized = _NORMALIZED.get(language, _squad_normalized)

    def parts(text: str) -> list[str]:  # what F1 counts
        if language == "zh":
            return _chinese_parts(text)
        words = text.split()
        return list("".join(words)) if language == "ko" else words

    def score(prediction: str, answer: str) -> tuple[float, float]:
        predicted = parts(normalized(prediction))
        right = parts(normalized(answer))
        if language == "zh":
            shared = SequenceMatcher(None, predicted, right, autojunk=False).find_longest_match().size
        else:
            shared = (Counter(predicted) & Counter(right)).total()
        f1 = ratio(2 * shared, len(predicted) + len(right))
        is_same = normalized(prediction) == normalized(answer)
        return float(is_same), f1 if normalized(f"{prediction} {answer}") else f1_of_nothing

    best: dict[str, list[float]] = {"exact_match": [], "f1": []}
    for prediction, texts in zip(predictions, answers, strict=True):
        scores = [score(prediction, text) for text in texts]
        best["exact_match"].append(max(exact_match for exact_match, _ in scores))
        best["f1"].append(max(f1 for _, f1 in scores))
    return best


def _squad_normalized(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _korquad_normalized(text: str) -> str:
    return " ".join(text.translate(_KOREAN_SPACES).lower().translate(_PUNCTUATION).split())


def _cmrc_normalized(text: str) -> str:
    return text.lower().strip().translate(_CHINESE_PUNCTUATION)


_NORMALIZED = {"zh": _cmrc_normalized, "ko": _korquad_normalized}  # else `_squad_normalized`


def _chinese_parts(text: str) -> list[str]:
    """The single Chinese characters of a text, and the words between them."""
    parts: list[str] = []
    for match in _CHINESE_OR_OTHER.finditer(text):
        parts += [match[0]] if match[1] else _WORD_BREAKS.sub(r" \g<0> ", match[0]).split()
    return parts


def ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
