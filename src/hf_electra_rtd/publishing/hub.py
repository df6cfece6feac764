"""Publishes on the Hub with `huggingface_hub`: one commit for each branch of a repository, private at first.

The title of every commit names its run by the start time, which shows whether another run or a person wrote last. A
push can be repeated: `huggingface_hub` sends no file and makes no commit if nothing has changed. In a card, our
sections stand between two markers; text that people write outside of them stays.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, errors, get_session
from huggingface_hub.repocard import REGEX_YAML_BLOCK

from hf_electra_rtd.base.records import public
from hf_electra_rtd.pair.places import GRAPHS, NETWORK_FILES


logger = logging.getLogger(__name__)

CARD_FILE = "README.md"
# The files of a model that may be uploaded, in addition to `NETWORK_FILES`.
GRAPH_FILES = (*GRAPHS.values(), "onnx/model.onnx_data")  # the last one holds the weights of a large graph
MODEL_FILES = (*NETWORK_FILES, *GRAPH_FILES)

_BEGIN = "<!-- hf-electra-rtd: the next push replaces this part, down to the end marker. Write above or below it. -->"
_END = "<!-- hf-electra-rtd: end -->"

# The library waits forever. We give up on a silent Hub after so many calls without an answer: after 60 seconds.
CALLS = 3
PAUSE = 10.0  # seconds before each call
ANSWER = 10.0  # seconds within which the Hub must answer a call

_TITLE = "hf-electra-rtd run"  # in the title of every commit, before the start time of the run
_OF_A_NEW_REPOSITORY = frozenset({".gitattributes", CARD_FILE, "LICENSE"})  # the website adds these
Files = dict[str, Path | bytes]  # by path in the repository: its local path, or its bytes
_Result = TypeVar("_Result")


@dataclass
class Repository:
    """One branch of a repository, as it should be on the Hub. A push deletes those `NETWORK_FILES` on the Hub that
    `files` does not have; all other files stay."""

    repo_id: str
    files: Files
    run: str | None = None  # when the run started (UTC, ISO 8601); None for a run that has written nothing yet
    revision: str | None = None  # the branch; None is `main`

    @property
    def url(self) -> str:
        """The address of its page."""
        branch = "" if self.revision is None else f"/tree/{self.revision}"
        return f"{HfApi().endpoint}/{self.repo_id}{branch}"

    @property
    def replaced(self) -> set[str]:
        """The files, except the card, that a push writes or deletes."""
        return {*self.files, *NETWORK_FILES} - {CARD_FILE}


@dataclass(frozen=True)
class Published:
    """The outcome for a [`Repository`]."""

    url: str
    changed: bool = False  # False also where the Hub held the same files already
    error: str | None = None  # None where the files are on the Hub


@dataclass(frozen=True)
class _State:
    """What the Hub holds on a branch."""

    last_commit: str
    paths: list[str]
    card: str | None  # the card of this run, with edits by people; None if it is not this run's


def check(repositories: Sequence[Repository], private: bool = True, force: bool = False) -> None:
    """Creates the repositories of a run before it is trained, with the same checks as a push. Raises ValueError if the
    run may not publish (see [`publish`]). If the Hub cannot be reached, it only warns."""
    api = HfApi()
    try:
        _watched(api, lambda: [_open(api, repository, private, force) for repository in repositories])
    except Exception as error:
        if _is_final(error):
            raise ValueError(_message(error)) from error
        logger.warning(f"The Hub cannot be reached: {_message(error)} The run starts anyway.")


def publish(repositories: Sequence[Repository], private: bool = True, force: bool = False) -> list[Published]:
    """Publishes each repository in one commit. It stops at the first failure. Failures are not raised:
    `Published.error` has them.

    Before anything is sent, it fails if the user may not write to a repository, if a repository is public although it
    should be `private`, or, without `force`, if the push would overwrite what another run or a person wrote. Text
    around our sections of a card is kept, so it does not count.
    """
    api = HfApi()
    published: list[Published] = []

    def push() -> None:
        states = [_open(api, repository, private, force) for repository in repositories]
        for repository, state in zip(repositories, states, strict=True):
            published.append(Published(repository.url, changed=_commit(api, repository, state)))

    try:
        _watched(api, push)
    except Exception as error:
        logger.debug("Not published", exc_info=True)
        there = list(published)  # a thread that is left behind may still add to it
        return there + [Published(each.url, error=_message(error)) for each in repositories[len(there) :]]
    return published


def _open(api: HfApi, repository: Repository, private: bool, force: bool) -> _State:
    """Creates a repository and its branch if they do not exist. Returns the state of the branch. Raises ValueError for
    a repository that this run must not write to."""
    repo_id = repository.repo_id
    revision = repository.revision
    api.whoami(cache=True)  # its errors are the clearest about a token that is missing or wrong
    api.create_repo(repo_id, private=private, exist_ok=True)
    api.auth_check(repo_id, write=True)
    if revision is not None:  # it begins at the first commit, so that it holds only this export
        first = api.list_repo_commits(repo_id)[-1]
        api.create_branch(repo_id, branch=revision, revision=first.commit_id, exist_ok=True)
    info = api.model_info(repo_id, revision=revision)
    if private and not info.private:
        raise ValueError(f"{repo_id} is public. Make it private in its settings, or publish it with private=False.")
    paths = [file.rfilename for file in info.siblings or ()]
    commits = api.list_repo_commits(repo_id, revision=revision)
    last = commits[0]
    if force or (len(commits) == 1 and _OF_A_NEW_REPOSITORY.issuperset(paths)):
        return _State(last.commit_id, paths, card=None)
    pushes = [commit for commit in commits if _TITLE in commit.title]
    is_own = bool(pushes) and repository.run is not None and repository.run in pushes[0].title
    card = _read_card(api, repo_id, last.commit_id) if is_own and CARD_FILE in paths else None
    if is_own and pushes[0] is not last:
        before = _contents(api, repo_id, pushes[0].commit_id)
        now = _contents(api, repo_id, last.commit_id)
        altered = {path for path in repository.replaced if before.get(path) != now.get(path)}
        is_own = not altered and (card is None or (_BEGIN in card and _END in card))
        if is_own:
            logger.warning(
                f"{repo_id}, branch {revision or 'main'}, was edited since the last push. The card keeps its text "
                "outside our markers. Our part and the metadata are replaced."
            )
    if not is_own:
        writer = "another run" if _TITLE in last.title else "somebody else"
        raise ValueError(
            f"{repo_id}, branch {revision or 'main'}: the last commit ({public(last.title)!r}) was made by {writer}. "
            "A push would overwrite more than our part of the card. Choose another hub_model_id, or replace the model "
            "and its card with force."
        )
    return _State(last.commit_id, paths, card)


def _contents(api: HfApi, repo_id: str, revision: str) -> dict[str, str | None]:
    """Returns for each file the id of its content."""
    info = api.model_info(repo_id, revision=revision, files_metadata=True)
    return {file.rfilename: file.blob_id for file in info.siblings or ()}


def _read_card(api: HfApi, repo_id: str, revision: str) -> str:
    with tempfile.TemporaryDirectory() as directory:
        path = api.hf_hub_download(repo_id, CARD_FILE, revision=revision, local_dir=directory)
        return Path(path).read_bytes().decode()


def mark(card: str) -> str:
    """Returns the card, with our sections between markers."""
    metadata = REGEX_YAML_BLOCK.match(card)
    start = metadata.end() if metadata else 0
    return f"{card[:start]}{_BEGIN}\n\n{card[start:].strip()}\n\n{_END}\n"


def merge(card: str, theirs: str | None) -> str:
    """Returns our card, with the text outside of the markers from theirs; unchanged if there are no markers in
    theirs."""
    head, has_begin, rest = (theirs or "").partition(_BEGIN)
    _, has_end, below = rest.partition(_END)
    if not (has_begin and has_end):
        return card
    metadata, _, ours = card.partition(_BEGIN)
    above = REGEX_YAML_BLOCK.sub("", head, count=1)
    return f"{metadata}{above}{_BEGIN}{ours.partition(_END)[0]}{_END}{below}"


def _commit(api: HfApi, repository: Repository, state: _State) -> bool:
    """Sends the files that have changed. Deletes files of a model that are no longer part of it, because transformers
    would load them. Fails if anybody has written there since `state`. Returns whether anything has changed."""
    files = dict(repository.files)
    files[CARD_FILE] = merge(bytes(files[CARD_FILE]).decode(), state.card).encode()
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        CommitOperationAdd(path, content) for path, content in files.items()
    ]
    for path in repository.replaced.intersection(state.paths).difference(repository.files):
        operations.append(CommitOperationDelete(path, is_folder=False))
    commit = api.create_commit(
        repository.repo_id,
        operations,
        commit_message=f"Publish the model and its card ({_TITLE} {repository.run})",
        revision=repository.revision,
        parent_commit=state.last_commit,
    )
    return bool(commit.oid != state.last_commit)


# ---- A Hub that fails ----


def _watched(api: HfApi, work: Callable[[], _Result]) -> _Result:
    """Returns or raises what `work` does. An upload may take hours, so meanwhile the Hub is called. If it does not
    answer, TimeoutError is raised, and the thread of `work` is left behind."""
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, daemon=True).start()  # a daemon does not keep the process from ending
    unanswered = 0
    while unanswered < CALLS:
        if wait([future], timeout=PAUSE).done:
            return future.result()
        unanswered = 0 if _answers(api) else unanswered + 1
    raise TimeoutError(f"{api.endpoint} has not answered for {CALLS * (PAUSE + ANSWER):g} seconds.")


def _answers(api: HfApi) -> bool:
    """Returns whether the Hub answers at all, whatever it says."""
    try:
        get_session().head(api.endpoint, timeout=ANSWER)
    except Exception:  # which ones depends on the library's client
        return False
    return True


def _is_final(error: Exception) -> bool:
    """Returns whether the Hub would refuse the same request again. After all other errors, it may succeed later."""
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        return 400 <= status < 500 and status not in (408, 425, 429)
    is_answer = not isinstance(error, json.JSONDecodeError)  # it is a ValueError, too
    return is_answer and isinstance(error, (ValueError, errors.LocalTokenNotFoundError))


def _message(error: Exception) -> str:
    """Returns an error of the library or the network in one line, without secrets, with its cause if that says
    more."""
    text = str(error) or type(error).__name__
    if isinstance(error, json.JSONDecodeError):
        text = (
            f"{HfApi().endpoint} answered with something that is not JSON, such as a maintenance page or a login page."
        )
    if error.__cause__ is not None and not isinstance(error, errors.HfHubHTTPError):
        text = f"{text} ({error.__cause__})"
    return " ".join(public(text).split())
