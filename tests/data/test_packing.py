from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hf_electra_rtd.data.packing import FullPacker, OriginalPacker, PackingTokens, get_packer


CLS = 2
SEP = 3
STOP = 5
QUOTE = 9
FIRST_WORD = 20
TOKENS = PackingTokens(CLS, SEP, [STOP], [QUOTE])

documents = st.lists(
    st.lists(st.lists(st.sampled_from([STOP, QUOTE, *range(FIRST_WORD, 40)]), max_size=60), min_size=1, max_size=6),
    min_size=1,
    max_size=8,
)


def add(packer, text):
    """Adds the lines of a document, and returns the sequences that they complete."""
    ids = np.array([token for line in text for token in line], dtype=np.uint32)
    return packer.add_lines(ids, np.array([*map(len, text)], dtype=np.int64), np.arange(len(text)) == len(text) - 1)


def pack(packer, texts):
    sequences = []
    for text in texts:
        sequences += add(packer, text)
    return sequences + packer.finish()


def numbered(lengths, start=1000):
    """Documents of one line each, in which all tokens of the corpus differ."""
    texts = []
    for length in lengths:
        texts.append([list(range(start, start + length))])
        start += length
    return texts


def content(sequences):
    return [token for sequence in sequences for token in sequence.ids.tolist() if token not in (CLS, SEP)]


@given(documents, documents, st.integers(8, 50), st.integers(0, 2**40))
@example([[[]], [[30] * 3], [[]], [[31] * 60]], [], 8, 0)  # empty documents: the first one, and one between others
def test_full_sequences_hold_every_token_once_in_order_and_do_not_depend_on_what_follows(texts, more, length, seed):
    packer = FullPacker(TOKENS, length, seed)
    sequences = pack(packer, texts)
    corpus = [token for text in texts for line in text for token in line]
    packed = content(sequences)
    assert packed == corpus[: len(packed)]
    assert len(corpus) - len(packed) < length - 2  # the remainder is shorter than a sequence
    for sequence in sequences:
        assert len(sequence.ids) == length
        assert sequence.ids[0] == CLS
        assert sequence.ids[-1] == SEP
        assert (sequence.ids == CLS).sum() == 1
        assert sequence.ids[1] != SEP
        assert not ((sequence.ids[1:-2] == SEP) & (sequence.ids[2:-1] == SEP)).any()
        if sequence.second_segment < length:
            assert sequence.ids[sequence.second_segment - 1] == SEP
            assert 1 < sequence.second_segment < length - 1
    for sequence, same in zip(sequences, pack(FullPacker(TOKENS, length, seed), texts + more), strict=False):
        assert sequence.ids.tolist() == same.ids.tolist()
        assert sequence.second_segment == same.second_segment


def test_between_documents_stands_a_separator():
    for sequence in pack(FullPacker(TOKENS, 32, 0), numbered([10] * 40)):
        for left, right in pairwise(sequence.ids.tolist()[1:]):
            if left >= 1000 and right >= 1000:
                assert (left - 1000) // 10 == (right - 1000) // 10


def test_segments_part_at_the_sentence_end_nearest_to_the_middle_or_in_it():
    line = [30] * 12 + [STOP, QUOTE] + [31] * 5 + [STOP] + [32] * 200
    packer = FullPacker(TOKENS, 32, 1)
    sequence = next(sequence for sequence in pack(packer, [[line]]) if sequence.second_segment < 32)
    # The middle of 29 tokens is 14; the sentence ends after its closing mark, at 14, not after 13 or 20.
    assert sequence.second_segment == 1 + 14 + 1
    assert sequence.ids[sequence.second_segment - 3 : sequence.second_segment].tolist() == [STOP, QUOTE, SEP]
    without = pack(FullPacker(TOKENS, 33, 1), [[[30] * 400]])
    assert {sequence.second_segment for sequence in without} == {33, 1 + 15 + 1}


@given(st.sets(st.integers(0, 28)))
def test_segments_part_at_the_end_nearest_to_the_middle_within_the_middle_half(stops):
    line = [STOP if place in stops else 30 for place in range(300)]
    sequence = next(one for one in pack(FullPacker(TOKENS, 32, 1), [[line]]) if one.second_segment < 32)
    # The first segment takes 7 to 21 of 29 tokens. It ends with a sentence, or else in the middle, which is 14.
    nearest = min((abs(place + 1 - 14), place + 1) for place in stops | {-100} if 7 <= place + 1 < 22 or place < 0)[1]
    assert sequence.second_segment == 1 + (nearest if nearest > 0 else 14) + 1


def test_a_documents_end_near_the_middle_is_the_separator_of_the_segments():
    sequence = pack(FullPacker(TOKENS, 32, 1), numbered([14, 300]))[0]
    assert sequence.second_segment == 16
    assert sequence.ids[14:17].tolist() == [1013, SEP, 1014]
    assert (sequence.ids == SEP).sum() == 2


def test_a_tenth_of_full_sequences_has_one_segment():
    sequences = pack(FullPacker(TOKENS, 16, 5), [[[30] * 60_000]])
    one = sum(sequence.second_segment == 16 for sequence in sequences)
    assert abs(one - 0.1 * len(sequences)) < 4 * (0.09 * len(sequences)) ** 0.5


@given(documents, st.integers(5, 50), st.integers(0, 2**40))
def test_original_sequences_cross_no_document_and_hold_no_token_twice(texts, length, seed):
    packer = OriginalPacker(TOKENS, length, seed)
    for text in texts:
        tokens = [token for line in text for token in line]
        sequences = add(packer, text)
        packed = content(sequences)
        assert not Counter(packed) - Counter(tokens)
        assert all(len(sequence.ids) <= length for sequence in sequences)
        assert bool(sequences) == bool(tokens)
        assert len(packed) == len(tokens) or len(tokens) > length - 3  # what fits is kept
    assert packer.finish() == []


@pytest.mark.parametrize("length", [15, 20])
def test_original_sequences_deal_lines_to_segments_as_the_builder_does(length):
    # With lines of 20 tokens and L = 64, a sequence takes four lines (80 >= 64). The first segment has room for less
    # than (64 - 3) // 2 = 30 tokens, so it takes one line, and a second one by a coin flip. Tokens beyond 64 - 3 are
    # cut from the second segment.
    packer = OriginalPacker(TOKENS, 64, 0)
    sequences = pack(packer, [[[30 + i % 4] * length for i in range(4000)]])
    full = [sequence for sequence in sequences if len(sequence.ids) == 64 and sequence.second_segment < 64]
    assert {sequence.second_segment for sequence in full} == {length + 2, 2 * length + 2}
    coin = np.mean([sequence.second_segment == 2 * length + 2 for sequence in full])
    assert abs(coin - 0.5) < 4 * 0.5 / len(full) ** 0.5
    one_segment = np.mean([sequence.second_segment == len(sequence.ids) for sequence in sequences])
    assert 0.05 < one_segment < 0.2
    shorter = np.mean([len(sequence.ids) < 64 for sequence in sequences])
    assert 0.02 < shorter < 0.08


@pytest.mark.parametrize(
    ("packing", "length", "name"), [("full", 7, "7"), ("original", 4, "4"), ("fulll", 99, "fulll")]
)
def test_what_cannot_be_packed_is_refused(packing, length, name, tokenizer):
    with pytest.raises(ValueError, match=name):
        get_packer(packing, tokenizer, length, 0)
