"""What training measures: losses and rates along the run, held-out metrics, signs of trouble, exact loss counts."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from hf_electra_rtd.measures import Measure, Tokens, observe, report_totals, sum_rows
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining, ElectraRTDOutput
from hf_electra_rtd.ops import IGNORED, masked_slots
from hf_electra_rtd.training.arguments import RTDTrainingArguments
from hf_electra_rtd.training.checkpoints import latest_checkpoint


logger = logging.getLogger(__name__)


# ---- Along the run ----


class TrainingMeters:
    """Sums over batches in one small tensor on the model's device, read only when they are logged."""

    def __init__(self, measures: Sequence[Measure]) -> None:
        self._measures = (*measures, Tokens())
        self._sums: Tensor | None = None

    @torch.no_grad()
    def update(self, output: ElectraRTDOutput, inputs: dict[str, Tensor]) -> None:
        """Adds a batch without waiting for the device. `inputs` is what the model was called with."""
        sums = sum_rows(self._measures, observe(output, inputs)).sum(dim=0)
        self._sums = sums if self._sums is None else self._sums + sums

    def drain(self, reduce: Callable[[Tensor], Tensor] = lambda sums: sums) -> dict[str, float]:
        """The measures since the last call, and `tokens`; empty without a batch. Waits for the device once. `reduce`
        sums a tensor over the processes of the run."""
        sums, self._sums = self._sums, None
        return {} if sums is None else report_totals(self._measures, reduce(sums).tolist())


class Stopwatch:
    """Seconds of training, without the pauses for evaluation and saving. The seconds in `log_history`, of the sessions
    before, count. `now` is a monotonic clock in seconds."""

    def __init__(
        self, log_history: Sequence[Mapping[str, float]] = (), now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._now = now
        self._started: float | None = None
        self._passed = max((entry.get("train_seconds", 0.0) for entry in log_history), default=0.0)
        self._lap_began = self._passed

    def start(self) -> None:
        self._started = self._now()

    def stop(self) -> None:
        self._passed, self._started = self.seconds, None

    @property
    def seconds(self) -> float:
        """Seconds since `start` without pauses, and those of the sessions before."""
        return self._passed + (0.0 if self._started is None else self._now() - self._started)

    def lap(self) -> float:
        """Seconds since the last lap without pauses, at least a nanosecond."""
        began, self._lap_began = self._lap_began, self.seconds
        return max(self._lap_began - began, 1e-9)

    @contextmanager
    def paused(self) -> Iterator[None]:
        running = self._started is not None
        self.stop()
        try:
            yield
        finally:
            if running:
                self.start()


# ---- Held-out sequences ----


@torch.no_grad()
def held_out_tensors(measures: Sequence[Measure], output: ElectraRTDOutput, inputs: dict[str, Tensor]) -> list[Tensor]:
    """What a batch contributes to the metrics, by sequence, so that processes can be gathered and a padded last batch
    trimmed: the sums of all measures (B, S), and the tensors that a measure needs whole."""
    seen = observe(output, inputs)
    return [sum_rows(measures, seen), *(tensor for measure in measures for tensor in measure.whole(seen))]


def held_out_metrics(measures: Sequence[Measure], tensors: Sequence[np.ndarray]) -> dict[str, float]:
    """The metrics of a held-out set from the [`held_out_tensors`] of all its sequences, padded with -100 where
    sequences differ in length."""
    sums, *whole = tensors
    return report_totals(measures, sums.astype(np.float64).sum(axis=0).tolist(), whole)


def held_out_results(model: ElectraForRTDPretraining, tensors: Sequence[np.ndarray]) -> dict[str, float]:
    """The held-out metrics, and `loss`: that of the whole set, as a mean of means would depend on the batch size."""
    metrics = held_out_metrics(model.measures, tensors)
    loss = model.config.discriminator_weight * metrics["discriminator_loss"]
    return {"loss": float(loss + model.config.generator_weight * metrics.get("generator_loss", 0.0)), **metrics}


@torch.no_grad()
def evaluate_held_out(model: nn.Module, loader: DataLoader, accelerator: Accelerator) -> dict[str, float]:
    """The [`held_out_results`] with the prefix `eval_`, over all processes of a run; for a loop without the Trainer.
    Model and loader are as `accelerator` prepared them; the model keeps its mode."""
    unwrapped: Any = accelerator.unwrap_model(model)
    training = model.training
    model.eval()
    parts: list[list[np.ndarray]] = []
    for batch in loader:
        tensors = accelerator.gather_for_metrics(held_out_tensors(unwrapped.measures, model(**batch), batch))
        parts.append([tensor.cpu().numpy() for tensor in tensors])
    model.train(training)
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return {f"eval_{name}": value for name, value in held_out_results(unwrapped, columns).items()}


def evaluation_at(step: int, log_history: Sequence[dict[str, float]]) -> dict[str, float] | None:
    """The held-out metrics that were logged at a step, None where none were."""
    logged = [log for log in log_history if log["step"] == step and "eval_loss" in log]
    return {name: value for name, value in logged[-1].items() if name.startswith("eval_")} if logged else None


# ---- Signs of trouble ----


class DivergedError(FloatingPointError):
    """The loss or a weight is no longer a finite number."""


class HealthWatch:
    """Stops a run that diverges before it saves anything, and warns of a discriminator that has collapsed."""

    def __init__(self, args: RTDTrainingArguments) -> None:
        self._args = args
        self._collapsed = False

    def check_loss(self, step: int, loss: float) -> None:
        """Raises [`DivergedError`] for a loss that is not finite."""
        self._check(math.isfinite(loss), step, "the loss")

    def check_weights(self, step: int, model: nn.Module) -> None:
        """Raises [`DivergedError`] for a weight that is not finite; waits for the device once. Each process checks its
        own part of a sharded model."""
        parts = (each.to_local() if isinstance(each, DTensor) else each for each in model.parameters())
        self._check(bool(torch.stack([part.isfinite().all() for part in parts]).all()), step, "a weight")

    def _check(self, is_finite: bool, step: int, what: str) -> None:
        if not is_finite:
            last = latest_checkpoint(str(self._args.output_dir))
            remedy = f"Resume from the last checkpoint, {last}," if last else "There is no checkpoint. Start again"
            raise DivergedError(
                f"Step {step:,}: {what} is no longer finite. The run stops and saves nothing more. {remedy} with a "
                "lower learning rate or a longer warm-up."
            )

    def check_discriminator(self, step: int, max_steps: int, metrics: Mapping[str, float], prefix: str = "") -> None:
        """Warns, once until it recovers, of a discriminator that gives every token the same answer. Metrics of an
        objective without a discriminator are ignored."""
        recall, auc = (metrics.get(f"{prefix}discriminator_{name}") for name in ("recall", "auc"))
        if recall is None or auc is None:
            return
        # Every discriminator does so at the beginning.
        is_late = step > max(self._args.get_warmup_steps(max_steps), max_steps // 10)
        collapsed = is_late and has_collapsed(recall, auc)
        if collapsed and not self._collapsed:
            logger.warning(
                f"Step {step:,}: the discriminator has collapsed to the majority class (recall {recall:.1%}, area "
                f"under the ROC curve {auc:.2f}). Try a smaller generator (--generator_hidden_size), a lower learning "
                "rate or a longer warm-up."
            )
        self._collapsed = collapsed


def has_collapsed(recall: float, auc: float) -> bool:
    """Whether the discriminator gives every token the same answer (recall below 1 % or above 99 %) and does not rank
    replaced tokens higher either (area under the ROC curve below 0.55)."""
    return not 0.01 <= recall <= 0.99 and auc < 0.55


# ---- Exact loss normalization ----

# By default the loss of a step is the mean of its batches' means, over accumulated batches and processes, as on the
# TPUs of the original. That is exact where every batch has as many tokens; else a token in a short batch weighs more.
# Exact normalization divides sums over the step by counts of the step: batches and processes make no difference.


def count_items(model: ElectraForRTDPretraining, inputs: dict[str, Tensor]) -> Tensor:
    """The counts that both losses of a batch are means over: float32 (2,), masked tokens and tokens that the
    discriminator's loss covers. `inputs` is what the model is called with."""
    slots = masked_slots(inputs["input_ids"], inputs.get("masked_positions"), inputs["labels"])
    covered = model.objective.num_items(inputs["input_ids"], slots, inputs.get("attention_mask"))
    return torch.stack([slots.labels.ne(IGNORED).sum(), covered]).float()


def exact_loss(
    model: ElectraForRTDPretraining, output: ElectraRTDOutput, inputs: dict[str, Tensor], step_counts: Tensor
) -> Tensor:
    """A batch's part of the loss of the step, to which the parts of all batches and processes add up. `step_counts`
    is the sum of [`count_items`] over all of them."""
    assert output.discriminator_loss is not None
    share = (count_items(model, inputs) / step_counts.clamp(min=1)).to(output.discriminator_loss.dtype)
    loss = model.config.discriminator_weight * output.discriminator_loss * share[1]
    if output.generator_loss is not None:
        loss = loss + model.config.generator_weight * output.generator_loss * share[0]
    return loss
