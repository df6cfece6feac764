"""The way to the Hub: one commit for each branch of a repository, private at first, and safe to repeat.

The title of every commit holds the key of its run, which lies in the run's `publish.json`. So a branch that another
run or a person wrote to is noticed. A push is repeated as it is: `huggingface_hub` makes no commit where nothing has
changed, as after one whose answer was lost.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants, errors
from huggingface_hub.utils import _http, get_session

from hf_electra_rtd.files import read_json, write_text
from hf_electra_rtd.publishing.pictures import CURVES_FILE
from hf_electra_rtd.records import EvaluationRecord, ExportRecord, PretrainingRecord, public


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
CONFIGS = ("config.json", "generation_config.json", "tokenizer_config.json", "quantize_config.json", ADAPTER_CONFIG)
MODEL_FILES = (*CONFIGS, *VOCABULARIES, *WEIGHTS)
ALLOWED = (*MODEL_FILES, CARD_FILE, CURVES_FILE, PretrainingRecord.FILE, EvaluationRecord.FILE, ExportRecord.FILE)
PAUSES = (1.0, 4.0)  # seconds before the second and the third try
SILENCE = (10.0, 30.0, 30.0, 30.0)  # seconds without a byte while connecting, reading, writing, queueing
PATIENCE = 60.0  # seconds that a delivery waits in vain, over all requests and tries
_TITLE = "hf-electra-rtd run"  # in the title of every commit
_UNUSED = frozenset({".gitattributes", CARD_FILE, "LICENSE"})  # what the website puts into a new repository
Files = dict[str, Path | bytes]  # by path in the repository: where each lies here, or its bytes


@dataclass
class Repository:
    """One branch of a repository, as it shall stand on the Hub."""

    repo_id: str
    files: Files
    revision: str | None = None  # the branch; None is `main`
    is_whole: bool = True  # else other files of ours stay, too

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
    """Writes into a run's `publish.json` how it is published, before the first try, so that `hf-electra-rtd publish
    --resume` can repeat it. Flags that are not given, None or "" stay as they are. Returns what the file holds."""
    known = read_publication(directory)
    given = {name: value for name, value in flags.items() if value not in (None, "")}
    values = {"run": known.get("run") or uuid.uuid4().hex[:12], "flags": {**known.get("flags", {}), **given}}
    write_text(Path(directory) / PUBLISH_FILE, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    return values


def check(repo_ids: Iterable[str], directory: str | Path, private: bool = True, force: bool = False) -> None:
    """Finds out before a training whether it may publish: a ValueError as by `publish`. Where the Hub cannot be
    reached, it only warns."""
    api, key = HfApi(), remember(directory)["run"]
    try:
        with _Patience().limits():
            for repo_id in repo_ids:
                _look(api, Repository(repo_id, {}), key, private, force)
    except _UnreachableError as error:
        logger.warning(f"{error} The run starts all the same.")


def publish(
    repositories: Sequence[Repository], directory: str | Path, private: bool = True, force: bool = False
) -> list[Published]:
    """Publishes the repositories of a run, whose `publish.json` lies in `directory`, each branch in one commit, with
    three tries in all. Where the Hub cannot be reached in the last one, what is left is not tried.

    Raises a ValueError, before anything is sent, for what this run may not do: write to public repositories if
    `private`; and, without `force`, over what another run or a person wrote. Failures are in `Published.error`."""
    api, publication, patience = HfApi(), remember(directory), _Patience()
    key, name = publication["run"], publication["flags"].get("hub_model_id")
    results: list[Published] = []
    for pause in (*PAUSES, None):
        left = repositories[len(results) :]
        try:
            with patience.limits():
                for repository in () if results else left:  # nothing is sent yet
                    _look(api, repository, key, private, force)
                for repository in left:
                    results.append(_push(api, repository, key, private, force))
                done = [each.repo_id for each, result in zip(repositories, results, strict=True) if not result.error]
                if name and done:
                    _collect(api, name, private, done)
            break
        except _UnreachableError as error:
            if pause is None:
                results += [Published(each.url, error=str(error)) for each in repositories[len(results) :]]
            else:
                logger.warning(f"{error} The next try is in {pause:.0f} seconds.")
                time.sleep(pause)
    return results


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
            if repository.is_whole:
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
    try:
        with _explained(repo_id):
            there = _look(api, repository, key, private, force)
            if there is None:
                api.create_repo(repo_id, private=private, exist_ok=True)
                last, ours = api.list_repo_commits(repo_id)[-1], set()
                if revision is not None:  # begins at the first commit, so that it holds this export alone
                    api.create_branch(repo_id, branch=revision, revision=last.commit_id, exist_ok=True)
            else:
                paths, (last, *_) = there
                ours = set(paths) if _TITLE in last.title else set()
            gone = sorted(ours & set(ALLOWED) - files.keys()) if repository.is_whole else ()
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
                if repo_id not in [item.item_id for item in collection.items]:
                    api.add_collection_item(collection.slug, repo_id, "model", exists_ok=True)
    except (_RefusedError, _UnreachableError) as error:
        logger.warning(str(error))


class _Patience:
    """Bounds the time that a delivery waits in vain; the library itself would wait for ever. What moves is not cut.
    Files go by plain HTTP: the library's other way, Xet, has no such limits."""

    def __init__(self) -> None:
        self.left = PATIENCE
        self._asked: float | None = None  # when, until there is an answer

    @contextmanager
    def limits(self) -> Iterator[None]:
        """Sets them for all that `huggingface_hub` does."""
        make_client, without_xet = _http._GLOBAL_CLIENT_FACTORY, constants.HF_HUB_DISABLE_XET
        before: list[tuple[Any, dict[str, Any]]] = []  # clients and their own hooks

        def watch(client: Any) -> Any:
            hooks = client.event_hooks
            before.append((client, hooks))
            ask, hear = [*hooks["request"], self._ask], [*hooks["response"], self._hear]
            client.event_hooks = {"request": ask, "response": hear}
            return client

        # After a refused connection, the library makes another client. Its `set_client_factory` would close the one
        # that other threads may be using.
        watch(get_session())
        _http._GLOBAL_CLIENT_FACTORY = lambda: watch(make_client())
        constants.HF_HUB_DISABLE_XET = True
        try:
            yield
        finally:
            _http._GLOBAL_CLIENT_FACTORY, constants.HF_HUB_DISABLE_XET = make_client, without_xet
            for client, hooks in before:
                client.event_hooks = hooks

    def _ask(self, request: Any) -> None:
        now = time.monotonic()
        if self._asked is not None:
            self.left -= min(now - self._asked, SILENCE[1])
        self._asked = now
        if self.left <= 0:  # no error of httpx, after which the library would try again
            raise TimeoutError(f"No answer in {PATIENCE:g} seconds")
        limits = (min(limit, self.left) for limit in SILENCE)
        request.extensions["timeout"] = dict(zip(("connect", "read", "write", "pool"), limits, strict=True))

    def _hear(self, response: Any) -> None:
        self._asked = None


class Background:
    """Publishes while training goes on, one publication at a time. Its thread is a daemon: `HfApi.run_as_future` would
    make Ctrl-C wait for the Hub at the end of the process."""

    def __init__(self) -> None:
        self._thread = threading.Thread()

    @property
    def busy(self) -> bool:
        """Whether a publication is under way."""
        return self._thread.is_alive()

    def start(self, function: Callable[[], Any]) -> None:
        """Calls a function in the background, unless the last one is under way."""

        def run() -> None:
            try:
                function()
            except Exception as error:  # whatever it is: the training is worth more
                logger.exception(f"This was not published: {error}")

        if not self.busy:
            self._thread = threading.Thread(target=run, daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Waits for the last function."""
        if self.busy:
            self._thread.join()


# ---- What went wrong ----

_LATER = f"Publish it later: {RESUME}."
_EXPLANATIONS: dict[str | int, str] = {  # by what is wrong, or by the status that the Hub answers with
    "offline": f"offline mode is on (HF_HUB_OFFLINE). Unset it. {_LATER}",
    "no answer": f"the Hub cannot be reached, or the upload broke off. Check the network. {_LATER}",
    "refused": "the Hub refuses this, so correct it.",
    "full": "the storage of its owner is full. Free some, or let the owner get more.",
    "rights": "the token may not write there. Ask for write access, or log in with another token (hf auth login).",
    401: "nobody is logged in to the Hub, or it does not accept the token. Log in (hf auth login) or set HF_TOKEN.",
    403: "the storage of its owner is full, or the token may not write there. Free some, or ask for write access.",
    **dict.fromkeys((409, 412), "it was changed by somebody else at the same time. Look at it, then publish again."),
    429: f"the Hub counts too many requests. {_LATER}",
}
_OF_NETWORK = (ConnectionError, TimeoutError)
_PASSING = ("offline", "no answer", 408, 425, 429, *range(500, 600))  # may succeed later as it is
# The Hub has one status for a full storage and for missing rights.
_OF_STORAGE = re.compile(r"storage|quota", re.IGNORECASE)
_OF_RIGHTS = re.compile(r"role|permission|rights|authori|access", re.IGNORECASE)


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
        elif isinstance(root, errors.OfflineModeIsEnabled):
            cause = "offline"
        elif any(isinstance(each, _OF_NETWORK) or type(each).__module__.startswith("http") for each in chain):
            cause = "no answer"
        else:
            raise
        if cause in (402, 403, 413, "refused") and _OF_STORAGE.search(said):
            cause = "full"
        elif cause == 403 and _OF_RIGHTS.search(said):
            cause = "rights"
        said = f" It says: {public(' '.join(said.split()))[:300].rstrip('.')}." if said else ""
        message = _EXPLANATIONS.get(cause, f"the Hub answers with status {cause}. {_LATER}")
        raise (_UnreachableError if cause in _PASSING else _RefusedError)(f"{repo_id}: {message}{said}") from error
