"""The base class of all kinds of tasks: encodes examples, collates batches, computes the loss, decodes and scores."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import pyarrow.compute as pc
import torch
from datasets import Dataset, Features, List, Value
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from hf_electra_rtd.base.files import hash_files
from hf_electra_rtd.base.tasks import Task
from hf_electra_rtd.data import units
from hf_electra_rtd.data.tokenization import count_unknown, tokenizer_hash
from hf_electra_rtd.finetuning.scores import score_labels
from hf_electra_rtd.ops import IGNORED


Prediction = Any  # JSON: a label, a number, the index of a choice, a list of labels or tags, or a dict
Batch = Mapping[str, Sequence[Any]]  # columns of examples
Feature = dict[str, Any]


class Kind(ABC):
    """Encodes, decodes and scores the examples of one task with one tokenizer. A new kind is a module with a subclass,
    and an entry in `KINDS`. Lengths are in tokens: `max_seq_length` of a feature with its special tokens, `doc_stride`
    of the overlap of two windows of a context, and `max_query_length` of a question. Raises `ValueError` for lengths
    that leave no room for text."""

    auto_class: ClassVar[Any]  # `AutoModelFor...`, the class of the model
    problem_type: ClassVar[Any] = None  # in the model's configuration, where stock pipelines read it
    make_collator: ClassVar[Any] = DataCollatorWithPadding
    report: ClassVar[Any] = None  # `scores.label_report` or `tag_report`, if examples have several labels
    # The columns of features that differ between kinds: `labels`, and what `decode` needs.
    columns: ClassVar[Mapping[str, Any]] = {"labels": Value("int64")}
    input_type: ClassVar[Any] = List(Value("int32"))  # the type of `input_ids` and `token_type_ids`
    class_weights: Sequence[float] | None = None  # weights of the classes in the classification loss
    unit: tuple[float, float] = (0.0, 1.0)  # of numbers (mean, deviation): an output x stands for mean + deviation * x

    def __init__(
        self,
        task: Task,
        tokenizer: PreTrainedTokenizerBase,
        max_seq_length: int = 128,
        doc_stride: int = 128,
        max_query_length: int = 64,
    ) -> None:
        self.task = task
        self.tokenizer = tokenizer
        self.max_seq_length = max_seq_length
        self.doc_stride = doc_stride
        self.max_query_length = max_query_length
        self.num_special = tokenizer.num_special_tokens_to_add(pair=True)
        if max_seq_length <= self.num_special:
            raise ValueError(f"max_seq_length is {max_seq_length}, which leaves no room for text. Raise it.")
        tokenizer.padding_side = "right"  # so that a token has the same index in its feature and in the outputs
        self.input_names = ["input_ids", *({"token_type_ids"} & set(tokenizer.model_input_names))]

    def encode(self, examples: Dataset, training: bool) -> Dataset:
        """Returns the features of examples (those of `data.load_split`), cached by `datasets`. A feature has
        `input_ids`; `token_type_ids` if the tokenizer returns them; its `length` in tokens; `example`, the index of
        its example; `truncated`, whether text was cut off; and the columns that `decode` needs. `training` adds
        `labels` and the features that only training needs (both orders of a pair), and leaves out examples that cannot
        be learned."""
        common = {"length": Value("int32"), "example": Value("int64"), "truncated": Value("bool")}
        types = {**dict.fromkeys(self.input_names, self.input_type), **common, **self.columns}
        if not training:
            del types["labels"]

        def as_columns(batch: Batch, indices: Sequence[int]) -> dict[str, list[Any]]:
            features = self.encode_batch(batch, indices, training)
            return {name: [feature[name] for feature in features] for name in types}

        identity = [examples._fingerprint, self._identity, training]
        return examples.map(
            as_columns,
            batched=True,
            with_indices=True,
            remove_columns=examples.column_names,
            features=Features(types),
            new_fingerprint=hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16],
        )

    @cached_property
    def _identity(self) -> list[Any]:
        """All inputs that determine the features, other than the examples and `training`."""
        code = hash_files([inspect.getfile(type(self)), __file__, units.__file__])
        lengths = (self.max_seq_length, self.doc_stride, self.max_query_length)
        sample = dict(self.tokenizer("a b", "c d", return_offsets_mapping=True))  # how pairs and offsets are made
        tokenizer = [tokenizer_hash(self.tokenizer), *self.input_names, sample]
        return [tokenizer, dataclasses.asdict(self.task), lengths, code]

    def count_unknown(self, features: Dataset) -> tuple[int, int]:
        """Returns how many tokens of the features are unknown, and how many there are without special tokens."""
        chunks = features.data.column("input_ids").chunks
        counts = [count_unknown(self.tokenizer, pc.list_flatten(ids, recursive=True)) for ids in chunks]
        return sum(unknown for unknown, _ in counts), sum(total for _, total in counts)

    @abstractmethod
    def encode_batch(self, batch: Batch, indices: Sequence[int], training: bool) -> list[Feature]:
        """Returns the features of a batch of examples, whose indices are `indices`. See `encode`."""

    def _tokenize(self, *texts: list[str], **options: Any) -> Any:
        """Tokenizes texts or pairs of texts. A special token that is spelled out in a text is ordinary text."""
        return self.tokenizer(*texts, verbose=False, split_special_tokens=True, **options)

    def _without_special_tokens(self, text: str) -> str:
        """Removes special tokens that are spelled out in a text, for calls that do not treat them as ordinary text."""
        for token in self.tokenizer.all_special_tokens:
            text = text.replace(token, " ")
        return text

    def _inputs(self, tokens: Any, row: int) -> Feature:
        return {name: tokens[name][row] for name in self.input_names} | {"length": len(tokens["input_ids"][row])}

    def collate(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Returns a batch: `input_ids`, `token_type_ids`, `attention_mask` (B, L), padded to the longest feature, and
        `labels` if the features have them."""
        names = [name for name in (*self.input_names, "labels") if name in features[0]]
        collator = self.make_collator(self.tokenizer)
        return dict(collator([{name: feature[name] for name in names} for feature in features]))

    def corrupt(self, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Returns a batch as the model is trained on it; by default, as it is. Random numbers belong here: those of
        the collator, which works ahead, would differ in a resumed run."""
        return batch

    def loss(self, outputs: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the loss of a batch, summed over its labels other than -100, so that batches of different sizes add
        up. By default it is the cross-entropy in float32. `outputs` are those of the model for the batch without its
        labels."""
        return self._cross_entropy(outputs.logits, batch["labels"])

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The cross-entropy of `logits`, which are (..., classes), for `labels` of the leading shape."""
        logits = logits.flatten(0, -2)  # classes stay last: (B, classes, L) takes a CPU nearly twice the time
        labels = labels.flatten()
        weight = None if self.class_weights is None else logits.new_tensor(self.class_weights, dtype=torch.float32)
        return F.cross_entropy(logits.float(), labels, weight, ignore_index=IGNORED, reduction="sum")

    @abstractmethod
    def decode(self, outputs: Any, features: Dataset, examples: Dataset) -> list[Prediction]:
        """Returns a prediction for each example, including examples without a feature. `outputs` are the model's
        outputs for all features (encoded with `training` off), in order: one NumPy array or several, padded with -100
        where lengths differ."""

    def probabilities(self, outputs: Any, features: Dataset, examples: Dataset) -> Any:
        """Returns an array of probabilities for each example: those of all labels or choices, or those of the
        predicted tags. Returns None for kinds without probabilities."""
        return None

    def score(self, predictions: Sequence[Prediction], examples: Dataset) -> dict[str, float]:
        """Returns the task's metrics over the labeled examples, as fractions or correlations; empty if none is
        labeled."""
        pairs = [pair for pair in zip(predictions, self.references(examples), strict=True) if pair[1] is not None]
        return self.score_labeled(*zip(*pairs, strict=True)) if pairs else {}

    def references(self, examples: Dataset) -> Sequence[Any]:
        """Returns what each prediction is scored against; None for an example without a label."""
        return examples["label"]

    def score_labeled(self, predictions: Sequence[Prediction], references: Sequence[Any]) -> dict[str, float]:
        """Returns the metrics of predictions for labeled examples."""
        if self.report is None:
            return score_labels(self.task.metrics, predictions, references, self.task.labels)
        overall = self.report(predictions, references)[1]
        return {name: overall[name] for name in self.task.metrics}
