"""Tokens as the discriminator judges them, and their rows as aligned lines on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


# What marks and colours mean, in rich's markup.
LEGEND = (
    "Replaced tokens: found [bold green]100%![/], missed [bold yellow]0%?[/]; originals: taken for replaced "
    "[bold red]100%x[/]. (*) masked, but the generator was right."
)


@dataclass(frozen=True)
class JudgedToken:
    """A token of a row: what stood there, what the discriminator read, whether it was masked, P(replaced)."""

    original: str
    corrupted: str
    masked: bool
    probability: float

    @property
    def replaced(self) -> bool:
        return self.original != self.corrupted


def judged_cells(token: JudgedToken) -> tuple[Any, Any, Any]:
    """The token as a column of three cells (original, corrupted, P(replaced)) for `print_columns`."""
    from rich.text import Text

    flagged = token.probability > 0.5
    if token.replaced:
        style, mark = ("bold green", "!") if flagged else ("bold yellow", "?")
    else:
        style, mark = ("bold red", "x") if flagged else ("", "")
    kept = "*" if token.masked and not token.replaced else ""
    return (
        Text(token.original),
        Text(token.corrupted + kept, style=style if token.replaced else ""),
        Text(f"{token.probability:.0%}{mark}", style=style or "dim"),
    )


def print_columns(labels: Sequence[str], columns: Iterable[Sequence[Any]], console: Any) -> None:
    """Prints columns side by side, folded to the width of the terminal.

    Args:
        labels: one for each line, printed at its left.
        columns: of `rich.text.Text` cells, as many in each as there are labels.
        console: a `rich.console.Console`.
    """
    from rich.text import Text

    margin = max(map(len, labels)) + 2
    lines: list[Any] = []
    used = margin

    def flush() -> None:
        for label, line in zip(labels, lines, strict=True):
            console.print(Text(label.ljust(margin), style="dim").append_text(line), no_wrap=True, crop=True)
        console.print()

    for cells in columns:
        width = max(cell.cell_len for cell in cells) + 2
        if lines and used + width > console.width:
            flush()
            lines, used = [], margin
        lines = lines or [Text() for _ in labels]
        for line, cell in zip(lines, cells, strict=True):
            line.append_text(cell).append(" " * (width - cell.cell_len))
        used += width
    if lines:
        flush()
