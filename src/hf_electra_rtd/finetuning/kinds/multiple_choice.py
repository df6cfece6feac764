"""Multiple choice: a question about a context, and several answers of which one is right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import AutoModelForMultipleChoice, PreTrainedModel, PreTrainedTokenizerBase

from hf_electra_rtd.finetuning.examples import ChoiceExample, Example
from hf_electra_rtd.finetuning.heads import load_with_head
from hf_electra_rtd.finetuning.kinds.base import Encoded, Encoding, Kind, Prediction
from hf_electra_rtd.finetuning.kinds.rows import Row, RowFrame, pad_rows
from hf_electra_rtd.finetuning.scores import score_labels
from hf_electra_rtd.finetuning.tasks import Task
from hf_electra_rtd.ops import IGNORED, LossSum


class MultipleChoiceKind(Kind):
    """Multiple choice. A feature is a question, its `input_ids` a list of rows, one a choice:

        [CLS] context [SEP] question [SEP] choice [SEP]

    with segment 0 for the context and 1 for the rest, and without the question and its [SEP] where it is empty.
    Source: CLUEbenchmark/CLUE baselines/models_pytorch/mrc_pytorch/run_c3.py (`convert_examples_to_features`).

    The baseline shortens the longest part of a row. Here the context is cut first, at its end, so that the choices
    keep what tells them apart; then the question, and the choice last.

    Args:
        task: the task.
        tokenizer: of the model.
        encoding: `max_length` is of a row.

    Raises:
        ValueError: for rows without room for a token of text.
    """

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase, encoding: Encoding) -> None:
        super().__init__(task, tokenizer, encoding)
        self._frame = RowFrame(tokenizer, num_parts=2)
        self._room = encoding.max_length - self._frame.num_special
        if self._room < 1:
            raise ValueError(
                f"max_length={encoding.max_length} leaves no room for text beside {self._frame.num_special} special "
                "tokens: raise it."
            )

    def make_model(self, source: str, head: str, from_scratch: bool = False, **config_options: Any) -> PreTrainedModel:
        """See [`Kind.make_model`]. The paper's head is dropout and one dense layer on the vector of [CLS]."""
        model = load_with_head(AutoModelForMultipleChoice, source, head, from_scratch=from_scratch, **config_options)
        # ELECTRA's and XLNet's head can read the last column, which is padding in all rows but the longest.
        summary_type = getattr(model.config, "summary_type", "first")
        if summary_type != "first":
            raise ValueError(
                f"{source} judges a choice by summary_type={summary_type!r}: only 'first', the vector of [CLS], does "
                "not depend on padding. Set it in its config.json."
            )
        return model

    def encode(self, examples: Sequence[Example], training: bool) -> Encoded:
        """See [`Kind.encode`]: one feature an example.

        Raises:
            ValueError: for an example without choices, or whose label is the index of none.
        """
        encoded = Encoded(features=[], owners=[], notes=[])
        tokens = self._tokenize(examples)
        for index, example in enumerate(examples):
            assert isinstance(example, ChoiceExample)
            _check(example)
            if training and example.label is None:
                encoded.skipped["no label"] += 1
                continue
            rows, cut = self._rows(example, tokens)
            feature: dict[str, Any] = {key: [row[key] for row in rows] for key in rows[0]}
            if example.label is not None:
                feature["labels"] = example.label
            encoded.features.append(feature)
            encoded.owners.append(index)
            encoded.notes.append(None)
            encoded.cut += cut
        return encoded

    def _tokenize(self, examples: Iterable[Any]) -> dict[str, list[int]]:
        """Token ids by text, each text once: questions share contexts, and choices share both."""
        texts: dict[str, None] = {}
        for example in examples:
            texts |= dict.fromkeys((example.context, example.question, *example.choices))
        if not texts:
            return {}
        ids = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return dict(zip(texts, ids, strict=True))

    def _rows(self, example: ChoiceExample, tokens: dict[str, list[int]]) -> tuple[list[Row], bool]:
        """A row for each choice, and whether one of them lost text."""
        context, question = tokens[example.context], tokens[example.question]
        rows, cut = [], False
        for text in example.choices:
            choice = tokens[text][: self._room]
            room = self._room - len(choice)
            asked = question[: max(0, room - 1)]
            second = [*asked, self.tokenizer.sep_token_id, *choice] if asked else choice
            room = self._room - len(second)
            rows.append(self._frame.row(context[:room], second))
            cut = cut or len(tokens[text]) > len(choice) or len(question) > len(asked) or len(context) > room
        return rows, cut

    def collate(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        """See [`Kind.collate`]. Questions with fewer choices than the others get rows of one padding token, which is
        attended to: attention over nothing is not a number on some devices.

        Returns:
            `input_ids`, `token_type_ids`, `attention_mask`: (questions, choices, tokens); `labels`: (questions,), if
            any feature has one, -100 for the others.
        """
        num_choices = max(len(feature["input_ids"]) for feature in features)
        names = features[0].keys() - {"labels"}
        filling = {"input_ids": [self.tokenizer.pad_token_id], "token_type_ids": [self.tokenizer.pad_token_type_id]}
        rows = []
        for feature in features:
            real = len(feature["input_ids"])
            rows += [{name: feature[name][choice] for name in names} for choice in range(real)]
            rows += [{name: filling[name] for name in names}] * (num_choices - real)
        padded = pad_rows(rows, self.tokenizer)
        batch = {name: tensor.view(len(features), num_choices, -1) for name, tensor in padded.items()}
        if any("labels" in feature for feature in features):
            batch["labels"] = torch.tensor([feature.get("labels", IGNORED) for feature in features])
        return batch

    def loss(self, outputs: Any, batch: dict[str, Tensor]) -> LossSum:
        """See [`Kind.loss`]: cross-entropy in float32 over the choices that a question really has."""
        logits = outputs.logits if outputs.logits.dtype.itemsize >= 4 else outputs.logits.float()
        # A real row has the special tokens at least; the rows of `collate` have one token.
        real = batch["attention_mask"].sum(-1) > 1
        logits = logits.masked_fill(~real, torch.finfo(logits.dtype).min)
        labels = batch["labels"]
        losses = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
        return LossSum(losses.sum(), losses.detach(), labels.ne(IGNORED).sum())

    def decode(self, outputs: Any, encoded: Encoded, examples: Sequence[Example]) -> list[Prediction]:
        """See [`Kind.decode`]: the index of the choice with the largest logit.

        Only what training leaves out has no feature; it gets None.
        """
        predictions: list[Prediction] = [None] * len(examples)
        for row, owner in enumerate(encoded.owners):
            num_choices = len(encoded.features[row]["input_ids"])
            predictions[owner] = int(outputs[row, :num_choices].argmax())
        return predictions

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, float]:
        """See [`Kind.score`]."""
        judged = [
            (prediction, example.label)
            for prediction, example in zip(predictions, examples, strict=True)
            if isinstance(example, ChoiceExample) and example.label is not None
        ]
        return score_labels(self.task.metrics, *zip(*judged, strict=True)) if judged else {}


def _check(example: ChoiceExample) -> None:
    if not example.choices:
        raise ValueError(f"Question {example.id} has no choices.")
    if example.label is not None and not 0 <= example.label < len(example.choices):
        raise ValueError(
            f"Question {example.id}: the label {example.label} is the index of none of its {len(example.choices)} "
            "choices, which are counted from 0."
        )
