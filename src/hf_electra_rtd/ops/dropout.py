"""Dropout, and attention with dropout on its weights, from random bits that are given.

Torch draws dropout on a CPU one Bernoulli number an element, serially: a sixth of a training step of ELECTRA-small.
Sixteen bits an element are drawn four times faster, and are kept for the backward pass in half the memory of a mask of
numbers.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hf_electra_rtd.ops.products import product


_NUM_VALUES = 2**16  # so a probability is met to 2**-17; the scale is that of the probability that is met


def draw_dropout_bits(shape: tuple[int, ...]) -> Tensor:
    """Uniform int16 numbers of any shape, on the CPU, from torch's generator."""
    count = torch.Size(shape).numel()
    # Four at a time; all 64 bits of a word are uniform when no upper end is given.
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    return words.view(torch.int16)[:count].view(shape)


def dropout_scale(bits: Tensor, probability: float, dtype: torch.dtype) -> Tensor:
    """What dropout multiplies by: 0 with `probability`, in [0, 1), rounded to a multiple of 2**-16; else
    1 / (1 - probability), so that the mean stays."""
    num_dropped = round(probability * _NUM_VALUES)
    kept = bits.to(torch.float32).ge_(num_dropped - _NUM_VALUES // 2).to(dtype)
    return kept.mul_(_NUM_VALUES / (_NUM_VALUES - num_dropped))


def dropout(inputs: Tensor, bits: Tensor, probability: float) -> Tensor:
    """`inputs` times `dropout_scale`; only `bits` are kept for the backward pass."""
    return cast(Tensor, _Dropout.apply(inputs, bits, probability))


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, bits: Tensor, probability: float) -> Tensor:
        ctx.save_for_backward(bits)
        ctx.probability = probability
        return dropout_scale(bits, probability, inputs.dtype).mul_(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (bits,) = ctx.saved_tensors
        return dropout_scale(bits, ctx.probability, gradient.dtype) * gradient, None, None


def attention_with_dropout(
    query_BHLD: Tensor,
    key_BHLD: Tensor,
    value_BHLD: Tensor,
    bits_HBLL: Tensor,
    probability: float,
    scaling: float,
    mask: Tensor | None = None,
) -> Tensor:
    """dropout(softmax(scaling * query key^T + mask)) value, one head after the other: (B, L, H, D).

    One head's weights fit the cache of a CPU, its inputs are read where the projections left them (any strides whose
    last is 1), and only the weights and the random bits are kept for the backward pass. `probability`: of dropping a
    weight, in [0, 1). `mask`: broadcastable to (B, H, L, L); bool, False where a token must not be seen, or a number
    to add.
    """
    return cast(Tensor, _Attention.apply(query_BHLD, key_BHLD, value_BHLD, bits_HBLL, probability, scaling, mask))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bits: Tensor,
        probability: float,
        scaling: float,
        mask: Tensor | None,
    ) -> Tensor:
        if mask is not None:
            mask = mask.expand(*query.shape[:3], key.shape[2])
        weights = []
        output = query.new_empty(query.transpose(1, 2).shape)
        with torch.autocast(query.device.type, enabled=False):
            for head in range(query.shape[1]):
                scores_BLL = product(query[:, head], key[:, head].mT)
                # Half precision is for products; the softmax is float32 at least.
                scores_BLL = (scores_BLL if scores_BLL.dtype.itemsize >= 4 else scores_BLL.float()).mul_(scaling)
                weights.append(_masked_softmax(scores_BLL, None if mask is None else mask[:, head]).to(query.dtype))
                dropped = dropout_scale(bits[head], probability, query.dtype).mul_(weights[head])
                output[:, :, head] = product(dropped, value[:, head])
        ctx.save_for_backward(query, key, value, bits, *weights)
        ctx.probability = probability
        ctx.scaling = scaling
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BLHD: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bits, *weights = ctx.saved_tensors
        # In memory as (B, L, H, D), so that the projections' backward passes need no copy.
        gradients = [torch.empty_like(gradient_BLHD) for _ in range(3)]
        for_query, for_key, for_value = gradients
        for head, weights_BLL in enumerate(weights):
            gradient = gradient_BLHD[:, :, head]
            scale = dropout_scale(bits[head], ctx.probability, query.dtype)
            for_weights = product(gradient, value[:, head].mT).mul_(scale)
            for_value[:, :, head] = product(scale.mul_(weights_BLL).mT, gradient)
            for_scores = torch._softmax_backward_data(for_weights, weights_BLL, -1, query.dtype).mul_(ctx.scaling)
            for_query[:, :, head] = product(for_scores, key[:, head])
            for_key[:, :, head] = product(for_scores.mT, query[:, head])
        return (*(each.transpose(1, 2) for each in gradients), None, None, None, None)


def _masked_softmax(scores_BLL: Tensor, mask_BLL: Tensor | None) -> Tensor:
    """In the memory of the scores. A token that sees nothing has weights of zero, as in torch's own attention."""
    if mask_BLL is None:
        return torch.softmax(scores_BLL, dim=-1, out=scores_BLL)
    lowest = torch.finfo(scores_BLL.dtype).min  # infinity would leave weights that are no numbers
    if mask_BLL.dtype == torch.bool:
        hidden_BLL = ~mask_BLL
        scores_BLL.masked_fill_(hidden_BLL, lowest)
    else:
        hidden_BLL = mask_BLL == float("-inf")
        scores_BLL.add_(mask_BLL).clamp_(min=lowest)
    return torch.softmax(scores_BLL, dim=-1, out=scores_BLL).masked_fill_(hidden_BLL, 0.0)
