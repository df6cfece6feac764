import contextlib
import pickle
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_electra_rtd import SequenceStream
from hf_electra_rtd.data.blocks import BlockFile, writing_blocks
from hf_electra_rtd.data.packing import DOCUMENT_START, WORD_START, PackedSequence
from hf_electra_rtd.data.prepare_command import main
from hf_electra_rtd.data.shards import INDEX_FILE, ShardWriter, open_blocks, write_index
from hf_electra_rtd.pair.bigram import CountedBigram
from hf_electra_rtd.pair.initialization import count_tokens
from hf_electra_rtd.training import meters
from tests.conftest import VOCABULARY


LENGTH = 16
ROWS = 60
DESCRIBED = {"tokenizer_hash": "t", "packing": "full", "recipe": {"a": 1}, "word_segmenter": "tokenizer"}
SOURCES = [{"name": "a.txt", "sha256": "0", "weight": 1.0}]
TEXT = {"statistics": {"documents": 7}, "sources": SOURCES}


def make_sequences(seed=0, number=ROWS, full=False):
    random = np.random.default_rng(seed)
    sequences = []
    for _ in range(number):
        length = LENGTH if full else int(random.integers(3, LENGTH + 1))
        bits = random.integers(0, 2, length) * WORD_START + random.integers(0, 2, length) * DOCUMENT_START
        sequences.append(PackedSequence(random.integers(0, 100, length) + bits, int(random.integers(1, length + 1))))
    return sequences


def write_shards(directory, sequences, shard_size=500, **described):
    with contextlib.ExitStack() as stack:
        writer = ShardWriter(stack, directory, "train", LENGTH, 100, shard_size)
        writer.write(sequences)
        writer.finish(**{**DESCRIBED, **TEXT, **described})
    return writer.files


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The same sequences as one file and as a directory of shards."""
    place = tmp_path_factory.mktemp("written")
    with writing_blocks(place / "one.blocks", LENGTH, 100) as writer:
        writer.write(make_sequences())
        writer.finish(**DESCRIBED, **TEXT)
    write_index(place / "many", write_shards(place / "many", make_sequences()))
    return place


@pytest.fixture
def many(written, tmp_path):
    """A copy of the directory of shards."""
    return Path(shutil.copytree(written / "many", tmp_path / "many"))


def assert_same(found, expected):
    assert vars(found).keys() == vars(expected).keys()
    for name, values in vars(expected).items():
        one = getattr(found, name)
        other = values
        if name in ("ids", "word_starts", "document_starts"):  # values after the end are arbitrary
            inside = np.arange(LENGTH) < expected.lengths[:, None]
            one = one[inside]
            other = other[inside]
        np.testing.assert_array_equal(one, other, err_msg=name)


# ---- Writing ----


@given(st.integers(0, 99), st.integers(1, 80), st.integers(400, 3000), st.lists(st.integers(0, 80), max_size=5))
@settings(deadline=None, max_examples=15)
def test_shards_have_their_size_and_do_not_depend_on_how_they_are_written(tmp_path_factory, seed, number, size, cuts):
    place = tmp_path_factory.mktemp("shards")
    sequences = make_sequences(seed, number)
    files = write_shards(place / "whole", sequences, size)
    with contextlib.ExitStack() as stack:
        writer = ShardWriter(stack, place / "parts", "train", LENGTH, 100, size)
        for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), number], strict=True):
            writer.write(sequences[start:end])
        assert writer.num_sequences == number
        writer.finish(**DESCRIBED, **TEXT)
    assert [file.name for file in writer.files] == [file.name for file in files]
    for one, other in zip(files, writer.files, strict=True):
        assert one.read_bytes() == other.read_bytes()
        content = one.read_bytes()
        assert len(content) - int.from_bytes(content[-40:-32], "little") - 40 <= size  # without the header
    header = write_index(place / "whole", files)
    assert (header.num_sequences, header.statistics, header.sources) == (number, TEXT["statistics"], SOURCES)
    found = open_blocks(place / "whole", verify=True).read(np.arange(number))
    assert all(np.array_equal(found[row]["input_ids"], sequences[row].ids) for row in range(number))


def test_nothing_has_a_name_before_all_is_written_and_a_size_for_no_sequence_is_refused(tmp_path):
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        writer = ShardWriter(stack, tmp_path, "train", LENGTH, 100, 800)
        writer.write(make_sequences())
        assert len(writer.files) > 3
        assert not any(file.exists() for file in writer.files)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="shard_size=4096"):
        ShardWriter(contextlib.ExitStack(), tmp_path, "x", 512, 100, 4096)


# ---- One logical file ----


def test_shards_are_read_as_one_file(written):
    one = BlockFile(written / "one.blocks")
    many = open_blocks(written / "many", verify=True)
    assert len(list((written / "many").glob("*.blocks"))) > 3
    assert len(many) == len(one)
    streams = [SequenceStream(sequences, 2 * ROWS + 20, seed=3) for sequences in (one, many)]
    for first in range(0, 2 * ROWS + 20, 7):
        found, expected = (stream.__getitems__(range(first, first + 7)) for stream in reversed(streams))
        assert_same(found, expected)
    assert meters.count_tokens(streams[1], None, 2 * ROWS) == 2 * one.header.num_tokens
    np.testing.assert_array_equal(many[ROWS - 1]["word_starts"], one[ROWS - 1]["word_starts"])
    with pytest.raises(IndexError):
        many[ROWS]
    for count in (partial(count_tokens, vocab_size=100), lambda sequences: CountedBigram(sequences, 100)._counts):
        np.testing.assert_array_equal(count(many), count(one))


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_workers_and_copies_read_what_the_stream_reads(written, workers):
    stream = SequenceStream(open_blocks(written / "many"), 3 * ROWS, seed=5)
    expected = stream.__getitems__(range(3 * ROWS)).ids.copy()  # opens shards, which a fork must not share
    loader = torch.utils.data.DataLoader(stream, 9, num_workers=workers, collate_fn=lambda batch: batch.ids)
    np.testing.assert_array_equal(np.concatenate(list(loader)), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(stream)).__getitems__(range(3 * ROWS)).ids, expected)


# ---- Bad input ----


def test_an_index_that_was_cut_off_is_refused(many):
    whole = (many / INDEX_FILE).read_text()
    (many / INDEX_FILE).write_text(whole[:-9])
    with pytest.raises(ValueError, match=f"{INDEX_FILE} cannot be read"):
        open_blocks(many)


@pytest.mark.parametrize("how", ["missing", "cut off", "altered"])
def test_a_shard_that_is_missing_cut_off_or_altered_is_refused_by_its_name(many, how):
    bad = many / "train-00001.blocks"
    content = bad.read_bytes()
    if how == "missing":
        bad.unlink()
    else:
        bad.write_bytes(content[:-7] if how == "cut off" else content[:40] + bytes([content[40] ^ 1]) + content[41:])
    with pytest.raises(ValueError, match=rf"^{many}/train-00001\.blocks .*\. Copy "):
        open_blocks(many, verify=True)


# ---- The commands ----


def test_prepare_writes_shards_that_are_found_again_and_replaced(corpus, tmp_path, capsys):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    flags = ["--train_files", str(corpus), "--tokenizer", str(tmp_path / "vocab.txt"), "--max_seq_length", "32"]
    flags += ["--output_dir", str(tmp_path / "out"), "--disable_tqdm", "True", "--held_out_share", "0.1"]
    main([*flags, "--shard_size", "2KB"])
    assert f"--train_files {tmp_path / 'out/train'} " in capsys.readouterr().out
    first = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.blocks")}
    assert len(first) > 4
    main([*flags, "--shard_size", "2KB"])
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.blocks")} == first
    main([*flags, "--shard_size", "3KB"])
    assert len(list((tmp_path / "out").rglob("*.blocks"))) < len(first)
    assert open_blocks(tmp_path / "out/train", verify=True).header.statistics["documents"] == 36
    assert not list((tmp_path / "out").glob(".*partial*"))
