"""Commands and scripts that train and publish. No failure of the Hub stops or changes a training."""

import sys

import pytest

from hf_electra_rtd.publishing import publish
from hf_electra_rtd.publishing.card import CardArguments
from hf_electra_rtd.publishing.hub import read_publication, remember
from hf_electra_rtd.training import pretrain
from tests.conftest import pretraining_flags
from tests.finetuning.conftest import review_flags, run_finetune
from tests.publishing.card_records import evaluation_record
from tests.publishing.fake_hub import COMMIT, DISCRIMINATOR, GENERATOR, PREFIX
from tests.training.test_trainer import make_trainer


pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def flags(corpus, tmp_path, monkeypatch):
    """Those of `finished_run`, and to publish what comes of it."""
    monkeypatch.setattr(sys, "argv", ["hf-electra-rtd pretrain"])
    flags = pretraining_flags(tmp_path, corpus, tmp_path / "run")
    publishing = ["--push_to_hub", "True", "--hub_model_id", PREFIX, "--license", "mit"]
    return [*flags, "--checkpoint_fractions", "0.5", "1.0", *publishing]


def weights(directory):
    names = ("model.safetensors", "generator/model.safetensors", "discriminator/model.safetensors")
    return [(directory / name).read_bytes() for name in names]


def test_a_training_publishes_what_publishing_it_would_and_keeps_what_an_earlier_publication_showed(
    flags, finished_run, tmp_path, hub
):
    evaluation_record(model={"name_or_path": DISCRIMINATOR}).save(tmp_path / "glue")
    known = {"corpora": ["org/novels"], "evaluations": [str(tmp_path / "glue")]}
    remember(tmp_path / "run", license="cc-by-4.0", **known)
    assert pretrain.main(flags) == 0
    there, branches = hub.everything(), ("main", "step-2", "step-4")
    assert set(there) == {(name, branch) for name in (DISCRIMINATOR, GENERATOR) for branch in branches}
    card = hub.files(DISCRIMINATOR)["README.md"].decode()
    assert all(shown in card for shown in ("license: mit", "- org/novels", "mrpc", GENERATOR))
    stored = read_publication(tmp_path / "run")["flags"]
    assert stored.items() >= {**known, "hub_model_id": PREFIX, "license": "mit", "private": True}.items()
    assert publish.main(["--run", str(tmp_path / "run"), "--resume"]) == 0
    assert hub.everything() == there
    assert weights(tmp_path / "run") == weights(finished_run)


def test_a_hub_that_fails_changes_no_weight_and_resume_sends_everything(flags, finished_run, tmp_path, hub, capsys):
    hub.fail(COMMIT, status=403)
    assert pretrain.main(flags) == 1
    assert f"hf-electra-rtd publish --resume --run {tmp_path / 'run'}" in capsys.readouterr().err
    assert weights(tmp_path / "run") == weights(finished_run)
    hub.failures.clear()
    assert publish.main(["--run", str(tmp_path / "run"), "--resume"]) == 0
    assert len(hub.everything()) == 6


def test_what_may_not_be_published_is_refused_before_training(flags, tmp_path, hub):
    hub.add(GENERATOR, {"README.md": b"# A cat\n", "cat.png": b"meow"})
    with pytest.raises(ValueError, match=f"{GENERATOR}.*--force"):
        pretrain.main(flags)
    assert not (tmp_path / "run/checkpoint-2").exists()
    assert hub.asked("^(POST|PUT)") == 0


def test_a_fine_tuning_publishes_its_model_or_leaves_it_to_resume(finished_run, tmp_path, hub, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["hf-electra-rtd finetune"])
    flags = {**review_flags(tmp_path), "model_name_or_path": finished_run / "discriminator", "benchmark": "own"}
    flags |= {"output_dir": tmp_path / "tuned", "max_steps": 2, "push_to_hub": True, "hub_model_id": PREFIX}
    flags["base_model"] = "lab/encoder"
    hub.fail(".", broken=True)
    assert run_finetune(**flags) == 1
    hub.failures.clear()
    assert publish.main(["--run", str(tmp_path / "tuned"), "--resume"]) == 0
    (model,) = (tmp_path / "tuned").glob("reviews/*/model/model.safetensors")
    assert hub.files(f"{PREFIX}-reviews")["model.safetensors"] == model.read_bytes()
    assert hub.asked(COMMIT) == 1
    # What is said about the model stays when it is pushed again.
    assert publish.main(["--run", str(tmp_path / "tuned"), "--license", "mit"]) == 0
    assert run_finetune(**flags) == 0
    assert b"license: mit" in hub.files(f"{PREFIX}-reviews")["README.md"]
    assert hub.asked(COMMIT) == 2


# ---- From a script ----


def test_a_push_may_be_asked_for_at_any_time_and_saves_the_run_once(tmp_path, blocks, tokenizer, hub):
    trainer = make_trainer(tmp_path, blocks, tokenizer, hub_model_id=PREFIX)
    trainer.card = CardArguments(license="cc-by-4.0")
    trainer.train()
    assert hub.requests == []
    record = trainer.save_run()
    assert [each.error for each in trainer.push_to_hub()] == [None, None]
    assert set(hub.repositories) == {DISCRIMINATOR, GENERATOR}
    assert b"license: cc-by-4.0" in hub.files(GENERATOR)["README.md"]
    assert trainer.save_run() is record
    assert record.metrics["eval_loss"] > 0
    hub.add(GENERATOR, {"README.md": b"# By hand\n"})
    assert ["by hand" in each.error.lower() for each in trainer.push_to_hub()] == [True]
    trainer.args.hub_model_id = None
    with pytest.raises(ValueError, match="needs hub_model_id"):
        trainer.push_to_hub()
