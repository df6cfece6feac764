"""Applies a fine-tuned model to texts, and writes a JSON line for each.

    hf-electra-rtd predict --model_name_or_path runs/reviews --file new.csv \\
        --text_column_name review
    echo "A river runs through it." | \\
        hf-electra-rtd predict --model_name_or_path ORG/electra-small-sst2

A line holds the columns of the input and, by the kind of task: `label`, `score` and `probabilities`; `labels` and
`probabilities`; `number`; `tags` and `probabilities`; `answer` and `nbest` (the input has `question` and `context`);
`choice` and `probabilities` (the input has `question` and `choices`); `similarity`; or `corrected`. A column of the
input with one of these names becomes `input_label`, ... Text to tag is split at spaces, or into characters if the
model was fine-tuned on characters.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import random
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import datasets
import numpy as np
import pandas as pd
import torch
from transformers.utils import logging as transformers_logging

from hf_electra_rtd.base.cli import check_arguments, flag, parse_arguments, required, run
from hf_electra_rtd.base.files import check_output, reading, write_text
from hf_electra_rtd.base.tasks import Task
from hf_electra_rtd.data.reader import read_lines
from hf_electra_rtd.data.tokenization import check_known, load_tokenizer
from hf_electra_rtd.finetuning.arguments import FineTuningArguments
from hf_electra_rtd.finetuning.data import LABELED, Split
from hf_electra_rtd.finetuning.heads import load_fine_tuned
from hf_electra_rtd.finetuning.kinds import Kind, make_kind
from hf_electra_rtd.finetuning.kinds.base import Prediction
from hf_electra_rtd.finetuning.reading import (
    Table,
    example_features,
    is_array,
    is_list,
    make_examples,
    read_rows,
    rows_of,
)
from hf_electra_rtd.finetuning.trainer import FineTuner
from hf_electra_rtd.pair.onnx_model import TORCH, load_onnx
from hf_electra_rtd.pair.places import identify


# The names of what an answer holds, the prediction first.
_NAMES: dict[str, tuple[str, ...]] = {
    "classification": ("label", "score", "probabilities"),
    "multi_label": ("labels", "probabilities"),
    "regression": ("number",),
    "tagging": ("tags", "probabilities"),
    "multiple_choice": ("choice", "probabilities"),
    "correction": ("corrected",),
    "embedding": ("similarity",),
    "question_answering": ("answer", "nbest"),
}
_TEXT_COLUMNS = ("text", "text_pair")
# The types of input that can be predicted.
Texts: TypeAlias = str | Sequence[str | tuple[str, str]] | pd.Series | Table


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Hides the progress bars of the libraries, which appear for every file that is read or written, and in log files,
    too. Restores the setting afterwards."""
    of_transformers = transformers_logging.is_progress_bar_enabled()
    of_datasets = datasets.are_progress_bars_disabled()
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if of_transformers:
            transformers_logging.enable_progress_bar()
        if not of_datasets:
            datasets.enable_progress_bars()


class Classifier:
    """A model of any kind of task that `finetune` wrote, with its tokenizer. With another `runtime` than torch (see
    `RUNTIMES`), it is the graph in the directory of an export. Raises `ValueError` for any other model, and for
    embeddings with another runtime."""

    @without_progress_bars()
    def __init__(self, name_or_path: str, batch_size: int = 64, use_cpu: bool = False, runtime: str = TORCH) -> None:
        place = identify(name_or_path)
        facts = place.fine_tuned_for
        if facts is None:
            raise place.error("a model that `hf-electra-rtd finetune` fine-tuned")
        self.name = str(place.model)
        self.batch_size = batch_size
        self.use_cpu = use_cpu
        self.labels = place.labels if facts["task"]["kind"] in LABELED else ()
        self._characters = facts["characters"]
        self.task = Task("prediction", self.name, labels=self.labels, label_column="", **facts["task"])
        # The number of texts. Similarities are of pairs, even if the encoder was trained on single texts.
        self.number = 2 if self.task.kind == "embedding" else len(self.task.columns) or 1
        self.lengths = facts["lengths"]  # those of `Kind`, in tokens
        self.kind = make_kind(self.task, load_tokenizer(self.name), **self.lengths)
        self.model: Any
        if self.task.kind == "embedding":
            if runtime != TORCH:
                raise ValueError(f"runtime={runtime!r}: {self.name} makes embeddings, which need {TORCH}.")
            from hf_electra_rtd.finetuning.embeddings import load_embeddings

            self.model = load_embeddings(self.name, use_cpu)
        elif runtime == TORCH:
            self.model = load_fine_tuned(self.kind.auto_class, self.name, self.labels)
        else:
            self.model = load_onnx(self.name, runtime)

    def predict(self, texts: Texts) -> list[dict[str, Any]]:
        """Returns for each text what the command `predict` writes, such as `label`, `score` and `probabilities`.

        `texts` are one text; a list or Series of texts, of pairs of texts as tuples, or of rows as dicts; a DataFrame,
        a `datasets.Dataset` or a dict of columns. A row has the columns that the model was fine-tuned on, or `text`
        and `text_pair`. Raises TypeError for anything else.
        """
        rows: list[tuple[str, Any]] = []
        for number, text in enumerate(_as_list(texts), 1):
            place = f"text {number}"
            if isinstance(text, Mapping):
                row = dict(text)
                if all(name in row for name in self.task.columns):
                    row |= {name: row[known] for name, known in zip(_TEXT_COLUMNS, self.task.columns, strict=False)}
                count = 2 if "text_pair" in row else 1
            elif isinstance(text, (str, tuple, list)):
                pair = (text,) if isinstance(text, str) else text
                row = dict(zip(_TEXT_COLUMNS, pair, strict=False))
                count = len(pair)
            else:
                raise TypeError(f"{place} is a {type(text).__name__}. Give a text, a tuple of two texts, or a dict.")
            self.check_number(place, count)
            rows.append((place, row))
        return self.answer(rows, _TEXT_COLUMNS[: self.number]) if rows else []

    @without_progress_bars()
    def answer(
        self, rows: Sequence[tuple[str, Any]], columns: Sequence[str], file: str | None = None
    ) -> list[dict[str, Any]]:
        """Predicts like `predict`, for rows with their places, whose texts are in `columns`. Raises ValueError for a
        text that is null, and for a `file` with too many unknown tokens (see `check_known`)."""
        self.check_number("a row", len(columns))
        task = dataclasses.replace(self.task, columns=tuple(columns))
        source = file or "The texts"
        with reading(source):
            if self._characters:
                rows = [(place, _in_characters(row, columns[0])) for place, row in rows]
            examples = list(make_examples(task, "test", iter(rows)))
            for (place, row), example in zip(rows, examples, strict=True):
                if "texts" in example and any(row[name] is None for name in columns):
                    raise ValueError(f"{place}: its text is null. An empty one is ''.")
        dataset = datasets.Dataset.from_list(examples, features=example_features(task.kind))
        split = Split(dataset, 0, {}, self.kind.encode(dataset, training=False))
        check_known(source, *self.kind.count_unknown(split.features), refuses=file is not None)
        predictions, _ = answer_split(self.model, self.kind, split, self.batch_size, self.use_cpu)
        if task.kind == "question_answering":
            return [{"answer": prediction["text"], "nbest": prediction["nbest"]} for prediction in predictions]
        answers = [{_NAMES[task.kind][0]: prediction} for prediction in predictions]
        if split.probabilities is not None:
            for answer, array in zip(answers, split.probabilities, strict=True):
                shares = array.tolist()
                if task.kind == "classification":
                    answer["score"] = max(shares)
                is_named = task.kind in ("classification", "multi_label")
                answer["probabilities"] = dict(zip(self.labels, shares, strict=True)) if is_named else shares
        return answers

    def check_number(self, place: str, count: int) -> None:
        """Raises ValueError for a number of texts that the model does not take."""
        if count != self.number:
            wanted = "one text" if self.number == 1 else "pairs of texts (second_text_column_name)"
            raise ValueError(f"{self.name} takes {wanted}, but {place} has {count}.")


def _as_list(texts: Any) -> Sequence[Any]:
    """The texts or rows that `Classifier.predict` takes."""
    if isinstance(texts, str):
        return [texts]
    if is_array(texts):
        return texts.tolist()
    return texts if is_list(texts) else rows_of(texts)


def _in_characters(row: Any, column: str) -> Any:
    """Returns a row with a text to tag replaced by its characters. If all characters are separated by spaces, the
    spaces are left out."""
    text = row.get(column) if isinstance(row, Mapping) else None
    if not isinstance(text, str):
        return row
    pieces = text.split()
    is_spaced = len(pieces) > 1 and all(len(piece) == 1 for piece in pieces)
    return {**row, column: pieces if is_spaced else list(text)}


def answer_split(
    model: Any, kind: Kind, split: Split, batch_size: int, use_cpu: bool
) -> tuple[list[Prediction], dict[str, float]]:
    """Returns predictions and scores like `FineTuner.answer`, of a model or a graph that is not trained further."""
    if kind.task.kind == "embedding":
        from hf_electra_rtd.finetuning.embeddings import answer_pairs

        return answer_pairs(model, kind, split, batch_size)
    with tempfile.TemporaryDirectory() as directory, _kept_random_states(use_cpu):
        options: dict[str, Any] = {"disable_tqdm": True, "report_to": "none", "use_cpu": use_cpu}
        args = FineTuningArguments(directory, per_device_eval_batch_size=batch_size, **options)
        return FineTuner(model, args, kind).answer(split)


@contextmanager
def _kept_random_states(use_cpu: bool) -> Iterator[None]:
    """Restores the caller's random states afterwards, because making a Trainer seeds all generators."""
    devices = () if use_cpu else range(torch.cuda.device_count())
    of_python = random.getstate()
    of_numpy = np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002


# ---- The command ----


@dataclass
class PredictArguments:
    """What to predict, and with which model."""

    model_name_or_path: str = required("A fine-tuning run, or directory or Hub id of its model.")
    file: str | None = flag(
        None, "A table, .jsonl, .conll, SQuAD's .json, or .txt with a text a line; by default standard input, as .txt."
    )
    output_file: str | None = flag(None, "JSON lines; by default standard output.")
    text_column_name: str = flag("text", "Column of the text, or of the words to tag.")
    second_text_column_name: str | None = flag(None, "Column of a pair's second text.")
    batch_size: int = flag(64, "Batch size.", "[1, inf)")
    use_cpu: bool = flag(False, "Do not use a GPU.")
    runtime: Literal["torch", "onnx", "onnx-int8"] = flag(TORCH, "onnx: the model is a directory of an export.")

    def __post_init__(self) -> None:
        check_arguments(self)


@without_progress_bars()
def main(argv: list[str]) -> int:
    """Predicts a file or the standard input. Raises a ValueError for a model that `finetune` did not write, and for a
    file that lacks columns."""
    (args,) = parse_arguments((PredictArguments,), argv, description=__doc__)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    if args.output_file is not None:
        check_output(args.output_file, args.file, identify(args.model_name_or_path).model)
    classifier = Classifier(args.model_name_or_path, args.batch_size, args.use_cpu, args.runtime)
    rows: list[tuple[str, Any]]
    if args.file is not None and not re.search(r"\.txt(\.gz|\.zst)?$", args.file, re.IGNORECASE):
        rows = list(read_rows(classifier.task, "test", args.file))
    else:
        rows = [(f"line {number}", {"text": line}) for number, line in enumerate(read_lines(args.file), 1)]
    columns = [args.text_column_name]
    if args.second_text_column_name:
        columns.append(args.second_text_column_name)
    for place, row in rows:
        for name in _NAMES[classifier.task.kind] if isinstance(row, Mapping) else ():
            if row.keys() >= {name, f"input_{name}"}:
                raise ValueError(f"{place}: {name!r} would become 'input_{name}', which exists. Rename one column.")
    answers = classifier.answer(rows, columns, args.file or "Standard input")
    lines = []
    for (_, row), answer in zip(rows, answers, strict=True):
        cells = {f"input_{name}" if name in answer else name: value for name, value in row.items()}
        lines.append(json.dumps({**cells, **answer}, ensure_ascii=False, default=str) + "\n")
    if args.output_file is None:
        sys.stdout.write("".join(lines))
    else:
        write_text(args.output_file, "".join(lines))
    return 0


if __name__ == "__main__":
    run(main)
