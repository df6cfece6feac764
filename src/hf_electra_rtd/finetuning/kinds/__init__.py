"""The kinds of tasks: how each becomes batches, and how a model's outputs become predictions and scores."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.base.tasks import Task
from hf_electra_rtd.finetuning.kinds import classification
from hf_electra_rtd.finetuning.kinds.base import Kind
from hf_electra_rtd.finetuning.kinds.correction import CorrectionKind
from hf_electra_rtd.finetuning.kinds.embedding import EmbeddingKind
from hf_electra_rtd.finetuning.kinds.question_answering import QuestionAnsweringKind
from hf_electra_rtd.finetuning.kinds.tagging import TaggingKind


KINDS: Mapping[str, type[Kind]] = {
    "classification": classification.ClassificationKind,
    "multi_label": classification.MultiLabelKind,
    "regression": classification.RegressionKind,
    "multiple_choice": classification.MultipleChoiceKind,
    "question_answering": QuestionAnsweringKind,
    "tagging": TaggingKind,
    "correction": CorrectionKind,
    "embedding": EmbeddingKind,
}


def make_kind(task: Task, tokenizer: PreTrainedTokenizerBase, *args: int, **lengths: int) -> Kind:
    """Returns the object that encodes, decodes and scores a task. The lengths are those that `Kind` takes."""
    return KINDS[task.kind](task, tokenizer, *args, **lengths)
