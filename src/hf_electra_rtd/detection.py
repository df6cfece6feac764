"""Shows which tokens of a sentence look replaced, and which words of texts look wrong.

    hf-electra-rtd detect --model runs/pretrain "The quick brown fox jumps over the lazy dog." --mask fox lazy

masks the named words (without --mask: some tokens at random), prints the generator's proposals with their
probabilities, puts a sampled token in place of each, and prints how much the discriminator suspects each token: its
probability of "replaced", divided by the average of the sentence. A token with a probability above 0.5 is called
replaced: `found` if it was, else a `false alarm`; a replaced one below is `missed`. `*` stands after a masked token
whose sample is the original. To score texts as they are, each sentence given, line of a file, or line of the standard
input:

    hf-electra-rtd detect --model runs/pretrain --as_is "The quick brown cat jumps over the lazy dog."
    hf-electra-rtd detect --model runs/pretrain --as_is --file letters.txt > letters.jsonl

A JSON line holds `source`; `errors`, the words above --threshold as [word, its first character, probability];
`tokens`, all words likewise; and for a text that cannot be judged `skipped`, why. Probabilities are of being wrong,
for texts of which --error_rate is wrong. --calibrate PAIRS --false_positive_rate 0.05 --thresholds FILE writes the
threshold that flags this share of the right sentences of PAIRS (columns `text` and `right`); --thresholds FILE alone
reads it, with the same model.

`--model` is the directory of a run, a checkpoint, or a directory or Hub id of a saved joint model. Native towers are
named one by one (`--generator`, `--discriminator`); `--as_is` needs only the discriminator.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import BatchEncoding, ElectraForPreTraining, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from hf_electra_rtd.cli import check_ranges, run
from hf_electra_rtd.configuration_electra_rtd import ElectraRTDConfig
from hf_electra_rtd.data.tokenization import load_tokenizer
from hf_electra_rtd.data.units import cut_text, find_units
from hf_electra_rtd.data.words import is_inside, shown_tokens
from hf_electra_rtd.detectors import detection_logits
from hf_electra_rtd.families import inputs_of
from hf_electra_rtd.families import max_length as longest
from hf_electra_rtd.files import hash_files, named_file, read_json, read_lines, write_text
from hf_electra_rtd.finetuning.correction_scores import read_pairs
from hf_electra_rtd.layers import exchange_layers
from hf_electra_rtd.modeling_electra_rtd import ElectraForRTDPretraining
from hf_electra_rtd.ops import choose_masked_positions, num_masked, sample_tokens
from hf_electra_rtd.records import public
from hf_electra_rtd.runtime import RUNTIMES, TORCH, load_onnx
from hf_electra_rtd.towers import hash_weights, load_detector, load_masked_lm, read_config, refuse_energies
from hf_electra_rtd.training.console import (
    SCORES,
    ScoredToken,
    average_probability,
    describe_verdicts,
    print_columns,
    show,
)


# Flags that have no place where tokens are masked.
_OF_WHOLE_TEXTS = (
    *("file", "format", "threshold", "error_rate", "replaced_rate", "thresholds", "calibrate", "max_length"),
    "batch_size",
)
_STAGES = ("original", "corrupted")  # of a token that is printed


def main(argv: list[str]) -> None:
    arguments = _parse(argv)
    disable_progress_bar()
    towers = (arguments.model, arguments.generator, arguments.discriminator)
    generator, discriminator, tokenizer = load_for_detection(*towers, arguments.as_is, arguments.runtime)
    console = Console(highlight=False)
    if arguments.as_is:
        detector = Detector(discriminator, tokenizer, **options_of(arguments, Detector))
        refuse_other_thresholds(detector, arguments)
        run_on_texts(detector, arguments, lambda result: _print_result(result, detector.threshold, console))
        return
    random = torch.Generator().manual_seed(arguments.seed)
    options = {name: getattr(arguments, name) for name in ("mask_probability", "temperature", "top_k")}
    for sentence in arguments.texts:
        console.print(Text(f"\n{sentence}\n", style="bold"))
        both = generator, discriminator, tokenizer
        tokens, fills = detect(*both, sentence, words=arguments.mask, random=random, **options)
        _print_fills(fills, tokenizer, console)
        _print_tokens(tokens[1:-1], console, names=[show(tokens, tokenizer, name)[1:-1] for name in _STAGES])


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add_text_flags(parser)
    masks = parser.add_mutually_exclusive_group()
    masks.add_argument("--as_is", action="store_true", help="score the texts as they are; mask nothing")
    masks.add_argument("--mask", nargs="+", metavar="WORD", help="words to mask, at every occurrence")
    parser.add_argument("--mask_probability", type=float, default=0.15, help="share masked at random (%(default)s)")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the samples; 0 is greedy (%(default)s)")
    parser.add_argument("--top_k", type=int, default=5, help="proposals shown for a masked token (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of masks and samples (%(default)s)")
    arguments = parser.parse_args(argv)
    if not arguments.as_is and not arguments.texts:
        parser.error("SENTENCE is missing: give sentences before --mask, or add --as_is.")
    check_text_flags(arguments)
    given = [name for name in _OF_WHOLE_TEXTS if getattr(arguments, name) not in (None, "text")]
    if given and not arguments.as_is:
        raise ValueError(f"--{given[0]} is for texts as they are. Add --as_is.")
    return arguments


def load_for_detection(
    model: str | None = None,
    generator: str | None = None,
    discriminator: str | None = None,
    as_is: bool = False,
    runtime: str = TORCH,
) -> tuple[Any, Any, PreTrainedTokenizerBase]:
    """Loads a masked language model (None with `as_is`), a model for `detection_logits` and their tokenizer, in
    evaluation mode, from the directories or Hub ids that the flags of those names take. With a `runtime` of `RUNTIMES`
    other than torch, they are graphs, from the directories of exports."""
    if (model is None) == (discriminator is None) or (model is not None and generator is not None):
        raise ValueError("Give either --model, or --discriminator (and --generator).")
    if model is not None and (detector_name := detector_of(model)) is not None:
        discriminator = f"{model}/{detector_name}"
        generator = f"{model}/generator" if Path(model, "generator").is_dir() else None
    if runtime != TORCH:
        if discriminator is None or (generator is None and not as_is):
            what = f"--runtime {runtime} needs exports of a detector{'' if as_is else ' and a generator'}"
            raise ValueError(f"{what}: give what `hf-electra-rtd export` made of a run.")
        names = [None if as_is else generator, discriminator]
        graphs = [name and load_onnx(name, runtime == "onnx-int8") for name in names]
        return graphs[0], graphs[1], load_tokenizer(discriminator)
    source = discriminator or str(model)
    refuse_energies(source)
    fills: Any = None
    if discriminator is not None:
        detector = load_detector(discriminator)
        if generator is not None and not as_is:
            fills = load_masked_lm(generator)
    else:
        if read_config(source).get("model_type") != ElectraRTDConfig.model_type:
            remedy = "Name a run, or its networks (--generator, --discriminator)."
            raise ValueError(f"{source} holds no pair of networks. {remedy}")
        joint = ElectraForRTDPretraining.from_pretrained(source, dtype="float32")
        if joint.config.traits.predicts != "replaced":
            raise ValueError(f"{source} was trained with --objective {joint.config.objective}: it detects nothing.")
        fills = None if as_is or not joint.config.exports_generator else joint.generator
        detector = joint.native_discriminator()
    for tower in filter(None, (fills, detector)):
        exchange_layers(tower)
        if torch.accelerator.is_available():
            tower.to(torch.accelerator.current_accelerator())
    if fills is None and not as_is:
        raise ValueError(f"{model or discriminator} has no generator. Name one (--generator), or add --as_is.")
    tokenizer = load_tokenizer(source)
    vocabulary = detector.config.vocab_size
    if len(tokenizer) > vocabulary:
        raise ValueError(f"The tokenizer of {source} has {len(tokenizer)} tokens and the discriminator {vocabulary}.")
    if fills is not None and fills.config.vocab_size != vocabulary:
        raise ValueError(f"The generator has {fills.config.vocab_size} tokens and the discriminator {vocabulary}.")
    return fills, detector, tokenizer


def detector_of(model: str) -> str | None:
    """The directory of a run, or of its export, that holds what detects: an encoder of another family than ELECTRA has
    no head."""
    name = Path(model, "discriminator")
    if name.is_dir() and ElectraForPreTraining.__name__ in (read_config(name).get("architectures") or ()):
        return name.name
    return "detector" if Path(model, "detector").is_dir() else name.name if name.is_dir() else None


# ---- Texts as they are. B texts, L tokens ----

# Shares of words that are wrong in texts, and of tokens that a generator replaced in pre-training.
ERROR_RATE, REPLACED_RATE = 0.02, 0.13
_LINES_AT_ONCE = 256


def replaced_logits(tower: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """A detector's logits (B, L), float64, positive for "replaced"."""
    return detection_logits(tower, **inputs_of(tower.config, inputs)).double()


def log_odds(rate: float) -> float:
    """Of something that happens at a rate."""
    return math.log(rate / (1 - rate))


class TextJudge:
    """What judges texts of any length: it cuts them into pieces of at most `max_length` tokens at the ends of
    sentences, and reads `batch_size` pieces at a time."""

    rates: Mapping[str, float] = {}  # that moved its probabilities: `error_rate` and `replaced_rate`, of a pair

    def __init__(self, towers: Sequence[Any], tokenizer: Any, batch_size: int = 32, max_length: int = 128) -> None:
        self.towers, self.tokenizer, self.batch_size = towers, tokenizer, batch_size
        self.max_length = min([max_length, *(longest(tower.config) for tower in towers)])
        self.device = torch.device(towers[0].device)
        tokenizer.padding_side = "right"

    def begin(self, texts: Sequence[str]) -> tuple[list[dict[str, Any]], list[tuple[int, int, str]]]:
        """For each text its `source`, without `errors` yet, and `skipped`, why it cannot be judged, if so; and all
        pieces of texts, each behind the number of its text and its first character there."""
        results: list[dict[str, Any]] = [{"source": text, "errors": []} for text in texts]
        pieces: list[tuple[int, int, str]] = []
        for row, text in enumerate(texts):
            found, why = self.pieces(text)
            pieces += [(row, first, piece) for first, piece in found]
            results[row] |= {"skipped": why} if why else {}
        return results, pieces

    def pieces(self, text: str) -> tuple[list[tuple[int, str]], str | None]:
        """The pieces of a text after their first characters; or none, and why it cannot be judged."""
        if not text.strip():
            return [], "it is empty"
        encoding = self.encode([text], padding=False, truncation=False).encodings[0]
        ids, unknown = encoding.ids, self.tokenizer.unk_token_id  # `.ids` makes a list of all at each call
        if all(ids[unit.first] == unknown for unit in find_units(text, encoding)):
            return [], "the vocabulary has none of its words"
        if len(encoding) <= self.max_length:
            return [(0, text)], None
        spans = cut_text(text, self.tokenizer, self.max_length)
        return [(first, text[first:last]) for first, last in spans], None

    def encode(self, texts: Sequence[str], padding: bool = True, truncation: bool = True) -> Any:
        options: dict[str, Any] = {"max_length": self.max_length} if truncation else {}
        options |= {"padding": padding, "truncation": truncation, "verbose": False, "split_special_tokens": True}
        return self.tokenizer(list(texts), **options)

    def batches(self, texts: Sequence[str]) -> Iterator[tuple[list[int], Any, dict[str, torch.Tensor]]]:
        """Batches of texts of similar length: their places, encoding, and tensors (B, L)."""
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        for begin in range(0, len(order), self.batch_size):
            places = order[begin : begin + self.batch_size]
            encoding = self.encode([texts[place] for place in places])
            yield places, encoding, {name: torch.tensor(ids, device=self.device) for name, ids in encoding.items()}


class Detector(TextJudge):
    """Tells which words of texts look wrong.

        Detector.from_pretrained("runs/small")("The chef cooked the river.")

    Probabilities are a discriminator's, moved from the share of tokens that were replaced in pre-training to the share
    of words that are wrong in texts: log odds + log odds of `error_rate` - log odds of `replaced_rate`. Of a word with
    several tokens the largest counts. What is above `threshold` is an error.
    """

    def __init__(
        self,
        discriminator: Any,
        tokenizer: Any,
        *,
        threshold: float = 0.5,
        error_rate: float = ERROR_RATE,
        replaced_rate: float = REPLACED_RATE,
        batch_size: int = 32,
        max_length: int = 128,
    ) -> None:
        super().__init__([discriminator], tokenizer, batch_size, max_length)
        self.discriminator, self.threshold = discriminator, threshold
        self.rates = {"error_rate": error_rate, "replaced_rate": replaced_rate}
        self._shift = log_odds(error_rate) - log_odds(replaced_rate)

    @classmethod
    def from_pretrained(
        cls, model: str | None = None, *, discriminator: str | None = None, runtime: str = TORCH, **options: Any
    ) -> Detector:
        """Loads a run, a checkpoint or a joint model, or a discriminator; `options` are those of the class."""
        _, tower, tokenizer = load_for_detection(model, None, discriminator, as_is=True, runtime=runtime)
        return cls(tower, tokenizer, **options)

    @torch.no_grad()
    def __call__(self, texts: str | Sequence[str]) -> Any:
        """For a text, or for each of several: `source`; `errors` and `tokens`, the words that are wrong, and all, as
        (word, its first character, probability of being wrong); and `skipped`, why it could not be judged, if so."""
        if isinstance(texts, str):
            return self([texts])[0]
        results, pieces = self.begin(texts)
        for result in results:
            result["tokens"] = []
        for places, encoding, inputs in self.batches([piece for _, _, piece in pieces]):
            shares_BL = (replaced_logits(self.discriminator, inputs) + self._shift).sigmoid().tolist()
            for place, of_text, shares_L in zip(places, encoding.encodings, shares_BL, strict=True):
                row, begin, piece = pieces[place]
                for unit in find_units(piece, of_text):
                    share = max(shares_L[unit.first : unit.last])
                    results[row]["tokens"].append((piece[unit.start : unit.stop], begin + unit.start, share))
        for result in results:
            result["tokens"].sort(key=lambda word: word[1])  # pieces were read by length
            result["errors"] = [word for word in result["tokens"] if word[2] > self.threshold]
        return results

    def calibrate(self, sources: Sequence[str], rights: Sequence[str], rate: float) -> dict[str, Any]:
        """Chooses and sets the threshold above which at most a share `rate` of right sentences has an error. Right are
        the corrected ones, each counted once. Returns it, with what it finds in `sources`."""
        clean = [result["tokens"] for result in self(list(dict.fromkeys(rights)))]
        highest = sorted((max((word[2] for word in words), default=0.0) for words in clean), reverse=True)
        self.threshold = highest[min(int(rate * len(highest)), len(highest) - 1)]
        wrong = [pair for pair in zip(sources, rights, strict=True) if pair[0] != pair[1]]
        flagged = [bool(result["errors"]) for result in self([source for source, _ in wrong])]
        rate = sum(value > self.threshold for value in highest) / len(highest)
        found = sum(flagged) / len(flagged) if flagged else 0.0
        return {"threshold": self.threshold, "false_positive_rate": rate, "wrong_sentences_flagged": found}


# ---- The flags of commands that judge texts ----


def add_text_flags(parser: argparse.ArgumentParser) -> None:
    """Which model, which texts, and how they are judged; None stands for the default of the judge."""
    add: Any = parser.add_argument
    add("texts", nargs="*", metavar="TEXT", help="quote each; without, and without --file: standard input, by lines")
    add("--model", help="directory of a run or a checkpoint, or a Hub id of the joint model")
    add("--generator", help="directory or Hub id, in place of --model")
    add("--discriminator", help="directory or Hub id, in place of --model")
    add("--runtime", choices=RUNTIMES, default=TORCH, help="onnx: the towers are directories of exports (%(default)s)")
    add("--file", help="a text file, UTF-8, one text a line, in place of TEXT")
    add("--format", choices=("text", "json"), help="by default text for TEXT, else JSON lines")
    add("--threshold", type=float, help="a word is wrong above this probability (0.5)")
    add("--error_rate", type=float, help=f"share of wrong words that is expected in the texts ({ERROR_RATE})")
    add("--replaced_rate", type=float, help=f"share of tokens replaced in pre-training ({REPLACED_RATE})")
    add("--thresholds", metavar="FILE", help="JSON that --calibrate writes, and other calls read")
    add("--calibrate", metavar="PAIRS", help="a table with the columns `text` and `right`: choose thresholds by it")
    add("--false_positive_rate", type=float, default=0.05, help="of --calibrate, of right sentences (%(default)s)")
    add("--max_length", type=int, help="tokens that are read at a time; longer texts are cut (128)")
    add("--batch_size", type=int, help="pieces of texts read at a time (32)")


def check_text_flags(arguments: argparse.Namespace) -> None:
    """Raises ValueError for flags that do not fit together."""
    check_ranges(arguments)
    if arguments.texts and arguments.file is not None:
        raise ValueError("Give either texts or --file.")
    if arguments.calibrate and arguments.thresholds is None:
        raise ValueError("--calibrate writes a file: name it (--thresholds FILE).")
    if arguments.calibrate and (arguments.texts or arguments.file):
        raise ValueError("--calibrate reads pairs alone. Leave out the texts and --file.")


def options_of(arguments: argparse.Namespace, judge: Any) -> dict[str, Any]:
    """The options of a judge's class: flags that were given, and else those of --thresholds."""
    parameters = inspect.signature(judge).parameters.values()
    names = {one.name for one in parameters if one.kind == inspect.Parameter.KEYWORD_ONLY}
    names |= {"error_rate", "replaced_rate"}
    given = {name: getattr(arguments, name, None) for name in names}
    kept = {} if arguments.thresholds is None or arguments.calibrate else read_json(arguments.thresholds)
    if wrong := [name for name in names & kept.keys() if not isinstance(kept[name], (int, float))]:
        raise ValueError(f"{arguments.thresholds}: {wrong[0]} is no number. Write the file again by --calibrate.")
    return {name: kept[name] for name in names & kept.keys()} | {
        name: value for name, value in given.items() if value is not None
    }


# What thresholds depend on, by its name in their file.
_CHOSEN_FOR = {
    "sha256": "other weights or another runtime",
    **{name: f"another --{name}" for name in ("error_rate", "replaced_rate")},
    "confusion_file": "another --confusion_file, or with none",
}


def refuse_other_thresholds(judge: TextJudge, arguments: argparse.Namespace) -> None:
    """Raises ValueError for --thresholds that were not chosen for the weights (or graphs), rates and confusion file of
    this judge."""
    if arguments.thresholds is None or arguments.calibrate:
        return
    kept, path = read_json(arguments.thresholds), getattr(arguments, "confusion_file", None)
    then = {**kept, "confusion_file": kept.get("confusion_file", {}).get("sha256")}
    now = {**judge.rates, "sha256": [hash_weights(tower) for tower in judge.towers]}
    now["confusion_file"] = None if path is None else hash_files([path])
    for name, what in _CHOSEN_FOR.items():
        if then.get(name) != now.get(name):
            chosen = f"{arguments.thresholds} has the thresholds of {kept.get('model', 'no model that it names')}"
            raise ValueError(f"{chosen}, with {what}. Choose them for this one by --calibrate.")


def run_on_texts(judge: Any, arguments: argparse.Namespace, show: Callable[[dict[str, Any]], None]) -> None:
    """Calibrates a judge, or prints what it says of each text: by `show`, or as a JSON line. Says at the end how many
    texts were skipped."""
    if arguments.calibrate:
        kept = judge.calibrate(*read_pairs(arguments.calibrate), arguments.false_positive_rate)
        kept["model"] = public(arguments.model or arguments.discriminator, "model_name_or_path")
        kept |= {"sha256": [hash_weights(tower) for tower in judge.towers], **judge.rates}
        given = {name: getattr(arguments, name, None) for name in ("calibrate", "confusion_file")}
        kept |= {name: named_file(path) for name, path in given.items() if path is not None}
        write_text(arguments.thresholds, json.dumps(kept, indent=2) + "\n")
        print(json.dumps(kept))
        return
    total, skipped = 0, Counter[str]()
    lines = iter(arguments.texts or read_lines(arguments.file))
    is_typed = not arguments.texts and arguments.file is None and sys.stdin.isatty()
    while some := list(islice(lines, 1 if is_typed else _LINES_AT_ONCE)):
        for result in judge(some):
            total += 1
            if "skipped" in result:
                skipped[result["skipped"]] += 1
            if (arguments.format or ("text" if arguments.texts else "json")) == "text":
                show(result)
            else:
                print(json.dumps(result, ensure_ascii=False), flush=True)
    for why, count in skipped.items():
        print(f"{count:,} of {total:,} texts skipped: {why}.", file=sys.stderr)


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
    return _score(discriminator, tokenizer, ids_L, corrupted_L, positions_K.tolist()), fills


def _encode(tokenizer: PreTrainedTokenizerBase, sentence: str, *towers: Any) -> BatchEncoding:
    encoding: BatchEncoding = tokenizer(sentence, verbose=False, split_special_tokens=True)  # `[MASK]` is text
    length, positions = len(encoding["input_ids"]), min(longest(tower.config) for tower in towers)
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
    tokens = [
        (place, stop - len(sentence[start:stop].lstrip()), stop)  # without the space that BPE counts to a word
        for place, (start, stop) in enumerate(encoding[0].offsets)
        if encoding.token_to_word(place) is not None
    ]
    edges = {edge for _, *span in tokens for edge in span if not is_inside(sentence, edge)}

    def is_edge(place: int) -> bool:  # of a word, which may share a token with a sign beside it
        return place in edges or not sentence[max(place - 1, 0) : place + 1].isalnum()

    positions: set[int] = set()
    for word in words:
        matches = [match.span() for match in re.finditer(re.escape(word), sentence, re.IGNORECASE) if match[0]]
        whole = [span for span in matches if all(map(is_edge, span))]
        found = {place for first, last in whole for place, start, stop in tokens if start < last and first < stop}
        if not found:
            spans = pairwise(sorted(edges))
            listed = ", ".join(dict.fromkeys(filter(str.strip, (sentence[slice(*span)] for span in spans))))
            raise ValueError(f"The word {word!r} is not in the sentence. Its words are: {listed}.")
        positions |= found
    return sorted(positions)


def _score(
    discriminator: Any, tokenizer: Any, original_L: torch.Tensor, corrupted_L: torch.Tensor, masked: list[int]
) -> list[ScoredToken]:
    logits_1L = replaced_logits(discriminator, {"input_ids": corrupted_L[None].to(discriminator.device)})
    probabilities = logits_1L[0].float().sigmoid().tolist()
    originals, corrupted = (tokenizer.convert_ids_to_tokens(ids_L.tolist()) for ids_L in (original_L, corrupted_L))
    was_masked = [position in masked for position in range(len(probabilities))]
    return list(map(ScoredToken, originals, corrupted, was_masked, probabilities))


# ---- Printing ----


FILL_COLUMNS = ("masked", "its probability", "sampled", "most likely by the generator")


def fill_rows(fills: list[Fill], tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[str, ...]]:
    """The generator's proposals for each masked token, in words: `FILL_COLUMNS`."""
    for fill in fills:
        names, shares = zip(fill.original, fill.sampled, *fill.proposals, strict=True)
        token, *others = (shown_tokens(tokenizer, [name], before="a")[0] for name in names)
        sampled, *proposals = (f"{name} {share:.1%}" for name, share in zip(others, shares[1:], strict=True))
        yield token, f"{shares[0]:.1%} (no. {fill.rank:,})", sampled, "   ".join(proposals)


def _print_fills(fills: list[Fill], tokenizer: PreTrainedTokenizerBase, console: Console) -> None:
    table = Table(*FILL_COLUMNS, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for row in fill_rows(fills, tokenizer):
        table.add_row(*map(Text, row))  # tokens in brackets are no markup
    console.print(table)
    console.print()


def _print_result(result: Mapping[str, Any], threshold: float, console: Console) -> None:
    console.print(Text(f"\n{result['source']}\n", style="bold"))
    if "skipped" in result:
        console.print(f"Skipped: {result['skipped']}.")
        return
    words = [ScoredToken(word, word, False, share) for word, _, share in result["tokens"]]
    _print_tokens(words, console, threshold)


def _print_tokens(
    words: list[ScoredToken], console: Console, threshold: float | None = None, names: Any = None
) -> None:
    """What was found, and a sentence with the discriminator's scores. A threshold is for texts as they are; `names`
    show the tokens of both `_STAGES`."""
    columns = []
    average = average_probability(words)
    names = names or [[getattr(word, stage) for word in words] for stage in _STAGES]
    for token, original, corrupted in zip(words, *names, strict=True):
        verdict, style = token.verdict
        replaced = token.original != token.corrupted
        read = Text(corrupted + ("*" if token.masked and not replaced else ""), style if replaced else "")
        if threshold is not None:
            verdict, style = ("replaced?", "yellow") if token.probability > threshold else ("", "")
        said = Text(verdict, style)
        columns.append([Text(original), read, Text(f"x {token.probability / average:.1f}", style), said])
    if threshold is not None:
        print_columns(["sentence", "suspicion", ""], [column[1:] for column in columns], console)
    else:
        found = describe_verdicts(words)
        console.print(f"{found[0].upper()}{found[1:]}.\n", style="bold")
        print_columns(["original", "corrupted", "suspicion", ""], columns, console)
    console.print(SCORES.format(average))


if __name__ == "__main__":
    run(main)
