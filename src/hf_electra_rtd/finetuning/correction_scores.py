"""Scores of spelling correction: three families of metrics, which share names and must never be mixed.

A sentence is wrong if its source differs from its reference, and flagged if it differs from its prediction. Detection
compares the places that were changed, correction the places and what stands there. A source, its prediction and its
reference have equally many parts (`data.units.align`: characters of Chinese, else words).

`bakeoff`: the sentences of the SIGHAN bake-offs (Wu et al. 2013; Yu et al. 2014; Tseng et al. 2015). A hit is a wrong
sentence whose changes are exactly the right ones. False positives are flagged sentences *that are right*: a wrong one
that is changed wrongly costs recall alone. `accuracy` is of all sentences, the false positive rate of right ones.

`sentence`: those of papers since 2020 (FASPell, ReaLiSe). The same hits, with precision over *all* flagged ones.

`character`: precision over all changes, recall over all wrong characters. Some papers take precision and recall of
correction over detected characters only, which gives far higher numbers; these are not computed here.
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
# SIGHAN 2013 leaves many wrong 地 and 得 in its references: papers since ReaLiSe take back what was changed to them.
SIGHAN13 = "地得"


def read_pairs(path: str) -> tuple[list[str], list[str]]:
    """The columns `text` and `right` of a table: sentences, and the same without errors. ValueError for a file that
    cannot be read or has other columns, and for a pair of which one has more parts."""
    task = Task("pairs", path, kind="correction", columns=("text",), label_column="right")
    with reading(path):
        examples = list(make_examples(task, "train", read_rows(task, "train", path)))
    sources = [example["texts"][0] for example in examples]
    rights = [example["label"] for example in examples]
    if None in rights:
        raise ValueError(f"{path}: pair {rights.index(None) + 1} has no `right` sentence.")
    return sources, rights


def _find_changes(source: str, other: str) -> dict[int, str]:
    """What another text has in place of parts of the source, by their places."""
    return {place: new for place, (old, new) in enumerate(align(source, other)) if old != new}


def score_correction(
    sources: Sequence[str], predictions: Sequence[str], references: Sequence[str], ignored: str = ""
) -> dict[str, float]:
    """Scores of corrected sentences by family, level and name (`sentence_correction_f1`), with the counts that they
    are made of, and the `false_positive_rate`: the share of right sentences that were flagged. What has nothing to
    divide by is 0.

    Changes to `ignored` parts (`SIGHAN13`) are taken back before. Raises ValueError for numbers of sentences that
    differ, and for texts of which one has more parts.
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
    """The scores as a table to read, in per cent."""
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
