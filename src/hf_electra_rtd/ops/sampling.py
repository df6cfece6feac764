"""Draws tokens from the generator's softmax with uniform numbers that are given.

A whole vocabulary is searched in chunks: first a chunk is found, then a token within it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


CHUNK = 512


def sample_tokens(
    logits_MV: Tensor, uniforms_M2: Tensor, temperature: float = 1.0, forbidden_M: Tensor | None = None
) -> Tensor:
    """Draws one token per row, int64 (M), from softmax(logits / temperature), by a two-level inverse CDF.

    The first uniform picks a chunk of the vocabulary with the probability of its sum, the second a token within it.
    This factorization of the categorical distribution is exact. It needs two random numbers per row, where Gumbel
    noise (google-research/electra pretrain/pretrain_helpers.py, `sample_from_softmax`) needs one per token. The same
    logits and uniforms give the same tokens on every device, up to rounding.

    Args:
        logits_MV: any floating dtype; the arithmetic is float32, or float64 for float64 logits.
        uniforms_M2: in [0, 1).
        temperature: 0.0 takes the most likely token.
        forbidden_M: int64, for each row a token that is never drawn (`disallow_correct`); negative for none.
    """
    logits = logits_MV.detach()
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if forbidden_M is not None:
        vocabulary = torch.arange(logits.shape[-1], device=logits.device)
        logits = logits.masked_fill(vocabulary == forbidden_M[..., None], float("-inf"))
    if temperature == 0.0:
        return most_likely(logits)
    return sample_weights(torch.exp((logits - logits.amax(dim=-1, keepdim=True)) / temperature), uniforms_M2)


def most_likely(scores_MV: Tensor) -> Tensor:
    """Returns the `argmax` over the last dimension, int64 (...). Most of it is done by `amax`, which a CPU computes an
    order of magnitude faster."""
    chunk_M = _of_chunks(scores_MV, lambda chunks: chunks.amax(dim=-1)).argmax(dim=-1)
    return chunk_M * CHUNK + _chunk(scores_MV, chunk_M, float("-inf")).argmax(dim=-1)


def sample_weights(weights_MV: Tensor, uniforms_M2: Tensor) -> Tensor:
    """Draws as `sample_tokens` does, but in proportion to weights (..., V), at least 0: a softmax that is already
    computed, for instance."""
    chunk_M = _inverse_cdf(_of_chunks(weights_MV, lambda chunks: chunks.sum(dim=-1)), uniforms_M2[..., 0])
    within = _inverse_cdf(_chunk(weights_MV, chunk_M, 0.0), uniforms_M2[..., 1])
    return chunk_M * CHUNK + within


def _of_chunks(values_MV: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """Applies `reduce` to each chunk of the last dimension, including a shorter one at the end: (..., chunks)."""
    num_whole, rest = divmod(values_MV.shape[-1], CHUNK)
    whole, last = values_MV.tensor_split([num_whole * CHUNK], dim=-1)
    parts = [reduce(whole.unflatten(-1, (num_whole, CHUNK)))] if num_whole else []
    return torch.cat([*parts, reduce(last[..., None, :])] if rest else parts, dim=-1)


def _chunk(values_MV: Tensor, chunk_M: Tensor, fill: float) -> Tensor:
    """Returns one chunk of each row, (..., CHUNK), with `fill` beyond the last token."""
    size = values_MV.shape[-1]
    tokens = chunk_M[..., None] * CHUNK + torch.arange(CHUNK, device=values_MV.device)
    return values_MV.gather(-1, tokens.clamp(max=size - 1)).masked_fill(tokens >= size, fill)


def _inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Returns the first index whose cumulative weight exceeds `uniforms` times the total, never one of weight zero."""
    cumulated = weights.cumsum(dim=-1)
    target = uniforms[..., None] * cumulated[..., -1:]
    hit = (cumulated > target) & (weights > 0)
    # Rounding may leave no hit for a uniform close to 1: then the last index with a weight is the right one. NaN
    # logits leave no hit at all, and must still give a valid id: the loss reports them, an index error would not.
    last = torch.arange(weights.shape[-1], device=weights.device).where(weights > 0, 0).amax(dim=-1)
    return torch.where(hit.any(dim=-1), hit.to(torch.int8).argmax(dim=-1), last)
