"""Building the pair from flags."""

import pytest
import torch

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.base.cli import given_flags
from hf_electra_rtd.training.arguments import RTDTrainingArguments
from hf_electra_rtd.training.model import ModelArguments, build_model, recipe_defaults
from tests.conftest import tiny_config


ONE = [("discriminator", "embeddings"), *(("generator", name) for name in ("all", "word", "embeddings", "gdes"))]


@pytest.mark.parametrize(("given", "sharing"), [*ONE, ("both", "none")])
def test_one_pretrained_network_is_enough_and_stays_what_it_is(tmp_path, tokenizer, given, sharing):
    pair = ElectraForRTDPretraining(tiny_config(sharing="none", max_position_embeddings=96)).eval()
    pair.save_towers(tmp_path, tokenizer)
    sources = {name: str(tmp_path / name) for name in pair.towers if given in (name, "both")}
    built = build_model(ModelArguments(**sources, sharing=sharing), tokenizer, 32).eval()
    ids, given = torch.tensor([[2, 10, 11, 3]]), next(iter(sources))
    tower, original = getattr(built, given), getattr(pair, given)
    for (name, parameter), (_, expected) in zip(tower.named_parameters(), original.named_parameters(), strict=True):
        assert torch.equal(parameter, expected), name
    torch.testing.assert_close(tower(ids).logits, original(ids).logits)
    if sharing not in ("gdes", "none"):  # with gdes, the discriminator's table holds deltas
        for each in built.towers.values():
            assert torch.equal(each.get_input_embeddings().weight, original.get_input_embeddings().weight)
    assert built.generator.config.embedding_size == built.discriminator.config.embedding_size == 16
    built(ids)


OTHERS = ({"generator_type": "uniform"}, {"sharing": "gdes"}, {"sharing": "all"})


@pytest.mark.parametrize("options", [*OTHERS, {"sharing": "none", "generator_layers": 0.5}])
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


def test_a_named_size_has_the_dropout_and_the_scale_of_new_weights_that_are_given(tokenizer):
    torch.manual_seed(0)
    built = build_model(ModelArguments(size="tiny", dropout=0.2, initializer_range=0.5), tokenizer, 32)
    for tower in built.towers.values():
        assert tower.config.hidden_dropout_prob == tower.config.attention_probs_dropout_prob == 0.2
        layer = tower.electra.encoder.layer[0].output.dense
        assert layer.weight.std().item() == pytest.approx(0.5, rel=0.05)


def test_the_second_stage_begins_with_the_generators_encoder_and_a_head_of_its_own(tmp_path, tokenizer):
    stage = ElectraForRTDPretraining(tiny_config(objective="mlm"))
    stage.save_towers(tmp_path, tokenizer)
    place = str(tmp_path / "discriminator")
    pair = build_model(ModelArguments(backbone=place, generator=place, freeze_generator=True), tokenizer, 32)
    assert (pair.config.sharing, pair.config.freeze_generator) == ("none", True)
    for name, tensor in stage.discriminator.state_dict().items():
        assert torch.equal(pair.generator.state_dict()[name], tensor)
        if name.startswith("electra."):
            assert torch.equal(pair.discriminator.state_dict()[name], tensor)
    assert {id(p) for p in pair.generator.parameters()}.isdisjoint(id(p) for p in pair.discriminator.parameters())


@pytest.mark.parametrize("name", ["eager", "sdpa", "flex_attention"])
def test_the_attention_of_both_towers_is_the_one_that_is_named(tokenizer, name):
    pair = build_model(ModelArguments(size="tiny", attn_implementation=name), tokenizer, 32)
    for tower in pair.towers.values():
        layers = tower.electra.encoder.layer
        assert {layer.attention.self.config._attn_implementation for layer in layers} == {name}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], {"max_steps": 6000, "eval_steps": 400, "warmup_steps": 100}),
        (["--size", "small"], {"max_steps": 1_000_000, "learning_rate": 5e-4}),
        (["--max_steps", "50"], {"logging_steps": 5, "eval_steps": 10, "warmup_steps": 5}),
    ],
)
def test_the_recipe_follows_from_size_and_length(argv, expected):
    defaults, _ = recipe_defaults(given_flags((ModelArguments, RTDTrainingArguments), argv))
    assert defaults.items() >= expected.items()


def test_a_recipe_follows_the_length_in_epochs_and_what_learns_and_an_unknown_size_is_refused():
    types = (ModelArguments, RTDTrainingArguments)
    assert "max_steps" not in recipe_defaults(given_flags(types, ["--num_train_epochs", "2"]))[0]
    for flags, learns in (([], True), (["--objective", "mlm"], False), (["--freeze_generator", "True"], False)):
        recipe, _ = recipe_defaults(given_flags(types, ["--size", "mini", *flags]))
        assert ("generator_learning_rate" in recipe) == learns
    with pytest.raises(ValueError, match="huge"):
        recipe_defaults(given_flags(types, ["--size", "huge"]))
