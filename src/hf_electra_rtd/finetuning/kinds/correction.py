"""Correction of sentences: the right word for each word, most of which are right already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from datasets import Dataset, List, Value
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from transformers import AutoModelForMaskedLM, DataCollatorForTokenClassification

from hf_electra_rtd.data.units import cut_text, find_units, replace_parts, replacement
from hf_electra_rtd.encoders.outputs import HeadOutput
from hf_electra_rtd.finetuning.correction_scores import score_correction
from hf_electra_rtd.finetuning.kinds.base import Batch, Feature, Kind, Prediction
from hf_electra_rtd.ops import IGNORED, best_and_lead


# The share of right tokens that are masked in training, so that a model does not just learn to copy (Wu et al. 2023,
# arXiv 2305.17721).
MASKED_SHARE = 0.2
# The weights of the two losses (shibing624/pycorrector, MacBERT4CSC).
DETECTION_WEIGHT = 0.3
CORRECTION_WEIGHT = 0.7
_SUFFIX = "ForCorrection"


class _Models:
    """Maps classes of configurations to stock masked language models with an additional head that detects errors."""

    def __contains__(self, config_class: Any) -> bool:
        return config_class in AutoModelForMaskedLM._model_mapping

    def __getitem__(self, config_class: Any) -> Any:
        return _correction_class(AutoModelForMaskedLM._model_mapping[config_class])


@cache
def _correction_class(stock: Any) -> Any:
    """Returns a stock masked language model that also detects errors. Its tensors keep their stock names, so that a
    generator's head for tokens is kept."""

    class Model(stock):
        takes_head = True

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.detection = nn.Linear(config.hidden_size, 1)
            self.post_init()

        def forward(self, input_ids: Tensor, whole: bool = False, **inputs: Any) -> HeadOutput:
            """Returns token logits (B, L, V) and detection logits (B, L) in training or if `whole`. Otherwise `logits`
            (B, L, 2) are the best token and its lead over the input token (see `best_and_lead`)."""
            output = super().forward(input_ids=input_ids, output_hidden_states=True, **inputs)
            detection_BL = self.detection(output.hidden_states[-1]).squeeze(-1).float()
            if self.training or whole:
                return HeadOutput(output.logits, detection_logits=detection_BL)
            return HeadOutput(best_and_lead(output.logits, input_ids))

    Model.__name__ = Model.__qualname__ = stock.__name__.removesuffix("ForMaskedLM") + _SUFFIX
    return Model


class CorrectionKind(Kind):
    """Corrects sentences, whose `label` is the same sentence without errors. A text that is too long is cut into
    several features, at ends of sentences if possible.

    The loss is a weighted sum of the cross-entropy of the right token at every position and the binary cross-entropy
    of whether the token there is wrong. In training, a share of the right tokens is masked; these have no binary loss.
    A word of several tokens, or of unknown characters, is neither learned nor changed, and a word whose right form is
    such a word is not learned. Training leaves out sentences whose label has another number of words.
    """

    auto_class: ClassVar[Any] = SimpleNamespace(__name__="AutoModelForCorrection", _model_mapping=_Models())
    make_collator = DataCollatorForTokenClassification
    # `spans`: for each word of one known token, the token's index, and the word's start and end (exclusive) in the
    # text.
    columns: ClassVar = {
        "labels": List(Value("int64")),
        "spans": List(List(Value("int32"))),
    }

    def encode_batch(self, batch: Batch, indices: Sequence[int], training: bool) -> list[Feature]:
        features: list[Feature] = []
        unknown = self.tokenizer.unk_token_id
        rows = zip(indices, (texts[0] for texts in batch["texts"]), batch["label"], strict=True)
        for index, text, right in rows:
            if not text.strip() or (training and right is None):
                continue
            targets = self._targets(text, right) if training else {}
            if targets is None:
                continue
            pieces = cut_text(text, self.tokenizer, self.max_seq_length)
            texts = [text[begin:end] for begin, end in pieces]
            tokens = self._tokenize(texts, truncation=True, max_length=self.max_seq_length)
            for row, (begin, end) in enumerate(pieces):
                feature = self._inputs(tokens, row)
                labels = [IGNORED] * feature["length"]
                spans = []
                for unit in find_units(text[begin:end], tokens.encodings[row]):
                    if unit.last - unit.first == 1 and feature["input_ids"][unit.first] != unknown:
                        span = begin + unit.start, begin + unit.stop
                        labels[unit.first] = targets.get(span, IGNORED)
                        spans.append([unit.first, *span])
                if training and set(labels) == {IGNORED}:
                    continue  # nothing to learn from
                feature |= {"labels": labels, "spans": spans, "example": index}
                features.append(feature | {"truncated": bool(tokens.encodings[row].overflowing)})
        return features

    def _targets(self, text: str, right: str) -> dict[tuple[int, int], int] | None:
        """Maps the start and end of each word of a text to its right token, if it has a single, known one. None if the
        texts have different numbers of words."""
        encodings = self._tokenize([text, right]).encodings
        words, others = map(find_units, (text, right), encodings)
        if len(words) != len(others):
            return None
        ids = encodings[1].ids
        targets = {}
        for word, other in zip(words, others, strict=True):
            if other.last - other.first == 1 and ids[other.first] != self.tokenizer.unk_token_id:
                targets[word.start, word.stop] = ids[other.first]
        return targets

    def corrupt(self, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Masks a share of the right tokens."""
        is_right = batch["labels"].eq(batch["input_ids"])
        masked = is_right & torch.rand_like(is_right, dtype=torch.float32).lt(MASKED_SHARE)
        return {**batch, "input_ids": batch["input_ids"].masked_fill(masked, int(self.tokenizer.mask_token_id))}

    def loss(self, outputs: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the weighted sum of both losses in float32, over the words of one token."""
        correction = self._cross_entropy(outputs.logits, batch["labels"])
        judged = batch["labels"].ne(IGNORED) & batch["input_ids"].ne(int(self.tokenizer.mask_token_id))
        is_wrong = batch["labels"].ne(batch["input_ids"]).float()
        detection = F.binary_cross_entropy_with_logits(outputs.detection_logits, is_wrong, reduction="none") * judged
        return CORRECTION_WEIGHT * correction + DETECTION_WEIGHT * detection.sum()

    def decode(self, outputs: Any, features: Dataset, examples: Dataset) -> list[Prediction]:
        """Returns for each sentence its `source`, and the `text` in which words are replaced by likelier ones."""
        texts = [texts[0] for texts in examples["texts"]]
        changes: list[list[tuple[int, int, str]]] = [[] for _ in texts]
        rows = zip(features["example"], features["spans"], features["input_ids"], strict=True)
        for row, (owner, spans, ids) in enumerate(rows):
            for place, start, stop in spans:
                best, gain = outputs[row, place]
                if best != ids[place] and gain > 0:
                    right = replacement(texts[owner], texts[owner][start:stop], self.tokenizer, int(best))
                    if right is not None:
                        changes[owner].append((start, stop, right))
        pairs = zip(texts, changes, strict=True)
        return [{"text": replace_parts(text, of_text), "source": text} for text, of_text in pairs]

    def score_labeled(self, predictions: Sequence[Prediction], references: Sequence[Any]) -> dict[str, float]:
        """Returns the metrics of the task, named by family, level and measure."""
        sources = [prediction["source"] for prediction in predictions]
        texts = [prediction["text"] for prediction in predictions]
        scores = score_correction(sources, texts, references)
        return {name: scores[name] for name in self.task.metrics}
