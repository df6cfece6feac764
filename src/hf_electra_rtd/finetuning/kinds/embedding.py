"""Similarity of two texts by their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import ClassVar

from datasets import List, Value
from transformers import AutoModel

from hf_electra_rtd.finetuning.kinds.base import Batch, Feature, Kind, Prediction


class EmbeddingKind(Kind):
    """Predicts the cosine similarity of the embeddings of two texts. Each text is encoded by itself and truncated at
    its end. A feature has the tokens of both texts; in training, possibly of a single one. Training leaves out
    examples with an empty text. sentence-transformers makes the batches (`finetuning.embeddings`)."""

    auto_class = AutoModel
    input_type: ClassVar = List(Kind.input_type)
    columns: ClassVar = {"labels": Value("float64")}

    def encode_batch(self, batch: Batch, indices: Sequence[int], training: bool) -> list[Feature]:
        tokens = self._tokenize(list(chain(*batch["texts"])), truncation=True, max_length=self.max_seq_length)
        rows = iter(range(len(tokens["input_ids"])))
        features = []
        for index, texts, label in zip(indices, batch["texts"], batch["label"], strict=True):
            of_example = [next(rows) for _ in texts]
            if training and not all(text.strip() for text in texts):
                continue
            feature: Feature = {name: [tokens[name][row] for row in of_example] for name in self.input_names}
            feature |= {"labels": label, "example": index, "length": max(map(len, feature["input_ids"]))}
            feature["truncated"] = any(tokens.encodings[row].overflowing for row in of_example)
            features.append(feature)
        return features

    def decode(self, outputs: Sequence[float], features: object, examples: object) -> list[Prediction]:
        return [float(cosine) for cosine in outputs]
