"""What every kind of task can do: encode examples, collate batches, compute the loss, decode and score outputs."""

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


Prediction = Any  # JSON: a label, a number, the index of a choice, a list of tags, or an answer with its n-best list
Batch = Mapping[str, Sequence[Any]]  # columns of examples
Feature = dict[str, Any]


class Kind(ABC):
    """A kind of task, for one task and tokenizer. A new kind is a module with a subclass, and an entry in `KINDS`.
    Lengths are in tokens: of a feature with its special tokens; of what two windows of a context share; and of a
    question. Lengths that leave no room for text are a `ValueError`."""

    auto_class: ClassVar[Any]  # `AutoModelFor...`, the class of the model
    problem_type: ClassVar[Any] = None  # of the model's configuration, for stock pipelines
    make_collator: ClassVar[Any] = DataCollatorWithPadding
    report: ClassVar[Any] = None  # `scores.label_report` or `tag_report` of several labels in an example
    # Columns of features, beside those that all kinds have: `labels`, and what `decode` needs.
    columns: ClassVar[Mapping[str, Any]] = {"labels": Value("int64")}
    input_type: ClassVar[Any] = List(Value("int32"))  # of `input_ids` and `token_type_ids`
    class_weights: Sequence[float] | None = None  # of the loss in classification
    unit: tuple[float, float] = (0.0, 1.0)  # of numbers: what an output of 0 and a difference of 1 stand for

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
        tokenizer.padding_side = "right"  # a token's place in its feature is then its place in the outputs
        self.input_names = ["input_ids", *({"token_type_ids"} & set(tokenizer.model_input_names))]

    def encode(self, examples: Dataset, training: bool) -> Dataset:
        """The features of examples (as `data.load_split` gives them), cached by `datasets`: `input_ids`;
        `token_type_ids` where the tokenizer gives them; `length` in tokens; `example`, the index of its example;
        `truncated`, whether that lost text; and what `decode` needs. `training` adds `labels` and what else only
        training sees (both orders of a pair), and leaves out what cannot be learned."""
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
        """What decides the features beside examples and `training`."""
        code = hash_files([inspect.getfile(type(self)), __file__, units.__file__])
        lengths = (self.max_seq_length, self.doc_stride, self.max_query_length)
        sample = dict(self.tokenizer("a b", "c d", return_offsets_mapping=True))  # how pairs are made, and offsets
        tokenizer = [tokenizer_hash(self.tokenizer), *self.input_names, sample]
        return [tokenizer, dataclasses.asdict(self.task), lengths, code]

    def count_unknown(self, features: Dataset) -> tuple[int, int]:
        """How many tokens of features are unknown to the vocabulary, and how many there are."""
        chunks = features.data.column("input_ids").chunks
        counts = [count_unknown(self.tokenizer, pc.list_flatten(ids, recursive=True)) for ids in chunks]
        return sum(unknown for unknown, _ in counts), sum(total for _, total in counts)

    @abstractmethod
    def encode_batch(self, batch: Batch, indices: Sequence[int], training: bool) -> list[Feature]:
        """The features of some examples, whose places are `indices`. See `encode`."""

    def _tokenize(self, *texts: list[str], **options: Any) -> Any:
        """The tokens of texts or of pairs of them; what looks like a special token is text."""
        return self.tokenizer(*texts, verbose=False, split_special_tokens=True, **options)

    def _without_special_tokens(self, text: str) -> str:
        """A text for calls in which special tokens must stay special: what looks like one is left out of it."""
        for token in self.tokenizer.all_special_tokens:
            text = text.replace(token, " ")
        return text

    def _inputs(self, tokens: Any, row: int) -> Feature:
        return {name: tokens[name][row] for name in self.input_names} | {"length": len(tokens["input_ids"][row])}

    def collate(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """A batch: `input_ids`, `token_type_ids`, `attention_mask` (B, L), padded to the longest feature, and
        `labels` if the features have them."""
        names = [name for name in (*self.input_names, "labels") if name in features[0]]
        collator = self.make_collator(self.tokenizer)
        return dict(collator([{name: feature[name] for name in names} for feature in features]))

    def loss(self, outputs: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """The loss of a batch as a sum over its labels other than -100, so that batches of different sizes add up:
        by default cross-entropy in float32. `outputs` are of the model, called with the batch without its labels."""
        return self._cross_entropy(outputs.logits, batch["labels"])

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        """`logits` is (B, classes) or (B, classes, L)."""
        weight = None if self.class_weights is None else logits.new_tensor(self.class_weights, dtype=torch.float32)
        return F.cross_entropy(logits.float(), labels, weight, ignore_index=IGNORED, reduction="sum")

    @abstractmethod
    def decode(self, outputs: Any, features: Dataset, examples: Dataset) -> list[Prediction]:
        """A prediction for each example, those without a feature included. `outputs` are the model's for all features
        (encoded with `training` off) in order: a NumPy array or several, padded with -100 where lengths differ."""

    def probabilities(self, outputs: Any, features: Dataset, examples: Dataset) -> Any:
        """What `decode` chooses by, an array for each example: the probabilities of all labels or choices, or those of
        the tags that are predicted. None where a kind has none."""
        return None

    def score(self, predictions: Sequence[Prediction], examples: Dataset) -> dict[str, float]:
        """The task's metrics over the labeled examples, as fractions or correlations; empty where none is labeled."""
        pairs = [pair for pair in zip(predictions, self.references(examples), strict=True) if pair[1] is not None]
        return self.score_labeled(*zip(*pairs, strict=True)) if pairs else {}

    def references(self, examples: Dataset) -> Sequence[Any]:
        """What predictions are scored by; None where that is not known."""
        return examples["label"]

    def score_labeled(self, predictions: Sequence[Prediction], references: Sequence[Any]) -> dict[str, float]:
        """The metrics of examples whose labels are known."""
        if self.report is None:
            return score_labels(self.task.metrics, predictions, references, self.task.labels)
        overall = self.report(predictions, references)[1]
        return {name: overall[name] for name in self.task.metrics}
