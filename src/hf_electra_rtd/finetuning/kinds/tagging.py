"""Tagging: a tag for every word of a sentence, such as the names or phrases that it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset, List, Value
from scipy.special import softmax
from transformers import AutoModelForTokenClassification, DataCollatorForTokenClassification

from hf_electra_rtd.finetuning.kinds.base import Batch, Feature, Kind, Prediction
from hf_electra_rtd.finetuning.scores import tag_report
from hf_electra_rtd.ops import IGNORED


class TaggingKind(Kind):
    """Predicts a tag for each word. The first token of a word carries its tag (google-research/electra
    finetune/tagging/tagging_tasks.py); its other tokens are not learned. Words are tokenized as in running text, with
    a space before them, except in Chinese. A word without tokens (a control character, a lone accent, a spelled-out
    special token) is read as the unknown token. A sentence that is too long is split into several features, each with
    as many whole words as fit; the original drops the rest. A word that is too long by itself keeps its first tokens.
    """

    auto_class = AutoModelForTokenClassification
    make_collator = DataCollatorForTokenClassification
    report = staticmethod(tag_report)
    # `places`: the index of the first token of each word
    columns: ClassVar = {"labels": List(Value("int64")), "places": List(Value("int32"))}

    def encode_batch(self, batch: Batch, indices: Sequence[int], training: bool) -> list[Feature]:
        space = "" if self.task.language == "zh" else " "
        kept = [
            (index, [space + self._without_special_tokens(word) for word in words], tags)
            for index, words, tags in zip(indices, batch["texts"], batch["label"], strict=True)
            if words and not (training and tags is None)
        ]
        if not kept:
            return []
        vocabulary = sorted({word for _, words, _ in kept for word in words})
        split: dict[str, Any] = {"is_split_into_words": True, "verbose": False}
        alone = self.tokenizer([[word] for word in vocabulary], add_special_tokens=False, **split)["input_ids"]
        lengths = {word: len(tokens) for word, tokens in zip(vocabulary, alone, strict=True)}
        room = self.max_seq_length - self.tokenizer.num_special_tokens_to_add()
        windows: list[tuple[int, int, list[str]]] = []  # sentence, place of the first word, words
        for sentence, (_, words, _) in enumerate(kept):
            used = room
            for place, word in enumerate(words):
                length = min(lengths[word] or 1, room)
                if used + length > room:
                    windows.append((sentence, place, []))
                    used = 0
                windows[-1][2].append(word if lengths[word] else str(self.tokenizer.unk_token))
                used += length
        rows = [words for _, _, words in windows]
        tokens = self.tokenizer(rows, truncation=True, max_length=self.max_seq_length, **split)
        features = []
        for row, (sentence, first, words) in enumerate(windows):
            index, _, tags = kept[sentence]
            word_ids = tokens.word_ids(row)
            places = [word_ids.index(word) for word in range(len(words))]
            labels = [IGNORED] * len(word_ids)
            for place, tag in zip(places, tags[first:] if training else (), strict=False):
                labels[place] = self.task.labels.index(tag)
            feature = self._inputs(tokens, row) | {"labels": labels, "places": places}
            features.append(feature | {"example": index, "truncated": bool(tokens.encodings[row].overflowing)})
        return features

    def decode(self, outputs: Any, features: Dataset, examples: Dataset) -> list[Prediction]:
        words = self._of_words(outputs, features, examples)
        return [[self.task.labels[index] for index in logits.argmax(-1)] for logits in words]

    def probabilities(self, outputs: Any, features: Dataset, examples: Dataset) -> Any:
        return [softmax(logits, axis=-1).max(-1) for logits in self._of_words(outputs, features, examples)]

    def _of_words(self, outputs: Any, features: Dataset, examples: Dataset) -> list[np.ndarray]:
        """The logits (words, tags) of the words of each example."""
        windows = [[np.empty((0, len(self.task.labels)))] for _ in examples]
        for row, (owner, places) in enumerate(zip(features["example"], features["places"], strict=True)):
            windows[owner].append(outputs[row, places])
        return [np.concatenate(of_one) for of_one in windows]
