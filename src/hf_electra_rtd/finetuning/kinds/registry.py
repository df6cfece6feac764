"""The kinds of tasks by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.finetuning.kinds.base import Encoding, Kind
from hf_electra_rtd.finetuning.kinds.classification import ClassificationKind, RegressionKind
from hf_electra_rtd.finetuning.kinds.multiple_choice import MultipleChoiceKind
from hf_electra_rtd.finetuning.kinds.question_answering import QuestionAnsweringKind
from hf_electra_rtd.finetuning.kinds.tagging import TaggingKind
from hf_electra_rtd.finetuning.tasks import KindName, Task


KINDS: Mapping[KindName, Callable[[Task, PreTrainedTokenizerBase, Encoding], Kind]] = {
    "classification": ClassificationKind,
    "regression": RegressionKind,
    "multiple_choice": MultipleChoiceKind,
    "question_answering": QuestionAnsweringKind,
    "tagging": TaggingKind,
}


def make_kind(task: Task, tokenizer: PreTrainedTokenizerBase, encoding: Encoding) -> Kind:
    """What encodes, decodes and scores a task."""
    return KINDS[task.kind](task, tokenizer, encoding)
