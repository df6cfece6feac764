"""The way to the Hub: one commit for each branch of a repository, private at first, and safe to repeat.

The title of every commit holds the key of its run (in `publish.json`), which shows what another run or a person wrote.
A push is repeated as it is: `huggingface_hub` makes no commit where nothing has changed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, errors, set_client_factory
from huggingface_hub.utils import _http

from hf_electra_rtd.files import read_json, write_text
from hf_electra_rtd.records import public


logger = logging.getLogger(__name__)

PUBLISH_FILE = "publish.json"  # in a run's directory; never published
RESUME = "hf-electra-rtd publish --resume"
CARD_FILE = "README.md"
# What may be uploaded, and what a later commit removes where it is no longer part of the model.
VOCABULARIES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json"),
    *("spm.model", "spiece.model"),
)
ADAPTER_CONFIG = "adapter_config.json"
# Of an export too: graphs, and what a large one keeps beside it.
WEIGHTS = (
    *("model.safetensors", "adapter_model.safetensors"),
    *("onnx/model.onnx", "onnx/model.onnx_data", "onnx/model_quantized.onnx"),
)
CONFIGS = ("config.json", "generation_config.json", "tokenizer_config.json", ADAPTER_CONFIG)
MODEL_FILES = (*CONFIGS, *VOCABULARIES, *WEIGHTS)
PAUSES = (1.0, 4.0)  # seconds before the second and the third try
CONNECTING, SILENCE = 5.0, 30.0  # seconds without a byte after which an address, and a request, is given up
PATIENCE = 60.0  # seconds that the requests of a publication wait in vain, over all tries of the library
_TITLE = "hf-electra-rtd run"  # in the title of every commit
_UNUSED = frozenset({".gitattributes", CARD_FILE, "LICENSE"})  # what the website puts into a new repository
Files = dict[str, Path | bytes]  # by path in the repository: where each lies here, or its bytes


@dataclass
class Repository:
    """One branch of a repository, as it shall stand on the Hub. If it is the card alone, all other files stay."""

    repo_id: str
    files: Files
    revision: str | None = None  # the branch; None is `main`

    @property
    def url(self) -> str:
        """Its page."""
        return f"{constants.ENDPOINT}/{self.repo_id}{f'/tree/{self.revision}' if self.revision else ''}"


@dataclass(frozen=True)
class Published:
    """The outcome for a [`Repository`]."""

    url: str
    changed: bool = False  # False also where the Hub held the same files already
    error: str | None = None  # what happened and the remedy; None where the files are on the Hub


def read_publication(directory: str | Path) -> dict[str, Any]:
    """What `publish.json` holds: `run`, the key of the run, and `flags`; empty where nothing was published."""
    path = Path(directory) / PUBLISH_FILE
    return read_json(path) if os.path.lexists(path) else {}


def remember(directory: str | Path, **flags: Any) -> dict[str, Any]:
    """Writes into a run's `publish.json` how it is published, before the first try, for `publish --resume`. Flags that
    are not given, None or "" stay as they are. Returns what the file holds."""
    known = read_publication(directory)
    given = {name: value for name, value in flags.items() if value not in (None, "")}
    values = {"run": known.get("run") or uuid.uuid4().hex[:12], "flags": {**known.get("flags", {}), **given}}
    write_text(Path(directory) / PUBLISH_FILE, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    return values


def check(repo_ids: Iterable[str], directory: str | Path | None, private: bool = True, force: bool = False) -> None:
    """Finds out before a training whether it may publish: a ValueError as by `publish`. Where the Hub cannot be
    reached, it only warns. With None, the run has no key yet, so nothing on the Hub is its own."""
    api, key = HfApi(), uuid.uuid4().hex if directory is None else remember(directory)["run"]
    try:
        with _limits():
            for repo_id in repo_ids:
                _look(api, Repository(repo_id, {}), key, private, force)
    except _UnreachableError as error:
        logger.warning(f"{error} The run starts all the same.")


def publish(
    repositories: Sequence[Repository], directory: str | Path, private: bool = True, force: bool = False
) -> list[Published]:
    """Publishes the repositories of a run, whose `publish.json` lies in `directory`, each branch in one commit, with
    three tries in all. Where the Hub cannot be reached in the last one, or is silent, what is left is not tried.

    Raises a ValueError, before anything is sent, for what this run may not do: write to public repositories if
    `private`; and, without `force`, over what another run or a person wrote. Failures are in `Published.error`."""
    api, publication, pauses = HfApi(), remember(directory), list(PAUSES)
    about, name = (publication["run"], private, force), publication["flags"].get("hub_model_id")
    results: list[Published] = []
    with _limits():
        while True:
            left = repositories[len(results) :]
            try:
                if not results:  # nothing is sent yet
                    for repository in left:
                        _look(api, repository, *about)
                for repository in left:
                    results.append(_push(api, repository, *about))
                done = [each.repo_id for each, result in zip(repositories, results, strict=True) if not result.error]
                if name and done:
                    _collect(api, name, private, done)
                return results
            except _UnreachableError as error:
                is_silent = "Timeout" in type(error.__cause__).__name__  # httpx, httpcore and Python have one each
                if is_silent or not pauses:
                    failed = repositories[len(results) :]
                    return results + [Published(each.url, error=str(error)) for each in failed]
                logger.warning(f"{error} The next try is in {pauses[0]:.0f} seconds.")
                time.sleep(pauses.pop(0))


def _look(api: HfApi, repository: Repository, key: str, private: bool, force: bool) -> Any:
    """What the Hub holds on a branch: its files and commits, the last one first; None if there is no branch. Refuses
    one that this run must not write to."""
    repo_id, revision = repository.repo_id, repository.revision
    with _explained(repo_id):
        # The Hub itself refuses only when the repository is created, after the training.
        identity, owner = api.whoami(cache=True), repo_id.partition("/")[0].lower()
        roles = {org["name"].lower(): org.get("roleInOrg") for org in identity.get("orgs", ())}
        role = {**roles, identity["name"].lower(): "admin"}.get(owner, "read")
        if {"read", "no_access"} & {role, identity.get("auth", {}).get("accessToken", {}).get("role")}:
            who = f"{identity['name']} may not write there, or not with this token"
            raise _RefusedError(f"{repo_id}: {who}. Ask for write access, or take another token or --hub_model_id.")
        try:
            info = api.model_info(repo_id, revision=revision)
            api.auth_check(repo_id, write=True)
            commits = api.list_repo_commits(repo_id, revision=revision)
        except (errors.RevisionNotFoundError, errors.RepositoryNotFoundError):
            if repository.files.keys() != {CARD_FILE}:
                return None
            remedy = "Publish the model, without --card_only"
            raise _RefusedError(f"{repository.url} does not exist yet. {remedy}.") from None
    if private and not info.private:
        remedy = "Make it private in its settings, or pass --private False (in training, --hub_private_repo False)"
        raise _RefusedError(f"{repo_id} is public. {remedy}.")
    paths, title = [file.rfilename for file in info.siblings or ()], commits[0].title
    if not (force or key in title or (len(commits) == 1 and _UNUSED.issuperset(paths))):
        writer = "another run" if _TITLE in title else f"somebody else ({public(title)!r})"
        there = f"the last commit is of {writer}; {len(paths)} files are there, such as {paths[-1]}"
        remedy = "Choose another --hub_model_id, or replace the model and card with --force"
        raise _RefusedError(f"{repo_id}, branch {revision or 'main'}: {there}. {remedy}.")
    return paths, commits


def _push(api: HfApi, repository: Repository, key: str, private: bool, force: bool) -> Published:
    """Publishes one branch. Raises `_UnreachableError` where another try may help."""
    repo_id, revision, files = repository.repo_id, repository.revision, repository.files
    gone: list[str] = []
    try:
        with _explained(repo_id):
            there = _look(api, repository, key, private, force)
            if there is None:
                api.create_repo(repo_id, private=private, exist_ok=True)
                last = api.list_repo_commits(repo_id)[-1]
                if revision is not None:  # begins at the first commit, so that it holds this export alone
                    api.create_branch(repo_id, branch=revision, revision=last.commit_id, exist_ok=True)
            else:
                paths, (last, *_) = there
                if _TITLE in last.title and files.keys() != {CARD_FILE}:
                    gone = sorted({*paths} & {*MODEL_FILES} - files.keys())
                    if not any(name.startswith("onnx/") for name in files):  # graphs there are not of this program
                        gone = [name for name in gone if not name.startswith("onnx/")]
            commit = api.create_commit(
                repo_id,
                [CommitOperationDelete(path, is_folder=False) for path in gone]
                + [CommitOperationAdd(path, content) for path, content in files.items()],
                commit_message=f"Publish the model and its card ({_TITLE} {key})",
                revision=revision,
                parent_commit=last.commit_id,
            )
    except _RefusedError as error:
        return Published(repository.url, error=str(error))
    return Published(repository.url, changed=commit.oid != last.commit_id)


def _collect(api: HfApi, name: str, private: bool, repo_ids: Iterable[str]) -> None:
    """Puts a run's repositories into their collection, which is made where there is none. Only warns where that fails,
    and of a public one that would show what is private."""
    owner, _, title = name.partition("/")
    try:
        with _explained(f"the collection {title}"):
            collection = api.create_collection(title, namespace=owner, private=private, exists_ok=True)
            if private and not collection.private:
                remedy = "Make it private in its settings, or rename it"
                raise _RefusedError(f"The collection {title} is public, so this run stays out of it. {remedy}.")
            for repo_id in dict.fromkeys(repo_ids):
                api.add_collection_item(collection.slug, repo_id, "model", exists_ok=True)
    except (_RefusedError, _UnreachableError) as error:
        logger.warning(str(error))


@contextmanager
def _limits() -> Iterator[None]:
    """Ends requests in which nothing moves, and after `PATIENCE` their repetition; the library itself would wait for
    ever. Files go by plain HTTP: the library's other way, Xet, has no such limits."""
    make_before, without_xet = _http._GLOBAL_CLIENT_FACTORY, constants.HF_HUB_DISABLE_XET
    left, asked = PATIENCE, None  # when, until there is an answer

    def ask(request: Any) -> None:
        nonlocal left, asked
        now = time.monotonic()
        left -= 0 if asked is None else min(now - asked, SILENCE)  # what moved before it was cut counts no more
        asked = now
        if left <= 0:  # no error of httpx, after which the library would try again
            raise TimeoutError(f"No answer in {PATIENCE:g} seconds")
        connecting = {"connect": min(CONNECTING, left)}  # to each address of a name in turn
        request.extensions["timeout"] = dict.fromkeys(("read", "write", "pool"), min(SILENCE, left)) | connecting

    def hear(response: Any) -> None:
        nonlocal asked
        asked = None

    def make_client() -> Any:
        client = make_before()
        client.event_hooks["request"].append(ask)
        client.event_hooks["response"].append(hear)
        return client

    set_client_factory(make_client)
    constants.HF_HUB_DISABLE_XET = True
    try:
        yield
    finally:
        set_client_factory(make_before)
        constants.HF_HUB_DISABLE_XET = without_xet


# ---- What went wrong ----

_LATER = f"Publish it later: {RESUME}."
_EXPLANATIONS: dict[str | int, str] = {  # by what is wrong, or by the status that the Hub answers with
    "no answer": f"the Hub cannot be reached, or the upload broke off. Check the network. {_LATER}",
    "refused": "the Hub refuses this, so correct it.",
    "full": "the storage of its owner is full. Free some, or let the owner get more.",
    "rights": "the token may not write there. Ask for write access, or log in with another token (hf auth login).",
    401: "nobody is logged in to the Hub, or it does not accept the token. Log in (hf auth login) or set HF_TOKEN.",
    403: "the storage of its owner is full, or the token may not write there. Free some, or ask for write access.",
    **dict.fromkeys((409, 412), "it was changed by somebody else at the same time. Look at it, then publish again."),
    429: f"the Hub counts too many requests. {_LATER}",
}
_PASSING = ("no answer", 408, 425, 429, *range(500, 600))  # may succeed later as it is


class _RefusedError(ValueError):
    """Something that cannot be done on the Hub until somebody changes something; the message says what and how."""


class _UnreachableError(Exception):
    """Something that may be done later as it is."""


@contextmanager
def _explained(repo_id: str) -> Iterator[None]:
    """Turns what `huggingface_hub` and the network raise into one of these errors; others are bugs, or of a file of
    this machine."""
    try:
        yield
    except (_RefusedError, _UnreachableError):
        raise
    except Exception as error:
        chain: list[BaseException] = [error]
        while chain[-1].__cause__ is not None and not isinstance(chain[-1], errors.HfHubHTTPError):
            chain.append(chain[-1].__cause__)
        root, said = chain[-1], str(error)
        cause: str | int  # a key of `_EXPLANATIONS`, or a status
        if type(error) is ValueError:  # a card that is not valid
            cause = "refused"
        elif isinstance(root, errors.HfHubHTTPError):
            cause, said = root.response.status_code, root.server_message or ""
        elif isinstance(root, errors.LocalTokenNotFoundError):
            cause = 401
        elif any(isinstance(e, (ConnectionError, TimeoutError)) or type(e).__module__[:4] == "http" for e in chain):
            cause = "no answer"
        else:
            raise
        # The Hub has one status for a full storage and for missing rights.
        if cause in (402, 403, 413, "refused") and re.search("storage|quota", said, re.IGNORECASE):
            cause = "full"
        elif cause == 403 and re.search("role|permission|rights|authori|access", said, re.IGNORECASE):
            cause = "rights"
        said = f" It says: {public(' '.join(said.split()))[:300].rstrip('.')}." if said else ""
        message = _EXPLANATIONS.get(cause, f"the Hub answers with status {cause}. {_LATER}")
        raise (_UnreachableError if cause in _PASSING else _RefusedError)(f"{repo_id}: {message}{said}") from root
