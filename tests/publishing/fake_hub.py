"""A Hub on the loopback address for tests: private repositories with commits and branches, and failures on request.

`huggingface_hub` speaks to it in tests that have the fixture `hub`, which `conftest.py` imports.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import close_session, constants


TOKEN = "hf_tokenOfMaria"
PREFIX = "lab/tiny"
DISCRIMINATOR, GENERATOR = f"{PREFIX}-discriminator", f"{PREFIX}-generator"
COMMIT = "POST /api/models/.*/commit/"
_LARGE = 10_000  # bytes from which on a file is an LFS object
_FIRST = {".gitattributes": b"*.safetensors filter=lfs\n"}


class Commit(NamedTuple):
    oid: str
    title: str
    tree: dict[str, bytes]


class FakeRepository:
    """Branches are lists of commits, the newest last."""

    def __init__(self, private: bool) -> None:
        self.private = private
        self.branches: dict[str, list[Commit]] = {}
        self.commit("main", "initial commit", _FIRST)

    def commit(self, branch: str, title: str, tree: dict[str, bytes]) -> Commit:
        history = self.branches.setdefault(branch, [])
        oid = hashlib.sha1(f"{title} {len(history)} {sorted(tree.items())}".encode()).hexdigest()
        history.append(Commit(oid, title, dict(tree)))
        return history[-1]

    def find(self, revision: str) -> Commit:
        known = {commit.oid: commit for history in self.branches.values() for commit in history}
        known |= {branch: history[-1] for branch, history in self.branches.items()}
        if revision not in known:
            raise _AnswerError(404, "Invalid revision", "RevisionNotFound")
        return known[revision]


class FakeHub:
    """The server. `identity` is what `whoami` answers."""

    def __init__(self) -> None:
        orgs = [{"name": "lab", "roleInOrg": "write"}, {"name": "museum", "roleInOrg": "read"}]
        self.identity = {"type": "user", "name": "maria", "orgs": orgs, "auth": {"accessToken": {"role": "write"}}}
        self.repositories: dict[str, FakeRepository] = {}
        self.collections: dict[str, dict[str, Any]] = {}
        self.objects: dict[str, bytes] = {}
        self.failures: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self.server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def add(self, repo_id: str, files: dict[str, bytes]) -> None:
        """Puts files there as a person would, in a commit of their own."""
        repository = self.repositories.setdefault(repo_id, FakeRepository(private=True))
        repository.commit("main", "By hand", {**repository.find("main").tree, **files})

    def fail(self, pattern: str, **how: Any) -> None:
        """What goes wrong with the requests (`METHOD /path`) of a pattern, `times` times: a status, an answer
        that is lost after everything was done, a broken request, or seconds of silence."""
        self.failures.append({"pattern": pattern, "times": float("inf"), **how})

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        tree = self.repositories[repo_id].find(revision).tree
        return {path: content for path, content in tree.items() if path not in _FIRST}

    def everything(self) -> dict[tuple[str, str], dict[str, bytes]]:
        """Files by repository and branch."""
        branches = [(name, branch) for name, repository in self.repositories.items() for branch in repository.branches]
        return {(name, branch): self.files(name, branch) for name, branch in branches}

    def asked(self, pattern: str) -> int:
        """How many requests match."""
        return sum(re.search(pattern, request) is not None for request in self.requests)


class _AnswerError(Exception):
    def __init__(self, status: int, said: str, code: str = "", **more: str) -> None:
        self.status, self.body = status, {"error": said, **more}
        self.headers = {"X-Error-Code": code} if code else {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet
    disable_nagle_algorithm = True
    hub: FakeHub

    def log_message(self, *arguments: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        with suppress(OSError, ValueError):
            return super().handle_one_request()
        self.close_connection = True

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        request = f"{self.command} {address.path}"
        with self.hub.lock:
            self.hub.requests.append(request)
            failures = [
                each for each in self.hub.failures if each["times"] > 0 and re.search(each["pattern"], request)
            ]
            failure = failures[0] if failures else {"times": 0}
            failure["times"] -= 1
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        time.sleep(failure.get("silent", 0))
        if "status" in failure:
            return self._answer(failure["status"], {"error": failure.get("said", "")}, {})
        headers: dict[str, str] = {}
        if "broken" not in failure:
            try:
                with self.hub.lock:
                    status, body = 200, self._route([unquote(part) for part in address.path.strip("/").split("/")])
            except _AnswerError as error:
                status, body, headers = error.status, error.body, error.headers
        if "broken" in failure or "lost" in failure:
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR)
        return self._answer(status, body, headers)

    do_POST = do_PUT = do_GET  # noqa: N815

    def _answer(self, status: int, body: Any, headers: dict[str, str]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    # ---- What is asked ----

    def _route(self, parts: list[str]) -> Any:
        asked = json.loads(self.body) if self.body[:1] == b"{" and parts[-2] != "commit" else {}
        match self.command, parts:
            case "GET", ["api", "whoami-v2"]:
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    raise _AnswerError(401, "Invalid credentials in Authorization header")
                return self.hub.identity
            case "POST", ["api", "validate-yaml"]:
                return {"errors": [], "warnings": []}
            case "POST", ["api", "repos", "create"]:
                repo_id = f"{asked.get('organization') or 'maria'}/{asked['name']}"
                if repo_id not in self.hub.repositories:  # else the Hub answers 409, which `exist_ok` makes the same
                    self.hub.repositories[repo_id] = FakeRepository(asked.get("visibility") == "private")
                return {"url": f"{self.hub.endpoint}/{repo_id}", "name": repo_id}
            case "POST", [_, _, "info", "lfs", "objects", "batch"]:
                for each in asked["objects"]:
                    if each["oid"] not in self.hub.objects:
                        each["actions"] = {"upload": {"href": f"{self.hub.endpoint}/objects/{each['oid']}"}}
                return {"transfer": "basic", "objects": asked["objects"]}
            case "PUT", ["objects", oid]:
                self.hub.objects[oid] = self.body
                return {}
            case _, ["api", "collections", *slug]:
                return self._collection("/".join(slug[:2]), asked)
            case method, ["api", "models", owner, name, *rest]:
                return self._repository(method, f"{owner}/{name}", rest, asked)
        raise _AnswerError(404, "Entry not found", "EntryNotFound")

    def _collection(self, slug: str, asked: dict[str, Any]) -> Any:
        """Reads one, makes one, or puts an item into one."""
        if not slug:
            slug = f"{asked['namespace']}/{asked['title']}-0a1b"
            if slug in self.hub.collections:
                raise _AnswerError(409, "This collection exists", slug=slug)
            more = {"lastUpdated": "2020-01-01T00:00:00.000Z", "position": 0, "theme": "blue", "upvotes": 0}
            owner = {"name": asked.pop("namespace")}
            self.hub.collections[slug] = {"slug": slug, "items": [], "owner": owner, **more, **asked}
        elif asked:
            items, item = self.hub.collections[slug]["items"], asked["item"]
            self._find(item["id"])
            if item["id"] in [known["id"] for known in items]:
                raise _AnswerError(409, "This item is there")
            items.append({"_id": item["id"], "position": len(items), **item})
        return self.hub.collections[slug]

    def _find(self, repo_id: str) -> FakeRepository:
        if repo_id in self.hub.repositories:
            return self.hub.repositories[repo_id]
        raise _AnswerError(404, "Repository not found", "RepoNotFound")

    def _repository(self, method: str, repo_id: str, rest: list[str], asked: dict[str, Any]) -> Any:
        repository = self._find(repo_id)
        match method, rest:
            case "GET", ["auth-check", "write"]:
                return {}
            case "GET", [] | ["revision", _]:
                commit = repository.find(rest[1] if rest else "main")
                files = [{"rfilename": path} for path in commit.tree]
                return {"id": repo_id, "sha": commit.oid, "private": repository.private, "siblings": files}
            case "GET", ["commits", revision]:
                more = {"message": "", "authors": [], "date": "2020-01-01T00:00:00.000Z"}
                history = reversed(repository.branches[revision])
                return [{"id": each.oid, "title": each.title, **more} for each in history]
            case "POST", ["branch", name]:
                repository.branches[name] = [repository.find(asked["startingPoint"])]
                return {}
            case "POST", ["preupload", revision]:
                tree = repository.find(revision).tree
                return {"files": [self._mode(tree, each) for each in asked["files"]]}
            case "POST", ["commit", branch]:
                oid = self._commit(repository, branch)
                return {"commitOid": oid, "commitUrl": f"{self.hub.endpoint}/{repo_id}/commit/{oid}"}
        raise _AnswerError(404, "Not found", "EntryNotFound")

    def _mode(self, tree: dict[str, bytes], asked: dict[str, Any]) -> dict[str, Any]:
        large, content = asked["size"] >= _LARGE, tree.get(asked["path"])
        mode = {"path": asked["path"], "shouldIgnore": False, "uploadMode": "lfs" if large else "regular"}
        if content is None:
            return mode
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content)
        return {**mode, "oid": (hashlib.sha256(content) if large else blob).hexdigest()}

    def _commit(self, repository: FakeRepository, branch: str) -> str:
        header, *operations = [json.loads(line) for line in self.body.splitlines()]
        parent = repository.find(branch)
        if header["value"].get("parentCommit") not in (None, parent.oid):
            raise _AnswerError(412, "A commit has happened since. Please refresh and try again.")
        tree = dict(parent.tree)
        for kind, value in ((operation["key"], operation["value"]) for operation in operations):
            if kind == "deletedFile":
                del tree[value["path"]]
            elif kind == "lfsFile":
                tree[value["path"]] = self.hub.objects[value["oid"]]
            else:
                tree[value["path"]] = base64.b64decode(value["content"])
        return repository.commit(branch, header["value"]["summary"], tree).oid


@pytest.fixture
def hub(monkeypatch):
    """A running [`FakeHub`] in place of the Hub; maria is logged in, and no pause takes time."""
    fake = FakeHub()
    for name, value in (("ENDPOINT", fake.endpoint), ("HF_HUB_OFFLINE", False), ("HF_HUB_DISABLE_XET", False)):
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", fake.endpoint)  # both were made of ENDPOINT at import
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    at_once = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
    monkeypatch.setattr("huggingface_hub.utils._http.time", at_once)
    monkeypatch.setattr("hf_electra_rtd.publishing.hub.time", at_once)
    close_session()
    yield fake
    close_session()
    fake.server.shutdown()
    fake.server.server_close()
