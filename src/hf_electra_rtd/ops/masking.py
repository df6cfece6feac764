"""Which tokens are masked, and how ids move between the original, the masked and the corrupted row.

A slot is one of the K places that a row keeps for masked tokens. Slots that a short row does not need carry the label
`IGNORED`, as `torch.nn.functional.cross_entropy` expects; where they point does not matter.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


IGNORED = -100


class MaskedSlots(NamedTuple):
    """Masked slots of a batch: `positions` and `labels` (the original ids, `IGNORED` in unused slots), int64 (B,
    K)."""

    positions: Tensor
    labels: Tensor


def num_masked(mask_probability: float, length: int) -> int:
    """K: how many tokens of a row of `length` are masked ([CLS] and [SEP] counted in the length), at least one.

    google-research/electra pretrain/pretrain_helpers.py counts the same way (`num_tokens * mask_prob`, special tokens
    included); there the draws may coincide, here K positions are distinct.
    """
    return max(1, round(mask_probability * length))


def choose_masked_positions(candidates_BL: Tensor, uniforms_BL: Tensor, counts_B: Tensor, num_slots: int) -> Tensor:
    """Draws distinct positions, every set of `counts_B[i]` candidates of a row being equally likely.

    Args:
        candidates_BL: bool; True where a token may be masked.
        uniforms_BL: float32 in [0, 1); the candidates with the smallest are chosen.
        counts_B: int64; how many to choose in each row; fewer are chosen where there are fewer candidates.
        num_slots: K, at most L.

    Returns:
        int64 (B, K), ascending, then -1 in unused slots.

    Raises:
        ValueError: for more slots than tokens in a row.
    """
    length = candidates_BL.shape[1]
    _check_num_slots(num_slots, length)
    scores = uniforms_BL.masked_fill(~candidates_BL, 2.0)
    chosen = scores.topk(num_slots, dim=1, largest=False, sorted=True)
    rank = torch.arange(num_slots, device=scores.device)
    used = (rank < counts_B[:, None]) & (chosen.values < 1.0)
    positions = chosen.indices.masked_fill(~used, length).sort(dim=1).values
    return positions.masked_fill(positions == length, -1)


def masked_slots(ids_BL: Tensor, positions_BK: Tensor | None, labels: Tensor) -> MaskedSlots:
    """The masked slots, from either form of labels: (B, K) with positions, or (B, L) without.

    Raises:
        ValueError: for labels of a shape that fits neither, or more slots than tokens in a row.
    """
    if positions_BK is None:
        if labels.shape != ids_BL.shape:
            raise ValueError(
                f"Without masked_positions, labels must have the shape of input_ids, {tuple(ids_BL.shape)}; "
                f"they have {tuple(labels.shape)}."
            )
        return slots_from_labels(labels)
    if positions_BK.shape != labels.shape:
        raise ValueError(
            f"With masked_positions of shape {tuple(positions_BK.shape)}, labels must have that shape; "
            f"they have {tuple(labels.shape)}."
        )
    _check_num_slots(positions_BK.shape[1], ids_BL.shape[1])
    # Unused slots may point anywhere, also outside: point them at the start, where gathering is harmless.
    return MaskedSlots(positions_BK.masked_fill(labels.eq(IGNORED), 0), labels)


def _check_num_slots(num_slots: int, length: int) -> None:
    if num_slots > length:
        raise ValueError(f"There are {num_slots} masked slots for rows of {length} tokens: at most one a token.")


def slots_from_labels(labels_BL: Tensor) -> MaskedSlots:
    """Slots of a batch whose labels lie at their positions, as `DataCollatorForLanguageModeling` gives them.

    K is the largest number of masked tokens in a row, at least 1; reading it waits for the device. Collators that
    know their K should give positions instead.
    """
    masked = labels_BL.ne(IGNORED)
    num_slots = max(1, int(masked.sum(dim=1).max()))
    # Stable, so positions stay ascending; rows with fewer masks are filled with positions whose label is IGNORED.
    positions = masked.to(torch.int8).sort(dim=1, descending=True, stable=True).indices[:, :num_slots]
    return MaskedSlots(positions, labels_BL.gather(1, positions))


def replace_at(ids_BL: Tensor, slots: MaskedSlots, values_BK: Tensor) -> Tensor:
    """`ids_BL` with `values_BK` at the used slots. Of two used slots at one position, either may win."""
    # Unused slots write to an extra column, so that they cannot meet a used one.
    length = ids_BL.shape[1]
    positions = slots.positions.masked_fill(slots.labels.eq(IGNORED), length)
    scratch = torch.cat([ids_BL, ids_BL.new_zeros(len(ids_BL), 1)], dim=1)
    return scratch.scatter(1, positions, values_BK)[:, :length]


def original_ids(masked_BL: Tensor, slots: MaskedSlots) -> Tensor:
    """The row before masking."""
    return replace_at(masked_BL, slots, slots.labels)
