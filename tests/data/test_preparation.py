import errno
import itertools
import json
import os
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from hf_electra_rtd.data import duplicates, files, preparation, texts
from hf_electra_rtd.data.preparation import describe, prepare_blocks, summarize
from hf_electra_rtd.data.readers import read_lines
from hf_electra_rtd.data.sources import parse_file_source
from hf_electra_rtd.data.tokenization import load_tokenizer
from tests.conftest import VOCABULARY, WORDS, make_text


def prepare(corpus, tokenizer, directory, held_out_share=0.0, **options):
    return prepare_blocks(
        [str(corpus)], tokenizer, directory, 32, held_out_share=held_out_share, disable_progress=True, **options
    )


def tokens_of(text, tokenizer):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_held_out_documents_are_whole_and_no_token_of_theirs_is_trained_on(tmp_path, tokenizer):
    # Every document is one word of its own, so rows tell which documents they came from.
    words = [token for token in VOCABULARY if token.isalpha()][:20]
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(" ".join([word] * 100) for word in words))
    train, held_out = prepare(corpus, tokenizer, tmp_path, held_out_share=0.2)
    in_train, in_held_out = (
        {token for row in range(len(part)) for token in part[row]["input_ids"] if token >= 10}
        for part in (train, held_out)
    )
    assert not in_train & in_held_out
    assert len(in_held_out) == 4
    assert len(in_train) == 16
    assert held_out.header.statistics["documents"] == 4


@pytest.mark.parametrize("packing", ["full", "original"])
def test_statistics_account_for_every_token(tmp_path, corpus, tokenizer, packing):
    train, _ = prepare(corpus, tokenizer, tmp_path, packing=packing)
    counts = train.header.statistics
    assert counts["corpus_tokens"] == len(tokens_of(corpus.read_text(), tokenizer))
    assert counts["documents"] == 40
    assert counts["unknown_tokens"] == 0
    kept = sum(int((train[row]["input_ids"] > 4).sum()) for row in range(len(train)))
    assert kept + counts["dropped_tokens"] == counts["corpus_tokens"]
    assert counts["two_segment_rows"] == sum(bool(train[row]["token_type_ids"].any()) for row in range(len(train)))
    assert counts["full_rows"] == sum(len(train[row]["input_ids"]) == 32 for row in range(len(train)))
    if packing == "full":
        assert counts["dropped_tokens"] < 30
        assert train.header.uniform
    assert "40 documents" in describe(train)


def test_what_was_prepared_is_used_again_and_made_anew_when_anything_changed(tmp_path, corpus, tokenizer):
    def modified():
        return {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.blocks")}

    prepare(corpus, tokenizer, tmp_path, held_out_share=0.1)
    first = modified()
    prepare(corpus, tokenizer, tmp_path, held_out_share=0.1)
    assert modified() == first
    prepare(corpus, tokenizer, tmp_path, held_out_share=0.1, seed=1)
    assert all(modified()[name] != time for name, time in first.items())
    cased = tmp_path / "vocab.txt"
    cased.write_text("\n".join([*VOCABULARY, "Mill"]) + "\n")
    again, _ = prepare(corpus, load_tokenizer(str(cased)), tmp_path, held_out_share=0.1, seed=1)
    assert again.header.vocab_size == len(VOCABULARY) + 1


def test_an_altered_result_is_made_anew(tmp_path, corpus, tokenizer, caplog):
    train, _ = prepare(corpus, tokenizer, tmp_path)
    content = bytearray((tmp_path / "train.blocks").read_bytes())
    content[100] ^= 1
    (tmp_path / "train.blocks").write_bytes(content)
    again, _ = prepare(corpus, tokenizer, tmp_path)
    assert "was altered" in caplog.text
    assert again.header == train.header


def test_a_failure_leaves_no_file(tmp_path, tokenizer):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the mill\n\nthe river\n")
    with pytest.raises(ValueError, match=r"too few for one row of 32.*--row_length"):
        prepare(corpus, tokenizer, tmp_path / "blocks")
    assert list((tmp_path / "blocks").iterdir()) == []


def test_a_part_that_is_too_short_is_told_with_its_own_remedy(tmp_path, tokenizer):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(["the mill"] * 50))
    with pytest.raises(
        ValueError, match=r"^held_out: .*too few for one row of 32.*--held_out_share.*--held_out_files"
    ):
        prepare(corpus, tokenizer, tmp_path / "blocks", 0.02)
    with pytest.raises(ValueError, match=r"^train: .*too few for one row of 32.*more text, or shorter rows"):
        prepare(corpus, tokenizer, tmp_path / "blocks", 0.9)


def test_lines_without_known_characters_end_no_document(tmp_path, tokenizer):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(make_text(3) + "\n\u200b\n" + make_text(2))
    train, _ = prepare(corpus, tokenizer, tmp_path)
    assert train.header.statistics["documents"] == 5


def word_corpus(directory, name, words):
    """Every document is one word of its own, so rows tell which documents they came from."""
    path = directory / name
    path.write_text("\n\n".join("\n".join([" ".join([word] * 20)] * 5) for word in words))
    return path


def words_in(file, tokenizer):
    """How often each word occurs."""
    ids = np.concatenate([file[row]["input_ids"] for row in range(len(file))])
    return Counter(token for token in tokenizer.convert_ids_to_tokens(ids) if token.isalpha())


@pytest.mark.parametrize("packing", ["full", "original"])
def test_the_result_is_the_same_for_every_number_of_processes(tmp_path, tokenizer, monkeypatch, packing):
    monkeypatch.setattr(preparation, "_CHUNK", 300)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(make_text(40))
    contents = []
    for num_proc in (0, 1, 3):
        for made in prepare(corpus, tokenizer, tmp_path / str(num_proc), 0.1, packing=packing, num_proc=num_proc):
            contents.append(Path(made.path).read_bytes())
    monkeypatch.undo()
    for made in prepare(corpus, tokenizer, tmp_path / "whole", 0.1, packing=packing):
        contents.append(Path(made.path).read_bytes())
    assert contents[0::2] == contents[0:1] * 4
    assert contents[1::2] == contents[1:2] * 4


def test_weights_are_whole_passes_after_all_first_ones_and_a_drawn_share(tmp_path, tokenizer):
    once = word_corpus(tmp_path, "once.txt", WORDS[:10])
    often = word_corpus(tmp_path, "often.txt", WORDS[10:20])
    sources = [parse_file_source(str(once)), parse_file_source(f"{often},weight=2.5")]
    train, held_out = prepare_blocks(sources, tokenizer, tmp_path / "a", 32, held_out_share=0.2, disable_progress=True)
    in_train, in_held_out = words_in(train, tokenizer), words_in(held_out, tokenizer)
    assert not in_train.keys() & in_held_out.keys()
    assert len(in_held_out) == 4
    assert all(70 <= count <= 100 for count in in_held_out.values())  # once, whatever the weight
    for word, count in in_train.items():
        times = {round(count / 100)}
        assert times <= ({1} if word in WORDS[:10] else {2, 3}), (word, count)
    thrice = sum(round(count / 100) == 3 for count in in_train.values())
    assert 0 < thrice < 8
    for row in range(len(train)):  # a document of 100 tokens and its next pass share no row
        tokens = tokenizer.convert_ids_to_tokens(train[row]["input_ids"])
        words = [word for word in tokens if word.isalpha()]
        assert len([word for word, _ in itertools.groupby(words)]) == len(set(words))
    few, _ = prepare_blocks(
        [parse_file_source(f"{often},weight=0.5")], tokenizer, tmp_path / "b", 32, disable_progress=True
    )
    assert 0 < len(words_in(few, tokenizer)) < 10


def test_duplicate_lines_are_dropped_on_request_and_counted(tmp_path, tokenizer):
    corpus = tmp_path / "corpus.txt"
    lines = ["the mill was old .", "a river ran 1 .", "The MILL was old!", "the mill was old .", "a river ran 2 ."]
    fresh = make_text(20).splitlines()
    corpus.write_text("\n".join([*lines, "", lines[0], "", *fresh]))
    extra = len(fresh) - len(set(fresh)) - fresh.count("") + 1
    found = {}
    for kind in ("no", "exact", "near"):
        made, _ = prepare(corpus, tokenizer, tmp_path / kind, drop_duplicates=kind)
        found[kind] = made.header.statistics
    assert (found["no"]["exact_duplicates"], found["no"]["near_duplicates"]) == (0, 0)
    assert (found["exact"]["exact_duplicates"], found["exact"]["near_duplicates"]) == (2 + extra, 0)
    assert found["near"]["exact_duplicates"] == 2 + extra
    assert found["near"]["near_duplicates"] >= 2
    assert (found["no"]["documents"], found["exact"]["documents"]) == (22, 21)  # one had nothing else
    assert found["exact"]["corpus_tokens"] < found["no"]["corpus_tokens"]


def test_dropping_duplicates_loses_no_line_of_which_a_copy_is_read(tmp_path, tokenizer):
    half, whole = tmp_path / "half.txt", tmp_path / "whole.txt"
    documents = [" ".join([word] * 20) for word in WORDS]
    half.write_text("\n\n".join(documents))
    whole.write_text("\n\n".join(documents))
    for weights in ((0.5, 1), (0.5, 2), (1, 0.5), (0.3, 2.5)):
        sources = [
            parse_file_source(f"{file},weight={weight}") for file, weight in zip((half, whole), weights, strict=True)
        ]
        made, _ = prepare_blocks(
            sources, tokenizer, tmp_path / str(weights), 8, drop_duplicates="exact", disable_progress=True
        )
        counts = words_in(made, tokenizer)
        assert counts.keys() == set(WORDS), weights
        if max(weights) == 1:
            assert sum(counts.values()) == 20 * len(WORDS)
        assert 0 < made.header.statistics["exact_duplicates"] < len(WORDS)


def test_the_longest_and_the_shortest_document_are_told(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(preparation, "_CHUNK", 10)
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join([("the mill\n" * n) for n in (7, 3, 30, 5)]))
    made, _ = prepare(corpus, tokenizer, tmp_path)
    assert made.header.statistics["longest_document"] == 60
    assert made.header.statistics["shortest_document"] == 6
    figures = summarize({"training": made})["training"]
    assert figures["longest document (tokens)"] == "60"
    assert figures["documents"] == "4"


def test_documents_shorter_than_a_row_fill_rows_together(tmp_path, tokenizer):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n\n".join(["the old mill"] * 50))
    made, _ = prepare(corpus, tokenizer, tmp_path)
    assert made.header.uniform
    assert made.header.statistics["documents"] == 50


def test_text_is_neither_read_nor_hashed_again_if_nothing_changed(tmp_path, tokenizer, monkeypatch):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(make_text(30))
    os.utime(corpus, (time.time() - 100,) * 2)
    first, _ = prepare(corpus, tokenizer, tmp_path / "blocks")

    def refuse(*args):
        raise AssertionError("it was read again")

    monkeypatch.setattr(texts, "read_lines", refuse)
    monkeypatch.setattr(texts, "hash_file", refuse)
    again, _ = prepare(corpus, tokenizer, tmp_path / "blocks")
    assert again.header == first.header
    monkeypatch.undo()
    corpus.write_text(make_text(30, seed=1))
    changed, _ = prepare(corpus, tokenizer, tmp_path / "blocks")
    assert changed.header.sha256 != first.header.sha256


def test_headers_and_caches_hold_no_local_path(tmp_path, tokenizer):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(make_text(30))
    os.utime(corpus, (time.time() - 100,) * 2)
    prepare(corpus, tokenizer, tmp_path / "blocks", 0.1)
    made = list((tmp_path / "blocks").iterdir())
    assert len(made) == 3
    for file in made:
        assert str(tmp_path).encode() not in file.read_bytes()


def test_bad_text_is_told_before_anything_is_tokenised(tmp_path, tokenizer, monkeypatch):
    good, bad = tmp_path / "a.txt", tmp_path / "b.txt"
    good.write_text(make_text(30))
    bad.write_bytes(b"the mill \xff")
    monkeypatch.setattr(preparation, "encode_chunks", lambda *args: pytest.fail("it was tokenised"))
    with pytest.raises(ValueError, match=r"b\.txt is not UTF-8: byte 9"):
        prepare_blocks([good, bad], tokenizer, tmp_path / "blocks", 32, disable_progress=True)
    bad.write_text("\n")
    with pytest.raises(ValueError, match=r"b\.txt holds no text"):
        prepare_blocks([good, bad], tokenizer, tmp_path / "blocks", 32, disable_progress=True)
    assert list((tmp_path / "blocks").iterdir()) == []


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path, tokenizer, monkeypatch):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(make_text(30))

    def growing(*args):
        yield from read_lines(*args)
        with open(corpus, "a") as file:
            file.write("more\n")

    monkeypatch.setattr(texts, "read_lines", growing)
    with pytest.raises(ValueError, match=r"corpus\.txt changed while it was read"):
        prepare(corpus, tokenizer, tmp_path / "blocks")


def test_a_vocabulary_without_mask_is_refused_before_any_text_is_read(tmp_path):
    vocabulary = {token: index for index, token in enumerate(VOCABULARY) if token != "[MASK]"}
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(vocabulary))
    with pytest.raises(ValueError, match=r"lacks \[MASK\]"):
        load_tokenizer(str(path))


def test_a_full_disk_leaves_what_was_prepared_before(tmp_path, corpus, tokenizer, monkeypatch):
    prepare(corpus, tokenizer, tmp_path, 0.1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ValueError, match=r"no space left.*free some, or choose another directory"):
        prepare(corpus, tokenizer, tmp_path, 0.1, seed=1)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("kind", ["no", "near"])
def test_memory_does_not_grow_with_the_corpus(tmp_path, tokenizer, monkeypatch, kind):
    monkeypatch.setattr(preparation, "_CHUNK", 1 << 14)
    monkeypatch.setattr(duplicates, "_BUFFERED", 1 << 8)
    monkeypatch.setattr(files, "CHUNK_SIZE", 1 << 14)
    numbers = np.random.default_rng(0)
    peaks = []
    for num_documents in (200, 6000):
        corpus = tmp_path / f"{num_documents}.txt"
        with open(corpus, "w") as file:
            for _ in range(num_documents):  # no line occurs twice, not even nearly
                for words in numbers.choice(WORDS, (5, 12)):
                    file.write(" ".join(words) + "\n")
                file.write("\n")
        tracemalloc.start()
        made, _ = prepare(corpus, tokenizer, tmp_path / str(num_documents), 0.1, drop_duplicates=kind)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert made.header.statistics["exact_duplicates"] == 0
    # Two bits a line, and 24 bytes a line of the largest of 256 parts, several times over while it is sorted.
    assert peaks[1] - peaks[0] < 0.05 * corpus.stat().st_size


def test_a_file_that_changes_between_two_passes_is_told(tmp_path, tokenizer, monkeypatch):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(make_text(30))
    hash_file, count_lines = texts.hash_file, texts.count_lines

    def then_change(function):
        def changing(*args):
            result = function(*args)
            status = corpus.stat()
            corpus.write_text(corpus.read_text().swapcase())  # of the same size, and with its old time
            os.utime(corpus, ns=(status.st_atime_ns, status.st_mtime_ns))
            return result

        return changing

    for name, function in (("hash_file", hash_file), ("count_lines", count_lines)):
        monkeypatch.setattr(texts, name, then_change(function))
        with pytest.raises(ValueError, match=r"corpus\.txt changed while it was read"):
            prepare(corpus, tokenizer, tmp_path / "blocks")
        monkeypatch.undo()
        assert not list((tmp_path / "blocks").glob("*.blocks"))


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: 3,
        lambda entry: [],
        lambda entry: {**entry, "stamp": ["x"]},
        lambda entry: {**entry, "found": 1},
        lambda entry: {**entry, "found": {"sha256": 1}},
        lambda entry: {**entry, "found": {**entry["found"], "counts": {"lines": 1}}},
    ],
)
def test_a_malformed_entry_of_the_cache_is_ignored(tmp_path, tokenizer, change):
    corpus, blocks = tmp_path / "corpus.txt", tmp_path / "blocks"
    corpus.write_text(make_text(30))
    os.utime(corpus, (time.time() - 100,) * 2)
    first, _ = prepare(corpus, tokenizer, blocks)
    cache = json.loads((blocks / "scanned.json").read_text())
    cache["files"] = {key: change(entry) for key, entry in cache["files"].items()}
    (blocks / "scanned.json").write_text(json.dumps(cache))
    (blocks / "train.blocks").unlink()
    assert prepare(corpus, tokenizer, blocks)[0].header == first.header


def test_training_files_that_are_equal_are_told(tmp_path, tokenizer, caplog):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(make_text(30))
    prepare_blocks([tmp_path / "a.txt", tmp_path / "b.txt"], tokenizer, tmp_path / "blocks", 32, disable_progress=True)
    assert "a.txt and b.txt are equal" in caplog.text
