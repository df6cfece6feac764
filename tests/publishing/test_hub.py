import time

import pytest
from huggingface_hub import constants

from hf_electra_rtd.publishing import hub as way
from hf_electra_rtd.publishing.hub import Published, Repository, check, mark, publish
from tests.publishing.hub_server import COMMIT, DISCRIMINATOR, GENERATOR, TOKEN


CARD = b"---\nlicense: mit\n---\n# A model\n"
WEIGHTS = bytes(20_000)
RUN = "2026-01-01T12:00:00+00:00"


@pytest.fixture
def weights(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(WEIGHTS)
    return tmp_path / "model.safetensors"


def model(weights, repo_id=DISCRIMINATOR, revision=None, run=RUN, config=b"{}"):
    return Repository(repo_id, {"README.md": CARD, "config.json": config, "model.safetensors": weights}, run, revision)


def titles(hub, branch="main"):
    return [commit.title for commit in hub.repositories[DISCRIMINATOR].branches[branch]]


# ---- One commit, and repeated pushes ----


def test_weights_and_card_are_one_private_commit_and_a_repeated_push_makes_no_other(weights, hub):
    assert publish([model(weights)]) == [Published(f"{hub.endpoint}/{DISCRIMINATOR}", changed=True)]
    assert hub.files(DISCRIMINATOR) == {"README.md": CARD, "config.json": b"{}", "model.safetensors": WEIGHTS}
    assert hub.repositories[DISCRIMINATOR].private
    assert len(titles(hub)) == 2  # the Hub's own, and ours
    assert not publish([model(weights)])[0].changed
    assert hub.asked(COMMIT) == 1
    assert publish([model(weights, config=b'{"a": 1}')])[0].changed
    assert len(titles(hub)) == 3


def test_files_of_a_model_that_are_gone_are_deleted_and_those_of_others_stay(weights, hub):
    adapter = {"README.md": CARD, "adapter_model.safetensors": WEIGHTS, "adapter_config.json": b"{}"}
    publish([Repository(DISCRIMINATOR, adapter, RUN)])
    others = {"banner.png": b"png", "onnx/model.onnx": b"graph"}
    hub.repositories[DISCRIMINATOR].branches["main"][-1].tree.update(others)
    publish([model(weights)])
    assert hub.files(DISCRIMINATOR).keys() == {"README.md", "config.json", "model.safetensors", *others}


# ---- Refusals before any file is sent ----


@pytest.mark.parametrize(
    ("repo_id", "token", "names"),
    [("museum/tiny", TOKEN, "role write"), ("lab/tiny", "hf_wrong", "token"), ("lab/tiny", "", "hf auth login")],
)
@pytest.mark.parametrize("is_there", [False, True])
def test_who_may_not_write_is_refused(repo_id, token, names, is_there, weights, hub, monkeypatch, tmp_path):
    if is_there:
        hub.write(repo_id, {})
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ValueError, match=names):
        check([model(weights, repo_id)])
    assert names in publish([model(weights, repo_id)])[0].error
    assert hub.asked(COMMIT) == 0


def test_what_people_write_around_our_sections_of_a_card_stays(weights, hub, caplog):
    """It stays without `force`, beside files of theirs, and at every later push."""
    old, new = (mark(f"---\nlicense: {name}\n---\n# {name}\n") for name in ("mit", "apache-2.0"))
    ours = Repository(DISCRIMINATOR, {"README.md": old.encode(), "model.safetensors": weights}, RUN)
    publish([ours])
    edited = old.replace("license: mit", "tags: [x]").replace("---\n<!--", "---\nAbove.\r\n\n<!--") + "Below.\n"
    hub.write(DISCRIMINATOR, {"README.md": edited.encode(), "cat.png": b"meow"})
    check([ours])
    ours.files["README.md"] = new.encode()
    for changed in (True, False):
        (result,) = publish([ours])
        assert (result.error, result.changed) == (None, changed)
        files = hub.files(DISCRIMINATOR)
        assert files["cat.png"] == b"meow"
        assert files["README.md"].decode() == new.replace("---\n<!--", "---\nAbove.\r\n\n<!--") + "Below.\n"
    assert DISCRIMINATOR in caplog.text  # a warning


@pytest.mark.parametrize("edit", [{"config.json": b"[]"}, {"spm.model": b"x"}, {"README.md": b"# A card"}])
def test_what_a_push_would_lose_of_an_edit_needs_force(edit, weights, hub):
    ours = model(weights)
    ours.files["README.md"] = mark(CARD.decode()).encode()
    publish([ours])
    hub.write(DISCRIMINATOR, edit)
    assert "force" in publish([ours])[0].error
    assert hub.files(DISCRIMINATOR).items() >= edit.items()
    assert publish([ours], force=True)[0].error is None
    assert not hub.files(DISCRIMINATOR).items() & edit.items()


@pytest.mark.parametrize("writer", ["a person", "another run", "a person after this run"])
def test_what_this_run_did_not_write_is_replaced_with_force_alone(writer, weights, hub):
    if writer != "a person":
        publish([model(weights, run=RUN if "this" in writer else "2025-01-01T12:00:00+00:00")])
    if writer != "another run":
        hub.write(DISCRIMINATOR, {"README.md": b"# A cat", "cat.png": b"meow"})
    before = hub.files(DISCRIMINATOR)
    commits = hub.asked(COMMIT)
    with pytest.raises(ValueError, match=DISCRIMINATOR):
        check([model(weights)])
    (refused,) = publish([model(weights)])
    assert "force" in refused.error
    assert (hub.files(DISCRIMINATOR), hub.asked(COMMIT)) == (before, commits)
    check([model(weights)], force=True)
    assert publish([model(weights)], force=True)[0].error is None
    assert hub.files(DISCRIMINATOR).items() >= {"README.md": CARD, "model.safetensors": WEIGHTS}.items()
    assert hub.files(DISCRIMINATOR).get("cat.png") == before.get("cat.png")
    assert not publish([model(weights)])[0].changed


def test_a_run_that_has_written_nothing_owns_no_repository_but_a_new_one(weights, hub):
    check([model(weights, run=None)])
    check([model(weights, run=None)])
    publish([model(weights)])
    check([model(weights)])
    with pytest.raises(ValueError, match=DISCRIMINATOR):
        check([model(weights, run=None)])


def test_a_public_repository_is_refused_unless_it_may_be_public(weights, hub):
    assert publish([model(weights)], private=False)[0].changed
    assert not hub.repositories[DISCRIMINATOR].private
    with pytest.raises(ValueError, match="private"):
        check([model(weights)])


def test_a_refused_branch_keeps_all_files_here(weights, hub):
    publish([model(weights)])
    hub.write(DISCRIMINATOR, {"cat.png": b"meow"}, "step-2")
    before = hub.everything()
    results = publish([model(weights, config=b'{"a": 1}'), model(weights, revision="step-2")])
    assert ["step-2" in published.error for published in results] == [True, True]
    assert hub.everything() == before


def test_an_edit_during_the_upload_is_not_overwritten(weights, hub):
    hub.actions["preupload"] = lambda: hub.write(DISCRIMINATOR, {"README.md": b"# By hand\n"})
    assert publish([model(weights)])[0].error is not None
    assert hub.files(DISCRIMINATOR) == {"README.md": b"# By hand\n"}


# ---- Failures of the Hub ----


@pytest.mark.parametrize(
    ("pattern", "status", "reason", "is_final"),
    [
        ("repos/create", 403, "Private repository storage limit reached", True),
        ("auth-check", 503, "Out of order", False),
        (COMMIT, 403, "You need the role write", None),
        (COMMIT, 429, "Slow down", None),
        (COMMIT, 500, f"Broken, https://x.org/?token={TOKEN}", None),
    ],
)
def test_a_failure_is_told_in_the_hubs_words_and_a_later_push_completes_it(
    pattern, status, reason, is_final, weights, hub, caplog
):
    hub.failures[pattern] = (status, reason)
    if is_final:
        with pytest.raises(ValueError, match=reason):
            check([model(weights)])
    elif is_final is not None:
        check([model(weights)])
        assert reason in caplog.text  # a warning: the run may start
    error = publish([model(weights)])[0].error
    assert reason.partition(TOKEN)[0] in error
    assert TOKEN not in error
    hub.failures.clear()
    assert publish([model(weights)])[0].error is None
    assert len(titles(hub)) == 2


@pytest.mark.parametrize("pattern", ["whoami", "repos/create", COMMIT])
def test_a_page_in_place_of_an_answer_is_told_and_does_not_stop_a_run(pattern, weights, hub, caplog):
    hub.failures[pattern] = (200, "<html>Maintenance</html>")
    check([model(weights)])
    assert (hub.endpoint in caplog.text) == (pattern != COMMIT)
    assert hub.endpoint in publish([model(weights)])[0].error


def test_the_first_failure_ends_the_push(weights, hub):
    hub.failures["POST /api/models/lab/b/commit"] = (500, "Out of order")
    results = publish([model(weights, f"lab/{name}") for name in "abc"])
    assert [published.error is None for published in results] == [True, False, False]
    assert hub.asked(COMMIT) == 2


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(way, "PAUSE", 0.05)
    monkeypatch.setattr(way, "ANSWER", 0.1)


@pytest.mark.parametrize("pattern", ["whoami", "preupload", COMMIT])
def test_a_silent_hub_is_given_up(pattern, weights, hub, impatient, caplog):
    hub.silence = pattern
    begin = time.monotonic()
    results = publish([model(weights), model(weights, GENERATOR)])
    assert time.monotonic() - begin < 5
    assert [hub.endpoint in published.error for published in results] == [True, True]
    check([model(weights)])
    assert hub.endpoint in caplog.text  # a warning: the run may start


def test_an_upload_that_takes_long_is_not_ended(weights, hub, impatient):
    hub.actions[COMMIT] = lambda: time.sleep(1)
    assert publish([model(weights)])[0].changed
    assert hub.asked("HEAD") > way.CALLS


def test_what_cannot_be_read_or_reached_is_an_error_of_the_push_alone(weights, hub, monkeypatch, caplog):
    assert "absent" in publish([model(weights.with_name("absent"))])[0].error
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in publish([model(weights)])[0].error
    check([model(weights)])
    assert "HF_HUB_OFFLINE" in caplog.text
