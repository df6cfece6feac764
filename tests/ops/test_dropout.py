import pytest
import torch

from hf_electra_rtd.ops import draw_dropout_bits, dropout, reference


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1,), (7, 3), (5, 2, 9)])
def test_value_and_gradient_equal_the_references(dtype, probability, shape):
    torch.manual_seed(0)
    inputs, bits = torch.randn(shape, dtype=dtype, requires_grad=True), draw_dropout_bits(shape)
    ours, obvious = dropout(inputs, bits, probability), reference.dropout(inputs, bits, probability)
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
    low, high = draws[:-1] < -26214, draws[1:] < -26214
    both = (low & high).double().mean()
    assert abs(both - 0.1**2) < 4 * (0.01 / len(draws)) ** 0.5


def test_bits_follow_torchs_generator():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first, second = draw_dropout_bits((5, 7)), draw_dropout_bits((5, 7))
    assert not torch.equal(first, second)
    torch.set_rng_state(state)
    assert torch.equal(draw_dropout_bits((5, 7)), first)
