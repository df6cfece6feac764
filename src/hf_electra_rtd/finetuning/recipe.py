"""The paper's recipe of fine-tuning, by the size of the model."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModel, PreTrainedConfig

from hf_electra_rtd.configuration_electra_rtd import SIZES
from hf_electra_rtd.finetuning.tasks import Task


logger = logging.getLogger(__name__)

# Learning rate and layer-wise decay (paper, Table 7). The code of the original agrees for large; its default for the
# others is 1e-4 (google-research/electra configure_finetuning.py). Tiny is ours: as small.
_BY_SIZE = {"tiny": (3e-4, 0.8), "small": (3e-4, 0.8), "base": (1e-4, 0.8), "large": (5e-5, 0.9)}
_LORA_LEARNING_RATE = 1e-3  # ours: adapters start at 0 and want larger steps than weights

# Parameters of the encoder in millions, as the paper names the sizes (Tables 1 and 2); for models of other shapes.
_MILLIONS = {"small": 14, "base": 110, "large": 335}


@dataclass(frozen=True)
class Recipe:
    """How a model is fine-tuned on a task.

    What does not depend on the size is Table 7 of the paper; google-research/electra agrees but for `weight_decay`,
    whose default there is 0.01.

    Attributes:
        size: `tiny`, `small`, `base` or `large`.
        learning_rate: of the head, at the end of the warm-up.
        layer_decay: factor of the learning rate from a layer to the one below; 1 for none.
        epochs: passes over the training rows; the task's.
        warmup: share of all steps.
        weight_decay: decoupled.
        batch_size: rows of a step.
        dropout: in the encoder, its attention, and before the head.
    """

    size: str
    learning_rate: float
    layer_decay: float
    epochs: float
    warmup: float = 0.1
    weight_decay: float = 0.0
    batch_size: int = 32
    dropout: float = 0.1


def recipe_for(config: PreTrainedConfig, task: Task, size: str | None = None, peft: str | None = None) -> Recipe:
    """The recipe of a model and a task.

    Args:
        config: of the encoder.
        task: gives the epochs.
        size: `tiny`, `small`, `base` or `large`, whose recipe is wanted; by default told by the configuration.
        peft: `"lora"` for adapters: a higher learning rate, the same for all layers.

    Raises:
        ValueError: for an unknown size or method.
    """
    if size is None:
        size = guess_size(config)
    if size not in _BY_SIZE:
        raise ValueError(f"There is no recipe for the size {size!r}: choose one of {', '.join(_BY_SIZE)}.")
    learning_rate, layer_decay = _BY_SIZE[size]
    if peft is not None:
        if peft != "lora":
            raise ValueError(f"There is no recipe for peft={peft!r}: only for lora.")
        learning_rate, layer_decay = _LORA_LEARNING_RATE, 1.0
    return Recipe(size, learning_rate, layer_decay, task.epochs)


def guess_size(config: PreTrainedConfig) -> str:
    """The size that a configuration is of: by width and depth where they are those of a named size (of width 256, any
    depth is small), else by the number of parameters of the encoder, which is logged.

    Args:
        config: of any encoder.
    """
    shape: Any = config
    if shape.hidden_size == SIZES["small"]["hidden_size"]:
        return "small"
    for size in _BY_SIZE:
        if (shape.hidden_size, shape.num_hidden_layers) == _shape(size):
            return size
    with torch.device("meta"):
        encoder: Any = AutoModel.from_config(config)
    millions = encoder.num_parameters() / 1e6
    nearest = min(_MILLIONS, key=lambda size: abs(math.log(millions / _MILLIONS[size])))
    logger.info(
        f"This encoder is of no named size ({shape.num_hidden_layers} layers of {shape.hidden_size}). By its "
        f"{millions:.1f} million parameters it is fine-tuned as {nearest}; --size says otherwise."
    )
    return nearest


def _shape(size: str) -> tuple[int, int]:
    return SIZES[size]["hidden_size"], SIZES[size]["num_hidden_layers"]
