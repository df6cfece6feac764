"""A card as a page to look at before it is published."""

from __future__ import annotations

import base64
import html
import mimetypes
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import yaml
from markdown_it import MarkdownIt

from hf_electra_rtd.records import write_whole


_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)
_STYLE = """
body { font: 16px/1.6 "Source Sans 3", system-ui, sans-serif; color: #374151; max-width: 52rem; margin: 2rem auto;
  padding: 0 1.5rem; }
h1, h2, h3 { color: #111827; line-height: 1.25; margin: 1.6em 0 0.6em; }
h1 { font-size: 1.9rem; } h2 { font-size: 1.4rem; border-bottom: 1px solid #e5e7eb; padding-bottom: 0.25rem; }
a { color: #1f5fa8; } img { max-width: 100%; }
table { border-collapse: collapse; display: block; overflow-x: auto; font-size: 0.9rem; margin: 1em 0; }
td, th { border: 1px solid #e5e7eb; padding: 0.3rem 0.7rem; vertical-align: top; }
td code { overflow-wrap: anywhere; }
th { background: #f9fafb; text-align: left; } thead:not(:has(th:not(:empty))) { display: none; }
code { font: 0.85em ui-monospace, monospace; background: #f3f4f6; border-radius: 4px; padding: 0.1em 0.3em; }
pre { background: #f9fafb; border: 1px solid #e5e7eb; border-radius: 8px; padding: 0.9rem; overflow-x: auto; }
pre code { background: none; padding: 0; overflow-wrap: normal; }
.metadata { background: #f9fafb; border: 1px solid #e5e7eb; border-radius: 8px; padding: 0.3rem 1.2rem 0.8rem; }
.metadata h2 { font-size: 1rem; border: 0; margin: 0.6rem 0; }
.metadata td, .metadata th { background: white; }
""".strip()


def write_preview(markdown: str, path: str | os.PathLike[str], pictures: str | os.PathLike[str] | None = None) -> Path:
    """Writes a card as one HTML page that needs no other file: its metadata as a table, then its body. Raw HTML is
    shown as text.

    Args:
        markdown: of the card.
        path: of the page.
        pictures: directory of the card's pictures, by default the page's. Those that lie there, or below, become part
            of the page; others stay links.

    Returns:
        The path of the page.

    Raises:
        ValueError: for front matter that is no YAML.
    """
    path = Path(path)
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    _inline_pictures(parser, path.parent if pictures is None else Path(pictures))
    front_matter = _FRONT_MATTER.match(markdown)
    body = markdown if front_matter is None else markdown[front_matter.end() :]
    metadata = "" if front_matter is None else _metadata(front_matter[1])
    title = next((line[2:] for line in body.splitlines() if line.startswith("# ")), path.stem)
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n"
        f"{metadata}{parser.render(body)}</body>\n</html>\n"
    )
    write_whole(path, page)
    return path


def _inline_pictures(parser: MarkdownIt, directory: Path) -> None:
    renderer: Any = parser.renderer
    draw = renderer.rules["image"]

    def image(tokens: Any, index: int, options: Any, environment: Any) -> str:
        source = str(tokens[index].attrs["src"])
        picture = (directory / unquote(source)).resolve()
        if picture.is_file() and picture.is_relative_to(directory.resolve()):
            kind = mimetypes.guess_type(picture.name)[0] or "application/octet-stream"
            tokens[index].attrs["src"] = f"data:{kind};base64,{base64.b64encode(picture.read_bytes()).decode()}"
        return str(draw(tokens, index, options, environment))

    renderer.rules["image"] = image


def _metadata(text: str) -> str:
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"The front matter of the card is no YAML: {error}") from None
    if not isinstance(values, dict):
        raise ValueError("The front matter of the card does not hold fields.")
    index = values.pop("model-index", [])
    rows = [(key, _flat(value)) for key, value in values.items()]
    tables = [_table(("field", "value"), rows)]
    results = [
        (
            " / ".join(str(part) for part in (result["dataset"].get(key) for key in ("name", "split")) if part),
            metric.get("name") or metric["type"],
            f"{metric['value']:.4f}" if isinstance(metric["value"], float) else str(metric["value"]),
        )
        for model in index
        for result in model["results"]
        for metric in result["metrics"]
    ]
    if results:
        tables.append(_table(("model-index", "metric", "value"), results))
    return f'<section class="metadata">\n<h2>Metadata</h2>\n{"".join(tables)}</section>\n'


def _flat(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_flat, value))
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_flat(item)}" for key, item in value.items())
    return str(value)


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["".join(f"<th>{html.escape(cell)}</th>" for cell in header)]
    lines += ["".join(f"<td>{html.escape(cell)}</td>" for cell in cells) for cells in rows]
    return "<table>\n" + "".join(f"<tr>{line}</tr>\n" for line in lines) + "</table>\n"
