import re

import pytest
from huggingface_hub import constants

from hf_electra_rtd.publishing import hub as way
from hf_electra_rtd.publishing.hub import Published, Repository, check, publish, remember
from tests.publishing.fake_hub import COMMIT, DISCRIMINATOR, GENERATOR, PREFIX, TOKEN


# The library's own way of uploading without Xet.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

CARD = b"---\nlicense: mit\n---\n# A model\n"
LARGE = bytes(20_000)
CHANGES = "^(POST /api/repos/create|POST /api/models|PUT)"


@pytest.fixture
def run(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(LARGE)
    return tmp_path


def model(run, revision=None, repo_id=DISCRIMINATOR, **more):
    """`more` are JSON files by the names without ending."""
    files = {"README.md": CARD, "config.json": b"{}", "model.safetensors": run / "model.safetensors"}
    return Repository(repo_id, {**files, **{f"{name}.json": content for name, content in more.items()}}, revision)


def send(run, *repositories, **options):
    return publish(repositories or [model(run)], run, **options)


def titles(hub, branch="main"):
    return [commit.title for commit in hub.repositories[DISCRIMINATOR].branches[branch]]


# ---- One commit, repeated without harm ----


@pytest.mark.parametrize("lost", [0, 1])
def test_weights_and_card_are_one_private_commit_and_neither_a_lost_answer_nor_a_repetition_makes_another(
    lost, run, hub
):
    hub.fail(COMMIT, lost=True, times=lost)
    assert send(run) == [Published(f"{hub.endpoint}/{DISCRIMINATOR}", changed=not lost)]
    assert hub.files(DISCRIMINATOR) == {"README.md": CARD, "config.json": b"{}", "model.safetensors": LARGE}
    assert hub.repositories[DISCRIMINATOR].private
    assert len(titles(hub)) == 2  # the Hub's own, and ours
    assert not send(run)[0].changed
    assert hub.asked(COMMIT) == 1
    assert send(run, model(run, notes=b"{}"))[0].changed
    assert len(titles(hub)) == 3


def test_files_of_ours_that_are_gone_are_deleted_and_those_of_others_stay(run, hub):
    adapters = {"adapter_model.safetensors": LARGE, "adapter_config.json": b"{}"}
    send(run, Repository(DISCRIMINATOR, {"README.md": CARD, **adapters}))
    others = {"banner.png": b"png", "onnx/model.onnx": b"graph"}
    hub.repositories[DISCRIMINATOR].branches["main"][-1].tree.update(others)
    send(run)
    assert set(hub.files(DISCRIMINATOR)) == {"README.md", "config.json", "model.safetensors", *others}


@pytest.mark.parametrize("pattern", ["whoami", "repos/create", "preupload", "objects", COMMIT])
@pytest.mark.parametrize("failure", [{"status": 503}, {"broken": True}], ids=["503", "broken"])
def test_a_failure_of_a_moment_is_overcome(pattern, failure, run, hub):
    hub.fail(pattern, times=1, **failure)
    assert [published.error for published in send(run)] == [None]
    assert len(titles(hub)) == 2


# ---- Refusals, before anything is sent ----


@pytest.mark.parametrize(
    ("repo_id", "token", "role", "message"),
    [
        ("strangers/tiny", TOKEN, "write", "maria may not write there"),
        ("museum/tiny", TOKEN, "write", "maria may not write there"),
        ("lab/tiny", TOKEN, "read", "maria may not write there, or not with this token"),
        ("lab/tiny", "hf_wrong", "write", "does not accept the token.*hf auth login"),
        ("lab/tiny", "", "write", "nobody is logged in to the Hub.*hf auth login"),
    ],
)
def test_who_may_not_write_is_refused(repo_id, token, role, message, run, hub, monkeypatch, tmp_path):
    hub.identity["auth"]["accessToken"]["role"] = role
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setenv("HF_TOKEN", token)
    for refuses in (lambda: send(run, model(run, repo_id=repo_id)), lambda: check([repo_id], run)):
        with pytest.raises(ValueError, match=message):
            refuses()
    assert hub.asked(CHANGES) == 0


WRITTEN = {  # by whom, as the message says
    "somebody else.*cat.png": lambda hub, run: hub.add(DISCRIMINATOR, {"README.md": b"# A cat", "cat.png": b"meow"}),
    "another run": lambda hub, run: publish([model(run, config=b'{"a": 1}')], run / "another"),
    "somebody else.*'By hand'": lambda hub, run: (send(run), hub.add(DISCRIMINATOR, {"README.md": b"# Contact"})),
}


@pytest.mark.parametrize(("message", "write"), WRITTEN.items())
def test_what_this_run_did_not_write_is_replaced_with_force_alone(message, write, run, hub):
    write(hub, run)
    before = hub.files(DISCRIMINATOR), hub.asked(CHANGES)
    with pytest.raises(ValueError, match=f"{DISCRIMINATOR}, branch main: the last commit is of {message}.*--force"):
        send(run)
    assert (hub.files(DISCRIMINATOR), hub.asked(CHANGES)) == before
    send(run, force=True)
    assert hub.files(DISCRIMINATOR).items() >= {"README.md": CARD, "model.safetensors": LARGE}.items()
    assert hub.files(DISCRIMINATOR).get("cat.png") == before[0].get("cat.png")
    assert not send(run)[0].changed


def test_a_run_without_a_key_owns_nothing_on_the_hub(run, hub):
    send(run)
    check([DISCRIMINATOR], run)
    with pytest.raises(ValueError, match="the last commit is of another run"):
        check([DISCRIMINATOR], None)


def test_a_public_repository_is_refused_unless_it_may_be_public(run, hub):
    assert send(run, private=False)[0].changed
    assert not hub.repositories[DISCRIMINATOR].private
    with pytest.raises(ValueError, match=r"is public.+--private False"):
        send(run)


def test_an_edit_during_the_upload_is_not_overwritten(run, hub, monkeypatch):
    send(run)
    look, looks = way._look, []

    def then_somebody_commits(*arguments):
        there = look(*arguments)
        looks.append(there)
        if len(looks) == 2:  # the first is the check
            hub.add(DISCRIMINATOR, {"README.md": b"# By hand\n"})
        return there

    monkeypatch.setattr(way, "_look", then_somebody_commits)
    (published,) = send(run, model(run, config=b'{"a": 1}'))
    assert "changed by somebody else at the same time" in published.error
    assert hub.files(DISCRIMINATOR)["README.md"] == b"# By hand\n"


def test_a_refused_publication_leaves_nothing_on_the_hub(run, hub):
    remember(run, hub_model_id=PREFIX)
    cards = Repository(GENERATOR, {"README.md": CARD})
    with pytest.raises(ValueError, match="lab/tiny-generator does not exist yet"):
        send(run, model(run), cards)
    send(run)
    hub.collections.clear()
    hub.repositories[DISCRIMINATOR].commit("step-2", "By hand", {"cat.png": b"meow"})
    before = hub.everything()
    with pytest.raises(ValueError, match="branch step-2: the last commit is of somebody else"):
        send(run, model(run, config=b'{"a": 1}'), model(run, "step-2"))
    assert (hub.everything(), hub.collections) == (before, {})


# ---- A Hub that fails ----


REFUSALS = [  # what happens there, what is said, and how often it is tried
    ({"status": 403, "said": "Private repository storage limit reached"}, "the storage of its owner is full", 1),
    ({"status": 403, "said": "You need the role write"}, "the token may not write there", 1),
    ({"status": 401, "said": "Invalid credentials"}, "does not accept the token", 1),
    ({"status": 429, "said": "Slow down"}, "too many requests.*publish --resume", 3),
    ({"status": 503, "said": "Out of order"}, "answers with status 503.*publish --resume", 3),
]


@pytest.mark.parametrize(
    ("pattern", "failure", "message", "tries"),
    [
        *((pattern, *refusal) for pattern in ("objects/batch", COMMIT) for refusal in REFUSALS),
        (COMMIT, {"status": 403}, "the storage of its owner is full, or the token may not write there", 1),
        (".", {"broken": True}, "cannot be reached.*Check the network.*publish --resume", 3),
        ("validate-yaml", {"status": 400}, "refuses this.*README.md", 1),
    ],
)
def test_limits_quota_rights_and_outage_are_told_apart_and_a_later_push_completes_what_failed(
    pattern, failure, message, tries, run, hub
):
    hub.fail(pattern, **failure)
    error = send(run)[0].error
    said = f".*It says: {failure['said']}" if "said" in failure else ""
    assert re.search(message + said, error), error
    assert TOKEN not in error
    assert min(hub.asked(pattern), 3) == tries
    hub.failures.clear()
    assert send(run)[0].error is None
    assert len(titles(hub)) == 2


def test_the_first_unreachable_answer_ends_the_delivery(run, hub):
    hub.fail(f"{COMMIT}main".replace(".*", "lab/tiny-b"), status=500)
    results = send(run, *(model(run, repo_id=f"lab/tiny-{name}") for name in "abc"))
    assert [published.error is None for published in results] == [True, False, False]
    assert hub.asked(f"{COMMIT}main") == 1 + 3  # none of the last


@pytest.mark.parametrize(("pattern", "tries"), [(".", 1), ("objects/batch", 2), ("PUT", 2), (COMMIT, 1)])
def test_a_silent_hub_is_given_up_within_90_seconds_and_no_limit_stays(pattern, tries, run, hub, monkeypatch):
    pauses, silence = [], way.SILENCE
    monkeypatch.setattr(way.time, "sleep", pauses.append)  # the library's, too
    for name in ("SILENCE", "PATIENCE"):
        monkeypatch.setattr(way, name, getattr(way, name) / 150)
    hub.fail(pattern, silent=2.0)
    first, second = send(run, model(run), model(run, repo_id=GENERATOR))
    assert "cannot be reached" in first.error
    assert second.error == first.error
    assert hub.asked(pattern) == tries
    assert tries * silence + sum(pauses) < 90
    assert hub.asked("xet|cas") == 0
    assert (len(way._http.get_session().event_hooks["request"]), constants.HF_HUB_DISABLE_XET) == (1, False)


UNREADABLE = PermissionError(13, "Permission denied", "model.safetensors")
UPLOAD = RuntimeError("Error while uploading 'model.safetensors' to the Hub.")  # as the library says it
UPLOAD.__cause__ = UNREADABLE


@pytest.mark.parametrize("error", [UNREADABLE, UPLOAD, AttributeError("x")], ids=["file", "upload", "bug"])
def test_an_error_of_this_machine_or_package_is_not_told_as_the_hubs(error, run, hub, monkeypatch):
    def fails(*arguments, **options):
        raise error

    monkeypatch.setattr("huggingface_hub.HfApi.create_commit", fails)
    with pytest.raises(type(error)):
        send(run)


def test_offline_mode_is_named(run, hub, monkeypatch, caplog):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in send(run)[0].error
    check([DISCRIMINATOR], run)
    assert "The run starts all the same" in caplog.text
