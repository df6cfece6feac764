import errno
import hashlib
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_electra_rtd.data.blocks import FOOTER, MAGIC, BlockFile, BlockWriter
from hf_electra_rtd.data.packing import Row


DESCRIBED = {"tokenizer_hash": "t", "packing": "full", "statistics": {}, "sources": [], "recipe": {"a": 1}}


def make_rows(random, num_rows, row_length, vocab_size, uniform):
    rows = []
    for _ in range(num_rows):
        length = row_length if uniform else int(random.integers(1, row_length + 1))
        rows.append(Row(random.integers(0, vocab_size, length), int(random.integers(1, length + 1))))
    return rows


def write(path, rows, row_length, vocab_size):
    with BlockWriter(path, row_length, vocab_size) as writer:
        writer.write(rows)
        return writer.finish(**DESCRIBED)


@given(
    st.integers(0, 2**32),
    st.integers(1, 30),
    st.integers(1, 40),
    st.sampled_from([100, 2**16, 2**16 + 1, 250_000]),
    st.booleans(),
)
def test_what_is_written_is_read(tmp_path_factory, seed, num_rows, row_length, vocab_size, uniform):
    random = np.random.default_rng(seed)
    rows = make_rows(random, num_rows, row_length, vocab_size, uniform)
    file = write(tmp_path_factory.mktemp("blocks") / "x.blocks", rows, row_length, vocab_size)
    assert len(file) == num_rows
    assert file.header.num_tokens == sum(len(row.ids) for row in rows)
    indices = random.integers(0, num_rows, 12)
    for batch in (file.read(indices), BlockFile(file.path, verify=True).read(indices)):
        assert batch.ids.shape == (12, row_length)
        assert batch.ids.dtype == (np.uint16 if vocab_size <= 2**16 else np.uint32)
        for place, index in enumerate(indices):
            row = rows[index]
            np.testing.assert_array_equal(batch[place]["input_ids"], row.ids)
            np.testing.assert_array_equal(
                batch[place]["token_type_ids"], np.arange(len(row.ids)) >= row.second_segment
            )
    assert [len(file[i]["input_ids"]) for i in range(num_rows)] == [len(row.ids) for row in rows]
    np.testing.assert_array_equal(file[-1]["input_ids"], rows[-1].ids)


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "x.blocks", make_rows(np.random.default_rng(0), 20, 16, 100, False), 16, 100)


def test_a_file_that_was_cut_off_anywhere_is_refused(file, tmp_path):
    whole = Path(file.path).read_bytes()
    short = tmp_path / "short.blocks"
    for kept in range(len(whole)):
        short.write_bytes(whole[:kept])
        with pytest.raises(ValueError, match=r"cut off|not a block file"):
            BlockFile(short)


@given(place=st.integers(0, 10**6), value=st.integers(1, 255))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_byte_that_was_altered_anywhere_is_noticed(file, tmp_path, place, value):
    content = bytearray(Path(file.path).read_bytes())
    content[place % len(content)] ^= value
    altered = tmp_path / "altered.blocks"
    altered.write_bytes(content)
    with pytest.raises(ValueError, match=r"prepare it again"):
        BlockFile(altered, verify=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: b"not JSON at all",
        lambda header: b"[1, 2]",
        lambda header: b"[" * 100_000,
        lambda header: {**header, "unknown": 1},
        lambda header: {name: value for name, value in header.items() if name != "recipe"},
        lambda header: {**header, "num_rows": "20"},
        lambda header: {**header, "num_rows": -1},
        lambda header: {**header, "num_rows": True},
        lambda header: {**header, "num_tokens": 10**30},
        lambda header: {**header, "row_length": 0},
        lambda header: {**header, "uniform": True},
        lambda header: {**header, "dtype": "<f8"},
        lambda header: {**header, "dtype": "<u4"},
    ],
)
def test_a_header_that_says_nonsense_is_refused(file, tmp_path, change):
    content = Path(file.path).read_bytes()
    end, length, _, magic = FOOTER.unpack(content[-FOOTER.size :])
    changed = change(json.loads(content[end : end + length]))
    text = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
    altered = tmp_path / "altered.blocks"
    altered.write_bytes(content[:end] + text + FOOTER.pack(end, len(text), hashlib.sha256(text).digest(), magic))
    with pytest.raises(ValueError, match=r"altered\.blocks was altered.*prepare it again"):
        BlockFile(altered)


@given(
    content=st.binary(max_size=200), numbers=st.tuples(st.integers(0, 300), st.integers(0, 300)), framed=st.booleans()
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arbitrary_bytes_are_no_block_file(tmp_path, content, numbers, framed):
    path = tmp_path / "any.blocks"
    path.write_bytes(
        MAGIC + content + FOOTER.pack(*numbers, hashlib.sha256(content).digest(), MAGIC) if framed else content
    )
    with pytest.raises(ValueError, match=r"any\.blocks"):
        BlockFile(path)


def test_a_header_that_was_altered_is_noticed_on_opening(file, tmp_path):
    content = Path(file.path).read_bytes()
    altered = tmp_path / "altered.blocks"
    altered.write_bytes(content.replace(b'"tokenizer_hash": "t"', b'"tokenizer_hash": "u"'))
    with pytest.raises(ValueError, match=r"altered\.blocks was altered"):
        BlockFile(altered)


def test_a_file_of_an_earlier_version_is_to_be_prepared_again(file, tmp_path):
    old = tmp_path / "old.blocks"
    old.write_bytes(Path(file.path).read_bytes().replace(MAGIC, MAGIC[:-1] + b"\x01"))
    with pytest.raises(ValueError, match=r"old\.blocks is not a block file of this version: prepare it again"):
        BlockFile(old)


def test_a_full_disk_is_told_and_nothing_is_left(tmp_path, monkeypatch):
    rows = make_rows(np.random.default_rng(0), 3, 16, 100, True)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with BlockWriter(tmp_path / "x.blocks", 16, 100) as writer:
        monkeypatch.setattr(writer, "_write", full)
        with pytest.raises(ValueError, match=r"no space left for .*x\.blocks.*Nothing incomplete was kept"):
            writer.write(rows)
    with BlockWriter(tmp_path / "x.blocks", 16, 100) as writer:
        writer.write(rows)
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(ValueError, match="no space left"):
            writer.finish(**DESCRIBED)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file.* cannot be written.*choose another directory"):
        BlockWriter(tmp_path / "file" / "x.blocks", 16, 100)


@pytest.mark.parametrize("place", [20, 300])
def test_a_file_that_was_altered_is_refused(file, place, tmp_path):
    bytes_ = bytearray(Path(file.path).read_bytes())
    bytes_[place] ^= 1
    altered = tmp_path / "altered.blocks"
    altered.write_bytes(bytes_)
    with pytest.raises(ValueError, match="was altered"):
        BlockFile(altered, verify=True)


def test_another_file_is_refused(tmp_path):
    other = tmp_path / "other.blocks"
    other.write_text("not rows at all, but long enough to hold a footer if it were one")
    with pytest.raises(ValueError, match="not a block file"):
        BlockFile(other)


def test_a_writer_that_does_not_finish_leaves_nothing(tmp_path):
    with BlockWriter(tmp_path / "x.blocks", 16, 100) as writer:
        writer.write(make_rows(np.random.default_rng(0), 3, 16, 100, True))
    assert list(tmp_path.iterdir()) == []


def test_a_worker_maps_the_file_instead_of_copying_it(file):
    pickled = pickle.dumps(file)
    assert len(pickled) < 2000
    np.testing.assert_array_equal(pickle.loads(pickled)[3]["input_ids"], file[3]["input_ids"])
