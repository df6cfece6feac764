"""The tasks: one row of a table for each, with every fact about it.

A new task is one more row. Loading, fine-tuning, submission files, tables and cards all read it.

Files are named as in the official downloads (gluebenchmark.com, cluebenchmarks.com). Metrics are those of the ELECTRA
paper (section 4.1), followed by the benchmark's others. Epochs and lengths are those of the paper's Table 7, or of the
source that a row names.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_electra_rtd.base.files import check_name


ALL = "all"
HUB_SPLITS = {"train": "train", "dev": "validation", "test": "test"}  # as most datasets of the Hub call them


@dataclass(frozen=True)
class Task:
    """A task. Labels are classes or BIO tags; files and the Hub give their names, or the indices of classes."""

    name: str  # on the command line, in records and in tables of published scores, such as `mrpc`
    title: str  # for people, such as `MRPC`
    benchmark: str = "own"  # `glue`, `clue`, `more`, or `own` for a user's task
    language: str = "en"  # or `zh`, `ko`, ...; decides how answers are scored; empty if not known
    kind: str = "classification"  # or another kind of `kinds.KINDS`
    metrics: tuple[str, ...] = ("accuracy",)  # the first one chooses models and stands in tables
    labels: tuple[str, ...] = ()  # in the order of the model's outputs
    columns: tuple[str, ...] = ("sentence",)  # hold the one or two texts, or the words to tag; as named on the Hub
    label_column: str = "label"  # holds the label, labels, number, tags, answers or right choice
    id_column: str | None = None  # by default a column with a common name; without one, ids are indices
    dataset: str | None = None  # its id on the Hub, with `config` and `revision`
    config: str | None = None
    revision: str | None = None
    splits: Mapping[str, str] = field(default_factory=dict)  # from names of splits here to those on the Hub
    # The paths under `--data_dir` where each split may lie; the first that exists is read. Files joined with `+` are
    # read one after another.
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    format: str | None = None  # see `reading.read_rows`; by default it follows from the file's name
    renamed: Mapping[str, str] = field(default_factory=dict)  # from columns of the files to their names on the Hub
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # columns of splits whose tsv has no header
    renamed_labels: Mapping[str, str] = field(default_factory=dict)  # from other spellings of labels
    skip_broken_lines: bool = False  # skip tsv lines with too few or too many columns, otherwise an error
    dev_splits: tuple[str, ...] = ("dev",)  # evaluated during and after training; the first one chooses models
    test_splits: tuple[str, ...] = ("test",)  # predicted, and evaluated where they are labeled
    trained_on: str | None = None  # for a task without training data (AX): whose fine-tuned model predicts it
    validation_share: float = 0.0  # own tasks: share of the training file that is the dev split
    epochs: float = 3.0
    max_seq_length: int = 128  # tokens of an example, or of a window of it
    double_unordered: bool = False  # pairs are learned in both orders (google-research/electra, `double_unordered`)
    unanswerable: bool = False  # a context may hold no answer (SQuAD 2.0)
    # For each test split: the name of the file that the server expects, and its number of examples (0 if the file does
    # not have one line for each).
    submission: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    # For GLUE, what its tsv holds: the `index` of the label, the `label` itself or a `number`. For CLUE: `lines`,
    # `answers`, `choices` or `entities`. Empty where no server takes the task.
    submission_format: str = ""

    @property
    def main_metric(self) -> str:
        return self.metrics[0]

    def describe(self) -> dict[str, Any]:
        """Returns the `dataset` of an `EvaluationRecord`."""
        columns = list(self.columns) if self.kind in ("classification", "multi_label", "regression") else []
        hub = {"id": self.dataset, "config": self.config, "splits": dict(self.splits)}
        return {"title": self.title, **hub, "text_columns": columns}


# ---- The table. File names are separated by spaces; each file may lie in any of the task's directories ----

_Names = tuple[str, ...]
_TEXT = ("sentence",)
_PAIR = ("sentence1", "sentence2")
_HYPOTHESIS = ("premise", "hypothesis")
_BINARY = ("0", "1")
_SENTIMENT = ("negative", "positive")
_NOT_ENTAILED = ("entailment", "not_entailment")
_INFERENCE = ("entailment", "neutral", "contradiction")
_CLUE_INFERENCE = ("neutral", "entailment", "contradiction")
_NEWS = tuple(str(code) for code in range(100, 117) if code not in (105, 111))
_ENTITIES = ("address", "book", "company", "game", "government", "movie", "name", "organization", "position", "scene")
_CHUNKS = ("ADJP", "ADVP", "CONJP", "INTJ", "LST", "NP", "PP", "PRT", "SBAR", "UCP", "VP")
_PREMISE = {"sentence1": "premise", "sentence2": "hypothesis", "gold_label": "label"}
_GLUE_FILES = {
    "train": "train.tsv train_slice.tsv",
    "dev": "dev.tsv dev_slice.tsv",
    "test": "test-labeled.tsv msr_paraphrase_test.txt test.tsv",
}
# CLUE 1.1 replaced some test sets. Its directories hold those of CLUE 1.0, as `test.json`, beside the new ones.
_CLUE_FILES = {
    split: f"{names} cmrc2018_{split}.json m-{split}.json+d-{split}.json"
    for split, names in {
        "train": "train.json train.50k.json train.10k.json train.3k.json DRCD_training.json train_few_all.json",
        "dev": "dev.json DRCD_dev.json dev_few_all.json",
        "test": "test1.1.json test_public.json test.json DRCD_test.json",
    }.items()
}
_MORE_FILES = {split: f"{split}.tsv {split}.txt" for split in HUB_SPLITS}
# Epochs of CMRC 2018 and DRCD: Cui et al. 2019 (arXiv 1906.08101); of SQuAD: the paper.
SPANS = {"metrics": ("f1", "exact_match"), "label_column": "answers", "epochs": 2.0, "max_seq_length": 512}
_READING: dict[str, Any] = {"kind": "question_answering", "format": "squad", **SPANS}


def bio_tags(names: Sequence[str]) -> tuple[str, ...]:
    """Returns the tags `O` and, for each name, `B-NAME` (begins) and `I-NAME` (goes on)."""
    return ("O", *(f"{position}-{name}" for name in names for position in "BI"))


def _task(
    name: str, title: str, benchmark: str, *, directories: Sequence[str], files: Mapping[str, str], **facts: Any
) -> Task:
    """Makes a task whose splits, here and on the Hub, are those that have files."""
    paths = {
        split: tuple(
            "+".join(posixpath.join(directory, part) for part in name.split("+"))
            for directory in directories
            for name in given.split()
        )
        for split, given in files.items()
    }
    derived = {f"{part}_splits": tuple(split for split in files if split.startswith(part)) for part in ("dev", "test")}
    hub = {split: split.replace("dev", "validation") for split in files} if facts.get("dataset") else {}
    return Task(name, title, benchmark, files=paths, **{**derived, "splits": hub, **facts})


def _glue(
    name: str, title: str, examples: int, as_: str, labels: _Names = (), columns: _Names = _TEXT, **facts: Any
) -> Task:
    """Makes a GLUE task. `examples` is the number of examples in the test set (gluebenchmark.com/faq)."""
    hub = {"dataset": "nyu-mll/glue", "config": name, "submission": {"test": (f"{title}.tsv", examples)}}
    given = {"files": _GLUE_FILES, "directories": (title,), **hub, **facts}
    return _task(name, title, "glue", labels=labels, columns=columns, submission_format=as_, **given)


def _clue(
    name: str, title: str, labels: _Names = (), columns: _Names = _TEXT, as_: str = "lines", **facts: Any
) -> Task:
    """Makes a CLUE task. Directories are named `afqmc` or `afqmc_public`; those of FewCLUE (`afqmc_few`) come last.
    Submissions follow CLUE's description of 4 September 2021."""
    given = {"files": _CLUE_FILES, "directories": (name,), "dataset": "clue/clue", "config": name, **facts}
    given["directories"] = [part + suffix for suffix in ("", "_public", "_few") for part in given["directories"]]
    if "submission" in facts:
        given |= {"submission": {"test": facts["submission"]}, "submission_format": as_}
    return _task(name, title, "clue", language="zh", labels=labels, columns=columns, **given)


def _more(name: str, title: str, language: str, labels: _Names, columns: _Names, **facts: Any) -> Task:
    facts = {"files": _MORE_FILES, "language": language, **facts}
    return _task(name, title, "more", labels=labels, columns=columns, **facts)


def _squad(name: str, title: str, version: str, **facts: Any) -> Task:
    files = {split: f"{split}-{version}.json" for split in ("train", "dev")}
    return _more(name, title, "en", (), (), files=files, directories=(name, ""), **facts, **_READING)


GLUE = (
    _glue(
        "cola",
        "CoLA",
        1063,
        "index",
        ("unacceptable", "acceptable"),
        metrics=("matthews",),
        headers=dict.fromkeys(("train", "dev"), ("source", "label", "mark", "sentence")),
    ),
    _glue("sst2", "SST-2", 1821, "index", _SENTIMENT),
    _glue(
        "mrpc",
        "MRPC",
        1725,
        "index",
        ("not_equivalent", "equivalent"),
        _PAIR,
        metrics=("accuracy", "f1"),
        renamed={"#1 String": "sentence1", "#2 String": "sentence2", "Quality": "label"},
        double_unordered=True,
    ),
    _glue(
        "stsb",
        "STS-B",
        1379,
        "number",
        (),
        _PAIR,
        kind="regression",
        metrics=("spearman", "pearson"),
        renamed={"score": "label"},
        epochs=10.0,
        double_unordered=True,
    ),
    _glue(  # a line break inside a question cuts some lines of the official files in two
        "qqp",
        "QQP",
        390_965,
        "index",
        ("not_duplicate", "duplicate"),
        ("question1", "question2"),
        metrics=("accuracy", "f1"),
        renamed={"is_duplicate": "label"},
        skip_broken_lines=True,
    ),
    _glue(
        "mnli",
        "MNLI",
        0,
        "label",
        _INFERENCE,
        _HYPOTHESIS,
        files={"train": "train.tsv train_slice.tsv", "dev_matched": "dev_matched.tsv dev_slice.tsv"}
        | {split: f"{split}.tsv" for split in ("dev_mismatched", "test_matched", "test_mismatched")},
        renamed=_PREMISE,
        submission={"test_matched": ("MNLI-m.tsv", 9796), "test_mismatched": ("MNLI-mm.tsv", 9847)},
    ),
    _glue("qnli", "QNLI", 5463, "label", _NOT_ENTAILED, ("question", "sentence")),
    _glue("rte", "RTE", 3000, "label", _NOT_ENTAILED, _PAIR, epochs=10.0),
    _glue("wnli", "WNLI", 146, "index", _NOT_ENTAILED[::-1], _PAIR),
    _glue(
        "ax",
        "AX",
        1104,
        "label",
        _INFERENCE,
        _HYPOTHESIS,
        metrics=("matthews",),
        files={"test": "diagnostic.tsv AX.tsv"},
        directories=("diagnostic", "AX"),
        renamed=_PREMISE,
        trained_on="mnli",
    ),
)

CLUE = (
    _clue("afqmc", "AFQMC", _BINARY, _PAIR, submission=("afqmc_predict.json", 3861)),
    # Keywords are left out, as some releases have them in the dev set only.
    _clue("tnews", "TNEWS", _NEWS, submission=("tnews11_predict.json", 10_000)),
    _clue("iflytek", "IFLYTEK", tuple(map(str, range(119))), submission=("iflytek_predict.json", 2600)),
    _clue("cmnli", "CMNLI", _CLUE_INFERENCE, _PAIR, submission=("cmnli_predict.json", 13_880)),
    _clue("ocnli", "OCNLI", _CLUE_INFERENCE, _PAIR, submission=("ocnli_50k_predict.json", 3000)),
    _clue(
        "cluewsc2020",
        "CLUEWSC2020",
        ("true", "false"),
        ("text",),
        format="wsc",
        epochs=10.0,  # as in the paper for RTE, which has twice as many examples
        submission=("cluewsc11_predict.json", 2574),
    ),
    _clue(
        "csl",
        "CSL",
        _BINARY,
        ("keyword", "abst"),
        max_seq_length=256,  # 128 would truncate nearly all abstracts
        submission=("csl_predict.json", 3000),
    ),
    _clue("cmrc2018", "CMRC 2018", (), (), "answers", submission=("cmrc2018_predict.json", 0), **_READING),
    _clue("drcd", "DRCD", (), (), **_READING),
    _clue(
        "c3",
        "C3",
        (),
        (),
        kind="multiple_choice",
        label_column="answer",
        format="c3",
        epochs=8.0,  # the baseline's (CLUEbenchmark/CLUE, run_c3.py)
        max_seq_length=512,
        submission=("c311_predict.json", 0),
    ),
    _clue(
        "chid",
        "ChID",
        (),
        (),
        "choices",
        kind="multiple_choice",
        format="chid",
        submission=("chid11_predict.json", 0),
    ),
    _clue(
        "cluener2020",
        "CLUENER",
        bio_tags(_ENTITIES),
        ("text",),
        "entities",
        kind="tagging",
        metrics=("macro_f1", "f1"),  # the mean over the ten types, as published (CLUEbenchmark/CLUENER2020)
        format="cluener",
        directories=("cluener2020", "cluener"),
        submission=("cluener_predict.json", 1345),
        dataset=None,
        config=None,
    ),
)

# Chinese classification: lengths and epochs of Cui et al. 2019 (arXiv 1906.08101), whose authors trained the Chinese
# ELECTRA models.
_BARE = dict.fromkeys(HUB_SPLITS, (*_PAIR, "label"))

MORE = (
    _more(
        "chnsenticorp",
        "ChnSentiCorp",
        "zh",
        _SENTIMENT,
        ("text",),
        directories=("chnsenticorp",),
        headers=dict.fromkeys(("train", "dev"), ("text", "label")),
        renamed={"text_a": "text"},
        max_seq_length=256,
    ),
    _more("lcqmc", "LCQMC", "zh", _BINARY, _PAIR, directories=("lcqmc", "LCQMC"), headers=_BARE),
    _more("bq", "BQ", "zh", _BINARY, _PAIR, directories=("bq", "bq_corpus"), headers=_BARE),
    _more(
        "xnli",
        "XNLI",
        "zh",
        _INFERENCE,
        _HYPOTHESIS,
        files={"train": "multinli.train.zh.tsv", "dev": "xnli.dev.tsv", "test": "xnli.test.tsv"},
        directories=("XNLI-MT-1.0/multinli", "XNLI-1.0", "xnli"),
        format="xnli",
        renamed=_PREMISE | {"hypo": "hypothesis"},
        renamed_labels={"contradictory": "contradiction"},  # in the translated training set
        epochs=2.0,
        dataset="facebook/xnli",
        config="zh",
    ),
    _squad("squad1", "SQuAD 1.1", "v1.1", dataset="rajpurkar/squad"),
    _squad("squad2", "SQuAD 2.0", "v2.0", dataset="rajpurkar/squad_v2", unanswerable=True),
    _more(  # without a dev set: as in the original, the test set is evaluated, but chooses no model
        "conll2000",
        "CoNLL-2000",
        "en",
        bio_tags(_CHUNKS),
        ("text",),
        kind="tagging",
        metrics=("f1",),
        files={split: f"{split}.txt {split}.txt.gz" for split in ("train", "test")},
        directories=("conll2000",),
        dev_splits=("test",),
        test_splits=(),
    ),
)

BENCHMARKS: Mapping[str, tuple[Task, ...]] = {"glue": GLUE, "clue": CLUE, "more": MORE}


def get_task(benchmark: str, name: str) -> Task:
    """Returns a task of a benchmark. Raises ValueError for an unknown name."""
    check_name("benchmark", benchmark, BENCHMARKS)
    tasks = {task.name: task for task in BENCHMARKS[benchmark]}
    check_name(f"Tasks of {benchmark}", name, tasks)
    return tasks[name]


def expand_task_names(benchmark: str, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the tasks to train on, each once; `all` stands for every task of the benchmark with
    training data. Raises ValueError for an unknown name or a task without training data."""
    expanded: list[str] = []
    for name in names:
        if name == ALL and benchmark in BENCHMARKS:
            expanded += [task.name for task in BENCHMARKS[benchmark] if not task.trained_on]
            continue
        if owner := get_task(benchmark, name).trained_on:
            raise ValueError(f"{name} has no training data: the model of {owner} predicts it (predict).")
        expanded.append(name)
    return tuple(dict.fromkeys(expanded))


def guests(task: Task) -> tuple[Task, ...]:
    """Returns the tasks without training data that this task's model predicts: AX for MNLI."""
    return tuple(guest for guest in BENCHMARKS.get(task.benchmark, ()) if guest.trained_on == task.name)
