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
from itertools import islice
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from hf_electra_rtd.cli import check_ranges, make_parser, run
from hf_electra_rtd.data.tokenization import load_tokenizer
from hf_electra_rtd.files import read_lines
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining, UnscorableTextError


def main(argv: list[str]) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="quote each")
    parser.add_argument("--model", required=True, help="directory of a run or a checkpoint, or a Hub id")
    parser.add_argument("--batch_size", type=int, default=32, help="texts at a time (%(default)s)")
    arguments = parser.parse_args(argv)
    check_ranges(arguments)
    lines = arguments.texts or read_lines()
    disable_progress_bar()
    model = ElectraForRTDPretraining.from_pretrained(arguments.model, dtype="float32")
    if torch.accelerator.is_available():
        model.to(torch.accelerator.current_accelerator())
    tokenizer = load_tokenizer(arguments.model)
    texts, skipped = filter(None, (line.strip() for line in lines)), 0

    def score(some: list[str]) -> list[dict[str, Any]]:
        try:
            found = model.token_log_likelihoods(some, tokenizer, arguments.batch_size)
        except UnscorableTextError as error:
            return [each for text in some for each in score([text])] if some[1:] else [{"skipped": str(error)}]
        return [{"pseudo_log_likelihood": each.sum().item(), "num_tokens": len(each)} for each in found]

    while some := list(islice(texts, arguments.batch_size)):
        for text, facts in zip(some, score(some), strict=True):
            print(json.dumps({"text": text, **facts}, ensure_ascii=False), flush=True)
            skipped += "skipped" in facts
    if skipped:
        print(f"Skipped: {skipped:,} text(s) without a token, or with too many.", file=sys.stderr)


if __name__ == "__main__":
    run(main)
