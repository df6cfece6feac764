"""Both variants train alike if nothing is random."""

from __future__ import annotations

import held_out_curve
import numpy as np
import torch


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
    assert (np.abs(ours[:, 0, :2] - ours[:, -1, :2]) > 0.01).all()  # trained, and differently for each seed
    assert (np.abs(ours[0, -1] - ours[1, -1]) > 1e-4).all()
