"""Predictions as files: JSON lines for any task, and the files for the servers of GLUE and CLUE, with their zip."""

from __future__ import annotations

import json
import logging
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_electra_rtd.base.files import write_text, writing
from hf_electra_rtd.base.records import finite
from hf_electra_rtd.base.tasks import BENCHMARKS, Task
from hf_electra_rtd.finetuning.data import Split
from hf_electra_rtd.finetuning.kinds.base import Prediction
from hf_electra_rtd.finetuning.scores import find_chunks


logger = logging.getLogger(__name__)


def write_predictions(
    path: str | os.PathLike[str], predictions: Sequence[Prediction], split: Split, labels: Sequence[str] = ()
) -> None:
    """Writes the predictions of a split as JSON lines: `id`; `prediction`; `probabilities` by label, if the task has
    one or several labels for a text; `label`, if it is known (for a question, the texts of all right answers); and the
    texts of the example. Numbers that are not finite become null."""
    lines = []
    for row, (prediction, example) in enumerate(zip(predictions, split.examples, strict=True)):
        line = {"id": example.pop("id"), "prediction": prediction}
        if isinstance(split.probabilities, np.ndarray):
            line["probabilities"] = dict(zip(labels, split.probabilities[row].tolist(), strict=True))
        label = example.pop("label")
        example.pop("starts", None)
        lines.append(_line(finite(line | ({} if label is None else {"label": label}) | example)))
    write_text(path, "".join(lines))


def write_submission(
    task: Task, split: str, predictions: Sequence[Prediction], data: Split, directory: str | os.PathLike[str]
) -> Path | None:
    """Writes the file that the benchmark's server (for CLUE, version 1.1) takes for a test split, and returns its
    path. Returns None if no server takes the split, and, with a warning, if examples were skipped, because the lines
    would not match the test set."""
    if split not in task.submission:
        return None
    name = task.submission[split][0]
    if data.skipped:
        logger.warning(f"{task.title}: {name} is not written, because {data.skipped:,} examples were skipped.")
        return None
    path = Path(directory) / name
    write_text(path, _format(task, predictions, data.examples))
    return path


def _format(task: Task, predictions: Sequence[Prediction], examples: Any) -> str:
    """The text of a server's file. GLUE: https://gluebenchmark.com/faq. CLUE: its description of submissions, as of 4
    September 2021."""
    form = task.submission_format
    ids = examples["id"]
    if task.benchmark == "glue":
        cells: dict[str, Callable[[Any], Any]] = {
            "index": task.labels.index,
            "label": str,
            "number": lambda number: f"{min(5.0, max(0.0, number)):.3f}",
        }
        lines = (f"{index}\t{cells[form](prediction)}\n" for index, prediction in enumerate(predictions))
        return "index\tprediction\n" + "".join(lines)
    if form in ("answers", "choices"):
        values = [prediction["text"] if form == "answers" else prediction for prediction in predictions]
        return json.dumps(dict(zip(ids, values, strict=True)), ensure_ascii=False, indent=2)
    if form == "entities":
        sentences = zip(examples["texts"], predictions, strict=True)
        rows = [{"text": "".join(words), "label": _entities(words, tags)} for words, tags in sentences]
    else:  # "lines"
        rows = [{"label": str(label)} for label in predictions]
    numbers = (int(identity) if identity.isdecimal() else identity for identity in ids)  # official ids are numbers
    return "".join(_line({"id": number, **row}) for number, row in zip(numbers, rows, strict=True))


def _entities(words: Sequence[str], tags: Sequence[str]) -> dict[str, dict[str, list[list[int]]]]:
    """CLUENER's format: types, then entities, then their spans, which include the last character."""
    entities: dict[str, dict[str, list[list[int]]]] = {}
    for start, end, kind in sorted(find_chunks(tags)):
        entities.setdefault(kind, {}).setdefault("".join(words[start:end]), []).append([start, end - 1])
    return entities


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def zip_submission(benchmark: str, directory: str | os.PathLike[str]) -> Path:
    """Zips the files of `write_submission` into `<benchmark>_submission.zip`, and returns its path. Warns of missing
    files (GLUE needs all eleven, CLUE takes any), and of files with too many or too few examples, which the server
    would refuse. CLUE asks for the name `submit_TEAM_DATE.zip`."""
    directory = Path(directory)
    target = directory / f"{benchmark}_submission.zip"
    expected = dict(file for task in BENCHMARKS[benchmark] for file in task.submission.values())
    if missing := [name for name in expected if not (directory / name).exists()]:
        needed = "The server needs all of them" if benchmark == "glue" else "The server accepts that"
        logger.warning(f"The submission to {benchmark} lacks {', '.join(missing)}. {needed}.")
    with writing(target) as partial, zipfile.ZipFile(partial, "w") as archive:
        for name in sorted(expected.keys() - missing):
            lines = (directory / name).read_bytes().count(b"\n") - name.endswith(".tsv")
            if expected[name] and lines != expected[name]:
                logger.warning(
                    f"{name} has {lines:,} examples, and the test set {expected[name]:,}: the server will refuse it."
                )
            archive.write(directory / name, name, zipfile.ZIP_DEFLATED)
    return target
