"""What a score does not tell: its interval, a baseline, every class, and the worst errors."""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from hf_electra_rtd.files import write_text, writing
from hf_electra_rtd.finetuning.data import Split
from hf_electra_rtd.finetuning.kinds import Kind
from hf_electra_rtd.finetuning.scores import CORRELATIONS, find_chunks, number_errors, tag_report
from hf_electra_rtd.records import finite


logger = logging.getLogger(__name__)

RESAMPLES, INTERVAL = 1000, (0.025, 0.975)
_SEED = 0  # one for all, so that models are compared on the same samples
_AT_ONCE = 2**22  # examples, in all samples that are scored together
_WORST, _MOST_DRAWN, _LONGEST = 10, 20, 300  # errors; classes in the picture; characters of a text to read


def write_report(
    directory: Path, name: str, kind: Kind, predictions: Sequence[Any], scores: dict[str, float], split: Split
) -> None:
    """Writes `report_<name>.json`, the same to read as `.txt`, and for up to 20 classes `confusion_<name>.png`;
    nothing where no example is labeled. Warns of a model that always predicts the same."""
    if not scores:
        return
    known = [row for row, reference in enumerate(kind.references(split.examples)) if reference is not None]
    examples, predicted = split.examples.select(known), [predictions[row] for row in known]
    right, metric, title = list(kind.references(examples)), kind.task.main_metric, f"{kind.task.title}, {name}"
    samples = resampled_scores(kind, metric, predicted, right)
    report = {
        **{"title": title, "metric": metric, "score": scores[metric], "examples": len(right)},
        "interval": np.quantile(samples, INTERVAL).tolist(),
        **_compared(kind, predicted, right),
        "errors": _worst_errors(kind, predicted, right, examples, known, split.probabilities),
        # For `compare`: the main score of each sample, and what the examples are.
        "resampled": samples.round(6).tolist(),
        "data": hashlib.sha256(json.dumps([list(examples["id"]), right]).encode()).hexdigest(),
    }
    report = finite(report)
    write_text(directory / f"report_{name}.json", json.dumps(report, ensure_ascii=False) + "\n")
    write_text(directory / f"report_{name}.txt", "\n\n".join(_to_read(report)) + "\n")
    if len(report.get("labels", range(_MOST_DRAWN + 1))) <= _MOST_DRAWN:
        _draw_confusion(report, directory / f"confusion_{name}.png")
    logger.info(next(_to_read(report)))
    flat, wanted = ([_shown(one) for one in _flat(kind, values)] for values in (predicted, right))
    is_regression = kind.task.kind == "regression"
    if np.ptp(flat) < np.ptp(wanted) / 100 if is_regression else len({*flat}) < 2 and flat != wanted:
        logger.warning(f"{title}: the model predicts nothing but {flat[0]!r}.")


# ---- Samples of the examples ----


def resampled_scores(kind: Kind, metric: str, predicted: Sequence[Any], right: Sequence[Any]) -> np.ndarray:
    """A score on each of 1,000 samples of the examples, drawn with replacement (the bootstrap). The samples depend on
    the number of examples only, so that the differences of two models' scores are paired."""
    generator, number = np.random.default_rng(_SEED), len(right)
    score = (_by_numbers if kind.task.kind == "regression" else _by_counts)(kind, metric, predicted, right)
    size = max(1, _AT_ONCE // number)
    sizes = [min(size, RESAMPLES - done) for done in range(0, RESAMPLES, size)]
    return np.concatenate([score(generator.integers(number, size=(size, number))) for size in sizes])


_Scorer = Callable[[np.ndarray], np.ndarray]  # from the examples of samples (samples, examples) to their scores


def _by_numbers(kind: Kind, metric: str, predicted: Sequence[float], right: Sequence[float]) -> _Scorer:
    """Correlations; 0 where one side is constant."""
    from scipy.stats import rankdata

    def score(drawn: np.ndarray) -> np.ndarray:
        sides = [np.asarray(values, dtype=np.float64)[drawn] for values in (predicted, right)]
        sides = [rankdata(values, axis=-1) for values in sides] if metric == "spearman" else sides
        x, y = (values - values.mean(-1, keepdims=True) for values in sides)
        return _ratio((x * y).sum(-1), np.sqrt((x * x).sum(-1) * (y * y).sum(-1)))

    return score


def _by_counts(kind: Kind, metric: str, predicted: Sequence[Any], right: Sequence[Any]) -> _Scorer:
    """Scores that are made from sums over examples: of how often each class is predicted and right, predicted, and
    right. An answer to a question is one that is as right as its own score says."""
    from scipy.sparse import csr_array

    entries: list[tuple[int, int, Any, float]] = []  # example, which of the three, class, number
    for row, (found, wanted) in enumerate(zip(predicted, right, strict=True)):
        if kind.task.kind == "question_answering":
            entries += [(row, 0, "", kind.score_labeled([found], [wanted])[metric]), (row, 1, "", 1), (row, 2, "", 1)]
            continue
        both = (found, wanted) if kind.task.kind == "tagging" else ([found], [wanted])
        in_chunks = kind.task.kind == "tagging" and metric != "accuracy"
        items: Any = [find_chunks(values) if in_chunks else set(enumerate(values)) for values in both]
        for column, chosen in enumerate((items[0] & items[1], *items)):
            entries += [(row, column, item[-1], 1) for item in chosen]
    if metric == "f1" and kind.task.kind == "classification":
        entries = [entry for entry in entries if entry[2] == kind.task.labels[1]]
    classes = {name: place for place, name in enumerate(dict.fromkeys([entry[2] for entry in entries] or [""]))}
    rows = [row for row, *_ in entries]
    columns = [column * len(classes) + classes[name] for _, column, name, _ in entries]
    counts = csr_array(([entry[3] for entry in entries], (rows, columns)), shape=(len(right), 3 * len(classes)))

    def score(drawn: np.ndarray) -> np.ndarray:
        places = drawn + len(right) * np.arange(len(drawn))[:, None]
        times = np.bincount(places.ravel(), minlength=drawn.size).reshape(drawn.shape)
        sums = np.asarray(times @ counts).reshape(len(drawn), 3, -1)
        both, ours, theirs = sums.transpose(1, 0, 2)  # (samples, classes) each
        if metric == "macro_f1":
            return _ratio(_ratio(2 * both, ours + theirs).sum(-1), (ours + theirs > 0).sum(-1))
        hits, predictions, references = sums.sum(-1).T
        if metric == "matthews":
            spread = [references**2 - (counts**2).sum(-1) for counts in (ours, theirs)]
            return _ratio(hits * references - (ours * theirs).sum(-1), np.sqrt(spread[0] * spread[1]))
        if metric == "f1":
            return _ratio(2 * hits, predictions + references)
        return _ratio(hits, predictions if metric == "precision" else references)

    return score


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.divide(numerator, denominator, out=np.zeros(denominator.shape), where=denominator > 0)


# ---- Baseline, classes and errors ----


def _flat(kind: Kind, values: Sequence[Any]) -> list[Any]:
    """The values; in tagging the tags of all sentences one after the other."""
    return [tag for tags in values for tag in tags] if kind.task.kind == "tagging" else list(values)


def _shown(prediction: Any) -> Any:
    return prediction["text"] if isinstance(prediction, dict) else prediction


def _compared(kind: Kind, predicted: Sequence[Any], right: Sequence[Any]) -> dict[str, Any]:
    """The score of always predicting the most frequent label or the mean; errors of numbers; of each class (in tagging
    of chunks) precision, recall, F1 and number, and which label (row) was taken for which (column)."""
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    task, flat = kind.task, _flat(kind, right)
    if task.kind == "question_answering":
        return {}
    is_regression, is_tagging = task.kind == "regression", task.kind == "tagging"
    constant = fmean(flat) if is_regression else Counter(flat).most_common(1)[0][0]
    always: list[Any] = [[constant] * len(tags) if is_tagging else constant for tags in right]
    score = 0.0 if task.main_metric in CORRELATIONS else kind.score_labeled(always, right)[task.main_metric]
    baseline = {"prediction": constant, "score": score}
    if is_regression:
        return {"baseline": {**baseline, **number_errors(always, right)}, **number_errors(predicted, right)}
    if is_tagging:
        classes = {name: values for name, values in tag_report(predicted, right).items() if name != "overall"}
    elif task.kind == "classification":
        columns = precision_recall_fscore_support(right, predicted, labels=task.labels, zero_division=0.0)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        names = ("precision", "recall", "f1-score", "support")
        classes = {name: dict(zip(names, row, strict=True)) for name, row in zip(task.labels, rows, strict=True)}
    else:
        return {"baseline": baseline}
    confusion = confusion_matrix(flat, _flat(kind, predicted), labels=task.labels).tolist()
    return {"baseline": baseline, "classes": classes, "labels": task.labels, "confusion": confusion}


def _worst_errors(
    kind: Kind, predicted: Sequence[Any], right: Sequence[Any], examples: Any, known: list[int], probabilities: Any
) -> list[dict[str, Any]]:
    """At most 10: those of the highest probability, the largest difference, or the most words."""
    pairs = list(zip(predicted, right, strict=True))
    if kind.task.kind == "question_answering":
        sizes = np.array([1 - kind.score_labeled([one], [other])[kind.task.main_metric] for one, other in pairs])
    elif kind.task.kind == "regression":
        sizes = np.abs(np.subtract(predicted, right))
    else:
        sizes = np.array([float(np.not_equal(one, other).sum()) for one, other in pairs])
    sure = None if probabilities is None else probabilities[known].max(axis=-1)
    sizes = sizes if sure is None else sizes * sure
    errors = []
    for row in np.argsort(-sizes, kind="stable")[:_WORST].tolist():
        if sizes[row] > 0:
            example = examples[row]
            texts = example.get("texts") or example.get("words") or [example["question"], example["context"]]
            error = {"id": example["id"], "label": right[row], "prediction": _shown(predicted[row])}
            error |= {} if sure is None else {"probability": float(sure[row])}
            error |= {"choices": example["choices"]} if "choices" in example else {}
            errors.append(error | {"text": (" " if "words" in example else " | ").join(texts)})
    return errors


# ---- To read ----


def _to_read(report: Mapping[str, Any]) -> Iterator[str]:
    """Paragraphs, the first one a line."""
    low, high = map(_percent, report["interval"])
    line = f"{report['title']}: {report['metric']} {_percent(report['score'])} (95 % interval {low} to {high})"
    baseline = report.get("baseline", {})
    if baseline:
        line += f", always {baseline['prediction']!r}: {_percent(baseline['score'])}"
    for name in ("mae", "rmse") if "mae" in report else ():
        line += f"; {name} {report[name]:.4g}, always the mean: {baseline[name]:.4g}"
    yield line
    if classes := report.get("classes"):
        rows = [[name, *(f"{round(value, 4):.9g}" for value in values.values())] for name, values in classes.items()]
        yield _table([["", "precision", "recall", "f1", "number"], *rows])
        rows = [[label, *row] for label, row in zip(report["labels"], report["confusion"], strict=True)]
        yield "Rows: the right label. Columns: the predicted one.\n" + _table([["", *report["labels"]], *rows])
    for error in report["errors"]:
        sure = f" ({_percent(error['probability'])} %)" if "probability" in error else ""
        choices = "".join(f"\n    {place}: {text}" for place, text in enumerate(error.get("choices", ())))
        head = f"{error['id']}: {error['prediction']}{sure}, right: {error['label']}"
        yield f"{head}\n    {error['text'][:_LONGEST]}{choices}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


def _table(rows: Sequence[Sequence[Any]]) -> str:
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.rjust, row, widths)) for row in cells)


def _draw_confusion(report: Mapping[str, Any], path: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay

    # Labels are no formulas.
    with writing(path) as partial, rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a font has not all characters
        side = 3 + 0.5 * len(report["labels"])
        figure = Figure(figsize=(side, side), dpi=110, layout="constrained")
        display = ConfusionMatrixDisplay(np.array(report["confusion"]), display_labels=report["labels"])
        display.plot(ax=figure.subplots(), cmap="Blues", colorbar=False, xticks_rotation=90)
        figure.suptitle(report["title"])
        figure.savefig(partial, format="png", metadata={"Software": None})
