import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import grad
from torch.nn import functional as F  # noqa: N812

from hf_electra_rtd.ops import IGNORED, Sampling, predict_from_logits, predict_masked, sample_tokens
from tests import reference


def _inputs(rows, width, vocabulary, dtype=torch.float32, seed=0, scale=1.0):
    random = torch.Generator().manual_seed(seed)
    draw = lambda *shape: scale * torch.randn(*shape, generator=random, dtype=torch.float64)  # noqa: E731
    tensors = [draw(rows, width), draw(vocabulary, width), draw(vocabulary)]
    labels = torch.randint(0, vocabulary, (rows,), generator=random)
    return [tensor.to(dtype).requires_grad_() for tensor in tensors], labels


def _reference(tensors, labels, dtype):
    """The loss and gradients of the obvious code, computed in a dtype."""
    copies = [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]
    loss = reference.masked_lm_loss(F.linear(*copies), labels)
    return loss, grad(loss, copies)


def _error(value, truth):
    return float((value.detach().double() - truth.detach()).abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 2), (15, 7, 113), (28, 64, 1300), (40, 16, 512)])
@pytest.mark.parametrize("ignored", ["none", "some", "all but one"])
@pytest.mark.parametrize("max_logits", [1, 3000, 10**9])
def test_loss_and_gradients_err_no_more_than_the_obvious_code_does(dtype, shape, ignored, max_logits):
    tensors, labels = _inputs(*shape, dtype)
    if ignored == "some":
        labels[::2] = IGNORED
    elif ignored == "all but one":
        labels[1:] = IGNORED
    predicted = predict_masked(*tensors, labels, max_logits=max_logits)
    truth, true_gradients = _reference(tensors, labels, torch.float64)
    naive, naive_gradients = _reference(tensors, labels, dtype)
    ours = (predicted.loss.total, *grad(predicted.loss.total, tensors))
    results = zip(ours, (naive, *naive_gradients), (truth, *true_gradients), strict=True)
    for ours, obvious, exact in results:
        slack = 4 * torch.finfo(dtype).eps * max(1.0, float(exact.detach().abs().max()))
        assert _error(ours, exact) <= _error(obvious, exact) + slack


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 9),
    width=st.integers(1, 5),
    vocabulary=st.integers(1, 1100),
    max_logits=st.integers(1, 5000),
    seed=st.integers(0, 99),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    disallow_correct=st.booleans(),
)
def test_in_float64_it_is_the_obvious_code(rows, width, vocabulary, max_logits, seed, temperature, disallow_correct):
    tensors, labels = _inputs(rows, width, vocabulary, torch.float64, seed)
    labels[torch.rand(rows, generator=torch.Generator().manual_seed(seed)) < 0.3] = IGNORED
    uniforms = torch.rand(rows, 2, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    sampling = Sampling(uniforms, temperature, disallow_correct and vocabulary > 1)
    logits = F.linear(*tensors)
    loss = reference.masked_lm_loss(logits, labels)
    gradients = grad(loss, tensors, retain_graph=True)
    forbidden = labels if sampling.disallow_correct else None
    in_parts = predict_masked(*tensors, labels, sampling, max_logits)
    for predicted in (in_parts, predict_from_logits(logits, labels, sampling)):
        torch.testing.assert_close(predicted.loss.total, loss, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(predicted.loss.losses.sum(), loss, rtol=1e-12, atol=1e-12)
        assert not predicted.loss.losses[labels == IGNORED].any()
        assert predicted.loss.num_items == (labels != IGNORED).sum()
        torch.testing.assert_close(predicted.log_normalizers, logits.logsumexp(dim=-1), rtol=1e-12, atol=1e-12)
        assert torch.equal(predicted.predictions, logits.argmax(dim=-1))
        assert torch.equal(predicted.sampled, sample_tokens(logits, uniforms, temperature, forbidden))
        for ours, obvious in zip(grad(predicted.loss.total, tensors), gradients, strict=True):
            torch.testing.assert_close(ours, obvious, rtol=1e-11, atol=1e-12)


def test_the_gradient_of_a_multiple_is_a_multiple_and_may_be_asked_for_twice():
    tensors, labels = _inputs(12, 8, 600)
    loss = predict_masked(*tensors, labels).loss.total
    once = grad(loss, tensors, retain_graph=True)
    torch.testing.assert_close([3 * each for each in once], list(grad(3 * loss, tensors)))


def test_only_gradients_that_are_needed_are_made():
    (hidden, weight, bias), labels = _inputs(12, 8, 600)
    both = grad(predict_masked(hidden, weight, bias, labels).loss.total, (hidden, weight))
    alone = grad(predict_masked(hidden, weight.detach(), bias.detach(), labels).loss.total, hidden)
    assert torch.equal(both[0], alone[0])
    assert not predict_masked(hidden.detach(), weight.detach(), bias.detach(), labels).loss.total.requires_grad
    with torch.no_grad():
        assert not predict_masked(hidden, weight, bias, labels).loss.total.requires_grad


@pytest.mark.parametrize("scale", [30.0, 300.0])
def test_losses_of_impossible_tokens_are_finite_and_right(scale):
    tensors, labels = _inputs(20, 8, 700, scale=scale)
    predicted = predict_masked(*tensors, labels)
    truth = F.cross_entropy(F.linear(*(tensor.double() for tensor in tensors)), labels, reduction="none")
    assert truth.max() > 1000
    torch.testing.assert_close(predicted.loss.losses.double(), truth.detach(), rtol=1e-5, atol=1e-2)


def test_under_autocast_products_are_bfloat16_and_sums_float32():
    tensors, labels = _inputs(64, 32, 1300)
    with torch.autocast("cpu", torch.bfloat16):
        predicted = predict_masked(*tensors, labels, max_logits=1300 * 16)
        obvious = F.cross_entropy(F.linear(*tensors).float(), labels, reduction="sum")
    truth, true_gradients = _reference(tensors, labels, torch.float64)
    assert predicted.loss.total.dtype == torch.float32
    assert _error(predicted.loss.total, truth) <= 1.05 * _error(obvious, truth) + 1e-4 * float(truth.detach())
    ours = grad(predicted.loss.total, tensors)
    theirs = grad(obvious, tensors)
    for one, other, exact in zip(ours, theirs, true_gradients, strict=True):
        assert one.dtype == torch.float32
        assert _error(one, exact) <= 1.05 * _error(other, exact) + 1e-6 * float(exact.detach().abs().max())


def test_weights_that_are_not_numbers_give_a_loss_that_is_none_and_valid_ids():
    tensors, labels = _inputs(4, 3, 600)
    with torch.no_grad():
        tensors[1].fill_(float("nan"))
    predicted = predict_masked(*tensors, labels, Sampling(torch.rand(4, 2)))
    assert predicted.loss.total.isnan()
    assert ((predicted.sampled >= 0) & (predicted.sampled < 600)).all()
    assert ((predicted.predictions >= 0) & (predicted.predictions < 600)).all()
