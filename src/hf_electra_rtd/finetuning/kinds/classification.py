"""Classification and regression: a label or a number for a text or a pair of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from hf_electra_rtd.finetuning.kinds.base import Batch, Feature, Kind, Prediction, precise
from hf_electra_rtd.ops import LossSum


if TYPE_CHECKING:
    from datasets import Dataset


class ClassificationKind(Kind):
    """One of several labels for a text or a pair of texts.

    A feature is `[CLS] text [SEP]` or `[CLS] text [SEP] text [SEP]`. What is too long is truncated at its end, of a
    pair always the longer text, the second where both are as long (google-research/electra
    finetune/classification/classification_tasks.py, `_truncate_seq_pair`). Training leaves out examples without a
    label or with an empty text.
    """

    auto_class = AutoModelForSequenceClassification

    def encode_batch(self, batch: Batch, indices: Sequence[int], training: bool) -> list[Feature]:
        rows: list[tuple[int, list[str], Any]] = []
        for index, texts, label in zip(indices, batch["texts"], batch["label"], strict=True):
            texts = [text.strip() for text in texts]
            if training and (label is None or not all(texts)):
                continue
            orders = [texts, texts[::-1]] if training and self.task.double_unordered else [texts]
            rows += [(index, order, label) for order in orders]
        if not rows:
            return []
        # One token more than there is room for: the tokenizer shortens the second of two texts that are as long, or
        # the first, but the last token goes by the original's rule.
        columns = zip(*(texts for _, texts, _ in rows), strict=True)
        tokens = self.tokenizer(*map(list, columns), truncation=True, max_length=self.max_seq_length + 1)
        features = []
        for row, (index, _, label) in enumerate(rows):
            target = None if label is None else self._target(label)
            feature = self._inputs(tokens, row) | {"labels": target, "example": index}
            feature["truncated"] = feature["length"] > self.max_seq_length
            if feature["truncated"]:
                parts = tokens.sequence_ids(row)
                longer = 0 if parts.count(0) > parts.count(1) else 1
                place = len(parts) - 1 - parts[::-1].index(longer)
                for name in self.input_names:
                    del feature[name][place]
                feature["length"] -= 1
            features.append(feature)
        return features

    def decode(self, outputs: Any, features: Dataset, examples: Dataset) -> list[Prediction]:
        """The label with the largest logit, or the number as it comes."""
        return [self._prediction(logits) for logits in outputs]

    def _target(self, label: Any) -> Any:
        return self.task.labels.index(label)

    def _prediction(self, logits: np.ndarray) -> Prediction:
        return self.task.labels[int(logits.argmax())]


class RegressionKind(ClassificationKind):
    """A number for a text or a pair of texts: learned in units of the task's `label_scale`, by the squared error, and
    predicted without bounds."""

    columns: ClassVar = {"labels": ("float64", 0)}

    def loss(self, outputs: Any, batch: Mapping[str, Tensor]) -> LossSum:
        labels = batch["labels"]
        losses = torch.nn.functional.mse_loss(precise(outputs.logits).squeeze(-1), labels, reduction="none")
        return LossSum(losses.sum(), losses.detach(), labels.new_full((), labels.numel()))

    def _target(self, label: float) -> float:
        return label / self.task.label_scale

    def _prediction(self, logits: np.ndarray) -> float:
        return float(logits.item()) * self.task.label_scale
