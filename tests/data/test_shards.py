import contextlib
import json
import multiprocessing
import pickle
import shutil
from functools import partial
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_electra_rtd import ElectraForRTDPretraining, SequenceStream
from hf_electra_rtd.data import shards
from hf_electra_rtd.data.blocks import BlockFile, writing_blocks
from hf_electra_rtd.data.packing import DOCUMENT_START, WORD_START, PackedSequence
from hf_electra_rtd.data.prepare_command import main
from hf_electra_rtd.data.shards import INDEX_FILE, ShardWriter, open_blocks, write_index
from hf_electra_rtd.pair.bigram import CountedBigram
from hf_electra_rtd.pair.initialization import count_tokens
from hf_electra_rtd.training import meters, pretrain
from tests.conftest import VOCABULARY, pretraining_flags


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
    """A copy of the directory."""
    return Path(shutil.copytree(written / "many", tmp_path / "many"))


@pytest.fixture
def elsewhere(written):
    """The address of the directory, in the memory of this process."""
    memory = fsspec.filesystem("memory")
    memory.put(str(written / "many"), "/elsewhere", recursive=True)
    yield "memory://elsewhere"
    memory.rm("/elsewhere", recursive=True)


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "CACHE_DIRECTORY", str(tmp_path / "cache"))


def assert_same(found, expected):
    assert vars(found).keys() == vars(expected).keys()
    for name, values in vars(expected).items():
        one = getattr(found, name)
        other = values
        if name in ("ids", "word_starts", "document_starts"):  # behind the end, anything may stand
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


@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_shards_are_read_as_one_file(written, elsewhere, place):
    one = BlockFile(written / "one.blocks")
    many = open_blocks(written / "many" if place == "here" else elsewhere, verify=True)
    assert len(many.shard_rows) > 3
    assert many.shard_rows.sum() == len(many) == len(one)
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


@pytest.mark.slow
def test_a_run_in_windows_goes_on_from_elsewhere_as_if_it_had_not_stopped(corpus, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    what = ["--train_files", str(corpus), "--tokenizer", str(tmp_path / "vocab.txt"), "--max_seq_length", "32"]
    main([*what, "--output_dir", str(tmp_path / "text"), "--disable_tqdm", "True", "--shard_size", "2KB"])
    here = tmp_path / "text/train"
    more = ["--shuffle_window", "2", "--held_out_files", str(tmp_path / "text/held_out")]
    cache = ["--cache_dir", str(tmp_path / "cache")]
    assert pretrain.main(pretraining_flags(tmp_path, here, tmp_path / "run", *more)) == 0
    shutil.copytree(tmp_path / "run/checkpoint-2", tmp_path / "again/checkpoint-2")
    flags = pretraining_flags(tmp_path, f"file://{here}", tmp_path / "again", *more, *cache)
    assert pretrain.main([*flags, "--resume_from_checkpoint", "latest"]) == 0
    one, other = (ElectraForRTDPretraining.from_pretrained(tmp_path / name).state_dict() for name in ("run", "again"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    record = json.loads((tmp_path / "again/run_record.json").read_text())
    assert record["data"]["train"]["sha256"] == open_blocks(here).header.sha256
    assert copies(tmp_path)
    shutil.rmtree(tmp_path / "again/checkpoint-4")
    with pytest.raises(ValueError, match="shuffle_window was 2, now 3"):
        pretrain.main([*flags, "--shuffle_window", "3", "--resume_from_checkpoint", "latest"])


# ---- Windows ----


def windowed(sequences, window, seed, length=3 * ROWS):
    return SequenceStream(sequences, length, seed=seed, shuffle_window=window)


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(0, 3 * ROWS - 1), st.integers(1, 30))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_epoch_is_a_permutation_that_resumes_anywhere(written, seed, window, start, batch):
    many = open_blocks(written / "many")
    whole = windowed(many, window, seed).sequence_indices(np.arange(3 * ROWS))
    for epoch in whole.reshape(3, ROWS):
        assert sorted(epoch) == list(range(ROWS))
        shards_of = np.searchsorted(many.shard_rows.cumsum(), epoch, side="right")
        drawn = list(dict.fromkeys(shards_of.tolist()))
        while drawn:  # consecutive groups of shards, each read out before the next begins
            here = shards_of[: many.shard_rows[list(dict.fromkeys(shards_of.tolist()))[:window]].sum()]
            assert len(set(here.tolist())) == min(window, len(drawn))
            drawn = drawn[window:]
            shards_of = shards_of[len(here) :]
    some = np.arange(start, min(start + batch, 3 * ROWS))
    np.testing.assert_array_equal(windowed(many, window, seed).sequence_indices(some), whole[some])


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_workers_and_copies_read_what_the_stream_reads(written, elsewhere, workers):
    stream = windowed(open_blocks(elsewhere), 2, 5)
    expected = stream.__getitems__(range(3 * ROWS)).ids.copy()  # opens shards, which a fork must not share
    loader = torch.utils.data.DataLoader(stream, 9, num_workers=workers, collate_fn=lambda batch: batch.ids)
    np.testing.assert_array_equal(np.concatenate(list(loader)), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(stream)).__getitems__(range(3 * ROWS)).ids, expected)
    part = stream.counted
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(part)).read(np.arange(5)).ids, part.read(np.arange(5)).ids)


# ---- Copies of what lies elsewhere ----


def copies(tmp_path):
    """The hashes of the shards that were copied."""
    return {path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()}


def test_the_next_window_is_copied_while_this_one_is_read(elsewhere, tmp_path):
    stream = windowed(open_blocks(elsewhere), 2, 1)
    stream.__getitems__([0])
    stream.sequences._copying.join(20)
    wanted = [stream.sequences._shards[shard].sha256 for shard in np.concatenate(stream._windows(0)[0][:2])]
    assert copies(tmp_path) == set(wanted)


def test_what_is_counted_before_a_run_needs_no_more_than_the_first_window(elsewhere, tmp_path):
    stream = windowed(open_blocks(elsewhere), 2, 7)
    counted = stream.counted
    assert CountedBigram(counted, 100)._counts.sum() == counted.header.num_tokens - len(counted)
    assert len(copies(tmp_path)) == 2


def _read_epochs(path, cache, seed, queue):
    try:
        stream = windowed(open_blocks(path, cache_dir=cache), 2, seed)
        ids = [stream.__getitems__(range(first, first + 6)).ids for first in range(0, 3 * ROWS, 6)]
        queue.put((seed, np.concatenate(ids)))
    except BaseException as error:
        queue.put((seed, repr(error)))
        raise


def test_processes_share_the_copies_and_each_shard_is_copied_once(written, tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    arguments = (f"file://{written / 'many'}", str(tmp_path / "cache"))
    processes = [context.Process(target=_read_epochs, args=(*arguments, seed, queue)) for seed in (0, 0, 1)]
    for process in processes:
        process.start()
    results = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    here = open_blocks(written / "many")
    for seed, ids in results:
        expected = windowed(here, 2, seed).__getitems__(range(3 * ROWS))
        inside = np.arange(LENGTH) < expected.lengths[:, None]
        np.testing.assert_array_equal(ids[inside], expected.ids[inside])
    for directory in filter(Path.is_dir, (tmp_path / "cache").iterdir()):
        assert len(list(directory.iterdir())) == 2  # the shard, and the list of fsspec


def test_a_copy_that_was_cut_off_by_a_kill_or_altered_is_made_again(elsewhere, tmp_path):
    expected = open_blocks(elsewhere).read(np.arange(ROWS))
    first, *_ = (tmp_path / "cache" / name for name in copies(tmp_path))
    for damaged in (first / "cache", next(path for path in first.iterdir() if path.name != "cache")):
        if damaged.name == "cache":
            damaged.unlink()  # fsspec writes its list when the copy is whole
        else:
            damaged.write_bytes(damaged.read_bytes()[:-1])
            with pytest.raises(ValueError, match=rf"^{elsewhere}/train-\d+\.blocks"):
                open_blocks(elsewhere).read(np.arange(ROWS))
        assert_same(open_blocks(elsewhere).read(np.arange(ROWS)), expected)


def test_a_disk_that_does_not_hold_the_copies_is_warned_of(elsewhere, monkeypatch, caplog):
    usage = shutil._ntuple_diskusage(10**6, 10**6 - 100, 100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    open_blocks(elsewhere, verify=True)
    assert elsewhere in caplog.text


# ---- Bad input ----


def test_a_hash_in_an_index_names_no_directory_outside_the_cache(many, tmp_path):
    index = json.loads((many / INDEX_FILE).read_text())
    index["shards"][0]["sha256"] = str(tmp_path)
    (many / INDEX_FILE).write_text(json.dumps(index))
    with pytest.raises(ValueError, match="SHA-256"):
        open_blocks(many)


def test_an_index_that_was_cut_off_or_is_another_is_refused(many):
    whole = (many / INDEX_FILE).read_text()
    (many / INDEX_FILE).write_text(whole[:-9])
    with pytest.raises(ValueError, match=f"{INDEX_FILE} cannot be read"):
        open_blocks(many)
    (many / INDEX_FILE).write_text(whole)
    with pytest.raises(ValueError, match="was altered"):  # another than that of the run
        open_blocks(many, sha256="0" * 64)


@pytest.mark.parametrize("how", ["missing", "cut off", "altered"])
@pytest.mark.parametrize("far", [False, True])
def test_a_shard_that_is_missing_cut_off_or_altered_is_refused_by_its_name(many, how, far):
    bad = many / "train-00001.blocks"
    content = bad.read_bytes()
    if how == "missing":
        bad.unlink()
    else:
        bad.write_bytes(content[:-7] if how == "cut off" else content[:40] + bytes([content[40] ^ 1]) + content[41:])
    place = f"file://{many}" if far else str(many)
    with pytest.raises(ValueError, match=rf"^{place}/train-00001\.blocks .*\. Copy "):
        open_blocks(place, verify=True).read(np.arange(ROWS))  # a copy is verified when it is made


@pytest.mark.parametrize(
    "address",
    [
        "nowhere://a/b",  # no protocol
        "dropbox://a/b",  # one whose package is not installed
        "memory://nothing/here",
    ],
)
def test_an_address_that_cannot_be_read_is_refused(address):
    with pytest.raises(ValueError, match=f"^{address}/{INDEX_FILE} "):
        open_blocks(address)


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
