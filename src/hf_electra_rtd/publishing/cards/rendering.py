"""Text of cards: figures, tables, templates."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from huggingface_hub import ModelCardData

from hf_electra_rtd.publishing.privacy import find_private


def render_card(data: ModelCardData, template: str, /, **values: Any) -> str:
    """A card: metadata, then the body.

    Args:
        data: for the front matter.
        template: name of a file in `templates`, without its ending.
        **values: that it shows; every one that it names must be there.

    Raises:
        ValueError: where the card would say what must not leave this machine.
    """
    from jinja2 import TemplateError

    try:
        body = _environment().get_template(f"{template}.md").render(**values)
    except TemplateError as error:
        raise AssertionError(f"template {template}: {error}") from error
    card = f"---\n{data.to_yaml(line_break=chr(10))}\n---\n\n{body.strip()}\n"
    found = find_private(card)
    if found:
        raise ValueError(
            f"The card would hold what must not be published: {', '.join(found)}. It comes from a record."
        )
    return card


@functools.cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("hf_electra_rtd.publishing.cards")
    return Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: int | None = None) -> str:
    """A Markdown table.

    Args:
        header: of each column.
        rows: cells, which may hold Markdown of one line; see `plain`.
        right: columns from this one on are figures, and stand to the right.
    """
    rule = ["-:" if right is not None and column >= right else "-" for column in range(len(header))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *rows))


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and values."""
    return table(("", ""), rows)


def plain(text: str) -> str:
    """A text of others, such as a file's name, that Markdown shows as it is, in tables too."""
    text = " ".join(text.split())
    for sign in "\\`*_[]<>|~":
        text = text.replace(sign, f"\\{sign}")
    return text


def code(text: str) -> str:
    """A text as code, in tables too."""
    text = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return f"`{text}`"


def link(repo_id: str) -> str:
    """A model of the Hub, to click on."""
    return f"[{repo_id}](https://huggingface.co/{repo_id})"


def large(number: float) -> str:
    """A large number for people: `14.95 million`; below a million, in full."""
    for unit, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= unit:
            return f"{number / unit:.4g} {name}"
    return f"{number:,.0f}"


def scientific(number: float) -> str:
    """Such as `1.18e14`."""
    mantissa, _, exponent = f"{number:.2e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def duration(seconds: float) -> str:
    """Such as `1 h 7 min` or `42 s`."""
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours / 24:.1f} days"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def percent(share: float, digits: int = 1) -> str:
    """A share x 100."""
    return f"{100 * share:.{digits}f} %"


def listed(words: Sequence[str]) -> str:
    """Such as `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
