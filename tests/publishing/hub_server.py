"""A Hub on the loopback address: repositories with commits and branches, and failures on request.

`huggingface_hub` speaks to it in tests that have the fixture `hub`, which `conftest.py` imports.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest
from huggingface_hub import close_session, constants


TOKEN = "hf_tokenOfMaria"
PREFIX = "lab/tiny"
DISCRIMINATOR = f"{PREFIX}-discriminator"
GENERATOR = f"{PREFIX}-generator"
COMMIT = "POST /api/models/.*/commit/"
DATE = "2020-01-01T00:00:00.000Z"


class Commit(NamedTuple):
    oid: str
    title: str
    tree: dict[str, bytes]


class HubRepository:
    """A repository. Its branches are lists of commits, the newest last."""

    def __init__(self, private: bool = True) -> None:
        self.private = private
        self.branches: dict[str, list[Commit]] = {}
        self.commit("main", "initial commit", {".gitattributes": b"*.safetensors filter=lfs\n"})

    def commit(self, branch: str, title: str, tree: dict[str, bytes]) -> str:
        history = self.branches.setdefault(branch, [])
        oid = hashlib.sha1(f"{title} {len(history)} {sorted(tree.items())}".encode()).hexdigest()
        history.append(Commit(oid, title, tree))
        return oid

    def find(self, revision: str) -> Commit:
        by_name = {branch: history[-1] for branch, history in self.branches.items()}
        by_id = {commit.oid: commit for history in self.branches.values() for commit in history}
        return (by_name | by_id)[revision]


class HubServer:
    """The server. Requests are `METHOD /path`; patterns are regular expressions that are searched in them."""

    def __init__(self) -> None:
        self.repositories: dict[str, HubRepository] = {}
        self.requests: list[str] = []
        self.failures: dict[str, tuple[int, str]] = {}  # by pattern: the status and what the Hub says (200: a page)
        self.actions: dict[str, Callable[[], object]] = {}  # by pattern: what happens before the answer
        self.silence: str | None = None  # from the first request with this pattern on, nothing is answered
        self.is_silent = False
        self.end_of_silence = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def write(self, repo_id: str, files: dict[str, bytes], branch: str = "main") -> None:
        """Writes files as a person would, in a commit of their own."""
        repository = self.repositories.setdefault(repo_id, HubRepository())
        tree = repository.branches.get(branch, repository.branches["main"])[-1].tree
        repository.commit(branch, "By hand", {**tree, **files})

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        tree = self.repositories[repo_id].find(revision).tree
        return {path: content for path, content in tree.items() if path != ".gitattributes"}

    def everything(self) -> dict[tuple[str, str], dict[str, bytes]]:
        """The files of all repositories and branches, by (repository, branch)."""
        branches = [(name, branch) for name, repository in self.repositories.items() for branch in repository.branches]
        return {(name, branch): self.files(name, branch) for name, branch in branches}

    def asked(self, pattern: str) -> int:
        """How many requests match a pattern."""
        return sum(re.search(pattern, request) is not None for request in self.requests)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet
    disable_nagle_algorithm = True
    hub: HubServer

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub = self.hub
        path = unquote(self.path.partition("?")[0])
        request = f"{self.command} {path}"
        hub.requests.append(request)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub.is_silent |= hub.silence is not None and re.search(hub.silence, request) is not None
        if hub.is_silent:
            hub.end_of_silence.wait()
        for pattern, action in hub.actions.items():
            if re.search(pattern, request):
                action()
        failure = next((answer for pattern, answer in hub.failures.items() if re.search(pattern, request)), None)
        if failure is not None:
            is_page = failure[0] == 200
            return self._answer(failure[0], failure[1].encode() if is_page else {"error": failure[1]})
        try:
            answer = self._route(path.strip("/").split("/"))
        except KeyError:
            return self._answer(
                404, {"error": "Not found"}, "EntryNotFound" if "/resolve/" in path else "RepoNotFound"
            )
        return self._answer(*answer) if isinstance(answer, tuple) else self._answer(200, answer)

    do_HEAD = do_POST = do_GET  # noqa: N815

    def _answer(self, status: int, body: Any, code: str = "") -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", hashlib.sha1(content).hexdigest())
        self.send_header("X-Repo-Commit", self.path.rpartition("/resolve/")[2].partition("/")[0])
        self.send_header("X-Error-Code", code)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _route(self, parts: list[str]) -> Any:
        """Returns the answer: a body, or a status and a body. Raises KeyError for what does not exist."""
        hub = self.hub
        asked = json.loads(self.body) if self.body and "commit" not in parts else {}
        match self.command, parts:
            case "HEAD", [""]:  # asks whether the server is there
                return {}
            case _ if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return 401, {"error": "Invalid credentials in Authorization header"}
            case "GET", ["api", "whoami-v2"]:
                return {"type": "user", "name": "maria"}
            case "POST", ["api", "validate-yaml"]:
                return {"errors": [], "warnings": []}
            case "POST", ["api", "repos", "create"]:
                repo_id = f"{asked['organization']}/{asked['name']}"
                created = {"url": f"{hub.endpoint}/{repo_id}"}
                if asked["organization"] == "museum":
                    return 403, {"error": "You need the role write"}
                if repo_id in hub.repositories:
                    return 409, {"error": "You already created this model repo", **created}
                hub.repositories[repo_id] = HubRepository(asked.get("visibility") == "private")
                return created
            case _, [owner, name, "resolve", revision, file]:
                return hub.repositories[f"{owner}/{name}"].find(revision).tree[file]
            case _, ["api", "models", owner, name, *rest]:
                return self._repository(f"{owner}/{name}", rest, asked)
        raise KeyError

    def _repository(self, repo_id: str, rest: list[str], asked: dict[str, Any]) -> Any:
        repository = self.hub.repositories[repo_id]
        match rest:
            case ["auth-check", "write"]:
                return (403, {"error": "You need the role write"}) if repo_id.startswith("museum/") else {}
            case [] | ["revision", _]:
                commit = repository.find(rest[1] if rest else "main")
                ids = {path: hashlib.sha1(content).hexdigest() for path, content in commit.tree.items()}
                files = [{"rfilename": path, "blobId": blob_id} for path, blob_id in ids.items()]
                return {"id": repo_id, "sha": commit.oid, "private": repository.private, "siblings": files}
            case ["commits", revision]:
                more = {"message": "", "authors": [], "date": DATE}
                return [{"id": c.oid, "title": c.title, **more} for c in reversed(repository.branches[revision])]
            case ["branch", name]:
                if name in repository.branches:
                    return 409, {"error": "Reference already exists"}
                repository.branches[name] = [repository.find(asked["startingPoint"])]
                return {}
            case ["preupload", revision]:  # git takes all files, so that no other storage is needed
                tree = repository.find(revision).tree
                return {"files": [self._mode(tree.get(file["path"]), file["path"]) for file in asked["files"]]}
            case ["commit", branch]:
                return self._commit(repository, branch)
        raise KeyError

    def _mode(self, content: bytes | None, path: str) -> dict[str, Any]:
        mode = {"path": path, "shouldIgnore": False, "uploadMode": "regular"}
        if content is not None:
            mode["oid"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return mode

    def _commit(self, repository: HubRepository, branch: str) -> Any:
        header, *operations = [json.loads(line) for line in self.body.splitlines()]
        parent = repository.find(branch)
        if header["value"].get("parentCommit") not in (None, parent.oid):
            return 412, {"error": "A commit has happened since. Please refresh and try again."}
        tree = dict(parent.tree)
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "deletedFile":
                del tree[value["path"]]
            else:
                tree[value["path"]] = base64.b64decode(value["content"])
        return {"commitOid": repository.commit(branch, header["value"]["summary"], tree), "commitUrl": self.path}


@pytest.fixture
def hub(monkeypatch):
    """A running [`HubServer`] in place of the Hub, where maria is logged in."""
    server = HubServer()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    # This endpoint and the template below were made from ENDPOINT at import.
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", server.endpoint)
    # transformers keeps a client with the ENDPOINT of its first call.
    monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    close_session()
    yield server
    server.end_of_silence.set()
    close_session()
    server.server.shutdown()
    server.server.server_close()
