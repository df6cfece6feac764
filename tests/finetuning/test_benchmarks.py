import pytest

from hf_electra_rtd.finetuning.benchmarks import BENCHMARKS, expand_task_names, get_task
from hf_electra_rtd.finetuning.converters import ClassNames, SpanConverter, TextConverter, bio_tags, convert_tags
from hf_electra_rtd.finetuning.scores import SCORES, TAG_SCORES


TASKS = [task for tasks in BENCHMARKS.values() for task in tasks]
all_tasks = pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])

GLUE_NAMES = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")


def test_all_tasks_have_a_name_of_their_own_and_know_their_benchmark():
    assert len({task.name for task in TASKS}) == len(TASKS)
    for benchmark, tasks in BENCHMARKS.items():
        assert {task.benchmark for task in tasks} == {benchmark}


@all_tasks
def test_a_task_is_found_by_its_name(task):
    assert get_task(task.benchmark, task.name) is task


def test_an_unknown_benchmark_or_task_is_told_with_those_that_there_are():
    with pytest.raises(ValueError, match=r"no benchmark 'superglue'.*glue, clue, more.*Did you mean 'glue'\?"):
        get_task("superglue", "rte")
    with pytest.raises(ValueError, match=r"no task 'MRPC' in glue.*cola, sst2, mrpc.*Did you mean 'mrpc'\?"):
        get_task("glue", "MRPC")
    with pytest.raises(ValueError, match="no task 'afqmc' in glue"):
        expand_task_names("glue", ["mrpc", "afqmc"])


def test_all_stands_for_what_can_be_trained_on_in_the_order_of_the_table():
    assert expand_task_names("glue", ["all"]) == GLUE_NAMES
    assert expand_task_names("glue", ["rte", "all"]) == ("rte", *(name for name in GLUE_NAMES if name != "rte"))
    assert expand_task_names("clue", ["all"]) == tuple(task.name for task in BENCHMARKS["clue"])


def test_names_are_kept_in_order_and_once():
    assert expand_task_names("glue", ["rte", "cola", "rte"]) == ("rte", "cola")


def test_a_task_without_rows_to_train_on_is_refused():
    with pytest.raises(ValueError, match="AX has no rows to train on: it is predicted by a model of mnli"):
        expand_task_names("glue", ["ax"])


def test_no_name_is_refused():
    with pytest.raises(ValueError, match="No task of glue is named"):
        expand_task_names("glue", [])


@all_tasks
def test_the_main_metric_is_one_that_is_computed(task):
    known = {"question_answering": ("exact_match", "f1"), "tagging": TAG_SCORES}.get(task.kind, tuple(SCORES))
    assert set(task.metrics) <= set(known)
    assert task.main_metric in task.metrics


@all_tasks
def test_every_split_has_files_and_the_dataset_has_the_same(task):
    used = {task.train_split, *task.dev_splits, *task.test_splits} - {None}
    assert used <= task.files.keys()
    if task.dataset is not None:
        assert task.dataset.splits.keys() == task.files.keys()


@all_tasks
def test_two_splits_never_share_a_file(task):
    paths = [path for layout in task.files.values() for path in layout.paths]
    assert len(set(paths)) == len(paths)
    assert not [path for path in paths if path.startswith("/") or ".." in path or "\\" in path]


@all_tasks
def test_rows_can_say_every_label_of_the_task_and_no_other(task):
    converters = [layout.to_example for layout in task.files.values()]
    converters += [task.dataset.to_example] if task.dataset is not None else []
    for converter in converters:
        if isinstance(converter, TextConverter):
            labels = converter.parse_label.names.values() if isinstance(converter.parse_label, ClassNames) else ()
            assert set(labels) == set(task.labels)
        elif isinstance(converter, SpanConverter):
            assert bio_tags(converter.names) == task.labels
        elif converter is not convert_tags:
            assert task.labels == ()


@all_tasks
def test_only_test_rows_may_lack_a_label(task):
    for split, layout in task.files.items():
        if getattr(layout.to_example, "may_lack_label", False):
            assert split in task.test_splits
            assert split not in task.dev_splits


def test_a_record_names_the_dataset_as_the_hub_knows_it():
    assert get_task("glue", "mnli").describe_dataset() == {
        "title": "MNLI",
        "id": "nyu-mll/glue",
        "config": "mnli",
        "splits": {
            "train": "train",
            "dev_matched": "validation_matched",
            "dev_mismatched": "validation_mismatched",
            "test_matched": "test_matched",
            "test_mismatched": "test_mismatched",
        },
    }
    assert get_task("clue", "cluener2020").describe_dataset()["id"] is None
