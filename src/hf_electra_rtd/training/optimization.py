"""The original's optimizer and learning-rate schedule (google-research/electra model/optimization.py)."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hf_electra_rtd.training.arguments import RTDTrainingArguments


logger = logging.getLogger(__name__)


class ElectraAdamW(torch.optim.AdamW):
    """Adam with decoupled weight decay and, unlike `torch.optim.AdamW`, without bias correction.

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        p <- p - lr (m / (sqrt(v) + eps) + weight_decay p)

    Source: `AdamWeightDecayOptimizer` of google-research/electra. Next to a corrected Adam, step t is larger by
    (1 - beta1^t) / sqrt(1 - beta2^t): 6.6 times at its peak, step 12, still 3.2 times at step 100. A warm-up of 10,000
    steps makes up for this; short runs want a lower learning rate or `bias_correction=True`, which gives
    `torch.optim.AdamW`, whose options this class takes. Without it, the `step` in the state of each parameter is
    infinite from the start, where nothing is left to correct, and torch's own kernels do the rest.
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


def get_parameter_groups(
    model: nn.Module, weight_decay: float, generator_learning_rate: float | None = None
) -> list[dict[str, Any]]:
    """Two groups: with weight decay, and biases and LayerNorm without, as in google-research/electra. Frozen
    parameters are left out. With `generator_learning_rate`, two more follow: what only a pair's generator has."""
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    exempted = {id(parameter) for norm in norms for parameter in norm.parameters()}
    own = set() if generator_learning_rate is None else set(map(id, split_parameters(model)["generator"]))
    groups: list[dict[str, Any]] = [{"params": [], "weight_decay": decay} for decay in (weight_decay, 0.0)]
    if own:
        groups += [{**group, "params": [], "lr": generator_learning_rate} for group in groups]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_exempt = id(parameter) in exempted or name.endswith("bias")
            groups[2 * (id(parameter) in own) + is_exempt]["params"].append(parameter)
    return [group for group in groups if group["params"]]


def split_parameters(pair: Any) -> dict[str, list[nn.Parameter]]:
    """The parameters of a pair, each once: those that only the `generator` has, and the `discriminator`'s, which owns
    what is shared."""
    shared = set(map(id, pair.discriminator.parameters()))
    parts: dict[str, list[nn.Parameter]] = {"generator": [], "discriminator": []}
    for name, parameter in pair.named_parameters():
        is_own = name.startswith("generator") and id(parameter) not in shared
        parts["generator" if is_own else "discriminator"].append(parameter)
    return parts


def get_electra_schedule(optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int) -> LambdaLR:
    """Linear decay over the whole run, times linear warm-up: base * (1 - t/total) * min(1, t/warm-up). Source:
    google-research/electra, `create_optimizer`. `transformers`' schedule decays only after the warm-up."""

    def factor(step: int) -> float:
        warmup = min(1.0, step / num_warmup_steps) if num_warmup_steps > 0 else 1.0
        return max(0.0, 1.0 - step / num_training_steps) * warmup

    return LambdaLR(optimizer, factor)


def make_optimizer(model: nn.Module, args: Any, groups: list[dict[str, Any]] | None = None) -> ElectraAdamW:
    """The optimizer of a run, by default with the `groups` of pre-training."""
    groups = groups or get_parameter_groups(model, args.weight_decay, args.generator_learning_rate)
    betas = (args.adam_beta1, args.adam_beta2)
    return ElectraAdamW(groups, args.learning_rate, betas, args.adam_epsilon, bias_correction=args.bias_correction)


def clip_gradients(pair: nn.Module, accelerator: Accelerator, args: RTDTrainingArguments) -> dict[str, Tensor]:
    """Clips the gradients, and returns the norms before: `grad_norm`, and with `args.clip_separately`, which clips
    those of [`split_parameters`] apart, `generator_grad_norm` and `discriminator_grad_norm`."""
    most = args.max_grad_norm or math.inf
    if not args.clip_separately:
        return {"grad_norm": accelerator.clip_grad_norm_(pair.parameters(), most)}
    accelerator.unscale_gradients()
    norms: dict[str, Tensor] = {}
    for name, parameters in split_parameters(pair).items():
        norm: Any = nn.utils.clip_grad_norm_(parameters, most)
        norms[f"{name}_grad_norm"] = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return {"grad_norm": torch.stack(list(norms.values())).norm(), **norms}


def make_schedule(optimizer: Optimizer, args: Any, num_training_steps: int) -> LambdaLR:
    """The schedule of a run. Warns of a warm-up that takes the whole run."""
    num_warmup_steps = args.get_warmup_steps(num_training_steps)
    if num_warmup_steps >= num_training_steps:
        logger.warning(
            f"warmup_steps={num_warmup_steps:,}, but the whole run takes only {num_training_steps:,}. "
            "Lower it (0: none; below 1: a share)."
        )
    return get_electra_schedule(optimizer, num_warmup_steps, num_training_steps)
