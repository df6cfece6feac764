"""Applies a fine-tuned model to texts, and writes a JSON line for each.

    hf-electra-rtd predict --model_name_or_path runs/reviews --file new.csv --text_column_name review
    echo "A river runs through it." | hf-electra-rtd predict --model_name_or_path ORG/electra-small-sst2

A line holds the columns of the input and `label`, `score` and `probabilities`; `labels`; `number`; `tags`; `answer`
and `nbest` (the input has `question` and `context`); or `choice` (`question`, `choices`). A column of the input with
one of these names becomes `input_label`, ... Text to tag is split at spaces, or into characters if the model was
fine-tuned on characters.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import datasets
from transformers.utils import logging as transformers_logging

from hf_electra_rtd.cli import check_ranges, flag, parse_arguments, run
from hf_electra_rtd.files import check_output, write_text
from hf_electra_rtd.finetuning.classifier import Classifier, find_model
from hf_electra_rtd.finetuning.reading import read_rows
from hf_electra_rtd.tasks import Task


@dataclass
class PredictArguments:
    """What to predict, and with which model."""

    model_name_or_path: str = field(metadata={"help": "A fine-tuning run, or directory or Hub id of its model."})
    file: str | None = flag(
        None, "A table, .jsonl or .conll, or .txt with a text a line; by default standard input, as .txt."
    )
    output_file: str | None = flag(None, "JSON lines; by default standard output.")
    text_column_name: str | None = flag(None, "Column of the text; by default text, or words if tagging finds it.")
    second_text_column_name: str | None = flag(None, "Column of a pair's second text.")
    batch_size: int = flag(64, "Batch size.")
    use_cpu: bool = flag(False, "Do not use a GPU.")

    def __post_init__(self) -> None:
        check_ranges(self)


def main(argv: list[str]) -> int:
    """Predicts a file. Raises a ValueError for a model that `finetune` did not write, and for a file without the
    columns."""
    (args,) = parse_arguments((PredictArguments,), argv, description=__doc__)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    name = find_model(args.model_name_or_path)
    if args.output_file is not None:
        check_output(args.output_file, args.file, name)
    classifier = Classifier(name, args.batch_size, args.use_cpu)
    rows = _read(args.file)
    columns = (args.text_column_name, args.second_text_column_name)
    lines = []
    answers = classifier.answer(rows, *columns, args.file or "Standard input")
    for (_, row), answer in zip(rows, answers, strict=True):
        given = {f"input_{name}" if name in answer else name: value for name, value in row.items()}
        lines.append(json.dumps({**given, **answer}, ensure_ascii=False) + "\n")
    if args.output_file is None:
        sys.stdout.write("".join(lines))
    else:
        write_text(args.output_file, "".join(lines))
    return 0


def _read(path: str | None) -> list[tuple[str, Any]]:
    """Rows, each after its place."""
    if path is not None and not path.endswith(".txt"):
        return list(read_rows(Task("prediction", path), "test", path))
    with nullcontext(sys.stdin) if path is None else open(path, encoding="utf-8-sig") as file:
        return [(f"line {number}", {"text": line.rstrip("\r\n")}) for number, line in enumerate(file, 1)]


if __name__ == "__main__":
    run(main)
