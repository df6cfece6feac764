"""Corrects wrong words of texts with a model that was fine-tuned for it: confused words, such as their and there, or
Chinese characters that sound or look alike.

    hf-electra-rtd correct --model runs/corrector "The river was old and the mill was young."
    hf-electra-rtd correct --model runs/corrector --file letters.txt --output_file corrected.jsonl

A JSON line holds `source`, `target`, and `errors`, as [wrong word, right word, position in `source` of the first
character of the wrong word]. If a part of a text cannot be judged, `skipped` says why. Without texts and --file, lines
of the standard input are read. `--model` is the output of `finetune --task_kind correction`: the directory of the run,
or a directory or Hub id of the model. `misspell` makes the pairs of sentences for its training.

--confusion_file lists which words may be meant by a wrong word, in rows `wrong right right ...`; a row `x x` protects
the word x, which may have any length. --score PAIRS corrects the column `text` of a table and scores the result
against its column `right`.
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
    """Corrects texts word by word, and Chinese texts character by character.

        Corrector.from_pretrained("runs/corrector")("今天新情很好")
        # {"source": "今天新情很好", "target": "今天心情很好", "errors": [("新", "心", 2)]}

    A word that is wrong with a probability above `threshold` is replaced by the likeliest token in its place if the
    log-probability of that token is higher than that of the word by more than `margin`. With 0 for both, the results
    are those of `predict`. Only words of one token are changed, and only into words of one token. In texts with
    Chinese characters, only these are changed, into as many characters; in other texts, words of letters become words
    of letters.

    Args:
        model: a model that `finetune --task_kind correction` trained, or its graph; see `from_pretrained`.
        confusions: confusion sets, which limit the corrections of a word. Words without a row may become any word.
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
        """Loads a model that was fine-tuned to correct. With a `runtime` of `RUNTIMES` other than torch, loads its
        graph from the directory of an export. `options` are arguments of the class. Raises ValueError for other
        models, such as a pair that was only pre-trained."""
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
        """Returns `target`, the corrected text, and `errors`, as tuples (wrong word, right word, position in the
        source of the first character of the wrong word)."""
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
        """Yields for each word that changes the position of its first character, the word, and its replacement. The
        text has L tokens, the vocabulary V."""
        protected = self.confusions.protected_in(text)
        ids = encoding.ids
        for start, stop, first, last in find_units(text, encoding):
            is_protected = any(span.start < stop and start < span.stop for span in protected)
            is_unknown = ids[first] == self.tokenizer.unk_token_id
            if is_protected or is_unknown or last - first > 1 or shares_L[first] <= self.threshold:
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
        """Returns the tokens of the words that may be meant by a word whose token is `own`; None if it may be any."""
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
    confusion_file: str | None = flag(
        None, "File with the allowed corrections, in rows `wrong right right ...`; a row `x x` protects x."
    )
    margin: float = flag(
        0.0, "A word is changed only if the new word raises the log-probability by more than this.", "(-inf, inf)"
    )
    score: str | None = flag(None, "Table with the columns `text` and `right`, on which corrections are scored.")
    sighan13: bool = flag(False, f"Do not score changes to {' or '.join(SIGHAN13)}, as papers do on SIGHAN 2013.")

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
    """Returns a text with its wrong words struck out, each followed by the right one."""
    marked = Text()
    end = 0
    for wrong, right, at in result["errors"]:
        marked.append(result["source"][end:at]).append(f"[-{wrong}-]", "red").append(f"{{+{right}+}}", "green")
        end = at + len(wrong)
    marked.append(result["source"][end:])
    return marked.append(f"  (skipped: {result['skipped']})", "dim") if "skipped" in result else marked


if __name__ == "__main__":
    run(main)
