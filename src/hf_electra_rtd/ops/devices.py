"""Decides whether a computation takes the way that is faster on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor


_is_pretended = False


def on_cpu(tensor: Tensor) -> bool:
    """Whether a tensor lies on a CPU and the CPU's way is to be used."""
    return tensor.device.type == "cpu" and not _is_pretended


@contextmanager
def as_on_gpu() -> Iterator[None]:
    """Uses the GPU's way on a CPU, too: for tensors without data, in a step that is only counted."""
    global _is_pretended
    before = _is_pretended
    _is_pretended = True
    try:
        yield
    finally:
        _is_pretended = before
