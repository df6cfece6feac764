"""Commands and scripts that train and publish. No failure of the Hub stops or changes a training."""

import shlex
import sys

import pytest

from hf_electra_rtd.publishing import publish
from hf_electra_rtd.publishing.card import CardArguments
from hf_electra_rtd.training import pretrain
from tests.conftest import pretraining_flags
from tests.finetuning.conftest import review_flags, run_finetune
from tests.publishing.hub_server import COMMIT, DISCRIMINATOR, GENERATOR, PREFIX
from tests.training.test_trainer import make_trainer


@pytest.fixture
def flags(corpus, tmp_path, monkeypatch):
    """The flags of `finished_run`, and flags that publish its results."""
    monkeypatch.setattr(sys, "argv", ["hf-electra-rtd pretrain"])
    flags = pretraining_flags(tmp_path, corpus, tmp_path / "run")
    publishing = ["--push_to_hub", "True", "--hub_model_id", PREFIX, "--license", "mit"]
    return [*flags, "--checkpoint_fractions", "0.5", "1.0", *publishing]


def weights(directory):
    names = ("model.safetensors", "generator/model.safetensors", "discriminator/model.safetensors")
    return [(directory / name).read_bytes() for name in names]


def test_a_training_publishes_what_publishing_it_would_and_goes_on_with_its_repositories(
    flags, finished_run, tmp_path, hub
):
    assert pretrain.main(flags) == 0
    there = hub.everything()
    branches = ("main", "step-2", "step-4")
    assert set(there) == {(name, branch) for name in (DISCRIMINATOR, GENERATOR) for branch in branches}
    card = hub.files(DISCRIMINATOR)["README.md"].decode()
    assert all(shown in card for shown in ("license: mit", GENERATOR))
    assert publish.main(["--run", str(tmp_path / "run"), "--hub_model_id", PREFIX, "--license", "mit"]) == 0
    assert hub.everything() == there
    assert weights(tmp_path / "run") == weights(finished_run)
    assert pretrain.main([*flags, "--max_steps", "5", "--resume_from_checkpoint", "latest"]) == 0
    assert hub.files(GENERATOR)["model.safetensors"] != there[GENERATOR, "main"]["model.safetensors"]
    with pytest.raises(ValueError, match=DISCRIMINATOR):  # another run needs --force
        pretrain.main([*flags, "--overwrite_output_dir"])
    assert (tmp_path / "run/run_record.json").exists()


def test_a_hub_that_fails_changes_no_weight_and_the_command_that_is_told_sends_everything(
    flags, finished_run, tmp_path, hub, capsys
):
    hub.failures[COMMIT] = (403, "Quota exceeded")
    assert pretrain.main([*flags, "--parts", "discriminator"]) == 1
    error = capsys.readouterr().err
    assert "Quota exceeded" in error
    assert weights(tmp_path / "run") == weights(finished_run)
    hub.failures.clear()
    command = shlex.split(error.partition("hf-electra-rtd publish ")[2])
    assert publish.main(command) == 0
    assert len(hub.everything()) == 3


def test_what_may_not_be_published_is_refused_before_training(flags, tmp_path, hub):
    hub.write(GENERATOR, {"README.md": b"# A cat\n", "cat.png": b"meow"})
    with pytest.raises(ValueError, match=GENERATOR):
        pretrain.main(flags)
    assert not (tmp_path / "run/checkpoint-2").exists()
    assert hub.asked(COMMIT) == 0


def test_a_fine_tuning_publishes_its_model_or_leaves_it_to_a_later_push(
    finished_run, tmp_path, hub, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["hf-electra-rtd finetune"])
    flags = {**review_flags(tmp_path), "model_name_or_path": finished_run / "discriminator", "benchmark": "own"}
    flags |= {"output_dir": tmp_path / "tuned", "max_steps": 2}
    assert run_finetune(**flags | {"task_name": ["private"]}) == 0
    flags |= {"push_to_hub": True, "hub_model_id": PREFIX}
    flags["base_model"] = "lab/encoder"
    hub.failures["."] = (503, "Out of order")
    assert run_finetune(**flags) == 1
    hub.failures.clear()
    assert publish.main(shlex.split(capsys.readouterr().err.partition("hf-electra-rtd publish ")[2])) == 0
    (model,) = (tmp_path / "tuned").glob("reviews/*/model/model.safetensors")
    assert hub.files(f"{PREFIX}-reviews")["model.safetensors"] == model.read_bytes()
    assert run_finetune(**flags) == 0
    assert hub.asked(COMMIT) == 1  # the repeated push made no commit
    assert {repo_id for repo_id, _ in hub.everything()} == {f"{PREFIX}-reviews"}
    with pytest.raises(ValueError, match="lab/tiny-reviews"):
        run_finetune(**flags, overwrite_output_dir=True)
    assert model.exists()


# ---- From a script ----


def test_a_push_may_be_asked_for_at_any_time_after_training_and_saves_the_run_once(tmp_path, blocks, tokenizer, hub):
    trainer = make_trainer(tmp_path, blocks, tokenizer, hub_model_id=PREFIX)
    trainer.card = CardArguments(license="cc-by-4.0")
    with pytest.raises(ValueError, match="train"):
        trainer.push_to_hub()
    trainer.train()
    assert hub.requests == []
    record = trainer.save_run()
    assert [each.error for each in trainer.push_to_hub()] == [None, None]
    assert set(hub.repositories) == {DISCRIMINATOR, GENERATOR}
    assert b"license: cc-by-4.0" in hub.files(GENERATOR)["README.md"]
    assert trainer.save_run() is record
    assert record.metrics["eval_loss"] > 0
    hub.write(GENERATOR, {"README.md": b"# By hand\n"})
    assert all("By hand" in each.error for each in trainer.push_to_hub())
    trainer.args.hub_model_id = None
    with pytest.raises(ValueError, match="needs hub_model_id"):
        trainer.push_to_hub()


def test_a_pair_alone_is_pushed_by_transformers_with_the_tags_of_this_package(blocks, tokenizer, tmp_path, hub):
    make_trainer(tmp_path, blocks, tokenizer).model.push_to_hub("lab/pair", private=True)
    files = hub.files("lab/pair")
    assert files.keys() == {"README.md", "config.json", "model.safetensors"}
    assert b"hf-electra-rtd" in files["README.md"]
    assert hub.repositories["lab/pair"].private
