import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from hf_electra_rtd.data.collator import MASKING
from hf_electra_rtd.ops import MORE_UNIFORMS, choose_masked_groups
from tests import reference


KINDS = {name: run_lengths for name, run_lengths in MASKING.items() if run_lengths is not None}
by_kind = pytest.mark.parametrize("kind", KINDS)


def draw(random, kind, candidates, starts, counts, slots):
    rows, length = candidates.shape
    uniforms = random.random((rows, length), dtype=np.float32)
    more = random.random((rows, length + MORE_UNIFORMS), dtype=np.float32)
    chosen = choose_masked_groups(candidates, starts, KINDS[kind], uniforms, more, counts, slots)
    return *chosen, uniforms, more


def make_words(random, rows, length):
    """The length of the word at each place, and where words begin. 70 % are one piece, the others up to four."""
    sizes = random.choice([1, 2, 3, 4], (rows, length), p=[0.7, 0.17, 0.09, 0.04])
    starts = np.zeros((rows, length + 4), dtype=bool)
    np.put_along_axis(starts, np.minimum(np.insert(sizes.cumsum(axis=1), 0, 0, axis=1), length), True, axis=1)
    starts = starts[:, :length]
    return np.take_along_axis(sizes, starts.cumsum(axis=1) - 1, axis=1), starts


@by_kind
@given(st.data())
def test_what_is_chosen_is_what_the_plain_version_chooses(kind, data):
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = data.draw(st.integers(1, 4))
    length = data.draw(st.integers(1, 40))
    candidates = random.random((rows, length)) < data.draw(st.sampled_from([0.0, 0.1, 0.9, 1.0]))
    starts = random.random((rows, length)) < data.draw(st.sampled_from([0.0, 0.6, 1.0]))
    slots = data.draw(st.integers(1, length))
    counts = random.integers(0, slots + 1, rows)
    positions, groups, uniforms, more = draw(random, kind, candidates, starts, counts, slots)
    for row in range(rows):
        given_ = (candidates[row], starts[row], KINDS[kind], uniforms[row], more[row].tolist(), int(counts[row]))
        wanted = sorted(reference.choose_masked_groups(*given_))
        places = [place for group in wanted for place in group]
        assert positions[row].tolist() == places + [-1] * (slots - len(places))
        numbers = groups[row, : len(places)].tolist()
        assert [numbers.count(number) for number in sorted(set(numbers))] == [len(group) for group in wanted]


@by_kind
def test_every_sequence_has_all_its_masks_and_at_most_two_groups_are_cut(kind):
    random = np.random.default_rng(0)
    rows = 2000
    length = 128
    masked = 19
    _, starts = make_words(random, rows, length)
    candidates = np.ones((rows, length), dtype=bool)
    candidates[:, [0, 60, -1]] = False  # [CLS], [SEP], [SEP]
    positions, groups, uniforms, more = draw(random, kind, candidates, starts, np.full(rows, masked), masked)
    assert (np.diff(positions, axis=1) > 0).all()  # distinct
    assert (positions[:, 0] >= 0).all()
    assert candidates[np.arange(rows)[:, None], positions].all()
    assert ((positions < 60) == (groups < 60)).all()  # no group on both sides of [SEP]
    # The whole groups, from masking every candidate.
    whole = np.full(rows, length), length
    everything = choose_masked_groups(candidates, starts, KINDS[kind], uniforms, more, *whole)[1]
    sizes, chosen = np.zeros((2, rows, length), dtype=int)
    np.add.at(sizes, (np.arange(rows)[:, None], everything[:, :125]), 1)
    np.add.at(chosen, (np.arange(rows)[:, None], groups), 1)
    cut = ((chosen > 0) & (chosen < sizes)).sum(axis=1)
    assert cut.max() == 2
    if kind == "word":
        assert cut.mean() < 0.7


@by_kind
@pytest.mark.parametrize(("length", "masked"), [(128, 19), (32, 5)])  # in the second, spans reach the arc's length
def test_every_token_is_as_likely_whatever_its_word_its_piece_and_its_place(kind, length, masked):
    random = np.random.default_rng(4)
    rows = 20_000
    sizes, starts = make_words(random, rows, length)
    candidates = np.ones((rows, length), dtype=bool)
    candidates[:, [0, length // 2, -1]] = False
    positions, *_ = draw(random, kind, candidates, starts, np.full(rows, masked), masked)
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


@pytest.mark.parametrize(("kind", "number"), [("ngram", 50), ("span", 30)])
def test_groups_have_the_published_numbers_of_words(kind, number):
    random = np.random.default_rng(2)
    rows = 500
    length = 400
    everything = np.ones((rows, length), dtype=bool)
    _, groups, *_ = draw(random, kind, everything, everything, np.full(rows, length), length)
    # The first group may be shortened, and only the last groups can be cut by the end of the sequence.
    found = np.concatenate([np.diff(np.unique(row))[1 : 1 + number] for row in groups])
    geometric = 0.2 * 0.8 ** np.arange(10)
    published = {"ngram": [0.4, 0.3, 0.2, 0.1], "span": geometric / geometric.sum()}[kind]
    counts = np.bincount(found)[1:]
    assert len(found) == rows * number
    assert chisquare(counts, len(found) * np.array(published)).pvalue > 0.001


def test_the_first_group_of_a_sequence_is_shortened_to_any_length():
    random = np.random.default_rng(3)
    rows = 20_000
    everything = np.ones((rows, 12), dtype=bool)
    _, groups, *_ = draw(random, "ngram", everything, everything, np.full(rows, 12), 12)
    counts = np.bincount((groups == 0).sum(axis=1), minlength=5)[1:]
    shares = [0.4 + 0.3 / 2 + 0.2 / 3 + 0.1 / 4, 0.3 / 2 + 0.2 / 3 + 0.1 / 4, 0.2 / 3 + 0.1 / 4, 0.1 / 4]
    assert chisquare(counts, rows * np.array(shares)).pvalue > 0.001
