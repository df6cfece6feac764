from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from transformers import ElectraForPreTraining
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.encoders.layers import ATTENTION, attention
from hf_electra_rtd.ops.devices import as_on_gpu
from tests.conftest import tiny_config


def test_nothing_of_the_exchanged_attention_is_saved(tmp_path):
    model = ElectraForRTDPretraining(tiny_config())
    assert {tower.config._attn_implementation for tower in model.towers.values()} == {ATTENTION}
    model.save_towers(tmp_path)
    model.save_pretrained(tmp_path / "pair")
    assert not any(ATTENTION in path.read_text(errors="ignore") for path in tmp_path.rglob("*.json"))
    stock = ElectraForPreTraining.from_pretrained(tmp_path / "discriminator")
    assert stock.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("length", [1, 17, 257])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_attention_in_bfloat16_errs_as_little_as_torchs_own(length, scaling):
    torch.manual_seed(0)
    inputs = [torch.randn(2, length, 3, 8, dtype=torch.bfloat16).transpose(1, 2) for _ in range(3)]
    upstream = torch.randn(2, length, 3, 8, dtype=torch.bfloat16)

    def results(function, dtype):
        own = [each.detach().to(dtype).requires_grad_() for each in inputs]
        output = function(*own)
        return [each.detach().double() for each in (output, *torch.autograd.grad(output, own, upstream.to(dtype)))]

    def torchs(*own):
        return F.scaled_dot_product_attention(*own, scale=scaling).transpose(1, 2)

    layer = nn.Module()
    layer.is_causal = False
    ours = results(lambda *own: attention(layer, *own, None, scaling=scaling)[0], torch.bfloat16)
    for mine, other, truth in zip(ours, results(torchs, torch.bfloat16), results(torchs, torch.float64), strict=True):
        slack = 2 * torch.finfo(torch.bfloat16).eps * max(1.0, float(truth.abs().max()))
        assert (mine - truth).abs().max() <= (other - truth).abs().max() + slack


def test_a_pair_gathered_from_another_leaves_that_ones_attention(tmp_path):
    model = ElectraForRTDPretraining(tiny_config())
    model.set_attn_implementation("sdpa")
    model.save_pretrained(tmp_path)
    other = ElectraForRTDPretraining.from_pretrained(tmp_path)
    eager = ElectraForRTDPretraining.from_pretrained(tmp_path, attn_implementation="eager")
    for pair, name in ((model, "sdpa"), (other, ATTENTION), (eager, "eager")):  # only torch's own is exchanged
        assert [tower.config._attn_implementation for tower in pair.towers.values()] == [name, name]


@pytest.mark.parametrize(
    "changed", ["dropout", "mask", "no gradient", "other device", "longer", "float32", "other length of keys"]
)
def test_in_all_other_cases_attention_is_the_stock_one(changed):
    length = 300 if changed == "longer" else 9
    dtype = torch.float32 if changed == "float32" else torch.bfloat16
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(2, 3, length, 8, dtype=dtype, requires_grad=changed != "no gradient") for _ in "qkv"
    )
    if changed == "other length of keys":
        key, value = key[:, :, 1:], value[:, :, 1:]
    mask = torch.ones(2, 1, 9, 9, dtype=torch.bool).tril() if changed == "mask" else None
    layer = nn.Module()
    layer.is_causal = False
    results = []
    with as_on_gpu() if changed == "other device" else nullcontext():
        for function in (attention, ALL_ATTENTION_FUNCTIONS["sdpa"]):
            torch.manual_seed(1)
            results.append(function(layer, query, key, value, mask, dropout=0.5 * (changed == "dropout"))[0])
    assert torch.equal(*results)
