import pytest
from matplotlib.figure import Figure

from hf_electra_rtd.publishing.pictures import plot_along_pretraining, plot_curves
from tests.publishing.card_records import evaluation_record, run_record


def run(score, task="rte", metric="accuracy"):
    return evaluation_record(task, metrics={"dev": {metric: score}, "test": {metric: 0.99}}, main_metric=metric)


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were saved."""
    figures, save = [], Figure.savefig

    def keep(figure, *args, **options):
        figures.append(figure)
        save(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def points(axis):
    found = (line for line in axis.get_lines() if line.get_marker() == "o")
    return sorted((float(x), round(float(y), 6)) for line in found for x, y in line.get_xydata())


def line(axis, label):
    (found,) = [line for line in axis.get_lines() if str(line.get_label()).startswith(label)]
    return [(float(x), round(float(y), 6)) for x, y in found.get_xydata()]


@pytest.mark.parametrize(
    ("measured", "titles"),
    [
        ({"generator_loss": 6.0, "discriminator_auc": 0.6}, ["Generator: loss", "Discriminator: area"]),
        ({"discriminator_masked_accuracy": 0.1}, ["Encoder: accuracy at masked"]),
        ({}, []),
    ],
)
def test_the_curves_of_a_run_are_those_of_its_record(tmp_path, drawn, measured, titles):
    curves = [{"step": step, "learning_rate": 1e-3, "tokens_per_second": 5.0, **measured} for step in (10, 20)]
    curves += [{"step": 20, **{f"eval_{key}": value + 1 for key, value in measured.items()}}]
    plot_curves(run_record(curves=curves), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    panels = [axis for axis in drawn[0].axes if axis.axison and axis.get_title(loc="left")]
    shown = [axis.get_title(loc="left") for axis in panels]
    assert all(title.startswith(start) for title, start in zip(shown, [*titles, "Learning rate"], strict=True))
    for axis, value in zip(panels, measured.values(), strict=False):
        assert line(axis, "training") == [(10, value), (20, value)]
        assert line(axis, "held out") == [(20, value + 1)]


def test_every_run_is_a_point_and_the_median_a_line_over_steps_or_tokens(tmp_path, drawn):
    towers = {200: [run(score) for score in (0.6, 0.64, 0.7)], 100: [run(score) for score in (0.5, 0.58)]}
    plot_along_pretraining(towers, [run(0.53), run(0.47)], tmp_path / "along.png")
    (axis,) = drawn[0].axes
    assert points(axis) == [(100, 50.0), (100, 58.0), (200, 60.0), (200, 64.0), (200, 70.0)]
    assert line(axis, "pre-trained, median") == [(100, 54.0), (200, 64.0)]
    assert {y for _, y in line(axis, "random weights 50.0")} == {50.0}
    assert axis.get_title(loc="left") == "rte: accuracy x 100"
    assert axis.get_xlabel() == "pre-training steps"
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["100", "200"]
    plot_along_pretraining({62_500: [run(0.5)]}, [], tmp_path / "along.png", tokens_per_step=16_000)
    (axis,) = drawn[1].axes
    assert axis.get_xlabel() == "pre-training tokens"
    assert points(axis) == [(1e9, 50.0)]
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["1.0G"]


def test_every_task_of_several_checkpoints_has_a_panel_with_its_own_runs(tmp_path, drawn):
    tasks = ["cola", "mrpc", "rte", "stsb"]
    towers = {step: [run(0.1 * place, task) for place, task in enumerate(tasks)] for step in (10, 20)}
    towers[20].append(run(0.5, "wnli"))
    plot_along_pretraining(towers, [run(0.05, "mrpc")], tmp_path / "along.png")
    panels = [axis for axis in drawn[0].axes if axis.axison]
    assert [axis.get_title(loc="left").partition(":")[0] for axis in panels] == tasks
    assert [points(axis) for axis in panels] == [[(10, 10.0 * place), (20, 10.0 * place)] for place in range(4)]
    with_random = [any("random" in str(line.get_label()) for line in axis.get_lines()) for axis in panels]
    assert with_random == [False, True, False, False]


def test_runs_without_a_finite_score_are_left_out(tmp_path, drawn):
    plot_along_pretraining({10: [run(None), run(0.5)], 20: [run(None)]}, [], tmp_path / "along.png")
    (axis,) = drawn[0].axes
    assert points(axis) == [(10, 50.0)]
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_along_pretraining({10: [run(None)]}, [], tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()
