"""Held-out evaluation: the model on a corruption that is the same every time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.measures import Measure, observe, report_totals, sum_rows
from hf_electra_rtd.modeling_electra_rtd import ElectraRTDOutput


@torch.no_grad()
def held_out_tensors(
    measures: Sequence[Measure], output: ElectraRTDOutput, inputs: dict[str, Tensor]
) -> tuple[Tensor, ...]:
    """What a batch contributes, a row each, so that ranks can be gathered and a padded last batch trimmed: the sums of
    all measures (B, S), and what they keep whole.

    Args:
        measures: of the model (`model.measures`).
        output: of the model.
        inputs: what it was called with.
    """
    seen = observe(output, inputs)
    return (sum_rows(measures, seen), *(tensor for measure in measures for tensor in measure.whole(seen)))


def held_out_metrics(measures: Sequence[Measure], tensors: Sequence[np.ndarray]) -> dict[str, float]:
    """The results over the whole held-out set, by the names that the measures give.

    Args:
        measures: of the model.
        tensors: what [`held_out_tensors`] gave, of all rows; where rows had other lengths, padded with -100.
    """
    sums, *whole = tensors
    return report_totals(measures, sums.astype(np.float64).sum(axis=0).tolist(), whole)


def evaluate_held_out(model: nn.Module, loader: DataLoader, accelerator: Accelerator) -> dict[str, float]:
    """The results of [`held_out_metrics`] with the prefix `eval_`, and `eval_loss`, over the processes of a run.

    Args:
        model: the pair as `accelerator` prepared it; in evaluation mode only here.
        loader: of the held-out rows, prepared likewise.
        accelerator: of the run.
    """
    pair: Any = accelerator.unwrap_model(model)
    training = model.training
    model.eval()
    parts: list[list[np.ndarray]] = []
    for batch in loader:
        with torch.no_grad():
            output = model(**batch)
        tensors = accelerator.gather_for_metrics(held_out_tensors(pair.measures, output, batch))
        parts.append([tensor.cpu().numpy() for tensor in tensors])
    model.train(training)
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    metrics = {f"eval_{name}": value for name, value in held_out_metrics(pair.measures, columns).items()}
    return {"eval_loss": weighted_loss(metrics, pair.config), **metrics}


def weighted_loss(metrics: dict[str, float], config: ElectraRTDConfig, prefix: str = "eval") -> float:
    """The loss of the whole held-out set. (A mean of batch means depends on how rows fall into batches and ranks.)"""
    return float(
        config.generator_weight * metrics.get(f"{prefix}_generator_loss", 0.0)
        + config.discriminator_weight * metrics[f"{prefix}_discriminator_loss"]
    )
