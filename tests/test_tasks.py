"""The table of tasks."""

import pytest

from hf_electra_rtd.base.tasks import BENCHMARKS, GLUE, expand_task_names, get_task, guests
from hf_electra_rtd.finetuning.data import LABELED
from hf_electra_rtd.finetuning.scores import METRICS


TASKS = [task for tasks in BENCHMARKS.values() for task in tasks]


def test_every_task_is_found_by_its_name_in_its_benchmark():
    assert len({task.name for task in TASKS}) == len({task.title for task in TASKS}) == len(TASKS)
    assert all(get_task(task.benchmark, task.name) is task for task in TASKS)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_facts_of_a_task_agree_with_each_other(task):
    assert set(task.metrics) <= set(METRICS[task.kind])
    assert len(set(task.labels)) == len(task.labels)
    assert bool(task.labels) == (task.kind in LABELED)
    assert not task.splits or set(task.splits) == set(task.files)
    assert {*task.dev_splits, *task.test_splits} <= set(task.files)
    assert ("train" in task.files) == (task.trained_on is None)
    assert bool(task.submission) == bool(task.submission_format)
    assert set(task.submission) <= set(task.test_splits)
    paths = [path for paths in task.files.values() for path in paths]
    assert len(set(paths)) == len(paths)  # no two splits share a file


def test_all_stands_for_what_can_be_trained_on_and_names_are_kept_once():
    assert expand_task_names("glue", ["all"]) == tuple(task.name for task in GLUE if task.name != "ax")
    assert expand_task_names("glue", ["rte", "all", "rte"])[:2] == ("rte", "cola")
    assert [task.name for task in guests(get_task("glue", "mnli"))] == ["ax"]


@pytest.mark.parametrize(
    ("benchmark", "name", "message"),
    [
        ("glue", "mrcp", "'mrcp'.*'mrpc'"),
        ("glue", "ax", "mnli"),
        ("gleu", "all", "'gleu'.*'glue'"),
    ],
)
def test_names_that_cannot_be_trained_on_are_refused(benchmark, name, message):
    with pytest.raises(ValueError, match=message):
        expand_task_names(benchmark, [name])
