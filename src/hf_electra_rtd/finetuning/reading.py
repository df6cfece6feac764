"""From a file of a task to its rows: a dict each, with its place in the file for error messages.

A file is read as a whole: the largest of the benchmarks have about 100 MB.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf_electra_rtd.data.files import hash_file, naming_errors, read_chunks
from hf_electra_rtd.finetuning.layouts import FileFormat, FileLayout


BLANK_TAG = re.compile(r"#idiom\d+#")  # of ChID

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_MOST_NAMES = 30  # in a message
_DOCUMENT_START = "-DOCSTART-"  # CoNLL-2003: begins a document, and is no word


class Row(dict[str, Any]):
    """A row by its columns. Where it has no column `name`, `row["name"]` raises a ValueError that says which there
    are; `row.get("name")` gives None, as of any dict."""

    def __missing__(self, column: str) -> Any:
        raise ValueError(f"there is no column {column!r}. {describe_known(column, self, 'Columns')}")


def describe_known(name: str, known: Iterable[str], what: str) -> str:
    """What there is where an unknown name was given: `Columns: text, label. Did you mean 'text'?`"""
    names = [str(one) for one in known]
    told = ", ".join(names[:_MOST_NAMES]) or "none"
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    by_lower = {one.lower(): one for one in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    hint = f" Did you mean {by_lower[close[0]]!r}?" if close and by_lower[close[0]] != name else ""
    return f"{what}: {told}{more}.{hint}"


def read_rows(path: str, layout: FileLayout) -> Iterator[tuple[str, Row | None]]:
    """The rows of a file, each after its place.

    Args:
        path: of a file in UTF-8, plain or compressed (`.gz`, `.zst`), or of a member of a zip archive, written as if
            the archive were a directory: `conll2000.zip/conll2000/train.txt`.
        layout: its format. The rows have these columns:
            `tsv`, `csv`: those of the header, all of them text.
            `json_lines`: those of the record.
            `squad`: `id`, `question`, `context`, `answers` (a list of `text` and `answer_start`), `is_impossible` (the
            context holds no answer), `is_labelled` (an answer is given, or said not to be there).
            `c3`: `id`, `context` (a list of lines), `question`, `choice` (a list), `answer` (None where it is not
            known).
            `chid`: `id` (the tag of the blank, such as `#idiom000378#`), `content` (the text that it is in),
            `candidates` (a list), `answer` (the index of the right one; None where it is not known).
            `conll`: `words` and `tags`, lists: the first and the last column; without a second one `tags` is None.

    Yields:
        The place (`line 12`, `record 3`, `question 5 (DEV_0)`) and the row; None instead of a row that
        `layout.skip_broken_rows` skips.

    Raises:
        ValueError: for a file that cannot be read, was cut off, is not UTF-8, is empty or has no row; for what is not
            of the format, by file and place.
    """
    text = _read_text(path)
    if not text.strip():
        raise ValueError(f"{path} is empty.")
    empty = True
    for place_and_row in _READERS[layout.format](path, text, layout):
        empty = False
        yield place_and_row
    if empty:
        raise ValueError(f"{path} has no row.")


def file_exists(path: str) -> bool:
    """Whether there is such a file, or such a member of a zip archive.

    Raises:
        ValueError: for an archive that cannot be read.
    """
    archive, member = _split_archive(path)
    if archive is None:
        return os.path.isfile(path)
    with _open_archive(archive) as opened:
        return member in opened.namelist()


def identify_files(path: str, layout: FileLayout) -> dict[str, str]:
    """What tells the content of a file apart, and that of a file of answers that belongs to it.

    Returns:
        From the names, without the directories that they lie in, to the SHA-256 of their bytes on the disk; of a
        member of a zip archive, of the member's own.
    """
    identities = {}
    answers = _answer_file(path)
    for file in [path, answers] if layout.format == "chid" and file_exists(answers) else [path]:
        archive, member = _split_archive(file)
        if archive is None:
            identities[os.path.basename(file)] = hash_file(file)
        else:
            identities[f"{os.path.basename(archive)}/{member}"] = hashlib.sha256(_read_bytes(file)).hexdigest()
    return identities


def _answer_file(path: str) -> str:
    """ChID: the file that has the answers of another one: `train_answer.json` of `train.json`."""
    stem, suffix = os.path.splitext(path)
    return f"{stem}_answer{suffix}"


def _split_archive(path: str) -> tuple[str | None, str]:
    """The zip archive that a path leads into, and the member that the rest of it names."""
    for parent in Path(path).parents:
        if parent.suffix.lower() == ".zip" and parent.is_file():
            return str(parent), Path(path).relative_to(parent).as_posix()
    return None, ""


@contextmanager
def _open_archive(archive: str) -> Iterator[zipfile.ZipFile]:
    with naming_errors(archive):
        try:
            with zipfile.ZipFile(archive) as opened:
                yield opened
        except zipfile.BadZipFile as error:
            raise ValueError(f"{archive} was cut off or is damaged ({error}): fetch it again.") from None
        except (NotImplementedError, RuntimeError) as error:  # a way of packing that is not known; a password
            raise ValueError(f"{archive} cannot be read ({error}): extract it first.") from None


def _read_bytes(path: str) -> bytes:
    archive, member = _split_archive(path)
    if archive is None:
        return b"".join(read_chunks(path))
    with _open_archive(archive) as opened:
        if member not in opened.namelist():
            raise ValueError(f"{archive} has no member {member!r}. {describe_known(member, opened.namelist(), 'Has')}")
        return opened.read(member)


def _read_text(path: str) -> str:
    content = _read_bytes(path)
    try:
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        told = "It begins as UTF-16 does. " if content.startswith(_UTF16_MARKS) else ""
        raise ValueError(
            f"{path} is not UTF-8: byte {error.start} is 0x{content[error.start]:02x}. {told}Convert it to UTF-8."
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"{path}, line {line}: a NUL character: it is a binary file, or in another encoding.")
    return text


def _split_lines(text: str) -> Iterator[str]:
    """Lines by \\n and \\r\\n only: a lone \\r, U+0085 or U+2028 stands inside the sentences of some benchmarks."""
    for line in io.StringIO(text, newline="\n"):
        yield line.removesuffix("\n").removesuffix("\r")


def _read_tsv(path: str, text: str, layout: FileLayout) -> Iterator[tuple[str, Row | None]]:
    rows = ((number, line.split("\t")) for number, line in enumerate(_split_lines(text), 1))
    return _read_table(path, rows, layout)


def _read_csv(path: str, text: str, layout: FileLayout) -> Iterator[tuple[str, Row | None]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[tuple[int, list[str]]] = []
    limit = csv.field_size_limit(max(len(text), 1))  # of the whole process: 131,072 characters by default
    line = 1  # where the row begins: a quoted field may hold line breaks
    try:
        for cells in reader:
            rows.append((line, cells or [""]))
            line = reader.line_num + 1
    except csv.Error as error:
        raise ValueError(f"{path}, line {line} is not CSV ({error}).") from None
    finally:
        csv.field_size_limit(limit)
    return _read_table(path, rows, layout)


def _read_table(
    path: str, rows: Iterable[tuple[int, list[str]]], layout: FileLayout
) -> Iterator[tuple[str, Row | None]]:
    header = list(layout.header)
    for line, cells in rows:
        if not header:
            header = cells
            if repeated := [name for name in dict.fromkeys(header) if header.count(name) > 1]:
                raise ValueError(f"{path}: the header names {', '.join(map(repr, repeated))} more than once.")
        elif len(cells) == len(header):  # in a file of one column, an empty line is a row
            yield f"line {line}", Row(zip(header, cells, strict=True))
        elif cells == [""]:
            continue
        elif layout.skip_broken_rows:
            yield f"line {line}", None
        else:
            remedy = " Quote fields that hold commas." if layout.format == "csv" and len(cells) > len(header) else ""
            raise ValueError(
                f"{path}, line {line} has {len(cells)} columns instead of {len(header)} ({', '.join(header)}).{remedy}"
            )


def _read_json_lines(path: str, text: str, layout: FileLayout) -> Iterator[tuple[str, Row]]:
    records: Iterable[tuple[str, Any]]
    if text.lstrip().startswith("["):
        records = ((f"record {number}", record) for number, record in enumerate(_parse_json(path, text), 1))
    else:
        records = (
            (f"line {number}", _parse_json(f"{path}, line {number}", line))
            for number, line in enumerate(_split_lines(text), 1)
            if line and not line.isspace()
        )
    for place, record in records:
        yield place, Row(_expect(record, dict, f"{path}, {place}"))


def _read_squad(path: str, text: str, layout: FileLayout) -> Iterator[tuple[str, Row]]:
    number = 0
    for article in _member(_parse_json(path, text), "data", list, path):
        for paragraph in _member(article, "paragraphs", list, f"{path}, after question {number}"):
            context = _member(paragraph, "context", str, f"{path}, after question {number}")
            for question in _member(paragraph, "qas", list, f"{path}, after question {number}"):
                number += 1
                where = f"{path}, question {number}"
                id = str(_expect(question, dict, where).get("id", number - 1))
                answers = [
                    {
                        "text": _member(answer, "text", str, f"{where} ({id})"),
                        "answer_start": _member(answer, "answer_start", int, f"{where} ({id})"),
                    }
                    for answer in _expect(question.get("answers", []), list, f"{where} ({id})")
                ]
                impossible = bool(question.get("is_impossible", False))
                yield (
                    f"question {number} ({id})",
                    Row(
                        id=id,
                        question=_member(question, "question", str, f"{where} ({id})"),
                        context=context,
                        answers=answers,
                        is_impossible=impossible,
                        is_labelled=impossible or bool(answers),
                    ),
                )


def _read_c3(path: str, text: str, layout: FileLayout) -> Iterator[tuple[str, Row]]:
    number = 0
    for entry in _expect(_parse_json(path, text), list, path):
        where = f"{path}, after question {number}"
        if not isinstance(entry, list) or len(entry) < 2:
            raise ValueError(f"{where}: an entry should be a list of the context's lines and the questions.")
        context = [_expect(line, str, where) for line in _expect(entry[0], list, where)]
        for index, question in enumerate(_expect(entry[1], list, where)):
            number += 1
            where = f"{path}, question {number}"
            choices = [_expect(choice, str, where) for choice in _member(question, "choice", list, where)]
            # Questions of the test file have an id; elsewhere only the dialogue or text that they are about has one.
            id = str(question.get("id", f"{entry[2]}-{index}" if len(entry) > 2 else number - 1))
            yield (
                f"question {number} ({id})",
                Row(
                    id=id,
                    context=context,
                    question=_member(question, "question", str, where),
                    choice=choices,
                    answer=question.get("answer"),
                ),
            )


def _read_chid(path: str, text: str, layout: FileLayout) -> Iterator[tuple[str, Row]]:
    answer_file = _answer_file(path)
    answers = None
    if file_exists(answer_file):
        answers = _expect(_parse_json(answer_file, _read_text(answer_file)), dict, answer_file)
    for place, record in _read_json_lines(path, text, layout):
        where = f"{path}, {place}"
        candidates = _member(record, "candidates", list, where)
        for content in _member(record, "content", list, where):
            for tag in BLANK_TAG.findall(_expect(content, str, where)):
                answer = None if answers is None else _member(answers, tag, int, answer_file)
                yield f"{place} ({tag})", Row(id=tag, content=content, candidates=candidates, answer=answer)


def _read_conll(path: str, text: str, layout: FileLayout) -> Iterator[tuple[str, Row]]:
    sentence: list[list[str]] = []
    begin = num_columns = 0
    for number, line in enumerate(_split_lines(text + "\n\n"), 1):
        # By tabs or by plain spaces: other white space, such as U+3000, may be a word.
        cells = line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]
        if cells and cells[0] == _DOCUMENT_START:
            continue
        if cells:
            num_columns = num_columns or len(cells)
            if len(cells) != num_columns:
                raise ValueError(f"{path}, line {number} has {len(cells)} columns, the lines before {num_columns}.")
            begin = begin if sentence else number
            sentence.append(cells)
        elif sentence:
            tags = [cells[-1] for cells in sentence] if num_columns > 1 else None
            yield f"line {begin}", Row(words=[cells[0] for cells in sentence], tags=tags)
            sentence = []


def _parse_json(where: str, text: str) -> Any:
    try:
        parsed = json.loads(text)
        if "\\ud" in text.lower():  # an escape may be half of a surrogate pair, which no tokenizer takes
            json.dumps(parsed, ensure_ascii=False).encode()
        return parsed
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise ValueError(f"{where} is not JSON: {error.msg} ({place}).") from None
    except UnicodeEncodeError:
        raise ValueError(f"{where}: the text holds half of a surrogate pair: clean it first.") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} cannot be read as JSON ({error}).") from None


_JSON_NAMES = {dict: "an object", list: "a list", str: "a text", int: "a whole number"}


def _expect(value: Any, kind: type, where: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{where}: {_JSON_NAMES[kind]} is expected, not {json.dumps(value)[:60]}.")
    return value


def _member(value: Any, key: str, kind: type, where: str) -> Any:
    if key not in _expect(value, dict, where):
        raise ValueError(f"{where}: {key!r} is missing. {describe_known(key, value, 'Keys')}")
    return _expect(value[key], kind, f"{where}, {key!r}")


_READERS: dict[FileFormat, Callable[[str, str, FileLayout], Iterator[Any]]] = {
    "tsv": _read_tsv,
    "csv": _read_csv,
    "json_lines": _read_json_lines,
    "squad": _read_squad,
    "c3": _read_c3,
    "chid": _read_chid,
    "conll": _read_conll,
}
