"""Both variants train alike where nothing is random, and the test at the end says what numbers say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats


sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import held_out_curve

from hf_electra_rtd import ElectraAdamW, get_parameter_groups


FLAGS = ["--vocab_size=120", "--batch_size=4", "--row_length=32", "--steps=6", "--eval_every=4", "--device=cpu"]
FLAGS += [f"--threads={torch.get_num_threads()}", "--seeds=2", "--learning_rate=2e-3"]
NOTHING_RANDOM = ["--dropout=0", "--given_fills"]


def curves_of(report) -> dict[str, np.ndarray]:
    """(seeds, points, metrics) of each variant."""
    return {
        variant: np.array(
            [
                [[point[name] for name in held_out_curve.METRICS] for point in curve["points"]]
                for curve in report["curves"]
                if curve["variant"] == variant
            ]
        )
        for variant in held_out_curve.VARIANTS
    }


def test_where_nothing_is_random_both_variants_have_the_same_curve(corpus, capsys, tmp_path):
    held_out_curve.main([str(corpus), *FLAGS, *NOTHING_RANDOM, "--output_dir", str(tmp_path)])
    shown = capsys.readouterr()
    *table, last = shown.out.splitlines()
    report = json.loads(last)
    assert report.keys() == {
        *("benchmark", "sha", "uncommitted_changes", "date", "hardware", "versions", "load_average", "config"),
        *("rows", "curves", "tests", "verdict"),
    }
    assert [[point["step"] for point in curve["points"]] for curve in report["curves"]] == [[0, 4, 6]] * 4
    curves = curves_of(report)
    np.testing.assert_array_equal(curves["ours"][:, 0], curves["plain"][:, 0])
    np.testing.assert_allclose(curves["ours"], curves["plain"], rtol=1e-4)
    for variant in curves.values():  # trained, and each seed in its own way
        assert (np.abs(variant[:, 0, :2] - variant[:, -1, :2]) > 0.01).all()
        assert (np.abs(variant[0, -1] - variant[1, -1]) > 1e-4).all()
    assert any("generator loss" in line for line in table)
    assert "seed 1, plain: step 6 of 6: generator loss" in shown.err

    (written,) = tmp_path.glob("held_out_curve_*.json")
    assert json.loads(written.read_text()) == report
    assert written.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def _without_bias_correction(pair, learning_rate):
    arrangement = held_out_curve.Ours(pair)
    return arrangement, ElectraAdamW(get_parameter_groups(arrangement, 0.01), lr=learning_rate)


def _without_weight_decay(pair, learning_rate):
    arrangement, optimizer = held_out_curve.make_ours(pair, learning_rate)
    optimizer.param_groups[0]["weight_decay"] = 0.0
    return arrangement, optimizer


@pytest.mark.parametrize("wrong", [_without_bias_correction, _without_weight_decay])
def test_curves_of_variants_that_train_otherwise_differ(corpus, monkeypatch, wrong):
    monkeypatch.setitem(held_out_curve.VARIANTS, "ours", wrong)
    curves = curves_of(held_out_curve.main([str(corpus), *FLAGS, *NOTHING_RANDOM, "--learning_rate=2e-2"]))
    assert not np.allclose(curves["ours"][..., :2], curves["plain"][..., :2], rtol=1e-4)


def test_dropout_and_samples_are_their_own(corpus):
    curves = curves_of(held_out_curve.main([str(corpus), *FLAGS]))
    np.testing.assert_array_equal(curves["ours"][:, 0], curves["plain"][:, 0])
    assert (curves["ours"][:, -1] != curves["plain"][:, -1]).all()


# ---- The test at the end ----

OURS, PLAIN = [6.10, 6.30, 6.22, 6.05], [6.12, 6.25, 6.26, 6.09]


def test_a_comparison_is_a_paired_t_test():
    found = held_out_curve.compare(OURS, PLAIN)
    theirs = stats.ttest_rel(OURS, PLAIN)
    assert found["p"] == pytest.approx(theirs.pvalue)
    assert found["interval"] == pytest.approx(list(theirs.confidence_interval(0.95)))
    assert found["difference"] == pytest.approx(-0.0125)
    assert found["ours"] == pytest.approx({"mean": 6.1675, "std": np.std(OURS, ddof=1)})
    assert not found["significant"]


def test_a_shift_that_pairs_share_is_significant():
    shifted = [value + 0.05 + wobble for value, wobble in zip(OURS, (0.01, -0.01, 0.005, 0.0), strict=True)]
    found = held_out_curve.compare(shifted, OURS)
    assert found["significant"]
    assert found["interval"][0] > 0
    # Unpaired, the spread over seeds would hide it.
    assert stats.ttest_ind(shifted, OURS).pvalue > 0.05


@pytest.mark.parametrize(("shift", "p"), [(0.0, 1.0), (0.5, 0.0)])
def test_differences_without_spread(shift, p):
    found = held_out_curve.compare([1.0 + shift, 2.0 + shift], [1.0, 2.0])
    assert found["p"] == p
    assert found["interval"] == [shift, shift]
    assert found["significant"] == (p == 0.0)


def test_the_last_points_are_paired_by_seed():
    names = held_out_curve.METRICS
    curves = [
        {"variant": variant, "seed": seed, "points": [{}, dict.fromkeys(names, value)]}
        for variant, values in (("plain", (2.0, 1.0, 4.0)), ("ours", (2.1, 1.2, 4.0)))
        for seed, value in zip((2, 0, 1), values, strict=True)
    ]
    found = held_out_curve.compare_ends(curves[::-1])
    assert found == dict.fromkeys(names, held_out_curve.compare([1.2, 4.0, 2.1], [1.0, 4.0, 2.0]))


def test_the_verdict_says_plainly_whether_a_difference_is_significant():
    alike = held_out_curve.compare(OURS, PLAIN)
    apart = held_out_curve.compare([value + 1 for value in OURS], PLAIN)
    first, *each = held_out_curve.judge({"generator_loss": alike, "discriminator_auc": alike}, 4, 300)
    assert first == "After 300 steps, over 4 seeds, no difference between ours and plain is significant (p < 0.05)."
    assert each[0].startswith("generator loss: not significant, p = ")
    first, *each = held_out_curve.judge({"generator_loss": alike, "discriminator_auc": apart}, 4, 300)
    assert first.endswith("ours and plain differ significantly (p < 0.05) in: discriminator AUC.")
    assert each[1].startswith("discriminator AUC: significant, p = ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "1"], "--seeds is 1: it must be at least 2"),
        (["--steps", "0"], "steps is 0"),
        (["--eval_every", "0"], "eval_every is 0"),
        (["--learning_rate", "0"], "learning_rate is 0"),
        (["--dropout", "1"], "dropout is 1"),
        (["--output_dir", __file__], "give a directory"),
        (["absent.txt"], "No file matches 'absent.txt'"),
    ],
)
def test_what_cannot_be_done_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        held_out_curve.main([*FLAGS, *arguments])
