"""A run publishes itself from a user's own script; the Hub is a stand-in, repositories and cards are real."""

import json
import threading

import pytest

from hf_electra_rtd.publishing.card import CardArguments
from hf_electra_rtd.publishing.hub import Published, read_publication, remember
from hf_electra_rtd.publishing.publish import PretrainingPublication
from hf_electra_rtd.training import trainer as trainer_module
from tests.publishing.card_records import evaluation_record
from tests.training.test_trainer import make_trainer


@pytest.fixture
def hub(monkeypatch):
    """What was pushed: a list of (repository, branch, card, private), and `failure`, what the Hub answers."""

    class Hub:
        def __init__(self):
            self.pushed, self.checked, self.failure, self.silent = [], [], None, None

        def publish(self, repositories, directory, private, force):
            if self.silent:
                self.silent.wait(30)
            if self.failure is not None:
                raise self.failure
            for each in repositories:
                self.pushed.append((each.repo_id, each.revision, bytes(each.files["README.md"]).decode(), private))
                assert any(name.endswith(".safetensors") for name in each.files)
            return [Published(each.repo_id, each.revision, "", True) for each in repositories]

        def check(self, repo_ids, directory, private, force):
            self.checked += repo_ids

    stand_in = Hub()
    monkeypatch.setattr(trainer_module, "publish", stand_in.publish)
    monkeypatch.setattr(trainer_module, "check", stand_in.check)
    return stand_in


def places(hub):
    return [(repo_id, revision) for repo_id, revision, *_ in hub.pushed]


BOTH = [("org/name-discriminator", None), ("org/name-generator", None)]
PUSH = {"push_to_hub": True, "hub_model_id": "org/name"}


def test_training_publishes_both_networks_with_real_cards_and_exports_as_branches(tmp_path, blocks, tokenizer, hub):
    trainer = make_trainer(tmp_path, blocks, tokenizer, hub_strategy="end", checkpoint_fractions=[0.5], **PUSH)
    assert sorted(hub.checked) == [repo_id for repo_id, _ in BOTH]
    trainer.card = CardArguments(license="cc-by-4.0", languages=["en"])
    trainer.train()
    assert sorted(places(hub), key=str) == sorted([*BOTH, *((repo, "step-3") for repo, _ in BOTH)], key=str)
    for repo_id, revision, card, private in hub.pushed:
        assert private
        assert revision or ("license: cc-by-4.0" in card and repo_id in card)
    flags = json.loads((tmp_path / "publish.json").read_text())["flags"]
    assert (flags["hub_model_id"], flags["license"], flags["private"]) == ("org/name", "cc-by-4.0", True)


def test_a_push_may_be_asked_for_at_any_time_and_saves_the_run_once(tmp_path, blocks, tokenizer, hub):
    trainer = make_trainer(tmp_path, blocks, tokenizer, hub_model_id="org/name")
    trainer.train()
    assert hub.pushed == []
    record = trainer.save_run()
    assert [each.error for each in trainer.push_to_hub()] == [None, None]
    assert sorted(places(hub)) == BOTH
    assert trainer.save_run() is record
    assert record.metrics["eval_loss"] > 0
    hub.failure = OSError("disk")
    assert ["disk" in each.error for each in trainer.push_to_hub()] == [True]
    trainer.args.hub_model_id = None
    with pytest.raises(ValueError, match="needs hub_model_id"):
        trainer.push_to_hub()


def test_a_push_keeps_the_results_and_card_facts_of_an_earlier_publication(tmp_path, blocks, tokenizer, hub):
    evaluation_record(model={"name_or_path": "org/name-discriminator"}).save(tmp_path / "glue")
    known = {"license": "mit", "authors": "Ada", "evaluations": [str(tmp_path / "glue")], "eval_results": True}
    remember(tmp_path, **known)
    trainer = make_trainer(tmp_path, blocks, tokenizer, max_steps=2, hub_strategy="end", **PUSH)
    trainer.train()
    card = dict(zip(places(hub), hub.pushed, strict=True))[BOTH[0]][2]
    assert "license: mit" in card
    assert "author = {Ada}" in card
    assert "mrpc" in card
    assert read_publication(tmp_path)["flags"].items() >= known.items()


def test_every_save_publishes_in_the_background_and_training_does_not_wait(tmp_path, blocks, tokenizer, hub):
    trainer = make_trainer(tmp_path, blocks, tokenizer, max_steps=6, save_steps=2, **PUSH)
    trainer.publication = PretrainingPublication(parts=["discriminator", "generator", "pair"])
    hub.silent = threading.Event()
    original, seen = trainer._push_from_checkpoint, []

    def watch(folder):
        original(folder)
        seen.append((trainer.state.global_step, len(list(tmp_path.glob(".step-*")))))
        if trainer.state.global_step == 6:
            hub.silent.set()

    trainer._push_from_checkpoint = watch
    trainer.train()
    assert seen == [(2, 1), (4, 1), (6, 1)]  # the save at step 4 found the first one under way
    all_three = [*BOTH, ("org/name-pair", None)]  # the joint model, too
    assert sorted(places(hub)[:3]) == sorted(places(hub)[3:]) == all_three
    assert all(each.error is None for each in trainer.published)
    assert "2 steps" in hub.pushed[0][2] or "step 2" in hub.pushed[0][2]
    assert not list(tmp_path.glob(".step-*"))
