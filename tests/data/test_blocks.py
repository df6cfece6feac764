import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_electra_rtd import SequenceStream
from hf_electra_rtd.data.blocks import BlockFile, writing_blocks
from hf_electra_rtd.data.packing import PackedSequence


VOCABULARIES = [100, 2**16, 2**16 + 1, 250_000]  # sizes
DESCRIBED = {"tokenizer_hash": "t", "packing": "full", "statistics": {}, "sources": [], "recipe": {"a": 1}}


def make_sequences(seed, number=20, max_seq_length=16, vocab_size=100, uniform=False):
    random = np.random.default_rng(seed)
    sequences = []
    for _ in range(number):
        length = max_seq_length if uniform else int(random.integers(1, max_seq_length + 1))
        sequences.append(PackedSequence(random.integers(0, vocab_size, length), int(random.integers(1, length + 1))))
    return sequences


def write(path, sequences, max_seq_length=16, vocab_size=100):
    with writing_blocks(path, max_seq_length, vocab_size) as writer:
        middle = len(sequences) // 2
        for part in (sequences[:middle], sequences[middle:]):
            writer.write(part)
        writer.finish(**DESCRIBED)
    return BlockFile(path)


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 40), st.sampled_from(VOCABULARIES), st.booleans())
@settings(deadline=None)
def test_what_is_written_is_read(tmp_path_factory, seed, number, max_seq_length, vocab_size, uniform):
    sequences = make_sequences(seed, number, max_seq_length, vocab_size, uniform)
    file = write(tmp_path_factory.mktemp("blocks") / "x.blocks", sequences, max_seq_length, vocab_size)
    assert len(file) == number
    assert file.header.num_tokens == sum(len(sequence.ids) for sequence in sequences)
    indices = np.random.default_rng(seed).integers(0, number, 12)
    assert file.lengths(indices).tolist() == [len(sequences[index].ids) for index in indices]
    for batch in (file.read(indices), BlockFile(file.path, verify=True).read(indices)):
        assert batch.ids.shape == (12, max_seq_length)
        assert batch.ids.dtype == (np.uint16 if vocab_size <= 2**16 else np.uint32)
        for place, index in enumerate(indices):
            ids, second_segment = sequences[index]
            np.testing.assert_array_equal(batch[place]["input_ids"], ids)
            np.testing.assert_array_equal(batch[place]["token_type_ids"], np.arange(len(ids)) >= second_segment)
    np.testing.assert_array_equal(file[-1]["input_ids"], sequences[-1].ids)


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "x.blocks", make_sequences(0))


@given(place=st.integers(0, 10**6), value=st.integers(1, 255), content=st.binary(max_size=200))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_altered_or_cut_off_anywhere_or_is_no_block_file_is_refused(file, tmp_path, place, value, content):
    whole = Path(file.path).read_bytes()
    place %= len(whole)
    altered = whole[:place] + bytes([whole[place] ^ value]) + whole[place + 1 :]
    for bad in (altered, whole[:place], content, whole.replace(b'"packing": "full"', b'"packing": "none"')):
        (tmp_path / "bad.blocks").write_bytes(bad)
        with pytest.raises(ValueError, match=r"bad\.blocks"):
            BlockFile(tmp_path / "bad.blocks", verify=True)


def test_a_file_that_is_cut_off_while_it_is_read_is_named(file):
    whole = Path(file.path).read_bytes()
    Path(file.path).write_bytes(whole[:-1])
    with pytest.raises(ValueError, match=file.path):
        file[0]
    Path(file.path).write_bytes(whole)
    assert len(file[0]["input_ids"])


def test_a_file_lives_on_when_its_name_is_replaced_and_no_worker_takes_the_other_one(file):
    before = file.read(np.arange(20)).ids
    pickled = pickle.dumps(file)
    assert len(pickled) < 500  # a worker maps the file instead of copying it
    np.testing.assert_array_equal(pickle.loads(pickled).read(np.arange(20)).ids, before)
    write(file.path, make_sequences(1))
    np.testing.assert_array_equal(file.read(np.arange(20)).ids, before)
    with pytest.raises(ValueError, match=r"x\.blocks"):
        pickle.loads(pickled)


# ---- The stream of a run ----


def numbers(length):
    """A map-style dataset that is not a block file."""
    return [{"input_ids": [2, 10 + index % 20, 3]} for index in range(length)]


@given(st.integers(1, 50), st.integers(0, 2**32), st.integers(1, 4), st.lists(st.integers(0, 199), max_size=30))
def test_every_epoch_is_a_permutation_and_a_position_the_same_in_any_order_and_company(length, seed, epochs, some):
    stream = SequenceStream(numbers(length), epochs * length, seed)
    whole = stream.sequence_indices(np.arange(epochs * length))
    assert all(sorted(epoch) == list(range(length)) for epoch in whole.reshape(epochs, length))
    some = np.array(some, dtype=np.int64) % len(stream)
    assert stream.sequence_indices(some).tolist() == whole[some].tolist()
    assert [int(stream.sequence_indices(np.array([position]))[0]) for position in some] == whole[some].tolist()


def test_a_stream_may_keep_the_order():
    stream = SequenceStream(numbers(4), 10, shuffle=False, first_position=100)
    assert stream.sequence_indices(np.arange(10)).tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert stream[9]["stream_position"] == 109
    with pytest.raises(ValueError, match="no sequence"):
        SequenceStream([])
