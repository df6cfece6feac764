"""Shows which tokens of a sentence look replaced.

    hf-electra-rtd detect --model runs/pretrain "The quick brown fox jumps over the lazy dog." --mask fox lazy

masks the named words (without --mask: some tokens at random), prints the generator's proposals with their
probabilities, puts a sampled token in place of each, and prints how much the discriminator suspects each token: its
probability of "replaced", divided by the average of the sentence. A token with a probability above 0.5 is called
replaced: `found` if it was, else a `false alarm`; a replaced one below is `missed`. `*` stands after a masked token
whose sample is the original. To score a sentence as it is:

    hf-electra-rtd detect --model runs/pretrain --as_is "The quick brown cat jumps over the lazy dog."

`--model` is the directory of a run, a checkpoint, or a directory or Hub id of a saved joint model. Native towers are
named one by one (`--generator`, `--discriminator`); `--as_is` needs only the discriminator.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import BatchEncoding, ElectraForPreTraining, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from hf_electra_rtd.cli import check_ranges, run
from hf_electra_rtd.configuration_electra_rtd import OBJECTIVE_TRAITS
from hf_electra_rtd.data.tokenization import load_tokenizer
from hf_electra_rtd.families import max_length
from hf_electra_rtd.layers import exchange_layers
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.ops import choose_masked_positions, num_masked, sample_tokens
from hf_electra_rtd.towers import CONFIG_FILE, load_masked_lm, load_tower, read_config
from hf_electra_rtd.training.console import (
    SCORES,
    ScoredToken,
    average_probability,
    describe_verdicts,
    print_columns,
)


def main(argv: list[str]) -> None:
    arguments = _parse(argv)
    disable_progress_bar()
    generator, discriminator, tokenizer = load_for_detection(
        arguments.model, arguments.generator, arguments.discriminator, arguments.as_is
    )
    random = torch.Generator().manual_seed(arguments.seed)
    options = {name: getattr(arguments, name) for name in ("mask_probability", "temperature", "top_k")}
    console = Console(highlight=False)
    for sentence in arguments.sentences:
        console.print(Text(f"\n{sentence}\n", style="bold"))
        if arguments.as_is:
            tokens = score_tokens(discriminator, tokenizer, sentence)
        else:
            towers = generator, discriminator, tokenizer
            tokens, fills = detect(*towers, sentence, words=arguments.mask, random=random, **options)
            _print_fills(fills, console)
        _print_tokens(tokens, arguments.as_is, console)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("sentences", nargs="+", metavar="SENTENCE", help="quote each, and write them before --mask")
    parser.add_argument("--model", help="directory of a run or a checkpoint, or a Hub id of the joint model")
    parser.add_argument("--generator", help="directory or Hub id, in place of --model")
    parser.add_argument("--discriminator", help="directory or Hub id, in place of --model")
    masks = parser.add_mutually_exclusive_group()
    masks.add_argument("--as_is", action="store_true", help="score the sentences as they are; mask nothing")
    masks.add_argument("--mask", nargs="+", metavar="WORD", help="words to mask, at every occurrence")
    parser.add_argument("--mask_probability", type=float, default=0.15, help="share masked at random (%(default)s)")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the samples; 0 is greedy (%(default)s)")
    parser.add_argument("--top_k", type=int, default=5, help="proposals shown for a masked token (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of masks and samples (%(default)s)")
    arguments = parser.parse_args(argv)
    check_ranges(arguments)
    return arguments


def load_for_detection(
    model: str | None = None, generator: str | None = None, discriminator: str | None = None, as_is: bool = False
) -> tuple[Any, Any, PreTrainedTokenizerBase]:
    """Loads a masked language model (None with `as_is`), an `ElectraForPreTraining` and their tokenizer, in evaluation
    mode, from the directories or Hub ids that the flags of those names take."""
    if (model is None) == (discriminator is None) or (model is not None and generator is not None):
        raise ValueError("Give either --model, or --discriminator (and --generator).")
    if model is not None and Path(model, "discriminator").is_dir():
        discriminator = f"{model}/discriminator"
        generator = f"{model}/generator" if Path(model, "generator").is_dir() else None
    source = discriminator or str(model)
    home = source if discriminator is None else str(Path(discriminator).parent)
    if discriminator is None or Path(home, CONFIG_FILE).is_file():
        objective = read_config(home).get("objective")
        if objective in OBJECTIVE_TRAITS and OBJECTIVE_TRAITS[objective].needs_noise:
            what = f"--objective {objective}: its discriminator gives energies, not probabilities of being replaced"
            raise ValueError(f"{home} was trained with {what}. Use `hf-electra-rtd score --model {home}`.")
    fills: Any = None
    if discriminator is not None:
        detector = load_tower(ElectraForPreTraining, discriminator)
        if generator is not None and not as_is:
            fills = load_masked_lm(generator)
        for tower in filter(None, (fills, detector)):
            exchange_layers(tower)
    else:
        joint = ElectraForRTDPretraining.from_pretrained(source, dtype="float32")
        if joint.config.traits.predicts != "replaced":
            raise ValueError(f"{source} was trained with --objective {joint.config.objective}: it detects nothing.")
        towers = joint.native_towers()
        fills, detector = None if as_is else towers.get("generator"), towers["discriminator"]
    if fills is None and not as_is:
        raise ValueError(f"{model or discriminator} has no generator. Name one (--generator), or add --as_is.")
    tokenizer = load_tokenizer(source)
    vocabulary = detector.config.vocab_size
    if len(tokenizer) > vocabulary:
        raise ValueError(f"The tokenizer of {source} has {len(tokenizer)} tokens and the discriminator {vocabulary}.")
    if fills is not None and fills.config.vocab_size != vocabulary:
        raise ValueError(f"The generator has {fills.config.vocab_size} tokens and the discriminator {vocabulary}.")
    return fills, detector, tokenizer


# ---- One sentence. L tokens with [CLS] and [SEP], K of them masked, V tokens of the vocabulary ----


class Fill(NamedTuple):
    """What the generator says of a masked token; tokens are (token, its probability)."""

    position: int  # in the sequence, where [CLS] is 0
    original: tuple[str, float]
    rank: int  # of the original among all tokens, from 1
    sampled: tuple[str, float]  # put in its place
    proposals: list[tuple[str, float]]  # the most likely tokens, in order


@torch.no_grad()
def detect(
    generator: Any,
    discriminator: Any,
    tokenizer: PreTrainedTokenizerBase,
    sentence: str,
    words: Sequence[str] | None = None,
    mask_probability: float = 0.15,
    temperature: float = 1.0,
    top_k: int = 5,
    random: torch.Generator | None = None,
) -> tuple[list[ScoredToken], list[Fill]]:
    """Masks tokens of a sentence, fills them by the generator, and scores every token, [CLS] and [SEP] included, by
    the discriminator. Every masked token becomes [MASK]; in training, some stay visible.

    Args:
        words: to mask, at every occurrence, in upper or lower case, with all their wordpieces. None masks at random.
        mask_probability: share of the tokens to mask at random, [CLS] and [SEP] counted; at least one is masked.
        temperature: of sampling; 0.0 takes the most likely token. Returned probabilities have temperature 1.
        random: of masks and samples, on the CPU; by default torch's own.
    """
    encoding = _encode(tokenizer, sentence, generator, discriminator)
    ids_L = torch.tensor(encoding["input_ids"])
    if words is None:
        candidates_L = torch.tensor([word is not None for word in encoding.word_ids()])
        count = min(num_masked(mask_probability, len(ids_L)), int(candidates_L.sum()))
        uniforms_L = torch.rand(len(ids_L), generator=random)
        positions_K = choose_masked_positions(candidates_L[None], uniforms_L[None], torch.tensor([count]), count)[0]
    else:
        positions_K = torch.tensor(_find_words(encoding, sentence, words))
    masked_L = ids_L.index_fill(0, positions_K, int(tokenizer.mask_token_id))
    logits_KV = generator(masked_L[None].to(generator.device)).logits[0].float().cpu()[positions_K]
    uniforms_K2 = torch.rand(len(positions_K), 2, generator=random)
    corrupted_L = ids_L.index_put((positions_K,), sample_tokens(logits_KV, uniforms_K2, temperature))
    fills = []
    for position, softmax_V in zip(positions_K.tolist(), logits_KV.softmax(dim=-1), strict=True):
        best = softmax_V.topk(min(top_k, len(softmax_V))).indices.tolist()
        ids = [int(ids_L[position]), int(corrupted_L[position]), *best]
        named: Any = zip(tokenizer.convert_ids_to_tokens(ids), softmax_V[ids].tolist(), strict=True)
        original, sampled, *proposals = named
        rank = 1 + int((softmax_V > original[1]).sum())
        fills.append(Fill(position, original, rank, sampled, proposals))
    return _score(discriminator, tokenizer, ids_L, corrupted_L, positions_K.tolist()), fills


@torch.no_grad()
def score_tokens(discriminator: Any, tokenizer: PreTrainedTokenizerBase, sentence: str) -> list[ScoredToken]:
    """The probability that each token of a sentence was replaced, [CLS] and [SEP] included."""
    ids_L = torch.tensor(_encode(tokenizer, sentence, discriminator)["input_ids"])
    return _score(discriminator, tokenizer, ids_L, ids_L, [])


def _encode(tokenizer: PreTrainedTokenizerBase, sentence: str, *towers: Any) -> BatchEncoding:
    encoding: BatchEncoding = tokenizer(sentence, verbose=False, split_special_tokens=True)  # `[MASK]` is text
    length, positions = len(encoding["input_ids"]), min(max_length(tower.config) for tower in towers)
    if all(word is None for word in encoding.word_ids()):
        raise ValueError(f"The sentence {sentence!r} has no token.")
    if length > positions:
        raise ValueError(
            f"The sentence {sentence[:40]!r}... has {length} tokens with [CLS] and [SEP], and the model {positions} "
            "positions. Split it."
        )
    return encoding


def _find_words(encoding: BatchEncoding, sentence: str, words: Sequence[str]) -> list[int]:
    """The positions of the tokens of some words, ascending; a word may be several in a row."""
    spans = [encoding.word_to_chars(word) for word in encoding.word_ids() if word is not None]
    starts, stops = {start for start, _ in spans}, {stop for _, stop in spans}
    positions: set[Any] = set()
    for word in words:
        matches = [match.span() for match in re.finditer(re.escape(word), sentence, re.IGNORECASE)]
        whole = [range(start, stop) for start, stop in matches if start in starts and stop in stops]
        if not any(whole):
            listed = ", ".join(dict.fromkeys(sentence[start:stop] for start, stop in spans))
            raise ValueError(f"The word {word!r} is not in the sentence. Its words are: {listed}.")
        positions |= {encoding.char_to_token(character) for characters in whole for character in characters}
    return sorted(positions - {None})


def _score(
    discriminator: Any, tokenizer: Any, original_L: torch.Tensor, corrupted_L: torch.Tensor, masked: list[int]
) -> list[ScoredToken]:
    probabilities = discriminator(corrupted_L[None].to(discriminator.device)).logits[0].float().sigmoid().tolist()
    originals, corrupted = (tokenizer.convert_ids_to_tokens(ids_L.tolist()) for ids_L in (original_L, corrupted_L))
    was_masked = [position in masked for position in range(len(probabilities))]
    return list(map(ScoredToken, originals, corrupted, was_masked, probabilities))


# ---- Printing ----


def _print_fills(fills: list[Fill], console: Console) -> None:
    """The generator's proposals for each masked token."""
    headers = ("masked", "its probability", "sampled", "most likely by the generator")
    table = Table(*headers, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for fill in fills:
        token, probability = fill.original
        sampled, *proposals = (f"{name} {share:.1%}" for name, share in (fill.sampled, *fill.proposals))
        cells = token, f"{probability:.1%} (no. {fill.rank:,})", sampled, "   ".join(proposals)
        table.add_row(*map(Text, cells))  # tokens in brackets are no markup
    console.print(table)
    console.print()


def _print_tokens(tokens: list[ScoredToken], as_is: bool, console: Console) -> None:
    """What was found, and a sentence with the discriminator's scores."""
    words, columns = tokens[1:-1], []
    average = average_probability(words)
    for token in words:
        verdict, style = token.verdict
        replaced = token.original != token.corrupted
        read = Text(token.corrupted + ("*" if token.masked and not replaced else ""), style if replaced else "")
        said = Text("replaced?" if as_is and verdict else verdict, style)
        columns.append([Text(token.original), read, Text(f"x {token.probability / average:.1f}", style), said])
    if as_is:
        print_columns(["sentence", "suspicion", ""], [column[1:] for column in columns], console)
    else:
        found = describe_verdicts(words)
        console.print(f"{found[0].upper()}{found[1:]}.\n", style="bold")
        print_columns(["original", "corrupted", "suspicion", ""], columns, console)
    console.print(SCORES.format(average))


if __name__ == "__main__":
    run(main)
