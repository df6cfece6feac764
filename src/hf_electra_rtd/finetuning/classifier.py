"""Fine-tuning and prediction from Python, as the commands do them."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets

from hf_electra_rtd.data.tokenization import load_tokenizer
from hf_electra_rtd.files import reading, write_text
from hf_electra_rtd.finetuning.data import LABELED, Split
from hf_electra_rtd.finetuning.heads import labels_of, load_fine_tuned, open_encoder
from hf_electra_rtd.finetuning.kinds import make_kind
from hf_electra_rtd.finetuning.reading import Rows, example_features, make_examples
from hf_electra_rtd.finetuning.trainer import FineTuner, FineTuningArguments
from hf_electra_rtd.tasks import Task


# Of a prediction in an answer.
_NAMES = {"classification": "label", "multi_label": "labels", "regression": "number"}
_NAMES |= {"tagging": "tags", "multiple_choice": "choice"}

Examples = str | Path | Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]]


def finetune(
    model: str, train: Examples, validation: Examples | None = None, output_dir: str = "runs/finetune", **flags: Any
) -> Classifier:
    """Does what the command `finetune` does, and returns the model of the best seed.

    Args:
        model: directory or Hub id of an encoder.
        train: a file, rows (`[{"text": ..., "label": ...}, ...]`), or columns (`{"text": [...], ...}`).
        **flags: of the command, such as `learning_rate=1e-4` or `text_column_name="review"`.

    Raises:
        ValueError: for what the command refuses.
    """
    from hf_electra_rtd.finetuning import finetune as command

    given = {"model_name_or_path": model, "output_dir": output_dir, "task_name": "own", "disable_tqdm": True, **flags}
    for name, examples in (("train", train), ("validation", validation)):
        if examples is not None:
            given[f"{name}_file"] = _as_file(examples, Path(output_dir, f"{name}.jsonl"))
    words = [
        word
        for name, value in given.items()
        for word in (f"--{name}", *map(str, value if isinstance(value, (list, tuple)) else [value]))
    ]
    if command.main(words):
        raise RuntimeError(f"Fine-tuning {model} did not end well: see the log.")
    return Classifier(str(Path(output_dir, given["task_name"])), use_cpu=bool(flags.get("use_cpu")))


def _as_file(examples: Examples, path: Path) -> str:
    if isinstance(examples, (str, Path)):
        return str(examples)
    if isinstance(examples, Mapping):
        columns = examples
        examples = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in examples))
    return str(path)


class Classifier:
    """A model that `finetune` wrote, of any kind of task, with its tokenizer. Another model is a `ValueError`."""

    def __init__(self, name_or_path: str, batch_size: int = 64, use_cpu: bool = False) -> None:
        self.name, self.batch_size, self.use_cpu = find_model(name_or_path), batch_size, use_cpu
        _, config, _ = open_encoder(self.name, weights=False)
        facts = getattr(config, "fine_tuned_for", None)
        if facts is None:
            raise ValueError(f"The model {self.name} was not fine-tuned by hf-electra-rtd finetune.")
        self.labels = labels_of(config) if facts["task"]["kind"] in LABELED else ()
        self._characters = facts["characters"]
        task = Task("prediction", self.name, labels=self.labels, label_column="", **facts["task"])
        self._kind = make_kind(task, load_tokenizer(self.name), **facts["lengths"])
        self._model = load_fine_tuned(self._kind.auto_class, self.name, self.labels)

    @classmethod
    def from_pretrained(cls, name_or_path: str, **options: Any) -> Classifier:
        """Loads a model: a fine-tuning run, or directory or Hub id of its model."""
        return cls(name_or_path, **options)

    def predict(self, texts: Sequence[str | tuple[str, str] | Mapping[str, Any]]) -> list[dict[str, Any]]:
        """For each text, pair of texts, or row with `text`, `text_pair`, `words`, ... what the command `predict`
        writes: `label`, `score` and `probabilities`; `labels` and `probabilities`; `number`; `tags`; `answer` and
        `nbest`; or `choice`."""
        rows: list[tuple[str, Any]] = []
        for number, given in enumerate(texts, 1):
            pair = given if isinstance(given, (tuple, list)) else (given,)
            row = given if isinstance(given, Mapping) else dict(zip(("text", "text_pair"), pair, strict=False))
            rows.append((f"text {number}", row))
        is_pair = bool(rows) and "text_pair" in rows[0][1]
        return self.answer(rows, second_column="text_pair" if is_pair else None) if rows else []

    def answer(
        self,
        rows: Sequence[tuple[str, Any]],
        text_column: str | None = None,
        second_column: str | None = None,
        source: str = "The texts",
    ) -> list[dict[str, Any]]:
        """As `predict`, for rows, each after its place. The text is in the column `text` (to tag: `words`, if there
        is one) unless it is named."""
        kind, columns = self._kind, (text_column or "text", *filter(None, [second_column]))
        task = dataclasses.replace(kind.task, columns=columns)
        with reading(source):
            found = list(make_examples(task, "test", self._prepare(rows, columns[0], text_column is None)))
        examples = datasets.Dataset.from_list(found, features=example_features(task.kind))
        split = Split(examples, 0, {}, kind.encode(examples, training=False))
        with tempfile.TemporaryDirectory() as directory:
            options: dict[str, Any] = {"disable_tqdm": True, "report_to": "none", "use_cpu": self.use_cpu}
            args = FineTuningArguments(directory, per_device_eval_batch_size=self.batch_size, **options)
            predictions, _ = FineTuner(self._model, args, kind).answer(split)
        if task.kind == "question_answering":
            return [{"answer": found["text"], "nbest": found["nbest"]} for found in predictions]
        answers = [{_NAMES[task.kind]: prediction} for prediction in predictions]
        if split.probabilities is not None:
            for answer, shares in zip(answers, split.probabilities.tolist(), strict=True):
                answer |= {"score": max(shares)} if task.kind == "classification" else {}
                answer |= {"probabilities": dict(zip(self.labels, shares, strict=True))}
        return answers

    def _prepare(self, rows: Sequence[tuple[str, Any]], column: str, may_be_words: bool) -> Rows:
        """The rows with the columns that `make_examples` reads, and without labels."""
        for place, given in rows:
            row, kind = dict(given), self._kind.task.kind
            if kind == "tagging" and may_be_words and "words" in row:
                row[column] = row["words"]
            if kind == "tagging" and self._characters and isinstance(row.get(column), str):
                row[column] = list(row[column])
            yield place, row


def find_model(name: str) -> str:
    """The model of a fine-tuning run; other names as they are. Raises a ValueError for none or several models."""
    if not Path(name).is_dir() or (Path(name) / "config.json").exists():
        return name
    models = sorted(str(path.parent) for path in Path(name).rglob("model/config.json"))
    if len(models) != 1:
        found = f"the models {', '.join(models)}: pass one of them" if models else "no model"
        raise ValueError(f"--model_name_or_path {name} holds {found}.")
    return models[0]
