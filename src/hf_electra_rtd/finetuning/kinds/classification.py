"""Classification and regression: a label or a number for a text or a pair of texts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase

from hf_electra_rtd.finetuning.examples import Example, TextExample
from hf_electra_rtd.finetuning.heads import load_with_head
from hf_electra_rtd.finetuning.kinds.base import Encoded, Encoding, Kind, Prediction
from hf_electra_rtd.finetuning.kinds.rows import RowFrame, pad_rows
from hf_electra_rtd.finetuning.scores import score_labels
from hf_electra_rtd.finetuning.tasks import Task
from hf_electra_rtd.ops import IGNORED, LossSum


_TEXTS_AT_ONCE = 10_000  # a tokenizer's own output is many times larger than the ids that are kept of it


class _TextKind(Kind):
    """What classification and regression share: all but the label.

    A feature is an example, `[CLS] text [SEP]` or `[CLS] text [SEP] text [SEP]` with segments 0 and 1. What is too
    long is cut at its end, of a pair always the longer text, the second where both are as long
    (google-research/electra finetune/classification/classification_tasks.py, `_truncate_seq_pair`).
    """

    def encode(self, examples: Sequence[Example], training: bool) -> Encoded:
        """See [`Kind.encode`]. Training leaves out examples without a label or with an empty text; to be predicted,
        an empty text is one without tokens. A pair of which the order does not matter is learnt in both.

        Raises:
            ValueError: for a label that the task does not have, or rows without room for a token of text.
        """
        encoded = Encoded(features=[], owners=[], notes=[])
        frames: dict[int, RowFrame] = {}
        for index, (example, texts) in enumerate(self._tokenized(examples)):
            if training and example.label is None:
                encoded.skipped["no label"] += 1
                continue
            if training and not all(texts):
                encoded.skipped["empty text"] += 1
                continue
            frame = frames.get(len(texts)) or frames.setdefault(len(texts), self._frame(len(texts)))
            orders = [texts]
            if training and self.task.double_unordered and len(texts) == 2:
                orders.append(texts[::-1])
            room = self.encoding.max_length - frame.num_special
            encoded.cut += sum(map(len, texts)) > room
            for order in orders:
                feature: dict[str, Any] = {**frame.row(*cut_to_room(order, room))}
                if example.label is not None:
                    feature["labels"] = self._target(example)
                encoded.features.append(feature)
                encoded.owners.append(index)
                encoded.notes.append(None)
        return encoded

    def _tokenized(self, examples: Sequence[Example]) -> Iterator[tuple[TextExample, list[list[int]]]]:
        """Each example, with the token ids of its texts."""
        for start in range(0, len(examples), _TEXTS_AT_ONCE):
            part = examples[start : start + _TEXTS_AT_ONCE]
            texts = [text.strip() for example in part for text in _texts(example)]
            ids = iter(self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"])
            for example in part:
                assert isinstance(example, TextExample)
                yield example, [next(ids) for _ in example.texts]

    def _frame(self, num_texts: int) -> RowFrame:
        frame = RowFrame(self.tokenizer, num_texts)
        if self.encoding.max_length <= frame.num_special:
            raise ValueError(
                f"max_length={self.encoding.max_length} leaves no room for text beside {frame.num_special} special "
                "tokens: raise it."
            )
        return frame

    def decode(self, outputs: Any, encoded: Encoded, examples: Sequence[Example]) -> list[Prediction]:
        """See [`Kind.decode`]: the label with the largest logit, or the number as it comes. Only what training leaves
        out has no feature; it gets None."""
        predictions: list[Prediction] = [None] * len(examples)
        for logits, owner in zip(outputs, encoded.owners, strict=True):
            predictions[owner] = self._prediction(logits)
        return predictions

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, float]:
        """See [`Kind.score`]."""
        judged = [
            (prediction, example.label)
            for prediction, example in zip(predictions, examples, strict=True)
            if isinstance(example, TextExample) and example.label is not None
        ]
        if not judged:
            return {}
        predicted, right = zip(*judged, strict=True)
        return score_labels(self.task.metrics, predicted, right, self.task.labels)

    @abstractmethod
    def _target(self, example: TextExample) -> int | float:
        """What a model is to learn of a labelled example."""

    @abstractmethod
    def _prediction(self, logits: np.ndarray) -> str | float:
        """What the outputs (num_labels,) for an example say."""


class ClassificationKind(_TextKind):
    """One of several labels for a text or a pair of texts.

    Args:
        task: the task.
        tokenizer: of the model.
        encoding: `max_length` is of a row.

    Raises:
        ValueError: for a task with fewer than two labels.
    """

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase, encoding: Encoding) -> None:
        super().__init__(task, tokenizer, encoding)
        if len(task.labels) < 2:
            raise ValueError(
                f"{task.title} has {len(task.labels)} labels ({', '.join(task.labels)}): there is nothing to classify."
            )
        self._label_ids = {label: index for index, label in enumerate(task.labels)}

    def make_model(self, source: str, head: str, from_scratch: bool = False, **config_options: Any) -> PreTrainedModel:
        """See [`Kind.make_model`]. The paper's head is dropout and one dense layer on the vector of [CLS]."""
        return load_with_head(
            AutoModelForSequenceClassification,
            source,
            head,
            self.task.labels,
            from_scratch=from_scratch,
            **config_options,
        )

    def _target(self, example: TextExample) -> int:
        label = example.label
        if not isinstance(label, str) or label not in self._label_ids:
            raise ValueError(f"Row {example.id}: the label {label!r} is none of {', '.join(self.task.labels)}.")
        return self._label_ids[label]

    def _prediction(self, logits: np.ndarray) -> str:
        return self.task.labels[int(logits.argmax())]

    def collate(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        """See [`Kind.collate`].

        Returns:
            `input_ids`, `token_type_ids`, `attention_mask`: (rows, tokens); `labels`: (rows,), if any feature has one,
            -100 for the others.
        """
        batch = pad_rows(features, self.tokenizer)
        if any("labels" in feature for feature in features):
            batch["labels"] = torch.tensor([feature.get("labels", IGNORED) for feature in features])
        return batch

    def loss(self, outputs: Any, batch: dict[str, Tensor]) -> LossSum:
        """See [`Kind.loss`]: cross-entropy in float32."""
        labels = batch["labels"]
        losses = F.cross_entropy(_precise(outputs.logits), labels, ignore_index=IGNORED, reduction="none")
        return LossSum(losses.sum(), losses.detach(), labels.ne(IGNORED).sum())


class RegressionKind(_TextKind):
    """A number for a text or a pair of texts.

    It is learnt in units of the task's `label_scale`, and predicted without bounds.

    Args:
        task: the task.
        tokenizer: of the model.
        encoding: `max_length` is of a row.
    """

    def make_model(self, source: str, head: str, from_scratch: bool = False, **config_options: Any) -> PreTrainedModel:
        """See [`Kind.make_model`]. The paper's head is dropout and one dense layer on the vector of [CLS]."""
        return load_with_head(
            AutoModelForSequenceClassification, source, head, from_scratch=from_scratch, **config_options
        )

    def _target(self, example: TextExample) -> float:
        assert isinstance(example.label, (int, float)), "the loader refuses others"
        return float(example.label) / self.task.label_scale

    def _prediction(self, logits: np.ndarray) -> float:
        return float(logits.item()) * self.task.label_scale

    def collate(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        """See [`Kind.collate`].

        Returns:
            `input_ids`, `token_type_ids`, `attention_mask`: (rows, tokens); `labels`: (rows,), float32, if all
            features have one.
        """
        batch = pad_rows(features, self.tokenizer)
        if all("labels" in feature for feature in features):
            batch["labels"] = torch.tensor([feature["labels"] for feature in features], dtype=torch.float32)
        return batch

    def loss(self, outputs: Any, batch: dict[str, Tensor]) -> LossSum:
        """See [`Kind.loss`]: squared error in float32."""
        labels = batch["labels"]
        losses = F.mse_loss(_precise(outputs.logits).squeeze(-1), labels, reduction="none")
        return LossSum(losses.sum(), losses.detach(), labels.new_full((), labels.numel()))


def cut_to_room(texts: Sequence[list[int]], room: int) -> list[list[int]]:
    """One or two texts of at most `room` tokens together: what taking a token off the end of the longer one (of the
    second, if both are as long) leaves, again and again until they fit.

    Args:
        texts: token ids; they stay as they are.
        room: tokens.
    """
    if len(texts) == 1:
        return [texts[0][:room]]
    first, second = texts
    if len(first) + len(second) <= room:
        return [first, second]
    if len(second) <= room // 2:
        return [first[: room - len(second)], second]
    if len(first) <= (room + 1) // 2:
        return [first, second[: room - len(first)]]
    return [first[: (room + 1) // 2], second[: room // 2]]


def _texts(example: Example) -> tuple[str, ...]:
    assert isinstance(example, TextExample)
    return example.texts


def _precise(logits: Tensor) -> Tensor:
    return logits if logits.dtype.itemsize >= 4 else logits.float()
