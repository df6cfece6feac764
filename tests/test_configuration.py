import pytest
from transformers import AutoConfig, BartConfig, ElectraConfig, GPT2Config, MPNetConfig, ViTConfig

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
MAIN, TWO, REWARD = "discriminator_config", {"generator": "two_tower"}, {"generator_objective": "adversarial"}
BERT, MPNET = {MAIN: tiny_family_config("bert")}, {MAIN: MPNetConfig(vocab_size=60)}
# Each with what it does not go with.
PAIRS = [
    ({"objective": "electric"}, "generator='masked_lm': it needs 'two_tower'"),
    (TWO | {"sharing": "gdes"}, "sharing='gdes': it needs 'embeddings'"),
    (TWO | {"objective": "electric", "temperature": 0.5}, "temperature=0.5: it needs 1.0"),
    (TWO | {"objective": "replace_mlm"}, "objective='replace_mlm': it needs 'rtd' or 'rtd_masked_only' or 'electric'"),
    (REWARD | {"objective": "electric"}, "generator='masked_lm': it needs 'two_tower'"),
    (REWARD | {"objective": "replace_mlm"}, "objective='replace_mlm': it needs 'rtd' or 'rtd_masked_only'"),
    (REWARD | {"disallow_correct": True}, "disallow_correct=True: it needs False"),
    (REWARD | {"freeze_generator": True, "sharing": "none"}, "freeze_generator=True: it needs False"),
    (REWARD | {"sampling_dropout": False}, "sampling_dropout=False: it needs True"),
    (TWO | {"sampling_dropout": False}, "sampling_dropout=False: it needs True"),
    (REWARD | {"generator": "bigram"}, "generator='bigram': it needs 'masked_lm'"),
    ({"objective": "replace_mlm", "sharing": "gdes"}, "objective='replace_mlm': it needs 'rtd' or"),
    ({"objective": "replace_mlm", "confusions": {"share": 0.1}}, "objective='replace_mlm': it needs 'rtd' or"),
    ({"freeze_generator": True}, "sharing='embeddings': it needs 'none'"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings=False: it needs True"),
    ({"temperature_start": 2}, "temperature_start=2: it needs None"),
    ({"generator": "uniform", "temperature": 0.5}, "temperature=0.5: it needs 1.0"),
    ({"objective": "mlm", "generator": "uniform"}, "generator='uniform': it needs 'masked_lm'"),
    ({"objective": "mlm", "sharing": "word"}, "sharing='word': it needs 'none'"),
]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *((options, f"does not go with {message}") for options, message in PAIRS),
        ({"temperature": -1.0}, "temperature is -1.0: it must be at least 0"),
        ({"generator_weight": float("inf")}, "generator_weight is inf"),
        ({"mask_probability": 15}, "mask_probability is 15: .* below 1"),
        *(({"mask_probability": each}, "must be above 0 and below 1") for each in (0.0, 1.0)),
        ({"temprature": 1.0}, "no option 'temprature'. Did you mean 'temperature'"),
        ({"size": "small", "hiden_size": 3}, "Did you mean 'hidden_size'"),
        ({"size": "medium"}, "no size 'medium'"),
        ({"objective": "rdt"}, "no objective='rdt'. Known are: 'rtd', 'rtd_masked_only', 'replace_mlm', 'all_tok"),
        ({"temperature_schedule": "cosine"}, "There is no temperature_schedule='cosine'.* 'linear'"),
        ({"temperature_schedule": "exponential", "temperature_decay": 0}, "temperature_decay is 0: it must be"),
        (LINEAR | {"temperature_start": float("inf")}, "temperature_start is inf: it must be a finite"),
        (LINEAR | {"temperature_start": 0.5}, "must fall .*start=0.5 to temperature=1"),
        (LINEAR | {"temperature": 0}, "stay above 0, .*to temperature=0"),
        ({"objective": "mlm", "generator_config": TOWER}, "'mlm' has no generator network: leave generator_config"),
        ({"size": "small", "objective": "mlm", "generator_hidden_size": 0.5}, "leave .* .or generator_hidden_size"),
        ({"size": "small", "generator_hidden_size": 0.0}, "cannot be built"),
        ({"size": "small", "sharing": "all", "generator_hidden_size": 0.5}, "'all' needs the same hidden_size"),
        ({"generator_config": {"vocab_size": 10}, MAIN: {"vocab_size": 11}}, "the same vocab_size .* 10 .* 11"),
        ({"generator_config": {"embedding_size": 8}}, "'embeddings' needs the same embedding_size in both towers"),
        ({"generator_config": {"model_type": "nonsense"}}, "no model_type 'nonsense'"),
        # Encoders of other families.
        ({MAIN: {"model_type": "tapas"}}, "no model of the family 'tapas' that classifies tokens. Take"),
        *(({MAIN: each()}, "no encoder of the family '.*' that predicts masked") for each in (ViTConfig, BartConfig)),
        ({MAIN: GPT2Config(), "generator": "uniform"}, "no encoder of the family 'gpt2'"),
        (BERT | {"generator_config": WIDE}, "the same hidden_size in both towers, but the generator has 48 and .* 32"),
        (BERT | {"generator_config": WIDE, "sharing": "none"}, "at most 32, or freeze it"),
        (BERT | TWO, "generator='two_tower' is for the families electra, and the .* is 'bert'"),
        (MPNET | {"objective": "all_tokens_mlm"}, "'all_tokens_mlm' is for the families bert, .* is 'mpnet'"),
    ],
)
def test_combinations_that_make_no_sense_are_refused_with_the_reason(options, message):
    with pytest.raises(ValueError, match=message):
        (ElectraRTDConfig.from_size if "size" in options else ElectraRTDConfig)(**options)


def test_combinations_are_checked_again_where_a_model_is_made():
    config = tiny_config()
    config.freeze_generator = True
    with pytest.raises(ValueError, match="freeze_generator=True does not go with"):
        ElectraForRTDPretraining(config)


def test_a_named_size_needs_no_fractions_where_there_is_no_second_network():
    assert ElectraRTDConfig.from_size("small", objective="mlm").generator_config is None
    assert ElectraRTDConfig.from_size("small", generator="uniform").sharing == "none"
    alike = ElectraRTDConfig.from_size("small", sharing="all")
    assert alike.generator_config.to_dict() == alike.discriminator_config.to_dict()
