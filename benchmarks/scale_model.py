"""What pre-training on many GPUs would take, computed: the tables of `docs/scale.md`.

    python benchmarks/scale_model.py             # prints the tables
    python benchmarks/scale_model.py --measure   # first measures one and two processes here (two quiet cores), and
                                                 # writes the new tables to the page

No GPU was measured: what the model takes as given is in `GIVEN`, each number with its source or called an assumption.
FLOPs, parameters, operations and bytes of block files come from this package. What a measurement finds goes to
`benchmarks/results/scale_model.json`, against which the model is checked.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from reporting import describe_run, say
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from workload import Workload

from hf_electra_rtd import ElectraAdamW, ElectraForRTDPretraining, get_parameter_groups
from hf_electra_rtd.accounting import count_parameters
from hf_electra_rtd.files import hash_files
from hf_electra_rtd.recipes import SIZES


RESULTS = Path(__file__).parent / "results" / "scale_model.json"
PAGE_OF_TABLES = Path(__file__).parents[1] / "docs" / "scale.md"
NAMES, GPUS = ("small", "base", "large"), (1, 8, 64, 512)
SHARES = (0.25, 0.35, 0.45)  # of the peak
DAY, TEXT = 86400.0, 1e12  # seconds; bytes
FLOAT, STATES, BUCKET = 4, 3, 25 * 2**20  # bytes; numbers a parameter in a checkpoint; bytes that DDP reduces at once
PAGE = 4096  # bytes, of a mapped file


class Given(NamedTuple):
    """A number that is not computed here."""

    value: float
    unit: str
    source: str
    factor: float = 1.0  # of the unit, in the units of the formulas: bytes, seconds, FLOP

    def __float__(self) -> float:
        return float(self.value * self.factor)


# Latencies and factors alone: NCCL adds a base latency and corrections for sizes.
_LLAMA, _NCCL = "Llama 3 (arXiv 2407.21783)", "NCCL 2.7.5, src/graph/tuning.cc"
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
    "interruptions": Given(419 / 54 / 16384 * 1000, "a day and 1,000 GPUs", f"{_LLAMA}: 419 in 54 days, 16,384", 1e-3),
    "restart": Given(5, "min", "assumption: notice, new processes, text verified, checkpoint read", 60),
    "one writer's disk": Given(1, "GB/s", "assumption; shared file system", 1e9),
    "text": Given(50e6 / 10.8e6, "bytes a token", "docs/performance.md: 50 MB of Wikipedia, 10.8 million tokens"),
    "preparation": Given(50 / 46.8, "MB/s a core", "docs/performance.md: 50 MB in 46.8 s, one thread", 1e6),
}


@dataclass(frozen=True)
class Cluster:
    """What the formulas take; the defaults are `GIVEN`."""

    peak: float = float(GIVEN["peak of a GPU"])
    share: float = float(GIVEN["share of the peak"])
    launch: float = float(GIVEN["launch of an operation"])
    gpus_of_a_node: int = int(float(GIVEN["GPUs of a node"]))
    nvlink: float = float(GIVEN["NVLink"]) * float(GIVEN["reached of both"])
    network: float = float(GIVEN["network"]) * float(GIVEN["reached of both"])

    def all_reduce(self, num_bytes: float, gpus: int) -> float:
        """Seconds for the sum of `num_bytes` over GPUs, bucket after bucket, by a ring or a tree, whichever is
        quicker, as NCCL chooses."""
        if gpus == 1:
            return 0.0
        nodes = math.ceil(gpus / self.gpus_of_a_node)
        # A ring or a tree goes over each adapter of a node, and all of them are busy.
        bandwidth = self.nvlink if nodes == 1 else min(self.nvlink, self.network * self.gpus_of_a_node)
        of_ring = num_bytes * 2 * (gpus - 1) / gpus / bandwidth  # Patarasuk and Yuan 2009
        of_tree = num_bytes * 2 / (bandwidth * float(GIVEN["bandwidth of a tree"]))
        buckets = math.ceil(num_bytes / BUCKET)
        return min(of_ring + buckets * ring_latency(gpus, nodes), of_tree + buckets * tree_latency(gpus, nodes))


def ring_latency(gpus: int, nodes: int) -> float:
    """Seconds: a part passes 2 (p - 1) hops, of which 2 (nodes - 1) count as those of the network."""
    far = 2 * (nodes - 1)
    return far * float(GIVEN["the same between nodes"]) + (2 * (gpus - 1) - far) * float(GIVEN["hop of a ring"])


def tree_latency(gpus: int, nodes: int) -> float:
    """Seconds: up and down a chain in a node, and a binary tree over the nodes."""
    near, far = gpus / nodes - 1, math.log2(nodes)
    return 2 * (near * float(GIVEN["hop of a tree"]) + far * float(GIVEN["the same between two nodes"]))


class Step(NamedTuple):
    """An optimizer step, in seconds."""

    batch: int  # sequences, of all GPUs
    products: float
    launches: float  # what the operations take to be launched, whatever they compute
    all_reduce: float
    exposed: float  # of it, what the backward pass does not hide

    @property
    def seconds(self) -> float:
        return max(self.products, self.launches) + self.exposed


@functools.cache
def sizes() -> list[Size]:
    """Those of the tables."""
    return [Size(name) for name in NAMES]


class Size:
    """A named size with its recipe."""

    def __init__(self, name: str) -> None:
        self.name, self.recipe = name, SIZES[name].pretraining
        self.length, self.batch = self.recipe["max_seq_length"], self.recipe["per_device_train_batch_size"]
        mask_probability = self.recipe["mask_probability"]
        self.work = Workload(name, batch_size=1, max_seq_length=self.length, mask_probability=mask_probability)
        with torch.device("meta"):
            pair: Any = ElectraForRTDPretraining(self.work.config())
        self.parameters = count_parameters(pair)["total"]
        # Its gradient is complete when the backward pass is over, so that nothing hides it.
        self.word_table = pair.get_input_embeddings().weight.numel()
        layers = pair.config.discriminator_config.num_hidden_layers
        per_layer, beside = operations_of_layers()
        self.operations = beside + layers * per_layer

    @property
    def sequences(self) -> int:
        return int(self.batch * self.recipe["max_steps"])

    @property
    def checkpoint_bytes(self) -> int:
        return FLOAT * STATES * self.parameters

    def checkpoint_seconds(self) -> float:
        """One process writes it, and reads it again from memory for its hashes."""
        return sum(self.checkpoint_bytes / rate for rate in disk_and_hash())

    def step(self, gpus: int, cluster: Cluster | None = None) -> Step:
        """A step with the recipe's batch, or of one sequence a GPU where that has fewer."""
        cluster, batch = cluster or Cluster(), max(self.batch, gpus)
        products = self.work.flops() * batch / gpus / (cluster.share * cluster.peak)
        launches = self.operations * cluster.launch
        whole, last = FLOAT * self.parameters, FLOAT * self.word_table
        before = cluster.all_reduce(whole - last, gpus)
        # The backward pass is two thirds of a step (`accounting`: it costs two forward passes).
        exposed = cluster.all_reduce(last, gpus) + max(0.0, before - 2 / 3 * max(products, launches))
        return Step(batch, products, launches, before + cluster.all_reduce(last, gpus), exposed)

    def gpu_hours(self, gpus: int, cluster: Cluster | None = None) -> float:
        """Of the whole recipe, interruptions included."""
        step = self.step(gpus, cluster)
        interval = best_interval(self.checkpoint_seconds(), gpus)
        working = self.sequences / step.batch * step.seconds * gpus / 3600
        return working / (1 - lost_share(self.checkpoint_seconds(), interval, gpus))


@functools.cache
def operations_of_layers() -> tuple[float, float]:
    """Operations of a step in bfloat16 autocast for a layer of both towers, and beside the layers. Their number does
    not depend on widths, so it is counted on narrow networks of one and of two layers."""
    one, two = (_count_operations(layers) for layers in (1, 2))
    return two - one, 2 * one - two


def _count_operations(layers: int) -> int:
    class Counter(TorchDispatchMode):
        found = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.found += not function.is_view
            return function(*args, **(kwargs or {}))

    work = Workload("small", vocab_size=100, batch_size=2, max_seq_length=16, dropout=0.0)
    config = work.config()
    for tower in config.towers.values():
        tower.num_hidden_layers = layers
    model: Any = ElectraForRTDPretraining(config).train()
    (batch,) = random_batches(work, 1)
    optimizer = ElectraAdamW(get_parameter_groups(model, weight_decay=0.01), lr=1e-4)
    with Counter() as counter:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return counter.found


def random_batches(work: Workload, count: int) -> list[dict[str, Any]]:
    """Masked batches of random rows."""
    from hf_electra_rtd import DataCollatorForRTD, SequenceStream

    with tempfile.TemporaryDirectory() as directory:
        stream = SequenceStream(work.write_rows(directory, count * work.batch_size), seed=work.seed)
        collate = DataCollatorForRTD(work.tokenizer(), seed=work.seed)
        size = work.batch_size
        return [collate(stream.__getitems__(range(at * size, (at + 1) * size))) for at in range(count)]


def disk_and_hash() -> tuple[float, float]:
    """Bytes a second of one process."""
    return float(GIVEN["one writer's disk"]), measured()["sha256_bytes_a_second"]


def failures_a_day(gpus: int) -> float:
    return float(GIVEN["interruptions"]) * gpus


def best_interval(checkpoint_seconds: float, gpus: int) -> float:
    """Seconds between checkpoints that lose least (Young 1974): sqrt(2 x checkpoint x time between failures)."""
    return math.sqrt(2 * checkpoint_seconds * DAY / failures_a_day(gpus))


def lost_share(checkpoint_seconds: float, interval: float, gpus: int) -> float:
    """Of the time: what checkpoints take, what is done again after failures, and restarts. Failures come at a constant
    rate; the mean time until an interval and its checkpoint are done is that of Daly 2006, with none in a restart."""
    rate = failures_a_day(gpus) / DAY
    mean = (1 / rate + float(GIVEN["restart"])) * math.expm1(rate * (interval + checkpoint_seconds))
    return 1 - interval / mean


# ---- Tables ----


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def given_table() -> str:
    rows = ([name, f"{given.value:,.3g} {given.unit}".strip(), given.source] for name, given in GIVEN.items())
    return table(["given", "value", "source"], rows)


def step_table() -> str:
    rows = []
    for size in sizes():
        for gpus in GPUS:
            step = size.step(gpus)
            changed = "" if step.batch == size.batch else f" (recipe: {size.batch})"
            times = (step.products, step.launches, step.all_reduce, step.exposed, step.seconds)
            speed = step.batch * size.length / step.seconds
            alone = size.step(1)
            efficiency = speed / gpus / (alone.batch * size.length / alone.seconds)
            hours = size.gpu_hours(gpus)
            row = [size.name, f"{gpus}", f"{step.batch:,}{changed}", *(f"{1000 * each:,.1f}" for each in times)]
            rows.append([*row, f"{speed / 1e6:.3g}", f"{efficiency:.0%}", f"{hours / gpus / 24:.3g}", f"{hours:,.0f}"])
    times = ["products", "launches", "all-reduce", "not hidden", "step"]
    headings = ["size", "GPUs", "sequences", *(f"{name}, ms" for name in times)]
    return table([*headings, "million tokens/s", "efficiency", "days", "GPU hours"], rows)


def sensitivity_table() -> str:
    slow = Cluster(network=float(GIVEN["network"]) / 32)  # 100 Gb/s for a node of 8, all of it reached
    variants = {f"{share:.0%} of the peak": Cluster(share=share) for share in SHARES}
    variants |= {"no launches (CUDA graphs)": Cluster(launch=0.0), "100 Gb/s a node": slow}
    rows = [
        [size.name, f"{gpus}", *(f"{size.gpu_hours(gpus, cluster):,.0f}" for cluster in variants.values())]
        for size in sizes()
        for gpus in (8, 64, 512)
    ]
    return table(["size", "GPUs", *variants], rows)


def checkpoint_table() -> str:
    rows = []
    for size in sizes():
        for gpus in (8, 64, 512):
            step, seconds = size.step(gpus).seconds, size.checkpoint_seconds()
            interval, ours = best_interval(seconds, gpus), size.recipe["save_steps"] * step
            lost = [lost_share(seconds, each, gpus) for each in (interval, ours)]
            row = [size.name, f"{FLOAT * size.parameters / 1e6:,.0f}", f"{size.checkpoint_bytes / 1e9:.2f}"]
            row += [f"{seconds:.1f}", f"{gpus}", f"{failures_a_day(gpus):.2g}", f"{interval / 60:,.0f}"]
            rows.append([*row, f"{interval / step:,.0f}", *(f"{share:.2%}" for share in lost), f"{ours / 120:,.1f}"])
    headings = [
        "size",
        "gradient, MB",
        "checkpoint, GB",
        "written in, s",
        "GPUs",
        "failures a day",
        "interval, min",
    ]
    return table([*headings, "in steps", "lost", "lost with 1,000 steps", "repeated after a failure, min"], rows)


def data_table() -> str:
    rows = []
    for size in sizes():
        tokens = TEXT / float(GIVEN["text"])
        sequences, stored = tokens / size.length, block_bytes(size.length) * tokens / size.length
        step = size.step(8, Cluster(share=max(SHARES), launch=0.0))
        rate = step.batch / step.seconds / 1e6
        read = [
            rate * (block_bytes(size.length) + more) for more in (0, 3 * PAGE)
        ]  # ids, bits, index: a page more each
        passes = size.sequences * size.length / tokens
        row = [size.name, f"{tokens / 1e9:,.0f} billion", f"{sequences / 1e6:,.0f} million", f"{stored / 1e9:,.0f} GB"]
        row += [f"{passes:.2f}", f"{stored / min(disk_and_hash()) / 60:,.0f} min"]
        rows.append([*row, f"{24 * sequences / 1e9:,.1f} GB", *(f"{each:,.1f} MB/s" for each in read)])
    headings = ["size", "tokens", "sequences", "blocks", "passes of the recipe", "verified by one process in"]
    headings += ["memory while a permutation is drawn", "needed by a node of 8, at most", "in whole pages"]
    return table(headings, rows)


@functools.cache
def block_bytes(length: int) -> float:
    """Bytes of a full sequence in a block file: the difference that 64 more make."""
    found = []
    with tempfile.TemporaryDirectory() as directory:
        for count in (64, 128):
            found.append(os.path.getsize(Workload(max_seq_length=length).write_rows(directory, count).path))
    return (found[1] - found[0]) / 64


def preparation_hours() -> float:
    """Core hours for the text."""
    return TEXT / float(GIVEN["preparation"]) / 3600


# ---- The check against two processes ----


def measured() -> dict[str, Any]:
    """What `--measure` found."""
    return dict(json.loads(RESULTS.read_text(encoding="utf-8")))


def predict(found: dict[str, Any]) -> tuple[float, float]:
    """Milliseconds that communication adds to a step of two processes: with all of the all-reduce beside the backward
    pass but for the word table's, as in `Size.step`, and with nothing of it hidden."""
    work, whole = found["waiting_ms"], found["all_reduce_ms"]
    last = whole * found["word_table_bytes"] / found["gradient_bytes"]
    return last + max(0.0, whole - last - 2 / 3 * work), whole


def check_table() -> str:
    found = measured()
    (low, high), (first, added, third) = predict(found), found["added_ms"]
    bandwidth = found["gradient_bytes"] / found["all_reduce_ms"] / 1e6  # 2 (p - 1) / p is 1
    rows = {
        "step of one process alone": f"{found['alone_ms']:.1f} ms",
        "two at once, without communication": f"{found['at_once_ms']:.1f} ms",
        "the same, and each waits for the other after its backward pass": f"{found['waiting_ms']:.1f} ms",
        "gradient": f"{found['gradient_bytes'] / 1e6:.2f} MB, word table {found['word_table_bytes'] / 1e6:.2f} MB",
        "its all-reduce alone (gloo)": f"{found['all_reduce_ms']:.1f} ms, {bandwidth:.2f} GB/s",
        "two with DistributedDataParallel": f"{found['together_ms']:.1f} ms",
        "predicted to be added": f"{low:.1f} ms (hidden beside backward) to {high:.1f} ms (not hidden)",
        "added, a round": f"{added:.1f} ms (quartiles {first:.1f} and {third:.1f})",
        "SHA-256 of one process": f"{found['sha256_bytes_a_second'] / 1e9:.2f} GB/s of processor time",
        "load of the machine before": ", ".join(f"{load:.1f}" for load in found["load_average"]),
    }
    return table(["tiny, 4 x 128, one thread each", f"median of {found['rounds']} rounds"], rows.items())


TABLES: dict[str, Callable[[], str]] = {
    "given": given_table,
    "steps": step_table,
    "sensitivity": sensitivity_table,
    "checkpoints": checkpoint_table,
    "data": data_table,
    "check": check_table,
}


def measure(rounds: int, steps: int) -> dict[str, Any]:
    """Runs `_measure` in two processes of one thread, and returns what it found."""
    with tempfile.TemporaryDirectory() as directory:
        found = Path(directory) / "found.json"
        torch.multiprocessing.spawn(_measure, (str(found), str(Path(directory) / "meet"), rounds, steps), nprocs=2)
        return dict(json.loads(found.read_text()))


def _measure(rank: int, found: str, meeting: str, rounds: int, steps: int) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    work = Workload("tiny", batch_size=SIZES["tiny"].pretraining["per_device_train_batch_size"], dropout=0.0)
    torch.manual_seed(0)
    model: Any = ElectraForRTDPretraining(work.config()).train()
    optimizer = ElectraAdamW(get_parameter_groups(model, weight_decay=0.01), lr=1e-4)
    batches = random_batches(work, 4)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=BUCKET // 2**20)
    gradient = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))

    def step(network: Any, wait: Callable[[], Any] = lambda: None) -> None:
        for batch in batches[:steps]:
            network(**batch).loss.backward()
            wait()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    def reduce() -> None:
        for _ in batches[:steps]:
            distributed.all_reduce(gradient)

    kinds: dict[str, Callable[[], None] | None] = {
        "alone": (lambda: step(model)) if rank == 0 else None,
        "at_once": lambda: step(model),
        "waiting": lambda: step(model, distributed.barrier),
        "all_reduce": reduce,
        "together": lambda: step(wrapped),
    }
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(1 + rounds):  # the first one warms up
        for name, kind in kinds.items():
            distributed.barrier()
            began = time.perf_counter()
            if kind is not None:
                kind()
            times[name].append(1000 * (time.perf_counter() - began) / min(steps, len(batches)))
    if rank == 0:
        medians: dict[str, Any] = {f"{name}_ms": statistics.median(each[1:]) for name, each in times.items()}
        facts = {"gradient_bytes": FLOAT * gradient.numel()}
        facts["word_table_bytes"] = FLOAT * model.get_input_embeddings().weight.numel()
        facts["sha256_bytes_a_second"] = round(hash_rate(Path(found)))
        pairs = zip(times["waiting"][1:], times["together"][1:], strict=True)
        medians["added_ms"] = statistics.quantiles((together - waiting for waiting, together in pairs), n=4)
        Path(found).write_text(json.dumps({**medians, **facts, "rounds": rounds}))
    distributed.destroy_process_group()


def hash_rate(scratch: Path) -> float:
    """Bytes a second of processor time: the median of some readings of a file in memory."""
    scratch.write_bytes(bytes(2**27))
    seconds = []
    for _ in range(9):
        began = time.process_time()
        hash_files([scratch])
        seconds.append(time.process_time() - began)
    return 2**27 / statistics.median(seconds)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help=f"measure here first, into {RESULTS.name} and the page")
    parser.add_argument("--rounds", type=int, default=20, help="of a measurement")
    arguments = parser.parse_args(argv)
    if arguments.measure:
        shown = {name: make() for name, make in TABLES.items()}
        about = describe_run("scale_model", {"device": "cpu", "rounds": arguments.rounds})
        found = measure(arguments.rounds, steps=4)
        RESULTS.write_text(json.dumps({**about, **found}, indent=2) + "\n", encoding="utf-8")
        page = PAGE_OF_TABLES.read_text(encoding="utf-8")
        for name, make in TABLES.items():
            page = page.replace(shown[name], make())
        PAGE_OF_TABLES.write_text(page, encoding="utf-8")
        say(f"Measured, in {RESULTS}; the tables of {PAGE_OF_TABLES} are new.")
    for name, make in TABLES.items():
        print(f"\n## {name}\n\n{make()}")
    print(f"\nPreparation: {preparation_hours():,.0f} core hours for {TEXT / 1e12:g} TB of text.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
