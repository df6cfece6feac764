"""The code that `detect --as_is`, `correct` and `score` share: flags, reading texts, cutting them into pieces, and
writing results as lines."""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TextIO

import torch
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.base.cli import Rule, flag
from hf_electra_rtd.base.files import writing
from hf_electra_rtd.data.reader import read_lines
from hf_electra_rtd.data.tokenization import check_known, count_unknown_in
from hf_electra_rtd.data.units import cut_text, find_units
from hf_electra_rtd.encoders.families import max_length as longest
from hf_electra_rtd.pair.onnx_model import RUNTIMES, TORCH


EMPTY = "it is empty"  # a reason to skip a text
_LINES_AT_ONCE = 256


@dataclass
class TextArguments:
    """Which texts, and how they are read."""

    texts: list[str] = flag(
        [], "Texts, each in quotes. Without TEXT and --file: the lines of the standard input.", words="TEXT"
    )
    runtime: str = flag(TORCH, "onnx, onnx-int8: the model is a directory of an export.", choices=RUNTIMES)
    file: str | None = flag(None, "A text file, UTF-8, one text a line, in place of TEXT.")
    format: str | None = flag(
        None, "text or json. By default text for TEXT, else JSON lines.", choices=("text", "json")
    )
    output_file: str | None = flag(None, "JSON lines; by default standard output.")
    max_length: int = flag(
        128, "Sequence length in tokens; longer texts are cut, at the ends of sentences if possible.", "[1, inf)"
    )
    batch_size: int = flag(32, "Number of pieces of texts that are read at a time.", "[1, inf)")


TEXT_RULES = (
    Rule("file", "Each says what is read.", excludes=("texts",)),
    Rule("output_file", "It holds JSON lines, one for each text.", excludes=("format=text",)),
)


class TextJudge(ABC):
    """Base class of judges of texts of any length. Texts are cut into pieces of at most `max_length` tokens, at the
    ends of sentences if possible, and `batch_size` pieces are read at a time."""

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, batch_size: int, max_length: int) -> None:
        self.model = model
        self.tokenizer: Any = tokenizer
        self.batch_size = batch_size
        self.max_length = min(max_length, longest(model.config))

    @abstractmethod
    def judge(self, pieces: list[str]) -> list[list[tuple[Any, ...]]]:
        """Returns the findings for each piece: the errors, or all words, as tuples that begin with the position of the
        first character."""

    @abstractmethod
    def tell(self, text: str, findings: list[tuple[Any, ...]]) -> dict[str, Any]:
        """Returns the result for a text from the findings of `judge` for its pieces."""

    def __call__(self, texts: str | Sequence[str]) -> Any:
        """Returns the result for a text, or a list of results for several texts. A result is a dict of `source`, the
        results of `tell`, and `skipped`, the reason if the text or a part of it could not be judged. Warns of texts
        that are unknown to the vocabulary (see `check_known`)."""
        if isinstance(texts, str):
            return self([texts])[0]
        given = [*texts]
        is_table = isinstance(texts, Mapping) or getattr(texts, "ndim", 1) > 1
        if is_table or not all(isinstance(text, str) for text in given):
            raise TypeError("Give a text, or a list of texts, as strings. Of a table, give one column.")
        check_known("The texts", *count_unknown_in(self.tokenizer, given), refuses=False)
        return self.results(given)

    @torch.no_grad()
    def results(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Returns the result for each of several texts, without the warning of a call."""
        cut = list(map(self.pieces, texts))
        pieces = [(row, begin, piece) for row, (of_text, _) in enumerate(cut) for begin, piece in of_text]
        findings: list[list[tuple[Any, ...]]] = [[] for _ in texts]
        training = self.model.training
        self.model.eval()
        try:
            judged = self.judge([piece for *_, piece in pieces])
        finally:
            if training:
                self.model.train()
        for (row, begin, _), of_piece in zip(pieces, judged, strict=True):
            findings[row] += [(begin + at, *rest) for at, *rest in of_piece]
        results = []
        for text, of_text, (_, why) in zip(texts, findings, cut, strict=True):
            result = {"source": text, **self.tell(text, of_text)}
            if why:
                result["skipped"] = why
            results.append(result)
        return results

    def pieces(self, text: str) -> tuple[list[tuple[int, str]], str | None]:
        """Returns the pieces of a text as pairs (position of the first character, piece), and the reason why the text,
        or a part of it, cannot be judged, else None."""
        if not text.strip():
            return [], EMPTY
        encoding = self._encode([text]).encodings[0]
        ids = encoding.ids  # the property makes a new list at each access
        if all(ids[unit.first] == self.tokenizer.unk_token_id for unit in find_units(text, encoding)):
            return [], "the vocabulary has none of its words"
        if len(encoding) <= self.max_length:
            return [(0, text)], None
        spans = cut_text(text, self.tokenizer, self.max_length)
        pieces = [(first, text[first:last]) for first, last in spans]
        encodings = self._encode([piece for _, piece in pieces]).encodings
        if any(len(encoding) > self.max_length for encoding in encodings):
            return pieces, f"a part without a place to cut has more than {self.max_length} tokens"
        return pieces, None

    def _encode(self, texts: list[str], **options: Any) -> Any:
        return self.tokenizer(texts, verbose=False, split_special_tokens=True, **options)

    def batches(self, texts: Sequence[str]) -> Iterator[tuple[list[int], Any, dict[str, torch.Tensor]]]:
        """Yields batches of texts of similar length: their places in `texts`, their encoding, and tensors (B, L)."""
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        for begin in range(0, len(order), self.batch_size):
            places = order[begin : begin + self.batch_size]
            options = {"padding": True, "padding_side": "right", "truncation": True, "max_length": self.max_length}
            encoding = self._encode([texts[place] for place in places], **options)
            device = self.model.device
            yield places, encoding, {name: torch.tensor(ids, device=device) for name, ids in encoding.items()}


def read_texts(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], file: str | None, size: int, refuses: bool
) -> Iterator[list[str]]:
    """Yields `size` texts at a time: the given ones, or else the lines of a file or of the standard input (one at a
    time where a person types them). After the last ones, `check_known` warns of texts that are unknown to the
    vocabulary, or refuses them."""
    lines = iter(texts or read_lines(file))
    is_typed = not texts and file is None and sys.stdin.isatty()
    num_unknown = 0
    num_tokens = 0
    while some := list(islice(lines, 1 if is_typed else size)):
        of_unknown, of_all = count_unknown_in(tokenizer, some)
        num_unknown += of_unknown
        num_tokens += of_all
        yield some
    check_known(file or "The texts", num_unknown, num_tokens, refuses=refuses)


def run_on_texts(judge: TextJudge, arguments: TextArguments, show: Callable[[dict[str, Any]], None]) -> None:
    """Prints the result of a judge for each text, by `show` or as a JSON line, and at the end how many texts were
    skipped. Raises ValueError for a file, or the standard input, that is unknown to the vocabulary (see
    `check_known`); the output file is then not written."""
    total = 0
    skipped: Counter[str] = Counter()
    is_shown = bool(arguments.texts) and arguments.output_file is None
    is_text = (arguments.format or ("text" if is_shown else "json")) == "text"
    batches = read_texts(judge.tokenizer, arguments.texts, arguments.file, _LINES_AT_ONCE, not arguments.texts)
    with _opened(arguments.output_file) as output:
        for some in batches:
            total += len(some)
            for result in judge.results(some):
                skipped.update([result["skipped"]] if "skipped" in result else [])
                if is_text:
                    show(result)
                else:
                    print(json.dumps(result, ensure_ascii=False), file=output, flush=True)
        for why, count in skipped.items():
            print(f"{count:,} of {total:,} texts skipped: {why}.", file=sys.stderr)


@contextmanager
def _opened(path: str | None) -> Iterator[TextIO]:
    """Opens a file that is written whole or not at all, or the standard output if `path` is None."""
    if path is None:
        yield sys.stdout
        return
    with writing(path) as partial, open(partial, "w", encoding="utf-8", newline="\n") as file:
        yield file
