"""Questions whose answer is a passage of a context: in windows where it is too long for the model."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import AutoModelForQuestionAnswering, PreTrainedTokenizerBase

from hf_electra_rtd.finetuning.answer_scores import score_cmrc, score_squad, score_squad_v2
from hf_electra_rtd.finetuning.kinds.base import Batch, Feature, Kind, Prediction
from hf_electra_rtd.ops import IGNORED, LossSum
from hf_electra_rtd.tasks import Task


if TYPE_CHECKING:
    from datasets import Dataset

N_BEST = 20  # answers that are kept (google-research/electra configure_finetuning.py, `n_best_size`)
MAX_ANSWER_TOKENS = 30  # the same, `max_answer_length`
# A token is a character: of the answers that CMRC 2018 trains on, 21 % have more than 30, 0.4 % more than 100.
MAX_ANSWER_TOKENS_ZH = 100
ANSWERABLE_WEIGHT = 0.5  # of the loss, beside the mean of start and end (the same, `answerable_weight`)
NO_ANSWER_THRESHOLD = 0.0  # as the evaluation of SQuAD 2.0 has it before a better one is sought on dev
_SURELY_NONE = 1000.0  # a no-answer score above all that models give: there was nothing to read


class QuestionAnsweringKind(Kind):
    """Extractive question answering (SQuAD 1.1 and 2.0, CMRC 2018, DRCD).

    A feature is a question and a window of its context. Its labels are the tokens where the answer starts and ends,
    and, where a context may hold none, 1 or 0 for whether this window holds one. A window without the answer is
    labeled [CLS] in training too, as in google-research/electra (finetune/qa/qa_tasks.py, `featurize`). There,
    however, every window counts as answerable if the question is; here each has its own label, because prediction
    takes the likeliest window.

    A prediction is `text`; `nbest`, up to 20 different texts, each with its `probability` among these, best first; and
    where a context may hold no answer, `no_answer_score`: above 0, `text` is empty.

    Raises:
        ValueError: if the lengths leave windows no room to move on.
    """

    auto_class = AutoModelForQuestionAnswering
    # Of a window: the place of its first token; that of [CLS], which means no answer; and where each token begins and
    # ends in the context, in characters.
    columns: ClassVar = {"labels": ("int64", 1), "first": ("int32", 0), "null": ("int32", 0), "offsets": ("int32", 2)}

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase, *args: Any, **kwargs: Any) -> None:
        super().__init__(task, tokenizer, *args, **kwargs)
        room = self.max_seq_length - self.max_query_length - self.num_special
        if not 0 <= self.doc_stride < room:
            raise ValueError(
                f"--max_seq_length {self.max_seq_length} leaves {max(room, 0)} tokens for the context, beside a "
                f"question of up to {self.max_query_length} tokens, and windows cannot share {self.doc_stride} of "
                "them. Raise it, or lower --doc_stride or --max_query_length."
            )
        self.max_answer_tokens = MAX_ANSWER_TOKENS_ZH if task.language == "zh" else MAX_ANSWER_TOKENS
        self.label_names = ("start", "end", "answerable")[: 3 if task.unanswerable else 2]

    # ---- Features ----

    def encode_batch(self, batch: Batch, indices: Sequence[int], training: bool) -> list[Feature]:
        columns = (batch[name] for name in ("question", "context", "answers", "starts"))
        kept = [
            (index, question, context, answers, starts)
            for index, question, context, answers, starts in zip(indices, *columns, strict=True)
            if question.strip() and context.strip()
            if not training or answers or (self.task.unanswerable and answers is not None)
        ]
        if not kept:
            return []
        questions = self._shorten([question for _, question, *_ in kept])
        tokens = self.tokenizer(
            questions,
            [context for _, _, context, *_ in kept],
            truncation="only_second",
            max_length=self.max_seq_length,
            stride=self.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        rows: list[Feature] = []
        owners = tokens["overflow_to_sample_mapping"]
        for owner, group in itertools.groupby(range(len(owners)), key=owners.__getitem__):
            index, question, _, answers, starts = kept[owner]
            windows = [self._window(tokens, row) for row in group]
            if not any(len(window["offsets"]) for window in windows):
                continue  # a context of characters that the tokenizer drops
            labels = self._labels(windows, answers, starts)
            if training and labels[0] is not None and labels[0][0] == IGNORED:
                continue  # the context does not have the answer
            truncated = questions[owner] != question
            for window, label in zip(windows, labels, strict=True):
                rows.append(window | {"labels": label, "example": index, "truncated": truncated})
        return rows

    def _shorten(self, questions: list[str]) -> list[str]:
        limit = self.max_query_length
        offsets = self.tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        return [
            question[: of_question[limit - 1][1]] if len(of_question) > limit else question
            for question, of_question in zip(questions, offsets, strict=True)
        ]

    def _window(self, tokens: Any, row: int) -> Feature:
        places = [place for place, part in enumerate(tokens.sequence_ids(row)) if part == 1]
        first, last = (places[0], places[-1] + 1) if places else (0, 0)
        null = tokens["input_ids"][row].index(self.tokenizer.cls_token_id)
        offsets = tokens["offset_mapping"][row][first:last]
        return self._inputs(tokens, row) | {"first": first, "null": null, "offsets": offsets}

    def _labels(
        self, windows: list[Feature], answers: list[str] | None, starts: list[int] | None
    ) -> list[list[int] | None]:
        """Of each window; None where the answer is not known, -100 where the context does not have it."""
        number = len(self.label_names)
        if answers is None or starts is None:
            return [None] * len(windows)
        labels: list[list[int] | None] = [[window["null"], window["null"], 0][:number] for window in windows]
        if not answers and self.task.unanswerable:
            return labels
        tokens = self._find_tokens(windows, starts[0], starts[0] + len(answers[0])) if answers else None
        if tokens is None:
            return [[IGNORED] * number for _ in windows]
        step = len(windows[0]["offsets"]) - self.doc_stride  # tokens of the context from a window to the next
        for row, window in enumerate(windows):
            first, last = (token - row * step for token in tokens)
            if first >= 0 and last < len(window["offsets"]):
                labels[row] = [window["first"] + first, window["first"] + last, 1][:number]
        return labels

    def _find_tokens(self, windows: list[Feature], start: int, end: int) -> tuple[int, int] | None:
        """The first and the last token that have a character of an answer, counted in the context; None where there
        is none."""
        if start < 0:
            return None
        offsets = [window["offsets"][self.doc_stride if row else 0 :] for row, window in enumerate(windows)]
        begins, ends = np.array(list(itertools.chain(*offsets))).T
        first = int(np.searchsorted(ends, start, side="right"))
        last = int(np.searchsorted(begins, end)) - 1
        return (first, last) if first <= last else None

    # ---- Loss ----

    def loss(self, outputs: Any, batch: Mapping[str, Tensor]) -> LossSum:
        """Of a feature: (cross-entropy of its start + that of its end) / 2, and half the binary cross-entropy of
        whether there is an answer, where the head predicts that (google-research/electra finetune/qa/qa_tasks.py,
        `get_prediction_module`). It is multiplied by the number of labels of a feature: then the mean over labels is
        the mean over features."""
        labels = batch["labels"]
        losses = torch.zeros(labels.shape, device=labels.device)
        for column, logits in enumerate((outputs["start_logits"], outputs["end_logits"])):
            positions = labels[:, column]
            nll = F.cross_entropy(logits.float(), positions, ignore_index=IGNORED, reduction="none")
            losses[:, column] = 0.5 * nll
        real = labels != IGNORED
        if self.task.unanswerable and "answerable_logits" in outputs:
            logits, wanted = outputs["answerable_logits"].float(), labels[:, 2].clamp(min=0).float()
            losses[:, 2] = ANSWERABLE_WEIGHT * F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        losses = losses.where(real, 0.0) * labels.shape[1]
        return LossSum(losses.sum(), losses, real.sum())

    # ---- Predictions ----

    def decode(self, outputs: Any, features: Dataset, examples: Dataset) -> list[Prediction]:
        """The best answer over all windows. Outputs: logits of starts and of ends, and, of a head that predicts it,
        of whether there is an answer."""
        windows: list[list[tuple[int, Feature]]] = [[] for _ in examples]
        columns = features.select_columns(["example", "first", "null", "offsets"])
        for row, window in enumerate(columns):
            windows[window["example"]].append((row, window))
        contexts = examples["context"]
        return [self._predict(context, outputs, own) for context, own in zip(contexts, windows, strict=True)]

    def _predict(self, context: str, outputs: Any, windows: list[tuple[int, Feature]]) -> dict[str, Any]:
        scores: dict[str, float] = {}
        for row, window in windows:
            offsets = window["offsets"]
            inside = slice(window["first"], window["first"] + len(offsets))
            spans = _best_spans(outputs[0][row, inside], outputs[1][row, inside], self.max_answer_tokens)
            for first, last, score in spans:
                text = context[offsets[first][0] : offsets[last][1]].strip()
                if text:
                    scores[text] = max(score, scores.get(text, score))
        best = sorted(scores.items(), key=lambda item: item[1], reverse=True)[:N_BEST]
        weights = np.exp([score - best[0][1] for _, score in best])
        prediction: dict[str, Any] = {
            "text": best[0][0] if best else "",
            "nbest": [
                {"text": text, "probability": float(share)}
                for (text, _), share in zip(best, weights / weights.sum(), strict=True)
            ],
        }
        if self.task.unanswerable:
            if not best:
                score = _SURELY_NONE
            elif len(outputs) > 2:
                score = -max(float(outputs[2][row]) for row, _ in windows)
            else:
                nulls = [(row, window["null"]) for row, window in windows]
                score = min(float(outputs[0][place]) + float(outputs[1][place]) for place in nulls) - best[0][1]
            prediction["no_answer_score"] = score
            if score > NO_ANSWER_THRESHOLD:
                prediction["text"] = ""
        return prediction

    def references(self, examples: Dataset) -> Sequence[Any]:
        return [answers if answers or self.task.unanswerable else None for answers in examples["answers"]]

    def score_labeled(self, predictions: Sequence[Prediction], references: Sequence[Any]) -> dict[str, float]:
        if not self.task.unanswerable:
            score = score_cmrc if self.task.language == "zh" else score_squad
            return score([prediction["text"] for prediction in predictions], references)
        return score_squad_v2(
            # What would be answered if there must be an answer: the threshold is applied there.
            [prediction["nbest"][0]["text"] if prediction["nbest"] else "" for prediction in predictions],
            references,
            [prediction["no_answer_score"] for prediction in predictions],
            NO_ANSWER_THRESHOLD,
        )


def _best_spans(starts: np.ndarray, ends: np.ndarray, max_tokens: int) -> list[tuple[int, int, float]]:
    """The best of all spans of a window by the sum of their logits: first and last token, and that sum."""
    padded = np.concatenate([ends, np.full(max_tokens - 1, -np.inf, dtype=ends.dtype)])
    # (tokens, max_tokens): of the spans that begin at a token, by how many tokens follow it.
    scores = starts[:, None] + np.lib.stride_tricks.sliding_window_view(padded, max_tokens)
    best = np.argpartition(-scores, min(N_BEST, scores.size) - 1, axis=None)[:N_BEST]
    firsts, more = np.unravel_index(best, scores.shape)
    spans = zip(firsts.tolist(), (firsts + more).tolist(), scores[firsts, more].tolist(), strict=True)
    return [span for span in spans if span[2] > -np.inf]
