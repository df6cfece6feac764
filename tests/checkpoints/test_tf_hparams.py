import json

import pytest

from hf_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.checkpoints.tf_hparams import OVERRIDES, SIZE_HPARAMS, config_from_hparams, read_hparams
from tests.recordings import Recording


def sizes(config):
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "embedding_size")
    return tuple(getattr(config, name) for name in names)


@pytest.mark.parametrize("size", SIZE_HPARAMS)
def test_named_sizes_are_the_released_ones_by_the_originals_formulas(size):
    released, named = config_from_hparams(SIZE_HPARAMS[size]), ElectraRTDConfig.from_size(size)
    for name, tower in named.towers.items():
        assert sizes(released.towers[name]) == sizes(tower)
        assert {key: getattr(tower, key) for key in OVERRIDES} == {
            key: getattr(released.towers[name], key) for key in OVERRIDES
        }
    options = ("objective", "generator", "sharing", "generator_weight", "discriminator_weight", "temperature")
    assert [getattr(released, name) for name in options] == [getattr(named, name) for name in options]


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("small_shared", ("rtd", "masked_lm", "embeddings")),
        ("untied_embeddings", ("rtd", "masked_lm", "none")),
        ("all_tied", ("rtd", "masked_lm", "all")),
        ("uniform_generator", ("rtd", "uniform", "none")),
        ("mlm_only", ("mlm", "masked_lm", "none")),
    ],
)
def test_the_recorded_hparams_give_the_recorded_configurations(variant, expected):
    recorded = Recording(variant).config
    config = config_from_hparams(recorded["hparams"])
    assert (config.objective, config.generator, config.sharing) == expected
    towers = {"discriminator": config.discriminator_config}
    if variant in ("small_shared", "untied_embeddings"):
        towers["generator"] = config.generator_config
    for name, tower in towers.items():
        assert recorded[name].keys() == OVERRIDES.keys()
        assert {key: getattr(tower, key) for key in OVERRIDES} == recorded[name]


@pytest.mark.parametrize(
    ("hparams", "embedding_size"),
    [
        ({}, 128),
        ({"model_hparam_overrides": {"hidden_size": 512}}, 128),
        ({"embedding_size": None}, 256),
        ({"embedding_size": 64}, 64),
        ({"model_size": "base"}, 768),
        ({"model_size": "base", "model_hparam_overrides": {"hidden_size": 512}}, 512),
        ({"model_size": "base", "debug": True}, 144),
    ],
)
def test_size_of_the_embeddings(hparams, embedding_size):
    assert config_from_hparams(hparams).discriminator_config.embedding_size == embedding_size


def test_heads_and_feed_forward_follow_the_width_unless_overridden():
    overrides = {"hidden_size": 320, "num_hidden_layers": 5}
    assert sizes(config_from_hparams({"model_hparam_overrides": overrides}).discriminator_config)[:4] == (
        *(320, 5, 5),
        1280,
    )
    overrides |= {"num_attention_heads": 10, "intermediate_size": 96}
    config = config_from_hparams({"model_hparam_overrides": overrides, "generator_layers": 0.4})
    assert sizes(config.discriminator_config)[:4] == (320, 5, 10, 96)
    assert sizes(config.generator_config)[:4] == (80, 2, 1, 320)


def test_what_the_original_ignores_is_left_out():
    sampling = {"temperature": 2.0, "disallow_correct": True}
    assert config_from_hparams({**sampling, "electra_objective": False, "gen_weight": 2.0}).discriminator_weight == 2.0
    assert config_from_hparams({**sampling, "uniform_generator": True}).disallow_correct
    config = config_from_hparams({**sampling, "untied_generator": False, "untied_generator_embeddings": True})
    assert (config.temperature, config.sharing) == (2.0, "all")


@pytest.mark.parametrize(
    ("hparams", "message"),
    [
        ({"generator_size": 0.5}, "no hparam 'generator_size'. Did you mean 'generator_hidden_size'"),
        ({"foo": 1}, "no hparam 'foo'. Known names: .*debug"),
        ({"model_hparam_overrides": {"embedding_size": 64}}, "model_hparam_overrides cannot name 'embedding_size'"),
        ({"model_hparam_overrides": {"hidden_size": "64"}}, "hidden_size is '64': it must be of type int"),
        ({"untied_generator": "false"}, "untied_generator is 'false': it must be of type bool"),
        ({"generator_hidden_size": True}, "must be of type float or int"),
        ({"embedding_size": 1.5}, "must be of type int or null"),
        ({"model_size": "tiny"}, "no model_size 'tiny'. Known sizes: small, base, large"),
        ({"electric_objective": True}, "make Electric"),
        ({"two_tower_generator": True}, "make Electric"),
        ({"uniform_generator": True, "electra_objective": False}, "no variable to learn"),
        ({"model_hparam_overrides": {"hidden_act": "relu"}}, "hidden_act='relu': the masked-LM head"),
        ({"model_hparam_overrides": {"num_attention_heads": 3}}, "3 attention heads do not divide"),
        ({"generator_layers": 0.01}, "cannot be built"),
    ],
)
def test_hparams_that_cannot_be_converted(hparams, message):
    with pytest.raises(ValueError, match=message):
        config_from_hparams(hparams)


def test_hparams_from_a_file(tmp_path):
    path = tmp_path / "hparams.json"
    for content in ({"model_size": "base"}, {"hparams": {"model_size": "base"}, "steps": 6}):
        path.write_text(json.dumps(content))
        assert read_hparams(path) == {"model_size": "base"}
    for content, message in (("[1]", "must hold a mapping"), ("{", "cannot be read as JSON"), (None, "No such file")):
        path.unlink() if content is None else path.write_text(content)
        with pytest.raises(ValueError, match=message):
            read_hparams(path)
