"""A Hub on loopback for tests: users, organisations, repositories with commits, branches and tags, in memory, and
every failure that a test asks for.

`with FakeHub() as hub:` serves at `hub.endpoint`. What was asked is in `hub.requests`, what lies there is told by
`hub.files(repo_id, revision)` and `hub.log(repo_id, revision)`.
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
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml


TOKEN = "hf_tokenOfMaria"
KINDS = ("models", "datasets", "spaces")


@dataclass(frozen=True)
class Blob:
    content: bytes
    large: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def pointer(self) -> bytes:
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.content)}\n"
        return text.encode()

    @property
    def oid(self) -> str:
        stored = self.pointer if self.large else self.content
        return hashlib.sha1(b"blob %d\0" % len(stored) + stored).hexdigest()


@dataclass(frozen=True)
class Commit:
    oid: str
    parent: str | None
    title: str
    tree: dict[str, Blob]


@dataclass
class FakeRepository:
    private: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, title: str, tree: dict[str, Blob]) -> Commit:
        parent = self.branches.get(branch)
        seed = f"{parent} {title} {len(self.commits)} {sorted((path, blob.oid) for path, blob in tree.items())}"
        made = Commit(hashlib.sha1(seed.encode()).hexdigest(), parent, title, tree)
        self.commits[made.oid] = made
        self.branches[branch] = made.oid
        return made

    def find(self, revision: str) -> Commit | None:
        oid = self.branches.get(revision) or self.tags.get(revision) or revision
        return self.commits.get(oid)

    def history(self, revision: str) -> list[Commit]:
        """Newest first."""
        found, commit = [], self.find(revision)
        while commit is not None:
            found.append(commit)
            commit = self.commits[commit.parent] if commit.parent else None
        return found


@dataclass
class Failure:
    """What goes wrong with the requests (`METHOD /path`) that a pattern matches, so many times.

    Attributes:
        status: that is answered; None answers as ever.
        headers, body: of that answer.
        cut: where the connection breaks: in the `request` (half of its body is read, nothing is done), before the
            `answer` (everything is done), or in the `half` of the answer.
        delay: seconds before anything is done.
    """

    pattern: str
    times: float = 1
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    cut: str | None = None
    delay: float = 0.0


class FakeHub:
    """The server.

    Attributes:
        identities: what `whoami` answers, by token.
        lfs_from: bytes from which a file is a large one; None is never.
        corrupted: paths of which the Hub spoils what it is given.
        failures: that are still to come.
        requests: `METHOD /path` of each.
    """

    def __init__(self) -> None:
        self.identities: dict[str, dict[str, Any]] = {}
        self.repositories: dict[tuple[str, str], FakeRepository] = {}
        self.lfs_from: int | None = None
        self.large_objects: dict[str, bytes] = {}
        self.corrupted: set[str] = set()
        self.failures: list[Failure] = []
        self.requests: list[str] = []
        self.lock = threading.RLock()
        self.add_user(TOKEN, "maria", {"lab": "write", "museum": "read"})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeHub:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._server.shutdown()
        self._server.server_close()

    def environment(self, home: str | Path) -> dict[str, str]:
        """For a process whose Hub this is; `home` is where it keeps downloads."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }

    def add_user(self, token: str, name: str, roles: dict[str, str], **access_token: Any) -> None:
        """A user with a role in each organisation, by name, whose token is described by `access_token` (it writes)."""
        self.identities[token] = {
            "type": "user",
            "name": name,
            "orgs": [{"type": "org", "name": org, "roleInOrg": role} for org, role in roles.items()],
            "auth": {"type": "access_token", "accessToken": {"displayName": "t", "role": "write", **access_token}},
        }

    def add(self, repo_id: str, files: dict[str, bytes], private: bool = True, branch: str = "main") -> FakeRepository:
        """Puts files there as somebody else would: a repository, or a commit on what it has."""
        with self.lock:
            repository = self.repositories.setdefault(("models", repo_id), FakeRepository(private))
            if not repository.commits:
                repository.commit("main", "initial commit", {".gitattributes": Blob(b"*.bin filter=lfs\n")})
            tree = dict(repository.commits[repository.branches[branch]].tree)
            repository.commit(branch, "by hand", {**tree, **{path: Blob(content) for path, content in files.items()}})
            return repository

    def fail(self, pattern: str, **how: Any) -> Failure:
        """See [`Failure`]; failures are matched in their order."""
        self.failures.append(Failure(pattern, **how))
        return self.failures[-1]

    def files(self, repo_id: str, revision: str = "main") -> dict[str, bytes]:
        commit = self.repositories["models", repo_id].find(revision)
        assert commit is not None
        return {path: blob.content for path, blob in commit.tree.items()}

    def log(self, repo_id: str, revision: str = "main") -> list[str]:
        """Titles of the commits, newest first."""
        return [commit.title for commit in self.repositories["models", repo_id].history(revision)]

    def asked(self, pattern: str) -> int:
        """How many requests match."""
        return sum(re.search(pattern, request) is not None for request in self.requests)

    def _failure(self, request: str) -> Failure | None:
        with self.lock:
            self.requests.append(request)
            for failure in self.failures:
                if failure.times > 0 and re.search(failure.pattern, request):
                    failure.times -= 1
                    return failure
        return None


class _AnswerError(Exception):
    """Ends a request with a status."""

    def __init__(self, status: int, body: Any, **headers: str) -> None:
        super().__init__(status)
        self.status, self.body = status, body
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # headers and body in one packet
    disable_nagle_algorithm = True
    hub: FakeHub

    def log_message(self, *arguments: Any) -> None:
        pass

    def handle_one_request(self) -> None:
        with suppress(ConnectionError, OSError, ValueError):
            super().handle_one_request()
            return
        self.close_connection = True

    def do_GET(self) -> None:
        self._serve()

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def _serve(self) -> None:
        address = urlsplit(self.path)
        failure = self.hub._failure(f"{self.command} {address.path}")
        length = int(self.headers.get("Content-Length") or 0)
        if failure is not None:
            time.sleep(failure.delay)
            if failure.cut == "request":
                self.rfile.read(length // 2)
                self._cut()
                return
        self.body = self.rfile.read(length)
        self.query = parse_qs(address.query)
        if failure is not None and failure.status is not None:
            self._answer(failure.status, failure.body, failure.headers)
            return
        try:
            with self.hub.lock:
                status, body, headers = self._route([unquote(part) for part in address.path.strip("/").split("/")])
        except _AnswerError as error:
            status, body, headers = error.status, error.body, error.headers
        if failure is not None and failure.cut == "answer":
            self._cut()
        else:
            self._answer(status, body, headers, half=failure is not None and failure.cut == "half")

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None, half: bool = False) -> None:
        content = body if isinstance(body, bytes) else json.dumps({} if body is None else body).encode()
        self.send_response(status)
        headers = {"Content-Type": "application/json", "Content-Length": str(len(content)), **(headers or {})}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if half else content)
        self.wfile.flush()
        if half:
            self._cut()

    # ---- What is asked ----

    def _route(self, parts: list[str]) -> tuple[int, Any, dict[str, str]]:
        match self.command, parts:
            case "GET", ["api", "whoami-v2"]:
                return 200, self._identity(), {}
            case "POST", ["api", "repos", "create"]:
                return 200, self._create(), {}
            case "POST", ["api", "validate-yaml"]:
                return 200, self._validate(), {}
            case method, ["api", kind, owner, name, *rest] if kind in KINDS:
                return 200, self._api(method, kind, f"{owner}/{name}", rest), {}
            case "POST", [*prefix, owner, name, "info", "lfs", "objects", "batch"]:
                kind = prefix[0] if prefix else "models"
                self._repository(kind, f"{owner}/{name.removesuffix('.git')}", writes=True)
                return 200, self._batch(), {}
            case "PUT", ["large-objects", oid]:
                if hashlib.sha256(self.body).hexdigest() != oid:
                    raise _AnswerError(400, {"error": "wrong hash"})
                self.hub.large_objects[oid] = self.body
                return 200, {}, {}
            case "GET" | "HEAD", ["datasets" | "spaces" as kind, owner, name, "resolve", revision, *path]:
                return self._resolve(kind, f"{owner}/{name}", revision, "/".join(path))
            case "GET" | "HEAD", [owner, name, "resolve", revision, *path]:
                return self._resolve("models", f"{owner}/{name}", revision, "/".join(path))
        raise _AnswerError(404, {"error": "Sorry, we can't find the page you are looking for."})

    def _identity(self) -> dict[str, Any]:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token not in self.hub.identities:
            said = "Invalid credentials in Authorization header"
            raise _AnswerError(401, {"error": said}, X_Error_Message=said)
        return self.hub.identities[token]

    def _may(self, owner: str, writes: bool) -> bool:
        identity = self._identity()
        role = next((org["roleInOrg"] for org in identity["orgs"] if org["name"] == owner), None)
        if identity["name"] == owner:
            role = "admin"
        if writes and identity["auth"]["accessToken"]["role"] == "read":
            return False
        return role in (("admin", "write", "contributor") if writes else ("admin", "write", "contributor", "read"))

    def _repository(self, kind: str, repo_id: str, writes: bool = False) -> FakeRepository:
        repository, owner = self.hub.repositories.get((kind, repo_id)), repo_id.partition("/")[0]
        readable = repository is not None and (not repository.private or self._may(owner, writes=False))
        if repository is None or not readable:
            raise _AnswerError(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        if writes and not self._may(owner, writes=True):
            said = f"You don't have the rights to push to {repo_id}"
            raise _AnswerError(403, {"error": said}, X_Error_Message=said)
        return repository

    def _create(self) -> dict[str, Any]:
        asked = json.loads(self.body)
        owner = asked.get("organization") or self._identity()["name"]
        repo_id, kind = f"{owner}/{asked['name']}", f"{asked.get('type') or 'model'}s"
        if not self._may(owner, writes=True):
            said = f"You don't have the rights to create a model under the namespace {owner!r}"
            raise _AnswerError(403, {"error": said}, X_Error_Message=said)
        url = f"{self.hub.endpoint}/{repo_id}"
        if (kind, repo_id) in self.hub.repositories:
            raise _AnswerError(409, {"error": "You already created this model repo", "url": url})
        private = asked.get("visibility") == "private" or asked.get("private") is True
        repository = self.hub.repositories[kind, repo_id] = FakeRepository(private)
        repository.commit("main", "initial commit", {".gitattributes": Blob(b"*.bin filter=lfs\n")})
        return {"url": url, "name": repo_id}

    def _validate(self) -> dict[str, Any]:
        try:
            _front_matter(json.loads(self.body)["content"])
        except (yaml.YAMLError, ValueError) as error:
            raise _AnswerError(400, {"errors": [{"message": f"bad YAML: {error}"}], "warnings": []}) from None
        return {"errors": [], "warnings": []}

    def _api(self, method: str, kind: str, repo_id: str, rest: list[str]) -> Any:
        repository = self._repository(kind, repo_id, writes=method != "GET" and rest[:1] != ["paths-info"])
        match method, rest:
            case "GET", [] | ["revision", _]:
                return self._info(repo_id, repository, self._commit_of(repository, rest[1] if rest else "main"))
            case "GET", ["tree", revision, *folder]:
                recursive = self.query.get("recursive", ["False"])[0].lower() == "true"
                return _listing(self._commit_of(repository, revision).tree, "/".join(folder), recursive)
            case "POST", ["paths-info", revision]:
                tree = self._commit_of(repository, revision).tree
                paths = parse_qs(self.body.decode())["paths"]
                return [_describe(path, tree[path]) for path in paths if path in tree]
            case "GET", ["refs"]:
                return {
                    "branches": [_ref("heads", *ref) for ref in repository.branches.items()],
                    "tags": [_ref("tags", *ref) for ref in repository.tags.items()],
                    "converts": [],
                }
            case "GET", ["commits", revision]:
                self._commit_of(repository, revision)
                return [
                    {"id": commit.oid, "title": commit.title, "message": "", "authors": [], "date": _DATE}
                    for commit in repository.history(revision)
                ]
            case "POST", ["branch", name]:
                return self._add_ref(repository, repository.branches, name, json.loads(self.body).get("startingPoint"))
            case "POST", ["tag", revision]:
                return self._add_ref(repository, repository.tags, json.loads(self.body)["tag"], revision)
            case "DELETE", ["branch" | "tag" as what, name]:
                (repository.branches if what == "branch" else repository.tags).pop(name)
                return {}
            case "PUT", ["settings"]:
                asked = json.loads(self.body)
                repository.private = asked.get("visibility") == "private" or asked.get("private") is True
                return {"private": repository.private}
            case "POST", ["preupload", revision]:
                return {
                    "files": [self._upload_mode(repository, revision, each) for each in json.loads(self.body)["files"]]
                }
            case "POST", ["commit", branch]:
                return self._commit(repo_id, repository, branch)
        raise _AnswerError(404, {"error": "no such endpoint"})

    def _commit_of(self, repository: FakeRepository, revision: str) -> Commit:
        commit = repository.find(revision)
        if commit is None:
            raise _AnswerError(404, {"error": f"Invalid rev id: {revision}"}, X_Error_Code="RevisionNotFound")
        return commit

    def _info(self, repo_id: str, repository: FakeRepository, commit: Commit) -> dict[str, Any]:
        siblings: list[dict[str, Any]] = [{"rfilename": path} for path in sorted(commit.tree)]
        if self.query.get("blobs", ["False"])[0].lower() in ("true", "1"):
            for sibling in siblings:
                blob = commit.tree[sibling["rfilename"]]
                sibling.update(size=len(blob.content), blobId=blob.oid)
                if blob.large:
                    sibling["lfs"] = {
                        "sha256": blob.sha256,
                        "size": len(blob.content),
                        "pointerSize": len(blob.pointer),
                    }
        info = {
            "id": repo_id,
            "modelId": repo_id,
            "sha": commit.oid,
            "private": repository.private,
            "siblings": siblings,
        }
        if "README.md" in commit.tree:
            info["cardData"] = _front_matter(commit.tree["README.md"].content.decode())
        return info

    def _add_ref(
        self, repository: FakeRepository, refs: dict[str, str], name: str, revision: str | None
    ) -> dict[str, Any]:
        if name in refs:
            raise _AnswerError(409, {"error": f"Reference already exists: {name}"})
        refs[name] = self._commit_of(repository, revision or "main").oid
        return {}

    def _upload_mode(self, repository: FakeRepository, revision: str, asked: dict[str, Any]) -> dict[str, Any]:
        large = self.hub.lfs_from is not None and asked["size"] >= self.hub.lfs_from
        there = self._commit_of(repository, revision).tree.get(asked["path"])
        oid = None if there is None else there.sha256 if there.large else there.oid
        return {
            "path": asked["path"],
            "uploadMode": "lfs" if large else "regular",
            "shouldIgnore": False,
            **({} if oid is None else {"oid": oid}),
        }

    def _batch(self) -> dict[str, Any]:
        objects = []
        for asked in json.loads(self.body)["objects"]:
            upload = {"upload": {"href": f"{self.hub.endpoint}/large-objects/{asked['oid']}"}}
            known = asked["oid"] in self.hub.large_objects
            objects.append({**asked, **({} if known else {"actions": upload})})
        return {"transfer": "basic", "objects": objects}

    def _commit(self, repo_id: str, repository: FakeRepository, branch: str) -> dict[str, Any]:
        lines = [json.loads(line) for line in self.body.splitlines() if line]
        header, parent = lines[0]["value"], self._commit_of(repository, branch)
        if header.get("parentCommit") not in (None, parent.oid):
            raise _AnswerError(412, {"error": "A commit has happened since. Please refresh and try again."})
        tree = dict(parent.tree)
        for line in lines[1:]:
            path = line["value"]["path"]
            match line["key"]:
                case "file":
                    tree[path] = Blob(self._spoiled(path, base64.b64decode(line["value"]["content"])))
                case "lfsFile":
                    content = self.hub.large_objects.get(line["value"]["oid"])
                    if content is None:
                        raise _AnswerError(422, {"error": f"LFS pointer to an object that was not uploaded: {path}"})
                    tree[path] = Blob(self._spoiled(path, content), large=True)
                case "deletedFile":
                    if path not in tree:
                        raise _AnswerError(404, {"error": "A file with this name doesn't exist"})
                    del tree[path]
        made = repository.commit(branch, header["summary"], tree)
        return {
            "success": True,
            "commitOid": made.oid,
            "commitUrl": f"{self.hub.endpoint}/{repo_id}/commit/{made.oid}",
            "hookOutput": "",
        }

    def _spoiled(self, path: str, content: bytes) -> bytes:
        return bytes([content[0] ^ 1]) + content[1:] if path in self.hub.corrupted else content

    def _resolve(self, kind: str, repo_id: str, revision: str, path: str) -> tuple[int, Any, dict[str, str]]:
        commit = self._commit_of(self._repository(kind, repo_id), revision)
        if path not in commit.tree:
            raise _AnswerError(
                404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound", X_Repo_Commit=commit.oid
            )
        blob = commit.tree[path]
        etag = f'"{blob.sha256 if blob.large else blob.oid}"'
        headers = {"ETag": etag, "X-Repo-Commit": commit.oid, "Content-Type": "application/octet-stream"}
        content, status = blob.content, 200
        if asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            first, last = int(asked[1]), int(asked[2]) if asked[2] else len(content) - 1
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            content, status = content[first : last + 1], 206
        return status, content, headers


_DATE = "2020-01-01T00:00:00.000Z"


def _front_matter(card: str) -> dict[str, Any]:
    found = re.match(r"---\n(.*?)\n---(\n|$)", card, re.DOTALL)
    values = yaml.safe_load(found[1]) if found else {}
    if not isinstance(values, dict):
        raise ValueError("the metadata are no mapping")
    return values


def _ref(kind: str, name: str, oid: str) -> dict[str, str]:
    return {"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": oid}


def _describe(path: str, blob: Blob) -> dict[str, Any]:
    told: dict[str, Any] = {"type": "file", "path": path, "size": len(blob.content), "oid": blob.oid}
    if blob.large:
        told["lfs"] = {"oid": blob.sha256, "size": len(blob.content), "pointerSize": len(blob.pointer)}
    return told


def _listing(tree: dict[str, Blob], folder: str, recursive: bool) -> list[dict[str, Any]]:
    inside = {path: blob for path, blob in tree.items() if not folder or path.startswith(f"{folder}/")}
    if folder and not inside:
        raise _AnswerError(404, {"error": f"{folder} does not exist"}, X_Error_Code="EntryNotFound")
    start = len(folder) + 1 if folder else 0
    folders = sorted({path[: path.index("/", start)] for path in inside if "/" in path[start:]})
    files = [_describe(path, blob) for path, blob in inside.items() if recursive or "/" not in path[start:]]
    return files + [{"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in folders]
