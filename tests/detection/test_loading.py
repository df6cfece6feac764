import json
import shutil

import pytest
import torch

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.detection.detect import load_for_detection
from hf_electra_rtd.detection.detection import score_tokens
from tests.conftest import tiny_config


@pytest.fixture
def directory(model, tokenizer, tmp_path):
    """The models of a finished run."""
    model.save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    model.save_towers(tmp_path / "run", tokenizer)
    return tmp_path / "run"


def test_a_run_a_checkpoint_and_two_towers_load_the_same_models(directory, model, tokenizer, tmp_path):
    checkpoint = tmp_path / "checkpoint-5"
    checkpoint.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(directory / name, checkpoint)
    parts = {name: str(directory / name) for name in ("generator", "discriminator")}
    expected = score_tokens(model.discriminator, tokenizer, "the old mill")
    for generator, discriminator, loaded_tokenizer in (
        load_for_detection(str(directory)),
        load_for_detection(str(checkpoint)),
        load_for_detection(**parts),
        load_for_detection(discriminator=parts["discriminator"], as_is=True),
        load_for_detection(str(directory), as_is=True),
    ):
        assert score_tokens(discriminator, loaded_tokenizer, "the old mill") == expected
        assert not discriminator.training
        if generator is not None:
            assert torch.equal(generator.generator_lm_head.bias, model.generator.generator_lm_head.bias)
    assert load_for_detection(str(directory), as_is=True)[0] is None


@pytest.fixture
def broken(directory, tmp_path):
    """Models beside the run that cannot detect."""
    (tmp_path / "empty").mkdir()
    for name, config in (("other", tiny_config(vocab_size=60)), ("mlm", tiny_config(objective="replace_mlm"))):
        model = ElectraForRTDPretraining(config)
        model.save_towers(tmp_path / name)
        model.save_pretrained(tmp_path / f"{name}-joint")
    shutil.copytree(directory, tmp_path / "alone")
    shutil.rmtree(tmp_path / "alone" / "generator")
    shutil.copytree(directory, tmp_path / "words")
    tokens = json.loads((directory / "tokenizer.json").read_text())
    tokens["model"]["vocab"] |= {f"word{index}": 55 + index for index in range(3)}
    (tmp_path / "words" / "discriminator" / "tokenizer.json").write_text(json.dumps(tokens))
    return tmp_path


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({}, "Give either"),
        ({"model": "a", "discriminator": "b"}, "Give either"),
        ({"model": "a", "generator": "b"}, "Give either"),
        ({"generator": "a"}, "Give either"),
        ({"model": "nobody/has-this"}, "no such directory, and the Hub does not give it"),
        ({"model": "./absent"}, "There is no directory"),
        ({"model": "{}/empty"}, "holds no model: there is no config.json. Name a run, a checkpoint or a tower"),
        ({"model": "{}/run/discriminator"}, "type 'electra', not 'electra_rtd'"),
        ({"model": "{}/alone"}, "has no generator. Name one"),
        ({"model": "{}/mlm"}, "predicts tokens and cannot detect"),
        ({"model": "{}/mlm-joint"}, "predicts tokens and cannot detect"),
        (
            {"generator": "{}/other/generator", "discriminator": "{}/run/discriminator"},
            "generator has 60 tokens and the discriminator 55",
        ),
        ({"discriminator": "{}/other/discriminator", "as_is": True}, "holds no tokenizer"),
        ({"model": "{}/words"}, "tokenizer has 58 tokens and the discriminator 55"),
    ],
)
def test_models_that_cannot_detect_are_refused(broken, named, message):
    paths = {name: path.format(broken) if isinstance(path, str) else path for name, path in named.items()}
    with pytest.raises(ValueError, match=message):
        load_for_detection(**paths)
