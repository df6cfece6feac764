"""A task as data: what it is called, what is learnt, how it is judged, where its rows lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hf_electra_rtd.finetuning.layouts import DatasetLayout, FileLayout


KindName = Literal["classification", "regression", "multiple_choice", "question_answering", "tagging"]

TRAIN = "train"


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        name: on the command line and in records, such as `mrpc`.
        benchmark: `glue`, `clue`, `more`, or `own` for a user's task.
        title: for people, such as `MRPC`.
        language: `en` or `zh`; empty where it is not known.
        kind: how it is encoded, decoded and scored.
        metrics: names in `hf_electra_rtd.finetuning.scores.SCORES`, as they are reported.
        main_metric: the one of them that stands in tables: the paper's, where it names one.
        labels: names of the classes in the order of the model's outputs; of tags for tagging; empty for the other
            kinds.
        files: for each split, where its rows lie under `--data_dir`, in the benchmark's official layout.
        dataset: where its rows lie on the Hub; None for nowhere.
        train_split: None for a task without rows to train on (`trained_on` names whose model it takes).
        dev_splits: judged during and after training; the first is what models are chosen by.
        test_splits: predicted, and judged where they are labelled.
        trained_on: for a task that only tests (AX): the task whose fine-tuned model predicts it.
        epochs: of the paper (Table 7) or of the benchmark's baseline.
        max_length: tokens of a row.
        double_unordered: whether pairs are learnt in both orders (google-research/electra, `double_unordered`).
        label_scale: regression: labels are divided by it to be learnt, and outputs multiplied (google-research/electra
            finetune/classification/classification_tasks.py, `STS`, divides by 5).
        unanswerable: question answering: whether a context may hold no answer (SQuAD 2.0).
    """

    name: str
    benchmark: str
    title: str
    language: str
    kind: KindName
    metrics: tuple[str, ...]
    main_metric: str
    labels: tuple[str, ...] = ()
    files: Mapping[str, FileLayout] = field(default_factory=dict)
    dataset: DatasetLayout | None = None
    train_split: str | None = TRAIN
    dev_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)
    trained_on: str | None = None
    epochs: float = 3.0
    max_length: int = 128
    double_unordered: bool = False
    label_scale: float = 1.0
    unanswerable: bool = False

    def describe_dataset(self) -> dict[str, Any]:
        """For a record: the task as the Hub knows it, as in [`EvaluationRecord`]."""
        layout = self.dataset
        if layout is None:
            return {"title": self.title, "id": None, "config": None, "splits": {}}
        return {"title": self.title, "id": layout.path, "config": layout.config, "splits": dict(layout.splits)}
