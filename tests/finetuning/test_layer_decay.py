import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    ElectraConfig,
    ElectraForMultipleChoice,
    ElectraForQuestionAnswering,
    ElectraForSequenceClassification,
)

from hf_electra_rtd.finetuning.layer_decay import get_layer_groups
from hf_electra_rtd.training.optimization import ElectraAdamW


def make_electra(num_layers, model_class=ElectraForSequenceClassification):
    return model_class(
        ElectraConfig(
            vocab_size=10,
            embedding_size=8,
            hidden_size=16,
            num_hidden_layers=num_layers,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=8,
        )
    )


def rates_by_name(model, groups):
    """The rate of each parameter; fails where one is in two groups."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    rates = {}
    for group in groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            assert name not in rates
            rates[name] = group["lr"]
    return rates


def original_rate(name, learning_rate, decay, num_layers):
    """`_get_layer_lrs` of google-research/electra, and its look-up by part of a name, with transformers' names."""
    depths = {".embeddings.": 0, ".embeddings_project.": 0, "classifier.": num_layers + 2}
    depths |= {f"encoder.layer.{layer}.": layer + 1 for layer in range(num_layers)}
    found = [depth for part, depth in depths.items() if part in name]
    assert len(found) == 1
    return learning_rate * decay ** (num_layers + 2 - found[0])


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([1, 2, 3, 5, 12]), st.floats(0.1, 0.99), st.floats(1e-6, 1e-2))
def test_off_by_one_is_the_formula_of_the_original(num_layers, decay, learning_rate):
    model = make_electra(num_layers)
    rates = rates_by_name(model, get_layer_groups(model, learning_rate, decay, 0.0, off_by_one=True))
    assert rates.keys() == dict(model.named_parameters()).keys()
    for name, rate in rates.items():
        assert rate == pytest.approx(original_rate(name, learning_rate, decay, num_layers), rel=1e-12)


@pytest.mark.parametrize("num_layers", [1, 2, 12])
def test_by_default_the_top_layer_is_decayed_once(num_layers):
    model = make_electra(num_layers)
    rates = rates_by_name(model, get_layer_groups(model, 1.0, 0.8, 0.0))
    for name, rate in rates.items():
        # The original decays everything but the head once more.
        wanted = 1.0 if "classifier." in name else original_rate(name, 1.0, 0.8, num_layers) / 0.8
        assert rate == pytest.approx(wanted, rel=1e-12)
    assert rates[f"electra.encoder.layer.{num_layers - 1}.output.dense.weight"] == 0.8
    assert rates["electra.embeddings_project.weight"] == pytest.approx(0.8 ** (num_layers + 1))


@pytest.mark.parametrize("off_by_one", [False, True])
@pytest.mark.parametrize("model_class", [ElectraForQuestionAnswering, ElectraForMultipleChoice])
def test_the_group_of_the_head_comes_first_whatever_the_head(model_class, off_by_one):
    model = make_electra(2, model_class)
    groups = get_layer_groups(model, 0.5, 0.8, 0.0, off_by_one)
    rates = rates_by_name(model, groups)
    assert groups[0]["lr"] == 0.5
    assert {name for name, rate in rates.items() if rate == 0.5} == {
        name for name, _ in model.named_parameters() if not name.startswith("electra.")
    }
    assert [group["lr"] for group in groups] == sorted((group["lr"] for group in groups), reverse=True)


def test_biases_and_layer_norms_have_no_weight_decay():
    model = make_electra(2)
    groups = get_layer_groups(model, 1e-3, 0.8, 0.01)
    decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
    assert {group["weight_decay"] for group in groups} == {0.0, 0.01}
    for name, parameter in model.named_parameters():
        assert (id(parameter) in decayed) == (not ("LayerNorm" in name or name.endswith("bias"))), name


@pytest.mark.parametrize("layer_decay", [0.8, 1.0])
def test_frozen_parameters_are_left_out_and_do_not_change_the_depths(layer_decay):
    model = make_electra(3)
    whole = rates_by_name(model, get_layer_groups(model, 1.0, layer_decay, 0.0))
    model.electra.encoder.layer[2].requires_grad_(False)
    model.electra.embeddings.requires_grad_(False)
    rates = rates_by_name(model, get_layer_groups(model, 1.0, layer_decay, 0.0))
    assert rates == {
        name: rate for name, rate in whole.items() if "layer.2." not in name and ".embeddings." not in name
    }


def test_without_decay_there_are_two_groups_of_one_rate():
    model = make_electra(2)
    groups = get_layer_groups(model, 3e-4, 1.0, 0.01, off_by_one=True)
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(3e-4, 0.01), (3e-4, 0.0)]
    assert rates_by_name(model, groups).keys() == dict(model.named_parameters()).keys()


def test_other_encoders_have_the_same_depths():
    bert = BertForSequenceClassification(
        BertConfig(vocab_size=10, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    )
    rates = rates_by_name(bert, get_layer_groups(bert, 1.0, 0.5, 0.0))
    assert rates["bert.pooler.dense.weight"] == rates["classifier.weight"] == 1.0
    assert rates["bert.encoder.layer.1.output.dense.bias"] == 0.5
    assert rates["bert.encoder.layer.0.output.dense.bias"] == 0.25
    assert rates["bert.embeddings.LayerNorm.weight"] == 0.125
    distilled = DistilBertForSequenceClassification(
        DistilBertConfig(vocab_size=10, dim=16, n_layers=2, n_heads=2, hidden_dim=16)
    )
    rates = rates_by_name(distilled, get_layer_groups(distilled, 1.0, 0.5, 0.0))
    assert rates["pre_classifier.weight"] == 1.0
    assert rates["distilbert.transformer.layer.0.ffn.lin1.weight"] == 0.25


def test_a_parameter_without_a_depth_is_refused_by_name():
    config = DebertaV2Config(
        vocab_size=10,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        relative_attention=True,
        position_buckets=4,
        pos_att_type="p2c|c2p",
    )
    model = DebertaV2ForSequenceClassification(config)
    with pytest.raises(ValueError, match=r"deberta\.encoder\.rel_embeddings\.weight .* take layer_decay=1"):
        get_layer_groups(model, 1.0, 0.8, 0.0)
    assert len(get_layer_groups(model, 1.0, 1.0, 0.0)) == 2


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")  # peft asks by the old name
def test_adapters_have_one_rate_or_none():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(make_electra(2), LoraConfig(target_modules=["query"], modules_to_save=["classifier"]))
    with pytest.raises(ValueError, match="with adapters, take layer_decay=1"):
        get_layer_groups(model, 1e-3, 0.8, 0.0)
    rates = rates_by_name(model, get_layer_groups(model, 1e-3, 1.0, 0.0))
    assert rates.keys() == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert any("lora_A" in name for name in rates)


@pytest.mark.parametrize("layer_decay", [0.0, -0.1, 1.01, float("nan")])
def test_a_decay_out_of_range_is_refused(layer_decay):
    with pytest.raises(ValueError, match="must be above 0, and at most 1"):
        get_layer_groups(nn.Linear(2, 2), 1e-3, layer_decay, 0.0)


def test_an_optimizer_moves_each_depth_by_its_rate():
    model = make_electra(2)
    optimizer = ElectraAdamW(get_layer_groups(model, 1e-3, 0.5, 0.0), lr=7.0, bias_correction=True)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    # The first step of a corrected Adam is the learning rate itself.
    for name, share in (
        ("classifier.out_proj.weight", 1.0),
        ("electra.encoder.layer.1.output.dense.weight", 0.5),
        ("electra.encoder.layer.0.attention.self.query.bias", 0.25),
        ("electra.embeddings.position_embeddings.weight", 0.125),
    ):
        moved = before[name] - model.get_parameter(name)
        torch.testing.assert_close(moved, torch.full_like(moved, 1e-3 * share), rtol=1e-3, atol=0)
