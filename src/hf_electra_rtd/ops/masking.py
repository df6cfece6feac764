"""Chooses the tokens to mask, and moves ids between the original, the masked and the corrupted sequence.

A slot is one of the K places that a sequence keeps for masked tokens. Slots that a short sequence does not need have
the label `IGNORED`, as `torch.nn.functional.cross_entropy` expects; their positions do not matter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


IGNORED = -100
_NO_CANDIDATE = 2.0  # a score above all uniforms
_NO_CANDIDATE_BITS = int(np.float32(_NO_CANDIDATE).view(np.int32))


class MaskedSlots(NamedTuple):
    """Masked slots of a batch."""

    positions: Tensor  # (B, K) int64
    labels: Tensor  # (B, K) int64; the original ids, `IGNORED` in unused slots


def num_masked(mask_probability: float, length: int) -> int:
    """Returns K, the number of tokens of a sequence to mask, at least one. `length` includes [CLS] and [SEP], as in
    google-research/electra pretrain/pretrain_helpers.py. Draws may coincide there; here the K positions are distinct.
    """
    return max(1, round(mask_probability * length))


def choose_masked_positions(
    candidates_BL: np.ndarray, uniforms_BL: np.ndarray, counts_B: np.ndarray, num_slots: int
) -> np.ndarray:
    """Draws distinct positions; every set of `counts_B[i]` candidates of a sequence is equally likely.

    `candidates_BL` is True where a token may be masked. Those candidates are chosen that have the smallest
    `uniforms_BL`, float32 in [0, 1); fewer where a sequence has too few candidates or slots. Returns int64 (B, K), K
    being `num_slots`: positions, ascending, then -1 in unused slots.
    """
    scores_BL = np.array(uniforms_BL, order="C")
    scores_BL[~candidates_BL] = _NO_CANDIDATE
    # The bits of floats that are not negative have the same order, and sort faster.
    bits_BL = scores_BL.view(np.int32)
    counts_B = np.minimum(counts_B, num_slots)
    rows_B = np.arange(len(scores_BL))
    last_B = np.sort(bits_BL, axis=1)[rows_B, np.maximum(counts_B - 1, 0)]
    threshold_B = np.where(counts_B > 0, np.minimum(last_B, _NO_CANDIDATE_BITS - 1), -1)
    chosen_BL = bits_BL <= threshold_B[:, None]
    if (chosen_BL.sum(axis=1) > counts_B).any():  # equal numbers at the threshold: the first ones are chosen
        tied_BL = bits_BL == threshold_B[:, None]
        room_B = counts_B - (chosen_BL & ~tied_BL).sum(axis=1)
        chosen_BL &= ~tied_BL | (tied_BL.cumsum(axis=1) <= room_B[:, None])
    return _slots(chosen_BL, num_slots)


def choose_masked_words(
    candidates_BL: np.ndarray,
    word_starts_BL: np.ndarray,
    uniforms_BL: np.ndarray,
    beginnings_B: np.ndarray,
    counts_B: np.ndarray,
    num_slots: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws as many distinct positions as `choose_masked_positions`, but words as a whole. At most two words of a
    sequence are masked only in part, and every candidate of a sequence is equally likely.

    The words are arranged in random order on a ring, and an arc of `counts_B[i]` tokens, which begins at a random
    token, is masked. A token that is not a candidate ([SEP]) divides a word into two.

    `word_starts_BL` is True where a word begins. `uniforms_BL` give the order of the words, `beginnings_B` the first
    token of the arc. All are in [0, 1). Returns the positions, int64 (B, K), ascending, then -1 in unused slots; and
    for each position, the one where its word begins.
    """
    places_L = np.arange(candidates_BL.shape[1])
    opens_BL = candidates_BL.copy()
    opens_BL[:, 1:] &= ~candidates_BL[:, :-1] | word_starts_BL[:, 1:]
    starts_BL = np.maximum.accumulate(np.where(opens_BL, places_L, 0), axis=1)

    scores_BL = np.take_along_axis(np.asarray(uniforms_BL, dtype=np.float32), starts_BL, axis=1)
    scores_BL[~candidates_BL] = _NO_CANDIDATE
    ring_BL = np.argsort(scores_BL.view(np.int32), axis=1, kind="stable")  # so a word's tokens stay together
    ranks_BL = np.empty_like(ring_BL)
    np.put_along_axis(ranks_BL, ring_BL, np.broadcast_to(places_L, ring_BL.shape), axis=1)
    sizes_B = np.maximum(candidates_BL.sum(axis=1), 1)
    distances_BL = ranks_BL - (beginnings_B.astype(np.float64) * sizes_B).astype(np.int64)[:, None]
    chosen_BL = candidates_BL & (distances_BL % sizes_B[:, None] < np.minimum(counts_B, num_slots)[:, None])
    positions_BK = _slots(chosen_BL, num_slots)
    return positions_BK, np.take_along_axis(starts_BL, np.maximum(positions_BK, 0), axis=1)


def _slots(chosen_BL: np.ndarray, num_slots: int) -> np.ndarray:
    """Returns the chosen positions (B, K), ascending, then -1."""
    batch_size, length = chosen_BL.shape
    places = np.flatnonzero(chosen_BL)
    numbers_B = chosen_BL.sum(axis=1)
    positions_BK = np.full((batch_size, num_slots), -1)
    first_B = np.repeat(length * np.arange(batch_size), numbers_B)
    positions_BK[np.arange(num_slots) < numbers_B[:, None]] = places - first_B
    return positions_BK


def masked_slots(ids_BL: Tensor, positions_BK: Tensor | None, labels: Tensor) -> MaskedSlots:
    """Returns the masked slots for either form of labels: (B, K) with positions, or (B, L) without, as
    `DataCollatorForLanguageModeling` gives them. Without positions, K is the largest number of masked tokens in a
    sequence, at least 1, and the host waits for the device to read it. Raises ValueError for labels of any other
    shape."""
    name, like = ("input_ids", ids_BL) if positions_BK is None else ("masked_positions", positions_BK)
    if labels.shape != like.shape:
        raise ValueError(f"labels have the shape {tuple(labels.shape)}, but must have that of {name}.")
    if positions_BK is None:
        masked_BL = labels.ne(IGNORED)
        num_slots = max(1, int(masked_BL.sum(dim=1).max()))
        # The sort is stable, so positions stay ascending. Unused slots follow, with the label IGNORED.
        order_BL = masked_BL.to(torch.int8).sort(dim=1, descending=True, stable=True).indices
        return MaskedSlots(order_BL[:, :num_slots], labels.gather(1, order_BL[:, :num_slots]))
    # Unused slots may have any position, even one outside. Set it to 0, where gathering is harmless.
    return MaskedSlots(positions_BK.masked_fill(labels.eq(IGNORED), 0), labels)


def replace_at(ids_BL: Tensor, slots: MaskedSlots, values_BK: Tensor) -> Tensor:
    """Returns `ids_BL` with `values_BK` at the used slots. Of two used slots at one position, either may win."""
    # Unused slots write to an extra column, so that they cannot overwrite a used one.
    length = ids_BL.shape[1]
    positions = slots.positions.masked_fill(slots.labels.eq(IGNORED), length)
    scratch = torch.cat([ids_BL, ids_BL.new_zeros(len(ids_BL), 1)], dim=1)
    return scratch.scatter(1, positions, values_BK)[:, :length]


def original_ids(masked_BL: Tensor, slots: MaskedSlots) -> Tensor:
    """The sequences before masking."""
    return replace_at(masked_BL, slots, slots.labels)
