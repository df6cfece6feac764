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

import numpy as np
from transformers.utils import logging as transformers_logging

from hf_electra_rtd.cli import flag, parse_arguments, run
from hf_electra_rtd.data.tokenization import load_tokenizer
from hf_electra_rtd.files import write_text
from hf_electra_rtd.finetuning.adapters import load_fine_tuned
from hf_electra_rtd.finetuning.arguments import FineTuningArguments
from hf_electra_rtd.finetuning.data import Split, predict
from hf_electra_rtd.finetuning.heads import labels_of, open_encoder
from hf_electra_rtd.finetuning.kinds import make_kind
from hf_electra_rtd.finetuning.reading import example_features, read_rows
from hf_electra_rtd.finetuning.trainer import FineTuner
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


def main(argv: list[str]) -> int:
    """Predicts a file.

    Raises:
        ValueError: for a model that `finetune` did not write, and for a file without the columns.
    """
    import datasets

    (args,) = parse_arguments((PredictArguments,), argv, description=__doc__)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    name = _find_model(args.model_name_or_path)
    _, config, _ = open_encoder(name, weights=False)
    facts = getattr(config, "fine_tuned_for", None)
    if facts is None:
        raise ValueError(f"--model_name_or_path {name} was not fine-tuned by hf-electra-rtd finetune.")
    labels = labels_of(config) if facts["task"]["kind"] in ("classification", "tagging") else ()
    task = Task("prediction", name, labels=labels, **facts["task"])
    kind = make_kind(task, load_tokenizer(name), **facts["lengths"])
    rows = _read(args.file, task)
    examples = _examples(task.kind, rows, args, facts["characters"])
    answers: list[dict[str, Any]] = [{} for _ in rows]
    with tempfile.TemporaryDirectory() as directory:
        options = {"disable_tqdm": True, "report_to": "none", "use_cpu": args.use_cpu}
        training_args = FineTuningArguments(directory, per_device_eval_batch_size=args.batch_size, **options)
        trainer = FineTuner(load_fine_tuned(kind.auto_class, name, labels, task.unanswerable), training_args, kind)

        def outputs_of(features: Any) -> Any:
            outputs: Any = trainer.predict(features).predictions
            if task.kind == "classification":
                powers = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
                shares = (powers / powers.sum(axis=-1, keepdims=True)).tolist()
                for index, share in zip(features["example"], shares, strict=True):
                    answers[index] = {"score": max(share), "probabilities": dict(zip(labels, share, strict=True))}
            return outputs

        predictions = predict(kind, Split(examples, 0, {}, kind.encode(examples, training=False)), outputs_of)
    lines = []
    for row, prediction, more in zip(rows, predictions, answers, strict=True):
        if task.kind == "question_answering":
            found = {"answer": prediction["text"], "nbest": prediction["nbest"]}
        else:
            found = {_NAMES[task.kind]: prediction, **more}
        given = {f"input_{name}" if name in found else name: value for name, value in row.items()}
        lines.append(json.dumps({**given, **found}, ensure_ascii=False) + "\n")
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


def _read(path: str | None, task: Task) -> list[dict[str, Any]]:
    if path is None or path.endswith(".txt"):
        with nullcontext(sys.stdin) if path is None else open(path, encoding="utf-8-sig") as file:
            return [{"text": line.rstrip("\r\n")} for line in file]
    return [dict(row) for _, row in read_rows(task, "test", path) if row is not None]


def _examples(kind: str, rows: list[dict[str, Any]], args: PredictArguments, characters: bool) -> Any:
    """The rows as examples without labels."""
    from datasets import Dataset

    def column(name: str) -> list[Any]:
        for number, row in enumerate(rows, start=1):
            if row.get(name) is None:
                raise ValueError(
                    f"{args.file}, example {number} has no column {name!r}. It has {', '.join(map(str, row))}."
                )
        return [row[name] for row in rows]

    has_words = kind == "tagging" and "words" in [*rows, {}][0]
    text_column = args.text_column_name or ("words" if has_words else "text")
    features = example_features(kind)
    columns: dict[str, list[Any]] = {name: [None] * len(rows) for name in features}
    columns["id"] = list(map(str, range(len(rows))))
    if kind in ("classification", "regression"):
        texts = [column(name) for name in (text_column, args.second_text_column_name) if name is not None]
        columns["texts"] = [list(pair) for pair in zip(*texts, strict=True)]
    elif kind == "tagging":
        split = list if characters else str.split
        columns["words"] = [split(text) if isinstance(text, str) else text for text in column(text_column)]
    else:
        names = ["question", "context", "choices"][: 2 if kind == "question_answering" else 3]
        columns |= {name: column(name) for name in names}
    return Dataset.from_dict(columns, features=features)


if __name__ == "__main__":
    run(main)
