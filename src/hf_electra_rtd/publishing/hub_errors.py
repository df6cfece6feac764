"""What a Hub that fails says, and what to do about it, in words for the person who ran the command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import parse_ratelimit_headers


RESUME = "publish.py --resume"
_LATER = f"What was not sent is sent later by {RESUME}."
_LOGIN = "Log in with a token that may write (hf auth login, or the environment variable HF_TOKEN)"
_TOKEN = re.compile(r"\b(hf|api_org)_\w+")
_HTTP_CLIENTS = ("httpx", "httpx2", "httpcore", "requests", "urllib3")  # by version of huggingface_hub
_TRANSIENT_STATUSES = (408, 425, 429, 500, 502, 503, 504)
# Requests that huggingface_hub repeats itself, five times with growing pauses (`http_backoff`, read in 1.33 and 2.4).
_REPEATED_BY_LIBRARY = re.compile(r"/preupload/|/info/lfs/|/commits/|^PUT ")


class HubError(RuntimeError):
    """Something could not be done on the Hub; the message says what, to which repository, and what to do.

    Args:
        message: for people; holds no token.
        retryable: whether the same may succeed later without anybody changing anything.
    """

    def __init__(self, message: str, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


def explain(error: BaseException, repo_id: str) -> HubError | None:
    """An error that people understand, from whatever `huggingface_hub` and the network raise; None for an error that
    is none of theirs.

    Args:
        error: what was raised.
        repo_id: of the repository that was worked on.
    """
    links = list(_chain(error))
    if any(isinstance(link, OfflineModeIsEnabled) for link in links):
        return HubError(f"{repo_id}: offline mode is on (HF_HUB_OFFLINE). Unset it. {_LATER}", True)
    if any(isinstance(link, LocalTokenNotFoundError) for link in links):
        return HubError(f"{repo_id}: nobody is logged in to the Hub. {_LOGIN}. {_LATER}", False)
    for link in links:
        if isinstance(link, HfHubHTTPError):
            return _explain_answer(link, repo_id)
    if any(_is_network_error(link) for link in links):
        return HubError(
            f"{repo_id}: the Hub cannot be reached, or the connection broke ({_said(error)}). Check the network. "
            f"{_LATER}",
            True,
        )
    if any(isinstance(link, json.JSONDecodeError) for link in links):
        return HubError(f"{repo_id}: the Hub's answer is not to be read; it may be under maintenance. {_LATER}", True)
    if isinstance(error, ValueError):  # of validate-yaml, or of the check of a name
        return HubError(f"{repo_id}: the Hub refuses this: {_said(error)}", False)
    if isinstance(error, OSError) and error.filename is not None:
        return HubError(f"{repo_id}: {error.filename} cannot be read: {error.strerror}.", False)
    if isinstance(error, (RuntimeError, OSError)):  # of the upload of large files
        return HubError(f"{repo_id}: the upload failed ({_said(error)}: {_said(links[-1])}). {_LATER}", True)
    return None


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed in a moment, and `huggingface_hub` has not repeated it already."""
    links = list(_chain(error))
    if any(isinstance(link, (OfflineModeIsEnabled, HubError)) for link in links):
        return False
    for link in links:
        if isinstance(link, HfHubHTTPError):
            sent = link.response.request
            request = f"{sent.method} {sent.url}"
            return link.response.status_code in _TRANSIENT_STATUSES and not _REPEATED_BY_LIBRARY.search(request)
    return any(_is_network_error(link) or isinstance(link, json.JSONDecodeError) for link in links)


def asked_to_wait(error: BaseException) -> float | None:
    """The seconds that the Hub asks to wait before the next request (`RateLimit`, or `Retry-After` in seconds); None
    where it does not ask."""
    for link in _chain(error):
        if isinstance(link, HfHubHTTPError):
            limit = parse_ratelimit_headers(link.response.headers)
            if link.response.status_code == 429 and limit is not None and limit.remaining == 0:
                return float(limit.reset_in_seconds)
            after = link.response.headers.get("Retry-After", "").strip()
            return float(after) if after.isdecimal() else None
    return None


def _explain_answer(error: HfHubHTTPError, repo_id: str) -> HubError:
    status, owner = error.response.status_code, repo_id.partition("/")[0]
    said = f" ({_said(error.server_message)})" if error.server_message else ""
    if isinstance(error, GatedRepoError):
        return HubError(f"{repo_id} is gated{said}: ask its owner for access, or choose another --repo_prefix.", False)
    if status == 401:
        return HubError(f"{repo_id}: the Hub does not accept the token{said}. {_LOGIN}. {_LATER}", False)
    if status == 403:
        return HubError(
            f"{repo_id}: the token may not write there{said}. Ask for write access to {owner}, give the token the "
            f"permission to write to its repositories, or choose another --repo_prefix. {_LATER}",
            False,
        )
    if status == 404 or isinstance(error, RepositoryNotFoundError):
        return HubError(
            f"{repo_id} (or a branch of it) was not found{said}: it was removed or renamed meanwhile, or is private "
            "to others. Look at its page, or choose another --repo_prefix.",
            False,
        )
    if status in (409, 412):
        return HubError(
            f"{repo_id} was changed by somebody else at the same time{said}; nothing was overwritten. Look at what "
            f"lies there now, then send it again. {_LATER}",
            True,
        )
    if status == 413:
        return HubError(f"{repo_id}: a file is too large for the Hub{said}. Save the model in smaller shards.", False)
    if status == 429:
        wait = asked_to_wait(error)
        when = "later" if wait is None else f"in {wait:.0f} seconds at the earliest"
        return HubError(f"{repo_id}: too many requests; the Hub wants the next one {when}{said}. {_LATER}", True)
    if status >= 500 or status in _TRANSIENT_STATUSES:
        return HubError(f"{repo_id}: the Hub has a problem of its own (status {status}){said}. {_LATER}", True)
    return HubError(f"{repo_id}: the Hub refuses this with status {status}{said}.", False)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those that led to it."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        yield link
        seen.add(id(link))
        link = link.__cause__ or link.__context__


def _is_network_error(error: BaseException) -> bool:
    module = type(error).__module__.partition(".")[0]
    return isinstance(error, (ConnectionError, TimeoutError)) or module in _HTTP_CLIENTS


def _said(what: Any) -> str:
    """In one line, and without tokens."""
    line = " ".join(str(what).split()) or type(what).__name__
    return _TOKEN.sub(r"\1_...", line)[:300].rstrip(".")
