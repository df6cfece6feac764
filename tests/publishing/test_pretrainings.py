import copy

import numpy as np
import pytest
from matplotlib.axes import Axes

from hf_electra_rtd.base.records import PretrainingRecord
from hf_electra_rtd.publishing.compare import main
from hf_electra_rtd.publishing.pretrainings import pool, pretraining_table
from hf_electra_rtd.publishing.tables import mean_and_interval
from tests.publishing.card_records import RUN, evaluation_record, run_record


def seeded(seed, auc=0.7, data=None, curves=None, **options):
    """The record of a run with a seed, which also drew the held-out documents."""
    headers = copy.deepcopy(PretrainingRecord.load(RUN).data)
    for header in headers.values():
        header["recipe"]["seed"] = seed
        header["sha256"] = str(seed) * 64
        header |= data or {}
    training = {"seed": seed, **options.pop("training", {})}
    metrics = {"eval_discriminator_auc": auc, "eval_generator_loss": 6.0}
    return run_record(data=headers, training=training, metrics=metrics, curves=curves or [], **options)


OTHER_FILE = [{"name": "novels.txt", "sha256": "1" * 64, "weight": 1.0}]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, ["rtd"]),
        ({"training": {"logging_steps": 7, "output_dir": "elsewhere"}}, ["rtd"]),
        ({"model": {"document_attention": False}}, ["rtd"]),  # the other records have no such field
        ({"training": {"learning_rate": 0.001}}, ["rtd (learning_rate 0.0005)", "rtd (learning_rate 0.001)"]),
        ({"model": {"sharing": "none"}}, ["rtd (sharing embeddings)", "rtd (sharing none)"]),
        ({"objective": "electric"}, ["rtd", "electric"]),
        ({"objective": "rtd_masked_only"}, ["rtd", "rtd_masked_only"]),
        ({"described": {"backbone": "bert"}}, ["rtd", "rtd (backbone bert)"]),
        ({"described": {"new_generator": True}}, ["rtd", "rtd (new_generator"]),
        ({"described": {"generator": "org/generator"}}, ["rtd", "rtd (trained generator org/generator)"]),
        ({"training": {"data_seed": 7}}, ["rtd", "rtd (data_seed 7)"]),
        ({"model": {"disallow_correct": True}}, ["rtd", "rtd (disallow_correct"]),
        ({"training": {"lr_scheduler_kwargs": {"min_lr": 1e-5}}}, ["rtd", "rtd (lr_scheduler_kwargs"]),
        ({"data": {"word_segmenter": "jieba"}}, ["rtd (data ", "rtd (data "]),
        ({"data": {"sources": OTHER_FILE}}, ["rtd (data ", "rtd (data "]),
        ({"data": {"tokenizer_hash": "2" * 64}}, ["rtd (tokenizer 7e57d613", "rtd (tokenizer 22222222"]),
    ],
)
def test_runs_are_pooled_if_they_are_equal_but_for_their_seed_and_named_by_what_differs(change, names):
    pooled = pool([seeded(3), seeded(1), seeded(2, **change)])
    assert [each.seeds for each in pooled] == ([[1, 2, 3]] if len(names) == 1 else [[1, 3], [2]])
    assert all(each.name.startswith(name) for each, name in zip(pooled, names, strict=True))
    caption = pretraining_table(pooled).partition("\n\n")[2]
    for what in ("data", "tokenizer"):  # losses of such rows cannot be compared
        assert (f"differ in their {what}" in caption) == (what in change.get("data", {}) or f"({what} " in names[-1])
    assert ("rtd_masked_only" in caption) == ("rtd_masked_only" in names)  # its AUC is over other tokens
    assert ("novels.txt" in caption) == ("sources" in change.get("data", {}))


def test_a_row_is_the_mean_with_its_interval_by_students_t():
    first, second = pool([seeded(1, 0.6), seeded(2, 0.8), seeded(1, 0.9, objective="electric")])
    assert mean_and_interval([0.6, 0.8]) == pytest.approx((0.7, 12.7062047362 * 0.1))  # the quantile is from a table
    assert np.isnan(mean_and_interval([0.9])[1])
    rows = [line.split(" | ") for line in pretraining_table([first, second]).split("\n")[:4]]
    place = rows[0].index("AUC")
    assert [row[place] for row in rows[2:]] == ["0.700 ± 1.271", "0.900"]


def test_the_picture_shows_the_mean_of_the_seeds_over_tokens_and_its_interval(tmp_path, monkeypatch):
    drawn = []
    for name in ("plot", "fill_between"):
        monkeypatch.setattr(Axes, name, lambda axis, *values, **look: drawn.append([*map(list, values)]))
    for seed, values in ((1, (0.5, 0.6, 0.9)), (2, (0.7, 0.8))):
        curves = [{"step": 100 * place, "eval_discriminator_auc": value} for place, value in enumerate(values, 1)]
        place = tmp_path / str(seed)
        place.mkdir()
        seeded(seed, curves=curves, steps=1000, tokens=2_000_000).save(place)
    main([str(tmp_path), "--picture", str(tmp_path / "curves.png")])
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    (tokens, means), (_, low, high) = drawn
    assert tokens == pytest.approx([0.2, 0.4])  # only steps at which both were evaluated
    assert means == pytest.approx([0.6, 0.7])
    assert np.subtract(high, low) == pytest.approx(2 * 12.7062047362 * 0.1)


def test_seeds_that_were_never_evaluated_at_the_same_step_have_no_common_curve(tmp_path):
    for seed in (1, 2):
        place = tmp_path / str(seed)
        place.mkdir()
        seeded(seed, curves=[{"step": 100 * seed, "eval_discriminator_auc": 0.6}]).save(place)
    main([str(tmp_path), "--picture", str(tmp_path / "curves.png")])
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_picture_of_scores_has_a_curve_for_each_directory_with_its_intervals(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Axes, "plot", lambda axis, *values, **look: drawn.append([*map(list, values)]))
    monkeypatch.setattr(Axes, "fill_between", lambda axis, *values, **look: drawn.append([*map(list, values)]))
    monkeypatch.setattr(Axes, "legend", lambda axis: None)
    for name, of_pretraining, seed, tokens, score in (
        ("rtd", 1, 42, 39_350_100, 0.5),
        ("rtd", 1, 43, 39_350_100, 0.7),  # the mean of these two runs is one value
        ("rtd", 2, 42, 39_349_900, 0.8),  # a last pass over other sequences has a few other tokens
        ("rtd", 1, 42, 2_460_000, 0.4),
        ("mlm", 1, 42, 39_320_000, 0.3),
    ):
        model = {"pretraining": {"run": name, "started": f"{name}{of_pretraining}", "tokens": tokens}}
        place = tmp_path / name / f"{of_pretraining}-{seed}-{tokens}"
        place.mkdir(parents=True)
        reports = {"dev": {"interval": [score - 0.03, score + 0.02]}}
        evaluation_record("rte", seed, score, model=model, reports=reports).save(place)
    main([*(str(tmp_path / name) for name in ("rtd", "mlm")), "--picture", str(tmp_path / "scores.png")])
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")
    (tokens, means), (_, low, high), mlm, of_mlm = drawn
    assert (tokens, means) == ([2_460_000, 39_349_900], pytest.approx([0.4, 0.7]))
    assert high[1] - low[1] == pytest.approx(2 * 12.7062047362 * 0.1)
    assert mlm == [[39_320_000], [0.3]]
    assert of_mlm[1:] == [pytest.approx([0.27]), pytest.approx([0.32])]  # of a single run: its interval over examples


def test_a_directory_with_both_kinds_of_runs_gets_both_tables(tmp_path, capsys):
    seeded(1).save(tmp_path)
    (tmp_path / "evaluation").mkdir()
    evaluation_record("rte").save(tmp_path / "evaluation")
    main([str(tmp_path)])
    shown = capsys.readouterr().out
    assert "AUC" in shown
    assert "rte" in shown
    with pytest.raises(ValueError, match="misspelt"):
        main([str(tmp_path), str(tmp_path / "misspelt")])
    (tmp_path / PretrainingRecord.FILE).unlink()
    with pytest.raises(ValueError, match="tokens"):  # nothing is known about the pre-training
        main([str(tmp_path), "--picture", str(tmp_path / "scores.png")])
