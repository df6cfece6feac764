# ruff: noqa: E402  # libraries are loaded before torch
"""A device `cuda` without a GPU. Tensors on the CPU are real; tensors on `cuda` are fake and have no values.

Operations that would be slow or wrong on a GPU are noted, with the line of this project that caused them:

    mixed  an operation gets a tensor of the CPU together with tensors of the device
    wait   the host reads a number of the device, or a shape depends on one
    copy   a copy to the device is not `non_blocking` from pinned memory

Kernels do not run, so this cannot tell whether one exists for a type, what it computes and how fast it is. A number
that is read is always 1. Import this module before torch, which asks for CUDA only once; `shim.cpp` answers.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


_LIBRARIES = Path(str(importlib.util.find_spec("torch").origin)).parent / "lib"
ctypes.CDLL(str(_LIBRARIES / "libtorch_cpu.so"), mode=ctypes.RTLD_GLOBAL)
ctypes.CDLL(os.environ["FAKE_ACCELERATOR"])

import torch
import transformers.masking_utils
import transformers.modeling_attn_mask_utils
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


_aten = torch.ops.aten
_READS = (_aten._local_scalar_dense.default, _aten.is_nonzero.default, _aten.equal.default)
_OF_DATA = ("nonzero", "masked_select", "unique", "bincount", "repeat_interleave", "histc")
_BETWEEN = re.compile(r"fake_accelerator|/torch/|contextlib|runpy")
_INDEXING = ("index", "index_put", "index_put_")


def pretend() -> None:
    """Makes torch, transformers and accelerate believe that the device exists."""
    answers = {"is_available": True, "device_count": 1, "current_device": 0, "is_bf16_supported": True}
    answers |= {"is_current_stream_capturing": False, "set_device": None, "synchronize": None, "empty_cache": None}
    answers |= {"manual_seed_all": None, "_lazy_init": None, "get_device_name": "fake", "is_initialized": False}
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *args, answer=answer, **kwargs: answer)
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` makes a tensor on the CPU and copies it
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    # These modules take fake tensors for tracing, in which they skip reads of the device.
    for module in (transformers.masking_utils, transformers.modeling_attn_mask_utils, transformers.modeling_utils):
        module.is_tracing = lambda tensor=None: False
    # Pinned tensors are marked by an attribute.
    torch.Tensor.pin_memory = _pin
    torch.Tensor.is_pinned = lambda self, *args: hasattr(self, "pinned")
    nn.Module.to = _to
    FakeTensor.tolist = lambda self: self.cpu().tolist()


def _pin(tensor: Tensor, *args: Any) -> Tensor:
    pinned = tensor.clone()
    pinned.pinned = True
    return pinned


_stock_to = nn.Module.to


def _to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """Moves a module to the device: fake parameters and buffers replace the real ones. Ties and all else stay."""
    device = torch._C._nn._parse_to(*args, **kwargs)[0]
    if device is None or device.type != "cuda":
        return _stock_to(module, *args, **kwargs)
    made: dict[int, Tensor] = {}
    for each in module.modules():
        for tensors in (each._parameters, each._buffers):
            for name, tensor in tensors.items():
                if tensor is None or isinstance(tensor, FakeTensor):
                    continue
                if id(tensor) not in made:
                    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
                tensors[name] = made[id(tensor)]
    return module


class FakeAccelerator(TorchDispatchMode):
    """While this mode is active, the device `cuda` exists. `noted` counts (phase, kind, what)."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: Counter[tuple[str, str, str]] = Counter()
        self.phase = "before"
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        before, self.phase = self.phase, phase
        yield
        self.phase = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:  # most calls ask for the device
            return args[0].fake_device
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        fakes = [each for each in given if isinstance(each, FakeTensor) and each.device.type == "cuda"]
        target = torch.device(kwargs["device"]).type if kwargs.get("device") is not None else None
        if not fakes and target != "cuda":
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        dtype = kwargs.get("dtype") or (given[0].dtype if given else None)
        if func in _READS:
            self._note("wait", func)
            return torch.ones((), dtype=dtype).item() if func is _READS[0] else True
        if name == "_to_copy" and target == "cpu":
            self._note("wait", func)
            return getattr(given[0], "sizes", torch.ones(given[0].shape, dtype=dtype))
        if name == "_to_copy" and not fakes:
            if not (given[0].is_pinned() and kwargs.get("non_blocking")):
                self._note("copy", func)
            with self._fake:
                made = torch.empty(given[0].shape, dtype=dtype, device="cuda")
            made.is_dense = given[0].layout == torch.strided
            if made.is_dense and dtype == torch.int64 and given[0].numel() < 8:
                made.sizes = given[0]
            return made
        if name == "index_select" and not getattr(given[0], "is_dense", True):
            raise NotImplementedError("index_select of a sparse tensor has no fake kernel.")
        if name == "copy_" and len(fakes) == 1:
            self._note("copy" if args[0] is fakes[0] else "wait", func)
            return args[0]
        if name in _OF_DATA or (name in _INDEXING and any(i is not None and i.dtype == torch.bool for i in args[1])):
            self._note("wait", func)
        is_list = name.startswith(("_foreach", "_fused"))
        if any(each.dim() or is_list for each in given if not isinstance(each, FakeTensor)):
            self._note("mixed", func)
        with self._fake:
            made = func(*args, **kwargs)
        if name == "unsqueeze" and hasattr(given[0], "sizes"):
            made.sizes = func(given[0].sizes, *args[1:])
        return made

    def _note(self, kind: str, func: Any) -> None:
        frames = [each for each in traceback.extract_stack() if not _BETWEEN.search(each.filename)]
        ours = [each for each in frames if "hf_electra_rtd" in each.filename] or frames
        places = dict.fromkeys(f"{Path(each.filename).name}:{each.lineno}" for each in (ours[-1], frames[-1]))
        self.noted[self.phase, kind, f"{func} at {', in '.join(places)}"] += 1
