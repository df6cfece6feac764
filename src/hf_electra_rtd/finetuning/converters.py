"""From a row of a file or dataset to an example: what the tables of tasks are made with.

A converter takes a row and its place. It raises a ValueError for what the row should not hold, and a RowSkippedError
for a row that benchmarks leave out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_electra_rtd.finetuning.examples import (
    Answer,
    ChoiceExample,
    QuestionExample,
    TaggedExample,
    TextExample,
)
from hf_electra_rtd.finetuning.layouts import RowSkippedError
from hf_electra_rtd.finetuning.reading import BLANK_TAG, describe_known


Row = Mapping[str, Any]

_NO_AGREEMENT = "-"  # SNLI's, MNLI's and OCNLI's label of a pair about which the annotators did not agree
_HIDDEN_ANSWER = "FAKE_ANSWER"  # CLUE's, with a number, where it keeps the answers of a test set to itself
_ASKED_BLANK, _OTHER_BLANK = "____", "□□□□"  # an idiom has four characters
_BLANK_CONTEXT = 56  # characters on each side: with the blank, a candidate and special tokens they fill 128


@dataclass(frozen=True)
class Columns:
    """Texts of a row, stripped.

    Attributes:
        names: of their columns: one or two.
    """

    names: tuple[str, ...]

    def __call__(self, row: Row) -> tuple[str, ...]:
        """The texts.

        Raises:
            ValueError: for what is not text.
        """
        return tuple(_text(row, name).strip() for name in self.names)


@dataclass(frozen=True)
class ClassNames:
    """Labels as a task names them.

    Attributes:
        names: from what rows say to the task's labels.
    """

    names: Mapping[str, str]

    def __call__(self, value: Any) -> str:
        """The label.

        Args:
            value: of the row: text, or an integer, which is taken for its digits.

        Raises:
            RowSkippedError: for the label `-`.
            ValueError: for a label that the task does not have.
        """
        name = str(value)
        if name in self.names:
            return self.names[name]
        if name == _NO_AGREEMENT:
            raise RowSkippedError("its label is `-`: the annotators did not agree")
        raise ValueError(f"there is no label {name!r}. {describe_known(name, self.names, 'Labels')}")


def named(labels: Sequence[str]) -> ClassNames:
    """For rows that name their labels as the task does."""
    return ClassNames({label: label for label in labels})


def numbered(labels: Sequence[str]) -> ClassNames:
    """For rows that have the index of their label, from 0."""
    return ClassNames({str(index): label for index, label in enumerate(labels)})


def parse_number(value: Any) -> float:
    """The label of a regression.

    Raises:
        ValueError: for what is no finite number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"the label {value!r} is not a number.")
    return number


@dataclass(frozen=True)
class TextConverter:
    """To a [`TextExample`].

    Attributes:
        texts: from a row to its text or two: [`Columns`], or what a task makes of several.
        parse_label: from what the row says to the label: [`named`], [`numbered`] or [`parse_number`].
        label: name of the label's column.
        id: name of the column that tells rows apart; rows without one go by their place.
        may_lack_label: whether rows may have no such column: those of test sets.
        hidden: what rows say in place of a label that the benchmark keeps to itself; null always means that, too.
    """

    texts: Callable[[Row], tuple[str, ...]]
    parse_label: Callable[[Any], str | float]
    label: str = "label"
    id: str = "id"
    may_lack_label: bool = False
    hidden: Any = None

    def __call__(self, row: Row, index: int) -> TextExample:
        """The example.

        Raises:
            RowSkippedError: for the label `-`.
            ValueError: for a column that there is not, what is not text, or an unknown label.
        """
        value = row.get(self.label) if self.may_lack_label else row[self.label]
        label = None if value is None or value == self.hidden else self.parse_label(value)
        return TextExample(str(row.get(self.id, index)), self.texts(row), label)


def mark_spans(row: Row) -> tuple[str, ...]:
    """CLUEWSC: the text, with the noun in `_` and the pronoun that may stand for it in brackets. Wrong places of spans
    are put right.

    Source: the baseline's marks (CLUEbenchmark/CLUE, baselines/models_pytorch/classifier_pytorch/processors/clue.py,
    `WscProcessor`).

    Raises:
        RowSkippedError: where the text does not have the spans, or they overlap.
    """
    text, target = _text(row, "text"), row["target"]
    spans = []
    for number, marks in ((1, ("_", "_")), (2, ("[", "]"))):
        span = target[f"span{number}_text"]
        begin = find_text(text, span, target[f"span{number}_index"])
        if begin < 0:
            raise RowSkippedError(f"span{number} is not in its text")
        spans.append((begin, begin + len(span), marks))
    spans.sort(reverse=True)
    if spans[1][1] > spans[0][0]:
        raise RowSkippedError("its spans overlap")
    for begin, end, (left, right) in spans:  # the later one first, so that the other's place stays
        text = text[:begin] + left + text[begin:end] + right + text[end:]
    return (text,)


def pair_keywords(row: Row) -> tuple[str, ...]:
    """CSL: the keywords, with spaces between them, and the abstract that they may belong to.

    Source: the baseline's pairs (CLUEbenchmark/CLUE, baselines/models_pytorch/classifier_pytorch/processors/clue.py,
    `CslProcessor`).

    Raises:
        ValueError: for keywords that are not a list of texts, or an abstract that is not text.
    """
    keywords = row["keyword"]
    if not isinstance(keywords, list) or not all(isinstance(keyword, str) for keyword in keywords):
        raise ValueError(f"'keyword' is {keywords!r}, not a list of texts.")
    return " ".join(keywords), _text(row, "abst").strip()


@dataclass(frozen=True)
class LanguageColumns:
    """Texts of the rows of one language, in files that hold many (XNLI).

    Attributes:
        language: code that the column `language` has.
        texts: of these rows.
    """

    language: str
    texts: Columns

    def __call__(self, row: Row) -> tuple[str, ...]:
        """The texts.

        Raises:
            RowSkippedError: for another language.
        """
        if row["language"] != self.language:
            raise RowSkippedError(f"its language is not {self.language}")
        return self.texts(row)


def convert_c3(row: Row, index: int) -> ChoiceExample:
    """A question of C3, from a row of the format `c3` or of `clue/clue`.

    Raises:
        ValueError: for an answer that is none of the choices, or fewer than two of these.
    """
    choices = tuple(row["choice"])
    answer = row["answer"]
    if len(choices) < 2:
        raise ValueError(f"a question should have at least two choices, not {len(choices)}.")
    if answer and answer not in choices:  # an empty one stands for what is hidden, on the Hub
        raise ValueError(f"the answer {answer!r} is none of the choices {', '.join(choices)}.")
    label = choices.index(answer) if answer else None
    return ChoiceExample(str(row["id"]), "\n".join(row["context"]), _text(row, "question"), choices, label)


def split_blanks(row: Row) -> Iterator[dict[str, Any]]:
    """ChID: the blanks of a row of `clue/clue`, as the format `chid` has them.

    Args:
        row: with `content` (a list of texts), `candidates`, and `answers`: `candidate_id` and `text` of each blank, in
            order; empty in the test set.

    Yields:
        `id` (the blank's tag, such as `#idiom000378#`), `content` (the text that it is in), `candidates`, and `answer`
        (the index of the right one; None where it is not known).

    Raises:
        ValueError: where there is not an answer a blank, or one is not the candidate that it says.
    """
    blanks = [(tag, content) for content in row["content"] for tag in BLANK_TAG.findall(content)]
    candidates, given = row["candidates"], row["answers"]
    answers = given["candidate_id"] or [None] * len(blanks)
    if len(answers) != len(blanks):
        raise ValueError(f"there are {len(blanks)} blanks and {len(answers)} answers.")
    for answer, text in zip(given["candidate_id"], given["text"], strict=True):
        if not 0 <= answer < len(candidates) or candidates[answer] != text:
            raise ValueError(f"the answer {text!r} is not candidate {answer} of {', '.join(candidates)}.")
    for (tag, content), answer in zip(blanks, answers, strict=True):
        yield {"id": tag, "content": content, "candidates": candidates, "answer": answer}


def convert_chid(row: Row, index: int) -> ChoiceExample:
    """A blank of ChID: the text around it, with `____` in its place and `□□□□` for other blanks, and the candidates.

    Each blank is a question of its own, although those of a row have different answers. Far text is left out here:
    what is cut at its end, as long texts are, would often lose the blank.

    Args:
        row: as [`split_blanks`] yields it.
        index: not used: every blank has a tag.

    Raises:
        ValueError: for a tag that the text does not have once, or an answer that is no candidate.
    """
    tag, candidates, answer = row["id"], tuple(row["candidates"]), row["answer"]
    before, *after = _text(row, "content").split(tag)
    if len(after) != 1:
        raise ValueError(f"{tag} is {len(after)} times in its text instead of once.")
    if answer is not None and not 0 <= answer < len(candidates):
        raise ValueError(f"the answer of {tag} is {answer}: there are {len(candidates)} candidates.")
    left, right = (BLANK_TAG.sub(_OTHER_BLANK, part) for part in (before, after[0]))
    context = left[-_BLANK_CONTEXT:] + _ASKED_BLANK + right[:_BLANK_CONTEXT]
    return ChoiceExample(tag, context, "", candidates, answer)


def find_text(context: str, text: str, start: int) -> int:
    """Where a text stands in another: at `start`, or at the nearest place that has it.

    Args:
        context: in which it should be.
        text: an answer, say.
        start: where the file says that it begins; wrong in some rows of CMRC 2018.

    Returns:
        Its first character; the earlier of two as near; -1 if the context does not have it.
    """
    if not text:
        return -1
    places = (match.start() for match in re.finditer(f"(?={re.escape(text)})", context))
    return min(places, key=lambda place: abs(place - start), default=-1)


def convert_question(row: Row, index: int) -> QuestionExample:
    """A question, from a row of the format `squad`.

    Wrong places of answers are put right. Answers that the context does not have word by word (193 in the development
    set of CMRC 2018) come last, with -1 for their place.
    """
    pairs = [(answer["text"], answer["answer_start"]) for answer in row["answers"]]
    return _question(row, pairs if row["is_labelled"] else None)


def convert_dataset_question(row: Row, index: int) -> QuestionExample:
    """A question, from a row of SQuAD, SQuAD 2.0, CMRC 2018 or DRCD on the Hub; else as [`convert_question`].

    No answer means that there is none (SQuAD 2.0).
    """
    answers = row["answers"]
    return _question(row, list(zip(answers["text"], answers["answer_start"], strict=True)))


def _question(row: Row, pairs: list[tuple[str, int]] | None) -> QuestionExample:
    context = _text(row, "context")
    answers = None
    if pairs is not None and not any(text.startswith(_HIDDEN_ANSWER) for text, _ in pairs):
        found = [Answer(text, find_text(context, text, start)) for text, start in pairs]
        answers = tuple(sorted(found, key=lambda answer: answer.start < 0))
    return QuestionExample(str(row["id"]), _text(row, "question"), context, answers)


def convert_tags(row: Row, index: int) -> TaggedExample:
    """Words and their tags, from a row of the format `conll`."""
    tags = row["tags"]
    return TaggedExample(str(index), tuple(row["words"]), None if tags is None else tuple(tags))


def bio_tags(names: Sequence[str]) -> tuple[str, ...]:
    """The tags of spans with these names: `O`, and for each `B-NAME` (begins) and `I-NAME` (goes on)."""
    return ("O", *(f"{position}-{name}" for name in names for position in "BI"))


@dataclass(frozen=True)
class SpanConverter:
    """To a [`TaggedExample`] with a tag a character, from CLUENER's spans:
    `{"label": {"name": {"叶老桂": [[9, 11]]}}}`, first and last character.

    Attributes:
        names: of the spans.
        may_lack_label: whether rows may have no spans: those of test sets.
    """

    names: tuple[str, ...]
    may_lack_label: bool = False

    def __call__(self, row: Row, index: int) -> TaggedExample:
        """The example.

        Raises:
            RowSkippedError: where spans overlap (one row of the training set), or the text of one is not what
                stands in its place.
            ValueError: for an unknown name.
        """
        text = _text(row, "text")
        spans = row.get("label") if self.may_lack_label else row["label"]
        id = str(row.get("id", index))
        if spans is None:
            return TaggedExample(id, tuple(text), None)
        tags = ["O"] * len(text)
        for name, entities in spans.items():
            if name not in self.names:
                raise ValueError(f"there is no label {name!r}. {describe_known(name, self.names, 'Labels')}")
            for entity, places in entities.items():
                for first, last in places:
                    if not 0 <= first <= last or text[first : last + 1] != entity:
                        raise RowSkippedError("the text of a span is not where its place says")
                    if tags[first : last + 1] != ["O"] * len(entity):
                        raise RowSkippedError("its spans overlap")
                    tags[first : last + 1] = [f"B-{name}"] + [f"I-{name}"] * (last - first)
        return TaggedExample(id, tuple(text), tuple(tags))


def _text(row: Row, column: str) -> str:
    value = row[column]
    if not isinstance(value, str):
        raise ValueError(f"{column!r} is {value!r}, not text.")
    return value
