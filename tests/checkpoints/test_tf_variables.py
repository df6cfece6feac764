import numpy as np
import pytest

from hf_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.pair.original_checkpoints import OVERRIDES, config_from_hparams, model_from_variables
from tests.recordings import Recording


def test_everything_missing_left_over_and_misshapen_is_listed_but_slots_of_the_optimizer_are_ignored():
    hparams, variables = Recording("small_shared").hparams, Recording("small_shared").start_variables
    slots = {f"{name}/{slot}": np.zeros(1) for name in variables for slot in ("adam_m", "adam_v")}
    model_from_variables(config_from_hparams(hparams), variables | slots)
    missing = [name for name in variables if "layer_1/attention/self" in name]
    foreign = {"cls/kernel": np.zeros((3, 4)), "electra/encoder/layer_3/output/dense/bias": np.zeros(8)}
    damaged = {name: value for name, value in variables.items() if name not in missing} | foreign
    with pytest.raises(ValueError, match="does not fit the hparams") as raised:
        model_from_variables(config_from_hparams({**hparams, "vocab_size": 401}), damaged | slots)
    told = str(raised.value)
    assert f"missing variables ({len(missing)}):" in told
    assert "variables left over (2):" in told
    assert "electra/embeddings/word_embeddings is [400, 32], expected [401, 32]" in told
    for name in (*missing, *foreign):
        assert f"\n  {name}" in told
    # The message shows a kernel's shape in the file, not that of the transposed parameter.
    told = r"generator/encoder/layer_0/intermediate/dense/kernel is \[16, 64\], expected \[32, 128\]"
    with pytest.raises(ValueError, match=told):
        model_from_variables(config_from_hparams({**hparams, "generator_hidden_size": 0.5}), variables)


# ---- hparams ----


# The released models. The widths of their generators are from the original's README.md and the paper's Table 6.
RELEASED = {
    "small": {"model_size": "small"},
    "small++": {"model_size": "small", "generator_hidden_size": 1.0},
    "base": {"model_size": "base", "generator_hidden_size": 0.33333},
    "large": {"model_size": "large"},
}


@pytest.mark.parametrize("size", RELEASED)
def test_named_sizes_are_the_released_ones_by_the_originals_formulas(size):
    assert config_from_hparams(RELEASED[size]).to_dict() == ElectraRTDConfig.from_size(size).to_dict()


SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "embedding_size")


@pytest.mark.parametrize(
    ("hparams", "discriminator", "generator"),
    [
        ({}, (256, 12, 4, 1024, 128), (64, 12, 1, 256, 128)),
        ({"embedding_size": None}, (256, 12, 4, 1024, 256), (64, 12, 1, 256, 256)),
        ({"embedding_size": 64}, (256, 12, 4, 1024, 64), (64, 12, 1, 256, 64)),
        ({"model_size": "base"}, (768, 12, 12, 3072, 768), (192, 12, 3, 768, 768)),
        ({"model_size": "base", "hidden_size": 512}, (512, 12, 8, 2048, 512), (128, 12, 2, 512, 512)),
        ({"hidden_size": 320, "num_hidden_layers": 5}, (320, 5, 5, 1280, 128), (80, 5, 1, 320, 128)),
        (
            {"num_attention_heads": 8, "intermediate_size": 96, "generator_layers": 0.4},
            (256, 12, 8, 96, 128),
            (64, 5, 1, 256, 128),
        ),
    ],
)
def test_sizes_follow_the_model_size_and_the_width_unless_they_are_given(hparams, discriminator, generator):
    overrides = {name: value for name, value in hparams.items() if name in OVERRIDES}
    others = {name: value for name, value in hparams.items() if name not in OVERRIDES}
    towers = config_from_hparams({**others, "model_hparam_overrides": overrides}).towers
    for name, sizes in (("discriminator", discriminator), ("generator", generator)):
        assert tuple(getattr(towers[name], size) for size in SIZES) == sizes


def test_what_the_original_ignores_is_left_out():
    sampling = {"temperature": 2.0, "disallow_correct": True}
    assert config_from_hparams({**sampling, "electra_objective": False, "gen_weight": 2.0}).discriminator_weight == 2.0
    assert config_from_hparams({**sampling, "uniform_generator": True}).disallow_correct
    config = config_from_hparams({**sampling, "untied_generator": False, "untied_generator_embeddings": True})
    assert (config.temperature, config.sharing) == (2.0, "all")


@pytest.mark.parametrize(
    ("hparams", "message"),
    [
        ({"generator_size": 0.5}, "no option 'generator_size'. Did you mean 'generator_hidden_size'"),
        ({"foo": 1}, "no option 'foo'"),
        ({"model_hparam_overrides": {"embedding_size": 64}}, "model_hparam_overrides has no option 'embedding_size'"),
        ({"model_size": "tiny"}, "model_size: .*'tiny'"),
        ({"electric_objective": True}, "electric.*two_tower"),
        ({"electric_objective": True, "uniform_generator": True}, "electric.*two_tower"),
        ({"two_tower_generator": True, "untied_generator_embeddings": True}, "does not go with sharing='none'"),
        ({"model_hparam_overrides": {"hidden_act": "relu"}}, "no other hidden_act than 'gelu'"),
        ({"generator_layers": 0.01}, "cannot be built"),
    ],
)
def test_hparams_that_cannot_be_converted(hparams, message):
    with pytest.raises(ValueError, match=message):
        config_from_hparams(hparams)
