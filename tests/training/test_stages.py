"""Every objective from the command line, and two-stage training."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from transformers import ElectraForMaskedLM, ElectraForPreTraining

from hf_electra_rtd import ElectraForRTDPretraining, ElectraRTDConfig, PretrainingRecord
from hf_electra_rtd.detection.loading import load_for_detection
from tests.conftest import VOCABULARY, tiny_config


sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import pretrain
import pretrain_no_trainer


SCRIPTS = pytest.mark.parametrize("script", [pretrain, pretrain_no_trainer], ids=["trainer", "no_trainer"])


@pytest.fixture
def train(tmp_path, corpus, monkeypatch):
    """Runs a script for four steps in `tmp_path/<name>`, and returns the directory."""
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    monkeypatch.setattr(sys, "argv", ["pretrain.py"])

    def run(script, name, *flags, config=None, **options):
        values = {"train_files": corpus, "tokenizer": tmp_path / "vocab.txt", "output_dir": tmp_path / name}
        values |= {"row_length": 32, "per_device_train_batch_size": 4, "max_steps": 4, "warmup_steps": 1}
        values |= {"logging_steps": 1, "eval_steps": 4, "save_steps": 2}
        if config is not None:
            config.save_pretrained(tmp_path / "config")
            values["model_config"] = tmp_path / "config"
        values |= options
        arguments = [part for name, value in values.items() for part in (f"--{name}", str(value))]
        assert script.main([*arguments, *flags, "--use_cpu", "--disable_tqdm", "True"]) == 0
        return tmp_path / name

    return run


def weights(directory):
    return (directory / "model.safetensors").read_bytes()


def cut_back(directory):
    """What a run leaves that is interrupted after its first checkpoint."""
    shutil.rmtree(directory / "checkpoint-4")
    (directory / "run_record.json").unlink()


HELD_OUT = {
    "mlm": {"eval_discriminator_loss", "eval_discriminator_masked_accuracy"},
    "replace_mlm": {"eval_generator_accuracy", "eval_sampled_accuracy", "eval_discriminator_masked_accuracy"},
    "all_tokens_mlm": {"eval_discriminator_token_accuracy", "eval_copy_probability_replaced"},
    "rtd_masked_only": {"eval_discriminator_auc", "eval_discriminator_auc_all"},
}


@SCRIPTS
@pytest.mark.parametrize("objective", HELD_OUT)
def test_an_objective_trains_leaves_what_it_implies_and_resumes(train, script, objective, capsys, tmp_path):
    tower_class = ElectraForPreTraining if objective == "rtd_masked_only" else ElectraForMaskedLM
    config = tiny_config(temperature=0.5)  # of rtd; the flag wins, and what follows from it follows
    directory = train(script, "run", config=config, objective=objective)
    shown = capsys.readouterr().out
    assert f"{tower_class.__name__}.from_pretrained" in shown
    assert "HELD-OUT" in shown
    assert (directory / "training_curves.png").exists()
    assert (directory / "generator").exists() == (objective != "mlm")
    tower_class.from_pretrained(directory / "discriminator")

    record = PretrainingRecord.load(directory)
    model = ElectraForRTDPretraining.from_pretrained(directory)
    assert record.metrics.keys() >= HELD_OUT[objective]
    assert ("eval_generator_accuracy" in record.metrics) == (objective != "mlm")
    assert model.config.discriminator_weight == (50.0 if objective == "rtd_masked_only" else 1.0)
    assert model.config.temperature == (1.0 if objective == "mlm" else 0.5)
    loss = record.metrics["eval_discriminator_loss"] * model.config.discriminator_weight
    assert record.metrics["eval_loss"] == pytest.approx(loss + record.metrics.get("eval_generator_loss", 0.0))
    logs = [log for log in record.curves if "loss" in log]
    for log in logs:
        loss = log["discriminator_loss"] * model.config.discriminator_weight + log.get("generator_loss", 0.0)
        assert log["loss"] == pytest.approx(loss, rel=1e-5)

    whole = weights(directory)
    cut_back(directory)
    train(script, "run", "--resume_from_checkpoint", "latest", config=config, objective=objective)
    assert weights(directory) == whole


@SCRIPTS
@pytest.mark.parametrize("flags", [{"generator_type": "uniform"}, {"sharing": "gdes"}, {"sharing": "all"}])
def test_generators_and_sharing_from_the_command_line(train, script, flags, capsys):
    config = tiny_config(sharing="all") if flags == {"sharing": "all"} else tiny_config()
    directory = train(script, "run", config=config, **flags)
    record = PretrainingRecord.load(directory)
    uniform = "generator_type" in flags
    assert (directory / "generator").exists() != uniform
    assert ("eval_generator_accuracy" in record.metrics) != uniform
    assert (record.parameters["generator"] == 0) == uniform
    pair = ElectraForRTDPretraining.from_pretrained(directory).eval()
    ids = torch.tensor([[2, 21, 22, 3]])
    alone = ElectraForPreTraining.from_pretrained(directory / "discriminator").eval()
    torch.testing.assert_close(alone(ids).logits, pair(ids).logits)
    # In a checkpoint lies the pair, whose own tensors may be deltas; only the Trainer's have a tokenizer.
    for source in (directory, directory / "checkpoint-4")[: 2 if script is pretrain else 1]:
        towers = load_for_detection(str(source), judge_only=True)
        torch.testing.assert_close(towers.discriminator(ids).logits, pair(ids).logits)


@SCRIPTS
def test_a_dry_run_without_a_generator_shows_one_tower(train, script, capsys):
    train(script, "run", "--dry_run", config=tiny_config(objective="mlm"))
    shown = capsys.readouterr().out
    assert "No tensor is tied" not in shown  # the output layer is the word table
    assert "sampled" not in shown
    assert "generator" not in shown.partition("Tied")[0]


def test_a_tower_that_predicts_tokens_is_no_detector(train):
    directory = train(pretrain, "run", config=tiny_config(objective="mlm"))
    for source in (directory, directory / "checkpoint-4"):
        with pytest.raises(ValueError, match="no discriminator: it was trained to predict tokens"):
            load_for_detection(str(source), judge_only=True)


# ---- Two stages ----


@SCRIPTS
def test_two_stages_freeze_the_generator_and_resume_in_either(train, script, tmp_path):
    one = train(script, "one", config=tiny_config(objective="mlm"))
    first = weights(one)
    cut_back(one)
    train(script, "one", "--resume_from_checkpoint", "latest", config=tiny_config(objective="mlm"))
    assert weights(one) == first

    two = train(script, "two", two_stage_from=one)
    generator = ElectraForMaskedLM.from_pretrained(one / "discriminator").state_dict()
    for directory in (two, two / "checkpoint-2"):
        pair = ElectraForRTDPretraining.from_pretrained(directory)
        assert (pair.config.sharing, pair.config.freeze_generator) == ("none", True)
        assert all(torch.equal(tensor, generator[name]) for name, tensor in pair.generator.state_dict().items())
        encoder = "electra.encoder.layer.0.output.dense.weight"
        assert not torch.equal(pair.discriminator.get_parameter(encoder), generator[encoder])
    (optimizer,) = {*two.glob("checkpoint-4/optimizer.pt"), *two.glob("checkpoint-4/optimizer.bin")}
    states = torch.load(optimizer, weights_only=True)["state"]
    assert len(states) == len(list(pair.discriminator.parameters()))

    second = weights(two)
    cut_back(two)
    train(script, "two", "--resume_from_checkpoint", "latest", two_stage_from=one)
    assert weights(two) == second


def test_a_configuration_with_other_options_lets_follow_what_follows():
    described = tiny_config(sharing="word", temperature=0.5, generator_weight=2.0)
    mlm = described.changed(objective="mlm")
    assert (mlm.discriminator_weight, mlm.sharing, mlm.temperature, mlm.generator_weight) == (1.0, "none", 1.0, 1.0)
    assert mlm.discriminator_config.to_dict() == described.discriminator_config.to_dict()
    assert described.changed(objective="mlm", discriminator_weight=7.0).discriminator_weight == 7.0
    back = mlm.changed(objective="rtd")
    assert (back.discriminator_weight, back.sharing) == (50.0, ElectraRTDConfig.sharing)
    assert back.generator_config.hidden_size == 8
    same = described.changed(disallow_correct=True)
    assert same.generator_config.to_dict() == described.generator_config.to_dict()
    assert (same.sharing, same.temperature) == ("word", 0.5)
