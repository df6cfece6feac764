"""Learning rates that fall from the head of a model down to its embeddings."""

from __future__ import annotations

import re
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hf_electra_rtd.training.optimization import get_parameter_groups


_LAYER = re.compile(r"(?:encoder|transformer)\.layer\.(\d+)\.")  # BERT and its like; DistilBERT
_EMBEDDINGS = re.compile(r"embeddings(?:_project)?\.")
_POOLER = re.compile(r"pooler\.")


def get_layer_groups(
    model: nn.Module, learning_rate: float, layer_decay: float, weight_decay: float, off_by_one: bool = False
) -> list[dict[str, Any]]:
    """Groups of parameters with a learning rate for each depth, those of the head first.

    The head learns at `learning_rate`, layer i of n (from 0) at `learning_rate * layer_decay^(n - i)`, so that the top
    layer is decayed once, and the embeddings with their projection n + 1 times. This is what the layer-wise decay of
    the paper (Table 7) is read as. The original's code decays all below the head once more, the top layer twice and
    the embeddings n + 2 times (google-research/electra model/optimization.py, `_get_layer_lrs`): with `off_by_one`,
    so does this.

    Args:
        model: an encoder with a head; its pooler, if it has one, counts as head.
        learning_rate: of the head.
        layer_decay: factor from one depth to the next; 1 gives two groups of one rate.
        weight_decay: of everything but biases and LayerNorm, which have none.
        off_by_one: decay everything below the head once more.

    Returns:
        For each depth, from the head down, a group with weight decay and one without, each with its `lr`. Every
        parameter that is trained is in one of them.

    Raises:
        ValueError: for a decay that is not above 0 and at most 1, or for a model, such as one with adapters, whose
            parameters have no depth.
    """
    if not 0 < layer_decay <= 1:
        raise ValueError(f"layer_decay is {layer_decay}: it must be above 0, and at most 1.")
    groups = get_parameter_groups(model, weight_decay)
    if layer_decay == 1:
        return [{**group, "lr": learning_rate} for group in groups]
    heights = _heights(model)
    result = []
    for height in sorted(set(heights.values())):
        decays = height + 1 if off_by_one and height else height
        for group in groups:
            parameters = [parameter for parameter in group["params"] if heights[id(parameter)] == height]
            if parameters:
                result.append({**group, "params": parameters, "lr": learning_rate * layer_decay**decays})
    return result


def _heights(model: nn.Module) -> dict[int, int]:
    """How far below the head each parameter is, by its id: 0 for the head's, 1 for those of the top layer."""
    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"A learning rate for each layer is for plain models of transformers, not for a {type(model).__name__}: "
            "with adapters, take layer_decay=1."
        )
    prefix = f"{model.base_model_prefix}."
    parameters = dict(model.named_parameters())
    inside = {name: name.removeprefix(prefix) for name in parameters if name.startswith(prefix)}
    layers = {name: int(match[1]) for name in inside if (match := _LAYER.match(inside[name]))}
    num_layers = max(layers.values(), default=-1) + 1
    heights = {}
    for name, parameter in parameters.items():
        if name in layers:
            height = num_layers - layers[name]
        elif name not in inside or _POOLER.match(inside[name]):
            height = 0
        elif _EMBEDDINGS.match(inside[name]):
            height = num_layers + 1
        else:
            raise ValueError(
                f"{name} of this {type(model).__name__} is neither in the embeddings nor in a layer, so it has no "
                "learning rate by depth: take layer_decay=1."
            )
        heights[id(parameter)] = height
    return heights
