"""Tasks outside GLUE and CLUE on which the peers report: Chinese classification, SQuAD and text chunking.

Files lie in a directory a task, or, where their names tell them apart, side by side. Epochs and lengths of the Chinese
tasks are those of Cui et al. 2019 (arXiv 1906.08101), whose authors trained the Chinese ELECTRA models; of the English
ones those of the ELECTRA paper (Table 7).
"""

from __future__ import annotations

from hf_electra_rtd.finetuning.converters import (
    ClassNames,
    Columns,
    LanguageColumns,
    TextConverter,
    bio_tags,
    convert_dataset_question,
    convert_question,
    convert_tags,
    named,
)
from hf_electra_rtd.finetuning.layouts import DatasetLayout, FileLayout
from hf_electra_rtd.finetuning.tasks import Task


_SENTIMENT = ("negative", "positive")
_BINARY = ("0", "1")
_INFERENCE = ("entailment", "neutral", "contradiction")
_CHUNKS = ("ADJP", "ADVP", "CONJP", "INTJ", "LST", "NP", "PP", "PRT", "SBAR", "UCP", "VP")

_ONE = Columns(("text",))
_TWO = Columns(("sentence1", "sentence2"))
_PAIR_COLUMNS = ("sentence1", "sentence2", "label")


def _paths(directory: str, *names: str) -> tuple[str, ...]:
    return (*(f"{directory}/{name}" for name in names), *names)


def _pairs(*directories: str) -> dict[str, FileLayout]:
    """Pairs and their labels, without a header."""
    converter = TextConverter(_TWO, named(_BINARY))
    return {
        split: FileLayout(
            tuple(f"{directory}/{split}{suffix}" for directory in directories for suffix in (".tsv", ".txt")),
            "tsv",
            converter,
            _PAIR_COLUMNS,
        )
        for split in ("train", "dev", "test")
    }


def _squad(directory: str, version: str) -> dict[str, FileLayout]:
    return {
        split: FileLayout(_paths(directory, f"{split}-{version}.json"), "squad", convert_question)
        for split in ("train", "dev")
    }


def _chunks(split: str) -> FileLayout:
    names = (f"{split}.txt", f"{split}.txt.gz")
    paths = (*(f"conll2000/{name}" for name in names), f"conll2000.zip/conll2000/{split}.txt")
    return FileLayout(paths, "conll", convert_tags)


_CHNSENTICORP_LABELLED = TextConverter(_ONE, named(_SENTIMENT))

CHNSENTICORP = Task(
    name="chnsenticorp",
    benchmark="more",
    title="ChnSentiCorp",
    language="zh",
    kind="classification",
    metrics=("accuracy",),
    main_metric="accuracy",
    labels=_SENTIMENT,
    files={
        "train": FileLayout(("chnsenticorp/train.tsv",), "tsv", _CHNSENTICORP_LABELLED, ("text", "label")),
        "dev": FileLayout(("chnsenticorp/dev.tsv",), "tsv", _CHNSENTICORP_LABELLED, ("text", "label")),
        "test": FileLayout(
            ("chnsenticorp/test.tsv",),
            "tsv",
            TextConverter(Columns(("text_a",)), named(_SENTIMENT), id="qid", may_lack_label=True),
        ),
    },
    max_length=256,
)

LCQMC = Task(
    name="lcqmc",
    benchmark="more",
    title="LCQMC",
    language="zh",
    kind="classification",
    metrics=("accuracy",),
    main_metric="accuracy",
    labels=_BINARY,
    files=_pairs("lcqmc", "LCQMC"),
)

BQ = Task(
    name="bq",
    benchmark="more",
    title="BQ",
    language="zh",
    kind="classification",
    metrics=("accuracy",),
    main_metric="accuracy",
    labels=_BINARY,
    files=_pairs("bq", "bq_corpus"),
)

_XNLI_TEXTS = LanguageColumns("zh", _TWO)

XNLI = Task(
    name="xnli",
    benchmark="more",
    title="XNLI",
    language="zh",
    kind="classification",
    metrics=("accuracy",),
    main_metric="accuracy",
    labels=_INFERENCE,
    files={
        "train": FileLayout(
            ("XNLI-MT-1.0/multinli/multinli.train.zh.tsv", "xnli/multinli.train.zh.tsv"),
            "tsv",
            TextConverter(
                Columns(("premise", "hypo")),
                # the translated training set has a name of its own for contradictions
                ClassNames({**{label: label for label in _INFERENCE}, "contradictory": "contradiction"}),
            ),
        ),
        **{
            split: FileLayout(
                (f"XNLI-1.0/xnli.{split}.tsv", f"xnli/xnli.{split}.tsv"),
                "tsv",
                TextConverter(_XNLI_TEXTS, named(_INFERENCE), "gold_label"),
            )
            for split in ("dev", "test")
        },
    },
    dataset=DatasetLayout(
        "facebook/xnli",
        "zh",
        {"train": "train", "dev": "validation", "test": "test"},
        TextConverter(Columns(("premise", "hypothesis")), named(_INFERENCE)),
    ),
    epochs=2.0,
)

SQUAD1 = Task(
    name="squad1",
    benchmark="more",
    title="SQuAD 1.1",
    language="en",
    kind="question_answering",
    metrics=("exact_match", "f1"),
    main_metric="f1",
    files=_squad("squad1", "v1.1"),
    dataset=DatasetLayout("rajpurkar/squad", None, {"train": "train", "dev": "validation"}, convert_dataset_question),
    test_splits=(),
    epochs=2.0,
    max_length=512,
)

SQUAD2 = Task(
    name="squad2",
    benchmark="more",
    title="SQuAD 2.0",
    language="en",
    kind="question_answering",
    metrics=("exact_match", "f1"),
    main_metric="f1",
    files=_squad("squad2", "v2.0"),
    dataset=DatasetLayout(
        "rajpurkar/squad_v2", None, {"train": "train", "dev": "validation"}, convert_dataset_question
    ),
    test_splits=(),
    epochs=2.0,
    max_length=512,
    unanswerable=True,
)

# The shared task has no development set. The original judges models by the test set, too, as nothing is chosen by it.
CONLL2000 = Task(
    name="conll2000",
    benchmark="more",
    title="CoNLL-2000",
    language="en",
    kind="tagging",
    metrics=("f1",),
    main_metric="f1",
    labels=bio_tags(_CHUNKS),
    files={"train": _chunks("train"), "test": _chunks("test")},
    dev_splits=("test",),
    test_splits=(),
)

MORE = (CHNSENTICORP, LCQMC, BQ, XNLI, SQUAD1, SQUAD2, CONLL2000)
