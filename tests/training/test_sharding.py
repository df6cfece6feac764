"""How several processes shard a pair. The process group is a fake without other processes, so the tests check sharding
plans and whole steps, but no values."""

from math import ceil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from accelerate import DistributedType
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_model
from torch import distributed
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from hf_electra_rtd import ElectraAdamW, ElectraForRTDPretraining, ElectraRTDConfig, get_parameter_groups
from hf_electra_rtd.base.recipes import SIZES
from hf_electra_rtd.encoders.families import FAMILIES
from hf_electra_rtd.training.checkpoints import keep_tied_tensors_together
from tests.families_for_tests import VOCAB_SIZE, tiny_family_config


PLAN = Path(__file__).parents[2] / "examples" / "accelerate_configs" / "fsdp2.yaml"
pytestmark = [
    pytest.mark.slow,
    # The warning is about the logits, which nothing changes in place.
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor"),
]


@pytest.fixture(params=[8, 64])
def world(request):
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    yield request.param
    distributed.destroy_process_group()


def shard(pair):
    """Shards a pair as the trainer and `accelerate` do with `fsdp2.yaml`."""
    options = yaml.safe_load(PLAN.read_text())["fsdp_config"]
    version = options.pop("fsdp_version")
    names = {name.removeprefix("fsdp_"): value for name, value in options.items()}
    plugin = FullyShardedDataParallelPlugin(fsdp_version=version, **names)
    accelerator = SimpleNamespace(
        distributed_type=DistributedType.FSDP,
        state=SimpleNamespace(fsdp_plugin=plugin),
        mixed_precision="no",
        is_main_process=True,
        is_fsdp2=plugin.fsdp_version == 2,
    )
    keep_tied_tensors_together(pair, accelerator)
    return fsdp2_prepare_model(accelerator, pair)


def names_of_tensors(pair):
    """Returns the names of each tensor. A tied tensor has several."""
    found = {}
    for name, parameter in pair.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), []).append(name)
    return sorted(found.values())


def check_plan(pair, world):
    """Shards a pair, checks the result, and returns how many elements of its weights this process holds."""
    ties = names_of_tensors(pair)
    assert any(len(names) > 1 for names in ties)  # both word tables, usually with the generator's output layer
    mine = sum(ceil(len(each) / world) * each[0].numel() for each in pair.parameters())
    shard(pair)
    assert names_of_tensors(pair) == ties
    assert all(isinstance(each, DTensor) for each in pair.parameters())
    groups = [module for module in pair.modules() if isinstance(module, FSDPModule)]
    assert len(groups) == 1 + sum(config.num_hidden_layers for config in pair.config.towers.values())
    assert sum(each.to_local().numel() for each in pair.parameters()) == mine
    return mine


def test_fsdp1_is_refused():
    accelerator = SimpleNamespace(distributed_type=DistributedType.FSDP, is_fsdp2=False)
    with pytest.raises(ValueError, match="FSDP1"):
        keep_tied_tensors_together(family_pair("electra"), accelerator)


def step(model, optimizer):
    ids = torch.randint(5, VOCAB_SIZE, (2, 16))
    labels = torch.randint(5, VOCAB_SIZE, (2, 3))
    model(input_ids=ids, masked_positions=torch.arange(3).repeat(2, 1), labels=labels).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("size", SIZES)
def test_a_size_is_divided_by_its_layers(size, world):
    with torch.device("meta"):
        pair = ElectraForRTDPretraining(ElectraRTDConfig.from_size(size))
    whole = sum(each.numel() for each in pair.parameters())
    assert whole / world <= check_plan(pair, world) < whole / world * 1.05


def family_pair(family):
    return ElectraForRTDPretraining(ElectraRTDConfig(discriminator_config=tiny_family_config(family))).train()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_divided_by_its_layers_and_takes_a_step(family, world):
    pair = family_pair(family)
    mine = check_plan(pair, world)
    optimizer = ElectraAdamW(get_parameter_groups(pair, 0.01), 1e-3)
    step(pair, optimizer)
    states = [each for state in optimizer.state.values() for each in state.values() if each.dim()]
    assert sum(each.to_local().numel() for each in states) == 2 * mine


@pytest.mark.parametrize("family", FAMILIES)
def test_copies_of_a_family_send_every_gradient_once(family, world):
    """Since torch is not told to look for unused parameters, it would refuse the second step if there were one."""
    copy = DistributedDataParallel(family_pair(family))
    sent = []

    def send(_, bucket):  # the fake group gives the default hook no result
        sent.append(bucket.buffer().numel())
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    copy.register_comm_hook(None, send)
    optimizer = ElectraAdamW(get_parameter_groups(copy.module, 0.01), 1e-3)
    for _ in range(2):
        sent.clear()
        step(copy, optimizer)
        assert sum(sent) == sum(each.numel() for each in copy.module.parameters())
