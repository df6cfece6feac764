"""Prediction of masked tokens: from hidden states to loss, gradient and sample, in one pass over the logits.

The logits of N masked tokens over V ids would be the largest tensor of a step, so they are computed a few rows at a
time. Each chunk of logits is turned into the softmax, which gives loss, most likely ids and samples, and then into the
gradient of the logits, from which those of the hidden states and the output layer are computed at once. No tensor of N
x V numbers outlives the forward pass, and the backward pass only scales the gradients.

Shape suffixes: M any leading shape of masked tokens, N their number, E width of the hidden states, V ids, R rows of a
chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812

from hf_electra_rtd.ops.devices import on_cpu
from hf_electra_rtd.ops.masking import IGNORED
from hf_electra_rtd.ops.sampling import most_likely, sample_tokens, sample_weights


# Logits per chunk: on a CPU what the last-level cache holds (10 MB), on a GPU what leaves room (0.5 GB).
_CPU_CHUNK = 2_500_000
_CHUNK = 2**27


class LossSum(NamedTuple):
    """Losses of items (tokens), and how many items count, so that several batches can be combined exactly."""

    total: Tensor  # scalar; the sum of the losses, and the only field with a gradient
    losses: Tensor  # any shape; 0 where an item does not count
    num_items: Tensor  # scalar

    def mean(self) -> Tensor:
        """The mean over the items; 0 where there are none."""
        return self.total / self.num_items.clamp(min=1)


class MaskedPrediction(NamedTuple):
    """The predictions of a masked language model, or of another generator, for masked tokens."""

    loss: LossSum  # -log softmax at the labels, 0 where the label is `IGNORED`
    predictions: Tensor  # (...) int64, the most likely ids
    sampled: Tensor | None = None  # (...) int64, drawn ids; None where no uniforms were given
    logits: Tensor | None = None  # (..., V); None unless they were asked for
    log_normalizers: Tensor | None = None  # (...), log of the sum of the exponentials of all logits
    # Only from a generator that gives the probability of every token without seeing it: a function from ids (B, L) to
    # their log-probabilities (B, L), without gradient.
    log_prob_of: Callable[[Tensor], Tensor] | None = None


class Sampling(NamedTuple):
    """How ids are drawn."""

    uniforms: Tensor  # (..., 2) in [0, 1)
    temperature: float = 1.0  # of the softmax; 0.0 takes the most likely id
    disallow_correct: bool = False  # never draw the label

    @property
    def from_softmax(self) -> bool:
        """Whether ids are drawn from the softmax as it is."""
        return self.temperature == 1.0 and not self.disallow_correct

    def draw(self, logits: Tensor, labels: Tensor, rows: slice = slice(None)) -> Tensor:
        """Draws ids, int64 (R,), from the logits (R, V) and labels (R,) of some rows."""
        forbidden = labels if self.disallow_correct else None
        return sample_tokens(logits, self.uniforms[rows], self.temperature, forbidden)


def predict_masked(
    hidden_ME: Tensor,
    weight_VE: Tensor,
    bias_V: Tensor,
    labels_M: Tensor,
    sampling: Sampling | None = None,
    max_logits: int | None = None,
) -> MaskedPrediction:
    """Returns loss, most likely ids and samples of softmax(hidden weight^T + bias).

    Matrix products are in autocast's dtype where autocast is on. Everything else is in float32 (float64 for float64
    inputs), including the sums of the gradients over chunks. With float16, probabilities below 6e-8 are lost from the
    gradient, because it is cast before the loss is scaled. `labels_M` are int64, original ids or `IGNORED`; uniforms
    are (M, 2). `max_logits` is the number of logits per chunk, by default one that suits the device.
    """
    device_type = hidden_ME.device.type
    autocast = torch.is_autocast_enabled(device_type)
    product_dtype = torch.get_autocast_dtype(device_type) if autocast else hidden_ME.dtype
    if max_logits is None:
        max_logits = _CPU_CHUNK if on_cpu(hidden_ME) else _CHUNK
    num_rows = max(1, max_logits // len(weight_VE))
    if sampling is not None:
        sampling = sampling._replace(uniforms=sampling.uniforms.flatten(0, -2))
    grad = torch.is_grad_enabled()  # the forward pass of a Function cannot see it
    total, losses_N, predictions_N, sampled_N, log_normalizers_N = _Predict.apply(
        *(hidden_ME.flatten(0, -2), weight_VE, bias_V, labels_M.flatten()), sampling, num_rows, product_dtype, grad
    )
    return MaskedPrediction(
        LossSum(total, losses_N.view_as(labels_M), labels_M.ne(IGNORED).sum()),
        predictions_N.view_as(labels_M),
        None if sampling is None else sampled_N.view_as(labels_M),
        log_normalizers=log_normalizers_N.view_as(labels_M),
    )


def best_and_lead(logits_BLV: Tensor, ids_BL: Tensor) -> Tensor:
    """Returns, for each position, the most likely token and by how much its logit exceeds that of the token that is
    there: (B, L, 2), float32. This is small enough to be kept for all tokens of a test set."""
    best = logits_BLV.float().max(dim=-1)
    own_BL = logits_BLV.gather(-1, ids_BL[..., None])[..., 0].float()
    return torch.stack([best.indices.float(), best.values - own_BL], dim=-1)


def predict_from_logits(logits_MV: Tensor, labels_M: Tensor, sampling: Sampling | None = None) -> MaskedPrediction:
    """Returns the same as `predict_masked`, from all logits: for an output layer that is not just a matrix product."""
    logits_MV = logits_MV if logits_MV.dtype.itemsize >= 4 else logits_MV.float()
    losses_N = F.cross_entropy(logits_MV.flatten(0, -2), labels_M.flatten(), ignore_index=IGNORED, reduction="none")
    known = logits_MV.detach()
    return MaskedPrediction(
        LossSum(losses_N.sum(), losses_N.detach().view_as(labels_M), labels_M.ne(IGNORED).sum()),
        most_likely(known),
        None if sampling is None else sampling.draw(known, labels_M),
        log_normalizers=known.logsumexp(dim=-1),
    )


class _Predict(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NE: Tensor,
        weight_VE: Tensor,
        bias_V: Tensor,
        labels_N: Tensor,
        sampling: Sampling | None,
        num_rows: int,
        product_dtype: torch.dtype,
        grad: bool,
    ) -> tuple[Tensor, ...]:
        inputs = (hidden_NE, weight_VE, bias_V)
        dtype = torch.float64 if hidden_NE.dtype == torch.float64 else torch.float32
        losses_N, log_normalizers_N = (hidden_NE.new_empty(labels_N.shape, dtype=dtype) for _ in range(2))
        predictions_N = torch.empty_like(labels_N)
        sampled_N = torch.empty_like(labels_N)
        sums = [
            torch.zeros_like(each, dtype=dtype) if grad and needed else None
            for each, needed in zip(inputs, ctx.needs_input_grad[:3], strict=True)
        ]
        with torch.autocast(hidden_NE.device.type, enabled=False):
            hidden_NE, weight_VE, bias_V = (each.to(product_dtype) for each in inputs)
            for start in range(0, len(hidden_NE), num_rows):
                rows = slice(start, start + num_rows)
                hidden_RE = hidden_NE[rows]
                labels_R = labels_N[rows]
                logits_RV = F.linear(hidden_RE, weight_VE, bias_V)
                if sampling is not None and not sampling.from_softmax:
                    sampled_N[rows] = sampling.draw(logits_RV, labels_R, rows)
                softmax_RV, losses_N[rows], predictions_N[rows], log_normalizers_N[rows] = _soften(
                    logits_RV, labels_R, dtype
                )
                if sampling is not None and sampling.from_softmax:
                    sampled_N[rows] = sample_weights(softmax_RV, sampling.uniforms[rows])
                if any(each is not None for each in sums):
                    # The gradient of the losses with respect to the logits is the softmax minus one at the label. It
                    # takes the memory of the softmax.
                    used_R1 = labels_R.ne(IGNORED)[:, None].to(dtype)
                    softmax_RV *= used_R1
                    gradient_RV = softmax_RV.scatter_add_(1, labels_R.clamp(min=0)[:, None], -used_R1)
                    _add_gradients(sums, rows, gradient_RV.to(product_dtype), hidden_RE, weight_VE)
        ctx.save_for_backward(*sums)
        ctx.dtypes = [each.dtype for each in inputs]
        ctx.mark_non_differentiable(losses_N, predictions_N, sampled_N, log_normalizers_N)
        return losses_N.sum(), losses_N, predictions_N, sampled_N, log_normalizers_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
        scaled = [
            None if each is None else (each * gradient).to(dtype)
            for each, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return (*scaled, None, None, None, None, None)


def _soften(logits_RV: Tensor, labels_R: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Returns the softmax, in the memory of the logits where their dtype allows; the losses; the most likely ids; and
    the logarithms of the denominators of the softmax."""
    used_R = labels_R.ne(IGNORED)
    of_label_R = _at(logits_RV, labels_R.clamp(min=0)).to(dtype)
    predictions_R = most_likely(logits_RV)
    of_best_R = _at(logits_RV, predictions_R).to(dtype)
    out = {"out": logits_RV} if logits_RV.dtype == dtype else {"dtype": dtype}
    softmax_RV = torch.softmax(logits_RV, dim=-1, **out)
    # The softmax of the most likely id is at least 1 / V, so its logarithm is finite.
    log_best_R = _at(softmax_RV, predictions_R).log()
    losses_R = of_best_R - of_label_R - log_best_R
    return softmax_RV, losses_R.where(used_R, 0.0), predictions_R, of_best_R - log_best_R


def _add_gradients(
    sums: list[Tensor | None], rows: slice, gradient_RV: Tensor, hidden_RE: Tensor, weight_VE: Tensor
) -> None:
    """Adds the gradients of a chunk to those of hidden states, weight and bias, as far as these are needed."""
    for_hidden, for_weight, for_bias = sums
    if for_hidden is not None:
        for_hidden[rows] = gradient_RV @ weight_VE
    if for_weight is not None:
        for_weight += gradient_RV.T @ hidden_RE
    if for_bias is not None:
        for_bias += gradient_RV.sum(dim=0, dtype=for_bias.dtype)


def _at(values_RV: Tensor, ids_R: Tensor) -> Tensor:
    return values_RV.gather(1, ids_R[:, None]).squeeze(1)
