"""Tokens with the discriminator's scores, printed as aligned lines on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


# The meaning of marks and colors, in the markup of rich.
LEGEND = (
    "Replaced tokens: found [bold green]100%![/], missed [bold yellow]0%?[/]; originals: taken for replaced "
    "[bold red]100%x[/]. (*) masked, but the generator was right."
)


@dataclass(frozen=True)
class ScoredToken:
    """A token with the discriminator's score."""

    original: str
    corrupted: str  # what the discriminator read
    masked: bool
    probability: float  # of "replaced"

    @property
    def replaced(self) -> bool:
        return self.original != self.corrupted


def scored_cells(token: ScoredToken) -> tuple[Any, Any, Any]:
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
    """Prints columns of `rich.text.Text` cells side by side, folded to the width of a `rich.console.Console`, with
    the label of each line at its left.
    """
    from rich.text import Text

    margin = max(map(len, labels)) + 2
    blocks: list[list[Any]] = []
    used = 0
    for cells in columns:
        width = max(cell.cell_len for cell in cells) + 2
        if not blocks or used + width > console.width:
            blocks.append([Text(label.ljust(margin), style="dim") for label in labels])
            used = margin
        for line, cell in zip(blocks[-1], cells, strict=True):
            line.append_text(cell).append(" " * (width - cell.cell_len))
        used += width
    for lines in blocks:
        for line in lines:
            console.print(line, no_wrap=True, crop=True)
        console.print()
