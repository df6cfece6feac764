"""Runs several pre-trainings in sequence in one process group. It is the worker of `test_processes.py`.

    torchrun --nproc_per_node 2 several_processes.py commands.json

`commands.json` is a list of lists of flags. With `--shard`, training is sharded as on GPUs (FSDP2).
`accelerate` does not offer this for CPUs, so it is told that these are GPUs.
"""

import json
import os
from pathlib import Path


os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")


def shard_on_cpus() -> None:
    from accelerate import DistributedType, state

    layers = {"FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"}
    states = {"FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT", "FSDP_RESHARD_AFTER_FORWARD": "true"}
    os.environ.update(ACCELERATE_USE_FSDP="true", FSDP_VERSION="2", **layers, **states)
    original = state.AcceleratorState.__init__

    def initialize(self, *args, **kwargs):
        if "fsdp_plugin" not in state.AcceleratorState._shared_state:
            state.PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        original(self, *args, **kwargs)

    state.AcceleratorState.__init__ = initialize


def main(argv) -> None:
    from hf_electra_rtd.training import pretrain

    if "--shard" in argv:
        shard_on_cpus()
    for flags in json.loads(Path(argv[0]).read_text()):
        assert pretrain.main(flags) == 0


if __name__ == "__main__":
    from hf_electra_rtd.base import cli

    cli.run(main)
