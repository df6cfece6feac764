import gzip
import json
import os
import tracemalloc
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_electra_rtd.data.text import (
    MAX_LINE,
    TEXT_SUFFIXES,
    Source,
    find_files,
    open_texts,
    parse_source,
    read_lines,
    scan,
)


SETTINGS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LINES = ["First line.", "Second — line.", "", "Another\u2028document\x0bhere\x85too.", ""]


def compressed(content, suffix):
    if suffix.endswith(".gz"):
        return gzip.compress(content, mtime=0)
    return zstandard.compress(content) if suffix.endswith(".zst") else content


def test_lines_are_stripped_and_an_empty_one_ends_a_document(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_bytes("First line.\n  Second — line.  \n\n\nAnother\u2028document\x0bhere\x85too.\r\n".encode())
    assert list(read_lines(str(path))) == LINES


def test_the_same_text_is_the_same_whatever_its_container_and_encoding(tmp_path):
    texts = ["One.\n\n Two. \r\nThree.", None, "", "Four —\u2028five."]
    for suffix in (".jsonl", ".jsonl.gz", ".jsonl.zst"):
        records = "\n\n".join(json.dumps({"body": text, "n": 10**30}) for text in texts)
        (tmp_path / f"a{suffix}").write_bytes(compressed(records.encode(), suffix))
    pq.write_table(pa.table({"body": texts, "n": [1, 2, 3, 4]}), tmp_path / "a.parquet", row_group_size=2)
    plain = "One.\nTwo.\nThree.\n\nFour —\u2028five."
    for suffix in (".txt", ".txt.gz", ".txt.zst"):
        (tmp_path / f"a{suffix}").write_bytes(compressed(plain.encode("utf-8-sig"), suffix))
    (tmp_path / "b.txt").write_text(plain, encoding="utf-16")
    sources = [parse_source(f"{tmp_path}/a.*,text_column=body"), parse_source(f"{tmp_path}/b.txt,encoding=utf-16")]
    for file in sources[0].files:
        assert [*filter(None, read_lines(file, sources[0]))] == ["One.", "Two.", "Three.", "Four —\u2028five."]
    with open_texts(sources, tmp_path / "work") as (texts, _):
        scans = scan(texts, disable_progress=True)
    assert len(scans) == 8
    assert all(facts == scans[0] for facts in scans)
    assert (scans[0]["num_lines"], scans[0]["num_documents"]) == (4, 2)


@pytest.mark.parametrize("suffix", [".txt.gz", ".txt.zst"])
def test_a_compressed_file_that_was_cut_off_is_refused(tmp_path, suffix):
    path = tmp_path / f"corpus{suffix}"
    whole = compressed("".join(f"line {i}\n" for i in range(100_000)).encode(), suffix)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"corpus\.txt.* cannot be read .*cut off"):
        list(read_lines(str(path)))


def test_zst_frames_one_after_another_are_one_text(tmp_path):
    path = tmp_path / "corpus.txt.zst"
    path.write_bytes(b"".join(zstandard.compress(f"part {i}\n".encode() * 50_000) for i in range(3)))
    assert Counter(read_lines(str(path))) == {"part 0": 50_000, "part 1": 50_000, "part 2": 50_000, "": 1}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "latin-1", "cp1252", "utf-8-sig"])
def test_any_encoding_is_read_with_every_kind_of_line_end(tmp_path, encoding):
    path = tmp_path / "text.txt"
    path.write_bytes("Grüße\rzwei\r\n\r\ndrei\n".encode(encoding))
    assert list(read_lines(str(path), Source(encoding=encoding))) == ["Grüße", "zwei", "", "drei", ""]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=80))
@SETTINGS
def test_lines_end_at_line_breaks_alone(tmp_path, text):
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode())
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert list(filter(None, read_lines(str(path)))) == list(filter(None, map(str.strip, lines)))


@pytest.mark.parametrize(("errors", "line"), [("replace", "f\ufffdnf"), ("ignore", "fnf")])
def test_bytes_that_do_not_fit_can_be_replaced_or_left_out(tmp_path, errors, line):
    (tmp_path / "latin.txt").write_bytes(b"f\xfcnf")
    assert list(read_lines(str(tmp_path / "latin.txt"), Source(encoding_errors=errors))) == [line, ""]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"eins\r\nzwei\nf\xfcnf\n", r"line 3 is not UTF-8 \(byte 0xfc\).*--encoding"),
        ("a.txt", b"x\n" * 9000 + b"\xff", r"line 9001 is not UTF-8"),
        ("a.txt", "\ufeffone".encode("utf-16-le"), r"line 1 is not UTF-8.*utf-16"),
        ("a.txt", b"one\r\ntwo\nthr\0ee\n", r"line 3 holds a NUL.*utf-16"),
        ("a.txt.gz", b"text", "cannot be read .*of another kind"),
        ("a.jsonl", b'{"text": "x"}\n{', "line 2 is not a JSON record"),
        ("a.jsonl", b"[1]", "line 1 has no text in a column 'text'"),
        ("a.jsonl", b'{"body": "x", "n": 1}', r"line 1 has no text.*there are: body, n.*text_column"),
        ("a.jsonl", b'{"text": 3}', r"line 1 has no text in a column 'text' \(it is int\)"),
        ("a.jsonl", rb'{"text": "a\u0000b"}', "line 1 holds a NUL"),
        ("a.jsonl", rb'{"text": "a\ud800b"}', "line 1 holds .*half of a surrogate pair"),
        ("a.jsonl", b"[" * 100_000, "line 1 is not a JSON record"),
        ("a.jsonl", b'{"text": ' + b"9" * 5000 + b"}", "line 1 is not a JSON record"),
        ("a.parquet", b"PAR1", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line_and_the_remedy(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{name}[, ].*{message}|{name}, {message}"):
        list(read_lines(str(tmp_path / name)))


def test_a_parquet_file_that_cannot_be_used_is_named(tmp_path):
    path = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"body": ["x"], "n": [1]}), path)
    with pytest.raises(ValueError, match=r"corpus\.parquet, record 1 has no text.*there are: body, n"):
        list(read_lines(str(path)))
    with pytest.raises(ValueError, match=r"corpus\.parquet, record 1 has no text.*it is int"):
        list(read_lines(str(path), Source(text_column="n")))
    whole = path.read_bytes()
    for kept in (0, 3, 20, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(ValueError, match=r"corpus\.parquet cannot be read"):
            list(read_lines(str(path), Source(text_column="body")))


def test_a_line_of_200_mb_is_refused_in_little_memory(tmp_path):
    path = tmp_path / "long.txt.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(b"short\n")
        for _ in range(200):
            file.write(b"x" * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"long\.txt\.gz, line 2 has more than 8,388,608 characters"):
            list(read_lines(str(path)))
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"text": "x" * MAX_LINE + "\n" + "y" * MAX_LINE}))
    assert [len(line) for line in read_lines(str(path))] == [MAX_LINE, MAX_LINE, 0]
    path.write_text(json.dumps({"text": "x" * MAX_LINE + "y"}))
    with pytest.raises(ValueError, match=r"long\.jsonl, line 1 has more than"):
        list(read_lines(str(path)))


HEADS = [
    *((suffix, b"") for suffix in TEXT_SUFFIXES),
    (".txt.gz", gzip.compress(b"x", mtime=0)[:10]),
    (".txt.zst", b"\x28\xb5\x2f\xfd"),
    (".jsonl", b'{"text": "'),
    (".parquet", b"PAR1"),
]


@given(st.sampled_from(HEADS), st.binary(max_size=200), st.sampled_from(["utf-8", "utf-16", "utf-7", "gb18030"]))
@SETTINGS
def test_arbitrary_bytes_give_clean_lines_or_an_error_that_names_the_file(tmp_path, head, content, encoding):
    path = tmp_path / f"any{head[0]}"
    path.write_bytes(head[1] + content)
    check_clean_or_named(path, Source(encoding=encoding))


@given(place=st.integers(0, 10**6), value=st.integers(0, 255))
@SETTINGS
def test_an_altered_parquet_file_gives_clean_lines_or_an_error_that_names_it(tmp_path, place, value):
    path = tmp_path / "any.parquet"
    pq.write_table(pa.table({"text": [f"line {number}" for number in range(50)]}), path)
    content = bytearray(path.read_bytes())
    content[place % len(content)] = value
    path.write_bytes(content)
    check_clean_or_named(path, Source())


def check_clean_or_named(path, source):
    lines, refusal = [], None
    try:
        lines.extend(read_lines(str(path), source))
    except ValueError as error:
        refusal = error
    assert refusal is None or (type(refusal) is ValueError and str(refusal).startswith(str(path)))
    assert not any(character in line for line in lines for character in "\0\n\r")
    "".join(lines).encode()


# ---- Sources ----


def test_a_directory_is_searched_and_what_is_no_text_left_out(tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "deep" / "loop").symlink_to(tmp_path)
    for name in ("b.txt", "deep/er/a[1].JSONL.gz", ".hidden/x.txt", ".y.txt", "deep/c.pdf", "d.blocks"):
        (tmp_path / name).touch()
    assert find_files(str(tmp_path)) == [str(tmp_path / "b.txt"), str(tmp_path / "deep/er/a[1].JSONL.gz")]
    assert find_files(str(tmp_path / "d*")) == [str(tmp_path / "d.blocks")]
    for pattern, message in (("x*.txt", "No file matches"), ("deep/*", r"c\.pdf is neither text nor prepared")):
        with pytest.raises(ValueError, match=message):
            find_files(str(tmp_path / pattern))


def test_a_directory_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(OSError, match=r"Permission denied: .*deep"):
        find_files(str(tmp_path))


def test_a_file_that_is_named_twice_is_read_once_as_named_first_with_a_warning(tmp_path, caplog):
    (tmp_path / "a.txt").write_text("the mill\n")
    sources = [parse_source(f"{tmp_path}/a.txt"), parse_source(f"{tmp_path}/a.txt,weight=2")]
    with open_texts(sources, tmp_path / "work") as (texts, _):
        assert [(text.name, text.source.weight) for text in texts] == [("a.txt", 1.0)]
    assert f"Named more than once: {tmp_path}/a.txt. The first mention" in caplog.text


def test_options_stand_behind_a_source_and_win_over_the_defaults(tmp_path):
    (tmp_path / "a.jsonl").touch()
    source = parse_source(
        f"{tmp_path}/*.jsonl,text_column=body,weight=2.5", Source(text_column="x", encoding="latin-1")
    )
    assert source == Source((str(tmp_path / "a.jsonl"),), text_column="body", encoding="latin-1", weight=2.5)
    for name in ("a,b.txt", "c,weight=2.txt"):  # a comma in a file's name is no option
        (tmp_path / name).touch()
        assert parse_source(str(tmp_path / name)).files == (str(tmp_path / name),)
    assert parse_source(f"{tmp_path}/a,b.txt,weight=3").weight == 3
    text = "wikimedia/wikipedia,config=20231101.en,split=train[:1%],streaming=true,weight=0.5"
    expected = Source((), "wikimedia/wikipedia", "20231101.en", "train[:1%]", None, True, "body", weight=0.5)
    assert parse_source(text, Source(text_column="body"), is_dataset=True) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("wieght=2", "no option 'wieght'. Did you mean 'weight'"),
        ("split=train", "no option 'split'"),
        ("weight=2,weight=3", "'weight' is given twice"),
        ("weight=", "'weight' is empty"),
        ("weight=two", "weight=two is not a number"),
        ("weight=0", r"weight=0\.0 is out of range"),
        ("weight=nan", "weight=nan is out of range"),
        ("weight=1001", "out of range.*at most 1000"),
        ("encoding=utf9", "no encoding 'utf9'"),
        ("encoding=base64", "no encoding 'base64'"),
        ("encoding_errors=surrogateescape", "no encoding_errors='surrogateescape'"),
    ],
)
def test_options_that_cannot_be_used_are_refused(tmp_path, options, message):
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match=message):
        parse_source(f"{tmp_path}/a.txt,{options}")
    with pytest.raises(ValueError, match="streaming=maybe is not true or false"):
        parse_source("a/b,streaming=maybe", is_dataset=True)
