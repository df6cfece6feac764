import pytest
import torch

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.training.pair import ModelArguments, build_model
from tests.conftest import tiny_config


@pytest.mark.parametrize("given", ["generator", "discriminator"])
def test_one_tower_is_enough(tmp_path, tokenizer, given):
    pair = ElectraForRTDPretraining(tiny_config())
    pair.save_towers(tmp_path, tokenizer)
    built = build_model(ModelArguments(**{given: str(tmp_path / given)}), tokenizer, 32)
    tower, original = getattr(built, given), getattr(pair, given)
    for (name, parameter), (_, expected) in zip(tower.named_parameters(), original.named_parameters(), strict=True):
        assert torch.equal(parameter, expected), name
    other = built.generator if given == "discriminator" else built.discriminator
    words = other.get_input_embeddings().weight
    assert torch.equal(words, original.get_input_embeddings().weight)
    assert built.generator.config.embedding_size == built.discriminator.config.embedding_size == 16
    built(torch.tensor([[2, 10, 11, 3]]))


@pytest.mark.parametrize("sharing", ["all", "word", "embeddings", "gdes"])
def test_a_pretrained_generator_stays_what_it_is_whatever_is_shared(tmp_path, tokenizer, sharing):
    trained = ElectraForRTDPretraining(tiny_config(sharing="none", max_position_embeddings=96))
    trained.save_towers(tmp_path, tokenizer)
    built = build_model(ModelArguments(generator=str(tmp_path / "generator"), sharing=sharing), tokenizer, 32)
    ids = torch.tensor([[2, 10, 11, 3]])
    expected = trained.eval().generator(ids).logits
    torch.testing.assert_close(built.eval().generator(ids).logits, expected)


@pytest.mark.parametrize(
    "options",
    [
        {"generator_type": "uniform"},
        {"sharing": "gdes"},
        {"sharing": "all"},
        {"sharing": "none", "generator_layers": 0.5},
    ],
)
def test_a_discriminator_is_trained_on_with_another_generator(tmp_path, tokenizer, options):
    pair = ElectraForRTDPretraining(tiny_config(intermediate_size=128)).eval()
    pair.save_towers(tmp_path, tokenizer)
    given = ModelArguments(discriminator=str(tmp_path / "discriminator"), **options)
    built = build_model(given, tokenizer, 32).eval()
    ids = torch.tensor([[2, 21, 22, 3]])
    torch.testing.assert_close(built(ids).logits, pair(ids).logits)
    assert (built.generator is None) == ("generator_type" in options)
    if "generator_layers" in options:
        assert built.config.generator_config.num_hidden_layers == 1


def test_a_configuration_file_replaces_the_size_and_flags_win_over_it(tmp_path, tokenizer):
    tiny_config(temperature=0.3, sharing="word").save_pretrained(tmp_path)
    built = build_model(ModelArguments(model_config=str(tmp_path), sharing="embeddings"), tokenizer, 32)
    assert built.discriminator.config.hidden_size == 32
    assert (built.config.temperature, built.config.sharing) == (0.3, "embeddings")
    with pytest.raises(ValueError, match="temperature is -1"):
        build_model(ModelArguments(model_config=str(tmp_path), temperature=-1.0), tokenizer, 32)


@pytest.mark.parametrize(
    ("options", "row_length", "message"),
    [
        ({"vocab_size": 60}, 32, "60 tokens, the tokenizer 55"),
        ({}, 65, "64 positions, too few for rows of 65"),
    ],
)
def test_towers_that_do_not_fit_are_refused(tmp_path, tokenizer, options, row_length, message):
    tiny_config(**options).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=message):
        build_model(ModelArguments(model_config=str(tmp_path)), tokenizer, row_length)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_config": "x", "generator": "y"}, "cannot be joined with --generator"),
        ({"generator": "x", "discriminator": "y", "generator_hidden_size": 0.5}, "made anew"),
        ({"sharing": "some"}, "no sharing='some'"),
        ({"objective": "guess"}, "no objective='guess'"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused_at_once(options, message):
    with pytest.raises(ValueError, match=message):
        ModelArguments(**options)


@pytest.mark.parametrize("options", [{"objective": "mlm", "sharing": "gdes"}, {"freeze_generator": True}])
def test_combinations_that_make_no_sense_are_refused_before_anything_is_prepared(options):
    with pytest.raises(ValueError, match=r"gdes|freeze_generator"):
        ModelArguments(**options)


def test_a_generator_that_never_learnt_is_not_frozen(tokenizer):
    with pytest.raises(ValueError, match="never learnt"):
        build_model(ModelArguments(freeze_generator=True, sharing="none"), tokenizer, 32)


def test_the_second_stage_begins_with_the_generators_encoder_and_a_head_of_its_own(tmp_path, tokenizer):
    stage = ElectraForRTDPretraining(tiny_config(objective="mlm"))
    stage.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"at its end: .* has not ended"):
        build_model(ModelArguments(two_stage_from=str(tmp_path)), tokenizer, 32)
    stage.save_towers(tmp_path, tokenizer)
    pair = build_model(ModelArguments(two_stage_from=str(tmp_path)), tokenizer, 32)
    for name, tensor in stage.discriminator.state_dict().items():
        assert torch.equal(pair.generator.state_dict()[name], tensor)
        if name.startswith("electra."):
            assert torch.equal(pair.discriminator.state_dict()[name], tensor)
    assert {id(p) for p in pair.generator.parameters()}.isdisjoint(id(p) for p in pair.discriminator.parameters())
    ElectraForRTDPretraining(tiny_config()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="made with objective='rtd'"):
        build_model(ModelArguments(two_stage_from=str(tmp_path)), tokenizer, 32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_config": "x"}, "leave --model_config out"),
        ({"generator_hidden_size": 0.5}, "leave --generator_hidden_size out"),
        ({"sharing": "embeddings"}, "means sharing='none', not 'embeddings'"),
        ({"freeze_generator": False}, "means freeze_generator=True, not False"),
        ({"objective": "mlm"}, "has no generator"),
    ],
)
def test_what_a_second_stage_leaves_no_choice_about_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ModelArguments(two_stage_from="somewhere", **options)


@pytest.mark.parametrize("name", ["eager", "sdpa", "flex_attention"])
def test_the_attention_of_both_towers_is_the_one_that_is_named(tokenizer, name):
    pair = build_model(ModelArguments(size="tiny", attn_implementation=name), tokenizer, 32)
    for tower in pair.towers.values():
        layers = tower.electra.encoder.layer
        assert {layer.attention.self.config._attn_implementation for layer in layers} == {name}


@pytest.mark.parametrize("name", ["nonsense", "flash_attention_2"])
def test_an_attention_that_there_is_not_is_refused(tokenizer, name):
    with pytest.raises(ValueError, match=r"attn_implementation"):
        build_model(ModelArguments(size="tiny", attn_implementation=name), tokenizer, 32)
