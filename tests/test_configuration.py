import pytest
from transformers import AutoConfig, BartConfig, CLIPConfig, ElectraConfig, GPT2Config, MPNetConfig, ViTConfig

from hf_electra_rtd import ElectraForRTDPretraining, ElectraRTDConfig
from tests.conftest import tiny_config
from tests.families_for_tests import tiny_family_config


def test_overrides_reach_both_towers_and_the_pair():
    config = ElectraRTDConfig.from_size("small", vocab_size=1000, num_hidden_layers=6, temperature=0.7)
    for tower in config.towers.values():
        assert (tower.vocab_size, tower.num_hidden_layers) == (1000, 6)
    assert config.temperature == 0.7


def test_a_configuration_survives_saving(tmp_path):
    config = tiny_config(temperature=0.5, sharing="word", disallow_correct=True)
    config.save_pretrained(tmp_path)
    for loaded in (ElectraRTDConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        differing = {key for key, value in config.to_dict().items() if loaded.to_dict()[key] != value}
        assert differing <= {"_name_or_path"}


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
LINEAR, WIDE = {"temperature_schedule": "linear"}, tiny_family_config("bert", hidden_size=48)
MAIN = "discriminator_config"
BERT, MPNET = {MAIN: tiny_family_config("bert")}, {MAIN: MPNetConfig(vocab_size=60)}
# Beside the noise of two encoders, and beside a generator that learns from the discriminator.
WITH_NOISE = [
    ({"generator": "masked_lm"}, "'electric' needs the probability of every token, .*take generator='two_tower'"),
    ({"generator": "uniform", "sharing": "none"}, "generator='uniform' does not give: take generator='two_tower'"),
    ({"sharing": "gdes"}, "sharing='gdes' does not go with generator='two_tower'"),
    ({"sharing": "none", "objective": "rtd"}, "sharing='none' does not go with generator='two_tower'"),
    ({"sampling_dropout": False}, "sampling_dropout=False does not go with generator='two_tower'"),
    ({"temperature": 0.5}, "temperature=0.5 draws from another distribution than .*'electric' reckons with"),
    ({"disallow_correct": True}, "disallow_correct=True draws from another distribution"),
    ({"temperature_schedule": "linear"}, "temperature_schedule='linear' draws from another distribution"),
    ({"mask_probability": 1.0}, "mask_probability is 1.0: it must be above 0 and below 1"),
    ({"objective": "replace_mlm"}, "'two_tower' is for discriminators that detect, and with objective='repl"),
    ({"objective": "mlm"}, "generator='two_tower' needs a generator, and objective='mlm' has none"),
]
WITH_REWARD = [
    ({"objective": "replace_mlm"}, "needs a discriminator that detects, and with objective='replace_mlm'"),
    ({"temperature": 0.0}, r"temperature=0\.0 does not go with .*must come from the very softmax .*Take 1\.0"),
    ({"disallow_correct": True}, "disallow_correct=True does not go with"),
    ({"sampling_dropout": False}, "sampling_dropout=False does not go with"),
    ({"freeze_generator": True, "sharing": "none"}, "freeze_generator=True does not go with"),
    ({"generator": "bigram"}, "needs a generator network, and generator='bigram' has none"),
    ({"objective": "electric"}, "generator='two_tower', and .*='adversarial' generator='masked_lm': leave one"),
    ({"generator": "two_tower"}, "generator='two_tower' does not go with .*Take 'masked_lm'"),
    ({"generator_objective": "gan"}, "no generator_objective='gan'. Known are: 'mle', 'adversarial'"),
]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1.0}, "no option 'temprature'. Did you mean 'temperature'"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"tie_word_embeddings": False}, "sharing='none'"),
        ({"generator_config": {"vocab_size": 10}, "discriminator_config": {"vocab_size": 11}}, "10 tokens and the"),
        ({"objective": "rdt"}, "no objective='rdt'. Known are: 'rtd', 'rtd_masked_only', 'replace_mlm', 'all_tok"),
        ({"sharing": "some"}, "no sharing='some'. Known are: 'none', 'word', 'embeddings', 'all', 'gdes'"),
        ({"generator": "trigram"}, "no generator='trigram'. Known are: 'masked_lm', 'uniform', 'two_t"),
        ({"generator": "uniform", "generator_config": TOWER}, "'uniform' has no generator network: leave generator_"),
        ({"generator": "uniform", "temperature": 0.5}, "temperature=0.5 needs a generator network"),
        ({"generator": "uniform", "sharing": "gdes"}, "sharing='gdes' needs a generator network, and generator='unif"),
        ({"objective": "mlm", "generator": "uniform"}, "generator='uniform' needs a generator, and objective='mlm' h"),
        ({"objective": "mlm", "sharing": "gdes"}, "sharing='gdes' needs a generator network, and objective='mlm'"),
        ({"objective": "mlm", "disallow_correct": True}, "disallow_correct=True needs a generator, and"),
        ({"objective": "mlm", "generator_config": TOWER}, "'mlm' has no generator network: leave generator_config"),
        ({"objective": "replace_mlm", "sharing": "gdes"}, "sharing='gdes' is for discriminators"),
        ({"sharing": "all", "generator_config": TOWER}, "'all' needs the same hidden_size in both towers.* 64 .* 256"),
        ({"generator_config": {"embedding_size": 8}}, "'embeddings' needs the same embedding_size in both towers"),
        ({"generator_config": {"max_position_embeddings": 8}}, "needs the same max_position_embeddings"),
        ({"freeze_generator": True}, "freeze_generator=True would freeze what sharing='embeddings'"),
        ({"size": "medium"}, "no size 'medium'"),
        ({"size": "small", "hiden_size": 3}, "Did you mean 'hidden_size'"),
        ({"size": "small", "generator_hidden_size": 0.0}, "cannot be built"),
        ({"size": "small", "objective": "mlm", "generator_hidden_size": 0.5}, "leave .* .or generator_hidden_size"),
        ({"size": "small", "sharing": "all", "generator_hidden_size": 0.5}, "'all' needs the same hidden_size"),
        # The temperature along a run, and samples from files.
        ({"generator_config": {"model_type": "nonsense"}}, "no model_type 'nonsense'"),
        ({"temperature_schedule": "cosine"}, "There is no temperature_schedule='cosine'.* 'linear'"),
        ({"temperature_start": 2}, "temperature_start=2 does nothing with temperature_schedule='constant'"),
        (LINEAR | {"temperature_decay": 0.1}, "temperature_decay=0.1 does nothing"),
        (LINEAR | {"temperature_start": 0.5}, "must fall, .*start=0.5 to temperature=1"),
        (LINEAR | {"temperature": 0}, "must fall, .*to temperature=0"),
        ({"temperature_schedule": "exponential", "temperature_decay": 0}, "temperature_decay is 0: it must be"),
        (LINEAR | {"generator": "uniform"}, "temperature_schedule='linear' needs a gen"),
        ({"generator": "offline", "disallow_correct": True}, "disallow_correct=True needs a generator"),
        ({"generator": "offline", "temperature": 2.0}, "temperature=2.0 needs a generator network"),
        *(({"objective": "electric", "generator": "two_tower"} | each, message) for each, message in WITH_NOISE),
        *(({"generator_objective": "adversarial"} | each, message) for each, message in WITH_REWARD),
        # Encoders of other families.
        ({MAIN: ViTConfig()}, "no encoder of the family 'vit' that predicts masked tokens. Take"),
        ({MAIN: BartConfig()}, "no encoder of the family 'bart' that predicts masked tokens"),
        ({MAIN: GPT2Config(), "generator": "uniform"}, "no encoder of the family 'gpt2'"),
        ({MAIN: CLIPConfig()}, "no encoder of the family 'clip'"),
        (BERT | {"generator_config": tiny_family_config("bert", vocab_size=9)}, "9 tokens and the discriminator 120"),
        (BERT | {"generator_config": WIDE}, "the same hidden_size in both towers, but the generator has 48 and .* 32"),
        (BERT | {"generator_config": WIDE, "sharing": "none"}, "at most 32, or freeze it"),
        (BERT | {"generator": "two_tower"}, "is for towers of ELECTRA"),
        (MPNET | {"objective": "all_tokens_mlm"}, "'all_tokens_mlm' is for the families bert, .* is 'mpnet'"),
        (MPNET | {"sharing": "gdes"}, "sharing='gdes' is for the families"),
    ],
)
def test_combinations_that_make_no_sense_are_refused_with_the_reason(options, message):
    with pytest.raises(ValueError, match=message):
        (ElectraRTDConfig.from_size if "size" in options else ElectraRTDConfig)(**options)


def test_combinations_are_checked_again_where_a_model_is_made():
    config = tiny_config()
    config.freeze_generator = True
    with pytest.raises(ValueError, match="freeze_generator=True would freeze"):
        ElectraForRTDPretraining(config)


def test_a_named_size_needs_no_fractions_where_there_is_no_second_network():
    assert ElectraRTDConfig.from_size("small", objective="mlm").generator_config is None
    assert ElectraRTDConfig.from_size("small", generator="uniform").sharing == "none"
    alike = ElectraRTDConfig.from_size("small", sharing="all")
    assert alike.generator_config.to_dict() == alike.discriminator_config.to_dict()
