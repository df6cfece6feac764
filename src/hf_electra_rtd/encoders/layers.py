"""Attention by matrix products, in place of torch's fused kernel where products are faster and give the same.

On a CPU in bfloat16, the backward pass of the fused kernel takes four times as long as matrix products for 128 tokens,
and equally long for 512. So a pair that trains there on full sequences without dropout uses matrix products. In all
other cases the attention is the stock one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_electra_rtd.ops.devices import on_cpu


# Replaces "sdpa", also where a loader is asked for it; any other implementation stays. A later call of the pair's
# `set_attn_implementation` overrides it.
ATTENTION = "sdpa_for_cpu"
_SHORT = 256  # tokens up to which matrix products are faster than a fused kernel (benchmarks/LOG.md)


def exchange_attention(tower: PreTrainedModel) -> None:
    """Replaces the attention of a tower where it is torch's own (`"sdpa"`)."""
    if tower.config._attn_implementation == "sdpa":
        tower.set_attn_implementation(ATTENTION)


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
    """Computes attention by matrix products or by `transformers`' "sdpa". `query`, `key` and `value` are (B, H, L, D),
    the result is (B, L, H, D)."""
    if _is_faster_by_products(query, key, attention_mask, dropout):
        factor = query.shape[-1] ** -0.5 if scaling is None else scaling
        weights_BHLL = torch.softmax((query * factor) @ key.mT, dim=-1)
        return (weights_BHLL @ value).transpose(1, 2).contiguous(), None
    stock = ALL_ATTENTION_FUNCTIONS["sdpa"]
    return stock(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)


def _is_faster_by_products(query: Tensor, key: Tensor, attention_mask: Tensor | None, dropout: float) -> bool:
    means_the_same = attention_mask is None and dropout == 0.0 and key.shape[1:3] == query.shape[1:3]
    is_short = query.shape[2] <= _SHORT and query.dtype.itemsize < 4
    return means_the_same and is_short and query.requires_grad and on_cpu(query)


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
