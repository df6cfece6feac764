import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_electra_rtd import DataCollatorForRTD, SequenceStream


class Numbers:
    """A map-style dataset that is no block file."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {"input_ids": [2, 10 + index % 20, 3]}


@given(st.integers(1, 50), st.integers(0, 2**32), st.integers(1, 4))
def test_every_epoch_shows_every_sequence_once(length, seed, epochs):
    stream = SequenceStream(Numbers(length), epochs * length, seed)
    for epoch in range(epochs):
        positions = np.arange(epoch * length, (epoch + 1) * length)
        assert sorted(stream.sequence_indices(positions)) == list(range(length))


@given(st.integers(1, 50), st.integers(0, 2**32), st.lists(st.integers(0, 400), min_size=1, max_size=30))
def test_a_position_is_the_same_in_any_order_and_company(length, seed, positions):
    stream = SequenceStream(Numbers(length), 401, seed)
    together = stream.sequence_indices(np.array(positions))
    assert together.tolist() == [int(stream.sequence_indices(np.array([position]))[0]) for position in positions]


def test_without_shuffling_sequences_come_as_they_stand():
    stream = SequenceStream(Numbers(4), 10, shuffle=False, first_position=100)
    assert stream.sequence_indices(np.arange(10)).tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert stream[9]["stream_position"] == 109


def test_a_stream_of_nothing_is_refused():
    with pytest.raises(ValueError, match="holds no sequence"):
        SequenceStream(Numbers(0))


def test_tokens_of_a_run_are_counted_from_the_block_file(blocks):
    sequences, _ = blocks
    stream = SequenceStream(sequences, 2 * len(sequences) + 3, seed=1)
    assert stream.num_tokens() == (2 * len(sequences) + 3) * 32
    with pytest.raises(TypeError):
        SequenceStream(Numbers(3)).num_tokens()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_stream_does_not_depend_on_workers(blocks, tokenizer, num_workers):
    stream = SequenceStream(blocks[0], 64, seed=1)
    loader = torch.utils.data.DataLoader(
        stream, batch_size=8, collate_fn=DataCollatorForRTD(tokenizer, seed=1), num_workers=num_workers
    )
    collator = DataCollatorForRTD(tokenizer, seed=1)
    for step, batch in enumerate(loader):
        expected = collator(stream.__getitems__(list(range(8 * step, 8 * step + 8))))
        assert batch.keys() == expected.keys()
        assert all(torch.equal(batch[key], expected[key]) for key in batch)
