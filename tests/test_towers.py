"""Native towers: exported from a pair, and joined into one."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import ElectraForMaskedLM, ElectraForPreTraining

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.pair.towers import load_tower
from tests.conftest import tiny_config


WEIGHTS, CONFIG = "model.safetensors", "config.json"


@pytest.fixture
def exported(model, tokenizer, tmp_path):
    model.save_towers(tmp_path, tokenizer)
    return tmp_path


def test_towers_can_be_models_and_tying_those_that_differ_is_said(batch, caplog):
    config = tiny_config()
    generator = ElectraForMaskedLM(config.generator_config)
    discriminator = ElectraForPreTraining(config.discriminator_config)
    weights = {name: tensor.clone() for name, tensor in discriminator.state_dict().items()}
    join = ElectraForRTDPretraining.from_generator_discriminator_pretrained
    pair = join(generator, discriminator, sharing="none")
    assert pair.discriminator is discriminator
    assert all(torch.equal(weights[name], tensor) for name, tensor in pair.discriminator.state_dict().items())
    pair(**batch).loss.backward()
    assert not caplog.text
    join(generator, discriminator)
    assert "replaces tensors of the generator" in caplog.text
    assert "embeddings.word_embeddings.weight" in caplog.text


def test_towers_that_do_not_fit_together_or_the_options_are_refused():
    config, mlm = tiny_config(), tiny_config(objective="mlm")
    generator = ElectraForMaskedLM(config.generator_config)
    discriminator = ElectraForPreTraining(config.discriminator_config)
    wider = ElectraForPreTraining(tiny_config(vocab_size=60).discriminator_config)
    main = ElectraForMaskedLM(mlm.discriminator_config)
    join = ElectraForRTDPretraining.from_generator_discriminator_pretrained
    for pair, options, message in (
        ((generator, generator), {}, "must be ElectraForPreTraining"),
        ((generator, wider), {}, "same vocab_size .* generator has 55 and the discriminator 60"),
        ((generator, discriminator), {"temprature": 0.2}, "no option temprature"),
        ((None, discriminator), {}, r"objective='rtd' .* needs a generator: give one"),
        ((main, main), {"objective": "mlm"}, r"objective='mlm' .* has none: give None"),
        ((main, discriminator), {"generator_type": "uniform"}, "with generator_type='uniform' has none"),
    ):
        with pytest.raises(ValueError, match=message):
            join(*pair, **options)
    assert join(None, discriminator, generator_type="uniform").config.generator == "uniform"
    assert join(None, main, objective="mlm").discriminator is main


# ---- Refusals, however a tower is loaded ----

NAME = "electra.encoder.layer.1.output.dense.weight"
FOREIGN = {f"adapter.{index:02}": torch.zeros(1) for index in range(12)}


def change_weights(directory, change):
    tensors = load_file(directory / WEIGHTS)
    change(tensors)
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def set_config(**values):
    def change(directory):
        config = json.loads((directory / CONFIG).read_text())
        (directory / CONFIG).write_text(json.dumps({**config, **values}))

    return change


def weights(change):
    return lambda directory: change_weights(directory, change)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (weights(lambda tensors: tensors.pop(NAME)), f"lacks tensors: {NAME}"),
        (weights(lambda tensors: tensors.update(FOREIGN)), r"unknown to .*: adapter\.00, .*adapter\.09 and 2 more"),
        (set_config(vocab_size=60), r"word_embeddings\.weight \(55, 16\), not \(60, 16\)"),
        (set_config(model_type="bert"), "is a model of type 'bert', not 'electra'"),
        (lambda path: (path / WEIGHTS).write_bytes(b"\x80\x04not safetensors"), "weights are damaged"),
        (lambda path: (path / WEIGHTS).rename(path / "pytorch_model.bin"), "no weights: .* pickle, .* is not read"),
        (lambda path: (path / CONFIG).unlink(), "holds no model: there is no config.json"),
        ("{}/generator", "saved as ElectraForMaskedLM.*lacks.*unknown"),
        ("{}/pair", "type 'electra_rtd', not 'electra'. Name one of its towers"),
        ("{}/absent", "There is no directory"),
        ("nobody/has-published-this", "no such directory, and the Hub does not give it.*HF_HUB_OFFLINE"),
    ],
)
def test_what_is_not_whole_or_no_such_tower_is_refused_not_completed_at_random(model, exported, damage, message):
    """`damage` changes the saved discriminator, or names another source in its place."""
    model.save_pretrained(exported / "pair")
    source = damage.format(exported) if isinstance(damage, str) else exported / "discriminator"
    if not isinstance(damage, str):
        damage(source)
    with pytest.raises(ValueError, match=message):
        load_tower(ElectraForPreTraining, source)


def test_old_position_ids_and_the_tied_copy_of_a_table_are_no_foreign_tensors(model, exported):
    def as_older_versions_saved(tensors):
        tensors["electra.embeddings.position_ids"] = torch.arange(64)[None]
        tensors["generator_lm_head.weight"] = tensors["electra.embeddings.word_embeddings.weight"].clone()

    change_weights(exported / "generator", as_older_versions_saved)
    loaded = load_tower(ElectraForMaskedLM, exported / "generator")
    assert all(map(torch.equal, loaded.parameters(), model.generator.parameters()))


def test_the_pair_is_loaded_whole_or_not_at_all(model, tmp_path):
    model.save_pretrained(tmp_path)

    def exchange(tensors):
        tensors["discriminator.head"] = tensors.pop("discriminator.discriminator_predictions.dense.weight")

    change_weights(tmp_path, exchange)
    with pytest.raises(ValueError, match=r"lacks tensors: .*dense\.weight; it holds tensors unknown .*\.head"):
        ElectraForRTDPretraining.from_pretrained(tmp_path)
    _, report = ElectraForRTDPretraining.from_pretrained(tmp_path, output_loading_info=True)
    assert report["missing_keys"] == {"discriminator.discriminator_predictions.dense.weight"}
