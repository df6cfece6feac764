import pytest
from transformers import BartConfig, ElectraConfig, GPT2Config, MPNetConfig, ViTConfig

from hf_electra_rtd import ElectraForRTDPretraining, ElectraRTDConfig
from tests.conftest import tiny_config
from tests.families_for_tests import tiny_family_config


def test_a_changed_configuration_keeps_what_still_applies():
    config = tiny_config(temperature=0.5, discriminator_weight=20.0)
    same, other, alone = (config.changed(objective=name) for name in ("rtd", "replace_mlm", "mlm"))
    assert same.to_dict() == config.to_dict()
    assert (other.discriminator_weight, other.temperature) == (1.0, 0.5)
    assert other.generator_config.to_dict() == config.generator_config.to_dict()
    assert (alone.generator_config, alone.sharing, alone.temperature) == (None, "none", 1.0)


def test_wrapping_a_towers_configuration_leaves_it_alone_and_leaks_no_path():
    tower = ElectraConfig(vocab_size=50, name_or_path="/home/someone/secret")
    tower._attn_implementation = "sdpa"
    config = ElectraRTDConfig(discriminator_config=tower)
    assert tower._attn_implementation == "sdpa"
    assert tower.use_cache
    assert "secret" not in config.to_json_string()


# ---- Combinations that make no sense ----

TOWER = {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 1, "num_hidden_layers": 2}
WIDE = tiny_family_config("bert", hidden_size=48)
MAIN = "discriminator_config"
TWO = {"generator": "two_tower"}
BERT = {MAIN: tiny_family_config("bert")}
MPNET = {MAIN: MPNetConfig(vocab_size=60)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TWO | {"sharing": "gdes"}, "generator.*sharing"),
        ({"freeze_generator": True}, "freeze_generator.*sharing"),
        ({"generator": "uniform", "temperature": 0.5}, "temperature"),
        ({"objective": "mlm", "generator": "uniform"}, "generator"),
        ({"objective": "mlm", "sharing": "word"}, "sharing"),
        ({"temperature": -1.0}, "temperature"),
        ({"mask_probability": 0.0}, "mask_probability"),
        ({"temprature": 1.0}, "temprature.*temperature"),
        ({"size": "small", "hiden_size": 3}, "hidden_size"),
        ({"size": "medium"}, "medium"),
        ({"objective": "rdt"}, "objective.*rdt"),
        ({"objective": "mlm", "generator_config": TOWER}, "mlm.*generator_config"),
        ({"size": "small", "objective": "mlm", "generator_hidden_size": 0.5}, "generator_hidden_size"),
        ({"size": "small", "generator_hidden_size": 0.0}, "generator_hidden_size"),
        ({"size": "small", "sharing": "all", "generator_hidden_size": 0.5}, "all.*hidden_size"),
        ({"generator_config": {"vocab_size": 10}, MAIN: {"vocab_size": 11}}, "vocab_size.* 10 .* 11"),
        ({"generator_config": {"embedding_size": 8}}, "embeddings.*embedding_size"),
        ({"generator_config": {"model_type": "nonsense"}}, "nonsense"),
        # Encoders of other families.
        ({MAIN: {"model_type": "tapas"}}, "tapas"),
        ({MAIN: ViTConfig()}, "vit"),
        ({MAIN: BartConfig()}, "bart"),
        ({MAIN: GPT2Config(), "generator": "uniform"}, "gpt2"),
        (BERT | {"generator_config": WIDE}, "hidden_size.* 48 .* 32"),
        (BERT | {"generator_config": WIDE, "sharing": "none"}, "32.*freeze_generator"),
        (BERT | TWO, "two_tower.*bert"),
        (MPNET | {"objective": "all_tokens_mlm"}, "all_tokens_mlm.*mpnet"),
    ],
)
def test_combinations_that_make_no_sense_are_refused_with_the_reason(options, message):
    with pytest.raises(ValueError, match=message):
        (ElectraRTDConfig.from_size if "size" in options else ElectraRTDConfig)(**options)


def test_combinations_are_checked_again_where_a_model_is_made():
    config = tiny_config()
    config.freeze_generator = True
    with pytest.raises(ValueError, match="freeze_generator"):
        ElectraForRTDPretraining(config)


def test_a_named_size_needs_no_fractions_where_there_is_no_second_network():
    assert ElectraRTDConfig.from_size("small", objective="mlm").generator_config is None
    assert ElectraRTDConfig.from_size("small", generator="uniform").sharing == "none"
    alike = ElectraRTDConfig.from_size("small", sharing="all")
    assert alike.generator_config.to_dict() == alike.discriminator_config.to_dict()
