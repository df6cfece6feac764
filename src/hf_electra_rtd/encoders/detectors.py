"""Discriminators as stock models. ELECTRA's own class gives one logit per token. Other families have a model for token
classification with the labels `original` and `replaced`: the difference of their two logits is the logit, and its
binary cross-entropy is exactly the cross-entropy over both labels."""

from __future__ import annotations

import copy
import logging
import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import ElectraForPreTraining, ElectraForTokenClassification, PreTrainedModel


logger = logging.getLogger(__name__)

LABELS = {0: "original", 1: "replaced"}
# The constant c that makes a LayerNorm linear in the logit z, see `with_two_labels`. The logit comes out smaller by a
# share of z^2 / (2 c^2): 5e-8 for z = 10.
_CONSTANT = 2.0**15


def detection_logits(tower: Any, **inputs: Tensor | None) -> Tensor:
    """Returns the logits (B, L) of a discriminator of either kind, positive where a token was replaced."""
    logits: Tensor = tower(**inputs).logits
    return logits if logits.dim() == 2 else logits[..., 1] - logits[..., 0]


def label(config: Any) -> None:
    """Sets the labels `original` and `replaced` in a configuration."""
    config.id2label = dict(LABELS)
    config.label2id = {name: index for index, name in LABELS.items()}


def is_labelled(config: Any) -> bool:
    """Whether a configuration is that of a detector with two labels."""
    return {int(index): name for index, name in (getattr(config, "id2label", None) or {}).items()} == LABELS


def without_head(tower: PreTrainedModel) -> Any:
    """Returns the encoder of a discriminator, with a configuration of its own that has the default labels."""
    encoder: Any = copy.copy(tower.base_model)
    encoder.config = copy.deepcopy(encoder.config)
    encoder.config.id2label = {0: "LABEL_0", 1: "LABEL_1"}
    encoder.config.label2id = {"LABEL_0": 0, "LABEL_1": 1}
    return encoder


def without_head_dropout(tower: nn.Module) -> None:
    """Turns off the dropout before the classifying layer, since ELECTRA's own head has none."""
    for child in tower.children():
        if isinstance(child, nn.Dropout):
            child.p = 0.0


@torch.no_grad()
def with_two_labels(tower: ElectraForPreTraining) -> ElectraForTokenClassification | None:
    """Returns ELECTRA's discriminator as an `ElectraForTokenClassification`. Returns None, with a warning, if its
    feed-forward layers are narrower than 3 times `hidden_size`, or its activation f does not have the property
    f(x) - f(-x) = x.

    The stock class has a single linear layer on the encoder; ELECTRA's head is a dense layer, an activation and one
    output. So the model gets one more encoder layer, which computes that head. The attention of this layer adds
    nothing. With n the normalized states before the last scale g and shift b, its feed-forward part computes

        z = v . f(W (g n + b) + d) + e        -n = -(f(n) - f(-n))

    where -n cancels the residual. The LayerNorm of the added layer then reads c, -c, z, -z and zeros, whose variance
    is 2 (c^2 + z^2) / H. For a large c this is a constant, so that the difference of the outputs for z and -z is z
    times a constant.
    """
    config = copy.deepcopy(tower.config)
    head = tower.discriminator_predictions
    width = config.hidden_size
    points = torch.linspace(-8, 8, 101)
    is_odd = torch.allclose(head.activation(points) - head.activation(-points), points, atol=1e-5)
    if config.intermediate_size < 3 * width or width < 4 or not is_odd:
        logger.warning(
            "No detector/ is written: a stock ElectraForTokenClassification can hold this head only with an "
            "intermediate_size of at least 3 times hidden_size, and an activation such as gelu, silu or relu."
        )
        return None
    config.num_hidden_layers += 1
    label(config)
    with torch.random.fork_rng(devices=[]):  # an export must not change the random numbers of the run
        model = ElectraForTokenClassification(config)
    nn.Module.to(model, device=tower.device, dtype=tower.dtype)
    model.load_state_dict(tower.state_dict(), strict=False)
    *_, last, added = model.electra.encoder.layer
    scale = last.output.LayerNorm.weight.clone()
    shift = last.output.LayerNorm.bias.clone()
    for parameter in added.parameters():
        parameter.zero_()
    for norm in (last.output.LayerNorm, added.attention.output.LayerNorm, added.output.LayerNorm):
        norm.weight.fill_(1)
        norm.bias.zero_()
    first = added.intermediate.dense
    second = added.output.dense
    same = torch.arange(width)
    first.weight[:width] = head.dense.weight * scale
    first.bias[:width] = head.dense.bias + head.dense.weight @ shift
    first.weight[width + same, same] = 1.0
    first.weight[2 * width + same, same] = -1.0
    second.weight[same, width + same] = -1.0
    second.weight[same, 2 * width + same] = 1.0
    output = head.dense_prediction
    for place, sign in ((2, 1), (3, -1)):
        second.weight[place, :width] = sign * output.weight[0]
        second.bias[place] = sign * output.bias[0]
    second.bias[0] = _CONSTANT
    second.bias[1] = -_CONSTANT
    deviation = math.sqrt(2 * _CONSTANT**2 / width + config.layer_norm_eps)
    model.classifier.weight.zero_()
    model.classifier.bias.zero_()
    model.classifier.weight[1, 2] = deviation / 2
    model.classifier.weight[1, 3] = -deviation / 2
    return model.train(tower.training)
