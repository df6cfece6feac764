#!/usr/bin/env python
"""How well do the scores of pre-trained pairs rank texts? Two tests without a threshold, on sentences of CoLA.

    python benchmarks/score_pairs.py --cola glue/CoLA/dev.tsv runs/electric runs/rtd runs/mlm

- Swapped words: acceptable sentences of five words or more against the same with two neighbouring words swapped; the
  share in which the sentence as it was has the higher pseudo-log-likelihood.
- CoLA: acceptable against unacceptable sentences, the AUC of the mean log-probability of a token.
"""

from __future__ import annotations

import argparse
import random

from sklearn.metrics import roc_auc_score

from hf_electra_rtd import ElectraForRTDPretraining


def swap(sentence: str, draw: random.Random) -> str:
    """Two neighbouring words that differ, swapped; a sentence of one word over and over stays as it is."""
    words = sentence.split()
    places = [place for place in range(len(words) - 1) if words[place] != words[place + 1]]
    if places:
        place = draw.choice(places)
        words[place], words[place + 1] = words[place + 1], words[place]
    return " ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="DIR", help="runs, or saved joint models")
    parser.add_argument("--cola", required=True, metavar="FILE", help="dev.tsv of CoLA")
    parser.add_argument("--pairs", type=int, default=300, help="swapped sentences (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the words that are swapped (%(default)s)")
    args = parser.parse_args()
    with open(args.cola, encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    labels, sentences = [int(row[1]) for row in rows], [row[3] for row in rows]
    acceptable = [text for text, label in zip(sentences, labels, strict=True) if label and len(text.split()) >= 5]
    originals, draw = [" ".join(text.split()) for text in acceptable[: args.pairs]], random.Random(args.seed)
    swapped = [swap(text, draw) for text in originals]
    for name in args.models:
        model = ElectraForRTDPretraining.from_pretrained(name)
        scores = [model.pseudo_log_likelihood(texts) for texts in (originals, swapped)]
        found = sum(one > other for one, other in zip(*scores, strict=True)) / len(originals)
        means = [tokens.mean().item() for tokens in model.token_log_likelihoods(sentences)]
        auc = roc_auc_score(labels, means)
        print(f"{name}: swapped words {found:.1%} of {len(originals)}, CoLA AUC {auc:.3f}", flush=True)


if __name__ == "__main__":
    main()
