"""CLUE (cluebenchmarks.com): the Chinese tasks, with OCNLI, and CLUENER.

Files lie as in the official downloads: a directory a task, named `afqmc` or `afqmc_public`; the few-shot files of
FewCLUE are read where IFLYTEK's and CSL's are not there. Labels are what the test server takes.

Epochs are three where nothing is said, as the ELECTRA paper fine-tunes on GLUE (Table 7); `Task.epochs` of the others
says whose they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hf_electra_rtd.finetuning.converters import (
    Columns,
    Row,
    SpanConverter,
    TextConverter,
    bio_tags,
    convert_c3,
    convert_chid,
    convert_dataset_question,
    convert_question,
    mark_spans,
    named,
    pair_keywords,
    split_blanks,
)
from hf_electra_rtd.finetuning.layouts import DatasetLayout, FileFormat, FileLayout, ToExample
from hf_electra_rtd.finetuning.tasks import Task


_BINARY = ("0", "1")
_NEWS = ("100", "101", "102", "103", "104", "106", "107", "108", "109", "110", "112", "113", "114", "115", "116")
_APPLICATIONS = tuple(str(index) for index in range(119))
_INFERENCE = ("neutral", "entailment", "contradiction")
_COREFERENCE = ("true", "false")
_ENTITIES = (
    "address",
    "book",
    "company",
    "game",
    "government",
    "movie",
    "name",
    "organization",
    "position",
    "scene",
)

# The test sets that CLUE 1.1 replaced: its directories have those of 1.0 beside the new ones.
_NEW_TEST = ("test1.1.json", "test.json")
_TEST = (*_NEW_TEST, "test1.0.json")

_ONE = Columns(("sentence",))
_TWO = Columns(("sentence1", "sentence2"))


def _paths(directory: str, *names: str) -> tuple[str, ...]:
    """Where a file may lie: in either directory, under the first name before the others."""
    return tuple(
        "+".join(f"{place}/{part}" for part in name.split("+"))
        for name in names
        for place in (directory, f"{directory}_public")
    )


def _text_files(
    directory: str,
    texts: Callable[[Row], tuple[str, ...]],
    labels: tuple[str, ...],
    train: tuple[str, ...] = ("train.json",),
    test: tuple[str, ...] = ("test.json",),
    few: str | None = None,
) -> dict[str, FileLayout]:
    """Files of JSON lines, and after the official ones those of a directory of FewCLUE."""

    def layout(names: tuple[str, ...], few_name: str, may_lack_label: bool = False) -> FileLayout:
        paths = _paths(directory, *names) + (() if few is None else (f"{few}/{few_name}",))
        return FileLayout(paths, "json_lines", TextConverter(texts, named(labels), may_lack_label=may_lack_label))

    return {
        "train": layout(train, "train_few_all.json"),
        "dev": layout(("dev.json",), "dev_few_all.json"),
        "test": layout(test, "test_public.json", may_lack_label=True),
    }


def _text_dataset(config: str, texts: Callable[[Row], tuple[str, ...]], labels: tuple[str, ...]) -> DatasetLayout:
    return _dataset(config, TextConverter(texts, named(labels), id="idx", hidden=-1))


def _dataset(config: str, to_example: ToExample, trial: bool = False, **options: Any) -> DatasetLayout:
    splits = {"train": "train", "dev": "validation", "test": "test"} | ({"trial": "trial"} if trial else {})
    return DatasetLayout("clue/clue", config, splits, to_example, **options)


def _files(
    directory: str, format: FileFormat, to_example: ToExample, **names: tuple[str, ...]
) -> dict[str, FileLayout]:
    """Files of one format: the names that each split's may have."""
    return {split: FileLayout(_paths(directory, *files), format, to_example) for split, files in names.items()}


AFQMC = Task(
    name="afqmc",
    benchmark="clue",
    title="AFQMC",
    language="zh",
    kind="classification",
    metrics=("accuracy",),
    main_metric="accuracy",
    labels=_BINARY,
    files=_text_files("afqmc", _TWO, _BINARY),
    dataset=_text_dataset("afqmc", _TWO, _BINARY),
)

# The keywords are left out: there are releases whose development set has them, and whose other sets do not. So is the
# test set of CLUE 1.0: it has as many rows as that of 1.1, so nobody could tell which of them was predicted.
TNEWS = Task(
    name="tnews",
    benchmark="clue",
    title="TNEWS",
    language="zh",
    kind="classification",
    metrics=("accuracy",),
    main_metric="accuracy",
    labels=_NEWS,
    files=_text_files("tnews", _ONE, _NEWS, test=_NEW_TEST),
    dataset=_text_dataset("tnews", _ONE, _NEWS),
)

IFLYTEK = Task(
    name="iflytek",
    benchmark="clue",
    title="IFLYTEK",
    language="zh",
    kind="classification",
    metrics=("accuracy",),
    main_metric="accuracy",
    labels=_APPLICATIONS,
    files=_text_files("iflytek", _ONE, _APPLICATIONS, few="iflytek_few"),
    dataset=_text_dataset("iflytek", _ONE, _APPLICATIONS),
)

CMNLI = Task(
    name="cmnli",
    benchmark="clue",
    title="CMNLI",
    language="zh",
    kind="classification",
    metrics=("accuracy",),
    main_metric="accuracy",
    labels=_INFERENCE,
    files=_text_files("cmnli", _TWO, _INFERENCE),
    dataset=_text_dataset("cmnli", _TWO, _INFERENCE),
)

OCNLI = Task(
    name="ocnli",
    benchmark="clue",
    title="OCNLI",
    language="zh",
    kind="classification",
    metrics=("accuracy",),
    main_metric="accuracy",
    labels=_INFERENCE,
    files=_text_files(
        "ocnli", _TWO, _INFERENCE, train=("train.json", "train.50k.json", "train.10k.json", "train.3k.json")
    ),
    dataset=_text_dataset("ocnli", _TWO, _INFERENCE),
)

CLUEWSC2020 = Task(
    name="cluewsc2020",
    benchmark="clue",
    title="CLUEWSC2020",
    language="zh",
    kind="classification",
    metrics=("accuracy",),
    main_metric="accuracy",
    labels=_COREFERENCE,
    files=_text_files("cluewsc2020", mark_spans, _COREFERENCE, test=_TEST),
    dataset=_text_dataset("cluewsc2020", mark_spans, _COREFERENCE),
    epochs=10.0,  # the paper's of RTE, which has twice as many rows
)

CSL = Task(
    name="csl",
    benchmark="clue",
    title="CSL",
    language="zh",
    kind="classification",
    metrics=("accuracy",),
    main_metric="accuracy",
    labels=_BINARY,
    files=_text_files("csl", pair_keywords, _BINARY, few="csl_few"),
    dataset=_text_dataset("csl", pair_keywords, _BINARY),
    max_length=256,  # 128 would cut nearly all abstracts
)

# Two epochs: Cui et al. 2019 (arXiv 1906.08101) of CMRC 2018 and DRCD, and the ELECTRA paper of SQuAD.
CMRC2018 = Task(
    name="cmrc2018",
    benchmark="clue",
    title="CMRC 2018",
    language="zh",
    kind="question_answering",
    metrics=("exact_match", "f1"),
    main_metric="f1",
    files=_files(
        "cmrc2018",
        "squad",
        convert_question,
        train=("train.json", "cmrc2018_train.json"),
        dev=("dev.json", "cmrc2018_dev.json"),
        test=("test.json", "cmrc2018_test.json"),
        trial=("trial.json", "cmrc2018_trial.json"),
    ),
    dataset=_dataset("cmrc2018", convert_dataset_question, trial=True),
    epochs=2.0,
    max_length=512,
)

DRCD = Task(
    name="drcd",
    benchmark="clue",
    title="DRCD",
    language="zh",
    kind="question_answering",
    metrics=("exact_match", "f1"),
    main_metric="f1",
    files=_files(
        "drcd",
        "squad",
        convert_question,
        train=("train.json", "DRCD_training.json"),
        dev=("dev.json", "DRCD_dev.json"),
        test=("test.json", "DRCD_test.json"),
    ),
    dataset=_dataset("drcd", convert_dataset_question),
    epochs=2.0,
    max_length=512,
)

C3 = Task(
    name="c3",
    benchmark="clue",
    title="C3",
    language="zh",
    kind="multiple_choice",
    metrics=("accuracy",),
    main_metric="accuracy",
    files=_files(
        "c3",
        "c3",
        convert_c3,
        train=("train.json", "m-train.json+d-train.json", "c3-m-train.json+c3-d-train.json"),
        dev=("dev.json", "m-dev.json+d-dev.json", "c3-m-dev.json+c3-d-dev.json"),
        test=(*_TEST, "m-test.json+d-test.json", "c3-m-test.json+c3-d-test.json"),
    ),
    dataset=_dataset("c3", convert_c3),
    epochs=8.0,  # the baseline's (CLUEbenchmark/CLUE, run_c3.py)
    max_length=512,
)

CHID = Task(
    name="chid",
    benchmark="clue",
    title="ChID",
    language="zh",
    kind="multiple_choice",
    metrics=("accuracy",),
    main_metric="accuracy",
    files=_files("chid", "chid", convert_chid, train=("train.json",), dev=("dev.json",), test=_TEST),
    dataset=_dataset("chid", convert_chid, expand=split_blanks),
)

CLUENER2020 = Task(
    name="cluener2020",
    benchmark="clue",
    title="CLUENER",
    language="zh",
    kind="tagging",
    metrics=("macro_f1", "f1"),
    main_metric="macro_f1",  # the mean over the ten types, as published (CLUEbenchmark/CLUENER2020)
    labels=bio_tags(_ENTITIES),
    files={
        split: FileLayout(
            _paths("cluener2020", f"{split}.json") + _paths("cluener", f"{split}.json"),
            "json_lines",
            SpanConverter(_ENTITIES, may_lack_label=split == "test"),
        )
        for split in ("train", "dev", "test")
    },
)

CLUE = (AFQMC, TNEWS, IFLYTEK, CMNLI, OCNLI, CLUEWSC2020, CSL, CMRC2018, DRCD, C3, CHID, CLUENER2020)
