import importlib
import statistics

import pytest

from hf_electra_rtd.finetuning.published import BENCHMARK_TASKS, published_for
from hf_electra_rtd.finetuning.tasks import Task


SIZES = ("tiny", "small", "small-ex", "base", "large")


@pytest.mark.parametrize(
    ("size", "place", "name", "average"),
    [
        # Averages as the sources print them.
        ("small", 0, "Google ELECTRA-Small-OWT", 80.36),
        ("small", 2, "R. Wang ELECTRA-Small-OWT", 80.36),
        ("small", 5, "junnyu ELECTRA-Small-OWT", 80.30),
        ("large", 0, "Google ELECTRA-Large", 89.5),
        ("large", 1, "Google ELECTRA-400K", 89.0),
        ("large", 2, "BERT-Large, trained by the authors of ELECTRA", 87.2),
    ],
)
def test_glue_figures_have_the_average_that_their_source_gives(size, place, name, average):
    row = published_for("glue", size)[place]
    assert row.name == name
    assert list(row.scores) == list(BENCHMARK_TASKS["glue"][:8])
    assert statistics.fmean(row.scores.values()) == pytest.approx(average, abs=0.051)


def test_chinese_figures_are_split_between_the_benchmarks():
    clue = {row.name: row.scores for row in published_for("clue", "base")}
    more = {row.name: row.scores for row in published_for("more", "base")}
    assert clue["Harbin ELECTRA-180g-base"] == {"cmrc2018": 87.0, "drcd": 94.2}
    assert more["Harbin ELECTRA-180g-base"] == {"xnli": 79.6, "chnsenticorp": 94.3, "lcqmc": 90.2, "bq": 85.8}
    assert more["Google ELECTRA-Base"] == {"squad1": 86.8, "squad2": 80.5, "conll2000": 97.1}


def test_exact_match_is_not_taken_for_f1():
    for size in ("small", "base", "large"):
        assert {published_for("more", size)[0].metric(task) for task in ("squad1", "squad2")} == {"exact_match"}
    rows = {row.name: row for row in published_for("more", "large")}
    assert rows["Google ELECTRA-Large"].metric("squad2") == "exact_match"
    assert rows["Google ELECTRA-1.75M, in the paper"].metric("squad2") == "f1"
    assert rows["Google ELECTRA-Large"].metric("conll2000") == "f1"
    assert rows["Google ELECTRA-Large"].metric("bq") == "accuracy"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("benchmark", BENCHMARK_TASKS)
def test_every_row_names_its_source_and_holds_percentages_of_the_benchmark_alone(benchmark, size):
    for row in published_for(benchmark, size):
        assert row.source
        assert row.scores
        assert row.scores.keys() <= set(BENCHMARK_TASKS[benchmark])
        assert all(30 < score < 100 for score in row.scores.values())


@pytest.mark.parametrize(("benchmark", "size"), [("own", "small"), ("glue", "pico"), ("glue", "small-ex")])
def test_where_nothing_is_published_there_are_no_rows(benchmark, size):
    assert published_for(benchmark, size) == []


@pytest.mark.parametrize("benchmark", BENCHMARK_TASKS)
def test_tasks_are_judged_by_the_metric_of_their_published_figures(benchmark):
    module = importlib.import_module(f"hf_electra_rtd.finetuning.{benchmark}")
    tasks = {value.name: value for value in vars(module).values() if isinstance(value, Task)}
    assert set(BENCHMARK_TASKS[benchmark]) <= tasks.keys()
    published = {task for size in SIZES for row in published_for(benchmark, size) for task in row.scores}
    comparable = {
        task
        for size in SIZES
        for row in published_for(benchmark, size)
        for task in row.scores
        if row.metric(task) == tasks[task].main_metric
    }
    assert comparable == published
