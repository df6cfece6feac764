"""Shows which tokens of a sentence look replaced.

    hf-electra-rtd detect --model runs/pretrain "The quick brown fox jumps over the lazy dog." --mask fox lazy

masks the named words (without --mask: some tokens at random), prints the generator's proposals with their
probabilities, puts a sampled token in place of each, and prints the discriminator's probability that each token was
replaced: `!` marks a replaced token it found, `?` one it missed, `x` an original it suspects, `*` a masked token whose
sample is the original. To score a sentence as it is:

    hf-electra-rtd detect --model runs/pretrain --as_is "The quick brown cat jumps over the lazy dog."

`--model` is the directory of a run, a checkpoint, or a directory or Hub id of a saved joint model. Native towers are
named one by one (`--generator`, `--discriminator`); `--as_is` needs only the discriminator.
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import Any

import torch
from transformers import ElectraForMaskedLM, ElectraForPreTraining, PreTrainedTokenizerBase

from hf_electra_rtd.cli import run
from hf_electra_rtd.configuration_electra_rtd import OBJECTIVE_TRAITS
from hf_electra_rtd.data.tokenization import load_tokenizer
from hf_electra_rtd.detection.detection import Detection, detect, score_tokens
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.scored_tokens import LEGEND, ScoredToken, print_columns, scored_cells
from hf_electra_rtd.towers import CONFIG_FILE, load_tower, read_config


def main(argv: list[str]) -> None:
    from rich.console import Console
    from rich.text import Text
    from transformers.utils.logging import disable_progress_bar

    arguments = _parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    disable_progress_bar()
    generator, discriminator, tokenizer = load_for_detection(
        arguments.model, arguments.generator, arguments.discriminator, arguments.as_is
    )
    random = torch.Generator().manual_seed(arguments.seed)
    console = Console(highlight=False)
    if not arguments.as_is:
        console.print(LEGEND)
    for sentence in arguments.sentences:
        console.print(Text(f"\n{sentence}\n", style="bold"))
        if arguments.as_is:
            _print_scores(score_tokens(discriminator, tokenizer, sentence), console)
            continue
        detection = detect(
            generator,
            discriminator,
            tokenizer,
            sentence,
            words=arguments.mask,
            mask_probability=arguments.mask_probability,
            temperature=arguments.temperature,
            top_k=arguments.top_k,
            random=random,
        )
        _print_detection(detection, console)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("sentences", nargs="*", metavar="SENTENCE", help="one or more; quote each")
    parser.add_argument("--model", help="directory of a run or a checkpoint, or a Hub id of the joint model")
    parser.add_argument("--generator", help="directory or Hub id, in place of --model")
    parser.add_argument("--discriminator", help="directory or Hub id, in place of --model")
    parser.add_argument("--as_is", action="store_true", help="score the sentences as they are; mask nothing")
    parser.add_argument("--mask", nargs="+", metavar="WORD", help="words to mask, at every occurrence")
    parser.add_argument("--mask_probability", type=float, default=0.15, help="share masked at random (%(default)s)")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the samples; 0 is greedy (%(default)s)")
    parser.add_argument("--top_k", type=int, default=5, help="proposals shown for a masked token (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of masks and samples (%(default)s)")
    arguments = parser.parse_args(argv)
    for wrong, message in (
        (not arguments.sentences, "there is no sentence: write it, in quotes, before --mask"),
        (arguments.as_is and arguments.mask, "--as_is masks nothing, so it cannot be combined with --mask"),
        (not 0 < arguments.mask_probability < 1, "--mask_probability must be between 0 and 1"),
        (not 0 <= arguments.temperature < float("inf"), "--temperature must be a finite number, at least 0"),
        (arguments.top_k < 1, "--top_k must be at least 1"),
    ):
        if wrong:
            parser.error(message)
    return arguments


# ---- Loading ----


def load_for_detection(
    model: str | None = None, generator: str | None = None, discriminator: str | None = None, as_is: bool = False
) -> tuple[Any, Any, PreTrainedTokenizerBase]:
    """Loads an `ElectraForMaskedLM`, an `ElectraForPreTraining` and their tokenizer, in evaluation mode.

    Args:
        model: a run's directory (which holds `generator/` and `discriminator/`), one of its checkpoints, or another
            directory or Hub id that `ElectraForRTDPretraining` saved.
        generator, discriminator: in place of `model`, each tower's directory or Hub id.
        as_is: load no generator, and return None for it.

    Raises:
        ValueError: for names that are missing or too many, towers that cannot be loaded whole or do not fit together,
            or a tokenizer that is missing or does not fit.
    """
    if (model is None) == (discriminator is None) or (model is not None and generator is not None):
        raise ValueError("Give either --model, or --discriminator (and --generator).")
    if model is not None and Path(model, "discriminator", CONFIG_FILE).is_file():
        discriminator = f"{model}/discriminator"
        generator = f"{model}/generator" if Path(model, "generator", CONFIG_FILE).is_file() else None
    source = discriminator or str(model)
    config = read_config(source)
    traits = OBJECTIVE_TRAITS.get(config.get("objective", "rtd"))
    architectures = config.get("architectures") or ()
    if ElectraForMaskedLM.__name__ in architectures or (traits is not None and traits.predicts != "replaced"):
        raise ValueError(
            f"{source} predicts tokens and cannot detect replaced ones. Use a model trained with --objective rtd or "
            "rtd_masked_only."
        )
    fills: Any = None
    if discriminator is None:
        joint = ElectraForRTDPretraining.from_pretrained(source, dtype="float32").eval()
        fills, detector = None if as_is else joint.generator, joint.native_discriminator()
    else:
        detector = load_tower(ElectraForPreTraining, discriminator).eval()
        if generator is not None and not as_is:
            fills = load_tower(ElectraForMaskedLM, generator).eval()
    if fills is None and not as_is:
        raise ValueError(f"{model or discriminator} has no generator. Name one (--generator), or add --as_is.")
    if Path(source).is_dir() and not any(Path(source, name).is_file() for name in ("tokenizer.json", "vocab.txt")):
        raise ValueError(f"{source} holds no tokenizer: neither tokenizer.json nor vocab.txt.")
    tokenizer = load_tokenizer(source)
    vocabulary = detector.config.vocab_size
    for name, size in (
        ("generator", vocabulary if fills is None else fills.config.vocab_size),
        ("tokenizer", max(vocabulary, len(tokenizer))),
    ):
        if size != vocabulary:
            raise ValueError(
                f"The {name} has {size} tokens and the discriminator {vocabulary}: they do not belong together."
            )
    return fills, detector, tokenizer


# ---- Printing ----


def _print_detection(detection: Detection, console: Any) -> None:
    """The generator's proposals for each masked token, then the sentence with the discriminator's scores."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for header in ("masked", "its probability", "sampled", "most likely by the generator"):
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
    print_columns(("original", "corrupted", "replaced?"), map(scored_cells, detection.tokens[1:-1]), console)


def _print_scores(tokens: list[ScoredToken], console: Any) -> None:
    """A sentence with the discriminator's scores; `!` marks tokens above 50 %. [CLS] and [SEP] are not shown."""
    from rich.text import Text

    def cells(token: ScoredToken) -> tuple[Text, Text]:
        flagged = token.probability > 0.5
        style = "bold red" if flagged else ""
        score = Text(f"{token.probability:.0%}{'!' if flagged else ''}", style=style or "dim")
        return Text(token.corrupted, style=style), score

    print_columns(("sentence", "replaced?"), map(cells, tokens[1:-1]), console)


if __name__ == "__main__":
    run(main)
