"""Measurements of a training run: losses and rates along the run, held-out metrics, warnings of trouble, and further
parts of its record."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import TrainerState

from hf_electra_rtd.base import records
from hf_electra_rtd.base.accounting import model_flops
from hf_electra_rtd.data.blocks import Blocks, SequenceStream
from hf_electra_rtd.data.words import example_sentence
from hf_electra_rtd.ops import num_masked
from hf_electra_rtd.pair.bigram import CountedBigram
from hf_electra_rtd.pair.measures import Measure, observe, report_totals, sum_rows
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining, ElectraRTDOutput
from hf_electra_rtd.training.arguments import RTDTrainingArguments


logger = logging.getLogger(__name__)

OLD = "eval_old_"  # prefix of the metrics on the earlier text, in a run that continues on other text
NEAR_CHANCE = 0.6  # an area under the ROC curve (AUC) that is reachable without looking at the context
_LEAST_RISE = 0.01
_TRIED = 100  # held-out sequences that are searched for the example of a record
_OF_TIME = ("runtime", "_per_second")


# ---- Along the run ----


class TrainingMeters:
    """Sums of the measures over batches. They stay on the model's device, and are read only when they are logged."""

    def __init__(self, measures: Sequence[Measure]) -> None:
        self._measures = measures
        self._sums: Tensor | None = None

    @torch.no_grad()
    def update(self, output: ElectraRTDOutput, inputs: dict[str, Tensor]) -> None:
        """Adds a batch; if the batch has `masked_positions`, without waiting for the device. `inputs` are the
        arguments that the model was called with."""
        seen = observe(output, inputs)
        sums = torch.cat([seen.real.sum()[None], sum_rows(self._measures, seen).sum(dim=0)])
        self._sums = sums if self._sums is None else self._sums + sums

    def drain(self, reduce: Callable[[Tensor], Tensor] = lambda sums: sums) -> dict[str, float]:
        """Returns the measures since the last call, and `tokens`, the number of tokens; empty if there was no batch.
        `reduce` sums over processes."""
        if self._sums is None:
            return {}
        tokens, *totals = reduce(self._sums).tolist()
        self._sums = None
        return report_totals(self._measures, totals) | {"tokens": tokens}


class Stopwatch:
    """Measures the seconds of training without the pauses for evaluation and saving. In a resumed run, it starts with
    the seconds that `log_history` has."""

    def __init__(self, log_history: Sequence[Mapping[str, float]] = ()) -> None:
        self._started: float | None = None
        self._passed = max((log.get("train_seconds", 0.0) for log in log_history), default=0.0)
        self._lap_began = self._passed

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self) -> None:
        self._passed = self.seconds
        self._started = None

    @property
    def seconds(self) -> float:
        return self._passed + (0.0 if self._started is None else time.perf_counter() - self._started)

    def lap(self) -> float:
        """Seconds since the last lap, at least a nanosecond."""
        began = self._lap_began
        self._lap_began = self.seconds
        return max(self._lap_began - began, 1e-9)

    @contextmanager
    def paused(self) -> Iterator[None]:
        running = self._started is not None
        self.stop()
        yield
        if running:
            self.start()


# ---- Held-out sequences ----


def find_yardsticks(model: ElectraForRTDPretraining, stream: Any, held_out: Any) -> tuple[Measure, ...]:
    """Returns the measures to compare a discriminator with: a bigram model, counted on the training sequences. There
    are none if the objective does not detect replaced tokens, the sequences are not [`Blocks`], or nothing is held
    out."""
    sequences = stream.sequences if isinstance(stream, SequenceStream) else stream
    is_counted = model.config.traits.predicts == "replaced" and held_out is not None
    if not is_counted or not isinstance(sequences, Blocks):
        return ()
    vocab_size = model.config.discriminator_config.vocab_size
    return (CountedBigram(sequences, vocab_size, model.objective.masked_only),)


@torch.no_grad()
def held_out_tensors(measures: Sequence[Measure], output: ElectraRTDOutput, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Returns what a batch contributes to the metrics, one row per sequence, so that rows can be gathered over
    processes and trimmed: the sums of all measures (B, S), then the tensors of measures that need the value of every
    token."""
    seen = observe(output, inputs)
    return [sum_rows(measures, seen), *(tensor for measure in measures for tensor in measure.whole(seen))]


def held_out_metrics(
    model: ElectraForRTDPretraining, tensors: Sequence[np.ndarray], yardsticks: Sequence[Measure] = ()
) -> dict[str, float]:
    """Returns the metrics of a held-out set: the measures of the model, the `yardsticks`, and `loss`. `tensors` are
    the [`held_out_tensors`] of all its sequences, padded with -100. `loss` is computed over the whole set, because a
    mean of batch means would depend on the batch size."""
    sums, *whole = tensors
    metrics = report_totals((*model.measures, *yardsticks), sums.astype(np.float64).sum(axis=0).tolist(), whole)
    loss = model.config.discriminator_weight * metrics["discriminator_loss"]
    return {"loss": float(loss + model.config.generator_weight * metrics.get("generator_loss", 0.0)), **metrics}


def evaluation_at(step: int, log_history: Sequence[dict[str, Any]], prefix: str = "eval_") -> dict[str, Any]:
    """Returns the last logged held-out metrics of a step whose names begin with `prefix`; empty if there are none."""
    logs = [log for log in log_history if log["step"] == step and f"{prefix}loss" in log]
    return {name: value for name, value in logs[-1].items() if name.startswith(prefix)} if logs else {}


def before_and_after(step: int, log_history: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Returns the metrics of the `new` and the `old` held-out text, without prefix and times, `before` the first step
    and `after` the last. A text that was not evaluated before the first step is left out."""
    compared: dict[str, dict[str, dict[str, Any]]] = {}
    for text, prefix in (("new", "eval_"), ("old", OLD)):
        if not evaluation_at(0, log_history, prefix):
            continue
        for when, at in (("before", 0), ("after", step)):
            metrics = {
                name.removeprefix(prefix): value
                for name, value in evaluation_at(at, log_history, prefix).items()
                if not name.endswith(_OF_TIME)
            }
            if metrics:
                compared.setdefault(text, {})[when] = metrics
    return compared


# ---- Signs of trouble ----


class DivergedError(FloatingPointError):
    """The loss or a weight is no longer a finite number."""

    def __init__(self, step: int, quantity: str) -> None:
        super().__init__(
            f"Step {step:,}: {quantity} is no longer finite. The run stops and saves nothing more. "
            "Start again with a lower learning_rate or more warmup_steps."
        )


def check_loss(step: int, loss: float) -> None:
    """Raises [`DivergedError`] for a loss that is not finite."""
    if not math.isfinite(loss):
        raise DivergedError(step, "the loss")


def check_weights(step: int, model: nn.Module) -> None:
    """Raises [`DivergedError`] for a weight that is not finite; waits for the device once. Each process checks its own
    part of a sharded model."""
    parts = (part.to_local() if isinstance(part, DTensor) else part for part in model.parameters())
    if not torch.stack([part.isfinite().all() for part in parts]).all():
        raise DivergedError(step, "a weight")


def warn_if_flat(state: TrainerState) -> None:
    """Warns once in a run, resumed or not, if the discriminator does not learn: after a third of the steps, its AUC is
    near chance, below the bigram's, and has not risen over the last third of the evaluations. Call it after each
    evaluation has been logged."""
    logs = {log["step"]: log for log in state.log_history if "eval_bigram_auc" in log}
    aucs: list[float] = []
    for step, log in logs.items():
        auc = log["eval_discriminator_auc"]
        bigram = log["eval_bigram_auc"]
        before = aucs[-(len(aucs) // 3 + 1) :]
        is_flat = len(aucs) > 1 and auc < min(bigram, NEAR_CHANCE) and auc - min(before) < _LEAST_RISE
        if is_flat and step >= state.max_steps / 3:
            if step == state.global_step:
                logger.warning(
                    f"Step {step:,}: the discriminator is still near chance. Its held-out AUC is {auc:.3f}, and "
                    f"flat; a counted bigram has {bigram:.3f}. Try smaller batches or more steps: from the usual "
                    "random weights it often rises only after thousands of steps."
                )
            return
        aucs.append(auc)


# ---- The record ----


def find_example(tokenizer: Any, held_out: Any) -> dict[str, str]:
    """Returns a sentence of a held-out stream as the example of a record; empty without a stream or a tokenizer."""
    if tokenizer is None or not isinstance(held_out, SequenceStream):
        return {}
    tried = range(min(len(held_out), _TRIED))
    example = example_sentence(tokenizer, (list(map(int, held_out[place]["input_ids"])) for place in tried))
    return dict(records.public(example, "example"))


def count_tokens(stream: Any, args: RTDTrainingArguments, num_sequences: int) -> int:
    """Returns the tokens in `num_sequences` sequences of a run, estimated from the mean length in its text. If the
    sequences are not [`Blocks`], padding counts, too."""
    if isinstance(stream, SequenceStream) and isinstance(stream.sequences, Blocks):
        header = stream.sequences.header
        return round(num_sequences * header.num_tokens / header.num_sequences)
    return num_sequences * args.max_seq_length


def count_flops(model: ElectraForRTDPretraining, args: RTDTrainingArguments, num_sequences: int) -> float:
    """Returns the FLOPs of training on `num_sequences` sequences (`hf_electra_rtd.base.accounting`)."""
    masked = num_masked(args.mask_probability, args.max_seq_length)
    return float(model_flops(model.config, num_sequences, args.max_seq_length, masked))


def describe_data(stream: Any) -> dict[str, Any]:
    """Returns what a record says about a stream or any other dataset: the header of [`Blocks`], else the number of
    sequences."""
    sequences = getattr(stream, "sequences", stream)
    if isinstance(sequences, Blocks):
        return records.public(asdict(sequences.header))
    return {"num_sequences": len(sequences)} if isinstance(sequences, Sized) else {}
