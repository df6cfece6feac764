"""Computes what pre-training on many GPUs would take, and prints the tables of `docs/background/scale.md`.

    python benchmarks/scale_model.py

No GPU was measured. `GIVEN` holds what the model takes as given, each number with its source or called an assumption.
FLOPs, parameters and operations come from this package.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from workload import Rows, Workload

from hf_electra_rtd import ElectraForRTDPretraining, ElectraRTDConfig, RTDTrainingArguments
from hf_electra_rtd.base.accounting import count_parameters
from hf_electra_rtd.base.recipes import SIZES
from hf_electra_rtd.publishing.tables import markdown_table
from hf_electra_rtd.training.memory import fake_steps, fit_batches


GPUS = (1, 8, 64, 512)
MEMORIES = (8, 16, 24, 40, 80)  # GB
FLOAT = 4  # bytes
BUCKET = 25 * 2**20  # bytes that DDP reduces at once


class Given(NamedTuple):
    """A number that is not computed here."""

    value: float
    unit: str
    source: str
    factor: float = 1.0  # from the unit to those of the formulas: bytes, seconds, FLOP


# Only latencies and factors; NCCL also adds a base latency and corrections for sizes.
_LLAMA = "Llama 3 (arXiv 2407.21783)"
_NCCL = "NCCL 2.7.5, src/graph/tuning.cc"
GIVEN = {
    "peak of a GPU": Given(989, "TFLOP/s", "H100 SXM data sheet: bfloat16, dense", 1e12),
    "share of the peak": Given(35, "%", f"assumption; {_LLAMA}, table 4: 38 to 43 % for 405B", 0.01),
    "launch of an operation": Given(5, "µs", "assumption; eager torch, forward and backward", 1e-6),
    "GPUs of a node": Given(8, "", "DGX H100"),
    "NVLink": Given(450, "GB/s", "H100 SXM data sheet: 900 in both directions", 1e9),
    "network": Given(50, "GB/s a GPU", "DGX H100 data sheet: an adapter of 400 Gb/s for each GPU", 1e9),
    "reached of both": Given(80, "%", "assumption", 0.01),
    "hop of a ring": Given(3.4, "µs", f"{_NCCL}: protocol Simple, NVLink", 1e-6),
    "the same between nodes": Given(9.6, "µs", f"{_NCCL}: protocol Simple, network", 1e-6),
    "hop of a tree": Given(1.2, "µs", f"{_NCCL}: protocol LL128, NVLink", 1e-6),
    "the same between two nodes": Given(8.5, "µs", f"{_NCCL}: protocol LL128, network", 1e-6),
    "bandwidth of a tree": Given(0.9 * 0.915 * 100, "% of a ring's", f"{_NCCL}: 0.9 x 0.915", 0.01),
}


def given(name: str) -> float:
    return GIVEN[name].value * GIVEN[name].factor


@dataclass(frozen=True)
class Cluster:
    """Assumptions that the tables vary; the defaults are `GIVEN`."""

    share: float = given("share of the peak")
    launch: float = given("launch of an operation")
    network: float = given("network") * given("reached of both")

    def all_reduce(self, num_bytes: float, gpus: int) -> float:
        """Returns the seconds for the sum of `num_bytes` over GPUs, bucket after bucket, by a ring or a tree,
        whichever is faster, as NCCL chooses."""
        if gpus == 1:
            return 0.0
        nodes = math.ceil(gpus / given("GPUs of a node"))
        # A ring or a tree uses each adapter of a node, so all adapters are busy.
        bandwidth = given("NVLink") * given("reached of both")
        if nodes > 1:
            bandwidth = min(bandwidth, self.network * given("GPUs of a node"))
        ring = num_bytes * 2 * (gpus - 1) / gpus / bandwidth  # Patarasuk and Yuan 2009
        tree = num_bytes * 2 / (bandwidth * given("bandwidth of a tree"))
        buckets = math.ceil(num_bytes / BUCKET)
        return min(ring + buckets * ring_latency(gpus, nodes), tree + buckets * tree_latency(gpus, nodes))


def ring_latency(gpus: int, nodes: int) -> float:
    """Returns seconds: a part takes 2 (p - 1) hops, of which 2 (nodes - 1) count as hops of the network."""
    far = 2 * (nodes - 1)
    return far * given("the same between nodes") + (2 * (gpus - 1) - far) * given("hop of a ring")


def tree_latency(gpus: int, nodes: int) -> float:
    """Returns seconds: up and down a chain in a node, and a binary tree over the nodes."""
    near = (gpus / nodes - 1) * given("hop of a tree")
    return 2 * (near + math.log2(nodes) * given("the same between two nodes"))


class Step(NamedTuple):
    """An optimizer step, in seconds."""

    batch: int  # sequences, of all GPUs
    products: float
    launches: float  # to launch the operations, whatever they compute
    all_reduce: float
    exposed: float  # the part of `all_reduce` that the backward pass does not hide

    @property
    def seconds(self) -> float:
        return max(self.products, self.launches) + self.exposed


class Size:
    """A named size with its recipe."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.recipe = SIZES[name].pretraining
        self.length = self.recipe["max_seq_length"]
        self.batch = self.recipe["per_device_train_batch_size"]
        self.work = Workload(
            name, batch_size=1, max_seq_length=self.length, mask_probability=self.recipe["mask_probability"]
        )
        with torch.device("meta"):
            pair: Any = ElectraForRTDPretraining(self.work.config())
        self.gradient_bytes = FLOAT * count_parameters(pair)["total"]
        # The gradient of the word table is complete when the backward pass is over, so nothing hides its reduction.
        self.word_table_bytes = FLOAT * pair.get_input_embeddings().weight.numel()
        self.operations = operations_of(pair.config.discriminator_config.num_hidden_layers)

    def step(self, gpus: int, cluster: Cluster | None = None) -> Step:
        """Returns a step with the recipe's batch, or with one sequence per GPU where that is more."""
        cluster = cluster or Cluster()
        batch = max(self.batch, gpus)
        products = self.work.flops() * batch / gpus / (cluster.share * given("peak of a GPU"))
        launches = self.operations * cluster.launch
        last = cluster.all_reduce(self.word_table_bytes, gpus)
        before = cluster.all_reduce(self.gradient_bytes - self.word_table_bytes, gpus)
        # The backward pass is two thirds of a step (`accounting`: it costs two forward passes).
        exposed = last + max(0.0, before - 2 / 3 * max(products, launches))
        return Step(batch, products, launches, before + last, exposed)

    def gpu_hours(self, gpus: int, cluster: Cluster | None = None) -> float:
        """Returns the GPU hours of the whole recipe, without checkpoints and interruptions."""
        step = self.step(gpus, cluster)
        return float(self.batch * self.recipe["max_steps"] / step.batch * step.seconds * gpus / 3600)


@functools.cache
def sizes() -> list[Size]:
    return [Size("small"), Size("base"), Size("large")]


def operations_of(layers: int) -> int:
    """Returns the number of operations of a step of towers with so many layers. It does not depend on widths, so it is
    counted on narrow networks of one and of two layers."""
    return count_operations(1) + (layers - 1) * (count_operations(2) - count_operations(1))


@functools.cache
def count_operations(layers: int) -> int:
    """Counts the operations of a step on a GPU in bfloat16, with dropout and meters, from the second step on: the
    first one also allocates the optimizer's states."""

    class Counter(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.count += not function.is_view and function.namespace == "aten"
            return function(*args, **(kwargs or {}))

    pair = ElectraForRTDPretraining(ElectraRTDConfig.from_size("small", vocab_size=100, num_hidden_layers=layers))
    with a_step(pair, Workload(vocab_size=100)) as take_step, Counter() as counter:
        take_step(2)
    return counter.count


def a_step(pair: Any, work: Workload, checkpointing: bool = False) -> AbstractContextManager[Callable[[int], int]]:
    """Yields a function that takes steps of a run without data, in bfloat16 as on a GPU."""
    with tempfile.TemporaryDirectory() as directory:
        batch = Rows(replace(work, batch_size=2), directory, num_batches=1).collate(0)
        args = RTDTrainingArguments(directory, report_to=[])
    return fake_steps(pair, args, batch, torch.bfloat16, checkpointing)


# ---- Tables ----


def given_table() -> str:
    rows = ([name, f"{number.value:,.3g} {number.unit}".strip(), number.source] for name, number in GIVEN.items())
    return markdown_table(["given", "value", "source"], rows)


def step_table() -> str:
    rows = []
    for size in sizes():
        for gpus in GPUS:
            step = size.step(gpus)
            sequences = f"{step.batch:,}"
            if step.batch != size.batch:
                sequences += f" (recipe: {size.batch})"
            milliseconds = [f"{1000 * seconds:,.1f}" for seconds in (*step[1:], step.seconds)]
            speed = step.batch * size.length / step.seconds / 1e6
            efficiency = step.batch / step.seconds / gpus * size.step(1).seconds / size.batch
            hours = size.gpu_hours(gpus)
            results = [f"{speed:.3g}", f"{efficiency:.0%}", f"{hours / gpus / 24:.3g}", f"{hours:,.0f}"]
            rows.append([size.name, f"{gpus}", sequences, *milliseconds, *results])
    headings = ["size", "GPUs", "sequences", "products, ms", "launches, ms", "all-reduce, ms", "not hidden, ms"]
    return markdown_table([*headings, "step, ms", "million tokens/s", "efficiency", "days", "GPU hours"], rows)


def memory_table() -> str:
    """Shows the largest batch of each GPU, and how many such batches make the recipe's batch on one GPU."""
    rows = []
    for size in map(Size, ("small", "small++", "base", "large")):
        pair = ElectraForRTDPretraining(size.work.config())
        for checkpointing in ("no", "yes"):
            with a_step(pair, size.work, checkpointing == "yes") as take_step:
                found = fit_batches(pair, take_step, size.batch, [memory * 10**9 for memory in MEMORIES])
            fits = [f"{largest:,} ({by} x {size.batch // by})" if by else "none" for _, largest, by in found]
            rows.append([size.name, checkpointing, f"{size.batch:,}", f"{found[0].peak / 1e9:,.1f}", *fits])
    gpus = (f"{memory} GB" for memory in MEMORIES)
    return markdown_table(["size", "checkpointing", "recipe", "at once, GB", *gpus], rows)


def sensitivity_table() -> str:
    variants = {f"{share:.0%} of the peak": Cluster(share=share) for share in (0.25, 0.35, 0.45)}
    variants["no launches (CUDA graphs)"] = Cluster(launch=0.0)
    variants["100 Gb/s a node"] = Cluster(network=given("network") / 32)  # for 8 GPUs, all of it reached
    rows = [
        [size.name, f"{gpus}", *(f"{size.gpu_hours(gpus, cluster):,.0f}" for cluster in variants.values())]
        for size in sizes()
        for gpus in GPUS[1:]
    ]
    return markdown_table(["size", "GPUs", *variants], rows)


TABLES = {"given": given_table, "steps": step_table, "sensitivity": sensitivity_table, "memory": memory_table}


if __name__ == "__main__":
    for name, make in TABLES.items():
        print(f"\n## {name}\n\n{make()}")
