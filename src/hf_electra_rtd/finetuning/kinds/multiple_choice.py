"""Multiple choice: a question about a context, and several answers of which one is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoModelForMultipleChoice, DataCollatorForMultipleChoice

from hf_electra_rtd.finetuning.kinds.base import Batch, Feature, Kind, Prediction, precise
from hf_electra_rtd.ops import IGNORED, LossSum


if TYPE_CHECKING:
    from datasets import Dataset


class MultipleChoiceKind(Kind):
    """Multiple choice. A feature is a question, its `input_ids` a list of sequences, one a choice:

        [CLS] context [SEP] question [SEP] choice [SEP]

    with segment 0 for the context and 1 for the rest, and without the question and its [SEP] where it is empty.
    Source: CLUEbenchmark/CLUE baselines/models_pytorch/mrc_pytorch/run_c3.py (`convert_examples_to_features`).

    The baseline shortens the longest part. Here the context is truncated, so that the choices keep what tells them
    apart; where question and choice are too long without it, the question is left out.
    """

    auto_class = AutoModelForMultipleChoice

    def _columns(self) -> dict[str, tuple[str, int]]:
        return super()._columns() | dict.fromkeys(self.input_names, ("int32", 2))

    def encode_batch(self, batch: Batch, indices: Sequence[int], training: bool) -> list[Feature]:
        features = []
        columns = (batch[name] for name in ("context", "question", "choices", "label"))
        for index, context, question, choices, label in zip(indices, *columns, strict=True):
            if training and label is None:
                continue
            asked = question + str(self.tokenizer.sep_token) if question.strip() else ""
            for seconds in ([asked + choice for choice in choices], choices):
                longest = max(map(len, self.tokenizer(seconds, add_special_tokens=False, verbose=False)["input_ids"]))
                if fits := longest < self.max_seq_length - self.num_special:
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
        """Inputs (B, choices, L) and `labels` (B,), -100 where there are none. Questions with fewer choices than the
        others get choices of one padding token, which is attended to: attention over nothing is not a number on some
        devices."""
        num_choices = max(len(feature["input_ids"]) for feature in features)
        filling = {"input_ids": [self.tokenizer.pad_token_id], "token_type_ids": [self.tokenizer.pad_token_type_id]}
        filled: list[dict[str, Any]] = [
            {name: feature[name] + [filling[name]] * (num_choices - len(feature[name])) for name in self.input_names}
            | {"labels": feature.get("labels", IGNORED)}
            for feature in features
        ]
        return dict(DataCollatorForMultipleChoice(self.tokenizer)(filled))

    def loss(self, outputs: Any, batch: Mapping[str, Tensor]) -> LossSum:
        """Cross-entropy in float32 over the choices that a question really has."""
        logits = precise(outputs.logits)
        real = batch["attention_mask"].sum(-1) > 1  # a real choice has the special tokens at least
        return self._cross_entropy(logits.masked_fill(~real, torch.finfo(logits.dtype).min), batch["labels"])

    def decode(self, outputs: Any, features: Dataset, examples: Dataset) -> list[Prediction]:
        """The index of the choice with the largest logit."""
        choices = map(len, examples["choices"])
        return [int(logits[:number].argmax()) for logits, number in zip(outputs, choices, strict=True)]
