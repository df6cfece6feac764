"""Stock layers exchanged for faster ones, with the same parameters and meaning.

On a CPU torch draws dropout serially, a number an element. Its attention has no fused kernel with dropout and a slow
one in half precision, and its matrix products may not use the processor's widest instructions. On other devices the
exchanged layers are the stock ones. Under `torch.compile`, which makes kernels of its own, they are stock, too, except
attention in half precision.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_electra_rtd.encoders.families import FAMILIES
from hf_electra_rtd.ops import attention_with_dropout, draw_dropout_bits, dropout
from hf_electra_rtd.ops.devices import on_cpu
from hf_electra_rtd.ops.products import linear


# Takes the place of "sdpa", also where a loader is asked for it; any other back-end stays. The pair's
# `set_attn_implementation` afterwards has the last word.
ATTENTION = "sdpa_with_dropout"
_SHORT = 256  # tokens up to which products of matrices are faster than a fused kernel (benchmarks/LOG.md)


def exchange_layers(tower: PreTrainedModel) -> None:
    """Exchanges the dropout and linear layers of a tower, and its attention where that is torch's own (`"sdpa"`)."""
    # `ops.prediction` multiplies by the output layer itself, which must stay a plain one.
    plain = tower.get_output_embeddings()
    for module in tower.modules():
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, Dropout(child.p).train(child.training))
            elif type(child) is nn.Linear and child is not plain and tower.config.model_type in FAMILIES:
                child.__class__ = Linear  # its parameters stay those of optimizers and of tied layers
    if tower.config._attn_implementation == "sdpa":
        tower.set_attn_implementation(ATTENTION)


class Dropout(nn.Dropout):
    """`nn.Dropout`, from fewer random numbers on a CPU; see `hf_electra_rtd.ops.dropout`."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training and _is_slow(input, self.p):
            return dropout(input, draw_dropout_bits(input.shape), self.p)
        return super().forward(input)


class Linear(nn.Linear):
    """`nn.Linear`, by the faster library on a CPU; see `hf_electra_rtd.ops.products`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`transformers`' "sdpa"; on a CPU with dropout `attention_with_dropout`, and in half precision, in training,
    products of matrices: (B, H, L, D) each, to (B, L, H, D)."""
    same_shape = key.shape[1:3] == query.shape[1:3]
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    if same_shape and _is_slow(query, dropout):
        batch_size, num_heads, length, _ = query.shape
        bits = draw_dropout_bits((num_heads, batch_size, length, length))
        return attention_with_dropout(query, key, value, bits, dropout, factor, attention_mask), None
    if same_shape and dropout == 0.0 and attention_mask is None and _learns_in_half_precision(query):
        weights_BHLL = torch.softmax((query * factor) @ key.mT, dim=-1)
        return (weights_BHLL @ value).transpose(1, 2).contiguous(), None
    stock = ALL_ATTENTION_FUNCTIONS["sdpa"]
    return stock(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)


def _learns_in_half_precision(query: Tensor) -> bool:
    """Whether the backward pass of torch's fused kernel would be slow here. In bfloat16 on a CPU it takes four times
    as long as products of matrices for 128 tokens, and as long for 512."""
    is_short = query.shape[2] <= _SHORT and query.dtype.itemsize < 4
    return is_short and query.requires_grad and on_cpu(query)


def _is_slow(inputs: Tensor, probability: float) -> bool:
    """Whether torch would be slow at dropout here."""
    return 0.0 < probability <= 0.99 and on_cpu(inputs) and not torch.compiler.is_compiling()


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
