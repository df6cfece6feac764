"""Classification by label words: how original a discriminator finds a word for each class.

A template turns a text and the word of a class into one text, such as `A fine film. It was great.` The class whose
word looks most original is the prediction, by the head of pre-training. Source: Xia et al. 2022, "Prompting ELECTRA"
(arXiv 2205.15223), and Li et al. 2022 (arXiv 2203.03235). Of words with several tokens the logits are averaged, as in
the first one's code (facebookresearch/ELECTRA-Fewshot-Learning, `mean_prob`).

B examples, C classes, L tokens of a text with a word in it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from datasets import List, Value
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import ElectraConfig, ElectraForPreTraining, PreTrainedTokenizerBase
from transformers.modeling_outputs import SequenceClassifierOutput

from hf_electra_rtd.base.files import known_names
from hf_electra_rtd.base.tasks import Task
from hf_electra_rtd.finetuning.kinds.base import Batch, Feature, Kind
from hf_electra_rtd.finetuning.kinds.classification import ClassificationKind, collate_choices


_PLACES = re.compile(r"\{([^{}]*)\}")  # in a template


def with_label_words(task: Task, words: Sequence[str] | None, template: str | None) -> Task:
    """The task with words for its classes (`class=word`) and the template in which they stand, if they are given.
    Words of other classes or not of all, and a template without their places, are a ValueError."""
    if words is None or template is None:
        return task
    of_class = dict(word.partition("=")[::2] for word in words)
    if len(of_class) < len(words):
        raise ValueError("label_words gives one class two words. Give each class one.")
    for name in of_class:
        if name not in task.labels:
            raise ValueError(f"label_words: no class {name!r}. {known_names(name, task.labels, 'classes')}")
    for name in task.labels:
        if not of_class.get(name, "").strip():
            raise ValueError(f"label_words has no word for the class {name!r}. Add {name}=WORD.")
    wanted = ["label", "text", "text_pair"] if len(task.columns) == 2 else ["label", "text"]
    if sorted(_PLACES.findall(template)) != wanted:
        places = ", ".join(f"{{{name}}}" for name in wanted)
        raise ValueError(f"template {template!r} must have each of {places} once, and no other braces.")
    return dataclasses.replace(task, label_words=of_class, template=template)


class ElectraForLabelWords(ElectraForPreTraining):
    """A discriminator that scores the words at `places` in texts."""

    takes_head = True
    is_whole = True  # it adds nothing to what pre-training leaves

    def forward(self, input_ids: Tensor, places: Tensor, **inputs: Tensor) -> SequenceClassifierOutput:
        """Logits (B, C), float32, of a word's being original: the mean over its tokens. `input_ids` and other inputs
        are (B, C, L), `places` (B, C, 2): the word's first token, and the one after its last."""
        flat = {name: tensor.flatten(0, 1) for name, tensor in {"input_ids": input_ids, **inputs}.items()}
        replaced_BCL = super().forward(**flat).logits.view(input_ids.shape).float()
        index_L = torch.arange(input_ids.shape[-1], device=places.device)
        first_BC1, after_BC1 = places.split(1, -1)
        inside_BCL = (index_L >= first_BC1) & (index_L < after_BC1)
        return SequenceClassifierOutput(logits=-(replaced_BCL * inside_BCL).sum(-1) / inside_BCL.sum(-1))


class LabelWordsKind(ClassificationKind):
    """Classification by words in a template: a feature is a text with each class's word in turn. What is too long is
    cut at the end of the text, of a pair the longer one. The loss is that of pre-training at the words alone: the
    right one is original, all others are replaced. Pairs are learned in one order."""

    auto_class: ClassVar[Any] = SimpleNamespace(
        __name__=ElectraForPreTraining.__name__, _model_mapping={ElectraConfig: ElectraForLabelWords}
    )
    input_type: ClassVar = List(Kind.input_type)
    columns: ClassVar = {"labels": Value("int64"), "places": List(List(Value("int32")))}

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase, *args: int, **lengths: int) -> None:
        super().__init__(task, tokenizer, *args, **lengths)
        seen = set()
        for word in task.label_words.values():
            ids = self._tokenize([word], add_special_tokens=False)["input_ids"][0]
            if not ids or tokenizer.unk_token_id in ids:
                raise ValueError(f"label_words: the vocabulary has no word {word!r}. Choose another.")
            if tuple(ids) in seen:
                raise ValueError(f"label_words: {word!r} has the tokens of another class's word. Choose another.")
            seen.add(tuple(ids))

    def encode_batch(self, batch: Batch, indices: Sequence[int], training: bool) -> list[Feature]:
        features = []
        for index, texts, label in zip(indices, batch["texts"], batch["label"], strict=True):
            texts = [text.strip() for text in texts]
            if training and (label is None or not all(texts)):
                continue
            tokens, places, truncated = self._fill(texts)
            feature = {name: tokens[name] for name in self.input_names}
            feature |= {"length": max(map(len, tokens["input_ids"])), "places": places, "truncated": truncated}
            features.append(feature | {"example": index, "labels": self._target(label) if training else None})
        return features

    def _fill(self, texts: list[str]) -> tuple[Any, list[list[int]], bool]:
        """The tokens of a text with each word, the places of the words among them, and whether the text was cut."""
        words = [self.task.label_words[label] for label in self.task.labels]
        named = dict(zip(("text", "text_pair"), texts, strict=False))
        parts = self.task.template.split("{label}")
        before, after = (_PLACES.sub(lambda place: named[place[1]], part) for part in parts)
        tokens = self._tokenize([before + word + after for word in words])
        surplus = max(map(len, tokens["input_ids"])) - self.max_seq_length
        if surplus > 0:
            alone = self._tokenize(texts, add_special_tokens=False).encodings
            longer = max(range(len(texts)), key=lambda part: (len(alone[part]), part))
            keep = len(alone[longer]) - -(-surplus // len(texts))
            if keep < 1:
                raise ValueError(f"max_seq_length is {self.max_seq_length}: the template leaves no room for text.")
            shorter = texts[longer][: alone[longer].offsets[keep][0]]
            tokens, places, _ = self._fill([*texts[:longer], shorter, *texts[longer + 1 :]])
            return tokens, places, True
        places = []
        for word, encoding in zip(words, tokens.encodings, strict=True):
            start = len(before)
            stop = start + len(word)
            of_word = [place for place, (begin, end) in enumerate(encoding.offsets) if begin < stop and start < end]
            places.append([of_word[0], of_word[-1] + 1])
        return tokens, places, False

    def collate(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Inputs (B, C, L), `places` (B, C, 2) and, in training, `labels` (B,)."""
        return collate_choices(self.tokenizer, features, (*self.input_names, "places"))

    def loss(self, outputs: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Binary cross-entropy in float32: the mean over the words of an example."""
        is_right = F.one_hot(batch["labels"], outputs.logits.shape[1])
        losses = F.binary_cross_entropy_with_logits(outputs.logits, is_right.float(), reduction="none")
        return losses.mean(-1).sum()
