"""How likely a model holds texts to be: the pseudo-log-likelihood, as a JSON line for each.

    hf-electra-rtd score --model runs/electric "The chef cooked the meal." "The chef cooked the river."
    hf-electra-rtd score --model runs/electric < sentences.txt > scores.jsonl

A line holds `text`, `pseudo_log_likelihood`, the sum of log p(token | the others) over the tokens without [CLS] and
[SEP], in nats, and `num_tokens`; or `skipped`, why the text has no score. Without texts, each line of the standard
input is one; empty lines are left out. `--model` is the directory of a run, a checkpoint, or a directory or Hub id of
a saved joint model, of the objective `electric` (one pass a text), `rtd` or `mlm` (one pass a token).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from hf_electra_rtd.base.cli import check_arguments, flag, parse_arguments, required, run
from hf_electra_rtd.base.files import read_lines
from hf_electra_rtd.data.tokenization import load_tokenizer
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining, UnscorableTextError
from hf_electra_rtd.pair.places import identify


@dataclass
class ScoreArguments:
    """Which texts, and the model that scores them."""

    model: str = required("Directory of a run or a checkpoint, or a Hub id.")
    texts: list[str] = flag([], "Quote each.", words="TEXT")
    batch_size: int = flag(32, "Texts at a time.", "[1, inf)")

    def __post_init__(self) -> None:
        check_arguments(self)


def main(argv: list[str]) -> None:
    (arguments,) = parse_arguments((ScoreArguments,), argv, __doc__)
    lines = arguments.texts or read_lines()
    disable_progress_bar()
    place = identify(arguments.model)
    if place.pair is None:
        raise place.error("a run, a checkpoint or a saved pair")
    model = ElectraForRTDPretraining.from_pretrained(place.pair, dtype="float32")
    if torch.accelerator.is_available():
        model.to(torch.accelerator.current_accelerator())
    tokenizer = load_tokenizer(place.pair)
    texts = filter(None, (line.strip() for line in lines))
    skipped = 0

    def score(batch: list[str]) -> list[dict[str, Any]]:
        try:
            log_likelihoods = model.token_log_likelihoods(batch, tokenizer, arguments.batch_size)
        except UnscorableTextError as error:
            if len(batch) == 1:
                return [{"skipped": str(error)}]
            return [facts for text in batch for facts in score([text])]
        return [{"pseudo_log_likelihood": row.sum().item(), "num_tokens": len(row)} for row in log_likelihoods]

    while batch := list(islice(texts, arguments.batch_size)):
        for text, facts in zip(batch, score(batch), strict=True):
            print(json.dumps({"text": text, **facts}, ensure_ascii=False), flush=True)
            skipped += "skipped" in facts
    if skipped:
        print(f"Skipped: {skipped:,} text(s) without a token, or with too many.", file=sys.stderr)


if __name__ == "__main__":
    run(main)
