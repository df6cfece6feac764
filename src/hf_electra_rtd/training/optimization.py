"""The original's optimizer and learning-rate schedule (google-research/electra model/optimization.py), and Muon."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hf_electra_rtd.training.arguments import MUON


logger = logging.getLogger(__name__)


class ElectraAdamW(torch.optim.AdamW):
    """Adam with decoupled weight decay and, unlike `torch.optim.AdamW`, without bias correction.

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        p <- p - lr (m / (sqrt(v) + eps) + weight_decay p)

    Source: `AdamWeightDecayOptimizer` of google-research/electra. Compared with a corrected Adam, step t is larger by
    the factor (1 - beta1^t) / sqrt(1 - beta2^t): 6.6 at its peak, step 12, and still 3.2 at step 100. A warm-up of
    10,000 steps makes up for this. Short runs need a lower learning rate, or `bias_correction=True`, which gives
    `torch.optim.AdamW`, whose options this class takes. Without correction, the `step` in the state of each parameter
    is infinite from the start, so that torch's own kernels find nothing to correct.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        bias_correction: bool = False,
        **options: Any,
    ) -> None:
        if not options.keys() & {"fused", "foreach", "differentiable"}:
            options["fused"] = True
        self._bias_correction = bias_correction
        super().__init__(params, lr, betas, eps, weight_decay, **options)
        self._step_supports_amp_scaling = False  # so that `accelerate` sees when a step in float16 was skipped

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group({"bias_correction": self._bias_correction, **param_group})

    def _init_group(self, group: dict[str, Any], *lists: Any) -> Any:
        new = [param for param in group["params"] if param.grad is not None and not self.state[param]]
        result = super()._init_group(group, *lists)
        if not group["bias_correction"]:
            for param in new:
                self.state[param]["step"].fill_(math.inf)
        return result


# The coefficients of Keller Jordan's Muon, and of torch.optim.Muon. With them, each step brings the singular values of
# a matrix nearer to 1, but not all the way.
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5
_RMS_OF_ADAM = 0.2  # as in Adam's updates (arXiv:2502.16982, section 2.2), so that both can have one learning rate


class ElectraMuon(ElectraAdamW):
    """Muon for the groups with `muon=True`, whose parameters are matrices; [`ElectraAdamW`] for the others.

        m <- momentum m + (1 - momentum) g
        u <- momentum m + (1 - momentum) g
        p <- p - lr (0.2 sqrt(max(rows, columns)) orthogonal(u) + weight_decay p)

    `orthogonal` approximates the matrix with the same singular vectors whose singular values are all 1. Source:
    `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"`, which multiplies one matrix after the other, in bfloat16.
    Here, matrices of the same shape are multiplied as a batch, and in their own dtype unless `bfloat16=True`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor,
        *args: Any,
        momentum: float = 0.95,
        bfloat16: bool = False,
        **options: Any,
    ) -> None:
        self._momentum = momentum
        self._bfloat16 = bfloat16
        super().__init__(params, lr, *args, **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group({"muon": False, "momentum": self._momentum, **param_group})

    def _init_group(self, group: dict[str, Any], *lists: Any) -> Any:
        return False if group["muon"] else super()._init_group(group, *lists)  # this leaves Adam's step nothing to do

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for group in self.param_groups:
            if group["muon"]:
                self._step_matrices(group)
        return loss

    def _step_matrices(self, group: dict[str, Any]) -> None:
        of_shape: dict[torch.Size, list[Tensor]] = {}
        for parameter in group["params"]:
            if parameter.grad is not None:
                of_shape.setdefault(parameter.shape, []).append(parameter)
        for shape, parameters in of_shape.items():
            gradients = [cast(Tensor, parameter.grad) for parameter in parameters]
            momenta = [self._momentum_of(parameter) for parameter in parameters]
            torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
            directions = torch._foreach_lerp(gradients, momenta, group["momentum"])
            size = group["lr"] * _RMS_OF_ADAM * math.sqrt(max(shape))
            matrices = torch.stack(directions)
            orthogonal = orthogonalize(matrices.bfloat16() if self._bfloat16 else matrices)
            updates = orthogonal.to(matrices.dtype).mul_(size)
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_sub_(parameters, list(updates))

    def _momentum_of(self, parameter: Tensor) -> Tensor:
        """Returns the momentum of a matrix. Each call counts as a step of the matrix."""
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())  # Adam expects it when a state is loaded
            state["momentum_buffer"] = torch.zeros_like(parameter)
        state["step"] += 1
        return cast(Tensor, state["momentum_buffer"])


def orthogonalize(matrices: Tensor) -> Tensor:
    """Returns matrices (N, rows, columns) with the singular vectors of the given ones, and singular values of 0.7 to
    1.2."""
    a, b, c = _NEWTON_SCHULZ
    is_tall = matrices.shape[1] > matrices.shape[2]
    wide = matrices.mT if is_tall else matrices
    wide = wide / wide.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = wide @ wide.mT
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide.mT if is_tall else wide


def get_parameter_groups(
    model: nn.Module, weight_decay: float, generator_learning_rate: float | None = None, muon: bool = False
) -> list[dict[str, Any]]:
    """Returns two groups of parameters, as google-research/electra has them: one with weight decay, and one without
    for biases and norms. Frozen parameters are left out. With `generator_learning_rate`, two more groups follow, of
    the parameters that only the generator of a pair has. With `muon`, the matrices of a pair's layers have groups of
    their own, for [`ElectraMuon`]."""
    own = set() if generator_learning_rate is None else set(map(id, split_parameters(model)["generator"]))
    matrices = _layer_matrices(model) if muon else set()
    groups: dict[tuple[bool, bool, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_own = id(parameter) in own
        is_exempt = parameter.ndim < 2 or name.endswith("bias")  # norms and biases; a bias of ConvBERT is a matrix
        is_matrix = not is_exempt and id(parameter) in matrices
        group = groups.setdefault((is_own, is_exempt, is_matrix), {"params": []})
        group["params"].append(parameter)
        group["weight_decay"] = 0.0 if is_exempt else weight_decay
        if is_own:
            group["lr"] = generator_learning_rate
        if is_matrix:
            group["muon"] = True
    return [groups[key] for key in sorted(groups)]


def _layer_matrices(pair: nn.Module) -> set[int]:
    """Returns the ids of the matrices in the layers of both towers, without embedding tables, projections of
    embeddings, and heads."""
    stacks = [module for module in pair.modules() if isinstance(module, nn.ModuleList)]
    return {id(parameter) for stack in stacks for parameter in stack.parameters() if parameter.ndim == 2}


def split_parameters(pair: Any) -> dict[str, list[nn.Parameter]]:
    """Returns the parameters of a pair, each once: under `generator` those that only the generator has, under
    `discriminator` all others, shared ones included."""
    shared = set(map(id, pair.discriminator.parameters()))
    parts: dict[str, list[nn.Parameter]] = {"generator": [], "discriminator": []}
    for name, parameter in pair.named_parameters():
        is_own = name.startswith("generator") and id(parameter) not in shared
        parts["generator" if is_own else "discriminator"].append(parameter)
    return parts


def get_electra_schedule(optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int) -> LambdaLR:
    """Returns the schedule base * (1 - t/total) * min(1, t/warm-up): linear decay over the whole run, times linear
    warm-up. Source: google-research/electra, `create_optimizer`. The schedule of `transformers` decays only after the
    warm-up."""

    def factor(step: int) -> float:
        warmup = min(1.0, step / num_warmup_steps) if num_warmup_steps > 0 else 1.0
        return max(0.0, 1.0 - step / num_training_steps) * warmup

    return LambdaLR(optimizer, factor)


def make_optimizer(model: nn.Module, args: Any, groups: list[dict[str, Any]] | None = None) -> ElectraAdamW:
    """Makes the optimizer of a run, by default with the parameter `groups` of pre-training."""
    muon = args.optim == MUON
    groups = groups or get_parameter_groups(model, args.weight_decay, args.generator_learning_rate, muon)
    betas = (args.adam_beta1, args.adam_beta2)
    kind = functools.partial(ElectraMuon, bfloat16=args.bf16) if muon else ElectraAdamW
    return kind(groups, args.learning_rate, betas, args.adam_epsilon, bias_correction=args.bias_correction)


def make_schedule(optimizer: Optimizer, args: Any, num_training_steps: int) -> LambdaLR:
    """Makes the schedule of a run. Warns of a warm-up that takes the whole run."""
    num_warmup_steps = args.get_warmup_steps(num_training_steps)
    if num_warmup_steps >= num_training_steps:
        logger.warning(
            f"warmup_steps={num_warmup_steps:,}, but the whole run takes only {num_training_steps:,}. "
            "Lower it (0: none; below 1: a share)."
        )
    return get_electra_schedule(optimizer, num_warmup_steps, num_training_steps)
