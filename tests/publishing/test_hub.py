import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import textwrap

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.utils import get_session
from transformers import ElectraConfig, ElectraForPreTraining

from hf_electra_rtd.publishing.hub import CARD_TAG, Publisher
from hf_electra_rtd.publishing.hub_errors import HubError
from hf_electra_rtd.publishing.privacy import without_local_paths
from hf_electra_rtd.publishing.repositories import Repository, RepositoryFile, model_files
from hf_electra_rtd.records import EVALUATION_FILE, RECORD_FILE, PretrainingRecord
from hf_electra_rtd.towers import save_tokenizer
from tests.publishing.card_records import evaluation_record, run_record
from tests.publishing.fake_hub import TOKEN


# `huggingface_hub` uploads large files without hf_xet in a way that its client library calls old.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "maria/electra"
CARD = f"---\ntags:\n- {CARD_TAG}\n---\n# Card\n".encode()
WEIGHTS = bytes(range(256)) * 8
FILES = {"README.md": CARD, "config.json": b"{}\n", "model.safetensors": WEIGHTS}
COMMIT = "POST /api/models/.*/commit/"


def repository(changes=None, repo_id=REPO, **options):
    files = {path: content for path, content in {**FILES, **(changes or {})}.items() if content is not None}
    contents = tuple(RepositoryFile(path, content) for path, content in files.items())
    return Repository(repo_id, contents, "Upload a model", **options)


def ours(hub, repo_id=REPO, branch="main"):
    return {path: content for path, content in hub.files(repo_id, branch).items() if path != ".gitattributes"}


def refusal(publisher, *arguments, **options):
    with pytest.raises(HubError) as caught:
        publisher.push(*arguments, **options)
    assert TOKEN not in str(caught.value)
    return caught.value


def as_user(hub, publisher, token="hf_another", name="maria", orgs=None, **access_token):
    hub.add_user(token, name, orgs or {}, **access_token)
    return Publisher(HfApi(endpoint=hub.endpoint, token=token), pauses=())


# ---- What a push does ----


@pytest.mark.parametrize("lfs_from", [None, 1000])
def test_a_push_is_one_commit_into_a_private_repository(fake_hub, publisher, lfs_from):
    fake_hub.lfs_from = lfs_from
    pushed = publisher.push(repository())
    assert ours(fake_hub) == FILES
    assert fake_hub.log(REPO) == ["Upload a model", "initial commit"]
    assert fake_hub.repositories["models", REPO].private
    assert pushed.private
    assert pushed.changed
    assert pushed.url == f"{fake_hub.endpoint}/{REPO}"
    assert pushed.commit == fake_hub.repositories["models", REPO].branches["main"]
    assert bool(fake_hub.large_objects) == (lfs_from is not None)


@pytest.mark.parametrize("lfs_from", [None, 1000])
def test_the_same_push_again_changes_nothing(fake_hub, publisher, lfs_from):
    fake_hub.lfs_from = lfs_from
    first = publisher.push(repository(tag="v1"))
    again = publisher.push(repository(tag="v1"))
    assert (again.commit, again.changed) == (first.commit, False)
    assert len(fake_hub.log(REPO)) == 2
    assert fake_hub.asked(COMMIT) == 1


def test_a_new_repository_is_public_only_where_that_was_asked_for(fake_hub, publisher):
    assert not publisher.push(repository(), private=False).private
    assert not fake_hub.repositories["models", REPO].private
    error = refusal(publisher, repository({"config.json": b'{"a": 1}'}), private=True)
    assert "is public already" in str(error)
    assert ours(fake_hub) == FILES


def test_files_of_ours_that_are_no_longer_there_go_in_the_same_commit_and_those_of_others_stay(fake_hub, publisher):
    shards = {f"model-0000{i}-of-00002.safetensors": bytes([i]) * 9 for i in (1, 2)}
    publisher.push(repository({"model.safetensors": None, "model.safetensors.index.json": b"{}", **shards}))
    fake_hub.add(REPO, {"notes.md": b"by a person", "onnx/model.onnx": b"o"})
    publisher.push(repository())
    assert ours(fake_hub) == {**FILES, "notes.md": b"by a person", "onnx/model.onnx": b"o"}
    assert fake_hub.log(REPO) == ["Upload a model", "by hand", "Upload a model", "initial commit"]


def test_only_what_changed_is_sent(fake_hub, publisher):
    fake_hub.lfs_from = 1000
    publisher.push(repository())
    publisher.push(repository({"config.json": b'{"a": 1}'}))
    assert fake_hub.asked("PUT /large-objects") == 1
    assert ours(fake_hub)["config.json"] == b'{"a": 1}'


def test_a_card_that_the_hub_refuses_stops_the_push_before_anything_is_sent(fake_hub, publisher):
    error = refusal(publisher, repository({"README.md": b"---\ntags: [a\n---\n"}))
    assert "bad YAML" in str(error)
    assert not error.retryable
    assert ours(fake_hub) == {}


def test_reading_back_notices_a_spoiled_file(fake_hub, publisher):
    fake_hub.corrupted.add("model.safetensors")
    error = refusal(publisher, repository())
    assert "model.safetensors" in str(error)
    assert "does not hold what was sent" in str(error)
    fake_hub.corrupted.clear()
    publisher.push(repository())
    assert ours(fake_hub) == FILES


def test_a_file_that_changes_while_it_is_sent_is_noticed(fake_hub, publisher, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(WEIGHTS)
    given = Repository(REPO, (RepositoryFile("README.md", CARD), RepositoryFile(path.name, path)), "m")
    assert given.files[1].sha256 == hashlib.sha256(WEIGHTS).hexdigest()
    path.write_bytes(WEIGHTS[::-1])
    assert "may have changed meanwhile" in str(refusal(publisher, given))


# ---- Branches and tags ----


def test_a_branch_holds_one_state_of_the_model_alone(fake_hub, publisher):
    publisher.push(repository({"spm.model": b"s"}))
    fake_hub.add(REPO, {"notes.md": b"by a person"})
    early = {"model.safetensors": WEIGHTS[:100]}
    for _ in range(2):
        pushed = publisher.push(repository(early, revision="step-10"))
    assert ours(fake_hub, branch="step-10") == {**FILES, **early}
    assert fake_hub.log(REPO, "step-10") == ["Upload a model", "initial commit"]
    assert ours(fake_hub) == {**FILES, "spm.model": b"s", "notes.md": b"by a person"}
    assert pushed.url.endswith(f"/{REPO}/tree/step-10")


def test_a_branch_can_come_before_anything_lies_on_main(fake_hub, publisher):
    publisher.push(repository(revision="step-10"))
    assert ours(fake_hub, branch="step-10") == FILES
    assert ours(fake_hub) == {}
    publisher.push(repository())
    assert ours(fake_hub) == FILES


def test_a_tag_names_the_commit_and_is_never_moved(fake_hub, publisher):
    first = publisher.push(repository(tag="v1"))
    error = refusal(publisher, repository({"config.json": b'{"a": 1}'}, tag="v1"))
    assert "the tag v1 names another commit" in str(error)
    assert fake_hub.repositories["models", REPO].tags == {"v1": first.commit}
    assert ours(fake_hub) == FILES, "nothing is sent where the tag is taken"


# ---- Before anything is sent ----


def test_what_somebody_else_put_there_is_not_written_over_without_force(fake_hub, publisher):
    fake_hub.add(REPO, {"README.md": b"# Theirs\n", "pytorch_model.bin": b"x"})
    error = refusal(publisher, repository())
    assert "README.md, pytorch_model.bin" in str(error)
    assert "--force" in str(error)
    assert fake_hub.log(REPO) == ["by hand", "initial commit"]
    publisher.push(repository(), force=True)
    assert ours(fake_hub) == {**FILES, "pytorch_model.bin": b"x"}


def test_with_force_nothing_of_somebody_else_goes_though_it_is_named_as_ours(fake_hub, publisher):
    theirs = {"README.md": b"# Theirs\n", "vocab.json": b"{}", "model.safetensors.index.json": b"{}"}
    fake_hub.add(REPO, theirs)
    publisher.push(repository(), force=True)
    assert ours(fake_hub) == {**theirs, **FILES}


def of_run(record):
    """A repository with a record among its files."""
    name = RECORD_FILE if isinstance(record, PretrainingRecord) else EVALUATION_FILE
    return repository({name: json.dumps(without_local_paths(dataclasses.asdict(record))).encode()})


RUN = run_record(training={"max_steps": 7300})
TUNED = evaluation_record(model={"sha256": "5a5a"})


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (RUN, RUN),
        # A session more: resumed elsewhere, later, with another library, half way or at the end.
        (RUN, dataclasses.replace(RUN, started="2027", command="pretrain.py --resume_from_checkpoint latest")),
        (RUN, dataclasses.replace(RUN, versions={}, steps=10, curves=[], metrics={}, model=RUN.model | {"x": 1})),
        (TUNED, TUNED),
        (TUNED, dataclasses.replace(TUNED, seed=43, started="2027", metrics={"dev": {"accuracy": 0.9}})),
    ],
)
def test_the_same_run_is_published_again(fake_hub, publisher, first, then):
    publisher.push(of_run(first))
    publisher.push(of_run(then))
    assert ours(fake_hub) == contents(of_run(then))


def contents(given):
    return {file.path_in_repo: file.read() for file in given.files}


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        (RUN, run_record(training={"max_steps": 7300, "seed": 7}), "seed 42, here 7"),
        (RUN, run_record(training={"max_steps": 100}), "max_steps 7300, here 100"),
        (RUN, run_record(training={"max_steps": 7300, "learning_rate": 1e-3}), "learning_rate 0.0005, here 0.001"),
        (RUN, run_record("electric", training={"max_steps": 7300}), "objective rtd, here electric"),
        (RUN, dataclasses.replace(RUN, parameters={"total": 5}), "parameters"),
        (RUN, dataclasses.replace(RUN, data={"train": {"sha256": "0"}}), r"rows (sha256) 6aa990, here 0"),
        (RUN, TUNED, "it holds run_record.json"),
        (TUNED, evaluation_record("rte", model={"sha256": "5a5a"}), "task mrpc, here rte"),
        (TUNED, evaluation_record(model={"sha256": "6b6b"}), "fine-tuned model 5a5a, here 6b6b"),
        (TUNED, evaluation_record(), "fine-tuned model 5a5a, here runs/tiny"),
    ],
)
def test_another_run_of_ours_is_not_written_over_without_force(fake_hub, publisher, first, then, said):
    publisher.push(of_run(first))
    error = refusal(publisher, of_run(then))
    assert f"{REPO} holds another run" in str(error)
    assert said in str(error)
    assert "Choose another --repo_prefix" in str(error)
    assert "--force" in str(error)
    assert not error.retryable
    assert ours(fake_hub) == contents(of_run(first))
    publisher.push(of_run(then), force=True)
    assert ours(fake_hub) == contents(of_run(then))


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b'{"model": 1}', b"\xff"])
def test_a_record_that_cannot_be_read_counts_as_another_run(fake_hub, publisher, content):
    fake_hub.add(REPO, {"README.md": CARD, RECORD_FILE: content})
    assert "holds another run (run_record.json cannot be read)" in str(refusal(publisher, of_run(RUN)))


def test_a_repository_that_was_made_but_is_empty_is_written_to(fake_hub, publisher):
    fake_hub.add(REPO, {})
    assert publisher.check(repository().repo_id).files.keys() == {".gitattributes"}
    publisher.push(repository())
    assert ours(fake_hub) == FILES


def test_a_check_writes_nothing(fake_hub, publisher):
    assert publisher.check(repository().repo_id) is None
    assert fake_hub.repositories == {}


@pytest.mark.parametrize(
    ("repo_id", "said"),
    [
        ("museum/electra", "may only read in museum (role 'read'). Ask for write access to museum"),
        ("stranger/electra", "maria is no member of stranger. Ask for write access to stranger"),
    ],
)
def test_who_may_not_write_is_told_before_anything_is_sent(fake_hub, publisher, repo_id, said):
    error = refusal(publisher, repository(repo_id=repo_id))
    assert said in str(error)
    assert "another --repo_prefix, such as maria/..." in str(error)
    assert fake_hub.requests == ["GET /api/whoami-v2"]


def test_a_member_of_an_organisation_may_write_there(fake_hub, publisher):
    publisher.push(repository(repo_id="lab/electra"))
    assert ours(fake_hub, "lab/electra") == FILES


def test_a_token_that_only_reads_is_told(fake_hub, publisher):
    error = refusal(as_user(fake_hub, publisher, role="read"), repository())
    assert "the token of maria may only read" in str(error)


@pytest.mark.parametrize(
    ("entity", "permissions", "may"),
    [
        ({"type": "user", "name": "maria"}, ["repo.content.read", "repo.write"], True),
        ({"type": "user", "name": "maria"}, ["repo.content.read"], False),
        ({"type": "org", "name": "lab"}, ["repo.write"], False),
    ],
)
def test_the_permissions_of_a_fine_grained_token_count(fake_hub, publisher, entity, permissions, may):
    scopes = {"scoped": [{"entity": entity, "permissions": permissions}]}
    other = as_user(fake_hub, publisher, role="fineGrained", fineGrained=scopes)
    if may:
        other.push(repository())
        assert ours(fake_hub) == FILES
    else:
        assert "no permission to write to repositories of maria" in str(refusal(other, repository()))


def test_a_role_in_a_resource_group_lets_write(fake_hub, publisher):
    other = as_user(fake_hub, publisher, orgs={"museum": "read"})
    fake_hub.identities["hf_another"]["orgs"][0]["resourceGroups"] = [{"name": "nlp", "role": "write"}]
    assert other.check("museum/electra") is None


# ---- A Hub that fails ----


def test_a_wrong_token_is_told_once_and_not_shown(fake_hub, waits):
    wrong = Publisher(HfApi(endpoint=fake_hub.endpoint, token="hf_wrongWrongWrong"), sleep=waits.append)
    error = refusal(wrong, repository())
    assert "does not accept the token" in str(error)
    assert "hf auth login" in str(error)
    assert "hf_wrong" not in str(error)
    assert error.__suppress_context__
    assert not error.retryable
    assert waits == []


def test_nobody_logged_in_is_told(fake_hub, monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    error = refusal(Publisher(HfApi(endpoint=fake_hub.endpoint)), repository())
    assert "nobody is logged in" in str(error)
    assert fake_hub.requests == []


def test_offline_mode_is_told(fake_hub, publisher, monkeypatch, waits):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    error = refusal(publisher, repository())
    assert "offline mode is on (HF_HUB_OFFLINE)" in str(error)
    assert waits == []


@pytest.mark.parametrize(
    ("status", "said", "retryable"),
    [
        (400, "refuses this with status 400 (a reason)", False),
        (401, "does not accept the token (a reason)", False),
        (403, "the token may not write there (a reason). Ask for write access to maria", False),
        (404, "was not found (a reason)", False),
        (409, "was changed by somebody else at the same time (a reason)", True),
        (412, "was changed by somebody else at the same time (a reason)", True),
        (413, "a file is too large for the Hub (a reason)", False),
        (429, "too many requests; the Hub wants the next one later (a reason). What was not sent", True),
        (500, "a problem of its own (status 500) (a reason)", True),
        (503, "publish.py --resume", True),
    ],
)
def test_every_refusal_of_the_commit_says_what_to_do_and_leaves_the_repository_as_it_was(
    fake_hub, publisher, status, said, retryable
):
    publisher.push(repository())
    fake_hub.fail(COMMIT, times=99, status=status, body={"error": "a reason"})
    error = refusal(publisher, repository({"config.json": b'{"a": 1}'}))
    assert REPO in str(error)
    assert said in str(error)
    assert error.retryable == retryable
    assert ours(fake_hub) == FILES
    assert fake_hub.asked(COMMIT) == 1 + (3 if status in (429, 500, 503) else 1)


def test_a_token_that_the_hub_repeats_is_not_shown(fake_hub, publisher):
    fake_hub.fail(COMMIT, status=403, body={"error": f"{TOKEN} has no right"})
    assert "hf_... has no right" in str(refusal(publisher, repository()))


def test_a_gated_repository_is_told(fake_hub, publisher):
    fake_hub.fail("GET /api/models", status=403, headers={"X-Error-Code": "GatedRepo"})
    assert "is gated" in str(refusal(publisher, repository()))


@pytest.mark.parametrize("request_pattern", ["whoami", "repos/create", "GET /api/models", COMMIT, "/tag/", "/refs"])
@pytest.mark.parametrize("failure", [{"status": 503}, {"status": 500, "body": b"<html>"}, {"cut": "request"}])
def test_a_failure_of_a_moment_is_overcome(fake_hub, publisher, waits, request_pattern, failure):
    fake_hub.fail(request_pattern, **failure)
    publisher.push(repository(tag="v1"))
    assert ours(fake_hub) == FILES
    assert fake_hub.log(REPO) == ["Upload a model", "initial commit"]
    assert waits == [1]


@pytest.mark.parametrize("cut", ["answer", "half"])
@pytest.mark.parametrize("request_pattern", ["whoami", "repos/create", "GET /api/models", COMMIT, "/tag/"])
def test_a_lost_answer_leads_to_no_second_commit(fake_hub, publisher, cut, request_pattern):
    fake_hub.fail(request_pattern, cut=cut)
    pushed = publisher.push(repository(tag="v1"))
    assert ours(fake_hub) == FILES
    assert fake_hub.log(REPO) == ["Upload a model", "initial commit"]
    assert fake_hub.asked(COMMIT) == 1
    assert fake_hub.repositories["models", REPO].tags == {"v1": pushed.commit}


def test_a_branch_whose_answer_was_lost_is_begun_once(fake_hub, publisher):
    fake_hub.fail("/branch/", cut="answer")
    publisher.push(repository(revision="step-1"))
    assert fake_hub.asked("/branch/") == 1
    assert ours(fake_hub, branch="step-1") == FILES


@pytest.mark.parametrize("cut", ["request", "answer", "half"])
def test_a_connection_that_keeps_breaking_leaves_the_repository_as_it_was_or_whole(fake_hub, publisher, cut):
    fake_hub.fail(COMMIT, times=99, cut=cut)
    if cut == "request":
        error = refusal(publisher, repository())
        assert "the connection broke" in str(error)
        assert error.retryable
        assert ours(fake_hub) == {}
        fake_hub.failures.clear()
    publisher.push(repository())
    assert ours(fake_hub) == FILES
    assert fake_hub.log(REPO) == ["Upload a model", "initial commit"]


def test_large_files_that_went_before_the_connection_broke_are_not_sent_again(fake_hub, publisher):
    fake_hub.lfs_from = 1000
    fake_hub.fail(COMMIT, times=3, cut="request")
    refusal(publisher, repository())
    publisher.push(repository())
    assert fake_hub.asked("PUT /large-objects") == 1
    assert ours(fake_hub) == FILES


def test_an_upload_of_a_large_file_that_fails_is_told(fake_hub, publisher, waits):
    fake_hub.lfs_from = 1000
    fake_hub.fail("PUT /large-objects", times=99, status=503)
    error = refusal(publisher, repository())
    assert "a problem of its own (status 503)" in str(error)
    assert error.retryable
    assert waits == [], "the library has repeated it already"
    assert ours(fake_hub) == {}


@pytest.mark.parametrize(
    ("headers", "waited"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "0"}, 1),
        ({"RateLimit": '"api";r=0;t=55'}, 55),
        ({"RateLimit": '"api";r=9;t=55', "Retry-After": "8"}, 8),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 1),
    ],
)
def test_the_hub_is_given_the_time_that_it_asks_for(fake_hub, publisher, waits, headers, waited):
    fake_hub.fail(COMMIT, status=429, headers=headers)
    publisher.push(repository())
    assert waits == [waited]
    assert ours(fake_hub) == FILES


def test_a_wait_that_is_too_long_ends_the_push(fake_hub, publisher, waits):
    fake_hub.fail(COMMIT, status=429, headers={"Retry-After": "3600"})
    error = refusal(publisher, repository())
    assert "in 3600 seconds at the earliest" in str(error)
    assert error.retryable
    assert waits == []


def test_pauses_grow_and_end(fake_hub, publisher, waits):
    fake_hub.fail("whoami", times=99, status=502)
    refusal(publisher, repository())
    assert waits == [1, 2]
    assert fake_hub.requests == ["GET /api/whoami-v2"] * 3


def test_no_network_is_told(fake_hub, waits):
    with_no_server = HfApi(endpoint="http://127.0.0.1:9", token=TOKEN)  # "discard": nobody listens
    error = refusal(Publisher(with_no_server, sleep=waits.append), repository())
    assert "cannot be reached" in str(error)
    assert error.retryable
    assert waits == [1, 4, 16]


@pytest.mark.parametrize(
    "request_pattern",
    [
        "whoami",
        f"GET /api/models/{REPO}/revision/",
        "repos/create",
        "/commits/",
        "/branch/",
        "validate-yaml",
        "/preupload/",
        "/info/lfs/",
        "PUT /large-objects",
        COMMIT,
        "/refs",
        "/tag/",
    ],
)
def test_a_hub_that_says_nothing_is_not_waited_for(fake_hub, request_pattern):
    fake_hub.lfs_from = 1000
    fake_hub.fail(request_pattern, times=99, delay=2)
    hasty = Publisher(HfApi(endpoint=fake_hub.endpoint, token=TOKEN), pauses=(), answer_seconds=0.1)
    error = refusal(hasty, repository(revision="step-5", tag="v1"))
    assert "the connection broke" in str(error) or "the upload failed" in str(error)
    assert error.retryable


def test_another_runs_record_is_not_waited_for_without_limit(fake_hub, publisher):
    publisher.push(of_run(RUN))
    fake_hub.fail("/resolve/", delay=2)
    hasty = Publisher(HfApi(endpoint=fake_hub.endpoint, token=TOKEN), pauses=(), answer_seconds=0.1)
    assert "the connection broke" in str(refusal(hasty, of_run(RUN)))


def test_the_limit_is_lifted_afterwards(fake_hub, publisher):
    before = list(get_session().event_hooks["request"])
    publisher.push(repository())
    assert get_session().event_hooks["request"] == before


def test_somebody_else_who_pushes_at_the_same_time_is_not_written_over(fake_hub, publisher, monkeypatch):
    publisher.push(repository())
    create = HfApi.create_commit

    def late(self, *arguments, **options):
        fake_hub.add(REPO, {"config.json": b'{"theirs": 1}'})
        return create(self, *arguments, **options)

    monkeypatch.setattr(HfApi, "create_commit", late)
    error = refusal(publisher, repository({"config.json": b'{"a": 1}'}))
    assert "changed by somebody else at the same time" in str(error)
    assert ours(fake_hub)["config.json"] == b'{"theirs": 1}'


def test_a_change_between_two_tries_is_not_written_over(fake_hub, waits):
    def meanwhile(seconds):
        waits.append(seconds)
        fake_hub.add(REPO, {"config.json": b'{"theirs": 1}'})

    publisher = Publisher(HfApi(endpoint=fake_hub.endpoint, token=TOKEN), pauses=(1, 1), sleep=meanwhile)
    publisher.push(repository())
    fake_hub.fail(COMMIT, status=500)
    error = refusal(publisher, repository({"config.json": b'{"a": 1}'}))
    assert "changed by somebody else at the same time" in str(error)
    assert ours(fake_hub)["config.json"] == b'{"theirs": 1}'
    assert waits == [1]
    assert fake_hub.asked(COMMIT) == 2, "large files are not sent for nothing"


def test_an_error_of_ours_is_not_taken_for_one_of_the_hub(publisher, monkeypatch):
    def broken(*arguments, **options):
        raise TypeError("a mistake")

    monkeypatch.setattr(HfApi, "whoami", broken)
    with pytest.raises(TypeError, match="a mistake"):
        publisher.push(repository())


# ---- For users of plain transformers ----


def test_what_was_pushed_loads_by_its_id_and_revision(fake_hub, publisher, tmp_path, tokenizer):
    config = ElectraConfig(
        vocab_size=len(tokenizer), embedding_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=32,
    )  # fmt: skip
    fake_hub.lfs_from = 2000
    sums = {}
    for branch in (None, "step-5"):
        model = ElectraForPreTraining(config)
        model.save_pretrained(tmp_path / "model")
        save_tokenizer(tokenizer, tmp_path / "model")
        sums[branch or "main"] = model.electra.embeddings.word_embeddings.weight.double().sum().item()
        files = (RepositoryFile("README.md", CARD), *model_files(tmp_path / "model").files)
        publisher.push(Repository(REPO, files, "Upload", revision=branch))
    code = f"""
        from transformers import AutoModelForPreTraining, AutoTokenizer
        for revision in ("main", "step-5"):
            model = AutoModelForPreTraining.from_pretrained({REPO!r}, revision=revision)
            tokenizer = AutoTokenizer.from_pretrained({REPO!r}, revision=revision)
            print(revision, len(tokenizer), model.electra.embeddings.word_embeddings.weight.double().sum().item())
    """
    environment = {**os.environ, **fake_hub.environment(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    told = [line.split() for line in done.stdout.splitlines()]
    assert [(revision, int(size)) for revision, size, _ in told] == [(name, len(tokenizer)) for name in sums]
    assert [float(total) for _, _, total in told] == pytest.approx(list(sums.values()), rel=1e-6)
