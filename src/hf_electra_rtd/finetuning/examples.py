"""What is learnt from: one dataclass for each kind of task, whatever file or dataset it came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextExample:
    """One text or a pair of texts, to be classified or scored.

    Attributes:
        id: of the row: the file's own where it has one, else its place, from 0.
        texts: one or two.
        label: one of the task's labels, or a number in regression; None where there is none to learn or be judged by.
    """

    id: str
    texts: tuple[str, ...]
    label: str | float | None


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A question with several answers, one of which is right.

    Attributes:
        id: of the question.
        context: what is read first.
        question: what is asked; empty where the choices alone complete the context.
        choices: at least two.
        label: index of the right one; None where it is not known.
    """

    id: str
    context: str
    question: str
    choices: tuple[str, ...]
    label: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """A passage that answers a question.

    Attributes:
        text: as the context has it.
        start: its first character in the context; -1 if the context does not have the text word by word: such an
            answer cannot be learnt, but predictions are judged by it.
    """

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class QuestionExample:
    """A question about a context.

    Attributes:
        id: of the question.
        question: what is asked.
        context: where the answer stands.
        answers: right answers, those that the context has before the others, the first of which is learnt; empty where
            there is none; None where it is not known.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None


@dataclass(frozen=True, slots=True)
class TaggedExample:
    """Words, each with a tag.

    Attributes:
        id: of the sentence.
        words: of the sentence; characters, for Chinese.
        tags: one a word, BIO (`O`, `B-NAME`, `I-NAME`); None where they are not known.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None


Example = TextExample | ChoiceExample | QuestionExample | TaggedExample
