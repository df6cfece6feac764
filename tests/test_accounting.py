import pytest
import torch
from transformers import CONFIG_MAPPING

from hf_electra_rtd import ElectraForRTDPretraining, ElectraRTDConfig
from hf_electra_rtd.base import accounting
from hf_electra_rtd.base.accounting import count_parameters, model_flops
from tests.conftest import VOCABULARY, tiny_config
from tests.families_for_tests import tiny_family_config


def counted_products(model, batch):
    """The operations of the matrix products in one call, counted module by module: those of the generator and the
    others."""
    counts = {"generator": 0, "main": 0}

    def count(where):
        def hook(module, inputs, output):
            rows = inputs[0].numel() // inputs[0].shape[-1]
            counts[where] += 2 * rows * module.in_features * module.out_features

        return hook

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(count("generator" if name.startswith("generator") else "main"))
    model(**batch)
    rows, length = batch["input_ids"].shape
    for name, config in model.config.towers.items():
        attention = rows * config.num_hidden_layers * 2 * 2 * length * length * config.hidden_size  # scores, averages
        counts["generator" if name == "generator" else "main"] += attention
    return counts


@pytest.mark.parametrize(
    ("options", "passes"),  # passes of the generator; backward counts as two
    [
        ({}, 3),
        ({"objective": "rtd_masked_only"}, 3),
        ({"objective": "replace_mlm"}, 3),
        ({"objective": "all_tokens_mlm"}, 3),
        ({"objective": "mlm"}, 0),
        ({"generator": "uniform"}, 0),
        ({"sharing": "all"}, 3),
        ({"sharing": "gdes"}, 3),
        ({"sharing": "none", "freeze_generator": True}, 1),
        ({"family": "bert"}, 3),
        ({"family": "modernbert", "objective": "all_tokens_mlm"}, 3),
    ],
)
def test_model_flops_are_three_forward_passes_of_matrix_products_counted_from_the_modules(batch, options, passes):
    if family := options.get("family"):
        main = tiny_family_config(family, vocab_size=len(VOCABULARY))
        config = ElectraRTDConfig(discriminator_config=main, objective=options.get("objective", "rtd"))
    else:
        config = tiny_config(**options)
    model = ElectraForRTDPretraining(config).eval()
    counts = counted_products(model, batch)
    rows, length = batch["input_ids"].shape
    flops = model_flops(model.config, rows, length, batch["labels"].shape[1])
    assert flops == passes * counts["generator"] + 3 * counts["main"]


@pytest.mark.parametrize(
    ("options", "shared"),
    [
        ({"sharing": "none"}, 0),
        ({"sharing": "embeddings"}, 55 * 16 + 64 * 16 + 2 * 16 + 16 + 16),
        ({"objective": "mlm"}, 0),
        ({"objective": "all_tokens_mlm", "sharing": "word"}, 55 * 16),
    ],
)
def test_shared_parameters_are_counted_once(options, shared):
    counts = count_parameters(ElectraForRTDPretraining(tiny_config(**options)))
    assert counts["total"] == counts["generator"] + counts["discriminator"] + counts["head"] - shared
    assert (counts["generator"] > 0) == (options.get("objective") != "mlm")
    assert counts["head"] == (32 * 32 + 32 + 32 + 1 if options.get("objective") == "all_tokens_mlm" else 0)


# ---- Other families (width 32, feed-forward width 64, 2 layers, 120 tokens) ----


@pytest.mark.parametrize("name", accounting._COUNTED)
def test_counting_the_stock_model_gives_the_products_of_the_formulas(name):
    config = tiny_family_config(name)
    encoder, head = accounting._count(config, "MaskedLM", 20)
    assert encoder == accounting._encoder(config, 20)
    assert head == 20 * accounting._masked_lm_head(config, config.hidden_size)


MODERNBERT = 2 * 20 * (8 * 32**2 + 6 * 32 * 64 + 4 * 20 * 32)  # feed-forward: gate, value, output
BUCKETS = 2 * (2 * 2 * 8) * 32  # every query and every key with 2 * 8 relative positions
DEBERTA = 2 * 20 * (8 * 32**2 + 4 * 32 * 64 + 4 * 20 * 32 + BUCKETS)
PREDICTED = 2 * 32 * (32 + 120)  # per token


@pytest.mark.parametrize(
    ("name", "options", "encoder", "binary"),
    [
        ("modernbert", {}, MODERNBERT, 2 * 32 * 32 + 2 * 2 * 32),
        ("deberta-v2", {"conv_kernel_size": 0}, DEBERTA, 2 * 2 * 32),
        ("xlm", {}, 2 * 20 * (8 * 32**2 + 4 * 32 * 128 + 4 * 20 * 32), 2 * 2 * 32),  # its code reads values of tensors
    ],
)
def test_other_families_are_counted_product_by_product(name, options, encoder, binary):
    made = {"emb_dim": 32, "n_layers": 2, "n_heads": 2, "vocab_size": 120}
    config = CONFIG_MAPPING[name](**made) if name == "xlm" else tiny_family_config(name, **options)
    state = torch.get_rng_state()
    counted, head = accounting._count(config, "MaskedLM", 20)
    assert (counted, head) == (encoder, 20 * (2 * 32 * 120 if name == "xlm" else PREDICTED))
    assert accounting._count(config, "TokenClassification", 8)[1] == 8 * binary
    assert torch.equal(torch.get_rng_state(), state)  # counting draws no random numbers


def test_a_frozen_generator_of_another_family_costs_its_forward_pass():
    main = tiny_family_config("electra")
    generator = tiny_family_config("modernbert")
    options = {"sharing": "none", "freeze_generator": True}
    config = ElectraRTDConfig(generator_config=generator, discriminator_config=main, **options)
    alone = config.changed(generator="uniform", freeze_generator=False)
    assert model_flops(config, 4, 20, 5) == model_flops(alone, 4, 20, 5) + 4 * (MODERNBERT + 5 * PREDICTED)
