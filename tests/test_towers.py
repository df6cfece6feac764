"""Native towers: out of the pair, and into it."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, ElectraForMaskedLM, ElectraForPreTraining

from hf_electra_rtd import ElectraForRTDPretraining
from tests.conftest import VOCABULARY, tiny_config


@pytest.fixture
def exported(model, tokenizer, tmp_path):
    model.save_towers(tmp_path, tokenizer)
    return tmp_path


def test_exported_towers_load_without_this_package_and_give_the_same_logits(model, exported, batch):
    script = """
import importlib.abc, json, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "hf_electra_rtd":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import torch
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer
directory, ids = sys.argv[1], torch.tensor(json.loads(sys.argv[2]))
results = {}
for name, load in (("generator", AutoModelForMaskedLM), ("discriminator", AutoModelForPreTraining)):
    tower, report = load.from_pretrained(f"{directory}/{name}", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    assert AutoTokenizer.from_pretrained(f"{directory}/{name}").mask_token_id == 4
    with torch.no_grad():
        results[name] = tower.eval()(ids).logits.tolist()
assert "hf_electra_rtd" not in sys.modules
print(json.dumps(results))
"""
    ids = batch["input_ids"][:2]
    run = subprocess.run(
        [sys.executable, "-c", script, str(exported), json.dumps(ids.tolist())],
        capture_output=True,
        text=True,
        check=True,
    )
    results = json.loads(run.stdout)
    for name in ("generator", "discriminator"):
        with torch.no_grad():
            expected = getattr(model, name)(ids).logits
        torch.testing.assert_close(torch.tensor(results[name]), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["generator", "discriminator"])
def test_exported_directories_hold_weights_configuration_tokenizer_and_vocabulary(exported, name):
    files = {path.name for path in (exported / name).iterdir()}
    assert files == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}
    assert (exported / name / "vocab.txt").read_text().splitlines() == VOCABULARY
    config = json.loads((exported / name / "config.json").read_text())
    assert config["model_type"] == "electra"
    assert AutoTokenizer.from_pretrained(exported / name).tokenize("The mills") == ["the", "mill", "##s"]


@pytest.mark.parametrize("sharing", ["none", "word", "embeddings"])
def test_a_pair_joined_from_its_towers_is_the_pair(tmp_path, tokenizer, batch, sharing):
    model = ElectraForRTDPretraining(tiny_config(sharing=sharing, temperature=0.5)).eval()
    model.save_towers(tmp_path, tokenizer)
    joined = ElectraForRTDPretraining.from_generator_discriminator_pretrained(
        tmp_path / "generator", tmp_path / "discriminator", sharing=sharing, temperature=0.5
    ).eval()
    assert joined.dtype == torch.float32
    assert joined.config.sharing == sharing
    assert torch.equal(joined(**batch).loss, model(**batch).loss)
    joined.save_pretrained(tmp_path / "pair")
    assert str(tmp_path) not in (tmp_path / "pair" / "config.json").read_text()


def test_towers_can_be_models_and_keep_their_weights(batch):
    config = tiny_config()
    generator = ElectraForMaskedLM(config.generator_config)
    discriminator = ElectraForPreTraining(config.discriminator_config)
    weights = discriminator.state_dict()
    pair = ElectraForRTDPretraining.from_generator_discriminator_pretrained(generator, discriminator, sharing="none")
    assert pair.discriminator is discriminator
    with pytest.raises(ValueError, match="no option temprature"):
        ElectraForRTDPretraining.from_generator_discriminator_pretrained(generator, discriminator, temprature=0.2)
    assert all(torch.equal(weights[name], tensor) for name, tensor in pair.discriminator.state_dict().items())
    pair(**batch).loss.backward()


def test_tying_towers_that_differ_is_said(caplog):
    config = tiny_config()
    towers = ElectraForMaskedLM(config.generator_config), ElectraForPreTraining(config.discriminator_config)
    ElectraForRTDPretraining.from_generator_discriminator_pretrained(*towers)
    assert "replaces these tensors of the generator" in caplog.text
    assert "electra.embeddings.word_embeddings.weight" in caplog.text


def test_towers_of_the_wrong_kind_or_vocabulary_are_refused():
    config, other = tiny_config(), tiny_config(vocab_size=60)
    generator = ElectraForMaskedLM(config.generator_config)
    with pytest.raises(ValueError, match="must be an ElectraForPreTraining"):
        ElectraForRTDPretraining.from_generator_discriminator_pretrained(generator, generator)
    with pytest.raises(ValueError, match="55 tokens and the discriminator 60"):
        ElectraForRTDPretraining.from_generator_discriminator_pretrained(
            generator, ElectraForPreTraining(other.discriminator_config)
        )


def test_attention_of_a_tower_is_what_it_was_loaded_with(exported, batch):
    pair = ElectraForRTDPretraining.from_generator_discriminator_pretrained(
        exported / "generator", exported / "discriminator", attn_implementation="eager"
    )
    for tower in (pair.generator, pair.discriminator):
        assert tower.config._attn_implementation == "eager"
        assert tower.electra.encoder.layer[0].attention.self.config._attn_implementation == "eager"
    assert AutoModelForMaskedLM.from_pretrained(exported / "generator").config._attn_implementation == "sdpa"
