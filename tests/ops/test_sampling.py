import numpy as np
import pytest
import torch
from scipy import stats

from hf_electra_rtd.ops import reference, sample_tokens


# Vocabularies around the chunk of 512, and the real one.
VOCABULARIES = [1, 2, 511, 512, 513, 1300]


def _uniforms(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def _logits(rows, vocabulary, scale=3.0, seed=1, dtype=torch.float32):
    return (scale * torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed))).to(dtype)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_equals_the_reference_in_float64(vocabulary, temperature):
    logits, uniforms = _logits(200, vocabulary, dtype=torch.float64), _uniforms(200, 2).double()
    drawn = sample_tokens(logits, uniforms, temperature)
    assert torch.equal(drawn, reference.sample_tokens(logits, uniforms, temperature))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(300, 513), (7, 43, 1300)])
def test_in_lower_precision_it_differs_only_where_a_uniform_meets_a_boundary(dtype, shape):
    logits, uniforms = (
        _logits(int(np.prod(shape[:-1])), shape[-1], dtype=dtype),
        _uniforms(int(np.prod(shape[:-1])), 2),
    )
    drawn = sample_tokens(logits.view(shape), uniforms.view(*shape[:-1], 2)).flatten()
    exact = reference.sample_tokens(logits.double(), uniforms.double())
    assert (drawn != exact).float().mean() <= 0.01


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("vocabulary", [40, 1300])
def test_frequencies_match_the_softmax(temperature, vocabulary):
    draws = 40_000
    logits = _logits(1, vocabulary, scale=1.5)
    sampled = sample_tokens(logits.expand(draws, -1), _uniforms(draws, 2), temperature)
    expected = torch.softmax(logits[0].double() / temperature, dim=0).numpy() * draws
    observed = np.bincount(sampled.numpy(), minlength=vocabulary)
    often = expected >= 5
    observed = np.append(observed[often], observed[~often].sum())
    expected = np.append(expected[often], expected[~often].sum())
    keep = expected > 0
    assert stats.chisquare(observed[keep], expected[keep]).pvalue > 1e-3


def test_agrees_with_gumbel_max_in_distribution():
    draws, logits = 20_000, _logits(1, 20, scale=1.0)
    ours = torch.bincount(sample_tokens(logits.expand(draws, -1), _uniforms(draws, 2)), minlength=20)
    gumbel = torch.bincount(
        reference.gumbel_sample_tokens(logits.double(), _uniforms(draws, 20, seed=5).double()), minlength=20
    )
    assert stats.chi2_contingency(torch.stack([ours, gumbel]).numpy()).pvalue > 1e-3


def test_greedy_takes_the_most_likely_token():
    logits = _logits(50, 700)
    assert torch.equal(sample_tokens(logits, _uniforms(50, 2), 0.0), logits.argmax(dim=-1))


@pytest.mark.parametrize("temperature", [0.0, 0.1, 1.0])
def test_the_forbidden_token_is_never_drawn(temperature):
    logits = _logits(2000, 30)
    forbidden = logits.argmax(dim=-1)
    drawn = sample_tokens(logits, _uniforms(2000, 2), temperature, forbidden)
    assert not drawn.eq(forbidden).any()
    assert torch.equal(
        sample_tokens(logits, _uniforms(2000, 2), temperature, torch.full((2000,), -100)),
        sample_tokens(logits, _uniforms(2000, 2), temperature),
    )


def test_forbidding_renormalises_the_rest():
    draws = 30_000
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    drawn = sample_tokens(
        logits.expand(draws, 4), _uniforms(draws, 2), forbidden_M=torch.zeros(draws, dtype=torch.long)
    )
    expected = torch.softmax(logits[1:].double(), dim=0).numpy() * draws
    assert stats.chisquare(np.bincount(drawn.numpy(), minlength=4)[1:], expected).pvalue > 1e-3


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1.0 - 2**-24])
@pytest.mark.parametrize("vocabulary", [3, 513, 30522])
def test_impossible_and_padded_tokens_are_never_drawn(uniform, vocabulary):
    logits = torch.full((4, vocabulary), float("-inf"))
    possible = torch.tensor([0, vocabulary // 2, vocabulary - 1])
    logits[:, possible] = torch.tensor([[0.0, 0.0, 0.0], [50.0, 0.0, -50.0], [-80.0, 0.0, 3.0], [1e4, -1e4, 1e4]])
    drawn = sample_tokens(logits, torch.full((4, 2), uniform))
    assert torch.isin(drawn, possible).all()


def test_logits_that_are_not_numbers_still_give_a_valid_id():
    drawn = sample_tokens(torch.full((3, 600), float("nan")), _uniforms(3, 2))
    assert ((drawn >= 0) & (drawn < 600)).all()


def test_no_gradient_passes():
    logits = _logits(4, 10).requires_grad_()
    assert not sample_tokens(logits, _uniforms(4, 2)).requires_grad
