import json
import shutil

import pytest
import torch

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.detection.detection import judge
from hf_electra_rtd.detection.loading import load_for_detection
from tests.conftest import tiny_config


@pytest.fixture
def directory(model, tokenizer, tmp_path):
    """What a run leaves: the pair, and both towers."""
    model.save_pretrained(tmp_path / "run")
    tokenizer.save_pretrained(tmp_path / "run")
    model.save_towers(tmp_path / "run", tokenizer)
    return tmp_path / "run"


def test_a_run_a_checkpoint_and_two_towers_are_the_same_pair(directory, model, tokenizer, tmp_path):
    checkpoint = tmp_path / "checkpoint-5"
    checkpoint.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(directory / name, checkpoint)
    parts = {name: str(directory / name) for name in ("generator", "discriminator")}
    expected = judge(model.discriminator, tokenizer, "the old mill")
    for towers in (
        load_for_detection(str(directory)),
        load_for_detection(str(checkpoint)),
        load_for_detection(**parts),
        load_for_detection(discriminator=parts["discriminator"], judge_only=True),
        load_for_detection(str(directory), judge_only=True),
    ):
        assert judge(towers.discriminator, towers.tokenizer, "the old mill") == expected
        assert not towers.discriminator.training
        if towers.generator is not None:
            assert torch.equal(towers.generator.generator_lm_head.bias, model.generator.generator_lm_head.bias)
    assert load_for_detection(str(directory), judge_only=True).generator is None


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({}, "nothing to ask"),
        ({"model": "a", "discriminator": "b"}, "not both"),
        ({"discriminator": "a"}, "can only judge"),
        ({"generator": "a"}, "nothing to ask"),
        ({"model": "nobody/has-this"}, "no directory here, and the Hub does not give it"),
        ({"model": "./absent"}, "There is no directory"),
    ],
)
def test_naming_too_much_too_little_or_nothing_that_exists_is_refused(named, message):
    with pytest.raises(ValueError, match=message):
        load_for_detection(**named)


def test_a_directory_that_is_no_pair_is_refused_with_what_is_there(directory, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="there is nothing"):
        load_for_detection(str(empty))
    (empty / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"Expected are the directories generator and discriminator.*notes\.txt"):
        load_for_detection(str(empty))
    shutil.copytree(directory, empty / "checkpoint-7")
    with pytest.raises(ValueError, match=r"has not ended; name one of its 1 checkpoints, such as .*checkpoint-7"):
        load_for_detection(str(empty))
    with pytest.raises(ValueError, match=r"type 'electra', not a pair of towers.*It is a single tower"):
        load_for_detection(str(directory / "discriminator"))
    shutil.rmtree(directory / "generator")
    with pytest.raises(ValueError, match="a discriminator but no generator"):
        load_for_detection(str(directory))


def test_tokenizers_that_are_missing_or_another_models_are_refused(directory, tmp_path):
    ElectraForRTDPretraining(tiny_config(vocab_size=60)).save_towers(tmp_path / "other")
    with pytest.raises(ValueError, match="generator has 60 tokens and the discriminator 55"):
        load_for_detection(
            generator=str(tmp_path / "other" / "generator"), discriminator=str(directory / "discriminator")
        )
    with pytest.raises(ValueError, match="holds no tokenizer"):
        load_for_detection(discriminator=str(tmp_path / "other" / "discriminator"), judge_only=True)
    tokens = json.loads((directory / "tokenizer.json").read_text())
    tokens["model"]["vocab"] |= {f"word{index}": 55 + index for index in range(3)}
    (directory / "discriminator" / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(ValueError, match="tokenizer has 58 tokens, the discriminator 55"):
        load_for_detection(str(directory))
