import itertools
import os
import signal
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_electra_rtd.data import preparation, text
from hf_electra_rtd.data.blocks import BlockFile
from hf_electra_rtd.data.preparation import draw, find_copies, held_out_threshold, normalize_line, prepare_blocks
from hf_electra_rtd.data.tokenization import load_tokenizer, train_wordpiece
from hf_electra_rtd.ops import randomness
from tests.conftest import VOCABULARY, WORDS, make_text


def prepare(sources, tokenizer, directory, length=32, **options):
    sources = sources if isinstance(sources, list) else [sources]
    return prepare_blocks(sources, tokenizer, directory, length, disable_progress=True, **options)


def word_corpus(path, words):
    """Every document is one word of its own, so that sequences show which documents they came from."""
    path.write_text("\n\n".join("\n".join([" ".join([word] * 20)] * 5) for word in words))
    return path


def words_in(file, tokenizer):
    ids = np.concatenate([file[index]["input_ids"] for index in range(len(file))])
    return Counter(token for token in tokenizer.convert_ids_to_tokens(ids) if token.isalpha())


def made_by(*parts):
    return [Path(part.path).read_bytes() for part in parts if part is not None]


# ---- What is read ----


def test_held_out_documents_are_whole_and_no_token_of_theirs_is_trained_on(tmp_path, tokenizer):
    corpus = word_corpus(tmp_path / "corpus.txt", WORDS[:20])
    train, held_out = prepare(corpus, tokenizer, tmp_path, held_out_share=0.2)
    in_train, in_held_out = words_in(train, tokenizer), words_in(held_out, tokenizer)
    assert not in_train.keys() & in_held_out.keys()
    assert (len(in_train), len(in_held_out), held_out.header.statistics["documents"]) == (16, 4, 4)


@pytest.mark.parametrize("packing", ["full", "original"])
def test_statistics_account_for_every_token(tmp_path, corpus, tokenizer, packing):
    made, _ = prepare(corpus, tokenizer, tmp_path, packing=packing)
    counts, sequences = made.header.statistics, [made[index] for index in range(len(made))]
    assert counts["corpus_tokens"] == len(tokenizer(corpus.read_text(), add_special_tokens=False)["input_ids"])
    assert (counts["documents"], counts["unknown_tokens"], counts["duplicate_lines"]) == (40, 0, 0)
    kept = sum(int((sequence["input_ids"] > 4).sum()) for sequence in sequences)
    assert kept + counts["dropped_tokens"] == counts["corpus_tokens"]
    assert counts["two_segment_sequences"] == sum(bool(sequence["token_type_ids"].any()) for sequence in sequences)
    assert counts["full_sequences"] == sum(len(sequence["input_ids"]) == 32 for sequence in sequences)
    assert (counts["full_sequences"] == len(made)) == (packing == "full")
    assert packing == "original" or counts["dropped_tokens"] < 30


def test_weights_are_whole_passes_after_all_first_ones_and_a_drawn_share(tmp_path, tokenizer):
    once, often = word_corpus(tmp_path / "once.txt", WORDS[:10]), word_corpus(tmp_path / "often.txt", WORDS[10:20])
    train, held_out = prepare([once, f"{often},weight=2.5"], tokenizer, tmp_path / "a", held_out_share=0.2)
    in_train, in_held_out = words_in(train, tokenizer), words_in(held_out, tokenizer)
    assert not in_train.keys() & in_held_out.keys()
    assert len(in_held_out) == 4
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


@pytest.mark.parametrize(
    ("line", "normal"),
    [
        ("The  Café, in 1984!", "the cafe in 0000"),
        ("STRASSE und Straße", "strasse und strasse"),
        ("١٢٣ \u2013 \uff14", "000 0"),
        ("a+b = $5", "ab 0"),
        ("क्या हाल है?", normalize_line("क्या हाल है")),
        ("***", ""),
    ],
)
def test_near_duplicates_have_one_normal_form(line, normal):
    assert normalize_line(line) == normal


@given(st.lists(st.sampled_from(["a", "A", "a.", "b 1", "b 2", "--", "...", "--", "c"]), max_size=40), st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_line_is_a_copy_but_the_first(tmp_path, monkeypatch, lines, near):
    monkeypatch.setattr(preparation, "_SORTED", 7)
    bits = np.unpackbits(find_copies(enumerate(lines), len(lines), near, tmp_path), bitorder="little")
    seen = set()
    for line, found in zip(lines, bits.tolist(), strict=False):
        form = (normalize_line(line) or ("as it is", line)) if near else line
        assert found == (form in seen)
        seen.add(form)


def test_duplicate_lines_are_dropped_on_request_and_counted(tmp_path, tokenizer):
    lines = ["the mill was old .", "a river ran 1 .", "The MILL was old!", "the mill was old .", "a river ran 2 ."]
    fresh = make_text(20).splitlines()
    (tmp_path / "corpus.txt").write_text("\n".join([*lines, "", lines[0], "", *fresh]))
    extra = len(fresh) - len(set(fresh)) - fresh.count("") + 1
    found = {}
    for kind in ("no", "exact", "near"):
        made, _ = prepare(tmp_path / "corpus.txt", tokenizer, tmp_path / kind, drop_duplicates=kind)
        found[kind] = made.header.statistics
    assert [found[kind]["duplicate_lines"] for kind in ("no", "exact")] == [0, 2 + extra]
    assert found["near"]["duplicate_lines"] >= 4 + extra
    assert (found["no"]["documents"], found["exact"]["documents"]) == (22, 21)  # one had nothing else
    assert found["exact"]["corpus_tokens"] < found["no"]["corpus_tokens"]


def test_dropping_duplicates_loses_no_line_of_which_a_copy_is_read(tmp_path, tokenizer):
    documents = "\n\n".join(" ".join([word] * 20) for word in WORDS)
    for name in ("half.txt", "whole.txt"):
        (tmp_path / name).write_text(documents)
    for weights in ((0.5, 1), (0.5, 2), (1, 0.5), (0.3, 2.5)):
        names = zip(("half.txt", "whole.txt"), weights, strict=True)
        sources = [f"{tmp_path}/{name},weight={weight}" for name, weight in names]
        made, _ = prepare(sources, tokenizer, tmp_path / str(weights), 8, drop_duplicates="exact")
        counts = words_in(made, tokenizer)
        assert counts.keys() == set(WORDS), weights
        if max(weights) == 1:
            assert sum(counts.values()) == 20 * len(WORDS)
        assert 0 < made.header.statistics["duplicate_lines"] < len(WORDS)


def test_lines_without_known_characters_end_no_document(tmp_path, tokenizer):
    made = []
    for name, line in (("a.txt", "\u200b\n"), ("b.txt", "")):
        (tmp_path / name).write_text(f"{make_text(3)}\n{line}{make_text(2)}")
        made.append(prepare(tmp_path / name, tokenizer, tmp_path)[0].header.sha256)
    assert made[0] == made[1]


@pytest.mark.parametrize("packing", ["full", "original"])
def test_special_tokens_in_a_corpus_are_text(tmp_path, tokenizer, packing):
    lines = ["the [MASK] river [PAD] was [CLS] old\n"] * 20
    (tmp_path / "a.txt").write_text("".join(lines))
    for each in (tokenizer, train_wordpiece(lambda: lines, 60)):
        for sequence in prepare(tmp_path / "a.txt", each, tmp_path, packing=packing)[0]:
            assert not {each.pad_token_id, each.mask_token_id} & {*sequence["input_ids"]}
            assert list(sequence["input_ids"]).count(each.cls_token_id) == 1


def test_the_split_is_by_document_seeded_and_never_empty():
    def chosen(num_documents, share, seed):
        threshold = held_out_threshold(num_documents, share, seed)
        numbers = itertools.islice(draw(seed, randomness.SPLITTING, 0), num_documents)
        return [document for document, number in enumerate(numbers) if number < threshold]

    assert len(chosen(1000, 0.05, seed=0)) == 50
    assert chosen(1000, 0.05, seed=0) != chosen(1000, 0.05, seed=1)
    assert len(chosen(2, 0.05, seed=0)) == 1
    assert chosen(2, 0.0, seed=0) == []
    numbers = randomness.counter_bits(1, randomness.WEIGHTING, 0, 70_000, 1)[:, 0].tolist()
    for first in (0, 5, 65_536):
        assert list(itertools.islice(draw(1, randomness.WEIGHTING, first), 70_000 - first)) == numbers[first:]


# ---- How it is tokenized ----


@pytest.mark.parametrize("packing", ["full", "original"])
def test_the_result_is_the_same_for_every_number_of_threads_and_size_of_chunks(
    tmp_path, corpus, tokenizer, monkeypatch, packing
):
    made = []
    for chunk, num_proc in ((preparation._CHUNK, 1), (300, 1), (300, 3)):
        monkeypatch.setattr(preparation, "_CHUNK", chunk)
        options = {"held_out_share": 0.1, "packing": packing, "num_proc": num_proc}
        made.append(made_by(*prepare(corpus, tokenizer, tmp_path / f"{chunk}-{num_proc}", **options)))
    assert made[0] == made[1] == made[2]


def test_truncation_and_padding_of_the_tokenizer_change_nothing(tmp_path, corpus, tokenizer):
    expected = made_by(*prepare(corpus, tokenizer, tmp_path / "a"))
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    try:
        assert made_by(*prepare(corpus, tokenizer, tmp_path / "b")) == expected
        assert tokenizer.backend_tokenizer.truncation["max_length"] == 4
    finally:
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()


@pytest.mark.parametrize("kind", ["no", "near"])
def test_memory_does_not_grow_with_the_corpus(tmp_path, tokenizer, monkeypatch, kind):
    monkeypatch.setattr(preparation, "_CHUNK", 1 << 14)
    monkeypatch.setattr(preparation, "_SORTED", 1 << 8)
    numbers = np.random.default_rng(0)
    peaks = []
    for num_documents in (400, 4000):
        corpus = tmp_path / f"{num_documents}.txt"
        with open(corpus, "w") as file:
            for _ in range(num_documents):  # no line occurs twice, not even nearly
                for words in numbers.choice(WORDS, (5, 12)):
                    file.write(" ".join(words) + "\n")
                file.write("\n")
        tracemalloc.start()
        options = {"held_out_share": 0.1, "drop_duplicates": kind, "num_proc": 1}
        made, _ = prepare(corpus, tokenizer, tmp_path / str(num_documents), **options)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert made.header.statistics["duplicate_lines"] == 0
    assert peaks[1] - peaks[0] < 0.15 * corpus.stat().st_size


# ---- What is used again, and what a failure leaves ----


def test_what_was_prepared_is_used_again_and_made_anew_when_anything_changed(tmp_path, tokenizer, monkeypatch):
    corpus, blocks, moved = tmp_path / "corpus.txt", tmp_path / "blocks", tmp_path / "moved" / "corpus.txt"
    moved.parent.mkdir()
    for path in (corpus, moved):
        path.write_text(make_text(40))
    first = prepare(corpus, tokenizer, blocks, held_out_share=0.1)
    assert not any(str(tmp_path).encode() in path.read_bytes() for path in blocks.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(preparation, "_encode", lambda *_: pytest.fail("it was tokenized again"))
        for path in (corpus, moved):  # the same text elsewhere is the same text
            again = prepare(path, tokenizer, blocks, held_out_share=0.1)
            assert [part.header for part in again] == [part.header for part in first]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*VOCABULARY, "Mill"]) + "\n")
    other = tmp_path / "other.txt"
    other.write_text(make_text(40, seed=1))
    encode, tokenized = preparation._encode, []
    monkeypatch.setattr(preparation, "_encode", lambda *args: tokenized.append(args) or encode(*args))
    for number, changed in enumerate(
        (
            {"seed": 1},
            {"packing": "original"},
            {"drop_duplicates": "exact"},
            {"held_out_share": 0.2},
            {"length": 16},
            {"tokenizer": load_tokenizer(str(path))},
            {"sources": other},
            {"sources": f"{corpus},weight=2"},
        ),
        start=1,
    ):
        prepare(**{"sources": corpus, "tokenizer": tokenizer, "directory": blocks, "held_out_share": 0.1, **changed})
        assert len(tokenized) == number, changed


def test_an_altered_result_is_made_anew(tmp_path, corpus, tokenizer, caplog):
    train, _ = prepare(corpus, tokenizer, tmp_path)
    header, content = train.header, bytearray((tmp_path / "train.blocks").read_bytes())
    content[100] ^= 1
    (tmp_path / "train.blocks").write_bytes(content)
    assert prepare(corpus, tokenizer, tmp_path)[0].header == header
    assert "was altered" in caplog.text


def test_bad_text_is_reported_before_anything_is_tokenized(tmp_path, tokenizer, monkeypatch):
    (tmp_path / "a.txt").write_text(make_text(30))
    monkeypatch.setattr(preparation, "_encode", lambda *_: pytest.fail("it was tokenized"))
    for content, message in ((b"the mill \xff", r"b\.txt, line 1 is not UTF-8"), (b"\n", r"b\.txt holds no text")):
        (tmp_path / "b.txt").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            prepare([tmp_path / "a.txt", tmp_path / "b.txt"], tokenizer, tmp_path / "blocks")
    assert not list((tmp_path / "blocks").glob("*.blocks"))


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("the mill\n\nthe river\n", {}, r"^train: 4 tokens are too few for one sequence of 32.*--max_seq_length"),
        ("the mill\n\n" * 50, {"held_out_share": 0.02}, r"^held_out: .*too few.*--held_out_share.*--held_out_files"),
        ("the mill\n\n" * 50, {"held_out_share": 0.9}, r"^train: .*too few.*more text"),
        ("the mill", {"held_out_share": 0.1}, r"1 document.*too few to hold 1.*--held_out_share 0"),
        ("the mill", {"held_out_share": 1.0}, "held_out_share is 1: it must be at least 0 and below 1"),
        ("the mill", {"drop_duplicates": "fuzzy"}, "no drop_duplicates='fuzzy'.*no, exact, near"),
        ("the mill", {"num_proc": 0}, "num_proc is 0"),
        ("the mill", {"sources": []}, "at least one"),
        ("the mill", {"length": 7}, "--max_seq_length 7 is too short"),
    ],
)
def test_what_cannot_be_prepared_is_reported_with_the_remedy(tmp_path, tokenizer, text, options, message):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(text)
    with pytest.raises(ValueError, match=message):
        prepare(**{"sources": corpus, "tokenizer": tokenizer, "directory": tmp_path / "blocks", **options})
    assert not list(tmp_path.glob("blocks/*.blocks"))


def test_a_file_that_changes_between_two_passes_is_reported(tmp_path, tokenizer, monkeypatch):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(make_text(30))
    scan = text.scan

    def then_change(*args):
        found, status = scan(*args), corpus.stat()
        corpus.write_text(corpus.read_text().swapcase())  # of the same size, and with its old time
        os.utime(corpus, ns=(status.st_atime_ns, status.st_mtime_ns))
        return found

    monkeypatch.setattr(preparation, "scan", then_change)
    with pytest.raises(ValueError, match=r"corpus\.txt changed while it was read"):
        prepare(corpus, tokenizer, tmp_path / "blocks")
    assert not list((tmp_path / "blocks").glob("*.blocks"))


def test_files_with_the_same_text_are_reported(tmp_path, tokenizer, caplog):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(make_text(30))
    prepare([tmp_path / name for name in ("a.txt", "b.txt", "b.txt")], tokenizer, tmp_path / "x")
    assert "a.txt and b.txt hold the same text" in caplog.text
    assert "b.txt and b.txt hold the same text" in caplog.text


@pytest.mark.slow
def test_a_full_disk_is_reported_wherever_something_is_written_and_keeps_what_was_there(tmp_path, tokenizer):
    lines = [f"line {number} of a text that is not repeated" for number in range(20_000)]
    (tmp_path / "corpus.txt").write_text("\n".join(lines))
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    script = f"""
import resource, signal
from pathlib import Path
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.data.tokenization import load_tokenizer
root = Path({str(tmp_path)!r})
tokenizer = load_tokenizer(str(root / "tokenizer"))
prepare_blocks([root / "corpus.txt"], tokenizer, root / "blocks", 64, disable_progress=True)
before = (root / "blocks" / "train.blocks").read_bytes()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for kind, limit in (("near", 0), ("near", 100), ("exact", 1000), ("no", 3000)):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        prepare_blocks([root / "corpus.txt"], tokenizer, root / "blocks", 32, drop_duplicates=kind)
        said = "it was written"
    except OSError as error:
        said = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert "blocks" in said and "Choose another directory" in said, (kind, limit, said)
    assert {{path.name for path in (root / "blocks").iterdir()}} <= {{"train.blocks", ".lock"}}
    assert (root / "blocks" / "train.blocks").read_bytes() == before
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


@pytest.mark.slow
def test_a_preparation_that_is_killed_leaves_nothing_that_loads_and_nothing_at_all_after_the_next(
    tmp_path, corpus, tokenizer
):
    directory = tmp_path / "blocks"
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    script = f"""
import time
from hf_electra_rtd.data import preparation
from hf_electra_rtd.data.tokenization import load_tokenizer
encode = preparation._encode
preparation._CHUNK = 500
def slowly(*args):
    for number, chunk in enumerate(encode(*args)):
        yield chunk
        if number == 3:
            print("in the middle", flush=True)
            time.sleep(60)
preparation._encode = slowly
preparation.prepare_blocks([{str(corpus)!r}], load_tokenizer({str(tmp_path / "tokenizer")!r}), {str(directory)!r}, 32,
    held_out_share=0.1, disable_progress=True)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"in the middle\n"
        with pytest.raises(ValueError, match="Another process is using"):
            prepare(corpus, tokenizer, directory)
        process.send_signal(signal.SIGKILL)
    assert not list(directory.glob("*.blocks"))
    assert list(directory.glob(".*.partial-*"))
    train, _ = prepare(corpus, tokenizer, directory, held_out_share=0.1)
    expected, _ = prepare(corpus, tokenizer, tmp_path / "expected", held_out_share=0.1)
    assert BlockFile(train.path, verify=True).header == expected.header
    assert {path.name for path in directory.iterdir()} <= {"train.blocks", "held_out.blocks", ".lock"}
