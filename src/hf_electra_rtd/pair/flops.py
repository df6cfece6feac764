"""FLOPs of training a pair: torch counts them in a step of it."""

from __future__ import annotations

import functools
import json
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count
from transformers.initialization import no_init_weights

from hf_electra_rtd.pair.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining


def _of_convolution_backward(grad_shape: Any, x_shape: Any, w_shape: Any, *others: Any, **kwargs: Any) -> int:
    """Twice the forward pass, also of convolutions in groups, which torch's own count takes for whole ones."""
    return 2 * conv_flop_count(x_shape, w_shape, grad_shape)


_NEEDS_NUMBERS = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)
_COUNTED_HERE = {torch.ops.aten.convolution_backward: _of_convolution_backward}


def sequence_flops(config: ElectraRTDConfig, max_seq_length: int, num_masked: int) -> int:
    """FLOPs of a pair's training step for each sequence of `max_seq_length` tokens, `num_masked` of them masked.

    Products of matrices and convolutions count, forward and backward, attention between all places included. Divided
    by time and the peak of the device, they give the share of the hardware that was used (PaLM, arXiv 2204.02311,
    appendix B). A pair is counted once in a process, in about a second.
    """
    return _count(config.to_json_string(use_diff=False), max_seq_length, num_masked)


@functools.cache
def _count(config: str, length: int, num_masked: int) -> int:
    with no_init_weights():
        try:
            with FakeTensorMode():  # shapes without numbers: no memory, no time
                return _more_for_a_sequence(config, length, num_masked)
        except _NEEDS_NUMBERS:  # Longformer and XLM
            return _more_for_a_sequence(config, length, num_masked)


def _more_for_a_sequence(config: str, length: int, num_masked: int) -> int:
    """What the second sequence of a batch costs: DeBERTa projects its relative positions once for a whole batch."""
    made = ElectraRTDConfig.from_dict(json.loads(config))
    made._attn_implementation = "eager"  # not all fused kernels are counted
    pair = ElectraForRTDPretraining(made).eval()  # dropout draws numbers

    def of_step(num_sequences: int) -> int:
        places_BK = torch.arange(num_masked).expand(num_sequences, -1)
        with FlopCounterMode(display=False, custom_mapping=_COUNTED_HERE) as counter:
            output = pair(
                input_ids=torch.zeros(num_sequences, length, dtype=torch.long),
                masked_positions=places_BK,
                labels=torch.zeros_like(places_BK),
                sampling_uniforms=torch.zeros(num_sequences, num_masked, 2),
            )
            output.loss.backward()
        return int(counter.get_total_flops())

    return of_step(2) - of_step(1)
