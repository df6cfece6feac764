"""Commands that train and publish. No failure of the Hub stops or changes a training."""

import hashlib
import json
import sys

import pytest

from hf_electra_rtd.finetuning import finetune
from hf_electra_rtd.publishing import publish
from hf_electra_rtd.training import pretrain
from tests.conftest import pretraining_flags
from tests.finetuning.conftest import write_examples
from tests.publishing.fake_hub import COMMIT


pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

PREFIX = "lab/tiny"
DISCRIMINATOR, GENERATOR = f"{PREFIX}-discriminator", f"{PREFIX}-generator"


@pytest.fixture
def flags(corpus, tmp_path, monkeypatch):
    """Those of `finished_run`, and to publish what comes of it."""
    monkeypatch.setattr(sys, "argv", ["hf-electra-rtd pretrain"])
    flags = pretraining_flags(tmp_path, corpus, tmp_path / "run")
    publishing = ["--push_to_hub", "True", "--hub_model_id", PREFIX, "--license", "mit"]
    return [*flags, "--checkpoint_fractions", "0.5", "1.0", *publishing]


def weights(directory):
    names = ("model.safetensors", "generator/model.safetensors", "discriminator/model.safetensors")
    return [hashlib.sha256((directory / name).read_bytes()).hexdigest() for name in names]


def test_a_training_publishes_on_the_way_and_leaves_what_publishing_it_would(flags, finished_run, tmp_path, hub):
    assert pretrain.main(flags) == 0
    there = hub.everything()
    assert set(there) == {
        (name, branch) for name in (DISCRIMINATOR, GENERATOR) for branch in ("main", "step-2", "step-4")
    }
    on_the_way = hub.repositories[DISCRIMINATOR].branches["main"][1].tree
    assert json.loads(on_the_way["run_record.json"])["steps"] == 2
    assert publish.main(["--run", str(tmp_path / "run"), "--resume"]) == 0
    assert hub.everything() == there
    assert weights(tmp_path / "run") == weights(finished_run)


@pytest.mark.parametrize("failure", [{"broken": True}, {"status": 403}], ids=["broken", "403"])
def test_a_hub_that_fails_changes_no_weight_and_resume_sends_everything(failure, flags, finished_run, tmp_path, hub):
    hub.fail(COMMIT if "status" in failure else ".", **failure)
    assert pretrain.main([*flags, "--hub_strategy", "end" if "broken" in failure else "every_save"]) == 1
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


@pytest.mark.parametrize("failure", [None, {"broken": True}], ids=["reached", "broken"])
def test_a_fine_tuning_publishes_its_model_or_leaves_it_to_resume(failure, finished_run, tmp_path, hub, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["hf-electra-rtd finetune"])
    files = [write_examples(tmp_path / f"{split}.csv", 20, seed=1) for split in ("train", "dev")]
    where = ["--model_name_or_path", str(finished_run / "discriminator"), "--output_dir", str(tmp_path / "tuned")]
    flags = [
        *("--benchmark", "own", "--task_name", "reviews", "--train_file", files[0], "--validation_file", files[1]),
        *("--text_column_name", "review", "--label_column_name", "verdict", "--use_cpu", "True", "--max_steps", "2"),
        *("--disable_tqdm", "True", "--push_to_hub", "True", "--hub_model_id", PREFIX, "--base_model", "lab/encoder"),
    ]
    if failure is not None:
        hub.fail(".", **failure)
    assert finetune.main([*where, *flags]) == (failure is not None)
    hub.failures.clear()
    assert publish.main(["--run", str(tmp_path / "tuned"), "--resume"]) == 0
    (model,) = (tmp_path / "tuned").glob("reviews/*/model/model.safetensors")
    assert hub.files(f"{PREFIX}-reviews")["model.safetensors"] == model.read_bytes()
    assert hub.asked(COMMIT) == 1
    # One task of it, with its key; and what is said about the model stays when it is pushed again.
    assert publish.main(["--run", str(tmp_path / "tuned/reviews"), "--resume", "--license", "mit"]) == 0
    assert not (tmp_path / "tuned/reviews/publish.json").exists()
    assert finetune.main([*where, *flags]) == 0
    assert b"license: mit" in hub.files(f"{PREFIX}-reviews")["README.md"]
    assert hub.asked(COMMIT) == 2


@pytest.mark.parametrize(
    ("command", "given"),
    [
        (pretrain, ["--base_model", "a/b"]),
        (pretrain, ["--eval_results", "True"]),
        (finetune, ["--parts", "pair", "--model_name_or_path", "a/b"]),
    ],
)
def test_a_command_has_no_flag_that_it_would_ignore(command, given, tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.main(["--output_dir", str(tmp_path), *given])
    assert f"there is no flag {given[0]}" in capsys.readouterr().err
