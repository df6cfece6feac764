"""Both variants train alike where nothing is random, and the test at the end says what numbers say."""

from __future__ import annotations

import held_out_curve
import numpy as np
import pytest
import torch
from scipy import stats


FLAGS = ["--vocab_size=120", "--batch_size=4", "--max_seq_length=32", "--steps=6", "--eval_every=4", "--device=cpu"]
FLAGS += [f"--threads={torch.get_num_threads()}", "--seeds=2", "--learning_rate=2e-3", "--dropout=0", "--given_fills"]


def test_where_nothing_is_random_both_variants_have_the_same_curve(corpus):
    curves: dict[str, list] = {variant: [] for variant in held_out_curve.VARIANTS}
    for curve in held_out_curve.main([str(corpus), *FLAGS])["curves"]:
        curves[curve["variant"]].append(
            [[point[name] for name in held_out_curve.METRICS] for point in curve["points"]]
        )
    ours, plain = np.array(curves["ours"]), np.array(curves["plain"])  # (seeds, points, metrics)
    np.testing.assert_array_equal(ours[:, 0], plain[:, 0])
    np.testing.assert_allclose(ours, plain, rtol=1e-4)
    assert (np.abs(ours[:, 0, :2] - ours[:, -1, :2]) > 0.01).all()  # trained, and each seed in its own way
    assert (np.abs(ours[0, -1] - ours[1, -1]) > 1e-4).all()


def test_a_comparison_is_a_paired_t_test():
    ours, plain = [6.10, 6.30, 6.22, 6.05], [6.12, 6.25, 6.26, 6.09]
    found, theirs = held_out_curve.compare(ours, plain), stats.ttest_rel(ours, plain)
    assert found["p"] == pytest.approx(theirs.pvalue)
    assert found["interval"] == pytest.approx(list(theirs.confidence_interval(0.95)))
    assert found["difference"] == pytest.approx(-0.0125)
    assert found["ours"] == pytest.approx({"mean": 6.1675, "std": np.std(ours, ddof=1)})
    assert not found["significant"]
