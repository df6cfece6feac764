"""Predictions as files: JSON lines for any task, and what the servers of GLUE and CLUE take, with its zip."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_electra_rtd.finetuning.examples import Example, QuestionExample, TaggedExample
from hf_electra_rtd.finetuning.kinds.base import Prediction
from hf_electra_rtd.finetuning.scores import find_chunks
from hf_electra_rtd.finetuning.tasks import Task
from hf_electra_rtd.records import finite, write_whole


logger = logging.getLogger(__name__)

Writer = Callable[[Sequence[Prediction], Sequence[Example]], str]

_NO_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can hold
_NAMED_LABELS = ("entailment", "neutral", "contradiction", "not_entailment")


def write_predictions(
    path: str | os.PathLike[str], predictions: Sequence[Prediction], examples: Sequence[Example]
) -> None:
    """Writes predictions of any task as JSON lines: `id`, `prediction`, and `label` where it is known (the texts of
    all right answers, for a question). Numbers that are not finite become null.

    Args:
        path: of the file.
        predictions: one an example.
        examples: that were predicted.
    """
    lines = []
    for prediction, example in zip(predictions, examples, strict=True):
        row = {"id": example.id, "prediction": prediction}
        label = _label(example)
        lines.append(_as_line(finite(row if label is None else {**row, "label": label})))
    write_whole(Path(path), "".join(lines))


def _label(example: Example) -> Any:
    if isinstance(example, QuestionExample):
        return None if example.answers is None else [answer.text for answer in example.answers]
    return example.tags if isinstance(example, TaggedExample) else example.label


@dataclass(frozen=True)
class _ServerFile:
    """A file that a server takes.

    Attributes:
        name: of the file; `{version}` is CLUE's, where the benchmark has replaced the test set.
        write: its text.
        rows: of the test set, by name of the file; a file that is not named, or has no lines, is not checked.
    """

    name: str
    write: Writer
    rows: Mapping[str, int] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """What it may be called, the newest version first."""
        return tuple(dict.fromkeys(self.name.format(version=version) for version in ("11", "10")))

    def name_for(self, num_rows: int) -> str:
        """Its name for a test set of so many rows: of CLUE 1.1, unless only the one of 1.0 has as many."""
        return next((name for name in self.names if self.rows.get(name) == num_rows), self.names[0])


def _glue_table(labels: Mapping[str, str]) -> Writer:
    """`index` and `prediction`: GLUE's own names of labels, by ours. The index is the place of the row."""

    def write(predictions: Sequence[Prediction], examples: Sequence[Example]) -> str:
        return _table([labels[prediction] for prediction in predictions])

    return write


def _glue_numbers(predictions: Sequence[Prediction], examples: Sequence[Example]) -> str:
    """STS-B: the server refuses what is not between 0 and 5."""
    for prediction, example in zip(predictions, examples, strict=True):
        if not math.isfinite(prediction):
            raise ValueError(f"Row {example.id}: the prediction is {prediction}, not a number that can be submitted.")
    return _table([f"{min(5.0, max(0.0, prediction)):.3f}" for prediction in predictions])


def _table(cells: Sequence[str]) -> str:
    return "".join(["index\tprediction\n", *(f"{index}\t{cell}\n" for index, cell in enumerate(cells))])


def _clue_lines(predictions: Sequence[Prediction], examples: Sequence[Example]) -> str:
    """A line a row, in the order of the test file: the server reads nothing but `label`, a string."""
    pairs = zip(predictions, examples, strict=True)
    return "".join(_as_line({"id": _number(example.id), "label": str(prediction)}) for prediction, example in pairs)


def _clue_answers(predictions: Sequence[Prediction], examples: Sequence[Example]) -> str:
    pairs = zip(predictions, examples, strict=True)
    return json.dumps({example.id: prediction["text"] for prediction, example in pairs}, ensure_ascii=False, indent=2)


def _clue_choices(predictions: Sequence[Prediction], examples: Sequence[Example]) -> str:
    """ChID: from the name of a blank to the index of its idiom."""
    pairs = zip(predictions, examples, strict=True)
    return json.dumps({example.id: prediction for prediction, example in pairs}, ensure_ascii=False, indent=2)


def _clue_entities(predictions: Sequence[Prediction], examples: Sequence[Example]) -> str:
    """CLUENER: from type to entity to spans, the last character included."""
    lines = []
    for tags, example in zip(predictions, examples, strict=True):
        assert isinstance(example, TaggedExample)
        found: dict[str, dict[str, list[list[int]]]] = {}
        for start, end, kind in sorted(find_chunks(tags)):
            text = "".join(example.words[start:end])
            found.setdefault(kind, {}).setdefault(text, []).append([start, end - 1])
        lines.append(_as_line({"id": _number(example.id), "text": "".join(example.words), "label": found}))
    return "".join(lines)


def _as_line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


def _number(identity: str) -> int | str:
    """CLUE's test files number their rows."""
    return int(identity) if re.fullmatch(r"0|[1-9][0-9]*", identity) else identity


_BY_NAME = _glue_table({label: label for label in _NAMED_LABELS})


def _glue(name: str, write: Writer, rows: int) -> _ServerFile:
    return _ServerFile(name, write, {name: rows})


def _clue(name: str, write: Writer = _clue_lines, **rows: int) -> _ServerFile:
    """Rows are of CLUE `v10` or `v11`, or of `both`."""
    versions = {"v10": "10", "v11": "11", "both": ""}
    return _ServerFile(name, write, {name.format(version=versions[version]): count for version, count in rows.items()})


# GLUE: https://gluebenchmark.com/faq. CLUE: its description of submissions, as of 4 September 2021. By task and split.
_SERVER_FILES: Mapping[str, Mapping[tuple[str, str], _ServerFile]] = {
    "glue": {
        ("cola", "test"): _glue("CoLA.tsv", _glue_table({"unacceptable": "0", "acceptable": "1"}), 1063),
        ("sst2", "test"): _glue("SST-2.tsv", _glue_table({"negative": "0", "positive": "1"}), 1821),
        ("mrpc", "test"): _glue("MRPC.tsv", _glue_table({"not_equivalent": "0", "equivalent": "1"}), 1725),
        ("stsb", "test"): _glue("STS-B.tsv", _glue_numbers, 1379),
        ("qqp", "test"): _glue("QQP.tsv", _glue_table({"not_duplicate": "0", "duplicate": "1"}), 390_965),
        ("mnli", "test_matched"): _glue("MNLI-m.tsv", _BY_NAME, 9796),
        ("mnli", "test_mismatched"): _glue("MNLI-mm.tsv", _BY_NAME, 9847),
        ("qnli", "test"): _glue("QNLI.tsv", _BY_NAME, 5463),
        ("rte", "test"): _glue("RTE.tsv", _BY_NAME, 3000),
        ("wnli", "test"): _glue("WNLI.tsv", _glue_table({"not_entailment": "0", "entailment": "1"}), 146),
        ("ax", "test"): _glue("AX.tsv", _BY_NAME, 1104),
    },
    "clue": {
        ("afqmc", "test"): _clue("afqmc_predict.json", both=3861),
        ("tnews", "test"): _clue("tnews{version}_predict.json", v10=10_000, v11=10_000),
        ("iflytek", "test"): _clue("iflytek_predict.json", both=2600),
        ("cmnli", "test"): _clue("cmnli_predict.json", both=13_880),
        ("ocnli", "test"): _clue("ocnli_50k_predict.json", both=3000),
        ("cluewsc2020", "test"): _clue("cluewsc{version}_predict.json", v10=290, v11=2574),
        ("csl", "test"): _clue("csl_predict.json", both=3000),
        ("cmrc2018", "test"): _clue("cmrc2018_predict.json", _clue_answers),
        ("c3", "test"): _clue("c3{version}_predict.json", v10=3892),
        ("chid", "test"): _clue("chid{version}_predict.json", _clue_choices),
        ("cluener2020", "test"): _clue("cluener_predict.json", _clue_entities, both=1345),
    },
}


def write_submission(
    task: Task,
    split: str,
    predictions: Sequence[Prediction],
    examples: Sequence[Example],
    directory: str | os.PathLike[str],
    skipped: int = 0,
) -> Path | None:
    """Writes the file that the benchmark's server takes for a test split.

    CLUE 1.1 replaced the test sets of TNEWS, CLUEWSC2020, C3 and ChID, and files are named after the version: 1.0 for
    as many rows as CLUEWSC2020 and C3 had then, else 1.1. Rows do not tell the versions of TNEWS and ChID apart:
    rename the file for the old sets of these.

    Args:
        task: the task.
        split: that was predicted.
        predictions: one a row: a label, a number, the index of a choice, an answer as a dict with `text`, or tags.
        examples: all rows of the split, in its order.
        directory: that the file is written to; it is made if need be.
        skipped: rows of the split that are not among the examples.

    Returns:
        The file's path; None for what no server takes: other tasks (DRCD, the user's own), other splits.

    Raises:
        ValueError: for skipped rows, a label that the server does not know, or a number that is not finite.
    """
    file = _SERVER_FILES.get(task.benchmark, {}).get((task.name, split))
    if file is None:
        return None
    path = Path(directory) / file.name_for(len(examples))
    if skipped:
        raise ValueError(
            f"{task.title}: {path.name} is not written, as {skipped:,} rows of the split {split!r} were skipped and "
            "have no prediction, so that its lines would not be those of the test set. Mend these rows."
        )
    try:
        text = file.write(predictions, examples)
    except KeyError as error:
        raise ValueError(
            f"{task.title}: {path.name} cannot hold the label {error}, which the server does not know."
        ) from None
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    return path


def zip_submission(benchmark: str, directory: str | os.PathLike[str]) -> Path:
    """Zips what `write_submission` wrote, and warns of what the server would refuse: missing files (GLUE's needs all
    eleven, CLUE's takes any) and files with too many or too few rows.

    The same files make the same zip, byte for byte (with one version of zlib). CLUE asks for it to be renamed to
    `submit_TEAM_DATE.zip`.

    Args:
        benchmark: `glue` or `clue`.
        directory: that the files lie in.

    Returns:
        Path of the zip, `glue_submission.zip` or `clue_submission.zip`, in the same directory.

    Raises:
        ValueError: for another benchmark, or if there is no file to submit.
    """
    if benchmark not in _SERVER_FILES:
        raise ValueError(f"There is no server for {benchmark!r}: zips are made for {' and '.join(_SERVER_FILES)}.")
    directory = Path(directory)
    paths, missing = [], []
    for file in _SERVER_FILES[benchmark].values():
        there = [directory / name for name in file.names if (directory / name).exists()]
        paths += there
        missing += [] if there else [" or ".join(file.names)]
        for path in there:
            _check_rows(path, file.rows.get(path.name))
    if not paths:
        raise ValueError(f"{directory} holds no predictions for the server of {benchmark}.")
    if missing:
        needed = "The server needs all of them" if benchmark == "glue" else "The server takes it without them"
        logger.warning(f"The submission to {benchmark} lacks {', '.join(missing)}. {needed}.")
    target = directory / f"{benchmark}_submission.zip"
    partial = target.with_suffix(".zip.partial")
    with zipfile.ZipFile(partial, "w") as archive:
        for path in sorted(paths):
            entry = zipfile.ZipInfo(path.name, _NO_DATE)
            entry.create_system, entry.external_attr = 3, 0o644 << 16  # the same from every system
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)
    os.replace(partial, target)
    return target


def _check_rows(path: Path, expected: int | None) -> None:
    if expected is None:
        return
    with open(path, "rb") as file:
        rows = sum(1 for _ in file) - (path.suffix == ".tsv")
    if rows != expected:
        logger.warning(f"{path.name} has {rows:,} rows, but the test set has {expected:,}: the server will refuse it.")
