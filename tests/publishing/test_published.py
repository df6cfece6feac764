import statistics

import pytest

from hf_electra_rtd.finetuning.benchmarks import BENCHMARKS
from hf_electra_rtd.publishing.published import MAIN_METRICS, published_for


SIZES = ("tiny", "small", "small-ex", "base", "large")
GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")


@pytest.mark.parametrize(
    ("size", "name", "average"),
    [
        # As the sources print them.
        ("small", "Google ELECTRA-Small-OWT", 80.36),
        ("small", "R. Wang ELECTRA-Small-OWT", 80.36),
        ("small", "junnyu ELECTRA-Small-OWT", 80.30),
        ("large", "Google ELECTRA-Large", 89.5),
        ("large", "Google ELECTRA-400K", 89.0),
        ("large", "BERT-Large, trained by the authors of ELECTRA", 87.2),
        # The source prints 79.2, which is not the mean of the eight figures beside it.
        ("small", "ML reproducibility ELECTRA-Small-OWT", 78.79),
    ],
)
def test_glue_figures_have_the_average_that_their_source_gives(size, name, average):
    rows = {row.name: row for row in published_for("glue", size)}
    assert tuple(rows[name].scores) == GLUE
    # Most sources print one decimal, and their figures are rounded as well.
    assert statistics.fmean(rows[name].scores.values()) == pytest.approx(average, abs=0.051)


@pytest.mark.parametrize(
    ("size", "name"),
    [("small", "Google ELECTRA-Small-OWT"), ("base", "Google ELECTRA-Base"), ("large", "Google ELECTRA-Large")],
)
def test_averages_are_compared_with_the_model_that_others_can_have(size, name):
    assert published_for("glue", size)[0].name == name


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
@pytest.mark.parametrize("benchmark", MAIN_METRICS)
def test_every_row_names_its_source_and_holds_percentages_of_the_benchmark_alone(benchmark, size):
    for row in published_for(benchmark, size):
        assert row.source
        assert row.scores
        assert row.scores.keys() <= set(MAIN_METRICS[benchmark])
        assert all(30 < score < 100 for score in row.scores.values())


@pytest.mark.parametrize(("benchmark", "size"), [("own", "small"), ("glue", "pico"), ("glue", "small-ex")])
def test_where_nothing_is_published_there_are_no_rows(benchmark, size):
    assert published_for(benchmark, size) == []


def test_columns_are_the_tasks_that_can_be_trained_on_in_order_with_their_main_metrics():
    assert tuple(MAIN_METRICS["glue"]) == (*GLUE, "wnli")
    assert {name: list(metrics.items()) for name, metrics in MAIN_METRICS.items()} == {
        name: [(task.name, task.main_metric) for task in tasks if task.train_split is not None]
        for name, tasks in BENCHMARKS.items()
    }


# What the papers and pages say that their figures are of; accuracy where nothing is said.
REPORTED = {"cola": "matthews", "stsb": "spearman", "cmrc2018": "f1", "drcd": "f1", "conll2000": "f1"}
OTHERWISE = {"lonePatient": {"stsb": "pearson"}, "in the paper": {"squad1": "f1", "squad2": "f1"}}
OTHERWISE["400K"] = OTHERWISE["in the paper"]


@pytest.mark.parametrize("benchmark", MAIN_METRICS)
def test_figures_are_of_the_metric_that_their_source_says(benchmark):
    for row in (row for size in SIZES for row in published_for(benchmark, size)):
        expected = {**REPORTED, "squad1": "exact_match", "squad2": "exact_match"}
        for part, metrics in OTHERWISE.items():
            expected |= metrics if part in row.name else {}
        assert {task: row.metric(task) for task in row.scores} == {
            task: expected.get(task, "accuracy") for task in row.scores
        }


@pytest.mark.parametrize("benchmark", MAIN_METRICS)
def test_figures_are_of_the_main_metric_of_their_task_unless_their_row_says_otherwise(benchmark):
    main = {task.name: task.main_metric for task in BENCHMARKS[benchmark]}
    for row in (row for size in SIZES for row in published_for(benchmark, size)):
        different = {task for task in row.scores if row.metric(task) != main[task]}
        assert different == row.metrics.keys() & row.scores.keys()


def test_whose_weights_a_row_is_of_stands_in_its_name():
    names = {row.name for size in SIZES for benchmark in ("glue", "clue") for row in published_for(benchmark, size)}
    fine_tuned = {name for name in names if "lonePatient" in name or "PaddleNLP" in name}
    assert len(fine_tuned) == 5
    assert all(", fine-tuned " in name for name in fine_tuned)
    (paddle,) = [row for row in published_for("glue", "small") if "PaddleNLP" in row.name]
    assert "stsb" not in paddle.scores  # Pearson's or Spearman's, it does not say
