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


def test_model_flops_are_three_forward_passes_of_matrix_products_counted_from_the_modules(batch):
    model = ElectraForRTDPretraining(tiny_config()).eval()
    counted = 0

    def count(module, inputs, output):
        nonlocal counted
        counted += 2 * inputs[0].numel() // inputs[0].shape[-1] * module.in_features * module.out_features

    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(count)
    model(**batch)
    rows, length = batch["input_ids"].shape
    for config in (model.config.generator_config, model.config.discriminator_config):
        counted += rows * config.num_hidden_layers * 2 * 2 * length * length * config.hidden_size  # scores, averages
    slots = batch["labels"].shape[1]
    assert model_flops(model.config, rows, length, slots) == 3 * counted


def test_flops_a_token_of_the_small_size():
    config = ElectraRTDConfig.from_size("small")
    flops = model_flops(config, 1, 128, 19)
    assert flops / 128 == pytest.approx(70.2e6, rel=1e-3)


def test_shared_parameters_are_counted_once():
    counts = count_parameters(ElectraForRTDPretraining(tiny_config(sharing="embeddings")))
    apart = count_parameters(ElectraForRTDPretraining(tiny_config(sharing="none")))
    assert apart.total == apart.generator + apart.discriminator
    shared = 55 * 16 + 64 * 16 + 2 * 16 + 16 + 16
    assert counts.total == counts.generator + counts.discriminator - shared
