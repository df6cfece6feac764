import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_electra_rtd.ops import counter_uniforms, permutation, randomness


SEEDS = st.integers(0, 2**63)


@given(SEEDS, st.lists(st.integers(0, 2**40), min_size=1, max_size=20), st.integers(1, 40))
def test_the_numbers_of_a_position_do_not_depend_on_the_others(seed, positions, count):
    together = counter_uniforms(seed, randomness.MASKING, np.array(positions), count)
    alone = [counter_uniforms(seed, randomness.MASKING, np.array([position]), count)[0] for position in positions]
    np.testing.assert_array_equal(together, np.stack(alone))


def test_uniforms_are_uniform_and_positions_independent():
    uniforms = counter_uniforms(7, randomness.MASKING, np.arange(4000), 50)
    assert uniforms.min() >= 0.0
    assert uniforms.max() < 1.0
    counts = np.histogram(uniforms, bins=64, range=(0, 1))[0]
    expected = uniforms.size / 64
    assert ((counts - expected) ** 2 / expected).sum() < 63 + 4 * np.sqrt(2 * 63)
    assert abs(np.corrcoef(uniforms[:-1].ravel(), uniforms[1:].ravel())[0, 1]) < 4 / np.sqrt(uniforms.size)


def test_purposes_and_seeds_share_no_number():
    positions = np.arange(100)
    draws = [counter_uniforms(seed, purpose, positions, 8) for seed in (0, 1) for purpose in range(5)]
    for i, one in enumerate(draws):
        for other in draws[:i]:
            assert (one == other).mean() < 1e-2


def test_the_stream_is_pinned():
    # A change here changes the masks of every run that is resumed.
    uniforms = counter_uniforms(42, randomness.MASKING, np.array([0, 12345]), 3)
    pinned = [[5071496, 13760641, 6080633], [3279040, 10477475, 3053691]]
    np.testing.assert_array_equal((uniforms * 2**24).astype(int), pinned)
    assert permutation(42, 1, 8).tolist() == [6, 4, 3, 2, 1, 7, 0, 5]


@given(SEEDS, st.integers(0, 1000), st.integers(1, 300))
def test_an_epoch_is_a_permutation(seed, epoch, length):
    assert sorted(permutation(seed, epoch, length)) == list(range(length))


@pytest.mark.parametrize("length", [3, 4])
def test_every_order_is_as_likely(length):
    draws = np.stack([permutation(0, epoch, length) for epoch in range(6000)])
    counts = np.unique(draws, axis=0, return_counts=True)[1]
    expected = 6000 / len(counts)
    assert len(counts) == {3: 6, 4: 24}[length]
    assert ((counts - expected) ** 2 / expected).sum() < len(counts) - 1 + 4 * np.sqrt(2 * len(counts))
