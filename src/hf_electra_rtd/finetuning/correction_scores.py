"""Scores of spelling correction: three families of metrics, which share names and must never be mixed.

A sentence is wrong if its source differs from its reference, and flagged if its source differs from its prediction.
Detection compares the positions of changes; correction also compares the new parts. A source, its prediction and its
reference have equally many parts (`data.units.align`: characters of Chinese, else words).

`bakeoff`: the sentence metrics of the SIGHAN bake-offs (Wu et al. 2013; Yu et al. 2014; Tseng et al. 2015). A hit is a
wrong sentence whose changes are exactly the right ones. A false positive is a flagged sentence *that is right*, so a
wrong sentence that is changed wrongly costs recall alone. `accuracy` is a share of all sentences, the false positive
rate a share of the right ones.

`sentence`: the sentence metrics of papers since 2020 (FASPell, ReaLiSe). Hits are the same, and precision is over
*all* flagged sentences.

`character`: precision is over all changes, recall over all wrong characters. Some papers compute precision and recall
of correction over detected characters only, which gives far higher numbers; these are not computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from hf_electra_rtd.base.files import reading
from hf_electra_rtd.base.tasks import Task
from hf_electra_rtd.data.units import align
from hf_electra_rtd.finetuning.reading import make_examples, read_rows
from hf_electra_rtd.finetuning.scores import ratio


FAMILIES = ("bakeoff", "sentence", "character")
LEVELS = ("detection", "correction")
# The references of SIGHAN 2013 have many wrong 地 and 得, so papers since ReaLiSe undo all changes to these two.
SIGHAN13 = "地得"


def read_pairs(path: str) -> tuple[list[str], list[str]]:
    """Reads the columns `text` and `right` of a table: sentences, and the same sentences without errors. Raises
    ValueError for a file that cannot be read or lacks a column, and for a pair without a `right` sentence or with
    different numbers of parts."""
    task = Task("pairs", path, kind="correction", columns=("text",), label_column="right")
    with reading(path):
        examples = list(make_examples(task, "train", read_rows(task, "train", path)))
    sources = [example["texts"][0] for example in examples]
    rights = [example["label"] for example in examples]
    if None in rights:
        raise ValueError(f"{path}: pair {rights.index(None) + 1} has no `right` sentence.")
    return sources, rights


def _find_changes(source: str, other: str) -> dict[int, str]:
    """Maps the position of each part of the source that another text changes to the new part."""
    return {place: new for place, (old, new) in enumerate(align(source, other)) if old != new}


def score_correction(
    sources: Sequence[str], predictions: Sequence[str], references: Sequence[str], ignored: str = ""
) -> dict[str, float]:
    """Returns the scores of corrected sentences by family, level and name (`sentence_correction_f1`), the counts
    behind them, and the `false_positive_rate`: the share of right sentences that were flagged. A ratio with
    denominator 0 is 0.

    Changes to `ignored` parts (`SIGHAN13`) are undone first. Raises ValueError if the numbers of sentences differ, or
    if a prediction or a reference does not have as many parts as its source.
    """
    hits = {family: dict.fromkeys(LEVELS, 0) for family in ("sentence", "character")}
    wrong = flagged = false_positives = changed_parts = wrong_parts = 0
    for row, (source, prediction, reference) in enumerate(zip(sources, predictions, references, strict=True), 1):
        try:
            right = _find_changes(source, reference)
            made = _find_changes(source, prediction)
        except ValueError as error:
            raise ValueError(f"Sentence {row}: {error}") from error
        made = {place: new for place, new in made.items() if new not in ignored}
        wrong += bool(right)
        flagged += bool(made)
        false_positives += bool(made) and not right
        wrong_parts += len(right)
        changed_parts += len(made)
        hits["sentence"]["detection"] += bool(right) and made.keys() == right.keys()
        hits["sentence"]["correction"] += bool(right) and made == right
        hits["character"]["detection"] += len(made.keys() & right.keys())
        hits["character"]["correction"] += len(made.items() & right.items())
    clean = len(sources) - wrong
    scores: dict[str, float] = {"sentences": len(sources), "wrong_sentences": wrong, "flagged_sentences": flagged}
    scores |= {"false_positives": false_positives, "wrong_parts": wrong_parts, "changed_parts": changed_parts}
    scores["false_positive_rate"] = ratio(false_positives, clean)
    for family, level in product(FAMILIES, LEVELS):
        hit: int = hits["character" if family == "character" else "sentence"][level]
        made_by = {"bakeoff": hit + false_positives, "sentence": flagged, "character": changed_parts}[family]
        asked = wrong_parts if family == "character" else wrong
        values = {"precision": ratio(hit, made_by), "recall": ratio(hit, asked)}
        values |= {"f1": ratio(2 * hit, made_by + asked), "hits": hit}
        if family == "bakeoff":
            values["accuracy"] = ratio(hit + clean - false_positives, len(sources))
        scores |= {f"{family}_{level}_{name}": value for name, value in values.items()}
    return scores


def describe_scores(scores: Mapping[str, float]) -> str:
    """Formats the scores as a table for readers, in percent."""
    lines = [
        f"{scores['sentences']:,} sentences, {scores['wrong_sentences']:,} of them wrong; "
        f"{scores['flagged_sentences']:,} flagged, {scores['false_positives']:,} of them right: "
        f"false positive rate {100 * scores['false_positive_rate']:.1f} %",
        f"{'':22}{'precision':>10}{'recall':>8}{'F1':>8}{'hits':>8}",
    ]
    for family, level in product(FAMILIES, LEVELS):
        names = (f"{family}_{level}_{name}" for name in ("precision", "recall", "f1", "hits"))
        precision, recall, f1, hits = (scores[name] for name in names)
        shares = f"{100 * precision:>10.1f}{100 * recall:>8.1f}{100 * f1:>8.1f}"
        lines.append(f"{family:10} {level:11}{shares}{hits:>8,}")
    return "\n".join(lines)
