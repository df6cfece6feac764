"""Do all contestants do the same work?"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from contestants import Contestant
from torch import nn
from workload import Batch


# Relative: of losses, and of norms of gradients.
TOLERANCES = {"float32": (1e-4, 1e-3), "bf16": (2e-2, 1e-1)}
FIRST_LOSS_TOLERANCE = 0.2  # of one with other random weights, masks and fills


class DisagreementError(Exception):
    """A contestant does other work than the rest."""


def measure_work(contestant: Contestant, batch: Batch) -> dict[str, float]:
    """Losses, and the norms of the gradients of the generator (without what is shared) and of the discriminator;
    without dropout, on rows that are corrupted already."""
    arrangement = contestant.arrangement.eval()
    losses = contestant.losses(batch, batch.corrupted)
    losses.total.backward()
    arrangement.train()
    discriminator = {id(parameter): parameter for parameter in arrangement.discriminator.parameters()}
    generator = [one for one in arrangement.generator_encoder.parameters() if id(one) not in discriminator]
    work = {
        "generator loss": losses.generator.item(),
        "discriminator loss": losses.discriminator.item(),
        "generator gradient": _gradient_norm(generator),
        "discriminator gradient": _gradient_norm(discriminator.values()),
    }
    contestant.optimizer.zero_grad(set_to_none=True)
    return work


def _gradient_norm(parameters: Iterable[nn.Parameter]) -> float:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return nn.utils.get_total_norm(gradients).item() if gradients else 0.0


def check_agreement(contestant: Contestant, batch: Batch, reference: dict[str, float]) -> dict[str, float]:
    """What the contestant computes. Raises DisagreementError if it is not what the reference does."""
    found = measure_work(contestant, batch)
    loss_tolerance, norm_tolerance = TOLERANCES["bf16" if contestant.entry.bf16 else "float32"]
    for quantity, expected in reference.items():
        tolerance = norm_tolerance if quantity.endswith("gradient") else loss_tolerance
        if not abs(found[quantity] - expected) <= tolerance * abs(expected):
            raise DisagreementError(
                f"{contestant.entry.name} does other work than the stock towers: its {quantity} is "
                f"{found[quantity]:.6g}, theirs {expected:.6g} (same weights, batch and fills, no dropout). Nothing "
                "was timed: repair it, or leave it out with --contestants."
            )
    return found


def check_first_loss(name: str, loss: float, reference: dict[str, float], config: Any) -> None:
    """Raises DisagreementError for a weighted loss that no other random weights, masks and samples can explain."""
    expected = config.generator_weight * reference["generator loss"]
    expected += config.discriminator_weight * reference["discriminator loss"]
    if not abs(loss - expected) <= FIRST_LOSS_TOLERANCE * expected:
        raise DisagreementError(f"{name} does other work: its first loss is {loss:.4g}, others' {expected:.4g}.")
