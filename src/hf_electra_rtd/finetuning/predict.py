"""Applies a fine-tuned model to texts, and writes a JSON line for each.

    hf-electra-rtd predict --model_name_or_path runs/reviews --file new.csv --text_column_name review
    echo "A river runs through it." | hf-electra-rtd predict --model_name_or_path ORG/electra-small-sst2

A line holds the columns of the input and `label`, `score` and `probabilities`; `number`; `tags`; `answer` and `nbest`
(the input has `question` and `context`); or `choice` (`context`, `question`, `choices`). A column of the input with
one of these names becomes `input_label`, ... Text to tag is split at spaces, or into characters if the model was
fine-tuned on characters.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
from scipy.special import softmax
from transformers.utils import logging as transformers_logging

from hf_electra_rtd.cli import check_ranges, flag, parse_arguments, run
from hf_electra_rtd.data.tokenization import load_tokenizer
from hf_electra_rtd.files import check_output, reading, write_text
from hf_electra_rtd.finetuning.data import Split, predict
from hf_electra_rtd.finetuning.heads import labels_of, load_fine_tuned, open_encoder
from hf_electra_rtd.finetuning.kinds import make_kind
from hf_electra_rtd.finetuning.reading import Rows, example_features, make_examples, read_rows
from hf_electra_rtd.finetuning.trainer import FineTuner, FineTuningArguments
from hf_electra_rtd.tasks import Task


# Of a prediction in the output.
_NAMES = {"classification": "label", "regression": "number", "tagging": "tags", "multiple_choice": "choice"}


@dataclass
class PredictArguments:
    """What to predict, and with which model."""

    model_name_or_path: str = field(metadata={"help": "A fine-tuning run, or directory or Hub id of its model."})
    file: str | None = flag(None, "As --test_file, or .txt with a text a line; by default standard input, as .txt.")
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
    name = _find_model(args.model_name_or_path)
    if args.output_file is not None:
        check_output(args.output_file, args.file, name)
    _, config, _ = open_encoder(name, weights=False)
    facts = getattr(config, "fine_tuned_for", None)
    if facts is None:
        raise ValueError(f"--model_name_or_path {name} was not fine-tuned by hf-electra-rtd finetune.")
    labels = labels_of(config) if facts["task"]["kind"] in ("classification", "tagging") else ()
    columns = (args.text_column_name or "text", *filter(None, [args.second_text_column_name]))
    task = Task("prediction", name, labels=labels, columns=columns, label_column="", **facts["task"])
    kind = make_kind(task, load_tokenizer(name), **facts["lengths"])
    rows = _read(args.file, task)
    with reading(args.file or "Standard input"):
        found = list(make_examples(task, "test", _prepare(rows, task, args, facts["characters"])))
    examples = datasets.Dataset.from_list(found, features=example_features(task.kind))
    answers: list[dict[str, Any]] = [{} for _ in rows]
    with tempfile.TemporaryDirectory() as directory:
        options = {"disable_tqdm": True, "report_to": "none", "use_cpu": args.use_cpu}
        training_args = FineTuningArguments(directory, per_device_eval_batch_size=args.batch_size, **options)
        trainer = FineTuner(load_fine_tuned(kind.auto_class, name, labels), training_args, kind)

        def outputs_of(features: Any) -> Any:
            outputs: Any = trainer.predict(features).predictions
            if task.kind == "classification":
                for index, share in zip(features["example"], softmax(outputs, axis=-1).tolist(), strict=True):
                    answers[index] = {"score": max(share), "probabilities": dict(zip(labels, share, strict=True))}
            return outputs

        predictions = predict(kind, Split(examples, 0, {}, kind.encode(examples, training=False)), outputs_of)
    lines = []
    for (_, row), prediction, more in zip(rows, predictions, answers, strict=True):
        if task.kind == "question_answering":
            answer = {"answer": prediction["text"], "nbest": prediction["nbest"]}
        else:
            answer = {_NAMES[task.kind]: prediction, **more}
        given = {f"input_{name}" if name in answer else name: value for name, value in row.items()}
        lines.append(json.dumps({**given, **answer}, ensure_ascii=False) + "\n")
    if args.output_file is None:
        sys.stdout.write("".join(lines))
    else:
        write_text(args.output_file, "".join(lines))
    return 0


def _find_model(name: str) -> str:
    if not Path(name).is_dir() or (Path(name) / "config.json").exists():
        return name
    models = sorted(str(path.parent) for path in Path(name).rglob("model/config.json"))
    if len(models) != 1:
        found = f"the models {', '.join(models)}: pass one of them" if models else "no model"
        raise ValueError(f"--model_name_or_path {name} holds {found}.")
    return models[0]


def _read(path: str | None, task: Task) -> list[tuple[str, Any]]:
    """Rows, each after its place."""
    if path is not None and not path.endswith(".txt"):
        return list(read_rows(task, "test", path))
    with nullcontext(sys.stdin) if path is None else open(path, encoding="utf-8-sig") as file:
        return [(f"line {number}", {"text": line.rstrip("\r\n")}) for number, line in enumerate(file, 1)]


def _prepare(rows: Any, task: Task, args: PredictArguments, characters: bool) -> Rows:
    """The rows with the columns that `make_examples` reads, and without labels."""
    for place, row in rows:
        row, column = dict(row), task.columns[0]
        if task.kind == "tagging" and args.text_column_name is None and "words" in row:
            row[column] = row["words"]
        if task.kind == "tagging" and characters and isinstance(row.get(column), str):
            row[column] = list(row[column])
        if task.kind == "question_answering":
            row["answers"] = None
        if task.kind == "multiple_choice" and {"context", "choices"} <= row.keys():
            row |= {"context": [row["context"]], "choice": row["choices"], "answer": None}
        yield place, row


if __name__ == "__main__":
    run(main)
