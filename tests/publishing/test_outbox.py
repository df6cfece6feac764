import json
import os
import shutil
import time

import pytest
from huggingface_hub import HfApi

from hf_electra_rtd.publishing.hub import CARD_TAG, Publisher
from hf_electra_rtd.publishing.hub_errors import HubError
from hf_electra_rtd.publishing.outbox import Outbox
from hf_electra_rtd.publishing.repositories import Repository, RepositoryFile
from tests.publishing.fake_hub import TOKEN


CARD = f"---\ntags:\n- {CARD_TAG}\n---\n# Card\n".encode()


@pytest.fixture
def outbox(tmp_path):
    return Outbox(tmp_path)


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "checkpoint-5" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes(b"weights of step 5")
    return path


def repository(weights, repo_id="maria/electra", **options):
    files = (RepositoryFile("README.md", CARD), RepositoryFile("model.safetensors", weights))
    return Repository(repo_id, files, "Upload a model", **options)


def test_what_is_kept_is_sent_later_even_when_its_checkpoint_was_rotated_away(fake_hub, publisher, outbox, weights):
    kept = outbox.keep(repository(weights, tag="v1"), "no network", private=True)
    shutil.rmtree(weights.parent)
    assert [(item.repo_id, item.reason, item.private) for item in outbox.pending()] == [
        ("maria/electra", "no network", True)
    ]
    [sent] = outbox.send(publisher)
    assert sent.error is None
    assert sent.pushed.tag == "v1"
    assert fake_hub.files("maria/electra")["model.safetensors"] == b"weights of step 5"
    assert outbox.pending() == []
    assert not kept.path.exists()
    assert outbox.send(publisher) == []


def test_what_gets_through_goes_and_the_rest_stays_in_order(fake_hub, publisher, outbox, weights):
    for name in ("a", "b", "c"):
        outbox.keep(repository(weights, f"maria/{name}"), "no network")
    fake_hub.fail("/api/models/maria/b/commit", status=403)
    sent = outbox.send(publisher)
    assert [(each.kept.repo_id, each.pushed is None) for each in sent] == [
        ("maria/a", False),
        ("maria/b", True),
        ("maria/c", False),
    ]
    assert "maria/b: the token may not write there" in str(sent[1].error)
    assert [item.repo_id for item in outbox.pending()] == ["maria/b"]
    outbox.send(publisher)
    assert outbox.pending() == []


@pytest.mark.parametrize("copies", [False, True])
def test_a_file_that_changed_or_is_gone_is_named_and_holds_no_other_up(
    fake_hub, publisher, outbox, weights, copies, monkeypatch
):
    if copies:

        def refuse(*arguments):
            raise OSError("no links here")

        monkeypatch.setattr(os, "link", refuse)
    changed = outbox.keep(repository(weights, "maria/a"), "no network")
    gone = outbox.keep(repository(weights, "maria/b"), "no network")
    (gone.path / "files" / "1").unlink()
    other = weights.with_name("other")
    other.write_bytes(b"other")
    outbox.keep(repository(other, "maria/c"), "no network")
    weights.write_bytes(b"weights of step 9")  # in place, as large
    sent = outbox.send(publisher)
    assert sent[2].error is None
    assert "model.safetensors is gone" in str(sent[1].error)
    if copies:
        assert fake_hub.files("maria/a")["model.safetensors"] == b"weights of step 5"
    else:
        assert "model.safetensors was written over" in str(sent[0].error)
        assert str(changed.path) in str(sent[0].error)
        assert ("models", "maria/a") not in fake_hub.repositories


def test_links_take_no_room(outbox, weights):
    kept = outbox.keep(repository(weights), "no network")
    assert (kept.path / "files" / "1").samefile(weights)


def test_what_was_kept_before_for_the_same_place_is_out_of_date(outbox, weights):
    for options in ({}, {"revision": "step-1"}, {"tag": "v1"}, {}):
        outbox.keep(repository(weights, **options), "no network")
    places = [(item.revision, item.tag) for item in outbox.pending()]
    assert places == [("step-1", None), (None, "v1"), (None, None)]


def test_a_kill_while_it_is_kept_leaves_what_was_there_before(outbox, weights, monkeypatch, tmp_path):
    outbox.keep(repository(weights), "before")

    def killed(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(json, "dumps", killed)
        with pytest.raises(KeyboardInterrupt):
            outbox.keep(repository(weights), "after")
    assert [item.reason for item in outbox.pending()] == ["before"]
    outbox.keep(repository(weights), "again")
    assert [item.reason for item in outbox.pending()] == ["again"]
    [left] = [path for path in (tmp_path / ".publish").iterdir() if path.name.startswith(".")]
    os.utime(left, (time.time() - 2 * 24 * 3600,) * 2)
    outbox.keep(repository(weights, "maria/other"), "later")
    assert not left.exists()


@pytest.mark.parametrize("where", ["repository", "_remove"])
def test_a_kill_while_it_is_sent_leads_to_no_second_commit(fake_hub, publisher, outbox, weights, monkeypatch, where):
    from hf_electra_rtd.publishing import outbox as module

    def killed(*arguments, **options):
        raise KeyboardInterrupt

    outbox.keep(repository(weights), "no network")
    with monkeypatch.context() as patch:
        patch.setattr(module.Kept if where == "repository" else Outbox, where, killed)
        with pytest.raises(KeyboardInterrupt):
            outbox.send(publisher)
    assert len(outbox.pending()) == 1
    outbox.send(publisher)
    assert outbox.pending() == []
    assert fake_hub.log("maria/electra") == ["Upload a model", "initial commit"]


def test_an_item_that_cannot_be_read_is_warned_about_and_stays(fake_hub, publisher, outbox, weights, caplog):
    broken = outbox.keep(repository(weights, "maria/a"), "no network")
    (broken.path / "manifest.json").write_text("{")
    outbox.keep(repository(weights, "maria/b"), "no network")
    [sent] = outbox.send(publisher)
    assert sent.pushed.repo_id == "maria/b"
    assert str(broken.path) in caplog.text
    assert broken.path.exists()


@pytest.mark.parametrize(
    "change", [{"repo_id": "nobody"}, {"files": [{"path_in_repo": "README.md"}]}, {"files": [{}]}, {"files": [3]}]
)
def test_an_item_whose_manifest_says_what_cannot_be_holds_no_other_up(fake_hub, publisher, outbox, weights, change):
    broken = outbox.keep(repository(weights, "maria/a"), "no network")
    manifest = json.loads((broken.path / "manifest.json").read_text())
    (broken.path / "manifest.json").write_text(json.dumps({**manifest, **change}))
    outbox.keep(repository(weights, "maria/b"), "no network")
    first, second = outbox.send(publisher)
    assert second.pushed.repo_id == "maria/b"
    assert str(broken.path) in str(first.error)
    assert "Publish the run again" in str(first.error)
    assert [item.path for item in outbox.pending()] == [broken.path]


def test_what_is_said_when_it_is_sent_counts_instead_of_what_was_kept(fake_hub, publisher, outbox, weights):
    fake_hub.add("maria/electra", {"README.md": b"theirs"}, private=False)
    outbox.keep(repository(weights), "no network", private=True)
    assert "is public already" in str(outbox.send(publisher)[0].error)
    assert "holds something else" in str(outbox.send(publisher, private=False)[0].error)
    assert outbox.send(publisher, private=False, force=True)[0].error is None


def test_no_token_is_kept(fake_hub, outbox, weights, tmp_path):
    fake_hub.fail("commit", status=403, body={"error": f"no right for {TOKEN}"})
    publisher = Publisher(HfApi(endpoint=fake_hub.endpoint, token=TOKEN), pauses=())
    with pytest.raises(HubError) as caught:
        publisher.push(repository(weights))
    outbox.keep(repository(weights), str(caught.value))
    for path in (tmp_path / ".publish").rglob("*"):
        assert path.is_dir() or TOKEN.encode() not in path.read_bytes()


def test_force_and_branch_are_kept(fake_hub, publisher, outbox, weights):
    fake_hub.add("maria/electra", {"README.md": b"theirs"})
    outbox.keep(repository(weights, revision="step-5"), "no network", force=True)
    [sent] = outbox.send(publisher)
    assert sent.pushed.revision == "step-5"
    assert fake_hub.files("maria/electra", "step-5")["README.md"] == CARD
