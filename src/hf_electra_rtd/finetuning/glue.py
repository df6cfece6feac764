"""GLUE (gluebenchmark.com): the nine tasks and the diagnostic set.

Files lie as in the official download: a directory a task. Test files that hold the labels (MRPC's from Microsoft,
SST-2's) have the rows of the official ones in the same order, and come first. Metrics are those of the ELECTRA paper
(section 4.1) with the benchmark's others beside them; epochs of its Table 7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hf_electra_rtd.finetuning.converters import Columns, TextConverter, named, numbered, parse_number
from hf_electra_rtd.finetuning.layouts import DatasetLayout, FileLayout
from hf_electra_rtd.finetuning.tasks import Task


_ParseLabel = Callable[[Any], str | float]

_ACCEPTABILITY = ("unacceptable", "acceptable")
_SENTIMENT = ("negative", "positive")
_EQUIVALENCE = ("not_equivalent", "equivalent")
_DUPLICATION = ("not_duplicate", "duplicate")
_INFERENCE = ("entailment", "neutral", "contradiction")
_ENTAILMENT = ("entailment", "not_entailment")
_COREFERENCE = ("not_entailment", "entailment")

_ONE = Columns(("sentence",))
_TWO = Columns(("sentence1", "sentence2"))
_STRINGS = Columns(("#1 String", "#2 String"))
_QUESTIONS = Columns(("question1", "question2"))
_QUESTION_AND_SENTENCE = Columns(("question", "sentence"))
_PREMISE_AND_HYPOTHESIS = Columns(("premise", "hypothesis"))


def _file(
    paths: tuple[str, ...],
    texts: Columns,
    parse_label: _ParseLabel,
    label: str = "label",
    id: str = "index",
    test: bool = False,
    **options: Any,
) -> FileLayout:
    return FileLayout(paths, "tsv", TextConverter(texts, parse_label, label, id, may_lack_label=test), **options)


def _dataset(
    config: str, texts: Columns, parse_label: _ParseLabel, splits: tuple[str, ...] = ("train", "dev", "test")
) -> DatasetLayout:
    converter = TextConverter(texts, parse_label, id="idx", hidden=-1)
    return DatasetLayout(
        "nyu-mll/glue", config, {split: split.replace("dev", "validation") for split in splits}, converter
    )


_COLA_COLUMNS = ("source", "label", "mark", "sentence")

COLA = Task(
    name="cola",
    benchmark="glue",
    title="CoLA",
    language="en",
    kind="classification",
    metrics=("matthews",),
    main_metric="matthews",
    labels=_ACCEPTABILITY,
    files={
        "train": _file(("CoLA/train.tsv",), _ONE, numbered(_ACCEPTABILITY), header=_COLA_COLUMNS),
        "dev": _file(("CoLA/dev.tsv",), _ONE, numbered(_ACCEPTABILITY), header=_COLA_COLUMNS),
        "test": _file(("CoLA/test.tsv",), _ONE, numbered(_ACCEPTABILITY), test=True),
    },
    dataset=_dataset("cola", _ONE, named(_ACCEPTABILITY)),
)

SST2 = Task(
    name="sst2",
    benchmark="glue",
    title="SST-2",
    language="en",
    kind="classification",
    metrics=("accuracy",),
    main_metric="accuracy",
    labels=_SENTIMENT,
    files={
        "train": _file(("SST-2/train.tsv",), _ONE, numbered(_SENTIMENT)),
        "dev": _file(("SST-2/dev.tsv",), _ONE, numbered(_SENTIMENT)),
        "test": _file(("SST-2/test-labeled.tsv", "SST-2/test.tsv"), _ONE, numbered(_SENTIMENT), test=True),
    },
    dataset=_dataset("sst2", _ONE, named(_SENTIMENT)),
)

MRPC = Task(
    name="mrpc",
    benchmark="glue",
    title="MRPC",
    language="en",
    kind="classification",
    metrics=("accuracy", "f1"),
    main_metric="accuracy",
    labels=_EQUIVALENCE,
    files={
        "train": _file(("MRPC/train.tsv",), _STRINGS, numbered(_EQUIVALENCE), "Quality"),
        "dev": _file(("MRPC/dev.tsv",), _STRINGS, numbered(_EQUIVALENCE), "Quality"),
        "test": _file(
            ("MRPC/msr_paraphrase_test.txt", "MRPC/test.tsv"), _STRINGS, numbered(_EQUIVALENCE), "Quality", test=True
        ),
    },
    dataset=_dataset("mrpc", _TWO, named(_EQUIVALENCE)),
    double_unordered=True,
)

STSB = Task(
    name="stsb",
    benchmark="glue",
    title="STS-B",
    language="en",
    kind="regression",
    metrics=("spearman", "pearson"),
    main_metric="spearman",
    files={
        "train": _file(("STS-B/train.tsv",), _TWO, parse_number, "score"),
        "dev": _file(("STS-B/dev.tsv",), _TWO, parse_number, "score"),
        "test": _file(("STS-B/test.tsv",), _TWO, parse_number, "score", test=True),
    },
    dataset=_dataset("stsb", _TWO, parse_number),
    epochs=10.0,
    double_unordered=True,
    label_scale=5.0,
)

QQP = Task(
    name="qqp",
    benchmark="glue",
    title="QQP",
    language="en",
    kind="classification",
    metrics=("accuracy", "f1"),
    main_metric="accuracy",
    labels=_DUPLICATION,
    # The official files have some rows that a line break inside a question cut in two.
    files={
        "train": _file(
            ("QQP/train.tsv", "QQP/train_slice.tsv"),
            _QUESTIONS,
            numbered(_DUPLICATION),
            "is_duplicate",
            "id",
            skip_broken_rows=True,
        ),
        "dev": _file(
            ("QQP/dev.tsv", "QQP/dev_slice.tsv"),
            _QUESTIONS,
            numbered(_DUPLICATION),
            "is_duplicate",
            "id",
            skip_broken_rows=True,
        ),
        "test": _file(("QQP/test.tsv",), _QUESTIONS, numbered(_DUPLICATION), "is_duplicate", "id", test=True),
    },
    dataset=_dataset("qqp", _QUESTIONS, named(_DUPLICATION)),
)

MNLI = Task(
    name="mnli",
    benchmark="glue",
    title="MNLI",
    language="en",
    kind="classification",
    metrics=("accuracy",),
    main_metric="accuracy",
    labels=_INFERENCE,
    files={
        "train": _file(("MNLI/train.tsv", "MNLI/train_slice.tsv"), _TWO, named(_INFERENCE), "gold_label"),
        "dev_matched": _file(("MNLI/dev_matched.tsv", "MNLI/dev_slice.tsv"), _TWO, named(_INFERENCE), "gold_label"),
        "dev_mismatched": _file(("MNLI/dev_mismatched.tsv",), _TWO, named(_INFERENCE), "gold_label"),
        "test_matched": _file(("MNLI/test_matched.tsv",), _TWO, named(_INFERENCE), "gold_label", test=True),
        "test_mismatched": _file(("MNLI/test_mismatched.tsv",), _TWO, named(_INFERENCE), "gold_label", test=True),
    },
    dataset=_dataset(
        "mnli",
        _PREMISE_AND_HYPOTHESIS,
        named(_INFERENCE),
        ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched"),
    ),
    dev_splits=("dev_matched", "dev_mismatched"),
    test_splits=("test_matched", "test_mismatched"),
)

QNLI = Task(
    name="qnli",
    benchmark="glue",
    title="QNLI",
    language="en",
    kind="classification",
    metrics=("accuracy",),
    main_metric="accuracy",
    labels=_ENTAILMENT,
    files={
        "train": _file(("QNLI/train.tsv",), _QUESTION_AND_SENTENCE, named(_ENTAILMENT)),
        "dev": _file(("QNLI/dev.tsv",), _QUESTION_AND_SENTENCE, named(_ENTAILMENT)),
        "test": _file(("QNLI/test.tsv",), _QUESTION_AND_SENTENCE, named(_ENTAILMENT), test=True),
    },
    dataset=_dataset("qnli", _QUESTION_AND_SENTENCE, named(_ENTAILMENT)),
)

RTE = Task(
    name="rte",
    benchmark="glue",
    title="RTE",
    language="en",
    kind="classification",
    metrics=("accuracy",),
    main_metric="accuracy",
    labels=_ENTAILMENT,
    files={
        "train": _file(("RTE/train.tsv",), _TWO, named(_ENTAILMENT)),
        "dev": _file(("RTE/dev.tsv",), _TWO, named(_ENTAILMENT)),
        "test": _file(("RTE/test.tsv",), _TWO, named(_ENTAILMENT), test=True),
    },
    dataset=_dataset("rte", _TWO, named(_ENTAILMENT)),
    epochs=10.0,
)

WNLI = Task(
    name="wnli",
    benchmark="glue",
    title="WNLI",
    language="en",
    kind="classification",
    metrics=("accuracy",),
    main_metric="accuracy",
    labels=_COREFERENCE,
    files={
        "train": _file(("WNLI/train.tsv",), _TWO, numbered(_COREFERENCE)),
        "dev": _file(("WNLI/dev.tsv",), _TWO, numbered(_COREFERENCE)),
        "test": _file(("WNLI/test.tsv",), _TWO, numbered(_COREFERENCE), test=True),
    },
    dataset=_dataset("wnli", _TWO, named(_COREFERENCE)),
)

AX = Task(
    name="ax",
    benchmark="glue",
    title="AX",
    language="en",
    kind="classification",
    metrics=("matthews",),
    main_metric="matthews",
    labels=_INFERENCE,
    files={
        "test": _file(
            ("diagnostic/diagnostic.tsv", "AX/AX.tsv", "AX/diagnostic.tsv"), _TWO, named(_INFERENCE), test=True
        )
    },
    dataset=_dataset("ax", _PREMISE_AND_HYPOTHESIS, named(_INFERENCE), ("test",)),
    train_split=None,
    dev_splits=(),
    trained_on="mnli",
)

GLUE = (COLA, SST2, MRPC, STSB, QQP, MNLI, QNLI, RTE, WNLI, AX)
