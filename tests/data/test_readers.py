import gzip
import hashlib

import pytest
import zstandard

from hf_electra_rtd.data.files import find_files
from hf_electra_rtd.data.readers import read_lines
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
