"""A few held-out sentences, as the pair sees them: original, corrupted, and the discriminator's word on each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hf_electra_rtd.data.collator import DataCollatorForRTD
from hf_electra_rtd.data.packing import SENTENCE_ENDS
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.ops import masked_slots, original_ids


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


@torch.no_grad()
def judge_rows(model: ElectraForRTDPretraining, collator: DataCollatorForRTD, rows: Any) -> list[list[JudgedToken]]:
    """Corrupts rows and asks the discriminator about every real token.

    Args:
        model: the pair; it is used in evaluation mode.
        collator: masks the rows.
        rows: features, as the collator takes them.
    """
    training = model.training
    model.eval()
    batch = {key: value.to(model.device) for key, value in collator(rows).items()}
    output = model(**batch)
    model.train(training)
    slots = masked_slots(batch["input_ids"], batch["masked_positions"], batch["labels"])
    originals = original_ids(batch["input_ids"], slots).tolist()
    masked = original_ids(torch.zeros_like(batch["input_ids"]) - 1, slots).ge(0).tolist()
    probabilities = output.logits.float().sigmoid().tolist()
    name: Any = collator.tokenizer.convert_ids_to_tokens
    lengths = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).sum(dim=1).tolist()
    return [
        [
            JudgedToken(name(original[i]), name(corrupted[i]), masked=hidden[i], probability=probability[i])
            for i in range(length)
        ]
        for original, corrupted, hidden, probability, length in zip(
            originals, output.corrupted_input_ids.tolist(), masked, probabilities, lengths, strict=True
        )
    ]


def pick_sentence(tokens: list[JudgedToken], longest: int = 32) -> list[JudgedToken]:
    """The sentence of a row with the most replaced tokens, at most `longest` tokens of it."""
    sentences: list[list[JudgedToken]] = [[]]
    for token in tokens[1:]:
        if token.original == "[SEP]":
            sentences.append([])
            continue
        sentences[-1].append(token)
        if token.original in SENTENCE_ENDS:
            sentences.append([])
    best = max(sentences, key=lambda sentence: sum(token.replaced for token in sentence[:longest]))
    return best[:longest]


def print_showcase(sentences: list[list[JudgedToken]], console: Any = None) -> None:
    """Prints sentences as aligned lines, in colour where the terminal can.

    Args:
        sentences: judged tokens.
        console: a `rich.console.Console`; by default, standard output.
    """
    from rich.console import Console
    from rich.text import Text

    console = console or Console(highlight=False)
    labels = ("original", "corrupted", "replaced?")
    margin = max(map(len, labels)) + 2
    console.print(
        "Held-out sentences. Replaced tokens: found [bold green]100%![/], missed [bold yellow]0%?[/]; "
        "originals: taken for replaced [bold red]100%x[/]. (*) masked, but the generator was right."
    )
    for sentence in sentences:
        line: list[Text] = []
        used = margin
        for token in [*sentence, None]:
            cells = _cells(token) if token is not None else ()
            width = max((cell.cell_len for cell in cells), default=0) + 2
            if line and (token is None or used + width > console.width):
                for label, text in zip(labels, line, strict=True):
                    console.print(Text(label.ljust(margin), style="dim").append_text(text), no_wrap=True, crop=True)
                console.print()
                line, used = [], margin
            if token is not None:
                line = line or [Text(), Text(), Text()]
                for text, cell in zip(line, cells, strict=True):
                    text.append_text(cell).append(" " * (width - cell.cell_len))
                used += width


def _cells(token: JudgedToken) -> tuple[Any, Any, Any]:
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
