import copy

import pytest
import torch
from torch import nn
from transformers import CONFIG_MAPPING

from hf_electra_rtd import (
    ElectraAdamW,
    ElectraForRTDPretraining,
    ElectraRTDConfig,
    get_electra_schedule,
    get_parameter_groups,
)
from hf_electra_rtd.training.optimization import ElectraMuon
from tests.conftest import tiny_config


def original_adam(parameter, gradients, lr, betas, eps, weight_decay):
    """google-research/electra model/optimization.py, `AdamWeightDecayOptimizer._apply_gradients`, in float64."""
    p, m, v = parameter.double(), 0.0, 0.0
    for gradient in gradients:
        gradient = gradient.double()
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
        p = p - lr * (m / (v.sqrt() + eps) + weight_decay * p)
    return p


@pytest.mark.parametrize("options", [{}, {"fused": False}, {"foreach": True}])  # all implementations that torch has
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (64, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("eps", "weight_decay"), [(1e-6, 0.01), (1e-3, 0.0)])
def test_follows_the_originals_update(shape, dtype, eps, weight_decay, options):
    parameter = nn.Parameter(torch.randn(shape, dtype=dtype))
    gradients = [torch.randn(shape, dtype=dtype) * 10.0**scale for scale in (0, -4, 1, -2, 0)]
    expected = original_adam(parameter.detach(), gradients, 1e-2, (0.9, 0.999), eps, weight_decay)
    unused = nn.Parameter(torch.ones(2))  # a parameter without a gradient does not change
    optimizer = ElectraAdamW([parameter, unused], lr=1e-2, eps=eps, weight_decay=weight_decay, **options)
    assert optimizer.param_groups[0]["fused"] is not (options != {})
    for gradient in gradients:
        parameter.grad = gradient
        optimizer.step()
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(parameter.detach().double(), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(unused, torch.ones(2))


def test_with_bias_correction_it_is_torchs_adamw():
    ours, theirs = (nn.Parameter(torch.arange(6.0)) for _ in range(2))
    options = {"lr": 1e-2, "eps": 1e-6, "weight_decay": 0.01}
    mine, reference = ElectraAdamW([ours], bias_correction=True, **options), torch.optim.AdamW([theirs], **options)
    for step in range(5):
        for parameter, optimizer in ((ours, mine), (theirs, reference)):
            parameter.grad = torch.sin(torch.arange(6.0) * (step + 1))
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_decay_spares_biases_and_layer_norms_and_every_parameter_that_is_not_frozen_is_optimized_once():
    model = ElectraForRTDPretraining(tiny_config())
    decayed, exempt = get_parameter_groups(model, 0.01)
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.01, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in (decayed, exempt):
        for name in (names[id(parameter)] for parameter in group["params"]):
            assert (name.endswith("bias") or "LayerNorm" in name) == (group is exempt), name
    everything = [id(parameter) for group in (decayed, exempt) for parameter in group["params"]]
    assert sorted(everything) == sorted(map(id, model.parameters()))
    unshared = ElectraForRTDPretraining(tiny_config(sharing="none"))
    unshared.generator.requires_grad_(False)
    groups = get_parameter_groups(unshared, 0.01)
    assert sum(len(group["params"]) for group in groups) == len(list(unshared.discriminator.parameters()))


@pytest.mark.parametrize("family", ["albert", "convbert", "deberta", "roberta-prelayernorm"])
def test_muon_has_the_matrices_of_the_layers_and_decay_spares_the_norms_of_families_that_are_not_known(family):
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32, "intermediate_size": 64}
    main = CONFIG_MAPPING[family](vocab_size=40, max_position_embeddings=16, **sizes)
    model = ElectraForRTDPretraining(ElectraRTDConfig(discriminator_config=main))
    groups = get_parameter_groups(model, 0.01, muon=True)
    for group in groups:
        # A bias of ConvBERT has a second dimension, of one element.
        assert (group["weight_decay"] == 0) == all(each.ndim < 2 or each.shape[1] == 1 for each in group["params"])
    matrices = {id(each) for group in groups if "muon" in group for each in group["params"]}
    stacks = [
        layer
        for tower in (model.generator, model.discriminator)
        for layer in tower.base_model.encoder.modules()
        if isinstance(layer, nn.ModuleList)
    ]
    assert matrices == {
        id(module.weight) for stack in stacks for module in stack.modules() if isinstance(module, nn.Linear)
    }


@pytest.mark.parametrize("bfloat16", [False, True])
def test_muon_is_torchs_for_the_matrices_of_the_layers_and_adam_for_all_else(bfloat16):
    torch.manual_seed(0)
    model = ElectraForRTDPretraining(tiny_config(hidden_size=32, intermediate_size=64, num_attention_heads=2))
    twin = copy.deepcopy(model)
    optimizer = ElectraMuon(get_parameter_groups(model, 0.01, muon=True), lr=1e-2, bfloat16=bfloat16)
    groups = get_parameter_groups(twin, 0.01, muon=True)
    matrices = [parameter for group in groups if group.pop("muon", False) for parameter in group["params"]]
    assert {id(matrix) for matrix in matrices} == {
        id(module.weight)
        for name, module in twin.named_modules()
        if isinstance(module, nn.Linear) and ".layer." in name
    }
    others = [group for group in groups if id(group["params"][0]) not in set(map(id, matrices))]
    references = [
        torch.optim.Muon(matrices, lr=1e-2, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        ElectraAdamW(others, lr=1e-2),
    ]
    for step in range(3):
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            ours.grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(step))
            theirs.grad = ours.grad.clone()
        for each in (optimizer, *references):
            each.step()
        kept = optimizer.state_dict()
        optimizer = ElectraMuon(get_parameter_groups(model, 0.01, muon=True), lr=1e-2, bfloat16=bfloat16)
        optimizer.load_state_dict(kept)
    of_matrices = set(map(id, matrices))
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        tolerance = 2e-3 if id(theirs) in of_matrices else 0.0  # torch multiplies these in bfloat16
        assert (ours - theirs).norm() <= tolerance * theirs.norm(), name


@pytest.mark.parametrize("shape", [(8, 8), (4, 16), (16, 4)])
def test_muon_moves_a_matrix_along_the_directions_of_its_momentum_alike(shape):
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(shape, dtype=torch.float64))
    before = parameter.detach().clone()
    optimizer = ElectraMuon([{"params": [parameter], "muon": True}], lr=0.1, weight_decay=0.0)
    parameter.grad = torch.randn(shape, dtype=torch.float64)
    left, _, right = torch.linalg.svd(parameter.grad, full_matrices=False)
    optimizer.step()
    moved = left.mT @ (before - parameter.detach()) @ right.mT / (0.1 * 0.2 * max(shape) ** 0.5)
    assert moved.diagonal().min() > 0.6
    assert moved.diagonal().max() < 1.3
    torch.testing.assert_close(moved, moved.diagonal().diag(), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("warmup", "total"), [(10, 100), (0, 10), (100, 100), (5, 1)])
def test_the_schedule_is_decay_times_warmup(warmup, total):
    optimizer = ElectraAdamW([nn.Parameter(torch.ones(1))], lr=2e-3)
    schedule = get_electra_schedule(optimizer, warmup, total)
    for step in range(total + 2):
        expected = 2e-3 * max(0.0, 1 - step / total) * (min(1.0, step / warmup) if warmup else 1.0)
        assert schedule.get_last_lr()[0] == pytest.approx(expected, rel=1e-12)
        optimizer.step()
        schedule.step()
