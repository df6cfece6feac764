import errno
import gzip
import hashlib
import io
import json
import os
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_electra_rtd.data import files
from hf_electra_rtd.data.files import find_files
from hf_electra_rtd.data.readers import MAX_LINE, Reading, read_lines
from hf_electra_rtd.data.sources import drop_repeated_files, parse_file_source
from hf_electra_rtd.data.texts import Corpus, Counts


TEXT = "First line.\n  Second — line.  \n\n\nAnother document.\r\n"
LINES = ["First line.", "Second — line.", "", "", "Another document.", ""]


def open_corpus(*paths):
    return Corpus([parse_file_source(str(path)) for path in paths], paths[0].parent, disable_progress=True)


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".txt.zst"])
def test_text_is_read_from_any_container(tmp_path, suffix):
    path = tmp_path / f"corpus{suffix}"
    compress = {".txt": bytes, ".txt.gz": gzip.compress, ".txt.zst": zstandard.compress}[suffix]
    path.write_bytes(compress(TEXT.encode()))
    assert list(read_lines(str(path))) == LINES
    corpus = open_corpus(path)
    assert corpus.texts[0].name == f"corpus{suffix}"
    assert corpus.counts() == [Counts(len("First line.Second — line.Another document.".encode()) + 3, 3, 2)]
    assert corpus.identities()[0]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("suffix", [".txt.gz", ".txt.zst"])
def test_a_compressed_file_that_was_cut_off_is_refused(tmp_path, suffix):
    path = tmp_path / f"corpus{suffix}"
    compress = {".txt.gz": gzip.compress, ".txt.zst": zstandard.compress}[suffix]
    whole = compress("".join(f"line {i}\n" for i in range(100_000)).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="was cut off or is damaged"):
        list(read_lines(str(path)))


def test_zst_frames_one_after_another_are_one_text(tmp_path):
    path = tmp_path / "corpus.txt.zst"
    path.write_bytes(b"".join(zstandard.compress(f"part {i}\n".encode() * 50_000) for i in range(3)))
    lines = list(read_lines(str(path)))
    assert len(lines) == 150_001
    assert lines[49_999:50_001] == ["part 0", "part 1"]


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "bom.txt"
    path.write_text("word", encoding="utf-8-sig")
    assert list(read_lines(str(path))) == ["word", ""]


def test_bytes_that_are_not_utf8_are_named(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"eins\nzwei drei vier f" + b"\xfcnf\n")
    with pytest.raises(ValueError, match=r"latin\.txt is not UTF-8: byte 21 is 0xfc"):
        list(read_lines(str(path)))


@pytest.mark.parametrize("content", ["", "\n\n  \n"])
def test_a_file_without_text_is_refused(tmp_path, content):
    path = tmp_path / "empty.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"empty\.txt holds no text"):
        open_corpus(path).counts()


def test_globs_are_expanded_in_order_and_bad_names_refused(tmp_path):
    for name in ("b.txt", "a.txt.gz", "c.pdf"):
        (tmp_path / name).touch()
    sources = [parse_file_source(str(tmp_path / pattern)) for pattern in ("b*", "*.txt*", "b.txt")]
    found = [file for source in drop_repeated_files(sources) for file in source.files]
    assert [name.rpartition("/")[2] for name in found] == ["b.txt", "a.txt.gz"]  # each file once
    with pytest.raises(ValueError, match="No file matches"):
        find_files(str(tmp_path / "x*.txt"))
    with pytest.raises(ValueError, match=r"c\.pdf is neither text"):
        find_files(str(tmp_path / "*"))


def compressed(content, suffix):
    if suffix.endswith(".gz"):
        return gzip.compress(content, mtime=0)
    return zstandard.compress(content) if suffix.endswith(".zst") else content


def write_parquet(path, table, **options):
    buffer = io.BytesIO()
    pq.write_table(pa.table(table), buffer, **options)
    path.write_bytes(compressed(buffer.getvalue(), path.name))


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".parquet.gz", ".parquet.zst"])
def test_a_record_is_a_document_whose_blank_lines_part_paragraphs(tmp_path, suffix):
    path = tmp_path / f"corpus{suffix}"
    bodies = ["One.\n\n Two. \r\nThree.", None, "", "Four —\u2028five."]
    if "parquet" in suffix:
        write_parquet(path, {"body": bodies, "n": [1, 2, 3, 4]}, row_group_size=2)
    else:
        records = "\n\n".join(json.dumps({"body": body, "n": 10**30}) for body in bodies)
        path.write_bytes(compressed(records.encode(), suffix))
    assert list(read_lines(str(path), Reading("body"))) == ["One.", "Two.", "Three.", "", "Four —\u2028five.", ""]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "latin-1", "cp1252", "utf-8-sig"])
def test_any_encoding_is_read_with_every_kind_of_line_end(tmp_path, encoding):
    path = tmp_path / "text.txt"
    path.write_bytes("Grüße\rzwei\r\n\r\ndrei\n".encode(encoding))
    assert list(read_lines(str(path), Reading(encoding=encoding))) == ["Grüße", "zwei", "", "drei", ""]


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=80), st.integers(1, 7))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_where_chunks_end_does_not_matter(tmp_path, monkeypatch, text, size):
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode())
    whole = list(read_lines(str(path)))
    monkeypatch.setattr(files, "CHUNK_SIZE", size)
    assert list(read_lines(str(path))) == whole
    expected = [
        line.strip() for line in text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    ]
    assert [line for line in whole if line] == [line for line in expected if line]


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030", "utf-16", "shift_jis"])
def test_the_byte_that_is_named_does_not_depend_on_chunks(tmp_path, monkeypatch, encoding):
    path = tmp_path / "text.txt"
    text = "\u6c34" * 50
    bad = {"utf-8": b"\xff", "utf-16": b"\x00\xdc", "gb18030": b"\xff", "shift_jis": b"\xff"}[encoding]
    path.write_bytes(text.encode(encoding) + bad + "\u6c34".encode(encoding))
    position = len(text.encode(encoding))
    for size in (1 << 20, 1, 7):
        monkeypatch.setattr(files, "CHUNK_SIZE", size)
        with pytest.raises(ValueError, match=f"byte {position} is 0x{bad[0]:02x}.*--encoding_errors replace"):
            list(read_lines(str(path), Reading(encoding=encoding)))


def test_bytes_that_do_not_fit_can_be_replaced_or_left_out(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"f\xfcnf")
    assert list(read_lines(str(path), Reading(encoding_errors="replace"))) == ["f\ufffdnf", ""]
    assert list(read_lines(str(path), Reading(encoding_errors="ignore"))) == ["fnf", ""]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoding": "utf-9"}, "no encoding 'utf-9'"),
        ({"encoding": "base64"}, "no encoding 'base64'"),
        ({"encoding_errors": "surrogateescape"}, "no encoding_errors='surrogateescape'.*strict, replace, ignore"),
    ],
)
def test_encodings_that_there_are_not_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Reading(**options)


def test_nul_characters_are_refused_with_their_line_and_the_likely_encoding(tmp_path):
    path = tmp_path / "nul.txt"
    path.write_bytes(b"one\r\ntwo\nthr\0ee\n")
    with pytest.raises(ValueError, match=r"nul\.txt, line 3: .*NUL.*--encoding utf-16"):
        list(read_lines(str(path)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", gzip.compress(b"x", mtime=0), r"looks like gzip.*\(\.gz\)"),
        ("a.txt.gz", zstandard.compress(b"x"), r"looks like Zstandard.*\(\.zst\)"),
        ("a.jsonl", b"PAR1\x15\x00", r"looks like Parquet.*\(\.parquet\)"),
        ("a.txt.gz", gzip.compress(gzip.compress(b"x", mtime=0), mtime=0), "looks like gzip"),
        ("a.txt", b"%PDF-1.7 ", "looks like a PDF document.*extract its text"),
        ("a.txt", b"\x7fELF\x02", "looks like a program"),
        ("a.txt.zst", b"PK\x03\x04", "looks like a zip archive"),
        ("a.txt", b"\x89PNG\r\n", "looks like a PNG image"),
    ],
)
def test_a_binary_file_is_told_by_what_it_looks_like(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        list(read_lines(str(tmp_path / name)))


@pytest.mark.parametrize(
    ("name", "message", "limit"),
    [
        ("long.txt.gz", r"line 2: it has more than 8,388,608 characters\. Break it into lines", 32),
        ("long.jsonl.zst", r"line 2: it has more than 67,108,864 characters\. Split the document into several", 160),
    ],
)
def test_a_line_of_200_mb_is_refused_in_little_memory(tmp_path, name, message, limit):
    path = tmp_path / name
    with gzip.open(path, "wb", 1) if name.endswith(".gz") else zstandard.open(path, "wb") as file:
        file.write(b"short\n" if "txt" in name else b'{"text": "short"}\n')
        for _ in range(200):
            file.write(b"x" * 2**20)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=message):
            list(read_lines(str(path)))
        assert tracemalloc.get_traced_memory()[1] < limit * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not a JSON record"),
        ("[1]", "line 2 is a JSON list, not an object"),
        ('{"body": "x", "title": "y"}', "line 2 has no column 'text'.*--text_column.*body, title"),
        ('{"text": 3}', "line 2: 'text' is a int, not text"),
        (r'{"text": "a\u0000b"}', "line 2: the text holds a NUL character"),
        (r'{"text": "a\ud800b"}', r"line 2: the text holds half of a surrogate pair \(U\+D800\)"),
        ("[" * 100_000, "line 2 is not a JSON record"),
        ('{"text": ' + "9" * 5000 + "}", "line 2 is not a JSON record"),
    ],
)
def test_a_record_that_cannot_be_used_is_named_by_its_line(tmp_path, line, message):
    path = tmp_path / "corpus.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(ValueError, match=rf"corpus\.jsonl, {message}"):
        list(read_lines(str(path)))


def test_a_parquet_file_that_cannot_be_used_is_named(tmp_path):
    path = tmp_path / "corpus.parquet"
    write_parquet(path, {"body": ["x"], "n": [1]})
    with pytest.raises(ValueError, match=r"corpus\.parquet has no column 'text'.*--text_column.*body, n"):
        list(read_lines(str(path)))
    with pytest.raises(ValueError, match="column 'n' holds int64, not text"):
        list(read_lines(str(path), Reading("n")))
    whole = path.read_bytes()
    for kept in (0, 3, 4, 20, len(whole) - 1):
        path.write_bytes(whole[:kept])
        with pytest.raises(ValueError, match=r"corpus\.parquet is no whole Parquet file"):
            list(read_lines(str(path), Reading("body")))
    with pytest.raises(ValueError, match=r"there\.parquet cannot be read: No such file"):
        list(read_lines(str(tmp_path / "there.parquet")))


def assert_clean_or_named(path, reading):
    lines, refusal = [], None
    try:
        lines.extend(read_lines(str(path), reading))
    except ValueError as error:
        refusal = error
    assert refusal is None or (type(refusal) is ValueError and path.name in str(refusal))
    assert not any(character in line for line in lines for character in "\0\n\r")
    "".join(lines).encode()


KINDS_AND_HEADS = [
    *[(suffix, b"") for suffix in files.TEXT_SUFFIXES],
    (".txt.gz", gzip.compress(b"x", mtime=0)[:10]),
    (".txt.zst", b"\x28\xb5\x2f\xfd"),
    (".jsonl", b'{"text": "'),
    (".parquet", b"PAR1"),
]


@pytest.mark.parametrize(("suffix", "head"), KINDS_AND_HEADS)
@given(content=st.binary(max_size=200), encoding=st.sampled_from(["utf-8", "utf-16", "utf-7", "gb18030", "latin-1"]))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arbitrary_bytes_give_clean_lines_or_an_error_that_names_the_file(tmp_path, suffix, head, content, encoding):
    path = tmp_path / f"any{suffix}"
    path.write_bytes(head + content)
    assert_clean_or_named(path, Reading(encoding=encoding))


@given(place=st.integers(0, 10**6), value=st.integers(0, 255))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_altered_parquet_file_gives_clean_lines_or_an_error_that_names_it(tmp_path, place, value):
    path = tmp_path / "any.parquet"
    write_parquet(path, {"text": [f"line {number}" for number in range(50)]})
    content = bytearray(path.read_bytes())
    content[place % len(content)] = value
    path.write_bytes(content)
    assert_clean_or_named(path, Reading())


def test_a_directory_is_searched_and_what_is_no_text_passed_over(tmp_path, caplog):
    caplog.set_level("INFO", logger="hf_electra_rtd")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "deep" / "loop").symlink_to(tmp_path)
    for name in ("b.txt", "deep/er/a.JSONL.gz", ".hidden/x.txt", ".y.txt", "deep/c.pdf", "d.blocks"):
        (tmp_path / name).touch()
    assert find_files(str(tmp_path)) == [str(tmp_path / "b.txt"), str(tmp_path / "deep/er/a.JSONL.gz")]
    assert "3 files of other kinds are passed over" in caplog.text
    (tmp_path / "b.txt").unlink()
    (tmp_path / "deep/er/a.JSONL.gz").unlink()
    with pytest.raises(ValueError, match=r"holds no text file.*block files have to be named"):
        find_files(str(tmp_path))


def test_a_record_may_be_longer_than_a_line_but_no_line_inside_it(tmp_path):
    path = tmp_path / "long.jsonl"
    line = "x" * (MAX_LINE - 1)
    path.write_text(json.dumps({"text": f"{line}\n{line}"}))
    assert [len(line) for line in read_lines(str(path))] == [MAX_LINE - 1, MAX_LINE - 1, 0]
    path.write_text(json.dumps({"text": line + "yz"}))
    with pytest.raises(ValueError, match=r"long\.jsonl, line 1: a line has more than 8,388,608.*Break it into lines"):
        list(read_lines(str(path)))


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_file_that_begins_as_utf16_does_is_told_so(tmp_path, encoding):
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeffone".encode(encoding))
    with pytest.raises(ValueError, match=r"text\.txt is not UTF-8: byte 0 is 0xf[ef]\. .*say --encoding utf-16\."):
        list(read_lines(str(path)))
    assert list(read_lines(str(path), Reading(encoding="utf-16"))) == ["one", ""]


def test_a_directory_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.txt").touch()
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("deep"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ValueError, match=r"The directory .*deep cannot be read: Permission denied"):
        find_files(str(tmp_path))
