import pytest
import torch

from hf_electra_rtd.ops import attention_with_dropout, draw_dropout_bits, reference


def _heads(rows, heads, length, size, dtype):
    """Query, key and value as the projections leave them: (B, H, L, D), not contiguous."""
    shape = (rows, length, heads, size)
    return [torch.randn(shape, dtype=dtype).transpose(1, 2) for _ in range(3)]


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
    inputs, mask = _heads(*shape, dtype), _mask(kind, rows, heads, length)
    bits = draw_dropout_bits((heads, rows, length, length))
    upstream = torch.randn(rows, length, heads, size, dtype=dtype)
    results = []
    for function, precision in (
        (attention_with_dropout, dtype),
        (reference.attention_with_dropout, dtype),
        (reference.attention_with_dropout, torch.float64),
    ):
        own = [each.detach().to(precision).requires_grad_() for each in inputs]
        own_mask = mask if mask is None or mask.dtype == torch.bool else mask.to(precision)
        output = function(*own, bits, probability, size**-0.5, own_mask)
        results.append([output.detach(), *torch.autograd.grad(output, own, upstream.to(precision))])
    for ours, obvious, truth in zip(*results, strict=True):
        slack = 8 * torch.finfo(dtype).eps * max(1.0, float(truth.abs().max()))
        error, allowed = ((each.double() - truth).abs().max() for each in (ours, obvious))
        assert error <= allowed + slack
