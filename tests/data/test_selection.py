import numpy as np
import pytest

from hf_electra_rtd.data import selection
from hf_electra_rtd.data.selection import DocumentDraws, held_out_threshold, read_shares
from hf_electra_rtd.ops import randomness


def chosen(num_documents, share, seed):
    threshold = held_out_threshold(num_documents, share, seed)
    draws = DocumentDraws(seed, randomness.SPLITTING)
    return [document for document in range(num_documents) if draws[document] < threshold]


def test_the_split_is_by_document_seeded_and_never_empty():
    assert len(chosen(1000, 0.05, seed=0)) == 50
    assert chosen(1000, 0.05, seed=0) != chosen(1000, 0.05, seed=1)
    assert len(chosen(2, 0.05, seed=0)) == 1
    assert chosen(2, 0.0, seed=0) == []


def test_an_empty_split_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"1 document.*would be empty.*--held_out_share 0"):
        held_out_threshold(1, 0.05, seed=0)
    with pytest.raises(ValueError, match=r"held_out_share is 1\.0"):
        held_out_threshold(10, 1.0, seed=0)


def test_a_split_in_chunks_is_the_same_and_a_huge_one_is_nearly_exact(monkeypatch):
    whole = chosen(5000, 0.03, seed=3)
    monkeypatch.setattr(selection, "_MAX_EXACT", 200)
    assert chosen(5000, 0.03, seed=3) == whole
    assert abs(len(chosen(5000, 0.2, seed=3)) - 1000) < 4 * (5000 * 0.2 * 0.8) ** 0.5


def test_draws_do_not_depend_on_the_order_in_which_they_are_asked_for():
    places = [5, 70_000, 0, 65_536, 65_535, 5]
    draws = DocumentDraws(1, randomness.WEIGHTING)
    numbers = randomness.counter_bits(1, randomness.WEIGHTING, 0, 70_001, 1)[:, 0]
    assert [draws[place] for place in places] == numbers[np.array(places)].tolist()


def test_a_weight_is_whole_passes_and_a_share_of_one():
    assert read_shares(1.0) == [1.0]
    assert read_shares(2.5) == [1.0, 1.0, 0.5]
    assert read_shares(0.25) == [0.25]
