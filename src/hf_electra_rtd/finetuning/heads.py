"""Models made of any encoder and the head of a task, also with low-rank adapters (LoRA, by `peft`)."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from hf_electra_rtd.base.files import load_pretrained
from hf_electra_rtd.encoders.families import DROPOUTS, FAMILIES
from hf_electra_rtd.pair.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.pair.places import CONFIGURATION, DETECTOR, identify, read_stock_config
from hf_electra_rtd.pair.towers import load_tower, load_whole


logger = logging.getLogger(__name__)

HIDDEN_DROPOUT = "hidden_dropout_prob"
_HEAD_DROPOUTS = ("classifier_dropout", "summary_last_dropout", "seq_classif_dropout", "qa_dropout")


class _PreciseLinear(nn.Linear):
    """A linear layer in float32, also under autocast, because numbers may be large compared to their differences."""

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast(input.device.type, enabled=False):
            return nn.functional.linear(input.float(), self.weight.float(), self.bias.float())


# ---- Loading ----


def load_with_head(
    auto_class: Any,
    source: str | os.PathLike[str],
    labels: Sequence[str] = (),
    *,
    from_scratch: bool = False,
    unit: tuple[float, float] = (0.0, 1.0),
    **config_options: Any,
) -> PreTrainedModel:
    """Loads an encoder with the head of a task, in float32 and in training mode.

    A source that was fine-tuned with this head for these labels keeps its head; otherwise the head is new. Poolers
    (BERT) are part of the head, because masked language models lack them. Raises ValueError for a source that lacks
    tensors or cannot have the head.

    Args:
        source: a directory or a Hub id of an encoder (ELECTRA, BERT, a fine-tuned model, ...), the directory of a
            pre-training run, or a saved pair. Runs and pairs give their discriminator.
        labels: classes or tags in the order of the outputs; none for a number, answers and choices.
        from_scratch: take the configuration alone, and initialize all weights.
        unit: for a model that predicts a number: (mean, deviation); an output x will stand for mean + deviation * x.
        **config_options: fields of the encoder's configuration, such as `hidden_dropout_prob`.
    """
    name, config, tensors = open_encoder(source, weights=not from_scratch)
    model_class = find_class(auto_class, name, config)
    is_same = model_class.__name__ in (config.architectures or ())
    is_kept = not from_scratch and is_same and _has_outputs(config, auto_class, labels)
    for option, value in config_options.items():
        setattr(config, option, value)
    if not is_kept:
        _configure_head(config, auto_class, labels)
    if from_scratch:
        model = model_class(config).float()
    else:
        load = None if is_kept else partial(_load_encoder, model_class)
        options = {"config": config, "dtype": torch.float32, "state_dict": tensors}
        model, _ = load_whole(model_class, name if tensors is None else None, load, **options)
    if auto_class is AutoModelForSequenceClassification and not labels:
        _last_layer(model).__class__ = _PreciseLinear  # saved like any linear layer
        if is_kept:
            rescale(model, 1 / unit[1], -unit[0] / unit[1])
    if model.base_model is not model and (is_kept or not getattr(model_class, "takes_head", False)):
        once: Any = logger  # transformers adds this method to loggers; a command makes a model for each seed
        once.info_once(f"{name} as {model_class.__name__}: the head is {'kept' if is_kept else 'new'}.")
    return model.train()


@torch.no_grad()
def rescale(model: nn.Module, factor: float, shift: float) -> None:
    """Changes the last layer of a model that predicts a number, so that it returns `factor * number + shift`."""
    layer = _last_layer(model)
    layer.weight.mul_(factor)
    layer.bias.mul_(factor).add_(shift)


def _last_layer(model: nn.Module) -> nn.Linear:
    """The last layer with a single output. With adapters, its trained copy comes after the original."""
    return [module for module in model.modules() if isinstance(module, nn.Linear) and module.out_features == 1][-1]


def find_class(auto_class: Any, name: str, config: Any) -> Any:
    """Returns the class of an encoder with a head. Raises a ValueError if there is none."""
    if type(config) not in auto_class._model_mapping:
        raise ValueError(f"transformers has no {auto_class.__name__} for {name} (type {config.model_type!r}).")
    return auto_class._model_mapping[type(config)]


def load_fine_tuned(auto_class: Any, source: str, labels: Sequence[str]) -> Any:
    """Loads a fine-tuned model, or adapters with their model. Raises ValueError for a model that does not have this
    head and these labels."""
    place = identify(source)
    config = read_stock_config(source)
    base = place.adapter_base
    model = load_with_head(auto_class, base or source, labels)
    if type(model).__name__ != place.architecture or not _has_outputs(config, auto_class, labels):
        raise ValueError(f"{source} was not fine-tuned for this task: it is {place.architecture}, with other outputs.")
    if base is None:
        return model
    from peft import PeftModel

    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)  # raised by peft
    return PeftModel.from_pretrained(model, source)


def dropouts_of(config: Any) -> tuple[str, ...]:
    """Returns the fields for dropout in an encoder's configuration, both inside it and before its head; none if they
    are unknown."""
    there = config.to_dict().keys()
    is_known = config.model_type in FAMILIES or HIDDEN_DROPOUT in there
    return tuple(name for name in (*DROPOUTS, *_HEAD_DROPOUTS) if is_known and name in there)


def open_encoder(source: str | os.PathLike[str], weights: bool = True) -> tuple[str, Any, dict[str, Tensor] | None]:
    """Returns the encoder of a source, as `load_with_head` describes it: its directory or Hub id, its configuration,
    and its weights, if `weights` asks for them and they must be taken out of a pair. Raises a ValueError if there is
    none, and for ELECTRA's `detector/`."""
    place = identify(source)
    if place.kind == CONFIGURATION:
        raise place.error("the directory or the Hub id of an encoder")
    # Among networks of ELECTRA that detect, only `detector/` is not a discriminator.
    if place.kind == DETECTOR and place.discriminator is None and place.family == "electra":
        raise ValueError(
            f"{place.name} is ELECTRA's detector: its last layer is the head that detects, not a part of the encoder. "
            "Name the run, or its discriminator/."
        )
    if place.encoder != place.pair:
        return place.encoder, read_stock_config(place.encoder), None
    if not weights:
        return place.pair, ElectraRTDConfig.from_dict(dict(place.config)).discriminator_config, None
    tower = load_tower(ElectraForRTDPretraining, place.pair).native_discriminator()
    return place.pair, tower.config, tower.state_dict()


def _has_outputs(config: Any, auto_class: Any, labels: Sequence[str]) -> bool:
    """Whether a model has outputs for these labels (without labels: for a number, answers or choices)."""
    if labels:
        return {index: str(name) for index, name in config.id2label.items()} == dict(enumerate(labels))
    return auto_class is not AutoModelForSequenceClassification or config.num_labels == 1


def _load_encoder(model_class: Any, source: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Loads a model by `load_pretrained`, with a new head. A head of the source whose tensors have the same names is
    not taken over, unless the class has `takes_head`. The report leaves out tensors of heads and poolers."""
    model, report = load_pretrained(model_class, source, **options)
    prefix = model.base_model_prefix
    not_read = report["missing_keys"] | {name for name, *_ in report["mismatched_keys"]}
    has_read_head = any(not name.startswith(f"{prefix}.") for name in model.state_dict().keys() - not_read)
    has_head = model.base_model is not model and not getattr(model_class, "takes_head", False)
    if has_read_head and has_head:
        for name, child in model_class(model.config).float().named_children():
            if name != prefix:
                setattr(model, name, child)
    # The tensors of a bare encoder have names without the prefix.
    children = "|".join(re.escape(name) for name, _ in model.base_model.named_children() if name != "pooler")
    encoder = re.compile(rf"{prefix}\.(?!pooler\.)|({children})\.")
    report["unexpected_keys"] = [name for name in report["unexpected_keys"] if encoder.match(name)]
    report["missing_keys"] = [name for name in report["missing_keys"] if encoder.match(name)]
    report["mismatched_keys"] = [entry for entry in report["mismatched_keys"] if encoder.match(entry[0])]
    return model, report


def _configure_head(config: Any, auto_class: Any, labels: Sequence[str]) -> None:
    config.id2label = None  # otherwise, as many outputs as before would keep their names
    # Question answering has two outputs, start and end; multiple choice does not read the number.
    config.num_labels = len(labels) or (1 if auto_class is AutoModelForSequenceClassification else 2)
    config.problem_type = "regression" if config.num_labels == 1 else None
    if labels:
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: index for index, label in enumerate(labels)}


# ---- Adapters ----

_PEFT_TASKS = {
    "SequenceClassification": "SEQ_CLS",
    "TokenClassification": "TOKEN_CLS",
    "QuestionAnswering": "QUESTION_ANS",
}


def add_adapters(model: PreTrainedModel, source: str, **options: Any) -> Any:
    """Returns a `peft.PeftModel` with adapters for all linear layers in the encoder's stack of layers. The head is
    trained and saved whole. `source` is the encoder, recorded for loading the adapters; `options` are those of
    `LoraConfig`."""
    from peft import LoraConfig, get_peft_model

    prefix = model.base_model_prefix
    linear = (name for name, module in model.base_model.named_modules() if isinstance(module, nn.Linear))
    names = dict.fromkeys(name.rpartition(".")[2] for name in linear if re.search(r"\.\d+\.", name))
    children = {name: child for name, child in model.named_children() if name != prefix}
    children |= {name: child for name, child in model.base_model.named_children() if name == "pooler"}
    config = LoraConfig(
        **options,
        task_type=_PEFT_TASKS.get(type(model).__name__.rpartition("For")[2]),  # for `AutoPeftModelFor...`
        # The head and the pooler have layers of the same names; they are trained whole.
        target_modules=rf"{re.escape(prefix)}\.(?!pooler\.)(.*\.)?({'|'.join(map(re.escape, names))})",
        modules_to_save=[name for name, child in children.items() if list(child.parameters())],
    )
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)  # raised by peft
    adapted = get_peft_model(model, config)
    base = str(Path(source).resolve()) if Path(source).is_dir() else source
    adapted.peft_config["default"].base_model_name_or_path = base
    return adapted


def save_adapters(model: Any, directory: Path) -> None:
    """Writes adapters and head, and the `config.json` of the whole model, which holds the head and the labels."""
    model.save_pretrained(directory)
    core = model.get_base_model()
    core.config.architectures = [type(core).__name__]
    core.config.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)  # peft's empty template of a card
