"""From the rows of a task's files, or of its dataset on the Hub, to examples.

Files are read line by line here and not by `load_dataset("csv")`: its reader, pandas, guesses types from parts of a
column, fills short lines, and ends lines at a lone \\r, which stands inside some sentences of the benchmarks.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hf_electra_rtd.files import known_names
from hf_electra_rtd.tasks import Task


if TYPE_CHECKING:
    from datasets import Dataset

Row = Mapping[str, Any]
Example = dict[str, Any]

SUFFIXES = {".tsv": "tsv", ".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
CONLL_SUFFIXES = (".conll", ".bio", ".txt")
_NO_AGREEMENT = "-"  # SNLI's, MNLI's and OCNLI's label of a pair about which the annotators did not agree
_HIDDEN_ANSWER = "FAKE_ANSWER"  # CLUE's, with a number, where it keeps the answers of a test set to itself
_BLANK_TAG = re.compile(r"#idiom\d+#")  # of ChID
_ASKED_BLANK, _OTHER_BLANK = "____", "□□□□"  # an idiom has four characters
_BLANK_CONTEXT = 56  # characters on each side: with the blank, a candidate and special tokens they fill 128
_IDS = ("id", "index", "qid")


def example_features(kind: str) -> Any:
    """The columns of examples of a kind, as `datasets.Features`. A label, tags or answers that are not known are null.

    The start of an answer is its first character in the context, or -1 where the context does not have the answer word
    by word: such an answer cannot be learned, but predictions are scored by it. Answers with a start come first. No
    answers means that there is none.
    """
    from datasets import Features, List, Value

    text, number = Value("string"), Value("int64")
    columns: dict[str, Any] = {
        "classification": {"texts": List(text), "label": text},
        "regression": {"texts": List(text), "label": Value("float64")},
        "multiple_choice": {"context": text, "question": text, "choices": List(text), "label": number},
        "question_answering": {"question": text, "context": text, "answers": List(text), "starts": List(number)},
        "tagging": {"words": List(text), "tags": List(text)},
    }[kind]
    return Features({"id": text, **columns})


def make_examples(task: Task, split: str, name: str, rows: Iterable[tuple[str, Row | None]]) -> Iterator[Example]:
    """The examples of rows, with null in place of an id for each row that is skipped.

    Raises:
        ValueError: for a row that cannot be used, with its place; or if there is no row, with `name`.
    """
    empty = True
    for index, (place, row) in enumerate(rows):
        try:
            examples = None if row is None else _convert(task, split, row, index)
        except KeyError as error:
            names = known_names(str(error.args[0]), row or (), "columns")
            raise ValueError(f"{place}: there is no column {error}. {names}") from error
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"{place}: {error}") from error
        for example in [{"id": None}] if examples is None else examples:
            empty = False
            yield example
    if empty:
        raise ValueError(f"{name} has no row that {task.title} can use.")


# ---- Rows: those of files have the columns that the Hub's have ----


def hub_rows(name: str, dataset: Dataset) -> Iterator[tuple[str, Row]]:
    """Rows with the names of their class labels; None for -1, which stands for no label on the Hub."""
    for number, row in enumerate(dataset, 1):
        values = {column: _named(dataset.features[column], value) for column, value in row.items()}
        yield f"{name}, row {number}", {"id": values["idx"], **values} if "idx" in values else values


def _named(feature: Any, value: Any) -> Any:
    from datasets import ClassLabel, LargeList, List

    if isinstance(feature, (List, LargeList)):
        return value and [_named(feature.feature, one) for one in value]
    if isinstance(feature, ClassLabel) and value is not None:
        return None if value < 0 else feature.names[value]
    return value


def find_files(task: Task, split: str, data_dir: str | None) -> list[str]:
    if split not in task.files:
        raise ValueError(
            f"{task.title} has no file for a split {split!r}, only for {', '.join(task.files) or 'none'}."
        )
    paths = task.paths(split)
    if data_dir is None and not all(map(os.path.isabs, paths)):
        raise ValueError(f"{task.title} is not on the Hub. Say where its files are (--data_dir).")
    for path in paths:
        for parts in ([path], path.split("+")):  # a name may have a `+` of its own
            found = [os.path.join(data_dir or "", part) for part in parts]
            if all(os.path.isfile(on_disk(part)) for part in found):
                return found
    where = f" in {data_dir}" if data_dir else ""
    raise ValueError(f"{task.title} has no file for its split {split!r}{where}. Looked for {', '.join(paths)}.")


def on_disk(path: str) -> str:
    return path.partition("::")[0]


def answer_file(path: str) -> str:
    """ChID: `train_answer.json` has the answers of `train.json`."""
    stem, suffix = os.path.splitext(path)
    return f"{stem}_answer{suffix}"


def read_rows(task: Task, split: str, path: str) -> Iterator[tuple[str, Row | None]]:
    """The rows of a file, each after its place; None for a line that is skipped."""
    format = task.format or format_of(task.kind, path)
    if format == "parquet":
        from datasets import load_dataset

        yield from hub_rows(path, load_dataset("parquet", data_files=path, split="train"))
        return
    try:
        rows: Iterable[tuple[str, Row | None]]
        if format in ("tsv", "csv", "xnli"):
            lines = _table_rows(path, format == "csv", task.headers.get(split, ()), task.skip_broken_lines)
            rows = ((place, row and {task.renamed.get(name, name): row[name] for name in row}) for place, row in lines)
        else:
            readers = {"squad": _squad_rows, "c3": _c3_rows, "chid": _chid_rows, "conll": _conll_rows}
            rows = readers.get(format, _json_rows)(path)
        for place, row in rows:
            yield f"{path}, {place}", row
    except (UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read as UTF-8 text ({error}). Convert it, or fetch it again.") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not in the format {format} ({type(error).__name__}: {error}).") from error


def format_of(kind: str, path: str) -> str:
    suffixes = Path(path.removesuffix(".gz").removesuffix(".zst")).suffix.lower()
    if kind == "tagging" and suffixes in CONLL_SUFFIXES:
        return "conll"
    return SUFFIXES.get(suffixes, "tsv")


def _open(path: str) -> AbstractContextManager[TextIO]:
    """A file in UTF-8, plain or compressed, or a member of an archive (`archive.zip::member`). Lines end with \\n."""
    import fsspec

    archive, _, member = path.partition("::")
    url = f"zip://{member}::{archive}" if member else path
    return fsspec.open(url, "rt", encoding="utf-8-sig", newline="\n", compression="infer")


def _table_rows(path: str, quoted: bool, header: Sequence[str], skip_broken: bool) -> Iterator[tuple[str, Row | None]]:
    """Rows of a csv (RFC 4180), or of a tsv, in which quotes are characters like others."""
    csv.field_size_limit(2**31 - 1)  # 131,072 by default
    with _open(path) as file:
        reader = csv.reader(file, strict=True)
        lines: Iterable[list[str]] = reader if quoted else (line.rstrip("\r\n").split("\t") for line in file)
        try:
            for number, cells in enumerate(lines, 1):
                place = f"line {reader.line_num if quoted else number}"
                if not header:
                    header = cells
                elif len(cells) == len(header):
                    yield place, dict(zip(header, cells, strict=True))
                elif skip_broken and cells not in ([], [""]):
                    yield place, None
                elif cells not in ([], [""]):
                    remedy = "Quote fields that hold commas." if quoted else "Remove tabs and line breaks in fields."
                    raise ValueError(f"{place} has {len(cells)} columns instead of {len(header)}. {remedy}")
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num} is not CSV ({error}).") from error


def _json_rows(path: str) -> Iterator[tuple[str, Row]]:
    """JSON lines, or a list."""
    with _open(path) as file:
        text = file.read()
    if text.lstrip().startswith("["):
        yield from ((f"record {number}", row) for number, row in enumerate(json.loads(text), 1))
        return
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if line.strip():
                yield f"line {number}", json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} is not JSON ({error}).") from error


def _squad_rows(path: str) -> Iterator[tuple[str, Row]]:
    with _open(path) as file:
        paragraphs = [paragraph for article in json.load(file)["data"] for paragraph in article["paragraphs"]]
    questions = ((paragraph["context"], question) for paragraph in paragraphs for question in paragraph["qas"])
    for number, (context, question) in enumerate(questions):
        given = question.get("answers", [])
        known = given or question.get("is_impossible")
        answers = {name: [answer[name] for answer in given] for name in ("text", "answer_start")} if known else None
        row = {"id": number, **question, "context": context, "answers": answers}
        yield f"question {number + 1} ({row['id']})", row


def _c3_rows(path: str) -> Iterator[tuple[str, Row]]:
    with _open(path) as file:
        entries = json.load(file)
    questions = ((entry, index, question) for entry in entries for index, question in enumerate(entry[1]))
    for number, ((context, _, *ids), index, question) in enumerate(questions):
        # Questions of the test file have an id; elsewhere only the dialogue or text that they are about has one.
        row = {"id": f"{ids[0]}-{index}" if ids else number, **question, "context": context}
        yield f"question {number + 1} ({row['id']})", row


def _chid_rows(path: str) -> Iterator[tuple[str, Row]]:
    answers = None
    if os.path.isfile(beside := answer_file(path)):
        with _open(beside) as file:
            answers = json.load(file)
    for place, row in _json_rows(path):
        tags = _BLANK_TAG.findall("".join(row["content"]))
        yield place, {**row, "answers": {"candidate_id": answers and [answers[tag] for tag in tags]}}


def _conll_rows(path: str) -> Iterator[tuple[str, Row]]:
    """A word a line, a blank line between sentences: the first column holds the words, the last one the tags."""
    sentence: list[list[str]] = []
    with _open(path) as file:
        for number, line in enumerate(itertools.chain(file, ["\n"]), 1):
            # By tabs or plain spaces: other white space, such as U+3000, may be a word.
            line = line.rstrip("\r\n")
            cells = line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]
            if cells and cells[0] == "-DOCSTART-":  # CoNLL-2003: begins a document, and is no word
                continue
            if cells:
                sentence.append(cells)
                if len(cells) != len(sentence[0]):
                    raise ValueError(f"line {number} has {len(cells)} columns, the line before {len(sentence[0])}.")
            elif sentence:
                words, tags = [cells[0] for cells in sentence], [cells[-1] for cells in sentence]
                first = number - len(sentence)
                yield f"line {first}", {"words": words, "tags": tags if len(sentence[0]) > 1 else None}
                sentence = []


# ---- From a row to its examples: None skips it, and an empty list leaves it out ----


def _convert(task: Task, split: str, row: Row, index: int) -> list[Example] | None:
    if task.format == "chid":
        return _chid_examples(row)
    name = task.id_column or next((name for name in _IDS if row.get(name) is not None), None)
    common = {"id": str(row[name] if name else index)}
    if task.kind == "question_answering":
        return [common | _question(row)]
    if task.kind == "multiple_choice":
        return [common | _choice(row)]
    given = row.get(task.label_column) if split in task.test_splits else row[task.label_column]
    if isinstance(given, str) and not given.strip():
        given = None
    if task.kind == "tagging":
        words, tags = row[task.columns[0]], given
        if task.format == "cluener":
            words, tags = list(words), None if given is None else _span_tags(row["text"], given)
            if given is not None and tags is None:
                return None
        return [common | _tagged(task, words, tags)]
    if task.format == "xnli" and row.get("language", task.language) != task.language:
        return []
    if given == _NO_AGREEMENT and given not in task.labels and task.benchmark != "own":
        return None
    texts = [mark_spans(row)] if task.format == "wsc" else [_text(row, column) for column in task.columns]
    if None in texts:
        return None
    hidden = given is None or (given == -1 and task.benchmark != "own")
    parse = _number if task.kind == "regression" else _class_label
    return [common | {"texts": texts, "label": None if hidden else parse(task, given)}]


def _text(row: Row, column: str) -> str:
    value = row[column]
    if isinstance(value, list):  # CSL's keywords
        value = " ".join(value)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"column {column!r} holds {value!r}, which is not text.")
    return value or ""


def _class_label(task: Task, value: Any) -> str:
    if not isinstance(value, (str, int)):
        raise ValueError(f"the label {value!r} is not text or a whole number. Is this regression?")
    label = str(value).lower() if isinstance(value, bool) else str(value).strip()
    label = task.renamed_labels.get(label, label)
    if task.labels and label not in task.labels:
        named_by_numbers = any(re.fullmatch(r"[-+]?[\d.]+", name) for name in task.labels)
        if label.isdecimal() and int(label) < len(task.labels) and not named_by_numbers:
            return task.labels[int(label)]
        raise _unknown_label(task, label)
    return label


def _unknown_label(task: Task, label: str) -> ValueError:
    of_training = " They are those of the training examples, unless --labels names them." * (task.benchmark == "own")
    return ValueError(f"there is no label {label!r}. {known_names(label, task.labels, 'labels')}{of_training}")


def _number(task: Task, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"the label {value!r} is not a finite number.")
    return number


def mark_spans(row: Row) -> str | None:
    """CLUEWSC: the text, with the noun in `_` and the pronoun that may stand for it in brackets; None where the text
    does not have them, or they overlap. Wrong places are corrected.

    Source: CLUEbenchmark/CLUE, baselines/models_pytorch/classifier_pytorch/processors/clue.py, `WscProcessor`.
    """
    text, target = row["text"], row["target"]
    spans = []
    for number, left, right in ((1, "_", "_"), (2, "[", "]")):
        span = target[f"span{number}_text"]
        begin = find_text(text, span, target[f"span{number}_index"])
        spans.append((begin, begin + len(span), left, right))
    first, second = sorted(spans)
    if first[0] < 0 or second[0] < first[1]:
        return None
    for begin, end, left, right in (second, first):  # the later one first, so that the other's place stays
        text = text[:begin] + left + text[begin:end] + right + text[end:]
    return text


def find_text(context: str, text: str, start: int) -> int:
    """Where a text stands in another: at `start`, or at the nearest place that has it (files of CMRC 2018 name some
    wrong places); -1 if there is none."""
    places = (match.start() for match in re.finditer(f"(?={re.escape(text)})", context)) if text else iter(())
    return min(places, key=lambda place: abs(place - start), default=-1)


def _question(row: Row) -> Example:
    context, given = row["context"], row["answers"]
    example = {"question": row["question"], "context": context, "answers": None, "starts": None}
    if given is None or any(text.startswith(_HIDDEN_ANSWER) for text in given["text"]):
        return example
    pairs = zip(given["text"], given["answer_start"], strict=True)
    found = sorted(((text, find_text(context, text, start)) for text, start in pairs), key=lambda one: one[1] < 0)
    return example | {"answers": [text for text, _ in found], "starts": [start for _, start in found]}


def _choice(row: Row) -> Example:
    choices, answer = row["choice"], row.get("answer")
    label = choices.index(answer) if answer else None  # an empty one stands for what is hidden, on the Hub
    return {"context": "\n".join(row["context"]), "question": row["question"], "choices": choices, "label": label}


def _chid_examples(row: Row) -> list[Example]:
    """ChID: for each blank the text around it, with `____` in its place and `□□□□` for other blanks, and the
    candidates. Far text is left out here: truncation at the end would often lose the blank."""
    candidates, contents = row["candidates"], row["content"]
    blanks = [(tag, content) for content in contents for tag in _BLANK_TAG.findall(content)]
    answers = row["answers"]["candidate_id"] or [None] * len(blanks)
    examples = []
    for (tag, content), answer in zip(blanks, answers, strict=True):
        left, right = (_BLANK_TAG.sub(_OTHER_BLANK, part) for part in content.split(tag, 1))
        context = left[-_BLANK_CONTEXT:] + _ASKED_BLANK + right[:_BLANK_CONTEXT]
        examples.append({"id": tag, "context": context, "question": "", "choices": candidates, "label": answer})
    return examples


def _tagged(task: Task, words: Any, tags: Any) -> Example:
    columns = {"words": words, "tags": tags or None}
    for name, value in columns.items():
        columns[name] = value = value.split() if isinstance(value, str) else value
        if value is not None and not (isinstance(value, list) and all(isinstance(word, str) for word in value)):
            raise ValueError(f"its {name} are neither a list nor text with spaces between them.")
    words, tags = columns["words"], columns["tags"] or []
    if tags and len(tags) != len(words):
        raise ValueError(f"there are {len(words)} words, but {len(tags)} tags.")
    if task.labels and (unknown := [tag for tag in tags if tag not in task.labels]):
        raise _unknown_label(task, unknown[0])
    return columns


def _span_tags(text: str, spans: Mapping[str, Mapping[str, list[list[int]]]]) -> list[str] | None:
    """CLUENER: a tag for each character, from spans like `{"name": {"叶老桂": [[9, 11]]}}` (first and last character);
    None where they overlap (in one row of the training set), or are not where they should be."""
    tags = ["O"] * len(text)
    for name, entities in spans.items():
        for entity, places in entities.items():
            for first, last in places:
                span = slice(first, last + 1)
                if not 0 <= first <= last or text[span] != entity or tags[span] != ["O"] * len(entity):
                    return None
                tags[span] = [f"B-{name}"] + [f"I-{name}"] * (last - first)
    return tags
