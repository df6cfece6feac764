import pytest
from matplotlib.figure import Figure

from hf_electra_rtd.publishing.pictures import plot_curves
from tests.publishing.card_records import run_record


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
def test_the_curves_of_a_run_are_those_of_its_record(tmp_path, monkeypatch, measured, titles):
    drawn, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda *args, **options: drawn.append(args[0]) or save(*args, **options))
    trained = {name: value for name, value in measured.items() if name != "discriminator_auc"}  # held out only
    curves = [{"step": step, "learning_rate": 1e-3, "tokens_per_second": 5.0, **trained} for step in (10, 20)]
    curves += [{"step": 20, **{f"eval_{key}": value + 1 for key, value in measured.items()}}]
    plot_curves(run_record(curves=curves), tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    panels = [axis for axis in drawn[0].axes if axis.axison and axis.get_title(loc="left")]
    shown = [axis.get_title(loc="left") for axis in panels]
    assert all(title.startswith(start) for title, start in zip(shown, [*titles, "Learning rate"], strict=True))
    for axis, (name, value) in zip(panels, measured.items(), strict=False):
        assert all(float(tick).is_integer() for tick in axis.get_xticks())
        if name in trained:
            assert line(axis, "training") == [(10, value), (20, value)]
        assert line(axis, "held out") == [(20, value + 1)]
        assert len(axis.get_legend().get_texts()) == len(axis.get_lines())
