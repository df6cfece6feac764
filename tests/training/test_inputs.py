import json
import os
import time
from dataclasses import dataclass

import pytest
import zstandard

from hf_electra_rtd.data import blocks
from hf_electra_rtd.data.tokenization import tokenizer_hash
from hf_electra_rtd.training import inputs
from hf_electra_rtd.training.inputs import DataArguments, get_rows, get_tokenizer, prepare_rows
from tests.conftest import make_text


@dataclass
class Run:
    """What `get_rows` reads of a run's arguments."""

    output_dir: str
    process_index: int = 0
    row_length: int = 32
    seed: int = 0
    disable_tqdm: bool = True


def test_sources_of_several_kinds_make_one_corpus(tmp_path, tokenizer):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "a.txt").write_text(make_text(10), encoding="utf-16")
    records = "".join(json.dumps({"body": make_text(1, seed + 100)}) + "\n" for seed in range(10))
    (tmp_path / "b.jsonl.zst").write_bytes(zstandard.compress(records.encode()))
    data = DataArguments(
        train_files=[f"{tmp_path}/plain,encoding=utf-16", f"{tmp_path}/*.zst,weight=2"],
        text_column="body",
        held_out_share=0.0,
        drop_duplicates="exact",
    )
    train, held_out = get_rows(data, Run(str(tmp_path / "run")), tokenizer)
    assert held_out is None
    assert train.header.statistics["documents"] == 30
    assert [source["name"] for source in train.header.sources] == ["a.txt", "b.jsonl.zst"]
    assert [source["weight"] for source in train.header.sources] == [1.0, 2.0]


def test_other_processes_open_what_the_first_prepared_without_reading_it_all(tmp_path, corpus, tokenizer, monkeypatch):
    data = DataArguments(train_files=[str(corpus)], held_out_share=0.1)
    run = str(tmp_path / "run")
    with pytest.raises(ValueError, match=r"train\.blocks.*first process.*share the directory"):
        get_rows(data, Run(run, process_index=1), tokenizer)
    first = get_rows(data, Run(run), tokenizer)

    def refuse(*args, **options):
        raise AssertionError("it was read again")

    monkeypatch.setattr(inputs, "prepare_blocks", refuse)
    monkeypatch.setattr(blocks, "hash_stream", refuse)
    for made, opened in zip(first, get_rows(data, Run(run, process_index=1), tokenizer), strict=True):
        assert opened.header == made.header
    named = DataArguments(train_files=[first[0].path], held_out_files=[first[1].path])
    assert get_rows(named, Run(run, process_index=1), tokenizer)[1].header == first[1].header


def test_held_out_rows_of_an_earlier_preparation_do_not_stay(tmp_path, corpus, tokenizer):
    for share in (0.1, 0.0):
        data = DataArguments(train_files=[str(corpus)], held_out_share=share)
        prepare_rows(data, tokenizer, tmp_path / "blocks", 32, 0, disable_progress=True)
        assert (tmp_path / "blocks" / "held_out.blocks").exists() == bool(share)


def test_held_out_text_is_prepared_as_training_text_is(tmp_path, corpus, tokenizer):
    held_out_file = tmp_path / "held_out.txt"
    held_out_file.write_text(make_text(5, seed=9))
    data = DataArguments(train_files=[str(corpus)], held_out_files=[str(held_out_file)])
    train, held_out = get_rows(data, Run(str(tmp_path / "run")), tokenizer)
    assert train.header.statistics["documents"] == 40
    assert held_out.header.statistics["documents"] == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoding": "utf-9"}, "no encoding 'utf-9'"),
        ({"encoding_errors": "surrogateescape"}, "no encoding_errors='surrogateescape'"),
        ({"drop_duplicates": "all"}, "no drop_duplicates='all'"),
        ({"num_proc": -1}, "num_proc is -1"),
        ({"held_out_share": 1.5}, r"held_out_share is 1\.5"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        DataArguments(**options)


def test_there_must_be_something_to_train_on(tmp_path, tokenizer):
    with pytest.raises(ValueError, match=r"nothing to train on.*--train_files.*--train_datasets"):
        get_rows(DataArguments(), Run(str(tmp_path)), tokenizer)


def test_a_tokenizer_is_trained_once_on_the_same_text(tmp_path, monkeypatch):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(make_text(40))
    os.utime(corpus, (time.time() - 100,) * 2)
    trained = []
    train = inputs.train_wordpiece
    monkeypatch.setattr(inputs, "train_wordpiece", lambda *args: trained.append(args) or train(*args))
    data = DataArguments(train_files=[str(corpus)], vocab_size=100)
    hashes = {tokenizer_hash(get_tokenizer(data, str(tmp_path / "run"))) for _ in range(2)}
    assert (len(trained), len(hashes)) == (1, 1)
    get_tokenizer(DataArguments(train_files=[str(corpus)], vocab_size=90), str(tmp_path / "run"))
    assert len(trained) == 2
    corpus.write_text(make_text(41))
    get_tokenizer(data, str(tmp_path / "run"))
    assert len(trained) == 3


def test_text_that_cannot_be_used_is_told_before_a_tokenizer_is_trained(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_bytes(b"the mill \xff")
    monkeypatch.setattr(inputs, "train_wordpiece", lambda *args: pytest.fail("it was trained"))
    with pytest.raises(ValueError, match=r"a\.txt is not UTF-8: byte 9 is 0xff"):
        get_tokenizer(DataArguments(train_files=[str(tmp_path / "a.txt")]), str(tmp_path / "run"))


def test_text_that_is_both_trained_on_and_held_out_is_refused(tmp_path, tokenizer, monkeypatch):
    train = tmp_path / "train"
    train.mkdir()
    (train / "a.txt").write_text(make_text(20))
    (train / "b.txt").write_text(make_text(20, seed=1))
    (tmp_path / "copy.txt").write_text((train / "a.txt").read_text())
    (tmp_path / "link.txt").symlink_to(train / "a.txt")
    (tmp_path / "other.txt").write_text(make_text(20, seed=2))
    run = Run(str(tmp_path / "run"))
    for held_out, message in (
        ("train/a.txt", r"a\.txt is both training and held-out text.*--train_files.*--held_out_files"),
        ("link.txt", r"link\.txt is both"),
        ("copy.txt", r"copy\.txt, which is held out, equals a\.txt, which is trained on.*Keep it out"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(inputs, "prepare_blocks", lambda *args: pytest.fail("it was prepared"))
            data = DataArguments(train_files=[str(train)], held_out_files=[str(tmp_path / held_out)])
            with pytest.raises(ValueError, match=message):
                get_rows(data, run, tokenizer)
    data = DataArguments(train_files=[str(train)], held_out_files=[str(tmp_path / "other.txt")])
    rows = get_rows(data, run, tokenizer)[0]
    blocks = DataArguments(train_files=[rows.path], held_out_files=[str(tmp_path / "copy.txt")])
    with pytest.raises(ValueError, match=r"copy\.txt is both training and held-out text"):
        get_rows(blocks, Run(str(tmp_path / "other")), tokenizer)


def test_nothing_is_left_of_a_stream_after_a_tokenizer_was_trained_on_it_or_was_not(tmp_path, monkeypatch):
    source = tmp_path / "letters"
    source.mkdir()
    (source / "train.txt").write_text("\n".join(make_text(1, seed).replace("\n", " ") for seed in range(40)))
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    data = DataArguments(train_datasets=[f"{source},streaming=true"], vocab_size=100)
    blocks = tmp_path / "run" / "blocks"
    get_tokenizer(data, str(tmp_path / "run"))
    assert [path.name for path in blocks.iterdir()] == ["trained_tokenizer.json"]
    (blocks / "trained_tokenizer.json").unlink()

    def fail(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(inputs, "train_wordpiece", fail)
    with pytest.raises(KeyboardInterrupt):
        get_tokenizer(data, str(tmp_path / "run"))
    assert list(blocks.iterdir()) == []
