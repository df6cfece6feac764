import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_electra_rtd.ops import choose_masked_words
from tests import reference


def draw(random, candidates, starts, counts, slots):
    rows, length = candidates.shape
    uniforms = random.random((rows, length), dtype=np.float32)
    beginnings = random.random(rows, dtype=np.float32)
    chosen = choose_masked_words(candidates, starts, uniforms, beginnings, counts, slots)
    return *chosen, uniforms, beginnings


def make_words(random, rows, length):
    """The length of the word at each place, and where words begin. 70 % are one piece, the others up to four."""
    sizes = random.choice([1, 2, 3, 4], (rows, length), p=[0.7, 0.17, 0.09, 0.04])
    starts = np.zeros((rows, length + 4), dtype=bool)
    np.put_along_axis(starts, np.minimum(np.insert(sizes.cumsum(axis=1), 0, 0, axis=1), length), True, axis=1)
    starts = starts[:, :length]
    return np.take_along_axis(sizes, starts.cumsum(axis=1) - 1, axis=1), starts


@given(st.data())
def test_what_is_chosen_is_what_the_plain_version_chooses(data):
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = data.draw(st.integers(1, 4))
    length = data.draw(st.integers(1, 40))
    candidates = random.random((rows, length)) < data.draw(st.sampled_from([0.0, 0.1, 0.9, 1.0]))
    starts = random.random((rows, length)) < data.draw(st.sampled_from([0.0, 0.6, 1.0]))
    slots = data.draw(st.integers(1, length))
    counts = random.integers(0, slots + 1, rows)
    positions, words, uniforms, beginnings = draw(random, candidates, starts, counts, slots)
    for row in range(rows):
        given_ = (candidates[row], starts[row], uniforms[row], float(beginnings[row]), int(counts[row]))
        wanted = sorted(reference.choose_masked_words(*given_))
        places = [place for word in wanted for place in word]
        assert positions[row].tolist() == places + [-1] * (slots - len(places))
        numbers = words[row, : len(places)].tolist()
        assert [numbers.count(number) for number in sorted(set(numbers))] == [len(word) for word in wanted]


def test_every_sequence_has_all_its_masks_and_at_most_two_words_are_cut():
    random = np.random.default_rng(0)
    rows = 2000
    length = 128
    masked = 19
    _, starts = make_words(random, rows, length)
    candidates = np.ones((rows, length), dtype=bool)
    candidates[:, [0, 60, -1]] = False  # [CLS], [SEP], [SEP]
    positions, words, uniforms, beginnings = draw(random, candidates, starts, np.full(rows, masked), masked)
    assert (np.diff(positions, axis=1) > 0).all()  # distinct
    assert (positions[:, 0] >= 0).all()
    assert candidates[np.arange(rows)[:, None], positions].all()
    assert ((positions < 60) == (words < 60)).all()  # no word on both sides of [SEP]
    # The whole words, from masking every candidate.
    whole = np.full(rows, length), length
    everything = choose_masked_words(candidates, starts, uniforms, beginnings, *whole)[1]
    sizes, chosen = np.zeros((2, rows, length), dtype=int)
    np.add.at(sizes, (np.arange(rows)[:, None], everything[:, :125]), 1)
    np.add.at(chosen, (np.arange(rows)[:, None], words), 1)
    cut = ((chosen > 0) & (chosen < sizes)).sum(axis=1)
    assert cut.max() == 2
    assert cut.mean() < 0.7


@pytest.mark.parametrize(("length", "masked"), [(128, 19), (32, 5)])
def test_every_token_is_as_likely_whatever_its_word_its_piece_and_its_place(length, masked):
    random = np.random.default_rng(4)
    rows = 20_000
    sizes, starts = make_words(random, rows, length)
    candidates = np.ones((rows, length), dtype=bool)
    candidates[:, [0, length // 2, -1]] = False
    positions, *_ = draw(random, candidates, starts, np.full(rows, masked), masked)
    chosen = np.zeros((rows, length))
    np.put_along_axis(chosen, positions, 1.0, axis=1)
    ends = np.roll(starts, -1, axis=1)
    parts = {f"words of {size}": sizes == size for size in (1, 2, 3, 4)}
    parts |= {"first pieces": starts & (sizes > 1), "last pieces": ends & (sizes > 1)}
    deviations = (chosen - masked / (length - 3)) * candidates
    # The tokens of a sequence are masked together, so their deviations are summed before they are compared.
    found = {name: (deviations * part).sum(axis=1) for name, part in parts.items()}
    found |= {f"place {place}": deviations[:, place] for place in np.flatnonzero(candidates[0])}
    for name, values in found.items():
        assert abs(values.mean()) < 4 * values.std() / rows**0.5, (name, values.mean())
