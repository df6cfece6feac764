"""Losses divided by the counts of a whole optimiser step.

The default loss of a step is the mean of its batches' means, over accumulated batches and processes (as on the TPUs of
the original): exact where every batch has as many tokens, as full rows have. Where rows differ in length, a token in a
short batch weighs more than one in a long batch. Here both losses are sums over the step divided by its counts, so
that it does not matter how rows fall into batches and processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining, ElectraRTDOutput
from hf_electra_rtd.ops import IGNORED, masked_slots


def count_items(model: ElectraForRTDPretraining, inputs: dict[str, Tensor]) -> Tensor:
    """What both losses of a batch are means over: float32 (2,), masked tokens, and tokens that the main tower is
    judged on.

    Args:
        model: the pair.
        inputs: what it is called with.
    """
    slots = masked_slots(inputs["input_ids"], inputs.get("masked_positions"), inputs["labels"])
    main = model.objective.num_items(inputs["input_ids"], slots, inputs.get("attention_mask"))
    return torch.stack([slots.labels.ne(IGNORED).sum(), main]).float()


def count_step(
    model: ElectraForRTDPretraining, batches: Sequence[dict[str, Tensor]], add_up: Callable[[Tensor], Tensor]
) -> Tensor:
    """The counts of a step: float32 (2,).

    Args:
        model: the pair.
        batches: the accumulated batches of this process.
        add_up: sums a tensor over the processes of the run.
    """
    return add_up(torch.stack([count_items(model, batch) for batch in batches]).sum(dim=0))


def exact_loss(
    model: ElectraForRTDPretraining, output: ElectraRTDOutput, inputs: dict[str, Tensor], step_counts: Tensor
) -> Tensor:
    """This batch's part of the loss of the step: the parts of all its batches and processes add up to it.

    Args:
        model: the pair.
        output: of the batch.
        inputs: what the model was called with.
        step_counts: of the whole step (`count_step`).
    """
    assert output.discriminator_loss is not None
    share = (count_items(model, inputs) / step_counts.clamp(min=1)).to(output.discriminator_loss.dtype)
    loss = model.config.discriminator_weight * output.discriminator_loss * share[1]
    if output.generator_loss is not None:
        loss = loss + model.config.generator_weight * output.generator_loss * share[0]
    return loss
