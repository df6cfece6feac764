"""Kinds that assign labels or a number to a text or a pair of texts, or choose one of several answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset, List, Value
from scipy.special import expit, softmax
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    DataCollatorForMultipleChoice,
)

from hf_electra_rtd.finetuning.kinds.base import Batch, Feature, Kind, Prediction
from hf_electra_rtd.finetuning.scores import label_report
from hf_electra_rtd.ops import IGNORED


class ClassificationKind(Kind):
    """Assigns one of several labels to a text or a pair of texts. A `[SEP]` in a text is ordinary text. Texts that are
    too long are truncated at the end. In a pair, tokens are removed one by one from the longer text, or from the
    second if both are equally long (google-research/electra finetune/classification/classification_tasks.py,
    `_truncate_seq_pair`). Training leaves out examples without a label or with an empty text."""

    auto_class = AutoModelForSequenceClassification

    def encode_batch(self, batch: Batch, indices: Sequence[int], training: bool) -> list[Feature]:
        rows: list[tuple[int, list[str], Any]] = []
        for index, texts, label in zip(indices, batch["texts"], batch["label"], strict=True):
            texts = [text.strip() for text in texts]
            if not training or (label is not None and all(texts)):
                orders = [texts, texts[::-1]] if training and self.task.double_unordered else [texts]
                rows += [(index, order, label) for order in orders]
        if not rows:
            return []
        # One token too many is kept, and is removed below by the original's rule: tokenizers differ in which of two
        # equally long texts they shorten.
        columns = zip(*(texts for _, texts, _ in rows), strict=True)
        tokens = self._tokenize(*map(list, columns), truncation=True, max_length=self.max_seq_length + 1)
        features = []
        for row, (index, _, label) in enumerate(rows):
            feature = self._inputs(tokens, row) | {"example": index}
            feature["labels"] = self._target(label) if training else None
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
        return [self._prediction(logits) for logits in outputs]

    def probabilities(self, outputs: Any, features: Dataset, examples: Dataset) -> Any:
        return softmax(outputs, axis=-1)

    def _target(self, label: Any) -> Any:
        return self.task.labels.index(label)

    def _prediction(self, logits: np.ndarray) -> Prediction:
        return self.task.labels[int(logits.argmax())]


class MultiLabelKind(ClassificationKind):
    """Assigns any number of labels to a text or a pair of texts: those whose probability is above 0.5."""

    problem_type = "multi_label_classification"
    report = staticmethod(label_report)
    columns: ClassVar = {"labels": List(Value("float32"))}

    def loss(self, outputs: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Binary cross-entropy of each label of each example."""
        return F.binary_cross_entropy_with_logits(outputs.logits.float(), batch["labels"], reduction="sum")

    def probabilities(self, outputs: Any, features: Dataset, examples: Dataset) -> Any:
        return expit(outputs)

    def _target(self, label: list[str]) -> list[float]:
        return [float(name in label) for name in self.task.labels]

    def _prediction(self, logits: np.ndarray) -> list[str]:
        return [name for name, logit in zip(self.task.labels, logits, strict=True) if logit > 0]


class RegressionKind(ClassificationKind):
    """Assigns a number, without bounds, to a text or a pair of texts. Training minimizes the squared error of labels
    that are standardized by `unit`, the mean and standard deviation of the training labels."""

    problem_type = "regression"
    columns: ClassVar = {"labels": Value("float64")}

    def collate(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        mean, deviation = self.unit
        if "labels" in features[0]:
            features = [{**feature, "labels": (feature["labels"] - mean) / deviation} for feature in features]
        return super().collate(features)

    def loss(self, outputs: Any, batch: Mapping[str, Tensor]) -> Tensor:
        return F.mse_loss(outputs.logits.float().squeeze(-1), batch["labels"], reduction="sum")

    def probabilities(self, outputs: Any, features: Dataset, examples: Dataset) -> Any:
        return None

    def _target(self, label: float) -> float:
        return label

    def _prediction(self, logits: np.ndarray) -> float:
        mean, deviation = self.unit
        return float(logits.item()) * deviation + mean


class MultipleChoiceKind(Kind):
    """Chooses one of several answers to a question. A feature is a question. Its `input_ids` are a list with a
    sequence for each choice: `[CLS] context [SEP] question [SEP] choice [SEP]`. Segment 1 begins after the context; an
    empty question is left out with its [SEP] (CLUEbenchmark/CLUE, run_c3.py, `convert_examples_to_features`). The
    context is truncated, so that the choices stay distinct. If question and choice are too long by themselves, the
    question is left out; if a choice is still too long, the longer of context and choice is truncated."""

    auto_class = AutoModelForMultipleChoice
    input_type: ClassVar = List(Kind.input_type)

    def encode_batch(self, batch: Batch, indices: Sequence[int], training: bool) -> list[Feature]:
        features = []
        columns = (batch[name] for name in ("context", "question", "choices", "label"))
        for index, context, question, choices, label in zip(indices, *columns, strict=True):
            if training and label is None:
                continue
            context, question, *choices = map(self._without_special_tokens, (context, question, *choices))
            asked = question + str(self.tokenizer.sep_token) if question.strip() else ""
            for seconds in ([asked + choice for choice in choices], choices):
                alone = self.tokenizer(seconds, add_special_tokens=False, verbose=False)["input_ids"]
                if fits := max(map(len, alone)) < self.max_seq_length - self.num_special:
                    break
            truncation = "only_first" if fits else "longest_first"
            contexts = [context] * len(choices)
            tokens = self.tokenizer(contexts, seconds, truncation=truncation, max_length=self.max_seq_length)
            feature = {name: tokens[name] for name in self.input_names} | {"labels": label, "example": index}
            feature["length"] = max(map(len, tokens["input_ids"]))
            feature["truncated"] = any(encoding.overflowing for encoding in tokens.encodings)
            features.append(feature)
        return features

    def collate(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Returns inputs (B, choices, L) and, in training, `labels` (B,). A missing choice is filled with one padding
        token, which is attended to, because attention over no token gives NaN on some devices."""
        most = max(len(feature["input_ids"]) for feature in features)
        filling = {"input_ids": [self.tokenizer.pad_token_id], "token_type_ids": [self.tokenizer.pad_token_type_id]}
        filled: list[dict[str, Any]] = []
        for feature in features:
            inputs = {name: feature[name] + [filling[name]] * (most - len(feature[name])) for name in self.input_names}
            filled.append({**inputs, "labels": feature.get("labels", IGNORED)})  # the stock collator needs labels
        batch = dict(DataCollatorForMultipleChoice(self.tokenizer)(filled))
        if "labels" not in features[0]:
            del batch["labels"]
        return batch

    def loss(self, outputs: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the cross-entropy in float32 over the real choices of each question."""
        logits = outputs.logits.float()
        real = batch["attention_mask"].sum(-1) > 1  # a real choice has at least its special tokens
        return self._cross_entropy(logits.masked_fill(~real, torch.finfo(logits.dtype).min), batch["labels"])

    def decode(self, outputs: Any, features: Dataset, examples: Dataset) -> list[Prediction]:
        return [int(logits.argmax()) for logits in self._of_choices(outputs, examples)]

    def probabilities(self, outputs: Any, features: Dataset, examples: Dataset) -> Any:
        return [softmax(logits) for logits in self._of_choices(outputs, examples)]

    def _of_choices(self, outputs: Any, examples: Dataset) -> list[np.ndarray]:
        """The logits of the real choices of each example."""
        choices = map(len, examples["choices"])
        return [logits[:number] for logits, number in zip(outputs, choices, strict=True)]
