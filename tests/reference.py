"""The obvious version of each op: slow, plain, and right in float64. Also the sequences before masking."""

from __future__ import annotations

import itertools

import torch
from scipy.stats import chisquare
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hf_electra_rtd.ops import IGNORED


def originals(batch: dict[str, Tensor]) -> Tensor:
    """Input ids (B, L) with the labels in the place of masked tokens."""
    ids = batch["input_ids"].clone()
    rows, slots = batch["labels"].ne(IGNORED).nonzero(as_tuple=True)
    ids[rows, batch["masked_positions"][rows, slots]] = batch["labels"][rows, slots]
    return ids


def sample_tokens(
    logits_MV: Tensor, uniforms_M2: Tensor, temperature: float = 1.0, forbidden_M: Tensor | None = None
) -> Tensor:
    """Samples from a logits matrix (M, V) row by row, chunk by chunk and token by token."""
    drawn, chunk = [], 512
    for row, (logits, (u_chunk, u_token)) in enumerate(zip(logits_MV, uniforms_M2.tolist(), strict=True)):
        logits = logits.clone()
        if forbidden_M is not None and forbidden_M[row] >= 0:
            logits[forbidden_M[row]] = float("-inf")
        if temperature == 0.0:
            drawn.append(int(logits.argmax()))
            continue
        probabilities = torch.softmax(logits / temperature, dim=0)
        sums = torch.stack([part.sum() for part in probabilities.split(chunk)])
        which = _first_above(sums, u_chunk)
        drawn.append(which * chunk + _first_above(probabilities[which * chunk : (which + 1) * chunk], u_token))
    return torch.tensor(drawn)


def _first_above(weights: Tensor, uniform: float) -> int:
    target, running = uniform * float(weights.sum()), 0.0
    for index, weight in enumerate(weights.tolist()):
        running += weight
        if running > target:
            return index
    return int(weights.nonzero()[-1])


def chi_square_p(observed: Tensor, expected: Tensor) -> float:
    """The p-value of a chi-square test. Outcomes that are expected fewer than five times form one class."""
    often = expected >= 5
    counts = torch.stack(
        [torch.cat([each[often], each[~often].sum()[None]]).double() for each in (observed, expected)]
    )
    return float(chisquare(*counts[:, counts[1] > 0]).pvalue)


def masked_lm_loss(logits_NV: Tensor, labels_N: Tensor) -> Tensor:
    """The sum of -log softmax at the labels that are not `IGNORED`."""
    terms = [
        -torch.log_softmax(logits, dim=-1)[label]
        for logits, label in zip(logits_NV, labels_N.tolist(), strict=True)
        if label != IGNORED
    ]
    return torch.stack(terms).sum() if terms else logits_NV.sum() * 0


def attention_by_lengths(
    query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, offsets: Tensor, scaling: float, window: int | None = None
) -> Tensor:
    """Computes attention document by document and query by query. Each document consists of the tokens, out of T, from
    one offset to the next. A token attends to tokens of its own document that are at most `window` places away."""
    found = torch.zeros_like(query_THD)
    for start, stop in itertools.pairwise(offsets.tolist()):
        for place in range(start, stop):
            first, last = (
                (start, stop) if window is None else (max(start, place - window), min(stop, place + window + 1))
            )
            scores_HK = torch.einsum("hd,khd->hk", query_THD[place], key_THD[first:last]) * scaling
            found[place] = torch.einsum("hk,khd->hd", scores_HK.softmax(dim=-1), value_THD[first:last])
    return found


def replaced_token_loss(logits_BL: Tensor, replaced_BL: Tensor, attention_mask_BL: Tensor | None) -> Tensor:
    """The mean of -log p(label) over the real tokens."""
    labels = replaced_BL.to(logits_BL.dtype)
    losses = -(labels * F.logsigmoid(logits_BL) + (1 - labels) * F.logsigmoid(-logits_BL))
    return losses.mean() if attention_mask_BL is None else losses[attention_mask_BL.bool()].mean()


def choose_masked_words(candidates_L, word_starts_L, uniforms_L, beginning, count: int) -> list[list[int]]:
    """Returns the masked places of each word of one sequence, found place by place. `beginning` is a Python float."""
    groups = []
    for place, is_candidate in enumerate(candidates_L):
        if is_candidate:
            if place == 0 or not candidates_L[place - 1] or word_starts_L[place]:
                groups.append([])
            groups[-1].append(place)
    groups.sort(key=lambda group: uniforms_L[group[0]])
    ring = [place for group in groups for place in group]
    if not ring:
        return []
    begin = int(beginning * len(ring))
    arc = {ring[(begin + place) % len(ring)] for place in range(min(count, len(ring)))}
    return [chosen for group in groups if (chosen := [place for place in group if place in arc])]
