"""What would be uploaded: the files of a repository. No network is needed for anything here."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from hf_electra_rtd.publishing.curves import CURVES_FILE
from hf_electra_rtd.publishing.privacy import find_private, without_local_paths
from hf_electra_rtd.records import EVALUATION_FILE, RECORD_FILE


CARD_FILE = "README.md"
CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
ADAPTER_CONFIG_FILE = "adapter_config.json"
ADAPTER_WEIGHTS_FILE = "adapter_model.safetensors"
_ADAPTED_FILE = "fine_tuned_for.json"  # head and labels, beside adapters

# Files that say something in words, from which local paths are removed.
_CONFIGURATIONS = (
    CONFIG_FILE,
    "generation_config.json",
    "tokenizer_config.json",
    ADAPTER_CONFIG_FILE,
    _ADAPTED_FILE,
)
_LABELS = {CONFIG_FILE: ("id2label", "label2id"), _ADAPTED_FILE: ("labels",)}
# Vocabularies: pieces of text, given away exactly as they are. A path in one is a word of the corpus.
_VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "spm.model",
    "spiece.model",
)
_WEIGHTS = (WEIGHTS_FILE, "model-?????-of-?????.safetensors", INDEX_FILE, ADAPTER_WEIGHTS_FILE)
_RECORDS = (RECORD_FILE, EVALUATION_FILE, CURVES_FILE)
_OURS = (*_CONFIGURATIONS, *_VOCABULARIES, *_WEIGHTS, *_RECORDS, CARD_FILE, ".eval_results/*.yaml")
_ORIGINS = ("_name_or_path", "name_or_path")  # where a model was loaded from
_TEXT = (".json", ".txt", ".md", ".yaml", ".yml")

_READ = 2**20  # bytes at once
_LONGEST_HEADER = 100 * 2**20  # of a safetensors file, in bytes: the limit of the format's own reader
_REPO_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class RepositoryFile:
    """A file as it would lie in a repository.

    Attributes:
        path_in_repo: with `/` between directories.
        content: where it lies here, or the bytes themselves.

    Raises:
        ValueError: for a path that leads out of the repository.
    """

    path_in_repo: str
    content: Path | bytes

    def __post_init__(self) -> None:
        path = PurePosixPath(self.path_in_repo)
        outside = path.is_absolute() or not path.parts or ".." in path.parts or "\\" in self.path_in_repo
        if outside or str(path) != self.path_in_repo:
            raise ValueError(f"{self.path_in_repo!r} is no path of a file in a repository.")

    @cached_property
    def size(self) -> int:
        """In bytes."""
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size

    @property
    def sha256(self) -> str:
        """By which the Hub knows large files (LFS), in hexadecimal."""
        return self._digests[0]

    @property
    def blob_id(self) -> str:
        """By which git knows it: SHA-1 of `blob <size>`, a zero byte and the content, in hexadecimal."""
        return self._digests[1]

    def read(self) -> bytes:
        """The content."""
        return self.content if isinstance(self.content, bytes) else self.content.read_bytes()

    @cached_property
    def _digests(self) -> tuple[str, str]:
        # Both in one reading: weights are large, and which one the Hub will tell is known only afterwards.
        digests = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        if isinstance(self.content, bytes):
            for digest in digests:
                digest.update(self.content)
        else:
            with self.content.open("rb") as file:
                while part := file.read(_READ):
                    for digest in digests:
                        digest.update(part)
        return digests[0].hexdigest(), digests[1].hexdigest()


@dataclass(frozen=True)
class Repository:
    """A repository of models as it shall stand on the Hub.

    Attributes:
        repo_id: `owner/name`.
        files: all of them; what this package wrote there before and is not among them goes.
        message: of the commit.
        revision: the branch; None is `main`.
        tag: that the commit gets; None is none.

    Raises:
        ValueError: for an id without owner, no files, two files of one path, or a file that holds what must not leave
            (see `hf_electra_rtd.publishing.privacy`).
    """

    repo_id: str
    files: tuple[RepositoryFile, ...]
    message: str
    revision: str | None = None
    tag: str | None = None

    def __post_init__(self) -> None:
        if not _REPO_ID.fullmatch(self.repo_id):
            raise ValueError(f"{self.repo_id!r} is no id of a repository: give OWNER/NAME (--repo_prefix).")
        if not self.files:
            raise ValueError(f"{self.repo_id}: there is nothing to upload.")
        if not self.message:
            raise ValueError(f"{self.repo_id}: a commit needs a message.")
        paths = [file.path_in_repo for file in self.files]
        if repeated := sorted({path for path in paths if paths.count(path) > 1}):
            raise ValueError(f"{self.repo_id} would hold two files of the same path: {', '.join(repeated)}.")
        for file in self.files:
            _refuse_private(file)


@dataclass(frozen=True)
class ModelFiles:
    """What a directory gives away.

    Attributes:
        files: to upload, by path.
        left_out: names of what stays, directories with `/` behind.
    """

    files: tuple[RepositoryFile, ...]
    left_out: tuple[str, ...]


def describe(repository: Repository) -> list[tuple[str, int]]:
    """Path and size in bytes of every file that would be uploaded, by path."""
    return sorted((file.path_in_repo, file.size) for file in repository.files)


def is_written_here(path_in_repo: str) -> bool:
    """Whether a file of this path is one that this package writes into repositories, and may therefore remove."""
    return any(fnmatchcase(path_in_repo, pattern) for pattern in _OURS)


def model_files(directory: str | Path, base_model: str | None = None) -> ModelFiles:
    """The files of a native checkpoint, a pair, a fine-tuned model or an adapter that belong into a repository:
    configurations without local paths, tokenizer and safetensors. Everything else stays: pickles, states of training,
    logs, and what is not known.

    Args:
        directory: that holds the model.
        base_model: the Hub id of the model that adapters belong to; needed where they name a directory.

    Returns:
        The files, and the names of what was left out.

    Raises:
        ValueError: if there is no such directory, no configuration or no weights in it, a file cannot be read as what
            its name says, one holds what must not leave, or adapters belong to a local directory.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise ValueError(f"There is no directory {directory}.")
    entries = {path.name: path for path in sorted(directory.iterdir())}
    weights = _weights(directory, entries)
    wanted = {*_CONFIGURATIONS, *_VOCABULARIES, *weights} & entries.keys()
    files = []
    for name in sorted(wanted):
        content: Path | bytes = entries[name]
        if name in _CONFIGURATIONS:
            content = _scrubbed(entries[name], base_model)
        elif name.endswith(".safetensors"):
            _refuse_private_metadata(entries[name])
        files.append(RepositoryFile(name, content))
        _refuse_private(files[-1])
    left_out = [name + ("/" if path.is_dir() else "") for name, path in entries.items() if name not in wanted]
    return ModelFiles(tuple(files), tuple(left_out))


def _weights(directory: Path, entries: Iterable[str]) -> Sequence[str]:
    """The names of the files that a loader would read."""
    entries = set(entries)
    if ADAPTER_CONFIG_FILE in entries:
        if ADAPTER_WEIGHTS_FILE not in entries:
            raise ValueError(f"{directory} holds no weights: there is no {ADAPTER_WEIGHTS_FILE} in it.")
        return [ADAPTER_WEIGHTS_FILE]
    if CONFIG_FILE not in entries:
        raise ValueError(f"{directory} holds no model: there is no {CONFIG_FILE} (or {ADAPTER_CONFIG_FILE}) in it.")
    if WEIGHTS_FILE in entries:  # a loader looks for it first: shards beside it are of another time
        return [WEIGHTS_FILE]
    if INDEX_FILE in entries:
        index = _read_json(directory / INDEX_FILE)
        if not isinstance(index.get("weight_map"), dict) or not index["weight_map"]:
            raise ValueError(f"{directory / INDEX_FILE} names no shards: there is no weight_map in it.")
        shards = sorted(set(index["weight_map"].values()))
        if missing := [shard for shard in shards if shard not in entries]:
            raise ValueError(f"{directory} is not whole: {INDEX_FILE} names {', '.join(missing)}, which is not there.")
        return [INDEX_FILE, *shards]
    pickles = sorted(name for name in entries if name.endswith((".bin", ".pt", ".pth", ".ckpt")))
    hint = f" Pickles are not published ({', '.join(pickles)}): save the model as safetensors." if pickles else ""
    raise ValueError(f"{directory} holds no weights: there is no {WEIGHTS_FILE} in it.{hint}")


# ---- What must not leave ----


def _scrubbed(path: Path, base_model: str | None) -> Path | bytes:
    """A configuration without the places of this machine; the file itself where there are none in it."""
    before = _read_json(path)
    labels = _labels(path.name, before)
    after = without_local_paths(_without_origins(before)) | labels
    if path.name == ADAPTER_CONFIG_FILE:
        after["base_model_name_or_path"] = base_model or _base_on_the_hub(path, before)
    if after == before:
        return path
    return (json.dumps(after, indent=2, ensure_ascii=False) + "\n").encode()


def _labels(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """What a configuration says in the words of its task: `/person/artist` is a label there, and no path."""
    return {key: config[key] for key in _LABELS.get(name, ()) if key in config}


def _without_origins(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_origins(item) for key, item in value.items() if key not in _ORIGINS}
    return [_without_origins(item) for item in value] if isinstance(value, list) else value


def _base_on_the_hub(path: Path, config: dict[str, Any]) -> str:
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ValueError(f"{path} does not name the model that the adapters belong to (base_model_name_or_path).")
    is_id = re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", base, re.ASCII) is not None
    if not is_id or Path(base).exists():
        raise ValueError(
            f"{path}: the adapters belong to {base}, a directory of this machine, so that nobody could load them. "
            "Publish that model first, and give its Hub id (base_model)."
        )
    return base


def _refuse_private(file: RepositoryFile) -> None:
    if not file.path_in_repo.endswith(_TEXT):
        return
    name = PurePosixPath(file.path_in_repo).name
    try:
        text = file.read().decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{_place(file)} is not UTF-8.") from None
    except OSError as error:
        raise ValueError(f"{_place(file)} cannot be read: {error.strerror}.") from None
    if name in _VOCABULARIES:
        if name != "tokenizer.json":
            return
        described = {key: value for key, value in _parse(text, _place(file)).items() if key not in _VOCABULARY_KEYS}
        text = json.dumps(described, ensure_ascii=False, indent=1)
    elif name in _LABELS:
        config = _parse(text, _place(file))
        labels = _labels(name, config)
        others = {key: value for key, value in config.items() if key not in labels}
        # Without slashes, nothing in a label is a path; a token still is one.
        told = re.sub(r"[/\\]", " ", json.dumps(labels, ensure_ascii=False, indent=1))
        text = f"{json.dumps(others, ensure_ascii=False, indent=1)}\n{told}"
    if found := find_private(text):
        raise ValueError(
            f"{_place(file)} holds what must not be published: {', '.join(found)}. Remove it, and publish again."
        )


_VOCABULARY_KEYS = ("model", "added_tokens")  # of tokenizer.json


def _refuse_private_metadata(path: Path) -> None:
    """Looks at the strings in a safetensors file's header: `__metadata__`. The format: the header's length in bytes as
    a little-endian uint64, the header as JSON, the tensors (huggingface/safetensors, README)."""
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        header = file.read(length) if 0 < length <= _LONGEST_HEADER else b""
    if not header or len(header) < length:
        raise ValueError(f"{path} is damaged, or is not safetensors: its header is not whole.")
    metadata = _parse(header.decode("utf-8", errors="replace"), path).get("__metadata__", {})
    if found := find_private(json.dumps(metadata, ensure_ascii=False, indent=1)):
        raise ValueError(
            f"{path}: its metadata hold what must not be published: {', '.join(found)}. Save the model again."
        )


def _place(file: RepositoryFile) -> str:
    return file.path_in_repo if isinstance(file.content, bytes) else str(file.content)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return _parse(path.read_text(encoding="utf-8"), path)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8.") from None


def _parse(text: str, place: str | Path) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{place} is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ValueError(f"{place} does not hold a JSON object.")
    return value
