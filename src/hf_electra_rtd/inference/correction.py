"""Corrects wrong words of texts with a model that was fine-tuned for it: words in place of others, such as their and
there, or Chinese characters that sound or look alike.

    hf-electra-rtd correct --model runs/corrector "The river was old and the mill was young."
    hf-electra-rtd correct --model runs/corrector --file letters.txt --output_file corrected.jsonl

A JSON line holds `source`, `target` and `errors`, as [wrong, right, first character of wrong in `source`]. If a part
of a text cannot be judged, `skipped` says why. Without texts and --file, lines of the standard input are read.
`--model` is what `finetune --task_kind correction` wrote: the directory of its run, or a directory or Hub id of the
model. `misspell` makes the pairs of sentences that it learns from.

--confusion_file says what words may be confused with, in rows `wrong right right ...`; `x x` protects the word x, of
any length. --score PAIRS corrects the column `text` of a table and scores the result by its column `right`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from hf_electra_rtd.base.cli import Rule, check_arguments, flag, parse_arguments, required, run
from hf_electra_rtd.base.files import check_output
from hf_electra_rtd.data.confusion import Confusions, read_confusions
from hf_electra_rtd.data.tokenization import check_known, count_unknown_in, load_tokenizer
from hf_electra_rtd.data.units import find_units, in_case_of, replace_parts, replacement
from hf_electra_rtd.data.words import whole_words
from hf_electra_rtd.encoders.families import inputs_of
from hf_electra_rtd.finetuning.correction_scores import SIGHAN13, describe_scores, read_pairs, score_correction
from hf_electra_rtd.finetuning.heads import load_fine_tuned
from hf_electra_rtd.finetuning.kinds.correction import CorrectionKind
from hf_electra_rtd.inference.judging import TEXT_RULES, TextArguments, TextJudge, run_on_texts
from hf_electra_rtd.ops import best_and_lead
from hf_electra_rtd.pair.onnx_model import TORCH, load_onnx
from hf_electra_rtd.pair.places import identify


class Corrector(TextJudge):
    """Corrects texts word by word; of Chinese, character by character.

        Corrector.from_pretrained("runs/corrector")("今天新情很好")
        # {"source": "今天新情很好", "target": "今天心情很好", "errors": [("新", "心", 2)]}

    A word that is wrong with a probability above `threshold` gives way to the likeliest token in its place if that
    gains more than `margin` over the word itself, in logarithms of probabilities. With 0 for both, texts become what
    `predict` makes of them. Only words that are one token are changed, and only into others of one token. In texts
    with Chinese, characters become as many characters, and other words stay; elsewhere words of letters become words
    of letters.

    Args:
        model: what `finetune --task_kind correction` trained, or its graph; see `from_pretrained`.
        confusions: what words may be confused with; those without a row may become anything.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        *,
        threshold: float = 0.0,
        margin: float = 0.0,
        confusions: Confusions | None = None,
        batch_size: int = 32,
        max_length: int = 128,
    ) -> None:
        super().__init__(model, tokenizer, batch_size, max_length)
        self.threshold = threshold
        self.margin = margin
        self.confusions = confusions or Confusions({})
        self._words = whole_words(tokenizer)

    @classmethod
    def from_pretrained(
        cls, model: str, *, runtime: str = TORCH, confusion_file: str | None = None, **options: Any
    ) -> Corrector:
        """Loads a model that was fine-tuned to correct, or with another `runtime` of `RUNTIMES` its graph, from the
        directory of an export; `options` are those of the class. Raises ValueError for other models, such as a pair
        that was only pre-trained."""
        place = identify(model)
        if place.task != "correction":
            raise place.error(
                "a model that was fine-tuned to correct: make pairs of sentences by `hf-electra-rtd misspell`, and "
                "train on them by `hf-electra-rtd finetune --task_kind correction`"
            )
        if confusion_file is not None:
            options["confusions"] = read_confusions(confusion_file)
        name = str(place.model)
        trained: Any
        if runtime != TORCH:
            trained = load_onnx(name, runtime)
        else:
            trained = load_fine_tuned(CorrectionKind.auto_class, name, ()).eval()
            if torch.accelerator.is_available():
                trained.to(torch.accelerator.current_accelerator())
        return cls(trained, load_tokenizer(name), **options)

    def tell(self, text: str, errors: list[tuple[Any, ...]]) -> dict[str, Any]:
        """`target`, the corrected text, and `errors`, as (wrong, right, first character of wrong in the source)."""
        target = replace_parts(text, ((at, at + len(wrong), right) for at, wrong, right in errors))
        return {"target": target, "errors": [(wrong, right, at) for at, wrong, right in errors]}

    def judge(self, pieces: list[str]) -> list[list[tuple[Any, ...]]]:
        errors: list[list[tuple[Any, ...]]] = [[] for _ in pieces]
        for places, encoding, inputs in self.batches(pieces):
            output = self.model(**inputs_of(self.model.config, inputs), whole=True)
            shares_BL = output.detection_logits.cpu().double().sigmoid().tolist()  # MPS has no float64
            best_BL2 = best_and_lead(output.logits, inputs["input_ids"]).cpu().tolist()
            rows = zip(places, encoding.encodings, shares_BL, best_BL2, output.logits, strict=True)
            for place, *of_text in rows:
                errors[place] = list(self._errors(pieces[place], *of_text))
        return errors

    def _errors(
        self, text: str, encoding: Any, shares_L: list[float], best_L2: list[list[float]], logits_LV: Tensor
    ) -> Iterator[tuple[int, str, str]]:
        """The first character of each word that changes, the word, and what takes its place. L tokens, V tokens of the
        vocabulary."""
        protected = self.confusions.protected_in(text)
        ids = encoding.ids
        for start, stop, first, last in find_units(text, encoding):
            is_protected = any(span.start < stop and start < span.stop for span in protected)
            if is_protected or last - first > 1 or shares_L[first] <= self.threshold:
                continue
            word = text[start:stop]
            best, gain = best_L2[first]
            rights = self._rights(word, ids[first])
            if rights is not None:
                gains = logits_LV[first, rights] - logits_LV[first, ids[first]]
                gain, best = max(zip(gains.tolist(), rights, strict=True), default=(-math.inf, ids[first]))
            if best != ids[first] and gain > self.margin:
                right = replacement(text, word, self.tokenizer, int(best))
                if right is not None:
                    yield start, word, right

    def _rights(self, word: str, own: int) -> list[int] | None:
        """The tokens of what a word, whose token is `own`, may be confused with; None where that may be anything."""
        names = (word, self._words.texts[own], word.lower())
        rights = next((self.confusions.rights[name] for name in names if name in self.confusions.rights), None)
        if rights is None:
            return None
        continues = bool(self._words.continues[own])
        known = (self._words.find(in_case_of(word, right), continues) for right in rights)
        return [index for index in known if index not in (None, own)]


# ---- The command ----


@dataclass(kw_only=True)
class CorrectArguments(TextArguments):
    """Which model, which texts, and what is changed in them."""

    model: str = required("A run of `finetune --task_kind correction`, or a directory or Hub id of its model.")
    threshold: float = flag(0.0, "A word is changed only if it is wrong with more than this probability.", "[0, 1]")
    confusion_file: str | None = flag(None, "Rows `wrong right right ...`; `x x` protects x.")
    margin: float = flag(0.0, "What the right word must gain, in logarithms of probabilities.", "(-inf, inf)")
    score: str | None = flag(None, "Score corrections of a table with the columns `text` and `right`.")
    sighan13: bool = flag(False, f"Score no change to {' or '.join(SIGHAN13)}, as papers do there.")

    def __post_init__(self) -> None:
        check_arguments(self, rules=RULES)
        if self.output_file is not None:
            check_output(self.output_file, self.file, self.model, self.confusion_file)


RULES = (
    *TEXT_RULES,
    Rule("score", "Each says what is read.", excludes=("texts", "file")),
    Rule("score", "It prints a table.", excludes=("output_file",)),
    Rule("sighan13", "", needs=("score",), changes_nothing=True),
)
_OPTIONS = ("runtime", "confusion_file", "threshold", "margin", "max_length", "batch_size")


def main(argv: list[str]) -> None:
    (arguments,) = parse_arguments((CorrectArguments,), argv, __doc__)
    disable_progress_bar()
    options = {name: getattr(arguments, name) for name in _OPTIONS}
    corrector = Corrector.from_pretrained(arguments.model, **options)
    if arguments.score:
        sources, rights = read_pairs(arguments.score)
        check_known(arguments.score, *count_unknown_in(corrector.tokenizer, sources))
        predictions = [result["target"] for result in corrector.results(sources)]
        scores = score_correction(sources, predictions, rights, SIGHAN13 if arguments.sighan13 else "")
        print(json.dumps(scores) if arguments.format == "json" else describe_scores(scores))
        return
    console = Console(highlight=False)
    run_on_texts(corrector, arguments, lambda result: console.print(_marked(result), soft_wrap=True))


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
