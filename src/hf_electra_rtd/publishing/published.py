"""Published scores on the development sets, to be printed beside one's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field


# Columns of the tables, in order, each with the metric that stands in them: what can be trained on.
MAIN_METRICS: Mapping[str, Mapping[str, str]] = {
    "glue": {
        "cola": "matthews",
        "sst2": "accuracy",
        "mrpc": "accuracy",
        "stsb": "spearman",
        "qqp": "accuracy",
        "mnli": "accuracy",
        "qnli": "accuracy",
        "rte": "accuracy",
        "wnli": "accuracy",
    },
    "clue": {
        "afqmc": "accuracy",
        "tnews": "accuracy",
        "iflytek": "accuracy",
        "cmnli": "accuracy",
        "ocnli": "accuracy",
        "cluewsc2020": "accuracy",
        "csl": "accuracy",
        "cmrc2018": "f1",
        "drcd": "f1",
        "c3": "accuracy",
        "chid": "accuracy",
        "cluener2020": "macro_f1",
    },
    "more": {
        "chnsenticorp": "accuracy",
        "lcqmc": "accuracy",
        "bq": "accuracy",
        "xnli": "accuracy",
        "squad1": "f1",
        "squad2": "f1",
        "conll2000": "f1",
    },
}
_BY_TASK = {task: metric for metrics in MAIN_METRICS.values() for task, metric in metrics.items()}


@dataclass(frozen=True)
class PublishedRow:
    """Scores of one model.

    Attributes:
        name: of the model, and who pre-trained it, or only fine-tuned it, where that is not the paper's authors.
        source: where the figures stand.
        scores: from task to score on its development set, x 100; of MNLI, matched.
        metrics: of tasks whose score is not of the task's main metric here.
    """

    name: str
    source: str
    scores: Mapping[str, float]
    metrics: Mapping[str, str] = field(default_factory=dict)

    def metric(self, task: str) -> str:
        """What the score of a task is of, by its name in a task's metrics."""
        return self.metrics[task] if task in self.metrics else _BY_TASK[task]


def _glue(line: str) -> dict[str, float]:
    """Scores in the order in which the papers print them."""
    tasks = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
    return dict(zip(tasks, map(float, line.split("/")), strict=True))


def _chinese(line: str) -> dict[str, float]:
    tasks = ("cmrc2018", "drcd", "xnli", "chnsenticorp", "lcqmc", "bq")
    return dict(zip(tasks, map(float, line.split("/")), strict=True))


_LONE_PATIENT = "lonePatient/electra_pytorch, README"
_PEARSON = {"stsb": "pearson"}
_SQUAD_EXACT = {"squad1": "exact_match", "squad2": "exact_match"}
_GOOGLE = "google-research/electra, README (medians over runs)"
_HARBIN = "ymcui/Chinese-ELECTRA, README (best of 10 runs)"

# By size of the model. Scores of test servers, such as those of CLUE's own tiny models, do not belong here. The first
# row of a size is what averages are compared with: for `small`, the model that Google trained on OpenWebText, which
# others can have.
_PUBLISHED: Mapping[str, tuple[PublishedRow, ...]] = {
    "tiny": (
        PublishedRow(
            "CLUE ELECTRA-tiny, fine-tuned by lonePatient",
            _LONE_PATIENT,
            {"afqmc": 69.82, "tnews": 54.48, "iflytek": 56.98},
        ),
    ),
    "small": (
        PublishedRow("Google ELECTRA-Small-OWT", _GOOGLE, _glue("56.8/88.3/87.4/86.8/88.3/78.9/87.9/68.5")),
        PublishedRow(
            "Google ELECTRA-Small++",
            _GOOGLE,
            {
                **_glue("57.0/91.2/88.0/87.5/89.0/81.3/88.4/66.7"),
                "squad1": 75.8,
                "squad2": 70.1,
                "conll2000": 96.5,
            },
            _SQUAD_EXACT,
        ),
        PublishedRow(
            "R. Wang ELECTRA-Small-OWT",
            "richarddwang/electra_pytorch, README (mean of 10 runs)",
            _glue("58.72/88.03/86.04/86.16/88.63/80.4/87.45/67.46"),
        ),
        PublishedRow(
            "ML reproducibility ELECTRA-Small-OWT",
            "cccwam/rc2020_electra, README",  # which prints 79.2 for their average: it is 78.8
            _glue("53.5/88.7/87.6/85.2/86.1/80.2/87.5/61.5"),
        ),
        PublishedRow(
            "S. Arora ELECTRA-Small-OWT",
            "shoarora/lmtuners; model card of shoarora/electra-small-owt",
            _glue("56.3/88.4/75.0/86.1/89.1/77.9/83.0/67.1"),
        ),
        PublishedRow(
            "junnyu ELECTRA-Small-OWT",
            "model card of junnyu/electra_small_discriminator",
            _glue("55.82/89.67/87.0/86.96/89.28/80.08/87.50/66.07"),
        ),
        PublishedRow(
            "Z. Ye ELECTRA-Small-OWT, generator as large",
            "google-research/electra, issue 73",
            _glue("51.04/85.21/83.58/84.79/87.16/75.01/84.79/66.06"),
        ),
        PublishedRow(
            # Its STS-B is left out: 87.24 is said to be of "Pearson/Spearman".
            "electra-small, fine-tuned with PaddleNLP",
            "PaddlePaddle/PaddleNLP, examples/language_model/electra (best of 3 runs; who pre-trained is not told)",
            {
                "cola": 58.22,
                "sst2": 91.85,
                "mrpc": 88.24,
                "qqp": 88.83,
                "mnli": 82.45,
                "qnli": 88.61,
                "rte": 66.78,
            },
        ),
        PublishedRow(
            "Google ELECTRA-Small, fine-tuned by lonePatient",
            _LONE_PATIENT,
            {"cola": 56.6, "sst2": 90.5, "stsb": 87.6},
            _PEARSON,
        ),
        PublishedRow("Harbin ELECTRA-small", _HARBIN, _chinese("80.8/86.7/73.3/92.8/86.7/83.5")),
        PublishedRow("Harbin ELECTRA-180g-small", _HARBIN, _chinese("82.7/89.2/74.6/94.1/86.6/83.3")),
    ),
    "small-ex": (
        PublishedRow("Harbin ELECTRA-small-ex", _HARBIN, _chinese("82.2/89.5/75.4/92.6/87.5/84.0")),
        PublishedRow("Harbin ELECTRA-180g-small-ex", _HARBIN, _chinese("85.1/92.3/76.5/92.8/87.6/84.6")),
    ),
    "base": (
        PublishedRow(
            "Google ELECTRA-Base",
            _GOOGLE,
            {
                **_glue("67.7/95.1/89.5/91.2/91.5/88.8/93.2/82.7"),
                "squad1": 86.8,
                "squad2": 80.5,
                "conll2000": 97.1,
            },
            _SQUAD_EXACT,
        ),
        PublishedRow(
            "Google ELECTRA-Base, in the paper",
            "ELECTRA paper (arXiv 2003.10555), Table 4",
            {"squad1": 90.8, "squad2": 83.3},
        ),
        PublishedRow(
            "Google ELECTRA-Base, fine-tuned by lonePatient",
            _LONE_PATIENT,
            {"cola": 67.8, "sst2": 94.2, "stsb": 91.1},
            _PEARSON,
        ),
        PublishedRow("Harbin ELECTRA-base", _HARBIN, _chinese("84.8/92.5/77.9/93.8/90.2/84.8")),
        PublishedRow("Harbin ELECTRA-180g-base", _HARBIN, _chinese("87.0/94.2/79.6/94.3/90.2/85.8")),
        PublishedRow("BERT-base, Chinese", _HARBIN, _chinese("84.5/89.9/77.8/94.7/89.4/86.0")),
        PublishedRow("RoBERTa-wwm-ext, Chinese", _HARBIN, _chinese("87.2/92.5/80.0/95.0/89.0/86.0")),
    ),
    "large": (
        PublishedRow(
            "Google ELECTRA-Large",
            _GOOGLE,
            {
                **_glue("69.1/96.9/90.8/92.6/92.4/90.9/95.0/88.0"),
                "squad1": 89.7,
                "squad2": 88.1,
                "conll2000": 97.2,
            },
            _SQUAD_EXACT,
        ),
        PublishedRow(
            "Google ELECTRA-1.75M, in the paper",
            "ELECTRA paper (arXiv 2003.10555), Table 4",
            {"squad1": 94.9, "squad2": 90.6},
        ),
        PublishedRow(
            "Google ELECTRA-400K",
            "ELECTRA paper (arXiv 2003.10555), Tables 2 and 4",
            {**_glue("69.3/96.0/90.6/92.1/92.4/90.5/94.5/86.8"), "squad1": 94.2, "squad2": 89.6},
        ),
        PublishedRow(
            "BERT-Large, trained by the authors of ELECTRA",
            "ELECTRA paper (arXiv 2003.10555), Table 2",
            _glue("67.0/95.9/89.1/91.2/91.5/89.6/93.5/79.5"),
        ),
        PublishedRow(
            "Google ELECTRA-Large, fine-tuned by lonePatient",
            _LONE_PATIENT,
            {"cola": 71.1, "sst2": 95.8, "stsb": 92.4},
            _PEARSON,
        ),
        PublishedRow("Harbin ELECTRA-large", _HARBIN, _chinese("85.2/93.3/81.5/95.2/90.7/86.7")),
        PublishedRow("Harbin ELECTRA-180g-large", _HARBIN, _chinese("86.2/94.8/81.2/94.8/90.3/86.4")),
    ),
}


def published_for(benchmark: str, size: str) -> list[PublishedRow]:
    """The published scores of models of a size, on the tasks of a benchmark.

    Args:
        benchmark: `glue`, `clue`, `more`, or `own`, for which there are none.
        size: `small`, `base` or `large` as in the ELECTRA paper's Table 6, or a Chinese model's `tiny` or `small-ex`.
            For any other there are none.

    Returns:
        Rows with scores on at least one of the tasks, each with these scores alone; what one's own are to be compared
        with comes first.
    """
    tasks = MAIN_METRICS.get(benchmark, {})
    rows = []
    for row in _PUBLISHED.get(size, ()):
        scores = {task: row.scores[task] for task in tasks if task in row.scores}
        if scores:
            rows.append(dataclasses.replace(row, scores=scores))
    return rows
