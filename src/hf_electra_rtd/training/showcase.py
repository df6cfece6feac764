"""A few held-out sentences as the main tower sees them: original, corrupted, and its word on each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hf_electra_rtd.data.collator import DataCollatorForRTD
from hf_electra_rtd.data.packing import SENTENCE_ENDS
from hf_electra_rtd.judgement import LEGEND, JudgedToken, judged_cells, print_columns
from hf_electra_rtd.measures import observe
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.ops import replace_at


@dataclass(frozen=True)
class PredictedToken:
    """A token of a row: what stood there, what the main tower read, and what it takes for the original; None where it
    was not asked."""

    original: str
    corrupted: str
    predicted: str | None

    @property
    def replaced(self) -> bool:
        return self.original != self.corrupted


ShownToken = JudgedToken | PredictedToken


@torch.no_grad()
def judge_rows(model: ElectraForRTDPretraining, collator: DataCollatorForRTD, rows: Any) -> list[list[ShownToken]]:
    """Corrupts rows and asks the main tower about their real tokens: whether they were replaced, or, of a tower that
    predicts tokens, what they were.

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
    seen = observe(output, batch)
    name: Any = collator.tokenizer.convert_ids_to_tokens
    originals, corrupted = seen.originals.tolist(), output.corrupted_input_ids.tolist()
    if output.predictions is None:
        masked = seen.masked.tolist()
        probabilities = output.logits.float().sigmoid().tolist()
    else:
        predictions = output.predictions
        if predictions.shape != seen.originals.shape:  # of the masked positions alone
            predictions = replace_at(torch.full_like(seen.originals, -1), seen.slots, predictions)
        predictions = predictions.tolist()

    def shown(row: int, at: int) -> ShownToken:
        tokens = name(originals[row][at]), name(corrupted[row][at])
        if output.predictions is None:
            return JudgedToken(*tokens, masked=masked[row][at], probability=probabilities[row][at])
        predicted = predictions[row][at]
        return PredictedToken(*tokens, name(predicted) if predicted >= 0 else None)

    return [[shown(row, at) for at in range(length)] for row, length in enumerate(seen.real.sum(dim=1).tolist())]


def pick_sentence(tokens: list[ShownToken], longest: int = 32) -> list[ShownToken]:
    """The sentence of a row with the most replaced tokens, at most `longest` tokens of it."""
    sentences: list[list[ShownToken]] = [[]]
    for token in tokens[1:]:
        if token.original == "[SEP]":
            sentences.append([])
            continue
        sentences[-1].append(token)
        if token.original in SENTENCE_ENDS:
            sentences.append([])
    best = max(sentences, key=lambda sentence: sum(token.replaced for token in sentence[:longest]))
    return best[:longest]


def print_showcase(sentences: list[list[ShownToken]], console: Any = None) -> None:
    """Prints sentences as aligned lines, in colour where the terminal can.

    Args:
        sentences: judged or predicted tokens.
        console: a `rich.console.Console`; by default, standard output.
    """
    from rich.console import Console

    console = console or Console(highlight=False)
    judged = all(isinstance(token, JudgedToken) for sentence in sentences for token in sentence)
    console.print(f"Held-out sentences. {LEGEND if judged else _LEGEND}")
    labels = ("original", "corrupted", "replaced?") if judged else ("original", "read", "predicted")
    for sentence in sentences:
        print_columns(labels, map(_cells, sentence), console)


def _cells(token: ShownToken) -> tuple[Any, Any, Any]:
    return judged_cells(token) if isinstance(token, JudgedToken) else _predicted_cells(token)


_LEGEND = "Predicted: [bold green]right[/] and [bold red]wrong[/]."


def _predicted_cells(token: PredictedToken) -> tuple[Any, Any, Any]:
    from rich.text import Text

    style = "bold green" if token.predicted == token.original else "bold red"
    changed = "bold" if token.replaced else ""
    return Text(token.original), Text(token.corrupted, style=changed), Text(token.predicted or "", style=style)
