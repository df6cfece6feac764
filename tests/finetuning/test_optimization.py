import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    ElectraForMultipleChoice,
    ElectraForQuestionAnswering,
    ElectraForSequenceClassification,
    ModernBertConfig,
    XLMConfig,
)

from hf_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.finetuning.optimization import check_layers, guess_size, layerwise_groups
from hf_electra_rtd.training.optimization import ElectraAdamW


SIZES = {
    **{"vocab_size": 10, "hidden_size": 16, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "intermediate_size": 16},
}


def make_electra(num_layers, model_class=ElectraForSequenceClassification):
    sizes = {**SIZES, "num_hidden_layers": num_layers, "embedding_size": 8, "max_position_embeddings": 8}
    return model_class(ElectraConfig(**sizes))


def rates_by_name(model, groups):
    """The rate of each parameter; fails where one is in two groups."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    rates = [(names[id(parameter)], group["lr"]) for group in groups for parameter in group["params"]]
    assert len(dict(rates)) == len(rates)
    return dict(rates)


def original_rate(name, learning_rate, decay, num_layers):
    """`_get_layer_lrs` of google-research/electra, and its look-up by part of a name, with transformers' names."""
    depths = {".embeddings.": 0, ".embeddings_project.": 0, "classifier.": num_layers + 2}
    depths |= {f"encoder.layer.{layer}.": layer + 1 for layer in range(num_layers)}
    (found,) = (depth for part, depth in depths.items() if part in name)
    return learning_rate * decay ** (num_layers + 2 - found)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([1, 2, 3, 5, 12]), st.floats(0.1, 0.99), st.floats(1e-6, 1e-2))
def test_off_by_one_is_the_formula_of_the_original_and_the_default_decays_once_less(num_layers, decay, learning_rate):
    model = make_electra(num_layers)
    for off_by_one in (True, False):
        rates = rates_by_name(model, layerwise_groups(model, learning_rate, decay, 0.0, off_by_one=off_by_one))
        assert rates.keys() == dict(model.named_parameters()).keys()
        for name, rate in rates.items():
            wanted = original_rate(name, learning_rate, decay, num_layers)
            # The original decays everything but the head once more.
            wanted /= 1 if off_by_one or "classifier." in name else decay
            assert rate == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("model_class", [ElectraForQuestionAnswering, ElectraForMultipleChoice])
def test_the_head_of_every_task_has_the_full_rate_and_comes_first(model_class):
    model = make_electra(2, model_class)
    groups = layerwise_groups(model, 0.5, 0.8, 0.01)
    heads = {name for name, rate in rates_by_name(model, groups).items() if rate == 0.5}
    assert heads == {name for name, _ in model.named_parameters() if not name.startswith("electra.")}
    assert [group["lr"] for group in groups] == sorted((group["lr"] for group in groups), reverse=True)


def test_biases_and_layer_norms_have_no_weight_decay():
    model = make_electra(2)
    groups = layerwise_groups(model, 1e-3, 0.8, 0.01)
    decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
    assert {group["weight_decay"] for group in groups} == {0.0, 0.01}
    for name, parameter in model.named_parameters():
        assert (id(parameter) in decayed) == (not ("LayerNorm" in name or name.endswith("bias"))), name


def test_frozen_parameters_are_left_out_and_do_not_change_the_depths():
    model = make_electra(3)
    whole = rates_by_name(model, layerwise_groups(model, 1.0, 0.8, 0.0))
    model.electra.encoder.layer[2].requires_grad_(False)
    model.electra.embeddings.requires_grad_(False)
    rates = rates_by_name(model, layerwise_groups(model, 1.0, 0.8, 0.0))
    assert rates == {n: rate for n, rate in whole.items() if "layer.2." not in n and ".embeddings." not in n}


def test_without_decay_there_are_two_groups_with_one_rate():
    groups = layerwise_groups(make_electra(2), 3e-4, 1.0, 0.01, off_by_one=True)
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(3e-4, 0.01), (3e-4, 0.0)]


RELATIVE = {"relative_attention": True, "position_buckets": 4, "pos_att_type": "p2c|c2p"}


@pytest.mark.parametrize(
    ("config", "depths"),
    [
        (
            BertConfig(**SIZES),
            {"classifier.weight": 0, "bert.pooler.dense.weight": 0, "bert.encoder.layer.1.output.dense.bias": 1}
            | {"bert.encoder.layer.0.output.dense.bias": 2, "bert.embeddings.LayerNorm.weight": 3},
        ),
        (
            DistilBertConfig(vocab_size=10, dim=16, n_layers=2, n_heads=2, hidden_dim=16),
            {"pre_classifier.weight": 0, "distilbert.transformer.layer.0.ffn.lin1.weight": 2},
        ),
        (
            DebertaV2Config(**SIZES, **RELATIVE),
            {"deberta.encoder.layer.1.output.dense.bias": 1, "deberta.encoder.rel_embeddings.weight": 3},
        ),
        (
            ModernBertConfig(**SIZES, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2),
            {"head.dense.weight": 0, "model.final_norm.weight": 0, "model.layers.1.mlp.Wi.weight": 1}
            | {"model.layers.0.mlp.Wi.weight": 2, "model.embeddings.norm.weight": 3},
        ),
        (
            XLMConfig(vocab_size=10, emb_dim=16, n_layers=2, n_heads=2, max_position_embeddings=8),
            {"transformer.attentions.0.q_lin.weight": 2, "transformer.ffns.1.lin1.weight": 1}
            | {"transformer.embeddings.weight": 3},
        ),
    ],
    ids=lambda value: getattr(value, "model_type", ""),
)
def test_depths_are_found_in_any_encoder(config, depths):
    check_layers(config)
    model = AutoModelForSequenceClassification.from_config(config)
    rates = rates_by_name(model, layerwise_groups(model, 1.0, 0.5, 0.0))
    assert rates.keys() == dict(model.named_parameters()).keys()
    assert {name: rates[name] for name in depths} == {name: 0.5**depth for name, depth in depths.items()}


def test_an_optimizer_moves_each_depth_by_its_rate():
    model = make_electra(2)
    optimizer = ElectraAdamW(layerwise_groups(model, 1e-3, 0.5, 0.0), lr=7.0, bias_correction=True)
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


LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}


@pytest.mark.parametrize(
    ("config", "size", "millions"),
    [
        *((ElectraRTDConfig.from_size(size).discriminator_config, size, None) for size in ("tiny", "small", "base")),
        (ElectraConfig(hidden_size=256, num_hidden_layers=24), "small", None),  # the Chinese small-ex
        (BertConfig(), "base", None),
        (BertConfig(**LARGE), "large", None),
        # BERT-tiny and DistilBERT as published; BERT-base has 109.5 million, and 7.09 million a layer.
        (BertConfig(**{**SIZES, "vocab_size": 30522, "hidden_size": 128, "intermediate_size": 512}), "small", 4.4),
        (DistilBertConfig(), "base", 66.4),
        (BertConfig(num_hidden_layers=24), "large", 194.5),
    ],
)
def test_width_and_depth_tell_the_size_or_else_the_parameters_which_are_logged(config, size, millions, caplog):
    caplog.set_level(logging.INFO)
    assert guess_size(config) == size
    told = [f"{millions} million parameters, the recipe of {size}"] if millions else []
    assert [text in message for text, message in zip(told, caplog.messages, strict=True)] == [True] * len(told)
