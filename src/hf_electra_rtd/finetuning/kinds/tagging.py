"""Tagging: a tag for every word of a sentence, such as the names or phrases that it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import AutoModelForTokenClassification, PreTrainedModel, PreTrainedTokenizerBase

from hf_electra_rtd.finetuning.examples import Example, TaggedExample
from hf_electra_rtd.finetuning.heads import PAPER_HEAD, STOCK_HEAD, load_with_head
from hf_electra_rtd.finetuning.kinds.base import Encoded, Encoding, Kind, Prediction
from hf_electra_rtd.finetuning.kinds.rows import RowFrame, pad_lists, pad_rows
from hf_electra_rtd.finetuning.scores import score_labels, score_tags
from hf_electra_rtd.finetuning.tasks import Task
from hf_electra_rtd.ops import IGNORED, LossSum


class TaggingKind(Kind):
    """Tagging. The first token of a word carries its tag (google-research/electra finetune/tagging/tagging_tasks.py);
    its other tokens are not learnt.

    Every word is tokenized for itself, and every word gets one tag: one that leaves no token (a control character, a
    space, an accent alone) is read as the unknown token. A sentence that is longer than a row is continued in further
    ones, each filled with as many whole words as fit, in training too; the original drops what is too long. Of a word
    that does not fit into a row by itself, the first tokens are kept.

    Args:
        task: the task; its labels are the tags.
        tokenizer: of the model.
        encoding: `max_length` is of a row.

    Raises:
        ValueError: for a tokenizer without an unknown token, or rows without room for a token of text.
    """

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase, encoding: Encoding) -> None:
        super().__init__(task, tokenizer, encoding)
        self._frame = RowFrame(tokenizer, num_parts=1)
        self._room = encoding.max_length - self._frame.num_special
        if self._room < 1:
            raise ValueError(
                f"max_length={encoding.max_length} leaves no room for text beside {self._frame.num_special} special "
                "tokens: raise it."
            )
        if tokenizer.unk_token_id is None:
            raise ValueError("The tokenizer has no unk_token: tagging needs one for words that leave no token.")
        self._tag_ids = {tag: index for index, tag in enumerate(task.labels)}

    def make_model(self, source: str, head: str, from_scratch: bool = False, **config_options: Any) -> PreTrainedModel:
        """See [`Kind.make_model`]. The paper's head, one dense layer on every token, is that of `transformers`, which
        adds dropout: both names give the same."""
        stock = STOCK_HEAD if head == PAPER_HEAD else head
        return load_with_head(
            AutoModelForTokenClassification,
            source,
            stock,
            labels=self.task.labels,
            from_scratch=from_scratch,
            **config_options,
        )

    def encode(self, examples: Sequence[Example], training: bool) -> Encoded:
        """See [`Kind.encode`]: a feature for each row of a sentence, in order; its note has the places of the first
        tokens of its words. A sentence without words has none.

        Raises:
            ValueError: for an example that has not one tag a word, or a tag that is not one of the task's.
        """
        encoded = Encoded(features=[], owners=[], notes=[])
        kept: list[tuple[int, TaggedExample]] = []
        for index, example in enumerate(examples):
            assert isinstance(example, TaggedExample)
            self._check(example)
            if not example.words:
                encoded.skipped["no words"] += 1
            elif training and example.tags is None:
                encoded.skipped["no tags"] += 1
            else:
                kept.append((index, example))
        tokenized = self._tokenize([example.words for _, example in kept])
        for (index, example), words in zip(kept, tokenized, strict=True):
            encoded.cut += any(len(word) > self._room for word in words)
            for window in _windows([word[: self._room] for word in words], self._room):
                feature, places = self._feature(window, example)
                encoded.features.append(feature)
                encoded.owners.append(index)
                encoded.notes.append(places)
        return encoded

    def _check(self, example: TaggedExample) -> None:
        if example.tags is None:
            return
        if len(example.tags) != len(example.words):
            raise ValueError(f"Sentence {example.id} has {len(example.words)} words, but {len(example.tags)} tags.")
        for word, tag in zip(example.words, example.tags, strict=True):
            if tag not in self._tag_ids:
                raise ValueError(
                    f"Sentence {example.id}: the tag {tag!r} of {word!r} is none of {', '.join(self.task.labels)}."
                )

    def _tokenize(self, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """The token ids of every word of every sentence, at least one a word."""
        if not sentences:
            return []
        batch = self.tokenizer(
            [list(words) for words in sentences], is_split_into_words=True, add_special_tokens=False, verbose=False
        )
        tokenized = []
        for row, words in enumerate(sentences):
            ids: list[list[int]] = [[] for _ in words]
            for token, word in zip(batch["input_ids"][row], batch.word_ids(row), strict=True):
                ids[word].append(token)
            tokenized.append([tokens or [self.tokenizer.unk_token_id] for tokens in ids])
        return tokenized

    def _feature(self, window: _Window, example: TaggedExample) -> tuple[dict[str, Any], list[int]]:
        """The feature of some words of a sentence, and the place of each word's first token."""
        first_word, words = window
        feature: dict[str, Any] = {**self._frame.row([token for word in words for token in word])}
        places, place = [], self._frame.start
        for word in words:
            places.append(place)
            place += len(word)
        if example.tags is not None:
            labels = [IGNORED] * len(feature["input_ids"])
            for place, tag in zip(places, example.tags[first_word:], strict=False):
                labels[place] = self._tag_ids[tag]
            feature["labels"] = labels
        return feature, places

    def collate(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        """See [`Kind.collate`].

        Returns:
            `input_ids`, `token_type_ids`, `attention_mask` and, if any feature has them, `labels`: (rows, tokens).
        """
        batch = pad_rows(features, self.tokenizer)
        if any("labels" in feature for feature in features):
            batch["labels"] = pad_lists(
                [feature.get("labels", [IGNORED] * len(feature["input_ids"])) for feature in features], IGNORED
            )
        return batch

    def loss(self, outputs: Any, batch: dict[str, Tensor]) -> LossSum:
        """See [`Kind.loss`]: cross-entropy in float32 over the words."""
        logits = outputs.logits if outputs.logits.dtype.itemsize >= 4 else outputs.logits.float()
        labels = batch["labels"]
        losses = F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none")
        return LossSum(losses.sum(), losses.detach(), labels.ne(IGNORED).sum())

    def decode(self, outputs: Any, encoded: Encoded, examples: Sequence[Example]) -> list[Prediction]:
        """See [`Kind.decode`]: for each sentence, the tag with the largest logit at each word."""
        predictions: list[Prediction] = [[] for _ in examples]
        for row, owner in enumerate(encoded.owners):
            best = outputs[row, encoded.notes[row]].argmax(-1)
            predictions[owner] += [self.task.labels[index] for index in best]
        return predictions

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, float]:
        """See [`Kind.score`]: `accuracy` is of words, the others are of chunks (`scores.score_tags`)."""
        judged = [
            (prediction, example.tags)
            for prediction, example in zip(predictions, examples, strict=True)
            if isinstance(example, TaggedExample) and example.tags
        ]
        if not judged:
            return {}
        predicted, right = zip(*judged, strict=True)
        values = score_tags([name for name in self.task.metrics if name != "accuracy"], predicted, right)
        if "accuracy" in self.task.metrics:
            words = [[tag for tags in sentences for tag in tags] for sentences in (predicted, right)]
            values |= score_labels(["accuracy"], *words)
        return {name: values[name] for name in self.task.metrics}


_Window = tuple[int, list[list[int]]]  # index of the first word, and the token ids of the words


def _windows(words: list[list[int]], room: int) -> list[_Window]:
    """As many whole words as fit into each window; no word may be longer than a window."""
    windows: list[_Window] = []
    used = room
    for index, word in enumerate(words):
        if used + len(word) > room:
            windows.append((index, []))
            used = 0
        windows[-1][1].append(word)
        used += len(word)
    return windows
