"""How every command treats every kind of path that it can be given."""

import io
import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, ElectraForSequenceClassification

from hf_electra_rtd import Classifier, ElectraForRTDPretraining, ElectraRTDConfig
from hf_electra_rtd.base.files import load_pretrained
from hf_electra_rtd.data.tokenization import load_tokenizer
from hf_electra_rtd.finetuning.heads import open_encoder
from hf_electra_rtd.inference import likelihood
from hf_electra_rtd.inference.detection import load_for_detection
from hf_electra_rtd.inference.export import open_sources
from hf_electra_rtd.pair.places import identify, read_stock_config
from hf_electra_rtd.training.model import ModelArguments
from tests.conftest import VOCABULARY, tiny_config
from tests.families_for_tests import tiny_family_config


@pytest.fixture(scope="module")
def root(tokenizer, tmp_path_factory):
    """A directory that holds a directory of every kind."""
    root = tmp_path_factory.mktemp("places")
    torch.manual_seed(0)
    pair = ElectraForRTDPretraining(tiny_config())
    for name in ("run", "checkpoint"):
        pair.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    pair.save_towers(root / "run", tokenizer)
    pair.save_towers(root / "networks", tokenizer)
    bert = ElectraRTDConfig(discriminator_config=tiny_family_config("bert", vocab_size=len(VOCABULARY)))
    ElectraForRTDPretraining(bert).save_towers(root / "bert", tokenizer)
    electric = ElectraForRTDPretraining(tiny_config(objective="electric", generator="two_tower"))
    electric.save_pretrained(root / "electric")
    tokenizer.save_pretrained(root / "electric")
    electric.save_towers(root / "electric", tokenizer)
    config = pair.config.discriminator_config.to_dict()
    tuned = ElectraForSequenceClassification(type(pair.config.discriminator_config)(**config, num_labels=2))
    task = {"kind": "classification", "columns": ["text"], "language": "en"}
    tuned.config.fine_tuned_for = {"task": task, "characters": False, "lengths": {"max_seq_length": 32}}
    for name in ("tuned/sst/seed_1/model", "several/a/model", "several/b/model"):
        tuned.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    (root / "empty").mkdir()
    return root


def continue_from(name):
    plan = ModelArguments(continue_from=name, new_generator=True).plan
    return plan.discriminator.place


def detect(name):
    return type(load_for_detection(name, as_is=True)[1]).__name__


def score(name):
    return likelihood.main(["--model", name, "the river"])


def fine_tune(name):
    return open_encoder(name, weights=False)[0]


def predict(name):
    return Classifier(name, use_cpu=True).name


def export(name):
    return [source.name for source in open_sources(name)]


ELECTRA, BERT, TUNED = "ElectraForPreTraining", "BertForTokenClassification", "tuned/sst/seed_1/model"
REFUSED = ValueError
COMMANDS = (continue_from, detect, score, fine_tune, predict, export)
# For each place: its kind, and what each command takes it for.
TABLE = {
    "run": ("run", "run", ELECTRA, None, "run/discriminator", REFUSED, ["detector", "generator"]),
    "checkpoint": ("pair", "checkpoint", ELECTRA, None, "checkpoint", REFUSED, REFUSED),
    "networks": (
        "networks",
        "networks/discriminator",
        ELECTRA,
        None,
        "networks/discriminator",
        REFUSED,
        ["detector", "generator"],
    ),
    "bert": ("networks", "bert/detector", BERT, None, "bert/discriminator", REFUSED, ["detector", "generator"]),
    "electric": ("run", "electric", REFUSED, None, "electric/discriminator", REFUSED, REFUSED),
    "run/discriminator": (
        "detector",
        "run/discriminator",
        ELECTRA,
        REFUSED,
        "run/discriminator",
        REFUSED,
        ["detector"],
    ),
    "run/generator": ("generator", REFUSED, REFUSED, None, "run/generator", REFUSED, ["generator"]),
    "bert/detector": ("detector", "bert/detector", BERT, REFUSED, "bert/detector", REFUSED, ["detector"]),
    "bert/discriminator": ("encoder", REFUSED, REFUSED, REFUSED, "bert/discriminator", REFUSED, REFUSED),
    TUNED: ("fine_tuned", REFUSED, REFUSED, REFUSED, TUNED, TUNED, ["classification"]),
    "tuned": ("fine_tuned", REFUSED, REFUSED, REFUSED, TUNED, TUNED, ["classification"]),
    "run/config.json": ("configuration", REFUSED, REFUSED, REFUSED, REFUSED, REFUSED, REFUSED),
    "several": (REFUSED,) * 7,
    "empty": (REFUSED,) * 7,
    "absent/at/all": (REFUSED,) * 7,
}


@pytest.mark.parametrize("name", TABLE)
def test_every_command_takes_a_name_for_what_it_is_or_refuses_it_by_its_name(root, name, capsys):
    place = str(root / name)
    for command, expected in zip((lambda name: identify(name).kind, *COMMANDS), TABLE[name], strict=True):
        if expected is REFUSED:
            with pytest.raises(ValueError, match=Path(name).name):
                command(place)
        else:
            found = command(place)
            assert (found.removeprefix(f"{root}/") if isinstance(found, str) else found) == expected, command


def test_a_detector_of_electra_is_no_backbone(root):
    with pytest.raises(ValueError, match="detector"):
        _ = ModelArguments(backbone=str(root / "run" / "detector")).plan


def test_a_network_beside_a_pair_has_its_objective_and_labels_are_those_of_the_outputs(root, tmp_path):
    assert identify(root / "electric" / "discriminator").objective == "electric"
    shutil.copytree(root / "electric", tmp_path / "run", ignore=lambda *_: ["discriminator"])
    shutil.copytree(root / "electric" / "discriminator", tmp_path / "run/fractions/50/discriminator")
    for place in ("run/fractions/50", "run/fractions/50/discriminator"):
        assert identify(tmp_path / place).objective == "electric"
    shutil.copytree(root / "electric" / "discriminator", tmp_path / "alone")
    assert identify(tmp_path / "alone").objective is None
    assert identify(root / "bert" / "detector").labels == ("original", "replaced")


def test_code_in_the_directory_of_a_model_does_not_run_whatever_the_standard_input_answers(
    root, tmp_path, monkeypatch
):
    auto_map = {
        "AutoConfig": "code.Config",
        "AutoModelForSequenceClassification": "code.Model",
        "AutoTokenizer": ["code.Tokenizer", "code.Tokenizer"],
    }
    evil = Path(shutil.copytree(root / TUNED, tmp_path / "evil"))
    (evil / "code.py").write_text(f"open({str(tmp_path / 'it ran')!r}, 'w')\nclass Config: pass\n")
    config = json.loads((evil / "config.json").read_text())
    (evil / "config.json").write_text(json.dumps({**config, "model_type": "unknown", "auto_map": auto_map}))
    (evil / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Tokenizer", "auto_map": auto_map}))
    for command in (*COMMANDS, load_tokenizer, read_stock_config, partial(load_pretrained, AutoModel)):
        monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
        with pytest.raises(ValueError, match="evil"):
            command(str(evil))
    assert not (tmp_path / "it ran").exists()
