"""The benchmarks and their tasks, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hf_electra_rtd.finetuning.clue import CLUE
from hf_electra_rtd.finetuning.glue import GLUE
from hf_electra_rtd.finetuning.more import MORE
from hf_electra_rtd.finetuning.reading import describe_known
from hf_electra_rtd.finetuning.tasks import Task


BENCHMARKS: Mapping[str, tuple[Task, ...]] = {"glue": GLUE, "clue": CLUE, "more": MORE}

ALL = "all"


def get_task(benchmark: str, name: str) -> Task:
    """A task of a benchmark.

    Args:
        benchmark: `glue`, `clue` or `more`.
        name: of the task, such as `mrpc`.

    Raises:
        ValueError: for a benchmark or task that there is not, with those that there are.
    """
    for task in _get_tasks(benchmark):
        if task.name == name:
            return task
    raise ValueError(
        f"There is no task {name!r} in {benchmark}. "
        + describe_known(name, [task.name for task in _get_tasks(benchmark)], "Tasks")
    )


def expand_task_names(benchmark: str, names: Sequence[str]) -> tuple[str, ...]:
    """Names of tasks to train on, each once.

    Args:
        benchmark: `glue`, `clue` or `more`.
        names: of tasks; `all` stands for those with rows to train on, in the order of the table.

    Raises:
        ValueError: for no name, a benchmark or task that there is not, with those that there are, or a task that has
            no rows to train on.
    """
    if not names:
        raise ValueError(f"No task of {benchmark} is named. Name one, or {ALL}.")
    expanded: list[str] = []
    for name in names:
        if name == ALL:
            expanded.extend(task.name for task in _get_tasks(benchmark) if task.train_split is not None)
            continue
        task = get_task(benchmark, name)
        if task.trained_on is not None:
            raise ValueError(
                f"{task.title} has no rows to train on: it is predicted by a model of {task.trained_on}, along with "
                "that task's own test rows."
            )
        expanded.append(name)
    return tuple(dict.fromkeys(expanded))


def _get_tasks(benchmark: str) -> tuple[Task, ...]:
    if benchmark not in BENCHMARKS:
        raise ValueError(f"There is no benchmark {benchmark!r}. {describe_known(benchmark, BENCHMARKS, 'Benchmarks')}")
    return BENCHMARKS[benchmark]
