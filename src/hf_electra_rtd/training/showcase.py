"""A few held-out sentences, as the pair sees them: original, corrupted, and the discriminator's word on each token."""

from __future__ import annotations

from typing import Any

import torch

from hf_electra_rtd.data.collator import DataCollatorForRTD
from hf_electra_rtd.data.packing import SENTENCE_ENDS
from hf_electra_rtd.judgement import LEGEND, JudgedToken, judged_cells, print_columns
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.ops import masked_slots, original_ids


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

    console = console or Console(highlight=False)
    console.print(f"Held-out sentences. {LEGEND}")
    for sentence in sentences:
        print_columns(("original", "corrupted", "replaced?"), map(judged_cells, sentence), console)
