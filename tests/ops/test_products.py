"""Products by either library: the same numbers as in float64, with their gradients; and which library is taken."""

import functools
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

from hf_electra_rtd.ops import products


pytestmark = pytest.mark.usefixtures("library")
SIZES = st.integers(1, 40)


@settings(max_examples=30, deadline=None)
@given(shape=st.lists(SIZES, min_size=1, max_size=3), inputs=SIZES, outputs=SIZES, has_bias=st.booleans())
def test_products_and_gradients_are_those_of_float64(shape, inputs, outputs, has_bias):
    random = torch.Generator().manual_seed(sum(shape) + inputs)
    draw = [torch.randn(*size, generator=random) for size in ([*shape, inputs], [outputs, inputs], [outputs])]
    given = [tensor.clone().requires_grad_() for tensor in draw[: 2 + has_bias]]
    exact = [tensor.double().requires_grad_() for tensor in draw[: 2 + has_bias]]
    result = products.linear(*given)
    expected = F.linear(*exact)
    weights = torch.randn(result.shape, generator=random) / result[..., 0].numel() ** 0.5
    (result * weights).sum().backward()
    (expected * weights.double()).sum().backward()
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=2e-5)
    for ours, theirs in zip(given, exact, strict=True):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-5, atol=2e-5)


def test_transposed_views_are_multiplied_as_they_are():
    left = torch.randn(7, 50)
    right = torch.randn(7, 30)
    expected = left.double().T @ right.double()
    torch.testing.assert_close(products.product(left.T, right).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.float64, False), (torch.bfloat16, False), (torch.float32, True)]
)
def test_other_precisions_and_autocast_are_torchs_own_and_a_batch_may_be_empty(dtype, autocast):
    input = torch.randn(3, 5, dtype=dtype)
    weight = torch.randn(4, 5, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        assert torch.equal(products.linear(input, weight), F.linear(input, weight))
    assert products.linear(torch.empty(0, 5), torch.randn(4, 5)).shape == (0, 4)


@pytest.mark.parametrize(("gain", "chosen"), [(3.0, products.ONEDNN), (1.1, products.MKL), (0.5, products.MKL)])
def test_the_library_is_the_one_that_is_clearly_faster(monkeypatch, gain, chosen):
    monkeypatch.setattr(products, "_chosen", None)
    known = {products.MKL: 100.0, products.ONEDNN: 100.0 * gain, products.BFLOAT16: 600.0}
    monkeypatch.setattr(products, "speeds", lambda: known)
    assert products.library() == chosen
    assert products.bfloat16_gain() == 6 / max(1, gain)  # against the best in float32


CPUINFO = "vendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nflags\t\t: avx2 {}\n\nvendor_id\t: x\n"


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        (CPUINFO.format("avx512_bf16"), True),
        (CPUINFO.format("avx512f"), False),  # hidden by a virtual machine
        (CPUINFO.format("avx512_bf16").replace("26", "27"), False),
        (CPUINFO.format("avx512_bf16").replace("model\t\t: 2", "model\t\t: 36"), False),
        ("processor\t: 0\nhart\t: 0\n", False),
        (None, False),
    ],
)
def test_a_known_processor_is_not_timed(monkeypatch, tmp_path, text, is_known):
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(products, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(products, "_chosen", None)
    monkeypatch.setattr(products, "speeds", products.speeds.__wrapped__)
    timed = []
    clock = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: timed.append(None) or clock())
    chosen = products.library()
    assert bool(timed) != is_known
    if is_known and products.has_onednn():
        assert chosen == products.ONEDNN
        assert products.bfloat16_gain() > 1.5


def test_the_library_of_a_run_before_is_taken_and_none_of_one_that_was_on_a_gpu(library, caplog):
    caplog.set_level("WARNING", "hf_electra_rtd")
    for name in (None, products.MKL, None):
        products.use_library(name)
        assert products.library() == (library if name is None else name)
        library = products.library()
    assert not caplog.text


def test_without_onednn_it_is_neither_timed_nor_taken(monkeypatch, tmp_path):
    monkeypatch.setattr(products, "_chosen", None)
    monkeypatch.setattr(products, "has_onednn", lambda: False)
    monkeypatch.setattr(products, "_onednn", pytest.fail)
    monkeypatch.setattr(products, "_CPUINFO", tmp_path / "none")
    monkeypatch.setattr(products, "speeds", products.speeds.__wrapped__)
    products.use_library(products.ONEDNN)
    assert products.library() == products.MKL


@pytest.mark.parametrize("tiles", [False, True])
@pytest.mark.parametrize("rounds", [False, True])
def test_a_processor_that_could_round_to_bfloat16_is_not_asked_to(monkeypatch, rounds, tiles):
    """With tiles, or where torch's permission gives 8 bits, which the first product shows."""
    given = products._permitted
    asked = []
    setting = torch.backends.mkldnn.matmul
    before = setting.fp32_precision

    def permitted(left, right):
        asked.append(left.shape)
        return given(left.bfloat16(), right.bfloat16()).float() if rounds else given(left, right)

    monkeypatch.setattr(products, "_permitted", permitted)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    monkeypatch.setattr(products, "_rounds_to_bfloat16", functools.cache(products._rounds_to_bfloat16.__wrapped__))
    for shape in ((70, 50), (3, 70, 50)):
        left = torch.randn(shape)
        right = torch.randn(*shape[:-2], 50, 30)
        expected = left.double() @ right.double()
        torch.testing.assert_close(products.product(left, right).double(), expected, rtol=1e-5, atol=2e-5)
    assert not (tiles and asked)
    assert setting.fp32_precision == before
