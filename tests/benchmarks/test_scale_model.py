"""The model of large runs: formulas against simulations, figures against a run, tables against the page."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scale_model
import torch
from safetensors.torch import load_file
from scale_model import Cluster, lost_share

from hf_electra_rtd.accounting import count_parameters
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.ops import products


@pytest.mark.parametrize("name", scale_model.TABLES)
def test_the_page_shows_the_tables_that_the_script_prints(name):
    assert scale_model.TABLES[name]() in scale_model.PAGE_OF_TABLES.read_text(encoding="utf-8")


def test_a_ring_takes_as_long_as_the_rounds_in_which_each_gpu_passes_a_part_on():
    gpus, num_bytes, cluster = 8, 20e6, Cluster()
    sums, seconds = np.ones((gpus, gpus)), 0.0  # (gpu, part): how many summands of a part are in what it holds
    for turn in range(2 * (gpus - 1)):
        parts = [(gpu - turn) % gpus for gpu in range(gpus)]
        sent = [sums[gpu, part] for gpu, part in enumerate(parts)]
        for gpu, (part, summands) in enumerate(zip(parts, sent, strict=True)):
            after = (gpu + 1) % gpus
            sums[after, part] = sums[after, part] + summands if turn < gpus - 1 else summands
        seconds += num_bytes / gpus / cluster.nvlink + float(scale_model.GIVEN["hop of a ring"])
    assert (sums == gpus).all()
    assert cluster.all_reduce(num_bytes, gpus) == pytest.approx(seconds)


def test_two_nodes_reduce_as_computed_by_hand():
    cluster = Cluster()  # 16 GPUs: 8 adapters of 40 GB/s carry 320 GB/s, less than NVLink's 360
    ring = 14 * 2 * 3.4e-6 + 2 * 9.6e-6  # 30 hops, 2 of them between the nodes
    assert scale_model.ring_latency(16, 2) == pytest.approx(ring)
    tree = 2 * (7 * 1.2e-6 + 8.5e-6)  # up and down a chain of 8, and from node to node
    assert scale_model.tree_latency(16, 2) == pytest.approx(tree)
    # 16 kB in one bucket: the tree is quicker; 16 GB in 611 buckets over a slow network: the ring is.
    assert cluster.all_reduce(16e3, 16) == pytest.approx(2 * 16e3 / (320e9 * 0.9 * 0.915) + tree)
    assert Cluster(network=1e9).all_reduce(16e9, 16) == pytest.approx(30e9 / 8e9 + 611 * ring)
    assert cluster.all_reduce(1e9, 1) == 0.0


@pytest.mark.parametrize(("checkpoint", "interval"), [(20.0, 900.0), (20.0, 30.0), (600.0, 600.0)])
def test_what_a_run_loses_is_what_simulated_interruptions_cost(checkpoint, interval):
    gpus = 5_000  # two or three interruptions a day
    random, restart = np.random.default_rng(0), float(scale_model.GIVEN["restart"])
    done = passed = 0.0
    next_failure = random.exponential(scale_model.DAY / scale_model.failures_a_day(gpus))
    for _ in range(50_000):
        if passed + interval + checkpoint <= next_failure:
            done, passed = done + interval, passed + interval + checkpoint
        else:  # what was done since the last checkpoint is lost
            passed = next_failure + restart
            next_failure = passed + random.exponential(scale_model.DAY / scale_model.failures_a_day(gpus))
    assert lost_share(checkpoint, interval, gpus) == pytest.approx(1 - done / passed, rel=0.06)


def test_the_best_interval_loses_least():
    best = scale_model.best_interval(30.0, 512)
    losses = [lost_share(30.0, best * factor, 512) for factor in (0.25, 0.5, 0.9, 1.0, 1.1, 2.0, 4.0)]
    assert min(losses) == losses[3]


@pytest.mark.parametrize("library", [products.MKL, products.ONEDNN])
def test_operations_of_more_layers_follow_from_those_of_one_and_two(library, monkeypatch):
    monkeypatch.setattr(products, "_chosen", library)
    per_layer, beside = scale_model.operations_of_layers()
    assert scale_model._count_operations(4) == beside + 4 * per_layer


def test_a_gpu_has_a_sequence_at_least_and_a_share_of_the_products():
    small = scale_model.sizes()[0]
    steps = [small.step(gpus) for gpus in (1, 8, 512)]
    assert [step.batch for step in steps] == [128, 128, 512]
    assert steps[1].products == pytest.approx(steps[0].products / 8)
    for one, more in itertools.pairwise(steps):
        assert one.all_reduce <= more.all_reduce


def test_a_checkpoint_holds_three_numbers_a_parameter(finished_run):
    model = ElectraForRTDPretraining.from_pretrained(finished_run)
    states = torch.load(finished_run / "checkpoint-4" / "optimizer.pt")["state"].values()
    tensors = [*load_file(finished_run / "checkpoint-4" / "model.safetensors").values()]
    tensors += [tensor for state in states for tensor in state.values() if tensor.numel() > 1]  # without step counts
    found = sum(tensor.numel() for tensor in tensors) / count_parameters(model)["total"]
    assert found == pytest.approx(scale_model.STATES, abs=0.01)
    assert {tensor.element_size() for tensor in tensors} == {scale_model.FLOAT}


@pytest.mark.parametrize(("all_reduce", "low"), [(40.0, 20.0), (100.0, 80.0)])
def test_the_word_tables_half_of_an_all_reduce_is_added_and_of_the_rest_what_outlasts_the_backward_pass(
    all_reduce, low
):
    found = {"waiting_ms": 30.0, "all_reduce_ms": all_reduce, "word_table_bytes": 5, "gradient_bytes": 10}
    assert scale_model.predict(found) == pytest.approx((low, all_reduce))
