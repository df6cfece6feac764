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


FLAGS = ["--vocab_size=120", "--batch_size=4", "--max_seq_length=32", "--steps=6", "--eval_every=4", "--device=cpu"]
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
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [[point["step"] for point in curve["points"]] for curve in report["curves"]] == [[0, 4, 6]] * 4
    curves = curves_of(report)
    np.testing.assert_array_equal(curves["ours"][:, 0], curves["plain"][:, 0])
    np.testing.assert_allclose(curves["ours"], curves["plain"], rtol=1e-4)
    for variant in curves.values():  # trained, and each seed in its own way
        assert (np.abs(variant[:, 0, :2] - variant[:, -1, :2]) > 0.01).all()
        assert (np.abs(variant[0, -1] - variant[1, -1]) > 1e-4).all()
    (written,) = tmp_path.glob("held_out_curve_*.json")
    assert json.loads(written.read_text()) == report
    assert written.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def _without_bias_correction(pair, learning_rate):
    arrangement = held_out_curve.Ours(pair)
    return arrangement, ElectraAdamW(get_parameter_groups(arrangement, 0.01), lr=learning_rate)


def test_curves_of_variants_that_train_otherwise_differ(corpus, monkeypatch):
    monkeypatch.setitem(held_out_curve.VARIANTS, "ours", _without_bias_correction)
    curves = curves_of(held_out_curve.main([str(corpus), *FLAGS, *NOTHING_RANDOM, "--learning_rate=2e-2"]))
    assert not np.allclose(curves["ours"][..., :2], curves["plain"][..., :2], rtol=1e-4)


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


def test_a_comparison_needs_two_seeds():
    with pytest.raises(ValueError, match="--seeds is 1: it must be at least 2"):
        held_out_curve.main([*FLAGS, "--seeds", "1"])
