import numpy as np
import pytest
import torch

from hf_electra_rtd.ops import sample_tokens
from tests import reference


def _uniforms(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def _logits(rows, vocabulary, scale=3.0, seed=1, dtype=torch.float32):
    return (scale * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))).to(dtype)


@pytest.mark.parametrize("vocabulary", [1, 2, 511, 512, 513, 1300])  # around the chunk of 512
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_equals_the_reference_in_float64_where_a_token_is_forbidden_too(vocabulary, temperature):
    logits = _logits(200, vocabulary, dtype=torch.float64)
    uniforms = _uniforms(200, 2).double()
    for forbidden in (None, logits.argmax(dim=-1)) if vocabulary > 1 else (None,):
        drawn = sample_tokens(logits, uniforms, temperature, forbidden)
        assert torch.equal(drawn, reference.sample_tokens(logits, uniforms, temperature, forbidden))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(300, 513), (7, 43, 1300)])
def test_in_lower_precision_it_differs_only_where_a_uniform_meets_a_boundary(dtype, shape):
    rows = int(np.prod(shape[:-1]))
    logits = _logits(rows, shape[-1], dtype=dtype)
    uniforms = _uniforms(rows, 2)
    drawn = sample_tokens(logits.view(shape), uniforms.view(*shape[:-1], 2)).flatten()
    exact = reference.sample_tokens(logits.double(), uniforms.double())
    assert (drawn != exact).float().mean() <= 0.01


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("vocabulary", [40, 1300])
def test_frequencies_match_the_softmax(temperature, vocabulary):
    draws = 40_000
    logits = _logits(1, vocabulary, scale=1.5)
    sampled = sample_tokens(logits.expand(draws, -1), _uniforms(draws, 2), temperature)
    expected = torch.softmax(logits[0].double() / temperature, dim=0) * draws
    assert reference.chi_square_p(torch.bincount(sampled, minlength=vocabulary), expected) > 1e-3


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0 - 2**-24])
@pytest.mark.parametrize("vocabulary", [3, 513, 30522])
def test_impossible_and_padded_tokens_are_never_drawn(uniform, vocabulary):
    logits = torch.full((4, vocabulary), float("-inf"))
    possible = torch.tensor([0, vocabulary // 2, vocabulary - 1])
    logits[:, possible] = torch.tensor([[0.0, 0.0, 0.0], [50.0, 0.0, -50.0], [-80.0, 0.0, 3.0], [1e4, -1e4, 1e4]])
    drawn = sample_tokens(logits.requires_grad_(), torch.full((4, 2), uniform))
    assert torch.isin(drawn, possible).all()
    assert not drawn.requires_grad
