import itertools
import os
import shutil
import tracemalloc
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from datasets import Dataset, DatasetDict

from hf_electra_rtd.data import preparation, text
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.data.tokenization import load_tokenizer
from tests.conftest import VOCABULARY, WORDS, make_text


def prepare(sources, tokenizer, directory, length=32, **options):
    sources = sources if isinstance(sources, list) else [sources]
    return prepare_blocks(sources, tokenizer, directory, length, disable_progress=True, **options)


def word_corpus(path, words):
    """Writes documents that each repeat a word of their own, which shows from which documents a sequence comes."""
    path.write_text("\n\n".join("\n".join([" ".join([word] * 20)] * 5) for word in words))
    return path


def words_in(file, tokenizer):
    ids = np.concatenate([file[index]["input_ids"] for index in range(len(file))])
    return Counter(token for token in tokenizer.convert_ids_to_tokens(ids) if token.isalpha())


def made_by(*parts):
    return [Path(part.path).read_bytes() for part in parts if part is not None]


# ---- Reading ----


@pytest.mark.parametrize("packing", ["full", "original"])
def test_statistics_account_for_every_token(tmp_path, corpus, tokenizer, packing):
    made, _ = prepare(corpus, tokenizer, tmp_path, packing=packing)
    counts = made.header.statistics
    sequences = [made[index] for index in range(len(made))]
    num_tokens = len(tokenizer(corpus.read_text(), add_special_tokens=False)["input_ids"])
    full = sum(len(sequence["input_ids"]) == 32 for sequence in sequences)
    assert counts == {
        "documents": 40,
        "corpus_tokens": num_tokens,
        "unknown_tokens": 0,
        "duplicate_lines": 0,
    }
    assert (full == len(made)) == (packing == "full")
    dropped = num_tokens - sum(int((sequence["input_ids"] > 4).sum()) for sequence in sequences)
    assert packing == "original" or dropped < 30


def test_weights_are_whole_passes_after_all_first_ones_and_a_drawn_share_of_what_is_not_held_out(tmp_path, tokenizer):
    once = word_corpus(tmp_path / "once.txt", WORDS[:10])
    often = word_corpus(tmp_path / "often.txt", WORDS[10:20])
    train, held_out = prepare([once, f"{often},weight=2.5"], tokenizer, tmp_path / "a", held_out_share=0.2)
    in_train = words_in(train, tokenizer)
    in_held_out = words_in(held_out, tokenizer)
    assert not in_train.keys() & in_held_out.keys()  # documents are held out whole
    assert (len(in_train), len(in_held_out), held_out.header.statistics["documents"]) == (16, 4, 4)
    assert all(70 <= count <= 100 for count in in_held_out.values())  # once, whatever the weight
    for word, count in in_train.items():
        assert round(count / 100) in ((1,) if word in WORDS[:10] else (2, 3)), (word, count)
    assert 0 < sum(round(count / 100) == 3 for count in in_train.values()) < 8
    for index in range(len(train)):  # a document of 100 tokens and its next pass share no sequence
        tokens = tokenizer.convert_ids_to_tokens(train[index]["input_ids"])
        words = [word for word in tokens if word.isalpha()]
        assert len([word for word, _ in itertools.groupby(words)]) == len(set(words))
    few, _ = prepare(f"{often},weight=0.5", tokenizer, tmp_path / "b")
    assert 0 < len(words_in(few, tokenizer)) < 10


def test_duplicate_lines_are_dropped_on_request_and_counted(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(preparation, "_SORTED", 7)  # lines are sorted in many parts
    lines = make_text(30, seed=1).splitlines()
    (tmp_path / "corpus.txt").write_text("\n".join([*lines, "", lines[0], "", *lines]))
    (tmp_path / "unique.txt").write_text("\n".join(lines))
    files = []
    counts = []
    for name, kind in (("corpus", "no"), ("corpus", "exact"), ("unique", "no")):
        made, _ = prepare(tmp_path / f"{name}.txt", tokenizer, tmp_path / f"{name}-{kind}", drop_duplicates=kind)
        files.append(made.header.sha256)
        counts.append((made.header.statistics["documents"], made.header.statistics["duplicate_lines"]))
    assert files[1] == files[2]
    assert counts == [(61, 0), (30, 1 + len([*filter(None, lines)])), (30, 0)]


def test_dropping_duplicates_loses_no_line_of_which_a_copy_is_read(tmp_path, tokenizer):
    documents = "\n\n".join(" ".join([word] * 20) for word in WORDS)
    for name in ("half.txt", "whole.txt"):
        (tmp_path / name).write_text(documents)
    for first, second in ((0.5, 1), (0.5, 2), (1, 0.5), (0.3, 2.5)):
        sources = [f"{tmp_path}/half.txt,weight={first}", f"{tmp_path}/whole.txt,weight={second}"]
        made, _ = prepare(sources, tokenizer, tmp_path / f"{first}-{second}", 8, drop_duplicates="exact")
        counts = words_in(made, tokenizer)
        assert counts.keys() == set(WORDS)
        assert max(first, second) > 1 or sum(counts.values()) == 20 * len(WORDS)
        assert 0 < made.header.statistics["duplicate_lines"] < len(WORDS)


def test_the_split_is_by_document_seeded_never_empty_and_drawn_in_any_number_of_parts(monkeypatch):
    def chosen(num_documents, share, seed):
        lines = list(itertools.chain.from_iterable((str(document), "") for document in range(num_documents)))
        text = SimpleNamespace(source=SimpleNamespace(weight=3.0), read=lambda _: lines)
        scans = [{"num_documents": num_documents, "num_lines": num_documents}]
        parts = {0: [], 1: []}
        for part, line in preparation._Reader([text], scans, share, seed).lines():
            parts[part] += [int(line)] if line else []
        assert parts[0] == 3 * sorted({*range(num_documents)}.difference(parts[1]))
        return parts[1]

    held_out_of_a_thousand = chosen(1000, 0.05, seed=0)
    monkeypatch.setattr(preparation, "_DRAWN", 64)
    assert chosen(1000, 0.05, seed=0) == held_out_of_a_thousand
    assert len(held_out_of_a_thousand) == 50
    assert chosen(1000, 0.05, seed=1) != held_out_of_a_thousand
    assert len(chosen(2, 0.05, seed=0)) == 1
    assert chosen(2, 0.0, seed=0) == []


def test_texts_and_datasets_in_memory_give_the_sequences_of_a_file(tmp_path, tokenizer):
    texts = [document + "\n" for document in make_text(20).split("\n\n")]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    dataset = Dataset.from_dict({"body": texts, "id": list(range(20))})
    sources = [tmp_path / "a.txt", {"body": texts}, {"body": dataset["body"]}, dataset, dataset.to_iterable_dataset()]
    made = set()
    for number, source in enumerate(sources):
        options = {"held_out_share": 0.2, "text_column": "body", "disable_progress": True}
        files = prepare_blocks(source, tokenizer, tmp_path / str(number), 32, **options)
        made.add(tuple(file.header.sha256 for file in files))
    assert len(made) == 1
    several = prepare([{"text": texts[:10]}, dataset.rename_column("body", "text")], tokenizer, tmp_path / "several")
    assert several[0].header.statistics["documents"] == 30


def test_what_is_no_text_is_a_type_error_that_names_what_is(tmp_path, tokenizer):
    for source in (7, {"text": "the mill"}, DatasetDict(train=Dataset.from_dict({}))):
        with pytest.raises(TypeError, match=r"datasets\.Dataset"):
            prepare(source, tokenizer, tmp_path)


# ---- Tokenization ----


def test_text_that_the_vocabulary_does_not_know_leaves_no_blocks(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("die Mühle war neu .\n" * 30, encoding="utf-8")
    with pytest.raises(ValueError, match=r"train: .*80"):
        prepare(tmp_path / "a.txt", tokenizer, tmp_path / "out")
    (tmp_path / "a.txt").write_text(f"{'a' * 101}\n" * 20)  # each line is one overlong word; tokens are too few, too
    with pytest.raises(ValueError, match=r"(?s)train: .*100 characters"):
        prepare(tmp_path / "a.txt", tokenizer, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.blocks"))


@pytest.mark.parametrize("packing", ["full", "original"])
def test_threads_and_sizes_of_chunks_change_nothing(tmp_path, corpus, tokenizer, monkeypatch, packing):
    made = []
    for chunk, num_proc in ((preparation._CHUNK, 1), (300, 1), (300, 3)):
        monkeypatch.setattr(preparation, "_CHUNK", chunk)
        options = {"held_out_share": 0.1, "packing": packing, "num_proc": num_proc}
        made.append(made_by(*prepare(corpus, tokenizer, tmp_path / f"{chunk}-{num_proc}", **options)))
    assert made[0] == made[1] == made[2]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path, tokenizer, monkeypatch):
    for name, size in (("_CHUNK", 1 << 11), ("_DRAWN", 1 << 7), ("_SORTED", 1 << 10)):
        monkeypatch.setattr(preparation, name, size)
    peaks = []
    for num_documents in (40, 2000, 4000):  # the first run does the imports; buffers are full from 2,000 on
        corpus = tmp_path / f"{num_documents}.txt"
        corpus.write_text(make_text(num_documents))
        tracemalloc.start()
        options = {"held_out_share": 0.1, "drop_duplicates": "exact", "num_proc": 1}
        prepare(corpus, tokenizer, tmp_path / str(num_documents), **options)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] - peaks[1] < 0.02 * corpus.stat().st_size


# ---- Reuse, and what remains after a failure ----


def test_what_was_prepared_is_used_again_and_made_anew_when_anything_changed(tmp_path, tokenizer, monkeypatch, caplog):
    corpus = tmp_path / "corpus.txt"
    blocks = tmp_path / "blocks"
    moved = tmp_path / "moved" / "corpus.txt"
    moved.parent.mkdir()
    for path, seed in ((corpus, 0), (moved, 0), (tmp_path / "other.txt", 1)):
        path.write_text(make_text(40, seed))
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCABULARY, "Mill"]) + "\n")
    encode = Mock(wraps=preparation._encode)
    monkeypatch.setattr(preparation, "_encode", encode)
    options = {"sources": corpus, "tokenizer": tokenizer, "directory": blocks, "held_out_share": 0.1}
    first = prepare(**options)
    assert not any(str(tmp_path).encode() in path.read_bytes() for path in blocks.iterdir())
    for path in (corpus, moved):  # the place of a text does not matter
        again = prepare(**{**options, "sources": path})
        assert [part.header for part in again] == [part.header for part in first]
    assert encode.call_count == 1
    content = bytearray((blocks / "train.blocks").read_bytes())
    content[100] ^= 1
    (blocks / "train.blocks").write_bytes(content)
    assert prepare(**options)[0].header == first[0].header
    assert "was altered" in caplog.text
    changes = [{"seed": 1}, {"packing": "original"}, {"drop_duplicates": "exact"}, {"held_out_share": 0.2}]
    changes += [{"length": 16}, {"tokenizer": load_tokenizer(str(tmp_path / "vocab.txt"))}]
    changes += [{"sources": tmp_path / "other.txt"}, {"sources": f"{corpus},weight=2"}]
    kept = (blocks / "train.blocks").read_bytes()
    needed = {**options, "sha256": first[0].header.sha256}  # by a run that is resumed
    for lost in (None, "held_out.blocks"):  # whether or not the other file is there
        if lost:
            (blocks / lost).unlink()
        for changed in changes:
            with pytest.raises(ValueError, match=r"train\.blocks"):
                prepare(**{**needed, **changed})
            assert (blocks / "train.blocks").read_bytes() == kept
    shutil.copy(corpus, tmp_path / "renamed.txt")
    for _ in range(2):  # the first call makes the held-out part
        assert prepare(**{**needed, "sources": tmp_path / "renamed.txt"})[0].header.sha256 == needed["sha256"]
    assert encode.call_count == 3
    for number, changed in enumerate(changes, start=4):
        prepare(**{**options, **changed})
        assert encode.call_count == number, changed


def test_bad_text_is_reported_before_anything_is_tokenized(tmp_path, tokenizer, monkeypatch):
    (tmp_path / "a.txt").write_text(make_text(30))
    (tmp_path / "b.txt").write_bytes(b"the mill \xff")
    monkeypatch.setattr(preparation, "_encode", lambda *_: pytest.fail("it was tokenized"))
    with pytest.raises(ValueError, match=r"b\.txt, line 1 "):
        prepare([tmp_path / "a.txt", tmp_path / "b.txt"], tokenizer, tmp_path / "blocks")
    assert not list((tmp_path / "blocks").glob("*.blocks"))


@pytest.mark.parametrize(
    ("text", "options", "name"),
    [
        ("the mill\n\nthe river\n", {}, "^train: .*max_seq_length"),
        ("the mill\n\n" * 50, {"held_out_share": 0.02}, "^held_out: .*held_out_share"),
        ("the mill", {"held_out_share": 0.1}, "held_out_share"),
        ("\n", {}, r"corpus\.txt"),
    ],
)
def test_text_that_is_too_short_is_reported(tmp_path, tokenizer, text, options, name):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(text)
    with pytest.raises(ValueError, match=name):
        prepare(corpus, tokenizer, tmp_path / "blocks", **options)
    assert not list(tmp_path.glob("blocks/*.blocks"))


def test_a_file_that_changes_between_two_passes_is_reported(tmp_path, tokenizer, monkeypatch):
    corpus = tmp_path / "corpus.txt"
    scan = text.scan
    for change in (str.swapcase, lambda content: 3 * content):

        def then_change(texts, change=change):
            found = scan(texts)
            status = corpus.stat()
            corpus.write_text(change(corpus.read_text()))
            os.utime(corpus, ns=(status.st_atime_ns, status.st_mtime_ns))  # keeps the old modification time
            return found

        corpus.write_text(make_text(30))
        monkeypatch.setattr(preparation, "scan", then_change)
        with pytest.raises(ValueError, match=r"corpus\.txt"):
            prepare(corpus, tokenizer, tmp_path / "blocks", drop_duplicates="exact")
        assert not list((tmp_path / "blocks").glob("*.blocks"))
