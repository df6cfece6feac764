"""Learning rates of fine-tuning: by the size of the model, and by the depth of a layer."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from hf_electra_rtd.recipes import SIZES
from hf_electra_rtd.training.optimization import get_parameter_groups


logger = logging.getLogger(__name__)


def guess_size(config: PreTrainedConfig) -> str:
    """The named size whose recipe fits an encoder: by width and depth where a named size has them (256 wide is small,
    whatever the depth), else by the number of parameters, which is logged."""
    shape: Any = config
    if shape.hidden_size == SIZES["small"].architecture["hidden_size"]:
        return "small"
    for name, size in SIZES.items():
        if all(getattr(shape, key) == size.architecture[key] for key in ("hidden_size", "num_hidden_layers")):
            return name
    millions = _outline(config).num_parameters() / 1e6
    known = {name: size.millions for name, size in SIZES.items() if size.millions is not None}
    nearest = min(known, key=lambda name: abs(math.log(millions / known[name])))
    logger.info(
        f"This encoder has no named size ({shape.num_hidden_layers} layers of width {shape.hidden_size}). By its "
        f"{millions:.1f} million parameters, the recipe of {nearest} is used. Pass --size to choose another."
    )
    return nearest


def check_layers(config: PreTrainedConfig) -> None:
    """Raises a ValueError if `layerwise_groups` will not find the layers of an encoder."""
    _heights(_outline(config))


def layerwise_groups(
    model: PreTrainedModel, learning_rate: float, decay: float, weight_decay: float, off_by_one: bool = False
) -> list[dict[str, Any]]:
    """Groups of parameters with a learning rate for each depth, those of the head first.

    The head has `learning_rate`, layer i of n (from 0) `learning_rate * decay^(n - i)`, so that the top layer is
    decayed once, and the embeddings with their projection n + 1 times. This is how we read the layer-wise
    learning-rate decay of the paper (Table 7). The original's code decays everything below the head once more
    (google-research/electra model/optimization.py, `_get_layer_lrs`); so does `off_by_one`.

    What follows the layers (a pooler, a last LayerNorm) counts as head. A `decay` of 1 needs no layers. Biases and
    LayerNorm have no weight decay.

    For each depth, from the head down, there is a group with weight decay and one without, each with its `lr`. Every
    parameter that is trained is in one of them.
    """
    groups = get_parameter_groups(model, weight_decay)
    if decay == 1:
        return [{**group, "lr": learning_rate} for group in groups]
    heights = _heights(model)
    result = []
    for height in sorted(set(heights.values())):
        rate = learning_rate * decay ** (height + 1 if off_by_one and height else height)
        for group in groups:
            parameters = [parameter for parameter in group["params"] if heights[id(parameter)] == height]
            if parameters:
                result.append({**group, "params": parameters, "lr": rate})
    return result


def _outline(config: PreTrainedConfig) -> Any:
    """The encoder of a configuration, without memory for its weights."""
    with torch.device("meta"):
        return AutoModel.from_config(config)


def _heights(model: PreTrainedModel) -> dict[int, int]:
    """How far below the head each parameter is, by its id: 0 for the head's, 1 for those of the top layer.

    The layers are the list of modules with the most parameters, and lists beside it that are as long (XLM has one for
    each part of a layer). Children of the encoder that come after them are part of the head, and all else (embeddings,
    relative positions) is below the lowest layer.
    """
    encoder: Any = model.base_model
    lists = {name: module for name, module in encoder.named_modules() if isinstance(module, nn.ModuleList)}
    sizes = {name: sum(parameter.numel() for parameter in module.parameters()) for name, module in lists.items()}
    name = max(sizes, key=lambda name: sizes[name], default=None)
    if name is None:
        raise ValueError(
            f"A {type(model).__name__} has no list of layers for --layerwise_lr_decay. Pass --layerwise_lr_decay 1."
        )
    num_layers = len(lists[name])
    children = [child for child, _ in encoder.named_children()]
    above = children[children.index(name.partition(".")[0]) + 1 :]
    heights = {id(parameter): 0 for parameter in model.parameters()}
    heights |= {id(parameter): num_layers + 1 for parameter in encoder.parameters()}
    heights |= {id(parameter): 0 for child in above for parameter in encoder.get_submodule(child).parameters()}
    for other, layers in lists.items():
        if other.rpartition(".")[0] == name.rpartition(".")[0] and len(layers) == num_layers:
            for index, layer in enumerate(layers):
                heights |= {id(parameter): num_layers - index for parameter in layer.parameters()}
    return heights
