import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from transformers import (
    AutoModelForSequenceClassification,
    ElectraForPreTraining,
    ElectraForSequenceClassification,
)

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.encoders.layers import ATTENTION, Dropout, Linear, attention
from hf_electra_rtd.finetuning.heads import STOCK_HEAD, load_fine_tuned, load_with_head
from hf_electra_rtd.inference.detection import load_for_detection
from hf_electra_rtd.pair.generators import _is_plain
from tests.conftest import tiny_config


def test_every_dropout_of_a_pair_is_exchanged_and_nothing_of_it_is_saved(tmp_path):
    model = ElectraForRTDPretraining(tiny_config(hidden_dropout_prob=0.1))
    dropouts = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    assert {type(module) for module in dropouts} == {Dropout}
    model.save_towers(tmp_path)
    model.save_pretrained(tmp_path / "pair")
    assert not any(ATTENTION in path.read_text(errors="ignore") for path in tmp_path.rglob("*.json"))
    stock = ElectraForPreTraining.from_pretrained(tmp_path / "discriminator")
    assert stock.config._attn_implementation == "sdpa"


def test_under_compile_and_elsewhere_the_stock_functions_run(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    inputs = torch.randn(3, 5)
    torch.manual_seed(0)
    ours = Dropout(0.5)(inputs)
    torch.manual_seed(0)
    assert torch.equal(ours, F.dropout(inputs, 0.5))


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


def test_the_output_layer_stays_plain_so_that_masked_tokens_are_predicted_in_chunks():
    model = ElectraForRTDPretraining(tiny_config())
    assert _is_plain(model.generator.get_output_embeddings())
    kinds = [type(layer) for layer in model.generator.modules() if isinstance(layer, nn.Linear)]
    assert kinds.count(nn.Linear) == 1
    assert set(kinds) == {Linear, nn.Linear}


@pytest.mark.parametrize("stock", [ElectraForPreTraining, ElectraForSequenceClassification])
def test_detection_and_prediction_multiply_by_either_library_and_say_the_same(stock, library, finished_run, tmp_path):
    if stock is ElectraForPreTraining:
        model = load_for_detection(str(finished_run))[1]
        model.save_pretrained(tmp_path)
    else:
        auto_class = AutoModelForSequenceClassification
        labels = ("no", "yes")
        load_with_head(auto_class, finished_run / "discriminator", STOCK_HEAD, labels).save_pretrained(tmp_path)
        model = load_fine_tuned(auto_class, str(tmp_path), labels)
    assert type(model) is stock
    assert {type(layer) for layer in model.modules() if isinstance(layer, nn.Linear)} == {Linear}
    ids = torch.randint(5, 30, (3, 9))
    said, expected = (each.eval()(ids).logits for each in (model, stock.from_pretrained(tmp_path).double()))
    torch.testing.assert_close(said.double(), expected, rtol=1e-5, atol=1e-5)
