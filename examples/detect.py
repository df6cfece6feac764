#!/usr/bin/env python
"""Shows what the generator and the discriminator make of a sentence.

    python examples/detect.py --model runs/pretrain "The quick brown fox jumps over the lazy dog." --mask fox lazy

masks the words named (without --mask: some tokens at random), prints the generator's proposals for each with their
probabilities, puts one sampled from them in its place, and prints how likely the discriminator finds each token to be
replaced: `!` for a replaced token that it found, `?` for one that it missed, `x` for an original that it suspects, `*`
where the generator sampled the original. To have a sentence judged as it stands:

    python examples/detect.py --model runs/pretrain --judge "The quick brown cat jumps over the lazy dog."

`--model` is the directory of a run, one of its checkpoints, or a directory or Hub id of a saved pair. Native towers
from elsewhere are named one by one (`--generator`, `--discriminator`); to judge, the discriminator is enough.
"""

import argparse
import logging

import torch
from rich.console import Console
from rich.text import Text
from transformers.utils.logging import disable_progress_bar

from hf_electra_rtd.detection.detection import detect, judge
from hf_electra_rtd.detection.display import print_detection, print_judgement
from hf_electra_rtd.detection.loading import load_for_detection
from hf_electra_rtd.judgement import LEGEND
from hf_electra_rtd.training.cli import run_as_script


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("sentences", nargs="*", metavar="SENTENCE", help="one or more; quote each")
    parser.add_argument("--model", help="directory of a run or a checkpoint, or a Hub id of the pair")
    parser.add_argument("--generator", help="directory or Hub id, in place of --model")
    parser.add_argument("--discriminator", help="directory or Hub id, in place of --model")
    parser.add_argument("--judge", action="store_true", help="only judge the sentences as they stand")
    parser.add_argument("--mask", nargs="+", metavar="WORD", help="words to mask, wherever they stand")
    parser.add_argument("--mask_probability", type=float, default=0.15, help="share masked at random (%(default)s)")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the samples; 0 is greedy (%(default)s)")
    parser.add_argument("--top_k", type=int, default=5, help="proposals shown for a masked token (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of masks and samples (%(default)s)")
    arguments = parser.parse_args(argv)
    if not arguments.sentences:
        parser.error("there is no sentence: write it, in quotes, before --mask")
    if arguments.judge and arguments.mask:
        parser.error("--judge leaves the sentences as they stand: it cannot be joined with --mask")
    if not 0 < arguments.mask_probability < 1:
        parser.error(f"--mask_probability is {arguments.mask_probability}: it must lie between 0 and 1")
    if not 0 <= arguments.temperature < float("inf"):
        parser.error(f"--temperature is {arguments.temperature}: it must be a finite number, at least 0")
    if arguments.top_k < 1:
        parser.error(f"--top_k is {arguments.top_k}: it must be at least 1")
    return arguments


def main(argv: list[str]) -> None:
    arguments = parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    disable_progress_bar()
    towers = load_for_detection(arguments.model, arguments.generator, arguments.discriminator, arguments.judge)
    random = torch.Generator().manual_seed(arguments.seed)
    console = Console(highlight=False)
    if not arguments.judge:
        console.print(LEGEND)
    for sentence in arguments.sentences:
        console.print(Text(f"\n{sentence}\n", style="bold"))
        if arguments.judge:
            print_judgement(judge(towers.discriminator, towers.tokenizer, sentence), console)
            continue
        detection = detect(
            towers.generator,
            towers.discriminator,
            towers.tokenizer,
            sentence,
            words=arguments.mask,
            mask_probability=arguments.mask_probability,
            temperature=arguments.temperature,
            top_k=arguments.top_k,
            random=random,
        )
        print_detection(detection, console)


if __name__ == "__main__":
    run_as_script(main)
