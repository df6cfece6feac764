"""Matrix products on a CPU, by the faster of the two libraries that torch has.

torch multiplies float32 matrices by MKL, which takes its AVX2 path on some processors that have wider instructions.
oneDNN, which torch uses for other things, uses those, and is two to three times as fast there. Which one is faster,
and how much faster still bfloat16 is, is looked up by processor, so that every run rounds alike. On a processor that
is not in the table it is measured, once a process. The library is the only state in these functions.

oneDNN multiplies for a linear layer by an operator of its own. Where both matrices are activations (attention, the
gradients of weights), it is reached by torch's permission to round to bfloat16, which oneDNN makes use of only on
processors that have tiles for it (AMX). There the permission is not given, nor where a product shows that it rounds
(`_rounds_to_bfloat16`); elsewhere it changes the library alone.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
import time
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812

from hf_electra_rtd.ops.devices import on_cpu


logger = logging.getLogger(__name__)

MKL = "mkl"
ONEDNN = "onednn"
LIBRARIES = (MKL, ONEDNN)
BFLOAT16 = "bfloat16"
# GFLOP/s of one thread (`benchmarks/LOG.md`), by vendor, family and models, of processors with `avx512_bf16`.
_KNOWN = (
    ("AuthenticAMD", 25, range(16, 32), {MKL: 98.0, ONEDNN: 107.0, BFLOAT16: 205.0}),  # EPYC 9004
    ("AuthenticAMD", 26, range(0, 32), {MKL: 90.0, ONEDNN: 210.0, BFLOAT16: 430.0}),  # EPYC 9005
)
_GAIN = 1.2  # how much faster oneDNN must be: where both are as fast, noise shall not decide
_PROBE = (1024, 256, 512)  # rows, inputs and outputs of a product that is timed
_TRIES = 30  # of which the best time counts: other programs only slow products down
_CPUINFO = Path("/proc/cpuinfo")
_mkldnn: Any = torch.backends.mkldnn
_permission = threading.Lock()  # the setting is of the whole process
_chosen: str | None = None


def library() -> str:
    """The library of float32 products on the CPU in this process, one of `LIBRARIES` (`"mkl"` is torch's usual one).
    The first call chooses it, unless `use_library` did. On an unknown processor this takes some tenths of a second."""
    global _chosen
    if _chosen is None:
        gflops = speeds()
        _chosen = ONEDNN if gflops.get(ONEDNN, 0.0) > _GAIN * gflops[MKL] else MKL
        listed = ", ".join(f"{name} {speed:.0f}" for name, speed in gflops.items())
        origin = "measured" if _known_speeds() is None else "from a table"
        logger.debug(f"CPU matrix multiplication by {_chosen} (GFLOP/s, {origin}: {listed}).")
    return _chosen


def chosen_library() -> str | None:
    """As `library`; None where none has been chosen yet."""
    return _chosen


def use_library(name: str | None) -> None:
    """Chooses the library by its name, so that a run that is resumed rounds as it did; None, of a run that was not on
    a CPU, chooses nothing. In place of one that this torch does not have, the faster one is taken."""
    global _chosen
    if name is None:
        return
    if name == MKL or (name == ONEDNN and has_onednn()):
        if _chosen not in (None, name):
            logger.info(f"CPU matrix multiplication by {name}, no longer by {_chosen}.")
        _chosen = name
    elif name != library():
        logger.warning(f"This torch has no {name}. Products use {library()}, which rounds differently.")


@functools.cache
def speeds() -> dict[str, float]:
    """GFLOP/s of a product on the CPU: in float32 by each library, and in bfloat16. On an unknown processor they are
    timed in turns."""
    known = _known_speeds()
    if known is not None:
        return {name: speed for name, speed in known.items() if name != ONEDNN or has_onednn()}
    rows, inputs, outputs = _PROBE
    matrices = torch.ones(rows, inputs), torch.ones(outputs, inputs)
    ways: dict[str, Any] = {MKL: (F.linear, *matrices)}
    if has_onednn():
        ways[ONEDNN] = (_onednn, *matrices)
    ways[BFLOAT16] = (F.linear, *(matrix.bfloat16() for matrix in matrices))
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(_TRIES):
        for name, (multiply, *operands) in ways.items():
            began = time.perf_counter()
            multiply(*operands)
            best[name] = min(best[name], time.perf_counter() - began)
    return {name: 2 * rows * inputs * outputs / seconds / 1e9 for name, seconds in best.items()}


def _known_speeds() -> dict[str, float] | None:
    """What was measured on processors like this one; None of others, and on other systems than Linux."""
    text = _CPUINFO.read_text() if _CPUINFO.exists() else ""
    facts = dict(re.findall(r"^(\w[\w ]*?)\s*: (.*)$", text.partition("\n\n")[0], re.MULTILINE))
    if "avx512_bf16" not in facts.get("flags", "").split():
        return None
    for vendor, family, models, gflops in _KNOWN:
        if (facts["vendor_id"], facts["cpu family"]) == (vendor, str(family)) and int(facts["model"]) in models:
            return gflops
    return None


def bfloat16_gain() -> float:
    """How many times as fast as the best float32 one a bfloat16 product is."""
    gflops = dict(speeds())
    return gflops.pop(BFLOAT16) / max(gflops.values())


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, with its gradients, by the library of this process."""
    if not _applies(input, weight) or (bias is not None and bias.dtype != torch.float32):
        return F.linear(input, weight, bias)
    return cast(Tensor, _Linear.apply(input, weight, bias))


def product(left: Tensor, right: Tensor) -> Tensor:
    """left right, (M, K) (K, N) or (B, M, K) (B, K, N), likewise; without a gradient. For views, too."""
    return _activations(left, right) if _applies(left, right.mT) else _by_torch(left, right)


def _applies(input: Tensor, weight: Tensor) -> bool:
    return (
        on_cpu(input)
        and input.dtype == weight.dtype == torch.float32
        and input.dim() > 1
        and not torch.compiler.is_compiling()  # where a size may be unknown
        and input.numel() > 0
        and input.shape[-1] == weight.shape[-1]
        and not torch.is_autocast_enabled("cpu")
        and library() == ONEDNN
    )


def has_onednn() -> bool:
    """Whether this torch can multiply by oneDNN."""
    return bool(_mkldnn.is_available()) and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _onednn(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], ""))


def _activations(left: Tensor, right: Tensor) -> Tensor:
    """left right, of two or three dimensions and any strides."""
    if not (torch.is_autocast_enabled("cpu") or _rounds_to_bfloat16()):
        return _permitted(left, right)
    return _onednn(left, right.T) if left.dim() == 2 else _by_torch(left, right)


def _permitted(left: Tensor, right: Tensor) -> Tensor:
    setting = _mkldnn.matmul
    with _permission:
        before = setting.fp32_precision
        setting.fp32_precision = "bf16"
        try:
            return _by_torch(left, right)
        finally:
            setting.fp32_precision = before


def _by_torch(left: Tensor, right: Tensor) -> Tensor:
    return torch.mm(left, right) if left.dim() == 2 else torch.bmm(left, right)  # `@` expands batches first


@functools.cache
def _rounds_to_bfloat16() -> bool:
    """Whether a product that may be rounded to bfloat16 is, or could be."""
    if torch.cpu._is_amx_tile_supported():
        return True
    left = torch.full((2, 64, 64), 1 + 2**-12)  # 13 bits; bfloat16 has 8
    right = torch.ones(2, 64, 64)
    exact = 64 * left
    return not (torch.equal(_permitted(left, right), exact) and torch.equal(_permitted(left[0], right[0]), exact[0]))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        return _onednn(input, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        for_input = _onednn(gradient, weight.T) if ctx.needs_input_grad[0] else None
        for_weight = _activations(rows.T, input.flatten(0, -2)) if ctx.needs_input_grad[1] else None
        return for_input, for_weight, rows.sum(dim=0) if ctx.needs_input_grad[2] else None
