"""Questions whose answer is a passage of a context: in windows where it is too long for the model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from transformers import (
    AutoModelForQuestionAnswering,
    ElectraConfig,
    ElectraForQuestionAnswering,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_electra_rtd.finetuning.answer_head import ElectraForJointQuestionAnswering
from hf_electra_rtd.finetuning.answer_scores import score_cmrc, score_squad, score_squad_v2
from hf_electra_rtd.finetuning.examples import Answer, Example, QuestionExample
from hf_electra_rtd.finetuning.heads import (
    HEADS,
    STOCK_HEAD,
    Encoder,
    load_model,
    load_with_head,
    open_encoder,
    set_options,
)
from hf_electra_rtd.finetuning.kinds.base import Encoded, Encoding, Kind, Prediction
from hf_electra_rtd.finetuning.kinds.rows import pad_rows
from hf_electra_rtd.finetuning.tasks import Task
from hf_electra_rtd.ops import LossSum


N_BEST = 20  # answers that are kept (google-research/electra configure_finetuning.py, `n_best_size`)
MAX_ANSWER_TOKENS = 30  # the same, `max_answer_length`
# A token is a character: of the answers that CMRC 2018 trains on, 21 % have more than 30, 0.4 % more than 100.
MAX_ANSWER_TOKENS_ZH = 100
ANSWERABLE_WEIGHT = 0.5  # of the loss, beside the mean of start and end (the same, `answerable_weight`)
NO_ANSWER_THRESHOLD = 0.0  # as the evaluation of SQuAD 2.0 has it before a better one is sought on dev
_SURELY_NONE = 1000.0  # a no-answer score above all that models give: there was nothing to read
_IGNORED = -100
_BATCH = 1000  # examples that are tokenised at once
_NOT_FOUND = "the answer is not in the context"


@dataclass(frozen=True)
class Window:
    """The part of a context that a row of the model holds.

    Attributes:
        first: place in the row of its first token.
        offsets: (tokens, 2), where each begins and ends in the context, in characters.
        null: place in the row of [CLS], which stands for no answer.
    """

    first: int
    offsets: np.ndarray
    null: int


class QuestionAnsweringKind(Kind):
    """Extractive question answering (SQuAD 1.1 and 2.0, CMRC 2018, DRCD).

    A row is a question and as much of its context as there is room for; a longer context makes several. Labels of a
    row are the tokens where the answer starts and ends, and, where a context may hold none, 1 or 0 for whether this
    part of it holds one. A part without the answer is labelled [CLS] in training too: so does google-research/electra
    (finetune/qa/qa_tasks.py, `featurize`; its comment says that it is thrown out), and [CLS] takes the probability
    that the other parts then win by. There, however, every part counts as answerable if the question is; here each
    is told for itself, because prediction takes the likeliest of the parts.

    A prediction is `text`; `nbest`, up to 20 different texts, each with its `probability` among these, best first; and
    where a context may hold no answer, `no_answer_score`: above 0, `text` is empty.

    Args:
        task: the task.
        tokenizer: of the model; a fast one.
        encoding: lengths.

    Raises:
        ValueError: if the lengths leave windows no room to move on.
    """

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase, encoding: Encoding) -> None:
        super().__init__(task, tokenizer, encoding)
        special = tokenizer.num_special_tokens_to_add(pair=True)
        room = encoding.max_length - encoding.max_query_length - special
        if not 0 <= encoding.doc_stride < room:
            raise ValueError(
                f"Rows of {encoding.max_length} tokens leave {max(room, 0)} for the context, beside a question of up "
                f"to {encoding.max_query_length} and {special} special tokens; two windows cannot share "
                f"{encoding.doc_stride} of them. Raise the maximum length, or lower doc_stride or max_query_length."
            )
        self.max_answer_tokens = MAX_ANSWER_TOKENS_ZH if task.language == "zh" else MAX_ANSWER_TOKENS

    # ---- Model ----

    def make_model(self, source: str, head: str, from_scratch: bool = False, **config_options: Any) -> PreTrainedModel:
        if head not in HEADS:
            raise ValueError(f"There is no head {head!r}: choose one of {', '.join(HEADS)}.")
        encoder = open_encoder(source, weights=not from_scratch)
        kept = not from_scratch and encoder.is_a(ElectraForJointQuestionAnswering)
        if head == STOCK_HEAD and not kept:
            return load_with_head(
                AutoModelForQuestionAnswering, source, STOCK_HEAD, from_scratch=from_scratch, **config_options
            )
        self._check_joint(encoder, kept, from_scratch)
        set_options(encoder, **config_options)
        if not kept:
            encoder.config.joint_answerability = self.task.unanswerable
        return load_model(ElectraForJointQuestionAnswering, encoder, keep_head=kept, from_scratch=from_scratch)

    def _check_joint(self, encoder: Encoder, kept: bool, from_scratch: bool) -> None:
        config = encoder.config
        if not isinstance(config, ElectraConfig):
            raise ValueError(
                f"The paper's head is for ELECTRA, but {encoder.name} is a model of type {config.model_type!r}: take "
                f"head={STOCK_HEAD!r}."
            )
        if not from_scratch and encoder.is_a(ElectraForQuestionAnswering):
            raise ValueError(
                f"{encoder.name} was fine-tuned with the head of transformers, which cannot become the paper's: take "
                f"head={STOCK_HEAD!r}, or the model that it was fine-tuned from."
            )
        if kept and self.task.unanswerable and not config.joint_answerability:
            raise ValueError(
                f"{encoder.name} was fine-tuned for questions that have an answer, but those of {self.task.title} may "
                f"have none: take the model that it was fine-tuned from."
            )

    # ---- Features ----

    def encode(self, examples: Sequence[Example], training: bool) -> Encoded:
        encoded = Encoded([], [], [])
        readable: list[tuple[int, QuestionExample]] = []
        for index, example in enumerate(examples):
            assert isinstance(example, QuestionExample)
            reason = self._reason_to_skip(example, training)
            if reason:
                encoded.skipped[reason] += 1
            else:
                readable.append((index, example))
        for begin in range(0, len(readable), _BATCH):
            batch = readable[begin : begin + _BATCH]
            questions = self._cut_questions([example.question for _, example in batch])
            windows = self._windows(questions, [example.context for _, example in batch])
            for (index, example), question, rows in zip(batch, questions, windows, strict=True):
                if not any(len(window.offsets) for _, window in rows):
                    encoded.skipped["empty context"] += 1  # of characters that the tokenizer drops
                    continue
                labels = self._labels(example, [window for _, window in rows])
                if training and labels is not None and labels[0][0] == _IGNORED:
                    encoded.skipped[_NOT_FOUND] += 1
                    continue
                encoded.cut += question != example.question
                for row, (feature, window) in enumerate(rows):
                    encoded.features.append(feature if labels is None else {**feature, "labels": labels[row]})
                    encoded.owners.append(index)
                    encoded.notes.append(window)
        return encoded

    def _reason_to_skip(self, example: QuestionExample, training: bool) -> str | None:
        if not example.question.strip():
            return "empty question"
        if not example.context.strip():
            return "empty context"
        if training and example.answers is None:
            return "no label"
        if training and not example.answers and not self.task.unanswerable:
            return "no answer"
        return None

    def _cut_questions(self, questions: list[str]) -> list[str]:
        limit = self.encoding.max_query_length
        offsets = self.tokenizer(questions, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        return [
            question[: of_question[limit - 1][1]] if len(of_question) > limit else question
            for question, of_question in zip(questions, offsets, strict=True)
        ]

    def _windows(
        self, questions: list[str], contexts: list[str]
    ) -> Iterator[list[tuple[dict[str, list[int]], Window]]]:
        """For each question, its rows in order: what the model takes, and the window."""
        batch = self.tokenizer(
            questions,
            contexts,
            truncation="only_second",
            max_length=self.encoding.max_length,
            stride=self.encoding.doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=False,
        )
        names = [name for name in ("input_ids", "token_type_ids") if name in batch]
        owners = batch["overflow_to_sample_mapping"]
        for _, rows in itertools.groupby(range(len(owners)), key=owners.__getitem__):
            result = []
            for row in rows:
                places = [place for place, part in enumerate(batch.sequence_ids(row)) if part == 1]
                first, last = (places[0], places[-1] + 1) if places else (0, 0)
                offsets = np.array(batch["offset_mapping"][row][first:last], dtype=np.int32).reshape(-1, 2)
                null = batch["input_ids"][row].index(self.tokenizer.cls_token_id)
                result.append(({name: batch[name][row] for name in names}, Window(first, offsets, null)))
            yield result

    def _labels(self, example: QuestionExample, windows: list[Window]) -> list[list[int]] | None:
        """Of each window; None where the answer is not known."""
        columns = 3 if self.task.unanswerable else 2
        if example.answers is None:
            return None
        none = [[window.null, window.null, 0][:columns] for window in windows]
        if not example.answers and self.task.unanswerable:
            return none
        tokens = self._find_tokens(example.answers[0], example.context, windows) if example.answers else None
        if tokens is None:
            return [[_IGNORED] * columns for _ in windows]
        labels = none
        for row, (window, begin) in enumerate(zip(windows, self._begins(windows), strict=True)):
            first, last = (token - begin for token in tokens)
            if first >= 0 and last < len(window.offsets):
                labels[row] = [window.first + first, window.first + last, 1][:columns]
        return labels

    def _begins(self, windows: list[Window]) -> list[int]:
        """Where each window begins, in tokens of the context."""
        step = len(windows[0].offsets) - self.encoding.doc_stride
        return [row * step for row in range(len(windows))]

    def _find_tokens(self, answer: Answer, context: str, windows: list[Window]) -> tuple[int, int] | None:
        """The first and the last token of an answer, counted in the context; None where it has no place there."""
        if answer.start < 0:
            return None
        assert context.startswith(answer.text, answer.start), "places of answers are put right where they are read"
        shared = self.encoding.doc_stride
        parts = [windows[0].offsets, *(window.offsets[shared:] for window in windows[1:])]
        starts, ends = np.concatenate(parts).T
        # The tokens that have a character of it: words that it is a part of are learnt whole.
        first = int(np.searchsorted(ends, answer.start, side="right"))
        last = int(np.searchsorted(starts, answer.start + len(answer.text))) - 1
        return (first, last) if first <= last else None

    def collate(self, features: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = pad_rows(features, self.tokenizer)
        if "labels" in features[0]:
            batch["labels"] = torch.tensor([feature["labels"] for feature in features])
        return batch

    # ---- Loss ----

    def inputs(self, batch: dict[str, Tensor], training: bool) -> dict[str, Tensor]:
        inputs = super().inputs(batch, training)
        if "labels" in batch:
            # The paper's head gives the ends for the right start, which the loss needs (in prediction it does not use
            # it). Stock heads know the name too, and do nothing with it unless they are told the ends.
            inputs["start_positions"] = batch["labels"][:, 0]
        return inputs

    def loss(self, outputs: Any, batch: dict[str, Tensor]) -> LossSum:
        """Of a row: (cross-entropy of its start + that of its end) / 2, and half the binary cross-entropy of whether
        there is an answer, where the head tells that (google-research/electra finetune/qa/qa_tasks.py,
        `get_prediction_module`). It is multiplied by the number of labels of a row: then the mean over labels is the
        mean over rows."""
        labels = batch["labels"]
        losses = torch.zeros(labels.shape, device=labels.device)
        for column, logits in enumerate((outputs["start_logits"], outputs["end_logits"])):
            positions = labels[:, column]
            losses[:, column] = 0.5 * F.cross_entropy(
                logits.float(), positions, ignore_index=_IGNORED, reduction="none"
            )
        real = labels != _IGNORED
        if self.task.unanswerable and "answerable_logits" in outputs:
            logits, wanted = outputs["answerable_logits"].float(), labels[:, 2].clamp(min=0).float()
            losses[:, 2] = ANSWERABLE_WEIGHT * F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        losses = losses.where(real, 0.0) * labels.shape[1]
        return LossSum(losses.sum(), losses, real.sum())

    # ---- Predictions ----

    def decode(self, outputs: Any, encoded: Encoded, examples: Sequence[Example]) -> list[Prediction]:
        rows: list[list[int]] = [[] for _ in examples]
        for row, owner in enumerate(encoded.owners):
            rows[owner].append(row)
        predictions = []
        for example, of_example in zip(examples, rows, strict=True):
            assert isinstance(example, QuestionExample)
            windows = [encoded.notes[row] for row in of_example]
            predictions.append(self._predict(example, outputs, of_example, windows))
        return predictions

    def _predict(
        self, example: QuestionExample, outputs: Any, rows: list[int], windows: list[Window]
    ) -> dict[str, Any]:
        # `ElectraForJointQuestionAnswering` gives a beam, all others the logits of starts and ends.
        joint = bool(rows) and outputs[1].ndim == 3
        scores: dict[str, float] = {}
        for row, window in zip(rows, windows, strict=True):
            find = _beam_spans if joint else _best_spans
            for first, last, score in find(outputs, row, window, self.max_answer_tokens):
                text = example.context[window.offsets[first, 0] : window.offsets[last, 1]].strip()
                if text:
                    scores[text] = max(score, scores.get(text, score))
        best = sorted(scores.items(), key=lambda item: item[1], reverse=True)[:N_BEST]
        weights = np.exp([score - best[0][1] for _, score in best])
        prediction: dict[str, Any] = {
            "text": best[0][0] if best else "",
            "nbest": [
                {"text": text, "probability": float(weight / weights.sum())}
                for (text, _), weight in zip(best, weights, strict=True)
            ],
        }
        if self.task.unanswerable:
            if not best:
                score = _SURELY_NONE
            elif joint:
                score = -max(float(outputs[4][row]) for row in rows)
            else:
                score = min(
                    float(outputs[0][row, window.null]) + float(outputs[1][row, window.null])
                    for row, window in zip(rows, windows, strict=True)
                )
                score -= best[0][1]
            prediction["no_answer_score"] = score
            if score > NO_ANSWER_THRESHOLD:
                prediction["text"] = ""
        return prediction

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, float]:
        answers, judged = [], []
        for prediction, example in zip(predictions, examples, strict=True):
            assert isinstance(example, QuestionExample)
            if example.answers is not None and (example.answers or self.task.unanswerable):
                answers.append([answer.text for answer in example.answers])
                judged.append(prediction)
        if not judged:
            return {}
        if not self.task.unanswerable:
            score = score_cmrc if self.task.language == "zh" else score_squad
            return score([prediction["text"] for prediction in judged], answers)
        return score_squad_v2(
            # What would be answered if there must be an answer: the threshold is applied there.
            [prediction["nbest"][0]["text"] if prediction["nbest"] else "" for prediction in judged],
            answers,
            [prediction["no_answer_score"] for prediction in judged],
            NO_ANSWER_THRESHOLD,
        )


Span = tuple[int, int, float]  # the first and the last token, counted in the window, and the score


def _best_spans(outputs: Any, row: int, window: Window, max_tokens: int) -> list[Span]:
    """The best of all spans of a window, by the sum of their logits."""
    context = slice(window.first, window.first + len(window.offsets))
    starts, ends = outputs[0][row, context], outputs[1][row, context]
    padded = np.concatenate([ends, np.full(max_tokens - 1, -np.inf, dtype=ends.dtype)])
    # (tokens, max_tokens): of the spans that begin at a token, by how many tokens follow it.
    scores = starts[:, None] + np.lib.stride_tricks.sliding_window_view(padded, max_tokens)
    best = np.argpartition(-scores, min(N_BEST, scores.size) - 1, axis=None)[:N_BEST]
    firsts, more = np.unravel_index(best, scores.shape)
    spans = zip(firsts.tolist(), (firsts + more).tolist(), scores[firsts, more].tolist(), strict=True)
    return [span for span in spans if span[2] > -np.inf]


def _beam_spans(outputs: Any, row: int, window: Window, max_tokens: int) -> list[Span]:
    """The spans of a beam that lie in the window, by the sum of the log-probabilities."""
    start_log_probs, end_log_probs, starts, ends = (array[row] for array in outputs[:4])
    firsts = starts.astype(int) - window.first
    lasts = ends.astype(int) - window.first
    allowed = (firsts[:, None] >= 0) & (firsts[:, None] <= lasts) & (lasts < len(window.offsets))
    allowed &= lasts - firsts[:, None] < max_tokens
    return [
        (int(firsts[start]), int(lasts[start, end]), float(start_log_probs[start] + end_log_probs[start, end]))
        for start, end in zip(*np.nonzero(allowed), strict=True)
    ]
