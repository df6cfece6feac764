"""Predictions as files: JSON lines for any task, and what the servers of GLUE and CLUE take, with its zip."""

from __future__ import annotations

import json
import logging
import os
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_electra_rtd.files import write_text, writing
from hf_electra_rtd.finetuning.data import Split
from hf_electra_rtd.finetuning.kinds.base import Prediction
from hf_electra_rtd.finetuning.scores import find_chunks
from hf_electra_rtd.records import finite
from hf_electra_rtd.tasks import BENCHMARKS, Task


logger = logging.getLogger(__name__)

_NO_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can hold


def write_predictions(path: str | os.PathLike[str], predictions: Sequence[Prediction], examples: Any) -> None:
    """Writes the predictions of a split as JSON lines: `id`, `prediction`, and `label` where it is known (for a
    question the texts of all right answers). Numbers that are not finite become null."""
    column = next(name for name in ("label", "answers", "tags") if name in examples.column_names)
    lines = []
    for prediction, identity, label in zip(predictions, examples["id"], examples[column], strict=True):
        known = {} if label is None else {"label": label}
        lines.append(_line(finite({"id": identity, "prediction": prediction, **known})))
    write_text(path, "".join(lines))


def write_submission(
    task: Task, split: str, predictions: Sequence[Prediction], data: Split, directory: str | os.PathLike[str]
) -> Path | None:
    """Writes the file that the benchmark's server takes for a test split, and returns its path. Nothing is written
    where no server takes the split, and, with a warning, where examples were skipped: the lines would not be those of
    the test set.

    CLUE 1.1 replaced the test sets of TNEWS, CLUEWSC2020, C3 and ChID, and files are named after the version: the one
    whose test set has as many examples, else 1.1. The number does not tell the versions of TNEWS and ChID apart:
    rename the file for their old test sets.
    """
    counts = task.submission.get(split)
    if not counts:
        return None
    examples, (newest, *_) = data.examples, counts
    name = next((name for name, count in counts.items() if count == len(examples)), newest)
    if data.skipped:
        logger.warning(
            f"{task.title}: {name} is not written, because {data.skipped:,} examples of {split} were skipped. Correct "
            "these examples."
        )
        return None
    path = Path(directory) / name
    write_text(path, _format(task, predictions, examples))
    return path


def _format(task: Task, predictions: Sequence[Prediction], examples: Any) -> str:
    """The text of a server's file. GLUE: https://gluebenchmark.com/faq. CLUE: its description of submissions, as of 4
    September 2021."""
    ids = examples["id"]
    match task.submission_format:
        case "index":
            cells = [str(task.labels.index(prediction)) for prediction in predictions]
        case "label":
            cells = list(predictions)
        case "number":
            cells = [f"{min(5.0, max(0.0, number)):.3f}" for number in predictions]
        case "lines":
            pairs = zip(ids, predictions, strict=True)
            return "".join(_line({"id": _number(identity), "label": str(label)}) for identity, label in pairs)
        case "entities":
            rows = zip(ids, examples["words"], predictions, strict=True)
            return "".join(_line(_entities(identity, words, tags)) for identity, words, tags in rows)
        case "answers":
            answers = [prediction["text"] for prediction in predictions]
            return json.dumps(dict(zip(ids, answers, strict=True)), ensure_ascii=False, indent=2)
        case _:  # "choices"
            return json.dumps(dict(zip(ids, predictions, strict=True)), ensure_ascii=False, indent=2)
    return "".join(["index\tprediction\n", *(f"{index}\t{cell}\n" for index, cell in enumerate(cells))])


def _entities(identity: str, words: Sequence[str], tags: Sequence[str]) -> dict[str, Any]:
    """CLUENER: from type to entity to spans, the last character included."""
    found: dict[str, dict[str, list[list[int]]]] = {}
    for start, end, kind in sorted(find_chunks(tags)):
        found.setdefault(kind, {}).setdefault("".join(words[start:end]), []).append([start, end - 1])
    return {"id": _number(identity), "text": "".join(words), "label": found}


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def _number(identity: str) -> int | str:
    """CLUE's test files number their examples."""
    return int(identity) if re.fullmatch(r"0|[1-9][0-9]*", identity) else identity


def zip_submission(benchmark: str, directory: str | os.PathLike[str]) -> Path:
    """Zips what `write_submission` wrote, and warns of what the server would refuse: missing files (GLUE needs all
    eleven, CLUE takes any) and files with too many or too few examples.

    The same files make the same zip, byte for byte (with one version of zlib). CLUE asks for it to be renamed to
    `submit_TEAM_DATE.zip`.

    The zip is `<benchmark>_submission.zip` in the same directory.

    Raises:
        ValueError: if there is no file to submit.
    """
    directory = Path(directory)
    paths, missing = [], []
    for counts in (counts for task in BENCHMARKS[benchmark] for counts in task.submission.values()):
        there = [directory / name for name in counts if (directory / name).exists()]
        paths += there
        missing += [] if there else [" or ".join(counts)]
        for path in there:
            count, expected = path.read_bytes().count(b"\n") - (path.suffix == ".tsv"), counts[path.name]
            if expected and count != expected:
                wrong = f"{path.name} has {count:,} examples, but the test set has {expected:,}"
                logger.warning(f"{wrong}: the server will refuse it.")
    if not paths:
        raise ValueError(f"{directory} holds no predictions for the server of {benchmark}.")
    if missing:
        needed = "The server needs all of them" if benchmark == "glue" else "The server accepts that"
        logger.warning(f"The submission to {benchmark} lacks {', '.join(missing)}. {needed}.")
    target = directory / f"{benchmark}_submission.zip"
    with writing(target) as partial, zipfile.ZipFile(partial, "w") as archive:
        for path in sorted(paths):
            entry = zipfile.ZipInfo(path.name, _NO_DATE)
            entry.create_system, entry.external_attr = 3, 0o644 << 16  # the same from every system
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)
    return target
