"""What a model and a run cost, as people read it: parameters and times."""

from __future__ import annotations

from typing import Any


def format_duration(seconds: float) -> str:
    """A time in units that people read: `42 s`, `5 min 19 s`, `3 h 12 min`, `2.5 days`, `6.8 years`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    days = seconds / 86400
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{days:.1f} days" if days < 365 else f"{days / 365.25:,.1f} years"


def count_parameters(model: Any) -> dict[str, int]:
    """Parameters of a joint model's `generator` (0 without one), `discriminator` and `head` (what it learns with and
    is not exported), and the `total`, with shared ones counted once."""
    parts = {
        "generator": model.generator,
        "discriminator": model.discriminator,
        "head": model.main_head,
        "total": model,
    }
    return {
        name: 0 if part is None else sum(parameter.numel() for parameter in part.parameters())
        for name, part in parts.items()
    }
