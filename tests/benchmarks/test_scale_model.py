"""The model of large runs: formulas against simulations, tables against the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scale_model
from scale_model import Cluster

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.training.memory import RESERVE


PAGE = Path(__file__).parents[2] / "docs" / "background" / "scale.md"


@pytest.mark.parametrize("name", ["given", "steps", "sensitivity"])
def test_the_page_shows_the_tables_that_the_script_prints(name):
    assert scale_model.TABLES[name]() in PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", ["no", "yes"])
@pytest.mark.parametrize("name", ["small", "small++", "base", "large"])
def test_the_largest_batch_of_the_page_fits_and_one_more_does_not(name, checkpointing):
    page = PAGE.read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith(f"| {name} | {checkpointing} | "))
    cells = [cell.partition("(")[0].strip().replace(",", "") for cell in row.strip("|").split("|")]
    size = scale_model.Size(name)
    pair = ElectraForRTDPretraining(size.work.config())
    with scale_model.a_step(pair, size.work, checkpointing == "yes") as take_step:
        fits, too_many = take_step(int(cells[-1])), take_step(int(cells[-1]) + 1)
    assert fits <= (1 - RESERVE) * 1e9 * scale_model.MEMORIES[-1] < too_many


def test_a_ring_takes_as_long_as_the_rounds_in_which_each_gpu_passes_a_part_on():
    gpus = 8
    num_bytes = 20e6
    seconds = 0.0
    sums = np.ones((gpus, gpus))  # (gpu, part): how many summands are in a GPU's copy of a part
    for turn in range(2 * (gpus - 1)):
        parts = [(gpu - turn) % gpus for gpu in range(gpus)]
        sent = [sums[gpu, part] for gpu, part in enumerate(parts)]
        for gpu, (part, summands) in enumerate(zip(parts, sent, strict=True)):
            after = (gpu + 1) % gpus
            sums[after, part] = sums[after, part] + summands if turn < gpus - 1 else summands
        seconds += num_bytes / gpus / 360e9 + scale_model.given("hop of a ring")
    assert (sums == gpus).all()
    assert Cluster().all_reduce(num_bytes, gpus) == pytest.approx(seconds)


def test_two_nodes_reduce_as_computed_by_hand():
    cluster = Cluster()  # 16 GPUs: 8 adapters of 40 GB/s carry 320 GB/s, less than NVLink's 360
    ring = 14 * 2 * 3.4e-6 + 2 * 9.6e-6  # 30 hops, 2 of them between the nodes
    assert scale_model.ring_latency(16, 2) == pytest.approx(ring)
    tree = 2 * (7 * 1.2e-6 + 8.5e-6)  # up and down a chain of 8, and from node to node
    assert scale_model.tree_latency(16, 2) == pytest.approx(tree)
    # The tree is faster for 16 kB in one bucket, the ring for 16 GB in 611 buckets over a slow network.
    assert cluster.all_reduce(16e3, 16) == pytest.approx(2 * 16e3 / (320e9 * 0.9 * 0.915) + tree)
    assert Cluster(network=1e9).all_reduce(16e9, 16) == pytest.approx(30e9 / 8e9 + 611 * ring)
    assert cluster.all_reduce(1e9, 1) == 0.0


def test_operations_of_more_layers_follow_from_those_of_one_and_two():
    assert scale_model.count_operations(3) == scale_model.operations_of(3)


@pytest.mark.parametrize(("layers", "operations"), [(12, 2134), (24, 3953)])
def test_operations_are_those_of_a_second_step_on_fake_cuda_tensors(layers, operations):
    """The numbers were counted there at full depth, without the few operations of gradient clipping, and without 15
    of a metric that has left since."""
    assert scale_model.operations_of(layers) == pytest.approx(operations, rel=0.005)
