"""How pictures look: their colours and their panels."""

from __future__ import annotations

from typing import Any


PALE, MAIN, ACCENT = "#9aa5b1", "#1f5fa8", "#c8553d"
COLUMNS = 3  # panels in a row, at most


def style_panel(axis: Any, title: str, unit: str) -> None:
    """Gives a panel (matplotlib's `Axes`) its title, the unit of its curves, and light lines behind them."""
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_ylabel(unit, fontsize=9)
    axis.tick_params(labelsize=8)
    axis.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
