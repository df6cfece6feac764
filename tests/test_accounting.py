import pytest
import torch

from hf_electra_rtd import ElectraForRTDPretraining, ElectraRTDConfig
from hf_electra_rtd.accounting import count_parameters, model_flops, paper_flops
from tests.conftest import tiny_config


# What google-research/electra flops_computation.py prints for `electra_small`, `electra_base` and `electra_400k`.
@pytest.mark.parametrize(
    ("size", "rows", "length", "printed"),
    [
        ("small", 128 * 1_000_000, 128, 1294369011712000000.0),
        ("base", 256 * 766_000, 512, 6.425773154005811e19),
        ("large", 2048 * 400_000, 512, 7.118892517818368e20),
    ],
)
def test_the_papers_convention_gives_the_papers_scripts_numbers(size, rows, length, printed):
    config = ElectraRTDConfig.from_size(size)
    assert paper_flops(config, rows, length) == pytest.approx(printed)


def counted_products(model, batch):
    """Matrix products of one call, counted from the modules: of the generator and of everything else."""
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
    ("options", "passes"),  # of the generator, forward and backward
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
        ({"sampling_dropout": False, "hidden_dropout_prob": 0.1}, 4),  # a second pass, for the samples
        ({"sampling_dropout": False}, 3),  # without dropout both passes would be the same
    ],
)
def test_model_flops_are_three_forward_passes_of_matrix_products_counted_from_the_modules(batch, options, passes):
    model = ElectraForRTDPretraining(tiny_config(**options)).eval()
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
