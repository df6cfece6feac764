"""What a report adds to a score: its interval, a baseline, scores of each class, and the worst errors."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import rankdata

from hf_electra_rtd.base.files import write_text
from hf_electra_rtd.finetuning.data import Split
from hf_electra_rtd.finetuning.kinds import Kind


logger = logging.getLogger(__name__)

RESAMPLES = 1000  # for scores that are means over examples
SLOW_RESAMPLES = 300  # for other scores, which are computed anew for each sample
INTERVAL = (0.025, 0.975)
_SEED = 0  # always the same, so that models are compared on the same samples
_WORST = 10  # errors
_LONGEST = 300  # characters of a text that are shown
_IN_RECORD = ("interval", "baseline", "constant_prediction", "mae", "rmse", "classes", "data")
_CORRELATIONS = ("matthews", "pearson", "spearman")


def write_report(
    directory: Path, name: str, kind: Kind, predictions: Sequence[Any], scores: dict[str, float], split: Split
) -> dict[str, dict[str, Any]]:
    """Writes `report_<name>.json` and the same for readers as `.txt`, and returns the parts that the record holds,
    under the split's name. Warns of a model that always predicts the same. If no example is labeled, writes nothing
    and returns an empty dict."""
    if not scores:
        return {}
    known = [row for row, reference in enumerate(kind.references(split.examples)) if reference is not None]
    examples = split.examples.select(known)
    predicted = [predictions[row] for row in known]
    right = list(kind.references(examples))
    metric = kind.task.main_metric
    title = f"{kind.task.title}, {name}"
    samples = resampled_scores(kind, predicted, right)
    shares = None if split.probabilities is None else [split.probabilities[row] for row in known]
    constant = _constant_prediction(kind, predicted, right)
    report = {
        "title": title,
        "metric": metric,
        "score": scores[metric],
        "examples": len(right),
        "interval": np.quantile(samples, INTERVAL).tolist(),
        **compared(kind, predicted, right),
        **constant,
        "errors": list(_worst_errors(kind, predicted, right, examples, shares)),
        # For `compare`: the main score on each sample, and a hash of the examples that were scored.
        "resampled": samples.round(6).tolist(),
        "data": hashlib.sha256(json.dumps(examples.remove_columns("id")[:]).encode()).hexdigest(),
    }
    write_text(directory / f"report_{name}.json", json.dumps(report, ensure_ascii=False) + "\n")
    paragraphs = list(_to_read(report))
    write_text(directory / f"report_{name}.txt", "\n\n".join(paragraphs) + "\n")
    logger.info(paragraphs[0])
    for value in constant.values():
        logger.warning(f"{title}: the model predicts nothing but {_shown(value)}.")
    return {name: {key: report[key] for key in _IN_RECORD if key in report}}


def _constant_prediction(kind: Kind, predicted: Sequence[Any], right: Sequence[Any]) -> dict[str, Any]:
    """`constant_prediction`, if the model always predicts the same although that is not always right (numbers: if they
    span less than 1 % of the range of the labels); else an empty dict."""
    ours = _flat(kind, predicted)
    theirs = _flat(kind, right)
    if kind.task.kind == "regression":
        is_constant = np.ptp(ours) < np.ptp(theirs) / 100
    else:
        is_constant = all(value == ours[0] for value in ours) and bool(_errors(kind, predicted, right).any())
    return {"constant_prediction": ours[0]} if is_constant else {}


def resampled_scores(kind: Kind, predicted: Sequence[Any], right: Sequence[Any]) -> np.ndarray:
    """Returns the main score on samples of the examples, drawn with replacement (the bootstrap). The samples depend
    only on the number of examples, so that the scores of two models can be compared sample by sample."""
    generator = np.random.default_rng(_SEED)
    number = len(right)
    metric = kind.task.main_metric
    is_mean = kind.task.kind == "question_answering" or (metric == "accuracy" and kind.task.kind != "tagging")
    samples = (generator.integers(number, size=number) for _ in range(RESAMPLES if is_mean else SLOW_RESAMPLES))
    if is_mean:
        hits = 1 - _errors(kind, predicted, right)
        return np.array([hits[rows].mean() for rows in samples])
    scores = (kind.score_labeled([predicted[row] for row in rows], [right[row] for row in rows]) for rows in samples)
    return np.array([of_sample[metric] for of_sample in scores])


def _errors(kind: Kind, predicted: Sequence[Any], right: Sequence[Any]) -> np.ndarray:
    """The error of each prediction: the difference of numbers or, for embeddings, of ranks; the number of wrong tags;
    1 minus the score of an answer; or 1 if it is wrong and 0 if it is right."""
    if kind.task.kind == "embedding":  # cosines and labels are comparable by their order only
        predicted = list(rankdata(predicted))
        right = list(rankdata(right))
    if kind.task.kind in ("regression", "embedding"):
        return np.abs(np.subtract(predicted, right))
    pairs = zip(predicted, right, strict=True)
    if kind.task.kind == "tagging":
        return np.array([float(np.not_equal(tags, right_tags).sum()) for tags, right_tags in pairs])
    if kind.task.kind == "question_answering":
        metric = kind.task.main_metric
        return np.array([1 - kind.score_labeled([answer], [answers])[metric] for answer, answers in pairs])
    pairs = zip(_flat(kind, predicted), _flat(kind, right), strict=True)
    return np.array([float(value != right_value) for value, right_value in pairs])


def _flat(kind: Kind, values: Sequence[Any]) -> list[Any]:
    """One value for each example; in tagging, a single list of the tags of all sentences."""
    if kind.task.kind == "tagging":
        return [tag for tags in values for tag in tags]
    if kind.task.kind == "multi_label":
        return list(map(tuple, values))
    return [value["text"] if isinstance(value, dict) else value for value in values]


def compared(kind: Kind, predicted: Sequence[Any], right: Sequence[Any]) -> dict[str, Any]:
    """Returns the `baseline`, which always predicts the most frequent label or the mean, with its score; for numbers,
    the mean absolute error and the root mean squared error; for labels, the precision, recall, F1 and number of each
    class (in tagging, of each type of chunk), and the confusion matrix (rows: right labels; columns: predicted
    labels), unless an example can have several labels. Empty for answers, corrections and embeddings."""
    from sklearn.metrics import classification_report, confusion_matrix, mean_absolute_error, root_mean_squared_error

    task = kind.task
    flat = _flat(kind, right)
    if task.kind in ("question_answering", "correction", "embedding"):
        return {}
    constant = fmean(right) if task.kind == "regression" else Counter(flat).most_common(1)[0][0]
    always: list[Any] = [[constant] * len(value) if task.kind == "tagging" else constant for value in right]
    baseline = {"prediction": constant, "score": kind.score_labeled(always, right)[task.main_metric]}
    if task.kind == "regression":
        errors: dict[str, Any] = {"mae": mean_absolute_error, "rmse": root_mean_squared_error}
        baseline |= {name: float(error(right, always)) for name, error in errors.items()}
        return {"baseline": baseline, **{name: float(error(right, predicted)) for name, error in errors.items()}}
    if not task.labels:
        return {"baseline": baseline}
    if kind.report is not None:
        classes = kind.report(predicted, right)[0]
    else:
        places = range(len(task.labels))  # not names, because a label may have the name of an average
        options: dict[str, Any] = {"labels": task.labels, "target_names": places, "zero_division": 0.0}
        by_place = classification_report(right, predicted, output_dict=True, **options)
        classes = {label: by_place[place] for place, label in enumerate(task.labels)}
    if task.kind == "multi_label":
        return {"baseline": baseline, "classes": classes}
    confusion = confusion_matrix(flat, _flat(kind, predicted), labels=task.labels).tolist()
    return {"baseline": baseline, "classes": classes, "labels": task.labels, "confusion": confusion}


def _worst_errors(
    kind: Kind, predicted: Sequence[Any], right: Sequence[Any], examples: Any, shares: Sequence[Any] | None
) -> Iterator[dict[str, Any]]:
    """Yields at most 10 errors: those with the highest probability, the largest difference, or the most wrong words.
    `shares` are the probabilities of each example."""
    sizes = _errors(kind, predicted, right)
    sure = None
    if shares is not None and kind.task.kind == "multi_label":
        sizes = np.array([_wrong_share(kind, *pair) for pair in zip(shares, right, strict=True)])
    elif shares is not None and kind.task.kind in ("classification", "multiple_choice"):
        sure = np.array([max(of_example) for of_example in shares])
        sizes = sizes * sure
    between = " " if kind.task.kind == "tagging" else " | "
    for row in np.argsort(-sizes, kind="stable")[: min(_WORST, np.count_nonzero(sizes))].tolist():
        example = examples[row]
        prediction = predicted[row]
        texts = example.get("texts") or [example["question"], example["context"], *example.get("choices", ())]
        error = {
            "id": example["id"],
            "label": right[row],
            "prediction": prediction["text"] if isinstance(prediction, dict) else prediction,
        }
        if sure is not None:
            error["probability"] = float(sure[row])
        yield error | {"text": between.join(texts)}


def _wrong_share(kind: Kind, shares: np.ndarray, right: Sequence[str]) -> float:
    """For several labels: the model's confidence in its wrong decisions, summed over the labels."""
    is_right = np.isin(kind.task.labels, right)
    return float(np.abs(shares - is_right)[(shares > 0.5) != is_right].sum())


def _to_read(report: Mapping[str, Any]) -> Iterator[str]:
    """The paragraphs of the report for readers; the first one is a single line."""

    def score(value: float) -> str:
        return f"{value:.3f}" if report["metric"] in _CORRELATIONS else f"{value:.1%}"

    low, high = report["interval"]
    line = f"{report['title']}: {report['metric']} {score(report['score'])} "
    line += f"(95% interval {score(low)} to {score(high)})"
    baseline = report.get("baseline", {})
    if baseline:
        line += f"; always {_shown(baseline['prediction'])} would score {score(baseline['score'])}"
    for name in ("mae", "rmse") if "mae" in report else ():
        line += f"; {name} {report[name]:.4g}, always the mean: {baseline[name]:.4g}"
    yield line
    if classes := report.get("classes"):
        rows = [[name, *(f"{round(value, 4):.9g}" for value in values.values())] for name, values in classes.items()]
        yield _table([["", "precision", "recall", "f1", "number"], *rows])
    if "confusion" in report:
        rows = [[label, *row] for label, row in zip(report["labels"], report["confusion"], strict=True)]
        yield "Rows: the right label. Columns: the predicted one.\n" + _table([["", *report["labels"]], *rows])
    errors = report["errors"]
    if errors:
        sure = " (its probability)" if "probability" in errors[0] else ""
        yield f"The worst errors: id, prediction{sure}, right label; then the text."
    for error in errors:
        sure = f" ({error['probability']:.1%})" if "probability" in error else ""
        head = f"{error['id']}: {_shown(error['prediction'])}{sure}, right: {_shown(error['label'])}"
        yield f"{head}\n    {error['text'][:_LONGEST]}"


def _shown(value: Any) -> str:
    """A prediction or a label, formatted for readers."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(repr, value)) or "no label"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def _table(rows: Sequence[Sequence[Any]]) -> str:
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.rjust, row, widths)) for row in cells)
