"""Drawing tokens from the generator's softmax, from uniform numbers that are given."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


CHUNK = 512


def sample_tokens(
    logits_MV: Tensor, uniforms_M2: Tensor, temperature: float = 1.0, forbidden_M: Tensor | None = None
) -> Tensor:
    """Draws one token a row from softmax(logits / temperature), by a two-level inverse CDF.

    The vocabulary is cut into chunks. The first uniform picks a chunk with the probability of its sum, the second a
    token within it: an exact factorisation of the categorical distribution that needs two random numbers a row, where
    Gumbel noise (google-research/electra pretrain/pretrain_helpers.py, `sample_from_softmax`) needs one a token. The
    same logits and uniforms give the same tokens on every device, up to rounding.

    Args:
        logits_MV: (..., V), any floating dtype; the arithmetic is float32, or float64 for float64 logits.
        uniforms_M2: (..., 2) in [0, 1).
        temperature: 0.0 takes the most likely token.
        forbidden_M: int64 (...), a token a row that is never drawn (`disallow_correct`); negative for none.

    Returns:
        int64 (...).
    """
    logits = logits_MV.detach()
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if forbidden_M is not None:
        vocabulary = torch.arange(logits.shape[-1], device=logits.device)
        logits = logits.masked_fill(vocabulary == forbidden_M[..., None], float("-inf"))
    if temperature == 0.0:
        return logits.argmax(dim=-1)

    weights = torch.exp((logits - logits.amax(dim=-1, keepdim=True)) / temperature)
    weights = F.pad(weights, (0, -weights.shape[-1] % CHUNK)).unflatten(-1, (-1, CHUNK))
    chunk = _inverse_cdf(weights.sum(dim=-1), uniforms_M2[..., 0])
    within = weights.gather(-2, chunk[..., None, None].expand(*chunk.shape, 1, CHUNK)).squeeze(-2)
    return chunk * CHUNK + _inverse_cdf(within, uniforms_M2[..., 1])


def _inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """The first index whose cumulated weight exceeds `uniforms` times the total, never one of weight zero."""
    cumulated = weights.cumsum(dim=-1)
    target = uniforms[..., None] * cumulated[..., -1:]
    hit = (cumulated > target) & (weights > 0)
    # Rounding may leave no hit for a uniform next to 1: then the last weighted index is the right one. Logits that are
    # not numbers leave none at all, and must still give a valid id: the loss reports them, an index error would not.
    last = torch.arange(weights.shape[-1], device=weights.device).where(weights > 0, 0).amax(dim=-1)
    return torch.where(hit.any(dim=-1), hit.to(torch.int8).argmax(dim=-1), last)
