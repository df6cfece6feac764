"""Corrects wrong words of texts, such as characters of Chinese that sound or look alike.

    hf-electra-rtd correct --model runs/small "今天新情很好"
    hf-electra-rtd correct --model runs/small --file letters.txt --thresholds thresholds.json \\
        --output_file corrected.jsonl

A JSON line holds `source`, `target`, `errors` as [wrong, right, first character of wrong in `source`], and for a text
of which not all can be judged `skipped`, why. Without texts and --file, lines of the standard input are read.
`--model` is a run or a joint model with a generator, or a model that `finetune --task_kind correction` wrote (a
directory, also of its run). Towers are named one by one (--generator, --discriminator).

--confusion_file says what words may be confused with, in rows `wrong right right ...`; `x x` protects the word x, of
any length. --calibrate PAIRS --false_positive_rate 0.05 --thresholds FILE chooses the thresholds; --thresholds FILE
alone reads them, with the same model. --score PAIRS corrects the column `text` of a table and scores the result by its
column `right`.
"""

from __future__ import annotations

import json
import logging
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from hf_electra_rtd.base.cli import Rule, check_arguments, flag, parse_arguments, run
from hf_electra_rtd.base.files import hash_files
from hf_electra_rtd.data.confusion import Confusions, read_confusions
from hf_electra_rtd.data.tokenization import check_known, load_tokenizer
from hf_electra_rtd.data.units import Unit, align, find_units, in_case_of, is_han, may_change, replace_parts
from hf_electra_rtd.data.words import whole_words
from hf_electra_rtd.encoders.families import inputs_of
from hf_electra_rtd.finetuning.correction_scores import SIGHAN13, describe_scores, read_pairs, score_correction
from hf_electra_rtd.finetuning.heads import load_fine_tuned
from hf_electra_rtd.finetuning.kinds.correction import CorrectionKind
from hf_electra_rtd.inference import detection
from hf_electra_rtd.pair.objectives import token_log_probability
from hf_electra_rtd.pair.onnx_model import TORCH, load_onnx
from hf_electra_rtd.pair.places import identify


logger = logging.getLogger(__name__)

_DRAWN = 0.15  # share of the tokens that a generator draws in pre-training
_ANY_GAIN = -1000.0  # a margin that everything passes
_MOST_CHANGES = 10  # of one piece of a text
_CALIBRATED_ON = 1000  # right and wrong sentences, drawn from all
_SUSPECTS = 4  # words of a piece for which others are tried, the most suspicious ones


class Change(NamedTuple):
    """A word that may be wrong, and the best one to put in its place."""

    unit: Unit
    right: str
    suspicion: float  # logit of being wrong
    gain: float  # log-probability of the right word less that of the wrong one


class _PairRanker:
    """How likely words are wrong, and how much likelier others would be: the discriminator finds, the generator
    proposes, and both rank. B texts, L tokens, R words, K candidates, V tokens of the vocabulary."""

    def __init__(self, generator: Any, discriminator: Any, mask_id: int, shift: float, batch_size: int) -> None:
        self.towers = [discriminator, generator]
        self.generator = generator
        self.discriminator = discriminator
        self.mask_id = mask_id
        self.shift = shift
        self.batch_size = batch_size

    def suspicion(self, inputs: dict[str, Tensor]) -> Tensor:
        """Logits (B, L) of being wrong, in float64."""
        return detection.replaced_logits(self.discriminator, inputs) + self.shift

    def gains(self, inputs: dict[str, Tensor], places_R: Tensor, allowed_RV: Tensor, top_k: int) -> tuple[Any, Any]:
        """For a word in each of R texts, its best candidates (R, K) among those that are allowed, and what they gain.
        A place that is no candidate has -inf."""
        rows_R = torch.arange(len(places_R), device=places_R.device)
        masked = inputs["input_ids"].index_put((rows_R, places_R), torch.tensor(self.mask_id, device=places_R.device))
        generated = self.generator(**inputs_of(self.generator.config, {**inputs, "input_ids": masked}))
        log_p_RV = generated.logits[rows_R, places_R].double().log_softmax(dim=-1)
        own_R = inputs["input_ids"][rows_R, places_R]
        best_RK = log_p_RV.masked_fill(~allowed_RV, -math.inf).topk(min(top_k, log_p_RV.shape[1])).indices
        ids_RK = torch.cat([own_R[:, None], best_RK], dim=1)
        z_RK = torch.empty(ids_RK.shape, dtype=torch.float64, device=ids_RK.device)
        at_once = max(1, self.batch_size // ids_RK.shape[1])
        for begin in range(0, len(rows_R), at_once):  # texts, each with every candidate in its place
            rows = slice(begin, begin + at_once)
            tried = {name: ids[rows].repeat_interleave(ids_RK.shape[1], dim=0) for name, ids in inputs.items()}
            places = places_R[rows].repeat_interleave(ids_RK.shape[1])[:, None]
            tried["input_ids"].scatter_(1, places, ids_RK[rows].reshape(-1, 1))
            logits = detection.replaced_logits(self.discriminator, tried).gather(1, places)
            z_RK[rows] = logits.view(-1, ids_RK.shape[1])
        scores_RK = token_log_probability(z_RK, log_p_RV.gather(1, ids_RK), _DRAWN)
        gains_RK = scores_RK[:, 1:] - scores_RK[:, :1]
        return best_RK, gains_RK.masked_fill(~allowed_RV.gather(1, best_RK), -math.inf)


class _TrainedRanker:
    """The same by a model that was fine-tuned to correct, which reads the words themselves."""

    def __init__(self, model: Any) -> None:
        self.towers = [model]
        self.model = model

    def suspicion(self, inputs: dict[str, Tensor]) -> Tensor:
        return self.model(**inputs_of(self.model.config, inputs), whole=True).detection_logits.double()

    def gains(self, inputs: dict[str, Tensor], places_R: Tensor, allowed_RV: Tensor, top_k: int) -> tuple[Any, Any]:
        rows_R = torch.arange(len(places_R), device=places_R.device)
        logits_RV = self.model(**inputs_of(self.model.config, inputs), whole=True).logits[rows_R, places_R].double()
        own_R1 = logits_RV.gather(1, inputs["input_ids"][rows_R, places_R][:, None])
        best = logits_RV.masked_fill(~allowed_RV, -math.inf).topk(min(top_k, logits_RV.shape[1]))
        return best.indices, best.values - own_R1


class Corrector(detection.TextJudge):
    """Corrects texts word by word; of Chinese, character by character.

        Corrector.from_pretrained("runs/small")("今天新情很好")
        # {"source": "今天新情很好", "target": "今天心情很好", "errors": [("新", "心", 2)]}

    In each piece of a text, the most suspicious words above `threshold` are tried: for each, the `top_k` best words
    that may stand there. The one with the largest gain over the word itself is accepted if that is above `margin`, in
    logarithms of probabilities; then the piece is read again. A word is changed once. Only words that are one token
    are changed, and only into others of one token. In texts with Chinese, characters become as many characters, and
    other words stay; elsewhere words of letters become words of letters.

    Args:
        ranker: a pair or a trained model; see `from_pretrained`.
        confusions: what words may be confused with; those without a row may become anything.
        margin: by default the log odds against an error, by `error_rate`; 0 for a trained model, which knows them.
    """

    def __init__(
        self,
        ranker: Any,
        tokenizer: Any,
        *,
        threshold: float = 0.5,
        margin: float = 0.0,
        confusions: Confusions | None = None,
        top_k: int = 10,
        batch_size: int = 32,
        max_length: int = 128,
    ) -> None:
        super().__init__(ranker.towers, tokenizer, batch_size, max_length)
        self.ranker = ranker
        self.threshold = threshold
        self.margin = margin
        self.top_k = top_k
        self.confusions = confusions or Confusions({})
        size = ranker.towers[0].config.vocab_size
        self._words = whole_words(tokenizer, size)
        self._han = np.zeros(size, dtype=int)  # characters of a Chinese word; 0 of others
        self._han[: len(tokenizer)] = [len(word) * is_han(word) for word in self._words.texts]

    @classmethod
    def from_pretrained(
        cls,
        model: str | None = None,
        *,
        generator: str | None = None,
        discriminator: str | None = None,
        runtime: str = TORCH,
        confusion_file: str | None = None,
        error_rate: float | None = None,
        **options: Any,
    ) -> Corrector:
        """Loads a run, a checkpoint, a joint model or two towers; or a model that was fine-tuned to correct. `options`
        are those of the class; `error_rate` moves the discriminator's probabilities as in `Detector`, and is not for a
        fine-tuned model, which has learned how many words are wrong."""
        settings: dict[str, Any] = {"confusion_file": None}
        if confusion_file is not None:
            options["confusions"] = read_confusions(confusion_file)
            settings["confusion_file"] = hash_files([confusion_file])
        place = None if model is None else identify(model)
        if place is not None and place.task == "correction":
            if generator or discriminator or error_rate is not None:
                raise ValueError(
                    f"generator, discriminator and error_rate are for a pair, but {model} was fine-tuned to correct. "
                    "Leave out flags and thresholds of a pair."
                )
            name = str(place.model)
            if runtime == TORCH:
                trained = load_fine_tuned(CorrectionKind.auto_class, name, ()).eval()
                if torch.accelerator.is_available():
                    trained.to(torch.accelerator.current_accelerator())
            else:
                trained = load_onnx(name, quantized=runtime == "onnx-int8")
            corrector = cls(_TrainedRanker(trained), load_tokenizer(name), **options)
        else:
            fills, detector, tokenizer = detection.load_for_detection(model, generator, discriminator, runtime=runtime)
            settings["error_rate"] = detection.ERROR_RATE if error_rate is None else error_rate
            odds = detection.log_odds(settings["error_rate"])
            mask_id = int(tokenizer.mask_token_id)
            shift = odds - detection.log_odds(detection.REPLACED_RATE)
            ranker = _PairRanker(fills, detector, mask_id, shift, options.get("batch_size", 32))
            corrector = cls(ranker, tokenizer, **{"margin": -odds, **options})
        corrector.settings = {**settings, "top_k": corrector.top_k}
        return corrector

    def tell(self, text: str, errors: list[tuple[Any, ...]]) -> dict[str, Any]:
        """`target`, the corrected text, and `errors`, as (wrong, right, first character of wrong in the source)."""
        target = replace_parts(text, ((at, at + len(wrong), right) for at, wrong, right in errors))
        return {"target": target, "errors": [(wrong, right, at) for at, wrong, right in errors]}

    def judge(self, pieces: list[str]) -> list[list[tuple[Any, ...]]]:
        errors = [list[tuple[Any, ...]]() for _ in pieces]
        texts = list(pieces)
        active = list(range(len(pieces)))
        for _ in range(_MOST_CHANGES):
            settled = [_corrected(errors[row]) for row in active]
            changes = self.propose([texts[row] for row in active], settled, self.threshold)
            accepted = []
            for row, spans, of_text in zip(active, settled, changes, strict=True):
                best = max(of_text, key=lambda change: change.gain, default=None)
                if best is None or best.gain <= self.margin:
                    continue
                accepted.append(row)
                start = best.unit.start
                stop = best.unit.stop
                text = texts[row]
                before = zip(errors[row], spans, strict=True)
                moved = sum(len(span) - len(wrong) for (_, wrong, _), span in before if span.start < start)
                errors[row].append((start - moved, text[start:stop], best.right))
                errors[row].sort()
                texts[row] = text[:start] + best.right + text[stop:]
            active = accepted
        return errors

    @torch.no_grad()
    def propose(
        self, texts: Sequence[str], settled: Sequence[Sequence[range]] | None = None, threshold: float = 0.0
    ) -> list[list[Change]]:
        """For each text (no longer than a piece) the words that are suspected with more than `threshold`, each with
        the best word for its place. `settled` are characters that stay."""
        changes: list[list[Change]] = [[] for _ in texts]
        least = torch.tensor(threshold, dtype=torch.float64).logit().item()
        for places, encoding, inputs in self.batches(texts):
            suspicion = self.ranker.suspicion(inputs).tolist()
            suspects: list[tuple[int, Unit, float]] = []  # row of the batch
            for row, place in enumerate(places):
                text = texts[place]
                kept = [*(settled[place] if settled else ()), *self.confusions.protected_in(text)]
                units = []
                for unit in find_units(text, encoding.encodings[row]):
                    logit = suspicion[row][unit.first]
                    if logit > least and self._may_change(text, unit, int(inputs["input_ids"][row, unit.first]), kept):
                        units.append((row, unit, logit))
                suspects += sorted(units, key=lambda suspect: -suspect[2])[:_SUSPECTS]
            for begin in range(0, len(suspects), self.batch_size):
                tried = suspects[begin : begin + self.batch_size]
                rows = torch.tensor([row for row, _, _ in tried], device=self.device)
                at = torch.tensor([unit.first for _, unit, _ in tried], device=self.device)
                own = inputs["input_ids"][rows, at].tolist()
                words = [texts[places[row]][unit.start : unit.stop] for row, unit, _ in tried]
                allowed = np.stack([self._allowed(word, index) for word, index in zip(words, own, strict=True)])
                of_suspects = {name: ids[rows] for name, ids in inputs.items()}
                ids, gains = self.ranker.gains(of_suspects, at, torch.from_numpy(allowed).to(self.device), self.top_k)
                best = gains.max(dim=1)
                chosen = ids.gather(1, best.indices[:, None])[:, 0].tolist()
                proposed = zip(tried, words, chosen, best.values.tolist(), strict=True)
                for (row, unit, logit), word, index, gain in proposed:
                    if gain > -math.inf:
                        right = in_case_of(word, self._words.texts[index])
                        changes[places[row]].append(Change(unit, right, logit, gain))
        return changes

    def _may_change(self, text: str, unit: Unit, index: int, kept: Sequence[range]) -> bool:
        """Whether a unit is a word of one known token outside of what stays."""
        is_free = not any(span.start < unit.stop and unit.start < span.stop for span in kept)
        is_free = is_free and may_change(text, text[unit.start : unit.stop])
        return is_free and unit.last - unit.first == 1 and bool(self._words.is_word[index])

    def _allowed(self, word: str, own: int) -> np.ndarray:
        """The tokens that may stand in a word's place, bool (V,)."""
        words = self._words
        continues = bool(words.continues[own])
        rights = self.confusions.rights.get(word, self.confusions.rights.get(words.texts[own]))
        if rights is not None:
            allowed = np.zeros_like(words.is_word)
            known = [words.find(right, continues) for right in rights]
            allowed[[index for index in known if index is not None]] = True
        else:
            allowed = words.is_word & (self._han == self._han[own]) & (words.continues == continues)
        allowed[own] = False
        return allowed

    def calibrate(self, sources: Sequence[str], rights: Sequence[str], rate: float) -> dict[str, Any]:
        """Chooses and sets threshold and margin: of those that change at most a share `rate` of the right sentences
        (the corrected ones, each counted once), the two by which the first change is right in most of the wrong ones.
        Of each kind, 1,000 sentences are drawn where there are more, and cut to one piece. Returns both, with what
        they do."""
        draw = random.Random(0)
        all_clean = list(dict.fromkeys(rights))
        clean = self.propose(draw.sample(all_clean, min(len(all_clean), _CALIBRATED_ON)))
        pairs = [pair for pair in zip(sources, rights, strict=True) if pair[0] != pair[1]]
        pairs = draw.sample(pairs, min(len(pairs), _CALIBRATED_ON))
        wrong = []
        for (source, right), changes in zip(pairs, self.propose([source for source, _ in pairs]), strict=True):
            wrong.append([(change, _is_right(change, source, right)) for change in changes])
        highest = [max(change.suspicion for change in changes) for changes in clean if changes] or [0.0]
        options: list[tuple[int, float, float, float]] = []
        for least in np.quantile(highest, np.linspace(0, 1, 21)).tolist():
            tried = ([change.gain for change in changes if change.suspicion > least] for changes in clean)
            gains = sorted((max(of_text, default=-math.inf) for of_text in tried), reverse=True)
            margin = max(gains[min(int(rate * len(gains)), len(gains) - 1)], _ANY_GAIN)
            hits = 0
            for of_pair in wrong:
                first = ((change.gain, is_right) for change, is_right in of_pair if change.suspicion > least)
                gain, is_right = max(first, default=(-math.inf, False))
                hits += is_right and gain > margin
            options.append((hits, least, margin, sum(gain > margin for gain in gains) / len(gains)))
        hits, least, self.margin, made = max(options, key=lambda option: option[0])
        self.threshold = 1 / (1 + math.exp(-least))
        if not hits:
            logger.warning(
                "These thresholds correct nothing: "
                f"in none of {len(pairs):,} wrong sentences the first change was right."
            )
        return {
            "threshold": self.threshold,
            "margin": self.margin,
            "false_positive_rate": made,
            "wrong_sentences_corrected_first": hits / len(pairs) if pairs else 0.0,
        }


def _is_right(change: Change, source: str, right: str) -> bool:
    """Whether a change makes a word of a source what it is in the right text."""
    changed = replace_parts(source, [(change.unit.start, change.unit.stop, change.right)])
    before, after = (sum(one != other for one, other in align(text, right)) for text in (source, changed))
    return after < before


def _corrected(errors: Sequence[tuple[Any, ...]]) -> list[range]:
    """Where the right words of errors stand in the corrected text."""
    moved = 0
    spans = []
    for at, wrong, right in errors:
        spans.append(range(at + moved, at + moved + len(right)))
        moved += len(right) - len(wrong)
    return spans


# ---- The command ----


@dataclass
class CorrectArguments(detection.TextArguments):
    """Which model, which texts, and what is changed in them."""

    confusion_file: str | None = flag(None, "Rows `wrong right right ...`; `x x` protects x.")
    margin: float | None = flag(
        None, "What the right word must gain, in logarithms (by --error_rate; trained: 0).", "(-inf, inf)"
    )
    top_k: int | None = flag(None, "Proposals that are tried for a word (10).", "[1, inf)")
    score: str | None = flag(None, "Score corrections of a table with the columns `text` and `right`.")
    sighan13: bool = flag(False, f"Score no change to {' or '.join(SIGHAN13)}, as papers do there.")

    @property
    def inputs(self) -> list[str | None]:
        return [*super().inputs, self.confusion_file]

    def __post_init__(self) -> None:
        check_arguments(self, rules=RULES)
        super().__post_init__()


RULES = (
    *detection.TEXT_RULES,
    Rule("score", "Each says what is read.", excludes=("texts", "file", "calibrate")),
    Rule("score", "It prints a table.", excludes=("output_file",)),
    Rule("margin", "It is chosen.", excludes=("calibrate",), changes_nothing=True),
    Rule("sighan13", "", needs=("score",), changes_nothing=True),
)


def main(argv: list[str]) -> None:
    (arguments,) = parse_arguments((CorrectArguments,), argv, __doc__)
    disable_progress_bar()
    named = {name: getattr(arguments, name) for name in ("generator", "discriminator", "runtime", "confusion_file")}
    make = partial(Corrector.from_pretrained, arguments.model, **named)
    corrector = detection.open_judge(make, (*detection.JUDGED_BY, "margin", "top_k"), arguments)
    if arguments.score:
        sources, rights = read_pairs(arguments.score)
        check_known(arguments.score, *corrector.count_unknown(sources))
        predictions = [result["target"] for result in corrector.results(sources)]
        scores = score_correction(sources, predictions, rights, SIGHAN13 if arguments.sighan13 else "")
        print(json.dumps(scores) if arguments.format == "json" else describe_scores(scores))
        return
    console = Console(highlight=False)
    detection.run_on_texts(corrector, arguments, lambda result: console.print(_marked(result), soft_wrap=True))


def _marked(result: dict[str, Any]) -> Text:
    """A text with its wrong words struck out, and the right ones behind them."""
    marked = Text()
    end = 0
    for wrong, right, at in result["errors"]:
        marked.append(result["source"][end:at]).append(f"[-{wrong}-]", "red").append(f"{{+{right}+}}", "green")
        end = at + len(wrong)
    marked.append(result["source"][end:])
    return marked.append(f"  (skipped: {result['skipped']})", "dim") if "skipped" in result else marked


if __name__ == "__main__":
    run(main)
