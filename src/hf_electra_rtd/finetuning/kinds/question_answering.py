"""Questions whose answer is a passage of a context. A context that is too long for the model is split into windows."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset, List, Value
from scipy.special import softmax
from torch import Tensor
from transformers import AutoModelForQuestionAnswering, PreTrainedTokenizerBase

from hf_electra_rtd.base.tasks import Task
from hf_electra_rtd.finetuning.kinds.base import Batch, Feature, Kind, Prediction
from hf_electra_rtd.finetuning.scores import score_answers, score_squad_v2


# google-research/electra configure_finetuning.py: `n_best_size`, `max_answer_length`. In Chinese a token is a
# character, and of the training answers of CMRC 2018, 21 % have more than 30 characters and 0.4 % more than 100.
N_BEST = 20
MAX_ANSWER_TOKENS = 30
MAX_ANSWER_TOKENS_ZH = 100
_SURELY_NONE = 1000.0  # above any no-answer score of a model; for an example without a candidate answer


class QuestionAnsweringKind(Kind):
    """Extracts answers (SQuAD 1.1 and 2.0, CMRC 2018, DRCD, own tasks).

    A feature is a question and a window of its context. Its labels are the tokens where the answer starts and ends. A
    window without the answer is labeled [CLS], the first token, as in google-research/electra
    (finetune/qa/qa_tasks.py, `featurize`).

    A prediction is a dict: `text`; `nbest`, up to 20 different texts, best first, each with its `probability` among
    these; and, if a context may hold no answer, `no_answer_score`. If this score is above 0, `text` is empty.
    """

    auto_class = AutoModelForQuestionAnswering
    # For a window: the index of its first context token, and the start and end of each in the context, in characters.
    columns: ClassVar = {
        "first": Value("int32"),
        "offsets": List(List(Value("int32"))),
        "labels": List(Value("int64")),
    }

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase, *args: Any, **kwargs: Any) -> None:
        super().__init__(task, tokenizer, *args, **kwargs)
        room = self.max_seq_length - self.max_query_length - self.num_special
        if not 0 <= self.doc_stride < room:
            raise ValueError(
                f"max_seq_length is {self.max_seq_length}, which leaves {max(room, 0)} tokens for the context. Raise "
                f"it, or lower max_query_length or doc_stride ({self.doc_stride})."
            )
        self.max_answer_tokens = MAX_ANSWER_TOKENS_ZH if task.language == "zh" else MAX_ANSWER_TOKENS

    # ---- Features ----

    def encode_batch(self, batch: Batch, indices: Sequence[int], training: bool) -> list[Feature]:
        columns = (batch[name] for name in ("question", "context", "label", "starts"))
        kept = []
        for index, question, context, answers, starts in zip(indices, *columns, strict=True):
            is_learned = answers or (self.task.unanswerable and answers is not None)
            if question.strip() and context.strip() and (is_learned or not training):
                kept.append((index, question, context, answers, starts))
        if not kept:
            return []
        questions = self._shorten([question for _, question, *_ in kept])
        tokens = self._tokenize(
            questions,
            [context for _, _, context, *_ in kept],
            truncation="only_second",
            max_length=self.max_seq_length,
            stride=self.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        features: list[Feature] = []
        owners = tokens["overflow_to_sample_mapping"]
        for owner, rows in itertools.groupby(range(len(owners)), key=owners.__getitem__):
            index, question, _, answers, starts = kept[owner]
            windows = []
            for row in rows:
                places = [place for place, part in enumerate(tokens.sequence_ids(row)) if part == 1]
                first, last = (places[0], places[-1] + 1) if places else (0, 0)
                offsets = tokens["offset_mapping"][row][first:last]
                windows.append(self._inputs(tokens, row) | {"first": first, "offsets": offsets})
            if not any(window["offsets"] for window in windows):
                continue  # the tokenizer drops all characters of the context
            labels = self._labels(windows, answers, starts) if training else [None] * len(windows)
            if not labels:
                continue  # the context does not have the answer
            truncated = questions[owner] != question
            for window, label in zip(windows, labels, strict=True):
                features.append(window | {"labels": label, "example": index, "truncated": truncated})
        return features

    def _shorten(self, questions: list[str]) -> list[str]:
        limit = self.max_query_length
        encodings = self._tokenize(questions, add_special_tokens=False).encodings
        return [
            text[: encoding.offsets[limit - 1][1]] if len(encoding) > limit else text
            for text, encoding in zip(questions, encodings, strict=True)
        ]

    def _labels(self, windows: list[Feature], answers: list[str], starts: list[int]) -> list[list[int]]:
        """The labels of each window; an empty list if the context does not have the answer."""
        if not answers:
            return [[0, 0]] * len(windows)
        if starts[0] < 0:
            return []
        # The first and the last token of the whole context that have a character of the answer.
        offsets = [window["offsets"][self.doc_stride if row else 0 :] for row, window in enumerate(windows)]
        begins, ends = np.array(list(itertools.chain(*offsets))).T
        first = int(np.searchsorted(ends, starts[0], side="right"))
        last = int(np.searchsorted(begins, starts[0] + len(answers[0]))) - 1
        if first > last:
            return []
        step = len(windows[0]["offsets"]) - self.doc_stride  # context tokens from one window's start to the next one's
        labels = []
        for row, window in enumerate(windows):
            is_inside = row * step <= first and last < row * step + len(window["offsets"])
            shift = window["first"] - row * step
            labels.append([first + shift, last + shift] if is_inside else [0, 0])
        return labels

    # ---- Loss ----

    def loss(self, outputs: Any, batch: Mapping[str, Tensor]) -> Tensor:
        """Returns the sum of the cross-entropies of starts and of ends. Its mean over the labels, two for each
        feature, is the original's loss (google-research/electra finetune/qa/qa_tasks.py, `get_prediction_module`)."""
        starts = self._cross_entropy(outputs["start_logits"], batch["labels"][:, 0])
        return starts + self._cross_entropy(outputs["end_logits"], batch["labels"][:, 1])

    # ---- Predictions ----

    def decode(self, outputs: Any, features: Dataset, examples: Dataset) -> list[Prediction]:
        """Returns the best answer to each question over all windows. `outputs` are the logits of starts and ends."""
        windows: list[list[tuple[int, Feature]]] = [[] for _ in examples]
        for row, window in enumerate(features.select_columns(["example", "first", "offsets"])):
            windows[window["example"]].append((row, window))
        return [self._predict(*of_one, outputs) for of_one in zip(examples["context"], windows, strict=True)]

    def _predict(self, context: str, windows: list[tuple[int, Feature]], outputs: Any) -> dict[str, Any]:
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
        shares = softmax([score for _, score in best]).tolist() if best else []
        nbest = [{"text": text, "probability": share} for (text, _), share in zip(best, shares, strict=True)]
        prediction: dict[str, Any] = {"text": best[0][0] if best else "", "nbest": nbest}
        if self.task.unanswerable:
            score = _SURELY_NONE
            if best:
                score = min(float(outputs[0][row, 0]) + float(outputs[1][row, 0]) for row, _ in windows) - best[0][1]
            prediction["no_answer_score"] = score
            if score > 0:
                prediction["text"] = ""
        return prediction

    def references(self, examples: Dataset) -> Sequence[Any]:
        return [answers if answers or self.task.unanswerable else None for answers in examples["label"]]

    def score_labeled(self, predictions: Sequence[Prediction], references: Sequence[Any]) -> dict[str, float]:
        score = score_squad_v2 if self.task.unanswerable else score_answers
        return score([prediction["text"] for prediction in predictions], references, self.task.language)


def _best_spans(starts: np.ndarray, ends: np.ndarray, max_tokens: int) -> list[tuple[int, int, float]]:
    """The best spans of a window by the sum of their two logits: each with its first and last token, and that sum."""
    padded = np.concatenate([ends, np.full(max_tokens - 1, -np.inf, dtype=ends.dtype)])
    # (tokens, max_tokens): the scores of spans by their first token and by how many tokens follow it.
    scores = starts[:, None] + np.lib.stride_tricks.sliding_window_view(padded, max_tokens)
    best = np.argpartition(-scores, min(N_BEST, scores.size) - 1, axis=None)[:N_BEST]
    firsts, more = np.unravel_index(best, scores.shape)
    spans = zip(firsts.tolist(), (firsts + more).tolist(), scores[firsts, more].tolist(), strict=True)
    return [span for span in spans if span[2] > -np.inf]
