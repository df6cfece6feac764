"""The memory of a training step, counted before there is a GPU.

A step runs on fake tensors, which have shapes but no values. The sizes of all live storages are added up: weights,
gradients, the optimizer's states, the batch, activations, and the results of operations. The fake tensors are on the
CPU, so that every build of torch can run the step. Operations that use other memory on a GPU are counted as on a GPU
(`_AsOnGPU`).

Not counted: CUDA's context, workspaces of libraries and kernels, the allocator's fragmentation (`RESERVE` is kept for
these), the buckets of DistributedDataParallel (4 bytes a parameter), and evaluation, which keeps nothing for a
backward pass.
"""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_electra_rtd.ops.devices import as_on_gpu
from hf_electra_rtd.training.meters import TrainingMeters
from hf_electra_rtd.training.optimization import make_optimizer


RESERVE = 0.1  # share of a GPU's memory that is kept free; an assumption
_BLOCK = 512  # bytes; torch's allocator for CUDA rounds sizes up to multiples of it


class Batches(NamedTuple):
    """The batches that fit into a memory."""

    peak: int  # bytes of a step with all wanted sequences in one batch
    largest: int  # sequences of the largest batch that fits; 0 if not even one fits
    accumulated: int  # sequences of the largest batch that fits and divides the wanted number; 0 if not even one fits


def fit_batches(model: Any, take_step: Callable[[int], int], wanted: int, memories: Sequence[int]) -> list[Batches]:
    """Returns the batches that fit into GPUs with `memories` bytes each, for `wanted` sequences per step on each GPU.
    `take_step` comes from [`fake_steps`]."""
    peak = cache(take_step)
    gradients = sum(each.nbytes for each in model.parameters() if each.requires_grad)  # accumulation keeps them
    found = []
    for memory in memories:
        budget = (1 - RESERVE) * memory
        largest = largest_batch(peak, budget, wanted)
        most = wanted if largest >= wanted else largest_batch(peak, budget - gradients, wanted)
        accumulated = max((size for size in range(1, most + 1) if wanted % size == 0), default=0)
        found.append(Batches(peak(wanted), largest, accumulated))
    return found


def largest_batch(peak: Callable[[int], int], budget: float, start: int) -> int:
    """Returns the most sequences whose peak, in bytes, is within the budget; 0 if one is too many.

    With more sequences, the peak never falls; where activations decide it, it grows linearly. So interpolation finds
    the batch in few steps. After two steps of interpolation, every second step bisects, which bounds their number.
    `peak` is called more than once for the same number: cache it.

    Args:
        start: the number of sequences to try first, at least 1.
    """
    fits = 0
    too_many = 0  # not found yet
    size = start
    while not (fits and too_many):
        if peak(size) <= budget:
            fits = size
            size *= 8
        elif size == 1:
            return 0
        else:
            too_many = size
            size = max(size // 8, 1)
    step = 0
    while too_many - fits > 1:
        step += 1
        bisects = step > 2 and step % 2 == 1
        share = 0.5 if bisects else (budget - peak(fits)) / (peak(too_many) - peak(fits))
        middle = fits + round(share * (too_many - fits))
        middle = min(max(middle, fits + 1), too_many - 1)
        if peak(middle) <= budget:
            fits = middle
        else:
            too_many = middle
    return fits


@contextmanager
def fake_steps(
    model: Any,
    args: Any,
    batch: Mapping[str, Tensor],
    dtype: torch.dtype | None,
    checkpointing: bool = False,
    on_gpu: bool = True,
) -> Iterator[Callable[[int], int]]:
    """Yields a function that takes a training step with a copy of a pair, and returns its peak in bytes.

    The argument of this function is the number of sequences. The optimizer has its states, as from the second step of
    a run on. The function raises ValueError for a pair whose computation depends on the values of tensors.

    Args:
        model: an [`ElectraForRTDPretraining`] on the CPU. It stays as it is.
        args: [`RTDTrainingArguments`], for the optimizer.
        batch: a collated batch of any number of sequences, on the CPU.
        dtype: the dtype of autocast; None for float32.
        checkpointing: whether to use gradient checkpointing.
        on_gpu: whether to count as on a GPU; else as on this CPU.
    """
    shapes = {name: (each.shape[1:], each.dtype) for name, each in batch.items()}
    fake = FakeTensorMode()
    alive = _Alive()
    with FakeCopyMode(fake):
        model = copy.deepcopy(model).train()
    if checkpointing:
        # Function modes do not reach into a backward pass, so the recomputation enters the mode itself.
        again = {"context_fn": lambda: (nullcontext(), _AsOnGPU() if on_gpu else nullcontext())}
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False, **again})
    with ExitStack() as modes:
        modes.enter_context(fake)
        if on_gpu:
            modes.enter_context(as_on_gpu())
            modes.enter_context(_AsOnGPU())
        modes.enter_context(alive)
        for tensor in (*model.parameters(), *model.buffers()):
            alive.add(tensor)
        optimizer = make_optimizer(model, args)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        optimizer.step()
        optimizer.zero_grad()
        meters = TrainingMeters(model.measures)

        def take_step(num_sequences: int) -> int:
            alive.peak = alive.bytes
            inputs = {name: torch.empty(num_sequences, *shape, dtype=kind) for name, (shape, kind) in shapes.items()}
            try:
                with torch.autocast("cpu", dtype, enabled=dtype is not None):
                    output = model(**inputs)
                meters.update(output, inputs)
                loss = output.loss
                del output
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm, foreach=True)
                optimizer.step()
            except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException) as error:
                raise ValueError(
                    f"The memory of this pair cannot be counted: its operations depend on tensor values ({error})."
                ) from error
            optimizer.zero_grad()
            return alive.peak

        yield take_step


class _Alive(TorchDispatchMode):
    """Counts the bytes of live storages that operations returned, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}  # of storages, by their address

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.prim.device.default:  # most calls ask for the device
            return args[0].fake_device
        result = function(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor):
                self.add(each)
        return result

    def add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        if address not in self._sizes:
            self._sizes[address] = math.ceil(storage.nbytes() / _BLOCK) * _BLOCK
            self.bytes += self._sizes[address]
            self.peak = max(self.peak, self.bytes)
            weakref.finalize(storage, self._remove, address)

    def _remove(self, address: int) -> None:
        self.bytes -= self._sizes.pop(address)


class _AsOnGPU(TorchFunctionMode):
    """Makes functions keep the memory that they keep with CUDA, where a CPU differs: dropout's mask has one byte per
    element, attention with dropout has a fused kernel, and autocast computes the functions in `_FLOAT32` in
    float32."""

    _FLOAT32 = (F.layer_norm, F.softmax, F.log_softmax, torch.softmax, torch.log_softmax)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is F.dropout:
            return _dropout(*args, **kwargs)
        if function is F.scaled_dot_product_attention:
            kwargs["dropout_p"] = 0.0
        if function in self._FLOAT32 and torch.is_autocast_enabled("cpu"):
            args = (args[0].float(), *args[1:])
        return function(*args, **kwargs)


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(input, p, True)[0] if training and p > 0 else input
