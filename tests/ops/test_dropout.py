import pytest
import torch

from hf_electra_rtd.ops import attention_with_dropout, draw_dropout_bits, dropout
from tests import reference


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1,), (7, 3), (5, 2, 9)])
def test_value_and_gradient_equal_the_references(dtype, probability, shape):
    torch.manual_seed(0)
    inputs = torch.randn(shape, dtype=dtype, requires_grad=True)
    bits = draw_dropout_bits(shape)
    ours = dropout(inputs, bits, probability)
    obvious = reference.dropout(inputs, bits, probability)
    tolerance = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 0}
    torch.testing.assert_close(ours, obvious, **tolerance)
    upstream = torch.randn(shape, dtype=dtype)
    gradients = [torch.autograd.grad(output, inputs, upstream)[0] for output in (ours, obvious)]
    torch.testing.assert_close(*gradients, **tolerance)


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.15, 0.5])
def test_the_probability_is_met_to_a_rounding_of_sixteen_bits_and_the_mean_stays(probability):
    every = torch.arange(-(2**15), 2**15).to(torch.int16)  # each number once
    kept = dropout(torch.ones(2**16, dtype=torch.float64), every, probability)
    assert abs((kept == 0).double().mean().item() - probability) <= 2**-17
    assert kept.mean().item() == pytest.approx(1.0, rel=1e-7)


@pytest.mark.parametrize("shape", [(4099,), (64, 65), (3, 1, 1001)])
def test_bits_are_uniform_and_independent_between_neighbours(shape):
    torch.manual_seed(1)
    draws = torch.cat([draw_dropout_bits(shape).flatten() for _ in range(50)])
    counts = torch.bincount((draws.int() + 2**15) >> 12, minlength=16).double()
    expected = counts.sum() / 16
    assert ((counts - expected) ** 2 / expected).sum() < 45  # chi square, 15 degrees of freedom: p = 1e-4
    low = draws[:-1] < -26214
    high = draws[1:] < -26214
    both = (low & high).double().mean()
    assert abs(both - 0.1**2) < 4 * (0.01 / len(draws)) ** 0.5


def test_bits_follow_torchs_generator():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = draw_dropout_bits((5, 7))
    second = draw_dropout_bits((5, 7))
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(draw_dropout_bits((5, 7)), first)


# ---- Attention ----


def _mask(kind, rows, heads, length):
    seen = torch.arange(length) < torch.randint(1, length + 1, (rows, 1))
    return {
        "none": None,
        "bool": seen[:, None, None, :].expand(rows, 1, length, length),
        "of a square": torch.rand(length, length) < 0.7,
        "where some tokens see nothing": seen[:, None, None, :] & seen[:, None, :, None],
        "added": torch.zeros(rows, 1, 1, length).masked_fill(~seen[:, None, None], -1e9),
        "of each head": torch.randn(rows, heads, length, length),
    }[kind]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 1, 17, 8), (3, 4, 33, 5)])
@pytest.mark.parametrize(
    "kind", ["none", "bool", "of a square", "where some tokens see nothing", "added", "of each head"]
)
@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5])
def test_value_and_gradients_err_no_more_than_the_obvious_code_does(dtype, shape, kind, probability):
    torch.manual_seed(0)
    rows, heads, length, size = shape
    # As the projections leave them: (B, H, L, D), not contiguous.
    inputs = [torch.randn(rows, length, heads, size, dtype=dtype).transpose(1, 2) for _ in range(3)]
    mask = _mask(kind, rows, heads, length)
    bits = draw_dropout_bits((heads, rows, length, length))
    upstream = torch.randn(rows, length, heads, size, dtype=dtype)
    results = []
    obvious = reference.attention_with_dropout
    for function, precision in ((attention_with_dropout, dtype), (obvious, dtype), (obvious, torch.float64)):
        own = [each.detach().to(precision).requires_grad_() for each in inputs]
        own_mask = mask if mask is None or mask.dtype == torch.bool else mask.to(precision)
        output = function(*own, bits, probability, size**-0.5, own_mask)
        results.append([output.detach(), *torch.autograd.grad(output, own, upstream.to(precision))])
    for ours, naive, truth in zip(*results, strict=True):
        slack = 8 * torch.finfo(dtype).eps * max(1.0, float(truth.abs().max()))
        error, allowed = ((each.double() - truth).abs().max() for each in (ours, naive))
        assert error <= allowed + slack
