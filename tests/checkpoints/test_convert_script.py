"""The command; the reader is tested apart, with TensorFlow."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, ElectraForMaskedLM, ElectraForPreTraining

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.checkpoints import convert
from tests.recordings import VARIANTS, Recording


@pytest.fixture
def script(monkeypatch):
    """The command, with a reader that knows the recordings."""
    monkeypatch.setattr(
        convert, "read_tf_variables", lambda prefix: Recording(Path(prefix).parent.name).start_variables
    )
    return convert


def flags(variant, output, **others):
    recording = Recording(variant)
    given = {
        "tf_checkpoint": recording.prefix,
        "hparams": recording.folder / "config.json",
        "vocab_file": recording.folder / "vocab.txt",
        "output_dir": output,
        **others,
    }
    return [part for name, value in given.items() if value is not None for part in (f"--{name}", str(value))]


@torch.no_grad()
def native_logits(directory, recording):
    """What stock classes say of the first recorded step, by what it is called there."""
    batch = recording.batch(0)
    inputs = {name: batch[name] for name in ("attention_mask", "token_type_ids")}
    masked_lm = directory / ("generator" if recording.detects else "discriminator")
    found = {}
    if masked_lm.is_dir():
        logits = ElectraForMaskedLM.from_pretrained(masked_lm)(input_ids=batch["input_ids"], **inputs).logits
        index = batch["masked_positions"][..., None].expand(-1, -1, logits.shape[-1])
        found["mlm_logits"] = logits.gather(1, index)
    if recording.detects:
        tower = ElectraForPreTraining.from_pretrained(directory / "discriminator")
        found["disc_probs"] = tower(input_ids=batch["corrupted_input_ids"], **inputs).logits.sigmoid()
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_written_is_the_original(script, variant, tmp_path, capsys):
    recording, output = Recording(variant), tmp_path / "converted"
    script.main(flags(variant, output))
    printed = capsys.readouterr().out
    assert f"wrote    {output}: the joint model" in printed
    networks = {"uniform_generator": {"disc_probs"}, "mlm_only": {"mlm_logits"}}
    found = native_logits(output, recording)
    assert found.keys() == networks.get(variant, {"mlm_logits", "disc_probs"})
    for name, ours in found.items():
        torch.testing.assert_close(ours, recording.get(0, name), rtol=0, atol=1e-5)
    pair = ElectraForRTDPretraining.from_pretrained(output)
    expected = recording.load().state_dict()
    assert pair.state_dict().keys() == expected.keys()
    for name, tensor in pair.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0)
    for directory in (output, *(path for path in output.iterdir() if path.is_dir())):
        tokenizer = AutoTokenizer.from_pretrained(directory)
        assert (len(tokenizer), tokenizer.model_max_length, tokenizer.mask_token_id) == (400, 64, 103)
        assert (directory / "vocab.txt").read_text() == (recording.folder / "vocab.txt").read_text()


def test_a_discriminator_alone_gives_that_tower(script, tmp_path, monkeypatch, capsys):
    recording = Recording("small_shared")
    alone = {name: value for name, value in recording.start_variables.items() if not name.startswith("generator")}
    monkeypatch.setattr(script, "read_tf_variables", lambda prefix: alone)
    script.main(flags("small_shared", tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["discriminator"]
    assert "a discriminator only" in capsys.readouterr().out
    ((name, ours),) = native_logits(tmp_path, recording).items()
    torch.testing.assert_close(ours, recording.get(0, name), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("lowercase", "token"), [("true", "a"), ("false", "A"), (None, "a")])
def test_lower_case_is_as_the_hparams_or_the_flag_say(script, tmp_path, lowercase, token):
    script.main(flags("uniform_generator", tmp_path, lowercase=lowercase))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.backend_tokenizer.normalizer.normalize_str("A") == token


def test_what_cannot_be_done_is_said_before_anything_is_read(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "read_tf_variables", lambda prefix: pytest.fail("was read"))
    hparams = tmp_path / "hparams.json"
    hparams.write_text(json.dumps({"vocab_size": 399}))
    for others, message in (
        ({"output_dir": tmp_path}, "is not empty"),
        ({"output_dir": hparams}, "is not empty"),
        ({"vocab_file": tmp_path / "no.txt"}, "no vocabulary"),
        ({"hparams": hparams}, "has 400 tokens, but the hparams say 399"),
        ({"hparams": tmp_path / "no.json"}, "cannot be read"),
    ):
        with pytest.raises(ValueError, match=message):
            script.main(flags("small_shared", tmp_path / "out", **others))
    assert not (tmp_path / "out").exists()
    for others in ({"size": "small"}, {"hparams": None}):
        with pytest.raises(SystemExit):
            script.main(flags("small_shared", tmp_path / "out", **others))
