"""What every kind of task can do: encode examples, make a model, compute its loss, decode and score its outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_electra_rtd.finetuning.examples import Example
from hf_electra_rtd.finetuning.tasks import Task
from hf_electra_rtd.ops import LossSum


Prediction = Any  # JSON: a label, a number, the index of a choice, a list of tags, or an answer with its n-best list


@dataclass(frozen=True)
class Encoding:
    """How text becomes tokens.

    Attributes:
        max_length: tokens of a row, special ones included.
        doc_stride: question answering: tokens that two windows of a context share.
        max_query_length: question answering: tokens of a question; what is longer is cut.
    """

    max_length: int = 128
    doc_stride: int = 128
    max_query_length: int = 64


@dataclass
class Encoded:
    """Examples as a model takes them.

    Attributes:
        features: one dict of lists a row of the model: `input_ids`, `token_type_ids` where the tokenizer gives them,
            `labels` where the example has them, and nothing that cannot be made a tensor. An example may have several.
        owners: for each feature, the index of its example.
        notes: for each feature, what decoding needs besides the model's outputs (offsets, word ids); may be None.
        cut: examples that lost text because they were too long.
        skipped: examples without a feature, by reason (`"empty text"`, ...).
    """

    features: list[dict[str, Any]]
    owners: list[int]
    notes: list[Any]
    cut: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


class Kind(ABC):
    """A kind of task, for one task and tokenizer.

    Args:
        task: the task.
        tokenizer: of the model.
        encoding: lengths.
    """

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase, encoding: Encoding) -> None:
        self.task = task
        self.tokenizer = tokenizer
        self.encoding = encoding

    @abstractmethod
    def make_model(self, source: str, head: str, from_scratch: bool = False, **config_options: Any) -> PreTrainedModel:
        """An encoder with the head of this kind, in float32.

        Args:
            source: a directory or Hub id: any encoder (its head is drawn anew), or a model fine-tuned on this kind of
                task, whose head is kept.
            head: `"transformers"` (the stock head) or `"paper"`.
            from_scratch: take the architecture of the source alone, and draw all weights anew.
            **config_options: of the encoder's configuration, such as `hidden_dropout_prob`.

        Raises:
            ValueError: for a source that cannot be loaded, whose labels are not the task's, or a head that this
                architecture cannot have.
        """

    @abstractmethod
    def encode(self, examples: Sequence[Example], training: bool) -> Encoded:
        """Examples as features.

        Args:
            examples: of the task.
            training: whether they are to be learnt: adds what only training sees (both orders of a pair), leaves out
                what cannot be learnt (no label), counted in `skipped`.
        """

    @abstractmethod
    def collate(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        """A batch: padded to its longest row, `attention_mask` added; `labels` padded with -100, of floats nothing."""

    def inputs(self, batch: dict[str, Tensor], training: bool) -> dict[str, Tensor]:
        """What the model is called with: a batch without its labels. A head that is shown the right answer in training
        (that of a question) has them in another name.

        Args:
            batch: as `collate` makes it.
            training: whether the batch is learnt.
        """
        return {name: tensor for name, tensor in batch.items() if name != "labels"}

    @abstractmethod
    def loss(self, outputs: Any, batch: dict[str, Tensor]) -> LossSum:
        """The loss of a batch as a sum over its labels other than -100, so that batches of different sizes add up.

        Args:
            outputs: of the model, called with `inputs` of the batch.
            batch: with `labels`.
        """

    @abstractmethod
    def decode(self, outputs: Any, encoded: Encoded, examples: Sequence[Example]) -> list[Prediction]:
        """A prediction for each example, the skipped ones included.

        Args:
            outputs: of the model for all features in order, as NumPy arrays, float32, padded with -100 where rows
                differ in length: one array, or a tuple of arrays where the model gives several.
            encoded: the features.
            examples: what they were made from.
        """

    @abstractmethod
    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, float]:
        """The task's metrics over the labelled examples, as fractions or correlations (1 is perfect); empty where no
        example is labelled."""
