"""Makes pairs of wrong and right sentences from text. Confusion files list which words are mistaken for which.

    hf-electra-rtd misspell --files news.txt --confusion_files sound.txt --shares 0.9 \\
        --output_file pairs.tsv

Each sentence gets one error. --shares gives the share of the errors that comes from each confusion file. For the
remaining share, the wrong word is drawn from the right words of all rows. The place of the error is drawn from the
words of the sentence that are a right word in a row of that file (case does not matter). Words that a row `x x`
protects stay as they are. So does a share of the sentences (--clean_share): a model that saw no right sentences would
find errors everywhere. Sentences of fewer than 6 or more than 128 characters are left out. The table has the columns
`text` and `right`, as `finetune --task_kind correction` reads them. The recipe is LEMON's (Wu et al. 2023, arXiv
2305.17721): 40 % of its errors had the same sound as the right word, 30 % a similar sound, 20 % were alike in strokes,
and 10 % were random.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from hf_electra_rtd.base.cli import check_arguments, flag, parse_arguments, required, run
from hf_electra_rtd.base.files import check_output, writing
from hf_electra_rtd.data.reader import read_lines
from hf_electra_rtd.data.text import parse_sources, read_text
from hf_electra_rtd.data.units import MARKS, WORD, in_case_of, is_han, may_change


_CLOSE = "。！？”’」』）"  # these belong to the sentence before them  # noqa: RUF001
_BETWEEN = re.compile(rf"(?<=[{_CLOSE}])(?<=[。！？].|.[。！？])(?![{_CLOSE}])|(?<=[.!?।॥؟۔።፧။។։])\s+")  # noqa: RUF001
_SHORTEST = 6  # characters of a sentence
_LONGEST = 128


@dataclass(frozen=True)
class Confusions:
    """Confusion sets. `rights` maps a written word, or Chinese character, to those that may be meant by it.
    `protected` are words that stay as they are."""

    rights: Mapping[str, tuple[str, ...]]
    protected: frozenset[str] = frozenset()

    @cached_property
    def wrongs(self) -> dict[str, list[str]]:
        """The inverse of `rights`: maps a right word to the wrong words that may stand in its place."""
        found: dict[str, list[str]] = {}
        for wrong, rights in self.rights.items():
            for right in rights:
                found.setdefault(right, []).append(wrong)
        return found

    def wrongs_of(self, word: str) -> list[str]:
        """Returns the wrong words that may stand in a word's place. A word without a row takes the row of its lower
        case, with the results in the case of the word. A Chinese character is replaced by Chinese ones only."""
        found = self.wrongs.get(word)
        found = [in_case_of(word, wrong) for wrong in self.wrongs.get(word.lower(), ())] if found is None else found
        return [wrong for wrong in found if is_han(wrong) == is_han(word)]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        letter = rf"[\w{re.escape(MARKS)}]"
        whole = (
            word if is_han(word) else f"(?<!{letter}){word}(?!{letter})" for word in map(re.escape, self.protected)
        )
        found = "|".join(sorted(whole, key=len, reverse=True)) or "(?!)"
        return re.compile(f"(?=({found}))", re.IGNORECASE)  # a lookahead, because words may overlap

    def protected_in(self, text: str) -> list[range]:
        """Returns the ranges of characters that protected words occupy in a text. Case does not matter."""
        return [range(*match.span(1)) for match in self._pattern.finditer(text)]


def read_confusions(path: str) -> Confusions:
    """Reads rows `wrong right right ...`, in UTF-8, with tabs or spaces between columns. A column of several Chinese
    characters stands for each of them. A row `x x` protects x, which may have any length. Lines that begin with # are
    comments.

    Raises ValueError, with the line, for a row of one column, and for a row with a Chinese wrong word in which the
    words are not single Chinese characters. A file without a row is a ValueError, too."""
    rights: dict[str, tuple[str, ...]] = {}
    protected = set()
    for number, line in enumerate(read_lines(path), 1):
        wrong, *columns = line.split() or ["#"]
        if wrong.startswith("#"):
            continue
        if not columns:
            raise ValueError(f"{path}, line {number} has one column. Write `wrong right right ...` (`x x`: x stays).")
        if columns == [wrong]:
            protected.add(wrong)
            continue
        found = [part for column in columns for part in (column if is_han(column) else [column])]
        if is_han(wrong) and (len(wrong) > 1 or not all(map(is_han, found))):
            raise ValueError(f"{path}, line {number}: {line.strip()!r} must consist of single Chinese characters.")
        rights[wrong] = tuple(dict.fromkeys([*rights.get(wrong, ()), *(part for part in found if part != wrong)]))
    if not rights and not protected:
        raise ValueError(f"{path} has no row. Write `wrong right right ...`.")
    return Confusions(rights, frozenset(protected))


class Misspeller:
    """Puts one error into a sentence, as the module docstring describes. Raises ValueError for shares that do not fit
    the sets."""

    def __init__(self, sets: Sequence[Confusions], shares: Sequence[float], seed: int = 0) -> None:
        if len(shares) != len(sets) or min(shares) < 0 or sum(shares) > 1 + 1e-9:
            raise ValueError(f"shares is {list(shares)}: it needs one for each file, with a sum of 1 at most.")
        self.sets = sets
        self.shares = [*shares, max(1 - sum(shares), 0)]
        self.draw = random.Random(seed)
        known = dict.fromkeys(word for one in sets for word in one.wrongs)  # the right words, which surely are words
        self._strangers = {is_chinese: [word for word in known if is_han(word) == is_chinese] for is_chinese in (0, 1)}

    def __call__(self, sentence: str) -> str:
        """Returns the sentence with an error in it, or unchanged if no kind of error has a place in it."""
        kept = [span for one in self.sets for span in one.protected_in(sentence)]
        words = [word for word in WORD.finditer(sentence)
                 if may_change(sentence, word[0])
                 and not any(word.start() < span.stop and span.start < word.end() for span in kept)]  # fmt: skip
        usable: list[list[tuple[Any, Sequence[str]]]] = []
        for wrongs_of in [*(one.wrongs_of for one in self.sets), lambda word: self._strangers[is_han(word)]]:
            rows = ((word, wrongs_of(word[0])) for word in words)
            usable.append([(word, others) for word, others in rows if any(other != word[0] for other in others)])
        weights = [share * bool(of_kind) for share, of_kind in zip(self.shares, usable, strict=True)]
        if not any(weights):
            return sentence
        word, others = self.draw.choice(self.draw.choices(usable, weights)[0])
        while (wrong := self.draw.choice(others)) == word[0]:
            pass
        return sentence[: word.start()] + wrong + sentence[word.end() :]


# ---- The command ----


@dataclass
class MisspellArguments:
    """Which text, and which errors it gets."""

    files: list[str] = required("Text: files, directories or globs, as `pretrain --train_files`.")
    confusion_files: list[str] = required(
        "Confusion files with rows `wrong right right ...`, one file for each kind of error."
    )
    output_file: str = required("The table, .tsv.")
    shares: list[float] | None = flag(
        None,
        "Share of the errors that comes from each file; the others are random words. Default: equal, none random.",
        "[0, 1]",
    )
    clean_share: float = flag(0.3, "Share of the sentences that stay unchanged.", "[0, 1]")
    max_pairs: int | None = flag(None, "Stop after this many sentences.", "[1, inf)")
    seed: int = flag(0, "Seed of places and errors.", "[0, 4294967295]")

    def __post_init__(self) -> None:
        check_arguments(self)
        if not self.output_file.endswith(".tsv"):
            raise ValueError(f"--output_file {self.output_file}: its columns are divided by tabs, so call it .tsv.")


def main(argv: list[str]) -> None:
    (arguments,) = parse_arguments((MisspellArguments,), argv, __doc__)
    sets = [read_confusions(path) for path in arguments.confusion_files]
    misspell = Misspeller(sets, arguments.shares or [1 / len(sets)] * len(sets), arguments.seed)
    sources = [source for name in arguments.files for source in parse_sources(name)]
    for source in sources:
        if source.is_dataset or source.is_prepared or source.weight != 1:
            raise ValueError(f"{source}: --files are files of text alone, without a weight.")
    check_output(arguments.output_file, *(source.place for source in sources), *arguments.confusion_files)
    pairs = 0
    changed = 0
    draw = random.Random(arguments.seed + 1)
    with writing(arguments.output_file) as path, path.open("w", encoding="utf-8", newline="\n") as file:
        file.write("text\tright\n")
        lines = (line.replace("\t", " ") for source in sources for line in read_text(source))
        sentences = (part.strip() for line in lines for part in _BETWEEN.split(line))
        usable = (sentence for sentence in sentences if _SHORTEST <= len(sentence) <= _LONGEST)
        for sentence in islice(usable, arguments.max_pairs):
            text = sentence if draw.random() < arguments.clean_share else misspell(sentence)
            file.write(f"{text}\t{sentence}\n")
            pairs += 1
            changed += text != sentence
        if not pairs:
            raise ValueError(f"There is no sentence of {_SHORTEST} to {_LONGEST} characters in the text.")
        if not changed:
            names = ", ".join(arguments.confusion_files)
            raise ValueError(
                f"None of {pairs:,} sentences got an error. Are there right words of {names} in them, as words of "
                f"their own? A share of {arguments.clean_share:g} (--clean_share) stays unchanged in any case."
            )
    print(f"{arguments.output_file}: {pairs:,} pairs, {changed:,} with an error.")


if __name__ == "__main__":
    run(main)
