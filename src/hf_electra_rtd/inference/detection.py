"""Shows which tokens of a sentence look replaced, and which words of texts look wrong.

    hf-electra-rtd detect --model runs/pretrain "A fox jumps over the lazy dog." --mask fox lazy

masks the named words or parts of words (without --mask: some tokens at random), prints the generator's proposals with
their probabilities, and fills each masked token with a sampled one. Then it prints the discriminator's suspicion of
each token: its probability of "replaced", divided by the average of the sentence. `*` marks a sampled token that is
the original.

    hf-electra-rtd detect --model runs/pretrain --as_is "A cat jumps over the lazy dog."
    hf-electra-rtd detect --model runs/pretrain --as_is --file letters.txt > letters.jsonl

score texts as they are: the given texts, or the lines of a file or of the standard input. A JSON line holds `source`;
`errors`, the words above --threshold, as [word, position of its first character, probability of being wrong]; and
`tokens`, all words in the same form. If a part of a text cannot be judged, `skipped` says why.

`--model` is the directory of a run or of its networks, a checkpoint, or a directory or Hub id of a saved joint model.
A discriminator alone is enough for `--as_is`; otherwise `--generator` must name its generator.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import BatchEncoding, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from hf_electra_rtd.base.cli import Rule, check_arguments, check_number, flag, parse_arguments, required, run
from hf_electra_rtd.base.files import check_output
from hf_electra_rtd.data.tokenization import check_known, count_unknown, load_tokenizer
from hf_electra_rtd.data.units import find_units
from hf_electra_rtd.data.words import is_inside, shown_tokens
from hf_electra_rtd.encoders.detectors import detection_logits
from hf_electra_rtd.encoders.families import inputs_of
from hf_electra_rtd.encoders.families import max_length as longest
from hf_electra_rtd.inference.judging import EMPTY, TEXT_RULES, TextArguments, TextJudge, run_on_texts
from hf_electra_rtd.ops import num_masked, sample_tokens
from hf_electra_rtd.pair.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.pair.onnx_model import TORCH, load_onnx
from hf_electra_rtd.pair.places import DETECTOR, GENERATOR, identify
from hf_electra_rtd.pair.towers import load_detector, load_masked_lm
from hf_electra_rtd.training import console


_ERROR_RATE = 0.02  # share of the words of texts that are wrong
_REPLACED_RATE = 0.13  # share of the tokens that a generator replaces in pre-training


@dataclass(kw_only=True)
class DetectArguments(TextArguments):
    """Which model, which texts, and what is shown of them."""

    model: str = required("Run, checkpoint, joint model or discriminator: a directory or a Hub id.")
    threshold: float = flag(0.5, "A word is wrong above this probability.", "[0, 1]")
    generator: str | None = flag(None, "Directory or Hub id, in place of the model's own.")
    as_is: bool = flag(False, "Score the texts as they are; mask nothing.")
    error_rate: float = flag(_ERROR_RATE, "Share of wrong words that is expected in the texts.", "(0, 1)")
    mask: list[str] | None = flag(None, "Words, or parts of words, to mask, at every occurrence.")
    mask_probability: float = flag(0.15, "Share of the tokens to mask at random.", "(0, 1)")
    temperature: float = flag(1.0, "Sampling temperature; 0 is greedy.", "[0, inf)")
    top_k: int = flag(5, "Proposals shown for a masked token.", "[1, inf)")
    seed: int = flag(0, "Seed of masks and samples.", "[0, 4294967295]")

    def __post_init__(self) -> None:
        check_arguments(self, rules=RULES)
        if self.output_file is not None:
            check_output(self.output_file, self.file, self.model, self.generator)
        if not self.as_is and not self.texts:
            raise ValueError("TEXT is missing. Give sentences before --mask, or add --as_is.")


_READ_OR_WRITTEN = ("file", "output_file")
_OF_TEXTS = ("format", "threshold", "error_rate", "max_length", "batch_size")
_OF_MASKS = ("generator", "mask_probability", "temperature", "top_k", "seed")
RULES = (
    *TEXT_RULES,
    Rule("mask", "Each says what is scored.", excludes=("as_is",)),
    Rule("mask_probability", "It is for random masks.", excludes=("mask",), changes_nothing=True),
    *(Rule(name, "It is for texts as they are.", needs=("as_is",)) for name in _READ_OR_WRITTEN),
    *(Rule(name, "It is for texts as they are.", needs=("as_is",), changes_nothing=True) for name in _OF_TEXTS),
    *(Rule(name, "It is for masked tokens.", excludes=("as_is",), changes_nothing=True) for name in _OF_MASKS),
)


def main(argv: list[str]) -> None:
    (arguments,) = parse_arguments((DetectArguments,), argv, __doc__)
    disable_progress_bar()
    named = {name: getattr(arguments, name) for name in ("model", "generator", "as_is", "runtime")}
    generator, discriminator, tokenizer = load_for_detection(**named)
    screen = console.open_console()
    if arguments.as_is:
        given = {name: getattr(arguments, name) for name in ("threshold", "error_rate", "max_length", "batch_size")}
        detector = Detector(discriminator, tokenizer, **given)
        run_on_texts(detector, arguments, lambda result: _print_result(result, detector.threshold, screen))
        return
    options = {name: getattr(arguments, name) for name in ("mask_probability", "temperature", "top_k")}
    options |= {"words": arguments.mask, "random": torch.Generator().manual_seed(arguments.seed)}
    for sentence in arguments.texts:
        screen.print(Text(f"\n{sentence}\n", style="bold"))
        if not sentence.strip():
            screen.print(f"Skipped: {EMPTY}.")
            continue
        _print_masked(*detect(generator, discriminator, tokenizer, sentence, **options), tokenizer, screen)


def load_for_detection(
    model: str, generator: str | None = None, as_is: bool = False, runtime: str = TORCH
) -> tuple[Any, Any, PreTrainedTokenizerBase]:
    """Loads a masked language model (None with `as_is`), a model for `detection_logits` and their tokenizer. `model`
    and `generator` are directories or Hub ids, as in the flags of the same names. The models are in evaluation mode.
    With a `runtime` of `RUNTIMES` other than torch, they are graphs, from the directories of exports. Raises
    ValueError for a model that cannot detect, a missing generator, and a tokenizer that does not fit."""
    place = identify(model)
    place.refuse_energies()
    is_graph = runtime != TORCH
    source = str(place.detector or place.pair)
    fills: Any = None
    detector: Any
    if place.detector is not None:
        detector = load_onnx(source, runtime, kind=DETECTOR) if is_graph else load_detector(source)
    elif place.pair is None or is_graph:
        raise place.error("a run, or its discriminator (for onnx: what `hf-electra-rtd export` made of a run)")
    else:
        joint = ElectraForRTDPretraining.from_pretrained(source, dtype="float32")
        if joint.config.traits.predicts != "replaced":
            raise ValueError(f"{source} was trained with objective={joint.config.objective!r}: it detects nothing.")
        detector = joint.native_discriminator()
        fills = joint.generator if joint.config.exports_generator and not as_is else None
    generator = generator or place.generator
    if generator is not None and not as_is:
        fills = load_onnx(generator, runtime, kind=GENERATOR) if is_graph else load_masked_lm(generator)
    if fills is None and not as_is:
        raise ValueError(f"{place.name} has no generator. Name one (generator), or take texts as they are (as_is).")
    tokenizer = load_tokenizer(source)
    towers = [tower for tower in (fills, detector) if tower is not None]
    sizes = {tower.config.vocab_size for tower in towers}
    if len(sizes) > 1 or len(tokenizer) > min(sizes):
        raise ValueError(
            f"The tokenizer of {source} has {len(tokenizer):,} tokens, and the networks have "
            f"{' and '.join(map(str, sorted(sizes)))}."
        )
    if torch.accelerator.is_available() and not is_graph:
        for tower in towers:
            tower.to(torch.accelerator.current_accelerator())
    return fills, detector, tokenizer


# ---- Texts as they are. B texts, L tokens ----


def replaced_logits(tower: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns a detector's logits (B, L), float64 on the CPU. A positive logit means "replaced"."""
    return detection_logits(tower, **inputs_of(tower.config, inputs)).cpu().double()  # MPS has no float64


def _log_odds(rate: float) -> float:
    """Returns the log odds of an event that happens at this rate."""
    return math.log(rate / (1 - rate))


class Detector(TextJudge):
    """Tells which words of texts look wrong.

        Detector.from_pretrained("runs/small")("The chef cooked the river.")

    The discriminator's probabilities are adapted from the share of tokens that are replaced in pre-training (0.13) to
    the share of words that are wrong in texts: log odds + log odds of `error_rate` - log odds of 0.13. A word of
    several tokens has the largest of their probabilities. A word above `threshold` is an error.
    """

    def __init__(
        self,
        discriminator: Any,
        tokenizer: Any,
        *,
        threshold: float = 0.5,
        error_rate: float = _ERROR_RATE,
        batch_size: int = 32,
        max_length: int = 128,
    ) -> None:
        check_number("error_rate", error_rate, "(0, 1)")
        super().__init__(discriminator, tokenizer, batch_size, max_length)
        self.threshold = threshold
        self._shift = _log_odds(error_rate) - _log_odds(_REPLACED_RATE)

    @classmethod
    def from_pretrained(cls, model: str, *, runtime: str = TORCH, **options: Any) -> Detector:
        """Loads a run, a checkpoint, a joint model or a discriminator. `options` are arguments of the class."""
        _, tower, tokenizer = load_for_detection(model, as_is=True, runtime=runtime)
        return cls(tower, tokenizer, **options)

    def judge(self, pieces: list[str]) -> list[list[tuple[Any, ...]]]:
        words: list[list[tuple[Any, ...]]] = [[] for _ in pieces]
        for places, encoding, inputs in self.batches(pieces):
            shares_BL = (replaced_logits(self.model, inputs) + self._shift).sigmoid().tolist()
            for place, of_text, shares_L in zip(places, encoding.encodings, shares_BL, strict=True):
                for unit in find_units(pieces[place], of_text):
                    word = pieces[place][unit.start : unit.stop]
                    words[place].append((unit.start, word, max(shares_L[unit.first : unit.last])))
        return words

    def tell(self, text: str, findings: list[tuple[Any, ...]]) -> dict[str, Any]:
        """Returns `errors`, the wrong words, and `tokens`, all words. A word is a tuple (word, position of its first
        character, probability of being wrong)."""
        words = [(word, at, share) for at, word, share in findings]
        return {"errors": [word for word in words if word[2] > self.threshold], "tokens": words}


# ---- One sentence. L tokens with [CLS] and [SEP], K of them masked, V tokens of the vocabulary ----


class Fill(NamedTuple):
    """The generator's predictions for a masked token. Tokens are pairs (token, its probability)."""

    position: int  # in the sequence, where [CLS] is 0
    original: tuple[str, float]
    rank: int  # of the original among all tokens, from 1
    sampled: tuple[str, float]  # the token that was put in its place
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
) -> tuple[list[console.ScoredToken], list[Fill]]:
    """Masks tokens of a sentence, fills them with the generator, and scores every token, [CLS] and [SEP] included,
    with the discriminator. Every masked token becomes [MASK]; in training, some stay visible. Returns the scored
    tokens, and a `Fill` for each masked token. Raises ValueError for a sentence without tokens or with too many, and
    for words that are not in it.

    Args:
        words: the words to mask, at every occurrence in any case, with all their wordpieces. A string that is only a
            part of words masks the wordpieces that contain it. None masks at random.
        mask_probability: share of the tokens to mask at random, [CLS] and [SEP] included in the total; at least one
            token is masked.
        temperature: sampling temperature; 0.0 takes the most likely token. Returned probabilities are always those of
            temperature 1.
        top_k: number of proposals in each `Fill`.
        random: generator of random numbers for masks and samples, on the CPU; by default torch's own.
    """
    encoding = tokenizer(sentence, verbose=False, split_special_tokens=True)  # `[MASK]` is text
    ids_L = torch.tensor(encoding["input_ids"])
    candidates_L = torch.tensor([word is not None for word in encoding.word_ids()])
    positions = min(longest(tower.config) for tower in (generator, discriminator))
    if not candidates_L.any():
        raise ValueError(f"The sentence {sentence!r} has no token.")
    if len(ids_L) > positions:
        raise ValueError(
            f"The sentence {sentence[:40]!r}... has {len(ids_L)} tokens with [CLS] and [SEP], and the model "
            f"{positions} positions. Split it."
        )
    check_known(f"The sentence {sentence[:40]!r}", *count_unknown(tokenizer, encoding["input_ids"]), refuses=False)
    if words is None:
        count = min(num_masked(mask_probability, len(ids_L)), int(candidates_L.sum()))
        uniforms_L = torch.rand(len(ids_L), generator=random)
        positions_K = uniforms_L.masked_fill(~candidates_L, 2.0).argsort()[:count].sort().values
    else:
        positions_K = torch.tensor(_find_words(encoding, sentence, words))
    masked_L = ids_L.index_fill(0, positions_K, int(tokenizer.mask_token_id))
    inputs = inputs_of(generator.config, {"input_ids": masked_L[None].to(generator.device)})
    logits_KV = generator(**inputs).logits[0].float().cpu()[positions_K]
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
    logits_1L = replaced_logits(discriminator, {"input_ids": corrupted_L[None].to(discriminator.device)})
    names = [tokenizer.convert_ids_to_tokens(ids.tolist()) for ids in (ids_L, corrupted_L)]
    was_masked = torch.zeros_like(candidates_L).index_fill(0, positions_K, True).tolist()
    return list(map(console.ScoredToken, *names, was_masked, logits_1L[0].float().sigmoid().tolist())), fills


def _find_words(encoding: BatchEncoding, sentence: str, words: Sequence[str]) -> list[int]:
    """Returns the positions of the tokens of `words`, ascending. An item of `words` may be several words in a row. For
    an item that occurs only inside longer words, such as a stem before its ending, these are the tokens that overlap
    it."""
    tokens = [
        (place, stop - len(sentence[start:stop].lstrip()), stop)  # without the space that BPE adds to a word
        for place, (start, stop) in enumerate(encoding[0].offsets)
        if encoding.token_to_word(place) is not None
    ]
    positions: set[int] = set()
    for word in words:
        matches = [match.span() for match in re.finditer(re.escape(word), sentence, re.IGNORECASE) if match[0]]
        whole = [span for span in matches if not any(is_inside(sentence, edge) for edge in span)]
        found = whole or matches
        places = {place for first, last in found for place, start, stop in tokens if start < last and first < stop}
        if not places:
            raise ValueError(
                f"There is no {word!r} in the sentence. Name words, or parts of words, as they are spelled there."
            )
        positions |= places
    return sorted(positions)


# ---- Printing ----


FILL_COLUMNS = ("masked", "its probability", "sampled", "most likely by the generator")


def fill_rows(fills: list[Fill], tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[str, ...]]:
    """Yields the generator's proposals for each masked token as readable rows with the columns `FILL_COLUMNS`."""
    for fill in fills:
        names, shares = zip(fill.original, fill.sampled, *fill.proposals, strict=True)
        token, *others = (shown_tokens(tokenizer, [name], before="a")[0] for name in names)
        sampled, *proposals = (f"{name} {share:.1%}" for name, share in zip(others, shares[1:], strict=True))
        yield token, f"{shares[0]:.1%} (no. {fill.rank:,})", sampled, "   ".join(proposals)


def _print_masked(tokens: list[console.ScoredToken], fills: list[Fill], tokenizer: Any, screen: Console) -> None:
    """Prints what `detect` returns: the proposals, a summary, and each token with its score and verdict."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in FILL_COLUMNS:
        table.add_column(name, overflow="fold")  # by default, rich cuts off the last character of a line of wide ones
    for row in fill_rows(fills, tokenizer):
        table.add_row(*map(Text, row))  # `Text`, because tokens in brackets are not markup
    screen.print(table)
    words = tokens[1:-1]
    average = console.average_probability(words)
    columns = []
    screen.print(f"\n{console.describe_verdicts(words)}.\n", style="bold")
    names = [console.show(tokens, tokenizer, stage)[1:-1] for stage in ("original", "corrupted")]
    for token, original, corrupted in zip(words, *names, strict=True):
        verdict, style = token.verdict
        is_replaced = token.original != token.corrupted
        mark = "*" if token.masked and not is_replaced else ""
        read = Text(f"{corrupted}{mark}", style if is_replaced else "")
        suspicion = Text(f"x {token.probability / average:.1f}", style)
        columns.append([Text(original), read, suspicion, Text(verdict, style)])
    console.print_columns(["original", "corrupted", "suspicion", ""], columns, screen)
    screen.print(console.SCORES.format(average))


def _print_result(result: Mapping[str, Any], threshold: float, screen: Console) -> None:
    """Prints the result of a `Detector` for a text."""
    screen.print(Text(f"\n{result['source']}\n", style="bold"))
    if "skipped" in result:
        screen.print(f"Skipped: {result['skipped']}.")
    if not result["tokens"]:
        return
    average = fmean(share for _, _, share in result["tokens"]) or 1.0
    columns = []
    for word, _, share in result["tokens"]:
        verdict, style = ("wrong?", "yellow") if share > threshold else ("", "")
        columns.append([Text(word), Text(f"x {share / average:.1f}", style), Text(verdict, style)])
    console.print_columns(["sentence", "suspicion", ""], columns, screen)
    screen.print(
        f"x 2: twice the average probability of being wrong ({average:.2g}). Above {threshold:.2g}, a word counts as "
        "wrong."
    )


if __name__ == "__main__":
    run(main)
