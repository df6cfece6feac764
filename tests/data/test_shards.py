import contextlib
import itertools
import json
import multiprocessing
import pickle
import shutil
import threading
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from filelock import FileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import set_seed

from hf_electra_rtd import ElectraForRTDPretraining, RTDTrainer, RTDTrainingArguments, SequenceStream
from hf_electra_rtd.bigram import CountedBigram
from hf_electra_rtd.data import shards
from hf_electra_rtd.data.blocks import BlockFile, writing_blocks
from hf_electra_rtd.data.packing import DOCUMENT_START, WORD_START, PackedSequence
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.data.prepare import DataArguments, main
from hf_electra_rtd.data.shards import INDEX_FILE, ShardWriter, open_blocks, write_index
from hf_electra_rtd.initialization import count_tokens
from hf_electra_rtd.training import pretrain
from tests.conftest import VOCABULARY, pretraining_flags, tiny_config


LENGTH, ROWS = 16, 60
DESCRIBED = {"tokenizer_hash": "t", "packing": "full", "recipe": {"a": 1}, "word_segmenter": "tokenizer"}
SOURCES = [{"name": "a.txt", "sha256": "0", "weight": 1.0}]
TEXT = {"statistics": {"documents": 7}, "sources": SOURCES}


def make_sequences(seed=0, number=ROWS, full=False):
    random, sequences = np.random.default_rng(seed), []
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
    monkeypatch.setattr(shards, "PAUSE", 0.0)


def size_of(number, written):
    """Bytes of the largest shards."""
    return sum(sorted((file.stat().st_size for file in (written / "many").glob("*.blocks")), reverse=True)[:number])


def assert_same(found, expected):
    assert vars(found).keys() == vars(expected).keys()
    for name, values in vars(expected).items():
        one, other = getattr(found, name), values
        if name in ("ids", "word_starts", "document_starts"):  # behind the end, anything may stand
            inside = np.arange(LENGTH) < expected.lengths[:, None]
            one, other = one[inside], other[inside]
        np.testing.assert_array_equal(one, other, err_msg=name)


# ---- Writing ----


@given(st.integers(0, 99), st.integers(1, 80), st.integers(400, 3000), st.lists(st.integers(0, 80), max_size=5))
@settings(deadline=None, max_examples=15)
def test_shards_have_their_size_and_do_not_depend_on_how_they_are_written(tmp_path_factory, seed, number, size, cuts):
    place, sequences = tmp_path_factory.mktemp("shards"), make_sequences(seed, number)
    files = write_shards(place / "whole", sequences, size)
    with contextlib.ExitStack() as stack:
        writer = ShardWriter(stack, place / "parts", "train", LENGTH, 100, size)
        for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), number], strict=True):
            writer.write(sequences[start:end])
        assert writer.num_sequences == number
        assert writer.num_full == sum(len(sequence.ids) == LENGTH for sequence in sequences)
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
    with pytest.raises(ValueError, match=r"too small.*--shard_size"):
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
    streams += [SequenceStream(many, ROWS, shuffle=False), windowed(many, 2, 3)]
    for stream, number in itertools.product(streams, (0, 11, ROWS - 1, ROWS, ROWS + 47)):
        assert stream.num_tokens(number) == one.lengths(stream.sequence_indices(np.arange(number))).sum()
    np.testing.assert_array_equal(many[ROWS - 1]["word_starts"], one[ROWS - 1]["word_starts"])
    with pytest.raises(IndexError):
        many[ROWS]
    for count in (count_tokens, lambda sequences: CountedBigram(sequences, 100)._counts):
        np.testing.assert_array_equal(count(many), count(one))


def test_training_on_one_file_on_shards_and_on_shards_elsewhere_gives_the_same_weights(corpus, tokenizer, tmp_path):
    options = {"packing": "original", "disable_progress": True}
    one, _ = prepare_blocks([str(corpus)], tokenizer, tmp_path / "one", 32, **options)
    many, held_out = prepare_blocks([str(corpus)], tokenizer, tmp_path / "many", 32, shard_size=2000, **options)
    assert len(many.shard_rows) > 3
    assert held_out is None
    places, trained = {"one": one, "many": many, "far": open_blocks(f"file://{many.path}")}, {}
    for name, sequences in places.items():
        set_seed(0)
        args = {"max_steps": 3, "per_device_train_batch_size": 8, "max_seq_length": 32, "warmup_steps": 1}
        args |= {"use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "eval_strategy": "no"}
        args = RTDTrainingArguments(str(tmp_path / name), logging_steps=1, learning_rate=1e-2, **args)
        trainer = RTDTrainer(ElectraForRTDPretraining(tiny_config()), args, sequences, processing_class=tokenizer)
        trainer.train()
        record = trainer.make_record()
        trained[name] = (trainer.model.state_dict(), record.tokens, record.data["train"]["num_tokens"])
    for name in ("many", "far"):
        assert trained[name][1:] == trained["one"][1:]
        assert all(torch.equal(tensor, trained[name][0][key]) for key, tensor in trained["one"][0].items())


@pytest.mark.slow
def test_a_run_in_windows_goes_on_from_elsewhere_as_if_it_had_not_stopped(corpus, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    what = ["--train_files", str(corpus), "--tokenizer", str(tmp_path / "vocab.txt"), "--max_seq_length", "32"]
    main([*what, "--output_dir", str(tmp_path / "text"), "--disable_tqdm", "True", "--shard_size", "2KB"])
    here = tmp_path / "text/train"
    more = ["--shuffle_window", "2", "--held_out_files", str(tmp_path / "text/held_out")]
    cache = ["--cache_size", "6KB", "--cache_dir", str(tmp_path / "cache")]
    assert pretrain.main(pretraining_flags(tmp_path, here, tmp_path / "run", *more)) == 0
    shutil.copytree(tmp_path / "run/checkpoint-2", tmp_path / "again/checkpoint-2")
    flags = pretraining_flags(tmp_path, f"file://{here}", tmp_path / "again", *more, *cache)
    assert pretrain.main([*flags, "--resume_from_checkpoint", "latest"]) == 0
    one, other = (ElectraForRTDPretraining.from_pretrained(tmp_path / name).state_dict() for name in ("run", "again"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    record = json.loads((tmp_path / "again/run_record.json").read_text())
    assert record["data"]["train"]["sha256"] == open_blocks(here).header.sha256
    assert sum(cached(tmp_path).values()) <= 6000
    assert cached(tmp_path)
    shutil.rmtree(tmp_path / "again/checkpoint-4")
    with pytest.raises(ValueError, match="shuffle_window was 2, now 3"):
        pretrain.main([*flags, "--shuffle_window", "3", "--cache_size", "9KB", "--resume_from_checkpoint", "latest"])


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
            drawn, shards_of = drawn[window:], shards_of[len(here) :]
    some = np.arange(start, min(start + batch, 3 * ROWS))
    np.testing.assert_array_equal(windowed(many, window, seed).sequence_indices(some), whole[some])


def test_epochs_and_seeds_differ_and_all_shards_in_a_window_mix(written):
    many = open_blocks(written / "many")
    orders = [*windowed(many, 2, 0).sequence_indices(np.arange(2 * ROWS)).reshape(2, ROWS).tolist()]
    orders.append(windowed(many, 2, 1).sequence_indices(np.arange(ROWS)).tolist())
    assert len({*map(tuple, orders)}) == 3
    first = windowed(many, 4, 0).sequence_indices(np.arange(16))
    assert len({*np.searchsorted(many.shard_rows.cumsum(), first, "right").tolist()}) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_workers_and_copies_read_what_the_stream_reads(written, elsewhere, workers):
    stream = windowed(open_blocks(elsewhere), 2, 5)
    expected = stream.__getitems__(range(3 * ROWS)).ids.copy()  # opens shards, which a fork must not share
    loader = torch.utils.data.DataLoader(stream, 9, num_workers=workers, collate_fn=lambda batch: batch.ids)
    np.testing.assert_array_equal(np.concatenate(list(loader)), expected)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(stream)).__getitems__(range(3 * ROWS)).ids, expected)
    part = stream.counted
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(part)).read(np.arange(5)).ids, part.read(np.arange(5)).ids)


# ---- Through a cache ----


def cached(tmp_path):
    return {path.stem: path.stat().st_size for path in (tmp_path / "cache").glob("*.blocks")}


def test_a_cache_of_one_window_is_never_larger_and_gives_the_same(written, elsewhere, tmp_path):
    room = size_of(2, written)
    here, there = open_blocks(written / "many"), open_blocks(elsewhere, cache_size=room)
    one, other = windowed(here, 2, 7), windowed(there, 2, 7)
    for first in range(0, 3 * ROWS, 5):
        assert_same(*(stream.__getitems__(range(first, first + 5)) for stream in (other, one)))
        assert sum(cached(tmp_path).values()) <= room
    # What is counted before a run needs no more than the first window.
    counted = other.counted
    assert sorted(counted.shard_rows) == sorted(here.shard_rows[one._windows(0)[0][0]])
    assert CountedBigram(counted, 100)._counts.sum() == counted.header.num_tokens - len(counted)


def test_the_next_window_is_copied_while_this_one_is_read(written, elsewhere, tmp_path):
    stream = windowed(open_blocks(elsewhere), 2, 1)
    stream.__getitems__([0])
    wanted = [stream.sequences._shards[shard].sha256 for shard in np.concatenate(stream._windows(0)[0][:2])]
    until = time.monotonic() + 20
    while cached(tmp_path).keys() != set(wanted) and time.monotonic() < until:
        time.sleep(0.01)
    assert cached(tmp_path).keys() == set(wanted)


def test_what_is_read_lives_on_when_another_reader_needs_its_room_and_is_copied_again(written, elsewhere, tmp_path):
    blocks, other = (open_blocks(elsewhere, cache_size=size_of(1, written)) for _ in range(2))
    file, expected = blocks._get(0), blocks.read(np.arange(3))
    other.read(np.array([ROWS - 1]))
    assert cached(tmp_path).keys() == {other._shards[-1].sha256}
    assert_same(file.read(np.arange(3)), expected)
    assert_same(blocks.read(np.arange(3)), expected)
    assert cached(tmp_path).keys() == {blocks._shards[0].sha256}


def _read_epochs(path, cache, room, seed, queue):
    try:
        stream = windowed(open_blocks(path, cache_dir=cache, cache_size=room), 2, seed)
        ids = [stream.__getitems__(range(first, first + 6)).ids for first in range(0, 3 * ROWS, 6)]
        queue.put((seed, np.concatenate(ids)))
    except BaseException as error:
        queue.put((seed, repr(error)))
        raise


def test_processes_share_a_cache_that_holds_one_window(written, tmp_path):
    context, room = multiprocessing.get_context("fork"), size_of(2, written)
    place, queue = f"file://{written / 'many'}", context.Queue()
    processes = [
        context.Process(target=_read_epochs, args=(place, str(tmp_path / "cache"), room, seed, queue))
        for seed in (0, 0, 1)
    ]
    (tmp_path / "cache").mkdir()
    for process in processes:
        process.start()
    found, largest = [], 0
    while len(found) < 3:
        with FileLock(tmp_path / "cache/room.lock"):  # else a file could go and another come while they are counted
            largest = max(largest, sum(cached(tmp_path).values()))
        if not queue.empty():
            found.append(queue.get())
    for process in processes:
        process.join()
    here = open_blocks(written / "many")
    for seed, ids in found:
        expected = windowed(here, 2, seed).__getitems__(range(3 * ROWS))
        inside = np.arange(LENGTH) < expected.lengths[:, None]
        np.testing.assert_array_equal(ids[inside], expected.ids[inside])
    assert 0 < largest <= room


def test_what_a_killed_process_left_makes_room_and_who_waits_says_so(written, elsewhere, tmp_path, caplog):
    blocks = open_blocks(elsewhere, cache_size=size_of(2, written))
    (tmp_path / "cache").mkdir()
    left = tmp_path / "cache" / f"{'a' * 64}-{size_of(2, written)}.partial"
    left.touch()
    with blocks._cache._lock("a" * 64, 1):  # it is alive
        reading = threading.Thread(target=lambda: blocks.read(np.arange(2)), daemon=True)
        reading.start()
        reading.join(0.3)
        assert reading.is_alive()
        assert left.exists()
    reading.join(20)
    assert not reading.is_alive()
    assert not left.exists()
    assert [record.message.count("Waiting up to 60 minutes. Raise --cache_size") for record in caplog.records] == [1]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs the maps of Linux")
@pytest.mark.parametrize("in_windows", [True, False])
def test_shards_that_made_room_leave_the_disk(written, elsewhere, tmp_path, in_windows):
    blocks = open_blocks(elsewhere, cache_size=size_of(2, written))
    stream = windowed(blocks, 2, 7)
    for first in range(0, 3 * ROWS, 5):
        stream.__getitems__(range(first, first + 5)) if in_windows else blocks.read(np.array([7 * first % ROWS]))
        maps = Path("/proc/self/maps").read_text().splitlines()
        now = {blocks._shards[shard].sha256 for shard in blocks._now}
        removed = {line.split()[-2] for line in maps if f"{tmp_path}/cache" in line and line.endswith("(deleted)")}
        assert {Path(path).stem for path in removed} <= now
    if blocks._loading:
        blocks._loading.join(20)


def test_files_of_others_in_the_directory_of_the_cache_stay(written, elsewhere, tmp_path):
    blocks = open_blocks(elsewhere, cache_size=size_of(2, written))
    others = {
        tmp_path / "cache" / name for name in ("train.blocks", "x.partial", f"{'a' * 64}.txt", f"{'A' * 64}.blocks")
    }
    (tmp_path / "cache").mkdir()
    for other in others:
        other.write_bytes(bytes(10**4))
    blocks.check_room(2)
    blocks.read(np.arange(ROWS))
    assert all(other.stat().st_size == 10**4 for other in others)
    # Locks go with the files that they were for.
    there = {path.stem for path in (tmp_path / "cache").glob("*.lock")} - {"room"}
    assert there == cached(tmp_path).keys() - {other.stem for other in others}


def test_the_cache_does_not_grow_beyond_the_disk(written, elsewhere, tmp_path, monkeypatch):
    disk, largest = size_of(3, written), 0
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(disk, 0, disk - sum(cached(tmp_path).values()))
    )
    blocks = open_blocks(elsewhere)
    for number in range(ROWS):
        blocks.read(np.array([number]))
        largest = max(largest, sum(cached(tmp_path).values()))
    assert size_of(2, written) <= largest <= disk


# ---- Bad input ----


def test_an_index_that_was_altered_is_refused(many):
    whole = json.loads((many / INDEX_FILE).read_text())
    for change in (
        lambda index: index["header"].update(num_sequences=ROWS + 1),
        lambda index: index["shards"].pop(),
        lambda index: index["shards"].reverse(),
        lambda index: index["shards"][0].pop("size"),
        lambda index: index["shards"][0].update(sha256="x/y"),
        lambda index: index.pop("shards"),
    ):
        index = json.loads(json.dumps(whole))
        change(index)
        (many / INDEX_FILE).write_text(json.dumps(index))
        with pytest.raises(ValueError, match=rf"{INDEX_FILE} cannot be read: .*prepare --shard_size"):
            open_blocks(many)
    (many / INDEX_FILE).write_text(json.dumps(whole)[:-9])
    with pytest.raises(ValueError, match=f"{INDEX_FILE} cannot be read"):
        open_blocks(many)
    (many / INDEX_FILE).write_text(json.dumps(whole))
    with pytest.raises(ValueError, match="was altered"):  # another than that of the run
        open_blocks(many, sha256="0" * 64)


@pytest.mark.parametrize("how", ["missing", "cut off", "altered", "exchanged"])
@pytest.mark.parametrize("far", [False, True])
def test_a_shard_that_is_missing_cut_off_or_altered_is_refused_by_its_name(many, tmp_path, how, far):
    bad, content = many / "train-00001.blocks", (many / "train-00001.blocks").read_bytes()
    if how == "missing":
        bad.unlink()
    elif how == "exchanged":
        shutil.copy(many / "train-00002.blocks", bad)
        bad.write_bytes(bad.read_bytes()[: len(content)].ljust(len(content)))
    else:
        bad.write_bytes(content[:-7] if how == "cut off" else content[:40] + bytes([content[40] ^ 1]) + content[41:])
    place = f"file://{many}" if far else str(many)
    wanted = {"missing": "is missing", "cut off": f"has .* bytes, not the {len(content)} of its index"}
    wanted |= {"altered": "was altered after", "exchanged": "cannot be read: it is no whole"}
    if far and how in ("altered", "exchanged"):  # it is verified when it is copied
        blocks = open_blocks(place, verify=True)
    with pytest.raises(ValueError, match=rf"^{place}/train-00001\.blocks {wanted[how]}.*\. Copy "):
        blocks.read(np.arange(ROWS)) if far and how in ("altered", "exchanged") else open_blocks(place, verify=True)
    assert not list(tmp_path.glob("cache/*.partial"))


def test_a_shard_that_vanishes_while_it_is_read_is_named_with_a_remedy(many):
    blocks = open_blocks(many)
    (many / "train-00001.blocks").unlink()
    with pytest.raises(ValueError, match=rf"^{many}/train-00001\.blocks cannot be read: .*\. Copy "):
        blocks.read(np.arange(ROWS))


def test_a_cache_without_room_is_refused_before_anything_is_copied(written, elsewhere, tmp_path, monkeypatch):
    blocks = open_blocks(elsewhere, cache_size=size_of(2, written))
    for window in (None, 3):
        with pytest.raises(ValueError, match=r"need .*--cache_size is .*or lower --shuffle_window"):
            windowed(blocks, window, 0)
    with pytest.raises(ValueError, match=r"--shuffle_window 99, but there are .* shard\(s\)\. Choose at most"):
        windowed(blocks, 99, 0)
    windowed(blocks, 2, 0)
    SequenceStream(blocks, shuffle=False)  # held-out sequences are read in order
    usage = shutil._ntuple_diskusage(10**6, 10**6 - 100, 100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ValueError, match=r"100 bytes are free in .*cache\. Change"):
        windowed(blocks, 2, 0)
    assert cached(tmp_path) == {}


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nowhere://a/b", "nowhere://a/b cannot be read: Protocol not known: nowhere"),
        ("dropbox://a/b", "dropbox://a/b cannot be read: .*dropbox"),
        ("memory://nothing/here", f"memory://nothing/here/{INDEX_FILE} cannot be read"),
    ],
)
def test_an_address_that_cannot_be_read_is_refused(address, message):
    with pytest.raises(ValueError, match=message):
        open_blocks(address)


@pytest.mark.parametrize("size", ["much", "-5MB", "12XB", ""])
def test_sizes_are_checked(size):
    with pytest.raises(ValueError, match=r"--shard_size .* is no size"):
        DataArguments(shard_size=size)
    assert DataArguments(shard_size="1.5MB").shard_bytes == 1_500_000
    assert DataArguments(shard_size="4096").shard_bytes == 4096


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
