import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_electra_rtd.ops import (
    IGNORED,
    MaskedSlots,
    choose_masked_positions,
    masked_slots,
    num_masked,
    original_ids,
    replace_at,
)


@pytest.mark.parametrize(
    ("probability", "length", "expected"),
    [(0.15, 128, 19), (0.15, 512, 77), (0.25, 512, 128), (0.15, 3, 1), (0.15, 1, 1)],
)
def test_k_is_the_rounded_share_of_the_row(probability, length, expected):
    assert num_masked(probability, length) == expected


@st.composite
def masking_cases(draw):
    rows = draw(st.integers(1, 5))
    length = draw(st.integers(1, 40))
    slots = draw(st.integers(1, length))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    candidates = random.random((rows, length)) < draw(st.sampled_from([0.0, 0.1, 0.7, 1.0]))
    uniforms = random.random((rows, length), dtype=np.float32)
    counts = random.integers(0, slots + 1, rows)  # also no masks at all
    return candidates, uniforms, counts, slots


@given(masking_cases(), st.booleans())
def test_positions_are_the_candidates_with_the_smallest_numbers_and_of_equal_ones_the_first(case, coarse):
    candidates, uniforms, counts, slots = case
    if coarse:
        uniforms = np.floor(uniforms * 4) / 4
    positions = choose_masked_positions(candidates, uniforms, counts, slots)
    assert positions.dtype == np.int64
    for row, numbers, count, chosen in zip(candidates, uniforms, counts.tolist(), positions.tolist(), strict=True):
        best = sorted(np.flatnonzero(row).tolist(), key=lambda position: (numbers[position].item(), position))
        used = sorted(best[: min(count, slots)])
        assert chosen == used + [-1] * (slots - len(used))


@given(st.integers(1, 4), st.integers(1, 20), st.integers(0, 2**32))
def test_masking_and_restoring_are_inverse(rows, length, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 50, (rows, length), generator=generator)
    positions = torch.rand(rows, length, generator=generator).argsort(dim=1)
    labels = ids.gather(1, positions).masked_fill(torch.rand(rows, length, generator=generator) < 0.5, IGNORED)
    slots = MaskedSlots(positions, labels)
    masked = replace_at(ids, slots, torch.full_like(labels, 4))
    assert torch.equal(masked.eq(4).sum(dim=1), labels.ne(IGNORED).sum(dim=1))
    assert torch.equal(original_ids(masked, slots), ids)


def test_unused_slots_write_nothing_even_where_they_point_at_a_used_one():
    ids = torch.tensor([[7, 8, 9]])
    slots = MaskedSlots(torch.tensor([[0, 0, 0]]), torch.tensor([[IGNORED, 7, IGNORED]]))
    assert replace_at(ids, slots, torch.tensor([[1, 2, 3]])).tolist() == [[2, 8, 9]]


@given(st.integers(1, 4), st.integers(1, 20), st.sampled_from([0.0, 0.2, 1.0]), st.integers(0, 2**32))
def test_slots_of_labels_at_their_positions_name_every_label_once(rows, length, share, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 50, (rows, length), generator=generator)
    labels = labels.masked_fill(torch.rand(rows, length, generator=generator) >= share, IGNORED)
    slots = masked_slots(labels, None, labels)
    assert slots.labels.shape[1] == max(1, int(labels.ne(IGNORED).sum(dim=1).max()))
    rebuilt = replace_at(torch.full_like(labels, IGNORED), slots, slots.labels)
    assert torch.equal(rebuilt, labels)
    for positions in slots.positions.tolist():
        assert len(set(positions)) == len(positions)


@pytest.mark.parametrize(("positions", "labels"), [((2, 2), (2, 5)), (None, (2, 2))])
def test_labels_that_do_not_fit_are_refused(positions, labels):
    positions = None if positions is None else torch.zeros(positions).long()
    with pytest.raises(ValueError, match="labels"):
        masked_slots(torch.zeros(2, 5).long(), positions, torch.zeros(labels).long())
