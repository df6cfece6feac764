import math

import pytest
from matplotlib.figure import Figure

from hf_electra_rtd.publishing.along_pretraining import plot_along_pretraining
from hf_electra_rtd.records import EvaluationRecord, FractionRecord


def make_run(task, score, seed=1, metric="accuracy"):
    return EvaluationRecord(
        command="", started="", finished="", benchmark="glue", task=task, language="en", kind="classification",
        model={}, arguments={}, seed=seed, data={}, metrics={"dev": {metric: score}, "test": {metric: 0.99}},
        main_metric=metric, selection="last step", steps=1, epochs=1.0, train_seconds=1.0, sentences_per_second=1.0,
        hardware={}, versions={},
    )  # fmt: skip


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    figures = []
    save = Figure.savefig

    def keep(figure, *args, **options):
        figures.append(figure)
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def points(axis):
    return sorted(
        (float(x), round(float(y), 6))
        for line in axis.get_lines()
        if line.get_marker() == "o"
        for x, y in line.get_xydata()
    )


def line(axis, label):
    (found,) = [line for line in axis.get_lines() if str(line.get_label()).startswith(label)]
    return [(float(x), round(float(y), 6)) for x, y in found.get_xydata()]


def test_every_run_is_a_point_and_the_median_a_line(tmp_path, drawn):
    towers = [
        (FractionRecord(1.0, 200, 6400, 2.0), [make_run("rte", score) for score in (0.6, 0.64, 0.7)]),
        (100, [make_run("rte", score) for score in (0.5, 0.58)]),
    ]
    path = plot_along_pretraining(towers[::-1], [make_run("rte", 0.53), make_run("rte", 0.47)], tmp_path)
    assert path.name == "along_pretraining.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    (axis,) = drawn[0].axes
    assert points(axis) == [(100, 50.0), (100, 58.0), (200, 60.0), (200, 64.0), (200, 70.0)]
    assert line(axis, "pre-trained, median") == [(100, 54.0), (200, 64.0)]
    assert {y for _, y in line(axis, "random weights 50.0")} == {50.0}
    assert axis.get_title(loc="left") == "rte"
    assert axis.get_xlabel() == "pre-training steps"
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["100", "200"]


def test_towers_are_joined_in_the_order_of_their_steps(tmp_path, drawn):
    towers = [(step, [make_run("rte", 0.5 + step / 1000)]) for step in (400, 100, 200)]
    plot_along_pretraining(towers, [], tmp_path)
    assert [step for step, _ in line(drawn[0].axes[0], "pre-trained, median")] == [100, 200, 400]


def test_the_axis_counts_tokens_where_a_step_is_known_to_have_some(tmp_path, drawn):
    plot_along_pretraining([(62_500, [make_run("rte", 0.5)])], [], tmp_path, tokens_per_step=16_000)
    (axis,) = drawn[0].axes
    assert axis.get_xlabel() == "pre-training tokens"
    assert points(axis) == [(1e9, 50.0)]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["1G"]


def test_every_task_has_a_panel_with_its_own_runs(tmp_path, drawn):
    tasks = ["cola", "mrpc", "rte", "stsb"]
    towers = [(10, [make_run(task, 0.1 * place) for place, task in enumerate(tasks)])]
    plot_along_pretraining(towers, [make_run("mrpc", 0.05)], tmp_path)
    panels = [axis for axis in drawn[0].axes if axis.axison]
    assert [axis.get_title(loc="left") for axis in panels] == tasks
    assert [points(axis) for axis in panels] == [[(10, 10.0 * place)] for place in range(4)]
    assert [any("random" in str(line.get_label()) for line in axis.get_lines()) for axis in panels] == [
        False, True, False, False,
    ]  # fmt: skip


def test_a_task_that_was_tried_on_one_tower_alone_has_no_panel_beside_others(tmp_path, drawn):
    towers = [(10, [make_run("rte", 0.5)]), (20, [make_run("rte", 0.6), make_run("cola", 0.1)])]
    plot_along_pretraining(towers, [], tmp_path)
    assert [axis.get_title(loc="left") for axis in drawn[0].axes] == ["rte"]


def test_runs_without_a_finite_score_are_told_in_the_title(tmp_path, drawn):
    towers = [(10, [make_run("stsb", None), make_run("stsb", 0.5)]), (20, [make_run("stsb", None)])]
    plot_along_pretraining(towers, [], tmp_path)
    (axis,) = drawn[0].axes
    assert axis.get_title(loc="left") == "stsb (runs without a score: 2)"
    assert points(axis) == [(10, 50.0)]


@pytest.mark.parametrize(
    ("towers", "message"),
    [
        ([], "nothing to draw"),
        ([(10, [make_run("rte", None)])], "nothing to draw"),
        ([(0, [make_run("rte", 0.5)])], "one is from step 0"),
        ([(10, [make_run("rte", 0.5), make_run("rte", 0.5, metric="f1")])], "rte: runs differ in their main metric"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, towers, message):
    with pytest.raises(ValueError, match=message):
        plot_along_pretraining(towers, [], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_same_records_make_the_same_picture(tmp_path):
    towers = [(2**power, [make_run("rte", math.log(power + 2) / 3)]) for power in range(4)]
    pictures = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        pictures.append(plot_along_pretraining(towers, [], tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]
