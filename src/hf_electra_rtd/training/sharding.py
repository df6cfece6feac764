"""What a pair needs to be trained in shards (FSDP2), and to be whole again."""

from __future__ import annotations

import copy

import torch
from accelerate import Accelerator, DistributedType
from torch import nn

from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining


def keep_tied_tensors_together(pair: ElectraForRTDPretraining, accelerator: Accelerator) -> None:
    """Lets FSDP2 shard what is tied with the rest of the pair. To be called before `accelerator.prepare`.

    `accelerate` would shard the input and the output embeddings apart from the rest, and torch refuses a tensor in two
    groups; here three modules share the word table. Without names for these embeddings, they stay in one group.

    Raises:
        ValueError: for towers that share their layers.
    """
    if accelerator.distributed_type == DistributedType.FSDP:
        if pair.config.sharing == "all":
            raise ValueError(
                "sharing='all' makes each layer part of two towers, and torch shards a layer once: train a copy on "
                "each GPU (examples/accelerate_configs/multi_gpu.yaml)."
            )
        pair.get_input_embeddings = pair.get_output_embeddings = lambda: None  # type: ignore[assignment]


def gather_pair(
    pair: ElectraForRTDPretraining, prepared: nn.Module, accelerator: Accelerator
) -> ElectraForRTDPretraining:
    """The pair with all of its tensors: itself, or a copy on the main process where training shards them. Draws no
    random number. To be called by every process.

    Args:
        pair: the model.
        prepared: what `accelerator` made of it.
        accelerator: of the run.
    """
    if accelerator.distributed_type != DistributedType.FSDP:
        return pair
    tensors = accelerator.get_state_dict(prepared)
    if not accelerator.is_main_process:
        return pair
    with torch.random.fork_rng(devices=[]):  # the copy is initialised before it is filled
        whole = ElectraForRTDPretraining(copy.deepcopy(pair.config))  # which a new pair changes
    whole.load_state_dict(tensors)
    return whole
