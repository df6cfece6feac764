"""The way to the Hub: looked at before, one commit, read back after.

A push is safe to repeat. It looks at what lies there, sends one commit that makes the difference, and nothing where
there is none. So a connection that breaks leaves the repository as it was or as it shall be, and a commit whose answer
was lost is found by the next look.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, hf_hub_url
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from hf_electra_rtd.publishing.hub_access import refuse_without_rights
from hf_electra_rtd.publishing.hub_errors import RESUME, HubError, asked_to_wait, explain, is_transient
from hf_electra_rtd.publishing.repositories import Repository, RepositoryFile, is_written_here
from hf_electra_rtd.publishing.same_run import RECORD_FILES, difference, run_of


logger = logging.getLogger(__name__)

T = TypeVar("T")

CARD_TAG = "hf-electra-rtd"  # in a card's metadata: the repository was made by this package
MAIN = "main"
PAUSES = (1.0, 4.0, 16.0)  # seconds before each further try
LONGEST_WAIT = 300.0  # the Hub counts requests in windows of five minutes
ANSWER_SECONDS = 120.0  # of silence; the Hub gives up itself after one minute
_OF_NOBODY = (".gitattributes",)  # what the Hub puts into a new repository


@dataclass(frozen=True)
class RemoteFile:
    """A file on the Hub: its size in bytes, and its digest: SHA-256 of a large one (LFS), else git's blob id."""

    size: int
    digest: str
    is_large: bool

    def holds(self, file: RepositoryFile) -> bool:
        """Whether it has the content of a file here."""
        return self.size == file.size and self.digest == (file.sha256 if self.is_large else file.blob_id)


@dataclass(frozen=True)
class RemoteState:
    """What lies on the Hub at a revision.

    Attributes:
        commit: its full hash.
        private: of the repository.
        is_ours: whether the card says that this package made it.
        files: by path.
    """

    commit: str
    private: bool
    is_ours: bool
    files: dict[str, RemoteFile]


@dataclass(frozen=True)
class Pushed:
    """What a push did.

    Attributes:
        repo_id: `owner/name`.
        url: of its page.
        commit: full hash of the commit that holds it.
        revision: the branch.
        tag: that names the commit, or None.
        private: whether the repository is.
        changed: False where everything lay there already, so that no commit was made.
    """

    repo_id: str
    url: str
    commit: str
    revision: str
    tag: str | None
    private: bool
    changed: bool


class Publisher:
    """Writes repositories of models to the Hub.

    The token is that of the environment (`HF_TOKEN`) or of the login (`hf auth login`), and no argument, which a file
    could keep.

    Args:
        api: None is the Hub that `HF_ENDPOINT` names.
        pauses: seconds before each further try of a request that failed for a moment; empty tries once.
        longest_wait: the most seconds that are waited where the Hub asks to wait; if it asks for more, the push ends.
        answer_seconds: of silence, after which a connection counts as broken.
        sleep: waits.
    """

    def __init__(
        self,
        api: HfApi | None = None,
        pauses: Sequence[float] = PAUSES,
        longest_wait: float = LONGEST_WAIT,
        answer_seconds: float = ANSWER_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._api = HfApi() if api is None else api
        self._pauses = tuple(pauses)
        self._longest_wait = longest_wait
        self._answer_seconds = answer_seconds
        self._sleep = sleep

    def check(
        self, repo_id: str, private: bool | None = None, force: bool = False, run: Mapping[str, Any] | None = None
    ) -> RemoteState | None:
        """Looks whether a push may begin; writes nothing.

        Args:
            repo_id: of the repository, `owner/name`.
            private: True where nothing may become public: a public repository is refused.
            force: whether a repository that holds something else, or another run, may be written to.
            run: that shall lie there, as `hf_electra_rtd.publishing.same_run` tells it; None where that is not known,
                or does not matter.

        Returns:
            What lies on the main branch, or None where there is no such repository.

        Raises:
            HubError: if nobody is logged in, the token may not write there, the repository is public where it shall
                not be, holds something else or another run, or the Hub cannot be asked.
        """
        identity = self._try(repo_id, lambda: self._api.whoami(cache=True))
        refuse_without_rights(identity, repo_id)
        there = self._try(repo_id, lambda: self._find(repo_id, MAIN))
        if there is None:
            return None
        if private and not there.private:
            raise HubError(
                f"{repo_id} is public already, and this shall be private. Choose another --repo_prefix, make it "
                "private in its settings, or say --private False (in training, --hub_private_repo False).",
                False,
            )
        others = sorted(there.files.keys() - set(_OF_NOBODY))
        if others and not there.is_ours and not force:
            raise HubError(
                f"{repo_id} holds something else (its card has no tag {CARD_TAG}): {_listed(others)}. Choose another "
                "--repo_prefix, or replace the model and card that lie there with --force; other files stay.",
                False,
            )
        if there.is_ours and run is not None and not force:
            self._refuse_another_run(repo_id, there, run)
        return there

    def _refuse_another_run(self, repo_id: str, there: RemoteState, run: Mapping[str, Any]) -> None:
        for name in sorted(RECORD_FILES.keys() & there.files.keys()):
            content = self._try(repo_id, partial(self._read, repo_id, name, there.commit))
            if differing := difference(run, name, content):
                raise HubError(
                    f"{repo_id} holds another run ({differing}). Choose another --repo_prefix (in training, "
                    "--hub_model_id), or replace it with --force.",
                    False,
                )

    def push(self, repository: Repository, private: bool | None = None, force: bool = False) -> Pushed:
        """Makes a branch of a repository hold exactly these files and what others put there, in one commit, and reads
        it back.

        Where the card says that this package made the repository, files of the names that it writes and that are not
        among these (such as shards of larger weights) go in the same commit; elsewhere, nothing goes. A branch other
        than `main` starts at the repository's first commit, so that it holds one state of a model and nothing else.
        The Hub checks the card's metadata before anything is sent.

        Args:
            repository: what shall lie there.
            private: whether a new repository is private (None: it is); True refuses a public one.
            force: whether a repository that holds something else, or another run, may be written to: its model and
                card are replaced.

        Returns:
            Where it lies.

        Raises:
            HubError: says what happened and what to do. The branch is as it was before, or whole.
        """
        repo_id, branch = repository.repo_id, repository.revision or MAIN
        if self.check(repo_id, private, force, run_of(repository)) is None:
            self._create(repo_id, private)
        if branch != MAIN:
            self._try(repo_id, lambda: self._begin_branch(repo_id, branch))
        before = self._try(repo_id, lambda: self._state(repo_id, branch))
        if private and not before.private:
            raise HubError(f"{repo_id} shall be private, but the Hub says that it is public: nothing was sent.", False)
        if repository.tag is not None and _difference(repository, before):
            self._try(repo_id, lambda: self._refuse_taken_tag(repo_id, str(repository.tag), None))
        commit = self._try(repo_id, lambda: self._commit(repository, branch, before.commit))
        self._compare(repository, commit)
        if repository.tag is not None:
            self._try(repo_id, lambda: self._put_tag(repo_id, str(repository.tag), commit))
        changed = commit != before.commit
        logger.info(f"{repo_id}: " + (f"commit {commit[:8]} on {branch}." if changed else "nothing has changed."))
        page = f"{self._api.endpoint}/{repo_id}" + ("" if branch == MAIN else f"/tree/{branch}")
        return Pushed(repo_id, page, commit, branch, repository.tag, before.private, changed)

    # ---- Requests ----

    def _try(self, repo_id: str, request: Callable[[], T]) -> T:
        """Does a request, again where it failed for a moment, and explains why it cannot be done."""
        for pause in (*self._pauses, None):
            try:
                with _limiting_silence(self._answer_seconds):
                    return request()
            except HubError:
                raise
            except Exception as error:
                wait = asked_to_wait(error)
                if pause is None or not is_transient(error) or (wait or 0) > self._longest_wait:
                    explained = explain(error, repo_id)
                    if explained is None:
                        raise
                    # Without what it came from: that text is the library's, and could hold a token.
                    raise explained from None
                pause = max(pause, wait or 0)
                logger.warning(f"{explain(error, repo_id)} (The next try is in {pause:.0f} seconds.)")
                self._sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _find(self, repo_id: str, revision: str) -> RemoteState | None:
        """What lies there, or None."""
        try:
            info = self._api.model_info(repo_id, revision=revision, files_metadata=True)
        except GatedRepoError:
            raise
        except (RepositoryNotFoundError, RevisionNotFoundError) as error:
            if error.response.status_code != 404:  # 401: the token
                raise
            return None
        files = {}
        for file in info.siblings or ():
            digest = file.blob_id if file.lfs is None else file.lfs.sha256
            files[file.rfilename] = RemoteFile(file.size or 0, digest or "", file.lfs is not None)
        tags = (info.card_data.tags if info.card_data is not None else None) or []
        assert info.sha is not None, "asked for a revision, the Hub tells its commit"
        return RemoteState(info.sha, bool(info.private), CARD_TAG in tags, files)

    def _read(self, repo_id: str, path_in_repo: str, commit: str) -> bytes:
        """A small file, without the cache that a download would go through."""
        url = hf_hub_url(repo_id, path_in_repo, revision=commit, endpoint=self._api.endpoint)
        answer = get_session().get(url, headers=build_hf_headers(token=self._api.token), follow_redirects=True)
        hf_raise_for_status(answer)
        return answer.content

    def _state(self, repo_id: str, revision: str) -> RemoteState:
        state = self._find(repo_id, revision)
        if state is None:
            raise HubError(
                f"{repo_id}: the Hub does not find {revision}, which was there a moment ago. Send it again: {RESUME}.",
                True,
            )
        return state

    def _create(self, repo_id: str, private: bool | None) -> None:
        self._try(repo_id, lambda: self._api.create_repo(repo_id, private=private is not False, exist_ok=True))

    def _begin_branch(self, repo_id: str, branch: str) -> None:
        if self._find(repo_id, branch) is None:
            first = self._api.list_repo_commits(repo_id)[-1].commit_id
            self._api.create_branch(repo_id, branch=branch, revision=first, exist_ok=True)

    def _commit(self, repository: Repository, branch: str, parent: str) -> str:
        # Looked at in every try: a try before may have got through, and only its answer was lost.
        there = self._state(repository.repo_id, branch)
        operations = _difference(repository, there)
        if not operations:
            return there.commit
        if there.commit != parent:
            raise HubError(
                f"{repository.repo_id} was changed by somebody else at the same time; nothing was overwritten. Look "
                f"at what lies there now, then send it again: {RESUME}.",
                True,
            )
        done = self._api.create_commit(
            repository.repo_id,
            operations,
            commit_message=repository.message,
            revision=branch,
            parent_commit=parent,
        )
        return done.oid

    def _compare(self, repository: Repository, commit: str) -> None:
        """Reads back what a commit holds."""
        there = self._try(repository.repo_id, lambda: self._state(repository.repo_id, commit))
        if differing := sorted(file.path_in_repo for file in _changed(repository, there)):
            raise HubError(
                f"{repository.repo_id} does not hold what was sent: {_listed(differing)} at {commit[:8]} differ from "
                f"the files here, which may have changed meanwhile. Send them again: {RESUME}.",
                True,
            )

    def _put_tag(self, repo_id: str, tag: str, commit: str) -> None:
        if not self._refuse_taken_tag(repo_id, tag, commit):
            self._api.create_tag(repo_id, tag=tag, revision=commit, exist_ok=True)
            self._refuse_taken_tag(repo_id, tag, commit)

    def _refuse_taken_tag(self, repo_id: str, tag: str, commit: str | None) -> bool:
        """Whether the tag names this commit already."""
        taken = next((ref.target_commit for ref in self._api.list_repo_refs(repo_id).tags if ref.name == tag), None)
        if taken is not None and taken != commit:
            raise HubError(
                f"{repo_id}: the tag {tag} names another commit ({taken[:8]}), and is not moved. Choose another tag, "
                "or remove it on the Hub.",
                False,
            )
        return taken is not None


def _difference(repository: Repository, there: RemoteState) -> list[Any]:
    """The operations that make a branch hold a repository; empty where it does."""
    wanted = {file.path_in_repo for file in repository.files}
    ours = there.files if there.is_ours else ()
    stale = sorted(path for path in ours if path not in wanted and is_written_here(path))
    return [
        *(CommitOperationDelete(path, is_folder=False) for path in stale),
        *(CommitOperationAdd(file.path_in_repo, file.content) for file in _changed(repository, there)),
    ]


def _changed(repository: Repository, there: RemoteState) -> list[RepositoryFile]:
    """The files that do not lie there as they are here."""
    return [
        file
        for file in repository.files
        if file.path_in_repo not in there.files or not there.files[file.path_in_repo].holds(file)
    ]


@contextmanager
def _limiting_silence(seconds: float) -> Iterator[None]:
    """Lets the library's connections, which would wait for ever, break after a while without a byte."""

    def limit(request: Any) -> None:
        # Not by the session's own limit: `model_info` and what has pages pass None with each request, which beats it.
        limits = request.extensions["timeout"]  # in seconds, by phase: connect, read, write, pool
        request.extensions["timeout"] = {phase: seconds if given is None else given for phase, given in limits.items()}

    hooks = get_session().event_hooks["request"]
    hooks.append(limit)
    try:
        yield
    finally:
        hooks.remove(limit)


def _listed(names: Sequence[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
