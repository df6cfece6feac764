"""The way to the Hub: one commit for each branch of a repository, private at first, and safe to repeat.

The title of every commit holds the key of its run, which lies in the run's `publish.json`. So a branch that another
run or a person wrote to is noticed, and a commit whose answer was lost is recognized. A push is repeated as it is:
`huggingface_hub` makes no commit where nothing has changed.
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
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import get_session, parse_ratelimit_headers

from hf_electra_rtd.files import write_text
from hf_electra_rtd.publishing.pictures import CURVES_FILE
from hf_electra_rtd.records import EvaluationRecord, PretrainingRecord, public


logger = logging.getLogger(__name__)

PUBLISH_FILE = "publish.json"  # in a run's directory; never published
RESUME = "hf-electra-rtd publish --resume"
# What may be uploaded, and what a later commit removes where it is no longer part of the model.
CONFIGURATIONS = ("config.json", "generation_config.json", "tokenizer_config.json", "adapter_config.json")
VOCABULARIES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json"),
    *("spm.model", "spiece.model"),
)
ALLOWED = (
    *(*CONFIGURATIONS, *VOCABULARIES, "model.safetensors", "model-?????-of-?????.safetensors"),
    *("model.safetensors.index.json", "adapter_model.safetensors", PretrainingRecord.FILE, EvaluationRecord.FILE),
    *(CURVES_FILE, "README.md", ".eval_results/*.yaml"),
)
PAUSES = (1.0, 4.0)  # seconds before the second and the third try
PATIENCE = 30.0  # seconds since the Hub could first not be reached, after which nothing is tried again
LONGEST_WAIT = 300.0  # seconds that the Hub may ask to wait
SILENCE = (10.0, 60.0, 60.0, 60.0)  # seconds without a byte while connecting, reading, writing, queueing
# The Xet client would try five times, each for 300 seconds. 120 is above the 90 that it calls healthy for a transfer.
_XET_LIMITS = {"HF_XET_CLIENT_READ_TIMEOUT": "120s", "HF_XET_CLIENT_RETRY_MAX_ATTEMPTS": "1"}
_TITLE = "hf-electra-rtd run"  # in the title of every commit
_UNUSED = frozenset({".gitattributes", "README.md", "LICENSE"})  # what the website puts into a new repository


@dataclass(frozen=True)
class Repository:
    """One branch of a repository, as it shall stand on the Hub."""

    repo_id: str
    files: dict[str, Path | bytes]  # by path in the repository: where each lies here, or its bytes
    revision: str | None = None  # the branch; None is `main`
    left_out: tuple[str, ...] = ()  # names of files and directories beside the model that stay here


@dataclass(frozen=True)
class Published:
    """The outcome for a [`Repository`]."""

    repo_id: str
    revision: str | None
    url: str
    changed: bool = False  # False also where the Hub held the same files already
    error: str | None = None  # what happened and the remedy; None where the files are on the Hub


def read_publication(directory: str | Path) -> dict[str, Any]:
    """What `remember` wrote: `run`, the key of the run, and `flags`; empty where nothing was published."""
    path = Path(directory) / PUBLISH_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def remember(directory: str | Path, **flags: Any) -> str:
    """Writes into a run's `publish.json` how it is published, before the first try, so that `hf-electra-rtd publish
    --resume` can repeat it. Flags that are not given, None or "" stay as they are. Returns the key of the run."""
    known = read_publication(directory)
    key = known.get("run") or uuid.uuid4().hex[:12]
    given = {name: value for name, value in flags.items() if value not in (None, "")}
    values = {"run": key, "flags": {**known.get("flags", {}), **given}}
    write_text(Path(directory) / PUBLISH_FILE, json.dumps(values, indent=2, ensure_ascii=False) + "\n")
    return str(key)


def check(repo_ids: Iterable[str], directory: str | Path, private: bool = True, force: bool = False) -> None:
    """Finds out before a training whether it may publish. Where the Hub cannot be reached, it only warns.

    Raises:
        ValueError: as for `publish`.
    """
    api, key = HfApi(), remember(directory)
    try:
        with _limited_silence():
            for repo_id in repo_ids:
                _look(api, repo_id, None, key, private, force)
    except _HubError as error:
        if not error.transient:
            raise ValueError(str(error)) from None
        logger.warning(f"{error} The run starts all the same.")


def publish(
    repositories: Sequence[Repository], directory: str | Path, private: bool = True, force: bool = False
) -> list[Published]:
    """Publishes the repositories of a run, each branch in one commit. There are three tries in all. Where the Hub
    cannot be reached in the last one, the repositories that are left are not tried.

    Args:
        directory: `output_dir` of the run, where its `publish.json` lies.
        private: new repositories are private, and public ones are refused.
        force: a branch that another run or a person wrote to is overwritten, but for files that are not of this
            package.

    Raises:
        ValueError: before anything is sent, if nobody is logged in, there is no write access, a repository is public
            but shall be private, or was written to by somebody else. Failures of the Hub are in `Published.error`.
    """
    api, key = HfApi(), remember(directory)
    results: list[Published] = []
    unreachable, checked = None, False  # since when
    for pause in (*PAUSES, None):
        try:
            with _limited_silence():
                for repo_id in () if checked else dict.fromkeys(each.repo_id for each in repositories):
                    _look(api, repo_id, None, key, private, force)
                checked = True
                for repository in repositories[len(results) :]:
                    try:
                        results.append(_push(api, repository, key, private, force))
                    except _HubError as error:
                        if error.transient:
                            raise
                        results.append(_result(api, repository, error=str(error)))
                    unreachable = None
            break
        except _HubError as error:
            if not checked and not error.transient:
                raise ValueError(str(error)) from None
            now = time.monotonic()
            unreachable = (unreachable or now) if error.unreachable else None
            is_over = unreachable is not None and now - unreachable > PATIENCE
            if pause is None or is_over or error.wait > LONGEST_WAIT:
                results += [_result(api, each, error=str(error)) for each in repositories[len(results) :]]
                break
            logger.warning(f"{error} The next try is in {max(pause, error.wait):.0f} seconds.")
            time.sleep(max(pause, error.wait))
    return results


def _look(api: HfApi, repo_id: str, revision: str | None, key: str, private: bool, force: bool) -> Any:
    """What the Hub holds on a branch: its `ModelInfo` and its commits, the last one first; None if there is no branch.

    Raises:
        _HubError: also if this run must not write there.
    """
    with _explained(repo_id):
        _refuse_outsider(api.whoami(cache=True), repo_id)
        try:
            info = api.model_info(repo_id, revision=revision, timeout=SILENCE[1])
            api.auth_check(repo_id, write=True)
            commits = api.list_repo_commits(repo_id, revision=revision)
        except (RevisionNotFoundError, RepositoryNotFoundError):
            return None
    if private and not info.private:
        raise _HubError(
            f"{repo_id} is public. Make it private in its settings, choose another --hub_model_id, or publish with "
            "--private False (in training, --hub_private_repo False)."
        )
    paths, title = [file.rfilename for file in info.siblings or ()], commits[0].title
    if not (force or key in title or (len(commits) == 1 and _UNUSED.issuperset(paths))):
        writer = "another run" if _TITLE in title else f"somebody else ({public(title)!r})"
        raise _HubError(
            f"{repo_id}, branch {revision or 'main'}: the last commit is of {writer}; {len(paths)} files are there, "
            f"such as {paths[-1]}. Choose another --hub_model_id, or replace the model and card with --force."
        )
    return info, commits


def _push(api: HfApi, repository: Repository, key: str, private: bool, force: bool) -> Published:
    repo_id, revision, files = repository.repo_id, repository.revision, repository.files
    there = _look(api, repo_id, revision, key, private, force)
    if there is None:
        with _explained(repo_id):
            api.create_repo(repo_id, private=private, exist_ok=True)
            if revision is not None:  # begins at the first commit, so that it holds this export alone
                first = api.list_repo_commits(repo_id)[-1].commit_id
                api.create_branch(repo_id, branch=revision, revision=first, exist_ok=True)
        there = _look(api, repo_id, revision, key, private, force)
        if there is None:
            raise _HubError(f"{repo_id} was created but is not found. Publish it later: {RESUME}.", transient=True)
    info, (last, *_) = there
    ours = {file.rfilename for file in info.siblings} if _TITLE in last.title else set()
    gone = sorted(path for path in ours - files.keys() if any(fnmatchcase(path, pattern) for pattern in ALLOWED))
    with _explained(repo_id):
        commit = api.create_commit(  # not `upload_folder`, which makes a second commit after five minutes of Xet
            repo_id,
            [
                *(CommitOperationDelete(path, is_folder=False) for path in gone),
                *(CommitOperationAdd(path, content) for path, content in files.items()),
            ],
            commit_message=f"Publish the model and its card ({_TITLE} {key})",
            revision=revision,
            parent_commit=last.commit_id,
        )
    return _result(api, repository, changed=commit.oid != last.commit_id)


def _result(api: HfApi, repository: Repository, changed: bool = False, error: str | None = None) -> Published:
    branch = "" if repository.revision is None else f"/tree/{repository.revision}"
    url = f"{api.endpoint}/{repository.repo_id}{branch}"
    return Published(repository.repo_id, repository.revision, url, changed, error)


def _refuse_outsider(identity: dict[str, Any], repo_id: str) -> None:
    """The Hub itself refuses only when the repository is created, after the training."""
    roles = {identity["name"]: "admin", **{org["name"]: org.get("roleInOrg") for org in identity.get("orgs", ())}}
    role = {owner.lower(): role for owner, role in roles.items()}.get(repo_id.partition("/")[0].lower(), "no_access")
    if identity.get("auth", {}).get("accessToken", {}).get("role") == "read" or role in ("read", "no_access"):
        raise _HubError(
            f"{repo_id}: {identity['name']} may not write there, or not with this token. Ask for write access, log in "
            "with another token, or change --hub_model_id."
        )


@contextmanager
def _limited_silence() -> Iterator[None]:
    """Ends requests that are not answered; the library itself would wait for ever."""
    session = get_session()
    before, session.timeout = session.timeout, SILENCE
    for name, value in _XET_LIMITS.items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        session.timeout = before


class Background:
    """Publishes while training goes on, one publication at a time.

    Its thread is a daemon: `HfApi.run_as_future` would make Ctrl-C wait for the Hub at the end of the process.
    """

    def __init__(self) -> None:
        self._thread = threading.Thread()

    @property
    def busy(self) -> bool:
        """Whether a publication is under way."""
        return self._thread.is_alive()

    def start(self, function: Callable[[], Any]) -> None:
        """Calls a function in the background, unless the last one is under way."""
        if not self.busy:
            self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Waits for the last function."""
        if self.busy:
            self._thread.join()

    @staticmethod
    def _run(function: Callable[[], Any]) -> None:
        try:
            function()
        except Exception as error:  # whatever it is: the training is worth more
            logger.error(f"This was not published: {error}", exc_info=not isinstance(error, (OSError, ValueError)))


# ---- What went wrong ----

_LOGIN = "Log in with a token that may write (hf auth login, or the environment variable HF_TOKEN)."
_LATER = f"Publish it later: {RESUME}."
_CHANGED = "it was changed by somebody else at the same time. Look at it, then publish again."
_EXPLANATIONS: dict[str | int, str] = {  # by what is wrong, or by the status that the Hub answers with
    "login": f"nobody is logged in to the Hub. {_LOGIN}",
    "offline": f"offline mode is on (HF_HUB_OFFLINE). Unset it. {_LATER}",
    "refused": "the Hub refuses this, so correct it.",
    "network": f"the Hub cannot be reached. Check the network. {_LATER}",
    "upload": f"the upload failed. {_LATER}",
    401: f"the Hub does not accept the token. {_LOGIN}",
    403: "the storage of its owner is full, or the token may not write there. Free some, or ask for write access.",
    404: "it was not found: removed or renamed meanwhile, or private to others. Look at its page.",
    409: _CHANGED,
    412: _CHANGED,
    413: "a file is too large for the Hub. Save the model in smaller shards.",
    429: f"the Hub counts too many requests. {_LATER}",
}
_PASSING = ("offline", "network", "upload", 408, 425, 429)  # may succeed later without anybody changing anything
_NETWORK = ("httpx", "httpx2", "httpcore", "httpcore2")  # by version of huggingface_hub
# The Xet client raises built-in errors, `ConnectionError` for a refusal too; the status stands in the text alone.
_XET_STATUS = re.compile(r"HTTP status \w+ error \((\d{3})")


class _HubError(Exception):
    """Something that could not be done on the Hub; the message says what and the remedy."""

    def __init__(self, message: str, transient: bool = False, wait: float = 0.0, unreachable: bool = False) -> None:
        super().__init__(message)
        self.unreachable = unreachable  # there was no answer at all
        self.transient = transient  # see `_PASSING`
        self.wait = wait  # seconds that the Hub asks for


@contextmanager
def _explained(repo_id: str) -> Iterator[None]:
    """Turns what `huggingface_hub`, its Xet client and the network raise into a `_HubError`; other errors are bugs."""
    try:
        yield
    except _HubError:
        raise
    except Exception as error:
        links: list[BaseException] = [error]
        while (link := links[-1].__cause__ or links[-1].__context__) is not None and link not in links:
            links.append(link)
        cause = _cause(links)
        if cause is None:
            raise
        message, wait = _EXPLANATIONS.get(cause, f"the Hub answers with status {cause}. {_LATER}"), 0
        said = "" if cause in ("login", "offline") else " ".join(dict.fromkeys((str(error), str(links[-1]))))
        if isinstance(cause, int) and (answer := next((x for x in links if isinstance(x, HfHubHTTPError)), None)):
            limit = parse_ratelimit_headers(answer.response.headers)
            after = answer.response.headers.get("Retry-After", "")
            wait = limit.reset_in_seconds if limit and not limit.remaining else int(after) if after.isdecimal() else 0
            said = answer.server_message or ""
        said = f" It says: {public(' '.join(said.split()))[:300].rstrip('.')}." if said else ""
        transient = cause in _PASSING or (isinstance(cause, int) and cause >= 500)
        raise _HubError(f"{repo_id}: {message}{said}", transient, wait, cause == "network") from error


def _cause(links: Sequence[BaseException]) -> str | int | None:
    """What is wrong, as a key of `_EXPLANATIONS` or a status; `links` are the error and what it comes from."""
    error = links[0]
    if isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError):
        return "refused"  # a card that is not valid, or a name
    for link in links:
        if isinstance(link, LocalTokenNotFoundError):
            return "login"
        if isinstance(link, OfflineModeIsEnabled):
            return "offline"
        if isinstance(link, HfHubHTTPError):
            return link.response.status_code
        if found := _XET_STATUS.search(str(link)):
            return int(found[1])
    for link in links:
        if isinstance(link, (ConnectionError, TimeoutError)) or type(link).__module__.split(".")[0] in _NETWORK:
            return "network"
    return "upload" if isinstance(error, (RuntimeError, OSError, ValueError)) else None
