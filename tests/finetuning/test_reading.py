import csv
import gzip
import hashlib
import io
import json
import zipfile

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_electra_rtd.finetuning.layouts import FileLayout
from hf_electra_rtd.finetuning.reading import file_exists, identify_files, read_rows


def lay_out(format, header=(), skip_broken_rows=False):
    return FileLayout((), format, lambda row, index: None, header, skip_broken_rows)


def read(path, format, **options):
    return list(read_rows(str(path), lay_out(format, **options)))


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_tsv_has_a_row_a_line_whatever_its_marks_and_quotes(tmp_path, mark, newline):
    lines = ["label\ttext", '1\tsay "no', '0\tno" \u2028 \x85 \r said', "", "1\t"]
    path = write(tmp_path, "a.tsv", mark + newline.join(lines))
    assert read(path, "tsv") == [
        ("line 2", {"label": "1", "text": 'say "no'}),
        ("line 3", {"label": "0", "text": 'no" \u2028 \x85 \r said'}),
        ("line 5", {"label": "1", "text": ""}),
    ]


def test_a_missing_header_is_taken_from_the_layout(tmp_path):
    path = write(tmp_path, "a.tsv", "gj04\t1\t\tIt rains.\n")
    (row,) = read(path, "tsv", header=("source", "label", "mark", "text"))
    assert row == ("line 1", {"source": "gj04", "label": "1", "mark": "", "text": "It rains."})


@pytest.mark.parametrize("line", ["0", "0\tx\ty"])
def test_a_line_with_another_number_of_columns_is_named_or_skipped_by_the_layout(tmp_path, line):
    path = write(tmp_path, "a.tsv", f"label\ttext\n1\tfine\n{line}\n1\tgood\n")
    number = line.count("\t") + 1
    with pytest.raises(ValueError, match=rf"a\.tsv, line 3 has {number} columns instead of 2 \(label, text\)"):
        read(path, "tsv")
    assert [row for _, row in read(path, "tsv", skip_broken_rows=True)] == [
        {"label": "1", "text": "fine"},
        None,
        {"label": "1", "text": "good"},
    ]


def test_in_a_file_of_one_column_an_empty_line_is_a_row(tmp_path):
    path = write(tmp_path, "a.tsv", "text\nfirst\n\nthird\n")
    assert [row["text"] for _, row in read(path, "tsv")] == ["first", "", "third"]


CELLS = st.text(st.characters(exclude_characters="\0\ufeff", exclude_categories=["Cs"]), max_size=8)


@given(rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=6))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_written_as_csv_is_read_again_with_the_line_where_it_begins(tmp_path, rows):
    written = io.StringIO(newline="")
    writer = csv.writer(written, quoting=csv.QUOTE_ALL)
    writer.writerow(["a", "b"])
    begins = []
    for row in rows:
        so_far = written.getvalue().replace("\r\n", "\n").replace("\r", "\n")
        begins.append(f"line {so_far.count(chr(10)) + 1}")
        writer.writerow(row)
    path = write(tmp_path, "a.csv", written.getvalue())
    assert read(path, "csv") == [(begin, {"a": a, "b": b}) for begin, (a, b) in zip(begins, rows, strict=True)]


def test_a_csv_field_may_be_long_and_the_limit_of_the_process_stays(tmp_path):
    before = csv.field_size_limit()
    path = write(tmp_path, "a.csv", "text,label\n" + "x" * 200_000 + ",1\n")
    assert len(read(path, "csv")[0][1]["text"]) == 200_000
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('text,label\nfine,1\n"never closed,0\n', r"line 3 is not CSV"),
        ("text,label\nfine,1\nwell, well,0\n", r"line 3 has 3 columns instead of 2 .*Quote fields that hold commas"),
        ("text,text\nfine,1\n", r"a\.csv: the header names 'text' more than once"),
        ("text,label\n", r"a\.csv has no row"),
    ],
)
def test_a_csv_that_cannot_be_used_is_refused_by_its_line(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path, "a.csv", content), "csv")


def test_json_is_read_as_lines_or_as_one_array(tmp_path):
    records = [{"text": "雨", "label": 1}, {"text": "two\nlines", "tags": ["O"]}]
    lines = "\r\n\r\n".join(json.dumps(record, ensure_ascii=False) for record in records)
    assert read(write(tmp_path, "a.json", lines), "json_lines") == [("line 1", records[0]), ("line 3", records[1])]
    array = json.dumps(records, indent=1)
    assert read(write(tmp_path, "b.json", array), "json_lines") == [("record 1", records[0]), ("record 2", records[1])]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "cut', r"line 2 is not JSON: .* \(column 10\)"),
        ("3", r"line 2: an object is expected, not 3"),
        ("[" * 100_000, r"line 2 cannot be read as JSON"),
        (r'{"text": "a\ud800"}', r"line 2: the text holds half of a surrogate pair"),
    ],
)
def test_a_bad_line_of_json_is_named(tmp_path, line, message):
    path = write(tmp_path, "a.jsonl", '{"text": "fine \\ud83d\\ude00"}\n' + line)
    with pytest.raises(ValueError, match=rf"a\.jsonl, {message}"):
        read(path, "json_lines")


def test_a_bad_record_of_a_json_array_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"a\.json, record 2: an object is expected, not \"x\""):
        read(write(tmp_path, "a.json", '[{}, "x"]'), "json_lines")
    with pytest.raises(ValueError, match=r"a\.json is not JSON: .*\(line 2, column \d\)"):
        read(write(tmp_path, "a.json", "[{},\n{}"), "json_lines")


def squad(*questions):
    return json.dumps(
        {"version": "x", "data": [{"title": "t", "paragraphs": [{"context": "It rains.", "qas": questions}]}]}
    )


def test_squad_gives_a_row_a_question_and_says_whether_it_is_labelled(tmp_path):
    answer = {"text": "rains", "answer_start": 3}
    questions = [
        {"id": "a", "question": "Q1", "answers": [{**answer, "id": "1"}, answer]},
        {"id": "b", "question": "Q2", "answers": [], "is_impossible": True, "plausible_answers": [answer]},
        {"id": "c", "question": "Q3"},
    ]
    rows = read(write(tmp_path, "a.json", squad(*questions)), "squad")
    assert [place for place, _ in rows] == ["question 1 (a)", "question 2 (b)", "question 3 (c)"]
    common = {"context": "It rains."}
    assert [row for _, row in rows] == [
        {**common, "id": "a", "question": "Q1", "answers": [answer] * 2, "is_impossible": False, "is_labelled": True},
        {**common, "id": "b", "question": "Q2", "answers": [], "is_impossible": True, "is_labelled": True},
        {**common, "id": "c", "question": "Q3", "answers": [], "is_impossible": False, "is_labelled": False},
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (squad({"id": "a"}), r"question 1 \(a\): 'question' is missing\. Keys: id"),
        (
            squad({"id": "a", "question": "Q", "answers": [{"text": "x"}]}),
            r"question 1 \(a\): 'answer_start' is missing",
        ),
        (squad({"id": "a", "question": "Q", "answers": "x"}), r"question 1 \(a\): a list is expected, not \"x\""),
        ('{"rows": []}', r"a\.json: 'data' is missing. Keys: rows"),
        ('{"data": [{"title": "t"}]}', r"after question 0: 'paragraphs' is missing"),
        ('{"data": []}', r"a\.json has no row"),
        ('{"data": [', r"a\.json is not JSON"),
    ],
)
def test_squad_that_is_not_of_the_format_is_refused_by_its_question(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path, "a.json", content), "squad")


def test_c3_gives_a_row_a_question_with_the_id_that_there_is(tmp_path):
    labelled = [["A: hi", "B: ho"], [{"question": q, "choice": ["x", "y"], "answer": "y"} for q in "PQ"], "m1-2"]
    unlabelled = [["C"], [{"question": "R", "choice": ["v", "w"], "id": 508}]]
    rows = [row for _, row in read(write(tmp_path, "a.json", json.dumps([labelled, unlabelled])), "c3")]
    common = {"context": ["A: hi", "B: ho"], "choice": ["x", "y"], "answer": "y"}
    assert rows == [
        {**common, "id": "m1-2-0", "question": "P"},
        {**common, "id": "m1-2-1", "question": "Q"},
        {"id": "508", "context": ["C"], "question": "R", "choice": ["v", "w"], "answer": None},
    ]
    with pytest.raises(ValueError, match=r"question 1: 'choice' is missing"):
        read(write(tmp_path, "b.json", '[[["C"], [{"question": "R"}]]]'), "c3")
    with pytest.raises(ValueError, match=r"after question 0: an entry should be a list"):
        read(write(tmp_path, "c.json", '[{"context": []}]'), "c3")


def test_chid_gives_a_row_a_blank_with_the_answer_that_stands_in_another_file(tmp_path):
    candidates = ["a", "b", "c"]
    texts = ["x #idiom01# y #idiom02#", "none", "#idiom03#"]
    path = write(tmp_path, "train.json", json.dumps({"content": texts, "candidates": candidates}))
    expected = [
        {"id": tag, "content": content, "candidates": candidates, "answer": None}
        for tag, content in (("#idiom01#", texts[0]), ("#idiom02#", texts[0]), ("#idiom03#", texts[2]))
    ]
    assert [row for _, row in read(path, "chid")] == expected
    assert list(identify_files(str(path), lay_out("chid"))) == ["train.json"]
    write(tmp_path, "train_answer.json", '{"#idiom01#": 2, "#idiom02#": 0, "#idiom03#": 1}')
    for row, answer in zip(expected, (2, 0, 1), strict=True):
        row["answer"] = answer
    assert read(path, "chid") == [(f"line 1 ({row['id']})", row) for row in expected]
    assert list(identify_files(str(path), lay_out("chid"))) == ["train.json", "train_answer.json"]
    write(tmp_path, "train_answer.json", '{"#idiom01#": 2}')
    with pytest.raises(ValueError, match=r"train_answer\.json: '#idiom02#' is missing"):
        read(path, "chid")


def test_conll_gives_a_row_a_sentence(tmp_path):
    content = "-DOCSTART- -X- O\n\nIt PRP B-NP\nrains  VBZ B-VP\r\n\n\n\u3000\tX\tO\n"
    assert read(write(tmp_path, "a.txt", content), "conll") == [
        ("line 3", {"words": ["It", "rains"], "tags": ["B-NP", "B-VP"]}),
        ("line 7", {"words": ["\u3000"], "tags": ["O"]}),
    ]
    assert read(write(tmp_path, "b.txt", "It\nrains"), "conll") == [
        ("line 1", {"words": ["It", "rains"], "tags": None})
    ]
    with pytest.raises(ValueError, match=r"c\.txt, line 3 has 2 columns, the lines before 3"):
        read(write(tmp_path, "c.txt", "It PRP B-NP\n\nrains VBZ\n"), "conll")


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
def test_a_compressed_file_is_read_and_refused_when_it_was_cut_off(tmp_path, suffix, compress):
    packed = compress(("a\tb\n" + "1\t2\n" * 5000).encode())
    path = write(tmp_path, f"a.tsv{suffix}", packed)
    assert len(read(path, "tsv")) == 5000
    assert identify_files(str(path), lay_out("tsv")) == {f"a.tsv{suffix}": hashlib.sha256(packed).hexdigest()}
    path.write_bytes(packed[:-3])
    with pytest.raises(ValueError, match="was cut off or is damaged"):
        read(path, "tsv")


def test_a_member_of_a_zip_archive_is_read_as_if_that_were_a_directory(tmp_path):
    content = b"It B-NP\n"
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a/train.txt", content)
    path = str(tmp_path / "a.zip" / "a" / "train.txt")
    assert read(path, "conll") == [("line 1", {"words": ["It"], "tags": ["B-NP"]})]
    assert identify_files(path, lay_out("conll")) == {"a.zip/a/train.txt": hashlib.sha256(content).hexdigest()}
    assert file_exists(path)
    assert not file_exists(str(tmp_path / "a.zip" / "train.txt"))
    with pytest.raises(ValueError, match=r"a\.zip has no member 'train\.txt'\. Has: a/train\.txt"):
        read(tmp_path / "a.zip" / "train.txt", "conll")
    whole = (tmp_path / "a.zip").read_bytes()
    for damaged in (whole[:-10], whole.replace(content, b"XX B-NP\n")):
        (tmp_path / "a.zip").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a\.zip was cut off or is damaged"):
            read(path, "conll")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"a\.tsv is empty"),
        (b"\xef\xbb\xbf\n\n", r"a\.tsv is empty"),
        (b"text\nf\xfcnf\n", r"a\.tsv is not UTF-8: byte 6 is 0xfc\. Convert"),
        ("text\n雨\n".encode("utf-16"), r"a\.tsv is not UTF-8: byte 0 is 0xff\. It begins as UTF-16 does"),
        (b"text\na\0b\n", r"a\.tsv, line 2: a NUL character"),
        (b"PK\x03\x04rest", r"a\.tsv looks like a zip archive"),
    ],
)
def test_a_file_that_is_no_text_is_told_so(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path, "a.tsv", content), "tsv")


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none\.tsv cannot be read: No such file"):
        read(tmp_path / "none.tsv", "tsv")


@pytest.mark.parametrize("format", ["tsv", "csv", "json_lines", "squad", "c3", "chid", "conll"])
@given(content=st.binary(max_size=40) | st.text(alphabet='[]{}":,ab\n\t1', max_size=40).map(str.encode))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_a_file_holds_it_gives_rows_or_an_error_that_names_it(tmp_path, format, content):
    path = write(tmp_path, "any.txt", content)
    rows, refusal = [], None
    try:
        rows = read(path, format)
    except ValueError as error:
        refusal = error
    assert bool(rows) != bool(refusal)
    assert refusal is None or (type(refusal) is ValueError and "any.txt" in str(refusal))
    assert all(isinstance(row, dict) for _, row in rows)


def test_a_column_that_is_not_there_is_told_with_those_that_are(tmp_path):
    (_, row), *_ = read(write(tmp_path, "a.tsv", "sentence1\tlabel\nx\t1\n"), "tsv")
    with pytest.raises(
        ValueError, match=r"no column 'Sentence'\. Columns: sentence1, label\. Did you mean 'sentence1'\?"
    ):
        row["Sentence"]
    assert row.get("Sentence") is None
