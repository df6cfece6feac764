"""The `convert` command. Its reader, which needs TensorFlow, is tested in test_tf_reader.py."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, ElectraForMaskedLM, ElectraForPreTraining

from hf_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.pair import original_checkpoints as checkpoints
from tests.recordings import VARIANTS, Recording


@pytest.fixture
def read(monkeypatch):
    """The variables of the recordings, which the command reads instead, by the path of their checkpoint."""
    variables = {str(Recording(variant).prefix): Recording(variant).start_variables for variant in VARIANTS}
    monkeypatch.setattr(checkpoints, "read_tf_variables", variables.__getitem__)
    return variables


def flags(variant, output, hparams, **others):
    """The command line. `hparams` are changes to those of the recording, or the name of a file."""
    recording = Recording(variant)
    if isinstance(hparams, dict):
        path = Path(output).with_name("hparams.json")
        path.write_text(json.dumps(recording.config["hparams"] | hparams))
        hparams = path
    given = {"tf_checkpoint": recording.prefix, "hparams": hparams, "vocab_file": recording.folder / "vocab.txt"}
    given |= {"output_dir": output, **others}
    return [part for name, value in given.items() for part in (f"--{name}", str(value))]


@torch.no_grad()
def native_logits(directory, recording):
    """The outputs of stock classes for the first recorded step, by their names in the recording."""
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
def test_what_is_written_is_the_original(read, variant, tmp_path, capsys):
    recording, output = Recording(variant), tmp_path / "converted"
    checkpoints.main(flags(variant, output, {}))
    printed = capsys.readouterr().out
    assert f"wrote    {output}: the joint model" in printed
    networks = {"uniform_generator": {"disc_probs"}, "mlm_only": {"mlm_logits"}, "electric": {"disc_probs"}}
    found = native_logits(output, recording)
    assert found.keys() == networks.get(variant, {"mlm_logits", "disc_probs"})
    if variant == "electric":
        found.clear()  # found are energies; recorded are probabilities that include the noise
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


def test_a_discriminator_alone_gives_that_tower(read, tmp_path, capsys):
    recording = Recording("small_shared")
    prefix, variables = str(recording.prefix), recording.start_variables
    read[prefix] = {name: value for name, value in variables.items() if not name.startswith("generator")}
    checkpoints.main(flags("small_shared", tmp_path / "out", {}))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["discriminator"]
    assert "a discriminator only" in capsys.readouterr().out
    ((name, ours),) = native_logits(tmp_path / "out", recording).items()
    torch.testing.assert_close(ours, recording.get(0, name), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("lowercase", "token"), [(True, "a"), (False, "A"), (None, "a")])
def test_lower_case_is_as_the_hparams_or_the_vocabulary_say(read, tmp_path, lowercase, token):
    checkpoints.main(flags("uniform_generator", tmp_path / "out", {"do_lower_case": lowercase}))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.backend_tokenizer.normalizer.normalize_str("A") == token


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"output_dir": "."}, "is not empty"),
        ({"vocab_file": "no.txt"}, r"no\.txt"),
        ({"hparams": "few.json"}, "has 400 tokens, but the hparams say 399"),
        ({"hparams": "no.json"}, r"no\.json cannot be read: No such file or directory"),
        ({"hparams": "text.json"}, r"text\.json cannot be read: .*'vocab_size' expected int, got str"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_read(tmp_path, monkeypatch, others, message):
    monkeypatch.setattr(checkpoints, "read_tf_variables", lambda prefix: pytest.fail("was read"))
    monkeypatch.chdir(tmp_path)
    for name, hparams in (("few", {"vocab_size": 399}), ("text", {"vocab_size": "many"})):
        (tmp_path / f"{name}.json").write_text(json.dumps(hparams))
    with pytest.raises(ValueError, match=message):
        checkpoints.main(flags("small_shared", "out", **{"hparams": {}, **others}))
    assert not (tmp_path / "out").exists()
