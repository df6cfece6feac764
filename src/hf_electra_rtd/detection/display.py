"""Detections on a terminal: a table of proposals, and the tokens with the verdict on each."""

from __future__ import annotations

from typing import Any

from hf_electra_rtd.detection.detection import Detection
from hf_electra_rtd.judgement import JudgedToken, judged_cells, print_columns


def print_detection(detection: Detection, console: Any) -> None:
    """The generator's proposals for each masked token, then the sentence with the discriminator's verdicts.

    Args:
        detection: of one sentence.
        console: a `rich.console.Console`.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for header in ("masked", "its probability", "sampled", "most likely to the generator"):
        table.add_column(header)
    for fill in detection.fills:
        table.add_row(
            Text(fill.original.token),
            Text(f"{fill.original.probability:.1%} (no. {fill.rank:,})"),
            Text(f"{fill.sampled.token} {fill.sampled.probability:.1%}"),
            Text("   ".join(f"{proposal.token} {proposal.probability:.1%}" for proposal in fill.proposals)),
        )
    console.print(table)
    console.print()
    print_columns(("original", "corrupted", "replaced?"), map(judged_cells, detection.tokens[1:-1]), console)


def print_judgement(tokens: list[JudgedToken], console: Any) -> None:
    """A sentence as it stands with the discriminator's verdicts; `!` marks what it takes for replaced.

    Args:
        tokens: of one sentence, with [CLS] and [SEP], which are not shown.
        console: a `rich.console.Console`.
    """
    from rich.text import Text

    def cells(token: JudgedToken) -> tuple[Text, Text]:
        flagged = token.probability > 0.5
        style = "bold red" if flagged else ""
        verdict = Text(f"{token.probability:.0%}{'!' if flagged else ''}", style=style or "dim")
        return Text(token.corrupted, style=style), verdict

    print_columns(("sentence", "replaced?"), map(cells, tokens[1:-1]), console)
