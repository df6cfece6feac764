"""What must not leave this machine: where things lie on it, and tokens."""

from __future__ import annotations

import re
from typing import Any


# A path begins a text or a word, or follows what stands before a value (`key=/a`, `A=/a:/b`, `-I/a`). So no slash in
# `1/4`, `and/or`, `org/model` or `data/train` begins one; nor does what is no name (`/.*`, `/\d+`, `</s>`).
_START = r"(?:(?<![^\s'\"`=:,;(\[{>|&@])|(?<=\s-[A-Za-z]))"
_NAME = r"[^\s'\"`<>|:;,()\\/]"  # a character of a name; globs are names too
_ABSOLUTE = rf"/+\.{{0,2}}\w{_NAME}*(?:/+{_NAME}*)*"
_HOME = rf"~(?:[A-Za-z_][\w-]*)?(?:/+{_NAME}*)+"
_WINDOWS = rf"[A-Za-z]:[\\/]+{_NAME}*(?:[\\/]+{_NAME}*)*"
_FILE_URL = rf"file:/{_NAME}*(?:/+{_NAME}*)*"
_PATH = rf"{_START}(?:{_FILE_URL}|{_WINDOWS}|{_HOME}|{_ABSOLUTE})"
# A path with blanks ends where its quotation does.
_QUOTED = r"(?<=(?P<quote>['\"]))(?:~?/\w|file:/|[A-Za-z]:[\\/])[^'\"\n]*(?=(?P=quote))"
_URL = r"(?!file:)\b[A-Za-z][A-Za-z0-9+.-]+://[^\s'\"`<>,;|]*"
_PLACES = re.compile(rf"(?P<url>{_URL})|{_QUOTED}|{_PATH}")

_HOMES = re.compile(r"(?:/+(?:home|Users)/+[^/]+|/+root|[A-Za-z]:[\\/]+Users[\\/]+[^\\/]+|~\w*)[\\/]*")
# A token of the Hub is its prefix and 34 letters or digits.
_TOKEN = re.compile(r"(?:hf|api_org)_[A-Za-z0-9]{30,}")


def without_local_paths(value: Any) -> Any:
    """What a value says, without where things lie on this machine.

    Absolute paths (`/a/b`, `~/a/b`, `C:\\a\\b`, `file:///a/b`) become their last component, on their own or inside a
    longer string such as a command line; a home directory becomes `~`. Hub ids, relative paths, URLs, fractions and
    regular expressions are left. Blanks belong to a path where it is quoted, or is all of a string.

    Args:
        value: a string, or lists, tuples and dicts of them at any depth, keys included; anything else is left.

    Raises:
        ValueError: for a dict whose keys become one.
    """
    if isinstance(value, str):
        return _cleaned(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map(without_local_paths, value))
    if isinstance(value, dict):
        cleaned = {without_local_paths(key): without_local_paths(item) for key, item in value.items()}
        if len(cleaned) < len(value):
            raise ValueError(f"Without their directories, keys are the same: {', '.join(map(str, cleaned))}.")
        return cleaned
    return value


def find_private(text: str) -> list[str]:
    """What a text holds that must not leave: absolute local paths of two components or more, home directories, and
    tokens of the Hub, these cut short.

    Args:
        text: of a file that others will read.

    Returns:
        Each finding once, in the order of the text.
    """
    found = {match.start(): match[0] for match in _PLACES.finditer(text) if not match["url"] and _tells(match[0])}
    found.update({match.start(): f"{match[0][:5]}... (a token)" for match in _TOKEN.finditer(text)})
    return list(dict.fromkeys(found[start] for start in sorted(found)))


def _cleaned(text: str) -> str:
    # Where a string begins as a path and names no option and no other path, its blanks belong to it.
    if "\n" not in text and not re.search(r"\s(?:-|~|/|\w+=)", text) and re.match(rf"(?:{_PATH})", text):
        return _last_component(text) if " " in text else _replaced(text)
    return _replaced(text)


def _replaced(text: str) -> str:
    # What is left of one path may complete another, as in `/a:\b`: until nothing changes. Each change is shorter.
    while True:
        replaced = _PLACES.sub(lambda match: match[0] if match["url"] else _last_component(match[0]), text)
        if replaced == text:
            return text
        text = replaced


def _last_component(path: str) -> str:
    if _HOMES.fullmatch(path.removeprefix("file://")):
        return "~"
    return re.split(r"[\\/]+", path.rstrip("\\/"))[-1]


def _tells(path: str) -> bool:
    """Whether a path says more than the name of a root's directory; vocabularies hold words such as `/www`."""
    return bool(_HOMES.fullmatch(path)) or len([part for part in re.split(r"[\\/]+", path) if part]) > 1
