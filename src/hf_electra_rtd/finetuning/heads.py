"""From any encoder to a model with the head of a task."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_MULTIPLE_CHOICE_MAPPING,
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    ElectraConfig,
    ElectraForMultipleChoice,
    ElectraForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.towers import CONFIG_FILE, load_whole, read_config


logger = logging.getLogger(__name__)

STOCK_HEAD = "transformers"
PAPER_HEAD = "paper"
HEADS = (STOCK_HEAD, PAPER_HEAD)

_MODEL_CLASSES: dict[Any, Any] = {
    AutoModelForSequenceClassification: MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoModelForTokenClassification: MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    AutoModelForQuestionAnswering: MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    AutoModelForMultipleChoice: MODEL_FOR_MULTIPLE_CHOICE_MAPPING,
}


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

    Its checkpoints are loaded by this class or `load_with_head`: the stock class would draw its own head anew.
    """

    def __init__(self, config: ElectraConfig) -> None:
        super().__init__(config)
        self.classifier: nn.Module = PaperClassificationHead(config)  # type: ignore[assignment]
        self.post_init()


def load_with_head(
    auto_class: Any,
    source: str | os.PathLike[str],
    head: str = STOCK_HEAD,
    labels: Sequence[str] = (),
    *,
    from_scratch: bool = False,
    **config_options: Any,
) -> PreTrainedModel:
    """Loads an encoder under the head of a task, in float32 and in training mode.

    The head is drawn anew, unless the source was fine-tuned for this class of model: then it is kept. The paper's
    head is drawn as the original's `tf.layers.dense` is: a Glorot-uniform kernel and a bias of 0; the stock one as
    `transformers` does. The poolers of BERT and its like count as part of the head: models of masked language lack
    them.

    Args:
        auto_class: `AutoModelForSequenceClassification`, `...TokenClassification`, `...QuestionAnswering` or
            `...MultipleChoice`.
        source: a directory or a Hub id of an encoder (ELECTRA's towers, BERT, a fine-tuned model, ...), the directory
            of a pre-training run, or a pair that `ElectraForRTDPretraining` saved: of the last two the discriminator
            is taken.
        head: `"transformers"`, or `"paper"`: ELECTRA's classification, regression and multiple choice.
        labels: names of the classes in the order of the outputs; none for multiple choice, question answering, and
            regression, which is classification without labels.
        from_scratch: take the configuration alone, and draw all weights anew.
        **config_options: of the encoder's configuration, such as `hidden_dropout_prob`.

    Raises:
        ValueError: for a source that cannot be loaded or lacks tensors of the encoder, that was fine-tuned for other
            labels or with another head, for an option that the architecture does not have, and for a head that it
            cannot have.
    """
    if head not in HEADS:
        raise ValueError(f"There is no head {head!r}: choose one of {', '.join(HEADS)}.")
    encoder = open_encoder(source, weights=not from_scratch)
    stock = stock_class(auto_class, encoder)
    # The paper's multiple choice is the stock class, so configured.
    same = (stock, PaperElectraForSequenceClassification) if stock is ElectraForSequenceClassification else (stock,)
    kept = not from_scratch and encoder.is_a(*same)
    if kept:
        _check_labels(auto_class, encoder, labels)
    set_options(encoder, **config_options)
    _describe_outputs(auto_class, encoder.config, labels)
    model_class = _choose_head(stock, encoder, head, kept)
    model = load_model(model_class, encoder, keep_head=kept, from_scratch=from_scratch)
    if not kept and head == PAPER_HEAD:
        _draw_as_the_original(model)
    return model


# ---- Sources ----


@dataclass
class Encoder:
    """Where an encoder comes from.

    Attributes:
        name: for messages and `from_pretrained`: a directory or a Hub id.
        config: of the encoder; may be changed before `load_model`.
        tensors: the weights, where they had to be taken out of a pair; None where they lie under `name`.
    """

    name: str
    config: PreTrainedConfig
    tensors: dict[str, Tensor] | None = None

    def is_a(self, *model_classes: type[PreTrainedModel]) -> bool:
        """Whether the weights were saved by one of these classes."""
        return bool({model_class.__name__ for model_class in model_classes} & set(self.config.architectures or ()))


def open_encoder(source: str | os.PathLike[str], weights: bool = True) -> Encoder:
    """Finds the encoder of a source, as `load_with_head` describes it, and reads its configuration.

    Args:
        source: a directory or a Hub id.
        weights: whether they are wanted too.

    Raises:
        ValueError: if there is no model, or it cannot be read.
    """
    name = os.fspath(source)
    if Path(name, "discriminator", CONFIG_FILE).is_file():
        name = str(Path(name, "discriminator"))
    if read_config(name).get("model_type") != ElectraRTDConfig.model_type:
        try:
            return Encoder(name, AutoConfig.from_pretrained(name))
        except (ValueError, OSError, StrictDataclassError) as error:
            raise ValueError(f"The configuration of {name} cannot be read: {error}") from None
    if not weights:
        return Encoder(name, ElectraRTDConfig.from_pretrained(name).discriminator_config)
    load: Any = ElectraForRTDPretraining.from_pretrained
    tower = load_whole(load, ElectraForRTDPretraining, name, dtype=torch.float32)[0].native_discriminator()
    config = type(tower.config).from_dict({**tower.config.to_dict(), "architectures": [type(tower).__name__]})
    return Encoder(name, config, tower.state_dict())


def stock_class(auto_class: Any, encoder: Encoder) -> Any:
    """The class of `transformers` that an Auto class stands for.

    Raises:
        ValueError: if the architecture has none.
    """
    mapping = _MODEL_CLASSES[auto_class]
    if type(encoder.config) not in mapping:
        raise ValueError(
            f"{encoder.name} is a model of type {encoder.config.model_type!r}, of which transformers has no "
            f"{auto_class.__name__.removeprefix('Auto')}."
        )
    return mapping[type(encoder.config)]


def set_options(encoder: Encoder, **options: Any) -> None:
    """Sets fields of the configuration.

    Raises:
        ValueError: for a name that this architecture does not have, or a value that is not of its type.
    """
    known = encoder.config.to_dict().keys() | encoder.config.attribute_map.keys()
    unknown = sorted(options.keys() - known)
    if unknown:
        raise ValueError(
            f"{encoder.name} is a model of type {encoder.config.model_type!r}, whose configuration has no "
            f"{', '.join(unknown)}."
        )
    for name, value in options.items():
        try:
            setattr(encoder.config, name, value)
        except StrictDataclassError as error:
            raise ValueError(f"{name}={value!r} does not fit {encoder.name}: {error}") from None


def load_model(
    model_class: Any, encoder: Encoder, *, keep_head: bool = False, from_scratch: bool = False
) -> PreTrainedModel:
    """A model with the weights of an encoder, in float32 and in training mode.

    Args:
        model_class: whose head is made.
        encoder: whose configuration describes the head too.
        keep_head: the source has this head: it must be whole. Else the head is drawn anew by `model_class`, and what
            the source holds of another is left aside.
        from_scratch: draw all weights anew.

    Raises:
        ValueError: if the source cannot be loaded whole, but for the head.
    """
    if from_scratch:
        logger.info(f"{encoder.name}: a {model_class.__name__} of its configuration, with random weights.")
        scratch: PreTrainedModel = model_class(encoder.config).float()
        return scratch.train()

    def load(source: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        model, report = model_class.from_pretrained(source, **options)
        if not keep_head:
            report = {
                **report,
                "missing_keys": [key for key in report["missing_keys"] if _is_of_encoder(model, key)],
                "unexpected_keys": [key for key in report["unexpected_keys"] if _is_of_encoder(model, key)],
                "mismatched_keys": [item for item in report["mismatched_keys"] if _is_of_encoder(model, item[0])],
            }
        return model, report

    options: dict[str, Any] = {"config": encoder.config, "dtype": torch.float32}
    saved_as = ", ".join(encoder.config.architectures or ()) or "something unknown"
    if encoder.tensors is not None:
        options["state_dict"] = encoder.tensors
    with _without_load_report():
        model, _ = load_whole(load, model_class, None if encoder.tensors is not None else encoder.name, **options)
    what = "kept" if keep_head else "drawn anew"
    logger.info(f"{encoder.name} (saved as {saved_as}) as {model_class.__name__}: the head is {what}.")
    loaded: PreTrainedModel = model.train()
    return loaded


def _is_of_encoder(model: PreTrainedModel, key: str) -> bool:
    prefix = f"{model.base_model_prefix}."
    return key.startswith(prefix) and not key.startswith(f"{prefix}pooler.")


@contextmanager
def _without_load_report() -> Iterator[None]:
    """Keeps the table of unused and new tensors off the console: `load_whole` judges it."""
    loader = logging.getLogger("transformers.modeling_utils")

    def is_no_report(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    loader.addFilter(is_no_report)
    try:
        yield
    finally:
        loader.removeFilter(is_no_report)


# ---- Heads ----


def _check_labels(auto_class: Any, encoder: Encoder, labels: Sequence[str]) -> None:
    if auto_class not in (AutoModelForSequenceClassification, AutoModelForTokenClassification):
        return
    config: Any = encoder.config
    names = [str(config.id2label[index]) for index in sorted(config.id2label)]
    if not labels and config.num_labels != 1:
        raise ValueError(f"{encoder.name} was fine-tuned for the classes {', '.join(names)}, not for a number.")
    if labels and names != list(labels):
        raise ValueError(
            f"{encoder.name} was fine-tuned for other labels than the task's, or in another order: it has "
            f"{', '.join(names)} (id2label in its {CONFIG_FILE}), the task {', '.join(labels)}."
        )


def _describe_outputs(auto_class: Any, config: PreTrainedConfig, labels: Sequence[str]) -> None:
    """Writes into the configuration what the outputs of the head stand for."""
    config.problem_type = None
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: index for index, label in enumerate(labels)}
    elif auto_class is AutoModelForSequenceClassification:
        config.num_labels = 1
        config.problem_type = "regression"
    else:
        assert auto_class is not AutoModelForTokenClassification, "tagging has labels"
        config.num_labels = 2  # question answering: start and end; multiple choice does not ask


def _choose_head(stock: Any, encoder: Encoder, head: str, kept: bool) -> Any:
    """The class to load; a paper's head is noted in the configuration."""
    config = encoder.config
    was_paper = getattr(config, "classification_head", STOCK_HEAD) == PAPER_HEAD
    if kept and was_paper:
        head = PAPER_HEAD
    elif kept and head == PAPER_HEAD:
        raise ValueError(
            f"{encoder.name} was fine-tuned with the head of transformers, which cannot become the paper's: take "
            f"head={STOCK_HEAD!r}, or the model that it was fine-tuned from."
        )
    if head == STOCK_HEAD:
        if was_paper:
            del config.classification_head
            config.summary_use_proj, config.summary_activation = True, "gelu"
        return stock
    if stock not in (ElectraForSequenceClassification, ElectraForMultipleChoice):
        raise ValueError(
            f"The paper's head is for ELECTRA's classification, regression and multiple choice, not for "
            f"{stock.__name__} ({encoder.name}): take head={STOCK_HEAD!r}."
        )
    config.classification_head = PAPER_HEAD
    if stock is ElectraForSequenceClassification:
        return PaperElectraForSequenceClassification
    # The stock multiple choice is configured to be the paper's: [CLS], dropout, one dense layer.
    config.summary_type, config.summary_use_proj, config.summary_activation = "first", False, "linear"
    config.summary_last_dropout = _head_dropout(config)
    return stock


def _head_dropout(config: Any) -> float:
    dropout = config.classifier_dropout
    return float(config.hidden_dropout_prob if dropout is None else dropout)


def _draw_as_the_original(model: Any) -> None:
    dense = model.classifier.out_proj if isinstance(model.classifier, PaperClassificationHead) else model.classifier
    nn.init.xavier_uniform_(dense.weight)
    nn.init.zeros_(dense.bias)
