"""From any encoder to a model with the head of a task.

B examples, L tokens of an example, H width of the encoder.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    ElectraForMultipleChoice,
    ElectraForQuestionAnswering,
    ElectraForSequenceClassification,
    PreTrainedModel,
)
from transformers.utils import ModelOutput

from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.towers import CONFIG_FILE, load_tower, load_whole, read_config


logger = logging.getLogger(__name__)

STOCK_HEAD, PAPER_HEAD = "transformers", "paper"
_ANSWERABLE_SIZE = 512  # google-research/electra finetune/qa/qa_tasks.py, `get_prediction_module`
_NO_ANSWER_HERE = -1000.0  # added to the logit of a token that cannot belong to an answer (there, too)


class PaperClassificationHead(nn.Module):
    """Dropout on the vector of [CLS], and one dense layer.

    Source: google-research/electra finetune/classification/classification_tasks.py (`get_prediction_module`);
    `ElectraForSequenceClassification` has another dense layer and GELU in between.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.dropout = nn.Dropout(_head_dropout(config))
        self.out_proj = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, hidden_BLH: Tensor) -> Tensor:
        """Logits (B, num_labels)."""
        return self.out_proj(self.dropout(hidden_BLH[:, 0]))


class PaperElectraForSequenceClassification(ElectraForSequenceClassification):
    """ELECTRA with the classification head of the paper, for classes or a number.

    Load its checkpoints by this class or by `load_with_head`: the stock class would initialize its own head.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.classifier: nn.Module = PaperClassificationHead(config)  # type: ignore[assignment]
        self.post_init()


@dataclass
class AnswerableOutput(ModelOutput):
    """`start_logits` and `end_logits` (B, L), float32, and `answerable_logits` (B,), positive where the context holds
    an answer."""

    start_logits: Tensor | None = None
    end_logits: Tensor | None = None
    answerable_logits: Tensor | None = None


class ElectraForAnswerableQuestionAnswering(ElectraForQuestionAnswering):
    """ELECTRA for questions that may have no answer (SQuAD 2.0): a logit tells whether there is one.

        answerable: u . gelu(C [h_CLS; sum_i p(start = i) h_i] + c)

    Source: google-research/electra finetune/qa/qa_tasks.py, `get_prediction_module`, with `answerable_classifier` and
    `answerable_uses_start_logits`, without `joint_prediction`: starts and ends are predicted independently.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.answerable_hidden = nn.Linear(2 * config.hidden_size, _ANSWERABLE_SIZE)
        self.answerable = nn.Linear(_ANSWERABLE_SIZE, 1)
        self.post_init()

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> AnswerableOutput:
        """An answer lies in tokens of type 1, or at [CLS], the first token, which stands for none. `token_type_ids`
        is 1 for the context and the [SEP] that ends it."""
        hidden_BLH = self.electra(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, **kwargs)[0]
        possible_BL = token_type_ids.eq(1) if attention_mask is None else token_type_ids.eq(1) & attention_mask.ne(0)
        possible_BL = possible_BL | torch.arange(input_ids.shape[1], device=input_ids.device).eq(0)
        logits_BL2 = self.qa_outputs(hidden_BLH).float() + _NO_ANSWER_HERE * (~possible_BL).float().unsqueeze(-1)
        start_BL, end_BL = (logits.contiguous() for logits in logits_BL2.unbind(-1))
        start_BH = torch.einsum("bl,blh->bh", start_BL.softmax(dim=-1).to(hidden_BLH.dtype), hidden_BLH)
        hidden = nn.functional.gelu(self.answerable_hidden(torch.cat([hidden_BLH[:, 0], start_BH], dim=-1)))
        return AnswerableOutput(start_BL, end_BL, self.answerable(hidden).squeeze(-1).float())


_PAPER_CLASSES: dict[Any, Any] = {
    ElectraForSequenceClassification: PaperElectraForSequenceClassification,
    ElectraForMultipleChoice: ElectraForMultipleChoice,  # so configured: [CLS], dropout, one dense layer
    ElectraForQuestionAnswering: ElectraForAnswerableQuestionAnswering,
}


def load_with_head(
    auto_class: Any,
    source: str | os.PathLike[str],
    head: str = STOCK_HEAD,
    labels: Sequence[str] = (),
    *,
    unanswerable: bool = False,
    from_scratch: bool = False,
    **config_options: Any,
) -> PreTrainedModel:
    """Loads an encoder under the head of a task, in float32 and in training mode.

    The head is initialized anew, unless the source was fine-tuned for this class of model: then its head is kept. The
    paper's head is initialized as the original's `tf.layers.dense`: a Glorot-uniform kernel and a bias of 0; the stock
    head as `transformers` does. The poolers of BERT and its like count as part of the head, as masked language models
    lack them.

    Args:
        auto_class: `AutoModelForSequenceClassification`, `...TokenClassification`, `...QuestionAnswering` or
            `...MultipleChoice`.
        source: a directory or a Hub id of an encoder (ELECTRA, BERT, a fine-tuned model, ...), the directory of a
            pre-training run, or a saved pair: of the last two the discriminator is taken.
        head: `"transformers"`, or `"paper"`, which ELECTRA alone has, and not for tagging.
        labels: names of the classes in the order of the outputs, for classification and tagging.
        unanswerable: the paper's head for questions gets a logit for whether there is an answer.
        from_scratch: take the configuration alone, and initialize all weights.
        **config_options: fields of the encoder's configuration, such as `hidden_dropout_prob`.

    Raises:
        ValueError: for a source that cannot be loaded or lacks tensors of the encoder, that was fine-tuned for other
            labels or with another head, and for a head that it cannot have.
    """
    name, config, tensors = open_encoder(source, weights=not from_scratch)
    if type(config) not in auto_class._model_mapping:
        raise ValueError(
            f"{name} is a model of type {config.model_type!r}, for which transformers has no "
            f"{auto_class.__name__.removeprefix('Auto')}."
        )
    for option, value in config_options.items():
        setattr(config, option, value)
    stock = auto_class._model_mapping[type(config)]
    paper = _PAPER_CLASSES.get(stock, stock)
    if head == PAPER_HEAD and stock not in _PAPER_CLASSES:
        raise ValueError(
            f"--head paper is for ELECTRA's classification, regression, multiple choice and question answering, not "
            f"for {stock.__name__} ({name}). Use --head {STOCK_HEAD}."
        )
    saved_as = config.architectures or ()
    kept = not from_scratch and bool({stock.__name__, paper.__name__} & {*saved_as})
    if kept:
        check_labels(auto_class, name, config, labels)
        if head == PAPER_HEAD and head_of(config) != PAPER_HEAD:
            raise ValueError(
                f"{name} was fine-tuned with the stock head, which cannot become the paper's. Use --head "
                f"{STOCK_HEAD}, or the model that it was fine-tuned from."
            )
        model_class = paper if paper.__name__ in saved_as else stock
    else:
        _configure_head(config, head, stock)
        # Without answerability, the stock class for questions has the same two dense layers.
        is_stock = head == STOCK_HEAD or (stock is ElectraForQuestionAnswering and not unanswerable)
        model_class = stock if is_stock else paper
    _describe_outputs(auto_class, config, labels)
    if from_scratch:
        model = model_class(config).float()
    else:
        load = _of_encoder(model_class) if not kept else model_class.from_pretrained
        origin = name if tensors is None else None
        options = {"config": config, "dtype": torch.float32, "state_dict": tensors}
        model, _ = load_whole(load, model_class, origin, **options)
    if head == PAPER_HEAD and not kept:
        _initialize_as_the_original(model)
    weights = "random weights" if from_scratch else f"saved as {', '.join(saved_as)}"
    logger.info(f"{name} ({weights}) as {model_class.__name__}: the head is {'kept' if kept else 'new'}.")
    loaded: PreTrainedModel = model.train()
    return loaded


def head_of(config: Any) -> str:
    """The head that a fine-tuned model has, `"transformers"` or `"paper"`, by its configuration."""
    return str(getattr(config, "classification_head", STOCK_HEAD))


def check_labels(auto_class: Any, name: str, config: Any, labels: Sequence[str]) -> None:
    """Makes sure that a fine-tuned model has the labels of a task; raises a ValueError with both lists."""
    if auto_class not in (AutoModelForSequenceClassification, AutoModelForTokenClassification):
        return
    names = labels_of(config)
    if not labels and config.num_labels != 1:
        raise ValueError(f"{name} was fine-tuned for the classes {', '.join(names)}, not for a number.")
    if labels and names != tuple(labels):
        raise ValueError(
            f"{name} was fine-tuned for other labels than the task's, or in another order: it has "
            f"{', '.join(names)} (id2label in its {CONFIG_FILE}), the task {', '.join(labels)}."
        )


def labels_of(config: Any) -> tuple[str, ...]:
    """The labels of a fine-tuned model in the order of its outputs."""
    return tuple(str(config.id2label[index]) for index in sorted(config.id2label))


def open_encoder(source: str | os.PathLike[str], weights: bool = True) -> tuple[str, Any, dict[str, Tensor] | None]:
    """Finds the encoder of a source, as `load_with_head` describes it: its directory or Hub id, its configuration,
    and its weights where they are wanted and have to be taken out of a pair. Raises a ValueError if there is none."""
    name = os.fspath(source)
    if Path(name, "discriminator", CONFIG_FILE).is_file():
        name = str(Path(name, "discriminator"))
    if read_config(name).get("model_type") != ElectraRTDConfig.model_type:
        try:
            return name, AutoConfig.from_pretrained(name), None
        except (ValueError, OSError, StrictDataclassError) as error:
            raise ValueError(f"The configuration of {name} cannot be read: {error}") from None
    if not weights:
        return name, ElectraRTDConfig.from_pretrained(name).discriminator_config, None
    tower = load_tower(ElectraForRTDPretraining, name).native_discriminator()
    config = type(tower.config).from_dict({**tower.config.to_dict(), "architectures": [type(tower).__name__]})
    return name, config, tower.state_dict()


def _of_encoder(model_class: Any) -> Callable[..., tuple[Any, dict[str, Any]]]:
    """`from_pretrained` for a new head: its report leaves out tensors of heads and poolers."""

    def load(source: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        model, report = model_class.from_pretrained(source, **options)
        encoder = re.compile(rf"{model.base_model_prefix}\.(?!pooler\.)")
        for problem in ("missing_keys", "unexpected_keys"):
            report[problem] = [name for name in report[problem] if encoder.match(name)]
        report["mismatched_keys"] = [entry for entry in report["mismatched_keys"] if encoder.match(entry[0])]
        return model, report

    return load


def _describe_outputs(auto_class: Any, config: Any, labels: Sequence[str]) -> None:
    config.problem_type = None
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: index for index, label in enumerate(labels)}
    elif auto_class is AutoModelForSequenceClassification:
        config.num_labels = 1
        config.problem_type = "regression"
    else:
        config.num_labels = 2  # question answering: start and end; multiple choice does not read it


def _configure_head(config: Any, head: str, stock: Any) -> None:
    if head_of(config) == PAPER_HEAD:
        del config.classification_head
        config.summary_use_proj, config.summary_activation = True, "gelu"
    if head == PAPER_HEAD:
        config.classification_head = PAPER_HEAD
        if stock is ElectraForMultipleChoice:
            config.summary_type, config.summary_use_proj, config.summary_activation = "first", False, "linear"
            config.summary_last_dropout = _head_dropout(config)


def _head_dropout(config: Any) -> float:
    dropout = config.classifier_dropout
    return float(config.hidden_dropout_prob if dropout is None else dropout)


def _initialize_as_the_original(model: PreTrainedModel) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not name.startswith(f"{model.base_model_prefix}."):
            # Starts and ends are two layers in the original.
            for weight in module.weight.split(1) if name == "qa_outputs" else [module.weight]:
                nn.init.xavier_uniform_(weight)
            nn.init.zeros_(module.bias)
