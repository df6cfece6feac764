import gzip
import io
import json
from collections import Counter
from dataclasses import replace
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from hf_electra_rtd.data import reader, text
from hf_electra_rtd.data.preparation import prepare_blocks
from hf_electra_rtd.data.text import (
    Source,
    find_files,
    open_texts,
    parse_sources,
    read_text,
    scan,
)
from tests.conftest import make_text


def parquet(**columns):
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


LINES = ["Grüße", "zwei", "", "— drei\u2028\x0b\x85.", ""]
PARQUET = parquet(body=["x"], n=[1])


def compressed(content, suffix):
    if suffix.endswith(".gz"):
        return gzip.compress(content, mtime=0)
    return zstandard.compress(content) if suffix.endswith(".zst") else content


def lines_of(path, **options):
    return list(read_text(Source(str(path), **options)))


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
    sources = parse_sources(f"{tmp_path}/a.*,text_column=body") + parse_sources(f"{tmp_path}/b.txt,encoding=utf-16")
    for source in sources:
        assert [*filter(None, read_text(source))] == ["One.", "Two.", "Three.", "Four —\u2028five."]
    with open_texts(sources, tmp_path / "work") as texts:
        scans = scan(texts)
    facts = [(facts["sha256"], facts["num_lines"], facts["num_documents"]) for facts in scans]
    assert facts == [(scans[0]["sha256"], 4, 2)] * 8


@pytest.mark.parametrize("suffix", [".txt.gz", ".txt.zst"])
def test_parts_compressed_one_after_another_are_one_text_and_a_cut_off_one_is_refused(tmp_path, suffix):
    path = tmp_path / f"corpus{suffix}"
    path.write_bytes(b"".join(compressed(f"part {i}\n".encode() * 50_000, suffix) for i in range(3)))
    assert Counter(lines_of(path)) == {"part 0": 50_000, "part 1": 50_000, "part 2": 50_000, "": 1}
    whole = compressed("".join(f"line {i}\n" for i in range(100_000)).encode(), suffix)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"corpus\.txt.* cannot be read"):
        lines_of(path)


@pytest.mark.parametrize(
    ("content", "options", "lines"),
    [
        *(
            ("Grüße\r  zwei \r\n\r\n\n— drei\u2028\x0b\x85.\n".encode(encoding), {"encoding": encoding}, LINES)
            for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "gb18030")
        ),
        (b"f\xfcnf", {"encoding": "latin-1"}, ["fünf", ""]),
        (b"f\xfcnf", {"encoding_errors": "replace"}, ["f\ufffdnf", ""]),
        (b"f\xfcnf", {"encoding_errors": "ignore"}, ["fnf", ""]),
    ],
)
def test_any_encoding_is_read_with_every_kind_of_line_end(tmp_path, content, options, lines):
    (tmp_path / "text.txt").write_bytes(content)
    assert lines_of(tmp_path / "text.txt", **options) == lines


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"eins\r\nzwei\nf\xfcnf\n", "line 3 .*encoding"),
        ("a.txt", b"x\n" * 9000 + b"\xff", "line 9001 .*UTF-8"),
        ("a.txt", b"one\r\ntwo\nthr\0ee\n", "line 3 .*encoding"),
        ("a.txt.gz", b"text", "cannot be read"),
        ("a.jsonl", b'{"text": "x"}\n{', "line 2 .*JSON"),
        ("a.jsonl", b'"a text"', "line 1 .*text_column"),
        ("a.jsonl", b'{"body": "x", "n": 1}', "line 1 .*body, n.*text_column"),
        ("a.jsonl", b'{"text": 3}', "line 1 .*int"),
        ("a.jsonl", rb'{"text": "a\u0000b"}', "line 1 .*NUL"),
        ("a.jsonl", rb'{"text": "a\ud800b"}', "line 1 .*surrogate"),
        ("a.jsonl", b"[" * 100_000, "line 1 .*JSON"),
        *(("a.parquet", PARQUET[:kept], "cannot be read") for kept in (0, 3, 20, len(PARQUET) - 1)),
        ("a.parquet", PARQUET, "row 1 .*'text'.*body, n"),
        ("a.txt,wieght=2", b"", "'wieght'.*'weight'"),
        ("a.txt,weight=two", b"", "weight=two"),
        ("a.txt,weight=0", b"", "weight is 0"),
        ("a.txt,encoding=utf9", b"", "a.txt .*utf9"),
        ("a/b,streaming=maybe", None, "streaming=maybe"),
        ("a.blocks,weight=2", b"", "a.blocks .*weight"),
    ],
)
def test_what_cannot_be_read_is_named_with_the_remedy(tmp_path, monkeypatch, name, content, message):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / name.partition(",")[0]).write_bytes(content)
    with pytest.raises(ValueError, match=message if "," in name else rf"^{name}[, ].*{message}"):
        [list(read_text(source)) for source in parse_sources(name, is_dataset=content is None)]


# ---- Sources ----


def test_texts_are_found_and_what_is_none_and_the_output_among_them_passed_over_in_one_warning(tmp_path, caplog):
    output = [f"out/tokenizer/{name}" for name in ("vocab.txt", "tokenizer_config.json")]
    for name in (*output, "a.txt", "deep/er/a[1].JSONL.gz", ".hidden/x.txt", ".y.txt", "deep/c.pdf", "d.blocks"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "up").symlink_to(".")  # a link that leads in circles
    for pattern, found, passed in (
        ("", "a.txt deep/er/a[1].JSONL.gz", "d.blocks deep/c.pdf out/tokenizer up"),
        ("*.txt", "a.txt", ""),
        ("d*.blocks", "d.blocks", ""),
    ):
        caplog.clear()
        assert find_files(str(tmp_path / pattern)) == [str(tmp_path / name) for name in found.split()]
        assert caplog.messages == [
            f"Passed over, because they are not text: {', '.join(str(tmp_path / name) for name in passed.split())}."
        ] * bool(passed)
    (tmp_path / "prepared").mkdir()
    (tmp_path / "prepared" / "train.blocks").touch()
    for wrong, message in (
        ("[xo]*/*/*.txt", "No file matches"),
        ("deep/*.pdf", r"c\.pdf is neither text nor"),
        ("prepared", r"Name one file: .*train\.blocks"),
    ):
        with pytest.raises(ValueError, match=message):
            find_files(str(tmp_path / wrong))


def test_a_directory_of_shards_is_shards_whatever_text_lies_beside_them(tmp_path):
    for name in ("corpus/a.txt", "corpus/index.json", "shards/0.blocks", "shards/index.json", "shards/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert find_files(str(tmp_path / "shards")) == [str(tmp_path / "shards")]
    for shard in ("shards/0.blocks", "shards/*.blocks"):  # its header describes no text, or that of all shards
        with pytest.raises(ValueError, match="one of several shards"):
            find_files(str(tmp_path / shard))
    text = str(tmp_path / "corpus/a.txt")  # beside text, index.json is not an index of shards
    assert find_files(str(tmp_path / "corpus")) == find_files(str(tmp_path)) == [text]


def test_options_stand_behind_a_source_and_win_over_the_defaults(tmp_path):
    (tmp_path / "a.jsonl").touch()
    (source,) = parse_sources(f"{tmp_path}/*.jsonl,text_column=body,weight=2.5", text_column="x", encoding="latin-1")
    assert source == Source(str(tmp_path / "a.jsonl"), text_column="body", encoding="latin-1", weight=2.5)
    for name in ("a,b.txt", "c,weight=2.txt"):  # a comma in a file's name starts no option
        (tmp_path / name).touch()
        assert parse_sources(str(tmp_path / name)) == [Source(str(tmp_path / name))]
    assert parse_sources(f"{tmp_path}/a,b.txt,weight=3")[0].weight == 3
    text = "wikimedia/wikipedia,config=20231101.en,split=train[:1%],streaming=true,weight=0.5"
    expected = Source("wikimedia/wikipedia", True, "20231101.en", "train[:1%]", None, True, "body", weight=0.5)
    assert parse_sources(text, is_dataset=True, text_column="body") == [expected]


# ---- Datasets ----


TEXTS = [make_text(1, seed) for seed in range(30)]


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A local directory that `datasets` loads like a dataset of the Hub."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    (tmp_path / "letters").mkdir()
    pq.write_table(pa.table({"body": [*TEXTS, None, ""], "year": [1900] * 32}), tmp_path / "letters/train.parquet")
    return str(tmp_path / "letters")


def prepare(source, tokenizer, directory, **options):
    return prepare_blocks([source], tokenizer, directory, 32, disable_progress=True, **options)[0]


@pytest.mark.parametrize("kind", ["loaded", "streamed", "saved", "saved splits"])
def test_the_documents_of_a_dataset_are_its_rows(dataset, tmp_path, tokenizer, kind):
    from datasets import DatasetDict, load_dataset

    source = Source(dataset, True, streaming=kind == "streamed", text_column="body")
    if "saved" in kind:
        loaded = load_dataset(dataset, split="train")
        saved = DatasetDict({"train": loaded, "test": loaded.select([0])}) if "splits" in kind else loaded
        saved.save_to_disk(tmp_path / "saved" / "letters")
        (source,) = parse_sources(f"{tmp_path}/saved/letters,text_column=body")
        for other in ({"config": "x"}, {"revision": "x"}, *([] if "splits" in kind else [{"split": "test"}])):
            with pytest.raises(ValueError, match="a saved dataset has no config"):
                prepare(replace(source, **other), tokenizer, tmp_path / "made")
    (tmp_path / "same.txt").write_text("\n\n".join(TEXTS))
    made = prepare(source, tokenizer, tmp_path / "made")
    expected = prepare(tmp_path / "same.txt", tokenizer, tmp_path / "expected")
    assert made.header.sha256 == expected.header.sha256
    assert made.header.statistics == expected.header.statistics
    (described,) = made.header.sources
    assert (described["name"], described["split"]) == ("letters", "train")
    assert described["sha256"] == expected.header.sources[0]["sha256"]
    assert str(tmp_path) not in str(made.header)
    assert {path.name for path in (tmp_path / "made").iterdir()} <= {".lock", "train.blocks"}  # no stream is left


def test_a_stream_is_downloaded_once_for_all_passes(dataset, tmp_path, tokenizer, monkeypatch):
    import datasets

    load = datasets.load_dataset
    download = Mock(side_effect=lambda _, *args, revision, **options: load(dataset, *args, **options))
    monkeypatch.setattr(datasets, "load_dataset", download)
    source = Source("owner/letters", True, streaming=True, text_column="body", weight=2.5, revision="main")
    made = prepare(source, tokenizer, tmp_path / "made", held_out_share=0.1, drop_duplicates="exact")
    assert download.call_count == 1
    assert made.header.sources[0].items() >= {"name": "owner/letters", "revision": "main", "weight": 2.5}.items()


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text_column": "text"}, r"no text in a column 'text'.*there are: body, year.*text_column"),
        ({"text_column": "year"}, r"row 1 has no text in a column 'year' \(it is int\)"),
        ({"split": "test"}, "letters cannot be read: .*split.*Check its id, config, split"),
        ({"config": "20th"}, "letters cannot be read: .*20th.*Check its id, config"),
        ({"place": "owner/name"}, "owner/name cannot be read: .*HF_HUB_OFFLINE.*hf auth login"),
    ],
)
def test_a_dataset_that_cannot_be_used_is_named(dataset, tmp_path, tokenizer, streaming, options, message):
    source = Source(**{"place": dataset, "is_dataset": True, "streaming": streaming, "text_column": "body", **options})
    with pytest.raises(ValueError, match=message):
        prepare(source, tokenizer, tmp_path / "made")


def test_a_connection_that_breaks_leaves_nothing(dataset, tmp_path, tokenizer, monkeypatch):
    def broken(_):
        yield {"body": "one"}
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(text, "_load_dataset", broken)
    with pytest.raises(ValueError, match=r"letters cannot be read: reset by peer\. .*network"):
        prepare(Source(dataset, True, streaming=True, text_column="body"), tokenizer, tmp_path / "made")
    assert [path.name for path in (tmp_path / "made").iterdir()] == [".lock"]


def test_lines_end_with_a_line_feed_alone_also_in_a_compressed_file(tmp_path):
    (tmp_path / "a.txt").write_bytes(text := "\ufeffone\rtwo\r\nthree\u2028\n\nfour".encode())
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text))
    for name in ("a.txt", "a.txt.gz"):
        assert list(reader.read_lines(tmp_path / name)) == ["one\rtwo", "three\u2028", "", "four"]
