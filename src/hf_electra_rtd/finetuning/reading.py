"""Converts the rows of a task's files, or of its dataset on the Hub, to examples."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from datasets import ClassLabel, Dataset, Features, LargeList, List, Value

from hf_electra_rtd.base.files import known_names, open_text, reading
from hf_electra_rtd.base.tasks import Task
from hf_electra_rtd.data.reader import check_columns, load_json, records_of
from hf_electra_rtd.data.units import align


Row = Mapping[str, Any]
Rows = Iterator[tuple[str, Row | None]]  # the place and the content; None for a line that is skipped
Example = dict[str, Any]
# The types that can hold examples in Python.
Table: TypeAlias = pd.DataFrame | Dataset | Sequence[Row] | Mapping[str, Sequence[Any]]

# The formats of files, by the ends of their names.
FORMATS = {
    "tsv": "tsv",
    "txt": "tsv",
    "csv": "csv",
    "json": "json",
    "jsonl": "json",
    "parquet": "parquet",
    "conll": "conll",
    "bio": "conll",
}
_NO_AGREEMENT = "-"  # label of SNLI, MNLI and OCNLI for a pair on which the annotators did not agree
_HIDDEN_ANSWER = "FAKE_ANSWER"  # with a number: what CLUE gives for the secret answers of a test set
_BLANK_TAG = re.compile(r"#idiom\d+#")  # in ChID
_ASKED_BLANK = "____"
_OTHER_BLANK = "□□□□"  # an idiom has four characters
_BLANK_CONTEXT = 56  # characters on each side; with blank, candidate and special tokens, they fit in 128
_IDS = ("id", "index", "qid")
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)  # a number as a label
_WRITTEN_LIST = re.compile(r"\[\]|\[['\"].*['\"]\]")  # a list as pandas writes it into a table


def example_features(kind: str) -> Features:
    """Returns the columns of examples of a kind, as `datasets.Features`. In tagging, `texts` are the words. `label` is
    a label, labels, a number, tags, the index of a choice, texts of answers, or the right sentence; null if it is
    unknown. An empty list means none of the labels, or no answer.

    `starts` are the first characters of the answers in the context, or -1 if the context does not contain the answer
    verbatim. Such an answer cannot be learned, but predictions are scored against it. Answers with a start come first.
    """
    text = Value("string")
    number = Value("int64")
    texts: dict[str, Any] = {"texts": List(text)}
    columns: dict[str, Any] = {
        "classification": texts | {"label": text},
        "multi_label": texts | {"label": List(text)},
        "regression": texts | {"label": Value("float64")},
        "tagging": texts | {"label": List(text)},
        "correction": texts | {"label": text},
        "embedding": texts | {"label": Value("float64")},
        "multiple_choice": {"context": text, "question": text, "choices": List(text), "label": number},
        "question_answering": {"question": text, "context": text, "label": List(text), "starts": List(number)},
    }[kind]
    return Features({"id": text, **columns})


def make_examples(task: Task, split: str, rows: Rows) -> Iterator[Example]:
    """Yields the examples of rows. A row that is skipped gives an example with the id null. Raises ValueError, with
    the place, for a row that cannot be used, and if there are no rows."""
    number = 0
    for place, row in rows:
        try:
            examples = None if row is None else _convert(task, split, row, number)
        except KeyError as error:
            names = known_names(str(error.args[0]), row or (), "columns")
            raise ValueError(f"{place}: there is no column {error}. {names}") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{place}: {error}") from error
        yield from [{"id": None}] if examples is None else examples
        number += 1
    if not number:
        raise ValueError("it has no row")


# ---- Rows: those of files get the same columns as those of the Hub ----


def hub_rows(name: str, dataset: Dataset) -> Rows:
    """Yields rows with the names of their class labels; None instead of -1, which means no label on the Hub."""
    for number, row in enumerate(dataset, 1):
        yield f"{name}, row {number}", _named_row(dataset.features, row)


def rows_of(examples: Any) -> list[Row]:
    """Returns the rows of examples in Python: a pandas DataFrame, a `datasets.Dataset` (with the names of its class
    labels), a list of dicts, or a dict of columns. Raises TypeError for anything else, and ValueError for two columns
    with the same name and for columns of different lengths."""
    if isinstance(examples, pd.DataFrame):
        examples = examples.set_axis(examples.columns.map(str), axis="columns")  # without a header, names are numbers
        check_columns(examples.columns)
        return examples.astype(object).where(examples.notna(), None).to_dict("records")
    if isinstance(examples, Dataset):
        return [row for _, row in hub_rows("", examples.with_format(None)) if row is not None]
    if is_list(examples) and all(isinstance(row, Mapping) for row in examples):
        return list(examples)
    columns: list[Any] = list(examples.values()) if isinstance(examples, Mapping) else [None]
    if all(is_list(column) or is_array(column) for column in columns):
        lengths = [len(column) for column in columns]
        if len(set(lengths)) > 1:
            raise ValueError(f"The columns {', '.join(examples)} have different lengths: {lengths}.")
        return [dict(zip(examples, cells, strict=True)) for cells in zip(*columns, strict=True)]
    raise TypeError(
        "Examples are a pandas DataFrame, a datasets.Dataset, a list of dicts or a dict of lists (or, to predict, "
        f"texts), but not a {type(examples).__name__}."
    )


def is_list(value: Any) -> bool:
    """Returns whether a value is a list, a tuple or another sequence, but not text."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def is_array(value: Any) -> bool:
    """Returns whether a value is a one-dimensional array of NumPy or pandas."""
    return isinstance(value, (np.ndarray, pd.Series, pd.api.extensions.ExtensionArray)) and value.ndim == 1


def _named_row(features: Mapping[str, Any], row: Row) -> Row:
    values = {column: _named(features[column], value) for column, value in row.items()}
    return {"id": values["idx"], **values} if "idx" in values else values


def _named(feature: Any, value: Any) -> Any:
    if isinstance(feature, (List, LargeList)):
        return value and [_named(feature.feature, entry) for entry in value]
    if isinstance(feature, ClassLabel) and value is not None:
        return None if value < 0 else feature.names[value]
    return value


def find_files(task: Task, split: str, data_dir: str | None) -> list[str]:
    """Returns the files of a split. Raises ValueError if there are none."""
    names = task.files.get(split, ())
    if data_dir or task.benchmark == "own":
        for name in names:
            paths = [name] if os.path.isabs(name) else [f"{data_dir}/{part}" for part in name.split("+")]
            if all(map(os.path.isfile, paths)):
                return paths
    if task.benchmark == "own" and not names:
        flag = {"train": "train_file", "dev": "validation_file"}.get(split, "test_file")
        raise ValueError(f"{task.title} has nothing for its split {split!r}: --{flag} names it.")
    if task.benchmark != "own" and data_dir is None:
        raise ValueError(f"{task.title} is not on the Hub: --data_dir names the directory of its files.")
    place = "" if data_dir is None else f" in {data_dir}"
    raise ValueError(f"{task.title} has no file for its split {split!r}{place}: {', '.join(names[:3])}.")


def answer_file(path: str) -> str:
    """Returns the file with the answers of a file of ChID: `train_answer.json` for `train.json`."""
    return "_answer".join(os.path.splitext(path))


def read_rows(task: Task, split: str, path: str) -> Rows:
    """Yields the rows of a file, in the format of the task or, by default, of the file's name. Raises ValueError for
    an unknown name and for a file that cannot be read."""
    suffix = Path(path.lower().removesuffix(".gz").removesuffix(".zst")).suffix.removeprefix(".")
    if task.format is None and suffix not in FORMATS:
        raise ValueError(f"{path} must have a name that ends in .{', .'.join(FORMATS)}.")
    special = {("tagging", "txt"): "conll", ("question_answering", "json"): "squad"}
    format = task.format or special.get((task.kind, suffix), FORMATS[suffix])
    with reading(path, f"It must be in the format {format}, in UTF-8."):
        if format in _READERS:
            yield from _READERS[format](path)
        elif format == "parquet":
            yield from _parquet_rows(path)
        else:
            plain = {"wsc": "json", "xnli": "tsv"}.get(format, format)
            columns = task.headers.get(split)
            yield from records_of(path, plain, columns=columns, skip_broken_lines=task.skip_broken_lines)


def _parquet_rows(path: str) -> Rows:
    features = Features.from_arrow_schema(pq.read_schema(path))
    for place, row in records_of(path, "parquet"):
        yield place, _named_row(features, row)


def _squad_rows(path: str) -> Rows:
    for article in load_json(path)["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                answers = question.get("answers", [] if question.get("is_impossible") else None)
                row = {**question, "context": paragraph["context"], "answers": answers}
                yield f"{path}, question {question['id']}", row


def _c3_rows(path: str) -> Rows:
    for context, questions, *ids in load_json(path):
        for index, question in enumerate(questions):
            # Questions of the test file have an id; elsewhere only the dialogue or text that they are about has one.
            row = {"id": "-".join([*ids, str(index)]), **question, "context": context}
            yield f"{path}, question {row['id']}", row


def _chid_rows(path: str) -> Rows:
    beside = answer_file(path)
    answers = load_json(beside) if os.path.isfile(beside) else None
    for place, row in records_of(path, "json"):
        tags = _BLANK_TAG.findall("".join(row["content"]))
        yield place, {**row, "answers": {"candidate_id": answers and [answers[tag] for tag in tags]}}


def _conll_rows(path: str) -> Rows:
    """One word on each line, a blank line between sentences. The first column holds the words (`text`), the last one
    the tags (`label`)."""
    sentence: list[list[str]] = []
    with open_text(path) as file:
        for number, line in enumerate(itertools.chain(file, ["\n"]), 1):
            line = line.rstrip("\r\n")  # split at tabs or plain spaces: other spaces (U+3000) may be words
            cells = line.split("\t") if "\t" in line else [cell for cell in line.split(" ") if cell]
            if cells and cells[0] != "-DOCSTART-":  # CoNLL-2003: the start of a document, not a word
                sentence.append(cells)
                if len(cells) != len(sentence[0]):
                    raise ValueError(f"{path}, line {number} has {len(cells)} columns, not {len(sentence[0])}.")
            elif sentence:
                tags = [cells[-1] for cells in sentence] if len(sentence[0]) > 1 else None
                row = {"text": [cells[0] for cells in sentence], "label": tags}
                yield f"{path}, line {number - len(sentence)}", row
                sentence = []


def _cluener_rows(path: str) -> Rows:
    """Yields rows with a tag for each character, from spans like `{"name": {"叶老桂": [[9, 11]]}}` (first and last
    character). A row is skipped if spans overlap (one row of the training set) or are not where they should be."""
    for place, row in records_of(path, "json"):
        characters = list(row["text"])
        tags = ["O"] * len(characters)
        fits = True
        for name, entities in row.get("label", {}).items():
            for entity, spans in entities.items():
                for first, last in spans:
                    span = slice(first, last + 1)
                    is_there = 0 <= first <= last and characters[span] == list(entity)
                    fits &= is_there and tags[span] == ["O"] * len(entity)
                    tags[span] = [f"B-{name}"] + [f"I-{name}"] * (last - first)
        yield place, {**row, "text": characters, "label": tags if "label" in row else None} if fits else None


_READERS: dict[str, Callable[[str], Rows]] = {
    "conll": _conll_rows,
    "squad": _squad_rows,
    "c3": _c3_rows,
    "chid": _chid_rows,
    "cluener": _cluener_rows,
}


# ---- From a row to its examples: None counts it as skipped, an empty list leaves it out uncounted ----


def _convert(task: Task, split: str, row: Row, index: int) -> list[Example] | None:
    if task.format == "chid":
        return _chid_examples(row)
    if task.format == "xnli" and row.get("language", task.language) != task.language:
        return []
    row = {task.renamed.get(name, name): value for name, value in row.items()}
    id_column = task.id_column or next((name for name in _IDS if row.get(name) is not None), None)
    if task.kind == "embedding" and split == "train" and row.get(task.label_column) in (None, ""):
        row = {**row, task.label_column: None}  # without a number, the second text may be missing, too
        given = tuple(column for column in task.columns if row.get(column) not in (None, ""))
        task = dataclasses.replace(task, columns=given or task.columns[:1])
    if not task.label_column:
        label = None
    elif split in task.test_splits:
        label = row.get(task.label_column)
    else:
        label = row[task.label_column]
    if isinstance(label, str) and not label.strip():
        label = [] if task.kind in ("multi_label", "question_answering") else None
    converters = {"question_answering": _question, "multiple_choice": _choice, "tagging": _tagged}
    example = converters.get(task.kind, _texts)(task, row, label)
    if example is None:
        return None
    return [{"id": str(row[id_column] if id_column else index), **example}]


def _texts(task: Task, row: Row, label: Any) -> Example | None:
    texts = [mark_spans(row)] if task.format == "wsc" else [_text(row, column) for column in task.columns]
    if task.benchmark != "own":
        if None in texts or label == _NO_AGREEMENT:
            return None
        label = None if label == -1 else label
    if label is None:
        return {"texts": texts, "label": None}
    if task.kind == "correction":
        align(str(texts[0]), label)  # raises ValueError for different numbers of parts
        return {"texts": texts, "label": label}
    return {"texts": texts, "label": _label(task, label)}


def _text(row: Row, column: str, between: str = " ") -> str:
    value = row[column]
    if isinstance(value, list):  # CSL's keywords, C3's dialogues
        value = between.join(value)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"column {column!r} holds {value!r}, which is not text.")
    (value or "").encode()  # raises UnicodeEncodeError, a ValueError, for half of a surrogate pair
    return value or ""


def _label(task: Task, value: Any) -> Any:
    if task.kind in ("regression", "embedding"):
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"the label {value!r} is not a finite number.")
        return number
    if task.kind == "multi_label":
        if isinstance(value, str) and _WRITTEN_LIST.fullmatch(value):
            raise ValueError(f"the labels {value} are a list written as text. Write a|b, or lists in a .jsonl.")
        values = [part for part in value.split("|") if part.strip()] if isinstance(value, str) else value
        values = list(values) if isinstance(values, Iterable) else [values]
        labels = {_class(task, entry) for entry in values}
        if len(labels) < len(values) and not any(isinstance(entry, str) for entry in values):
            raise ValueError(f"the labels {values} hold one twice. List the labels of a text, not a 0 or 1 for each.")
        return sorted(labels, key=task.labels.index if task.labels else None)
    return _class(task, value)


def _class(task: Task, value: Any) -> str:
    if isinstance(value, float) and value.is_integer():  # a whole number in a column of pandas with gaps
        value = int(value)
    if not isinstance(value, (str, int)):
        raise ValueError(f"the label {value!r} is not text or a whole number. Is this regression (task_kind)?")
    label = str(value).lower() if isinstance(value, bool) else str(value).strip()
    label = task.renamed_labels.get(label, label)
    place = _place(task.labels, label)
    return _known(task, label) if place is None else task.labels[place]


def _known(task: Task, label: str) -> str:
    if task.labels and label not in task.labels:
        message = f"there is no label {label!r}. {known_names(label, task.labels, 'labels')}"
        if task.benchmark == "own":
            message += " They are those of the training examples, unless `labels` names them."
        raise ValueError(message)
    return label


def _place(names: Sequence[str], label: str) -> int | None:
    """The index of a label, from its name or from the index as text. If one of the names is a number, only names
    count."""
    if label in names:
        return names.index(label)
    is_place = label.isdecimal() and int(label) < len(names) and not any(map(NUMBER.fullmatch, names))
    return int(label) if is_place else None


def mark_spans(row: Row) -> str | None:
    """Returns the text of a row of CLUEWSC, with `_` around the noun and brackets around the pronoun that may refer to
    it, even if the row gives their places wrongly. Returns None if the text does not contain both, or if they overlap
    (CLUEbenchmark/CLUE, `WscProcessor`)."""
    text = row["text"]
    target = row["target"]
    spans = []
    for number, marks in ((1, "__"), (2, "[]")):
        span = target[f"span{number}_text"]
        begin = find_text(text, span, target[f"span{number}_index"])
        spans.append((begin, begin + len(span), marks))
    (begin, end, marks), (later, last, others) = sorted(spans)
    if begin < 0 or later < end:
        return None
    first = marks[0] + text[begin:end] + marks[1]
    second = others[0] + text[later:last] + others[1]
    return text[:begin] + first + text[end:later] + second + text[last:]


def find_text(context: str, text: str, start: int) -> int:
    """Returns where a text occurs in a context: at `start`, or else at the nearest place (files of CMRC 2018 give some
    wrong places); -1 if nowhere, or if the text is empty."""
    if not text:
        return -1
    places = (match.start() for match in re.finditer(f"(?={re.escape(text)})", context))
    return min(places, key=lambda place: abs(place - start), default=-1)


def _question(task: Task, row: Row, label: Any) -> Example:
    """Answers are given as in SQuAD (`{"text": [...], "answer_start": [...]}`, or a list of dicts with both), or as
    texts."""
    context = _text(row, "context")
    example = {"question": _text(row, "question"), "context": context, "label": None, "starts": None}
    if isinstance(label, Mapping):
        texts = label["text"]
        if isinstance(texts, str):
            raise ValueError(f"the text of its answers is {texts!r}, not a list of texts.")
        pairs = list(zip(texts, label.get("answer_start", [0] * len(texts)), strict=True))
    else:
        pairs = []
        for answer in [label] if isinstance(label, str) else label or []:
            answer = answer if isinstance(answer, Mapping) else {"text": answer}
            pairs.append((answer["text"], answer.get("answer_start", 0)))
    if label is None or any(text.startswith(_HIDDEN_ANSWER) for text, _ in pairs):
        return example
    answers = [(text, find_text(context, text, start)) for text, start in pairs]
    answers.sort(key=lambda answer: answer[1] < 0)
    return example | {"label": [text for text, _ in answers], "starts": [start for _, start in answers]}


def _choice(task: Task, row: Row, label: Any) -> Example:
    """The choices are a list (`choice`, `choices`), or in columns of their own (`choice_a`, `choice_b`, ...), the last
    of which may be empty. The right choice is given by its index or its text."""
    cells = [value for name, value in row.items() if name.startswith("choice") and name != task.label_column]
    choices = list(cells[0]) if len(cells) == 1 and not isinstance(cells[0], (str, Mapping)) else cells
    while choices and choices[-1] in ("", None):
        choices.pop()
    if len(choices) < 2 or not all(isinstance(choice, str) and choice for choice in choices):
        raise ValueError(f"its choices {choices} are not two or more texts (choices: [...]; choice_a, choice_b, ...).")
    place = _place(choices, label) if isinstance(label, str) else label
    is_index = isinstance(label, str) and label.isdecimal() and int(label) < len(choices)
    if task.benchmark == "own" and is_index and place not in (None, int(label)):
        raise ValueError(f"the label {label!r} is one choice, and the index of another: give numbers, in .jsonl.")
    if label is not None and (place is None or not 0 <= place < len(choices)):
        raise ValueError(f"there is no choice {label!r}. {known_names(str(label), choices, 'choices')}")
    context = _text(row, "context", "\n") if "context" in row else ""
    return {"context": context, "question": _text(row, "question"), "choices": choices, "label": place}


def _chid_examples(row: Row) -> list[Example]:
    """ChID: makes an example of each blank, with the candidates and the text around it, which has `____` in place of
    the blank and `□□□□` in place of others. Distant text is cut here, because truncation at the end would often lose
    the blank."""
    blanks = [(tag, content) for content in row["content"] for tag in _BLANK_TAG.findall(content)]
    answers = row["answers"]["candidate_id"] or [None] * len(blanks)
    examples = []
    for (tag, content), answer in zip(blanks, answers, strict=True):
        left, right = (_BLANK_TAG.sub(_OTHER_BLANK, part) for part in content.split(tag, 1))
        context = left[-_BLANK_CONTEXT:] + _ASKED_BLANK + right[:_BLANK_CONTEXT]
        examples.append({"id": tag, "context": context, "question": "", "choices": row["candidates"], "label": answer})
    return examples


def _tagged(task: Task, row: Row, label: Any) -> Example:
    cells = (value.tolist() if is_array(value) else value for value in (row[task.columns[0]], label))
    words, tags = (value.split() if isinstance(value, str) else value or [] for value in cells)
    if not all(isinstance(word, str) for word in (*words, *tags)):
        raise ValueError("its words and tags must be texts: lists of them, or one text with spaces between them.")
    if tags and len(tags) != len(words):
        raise ValueError(f"there are {len(words)} words, but {len(tags)} tags.")
    return {"texts": words, "label": [_known(task, tag) for tag in tags] or None}
