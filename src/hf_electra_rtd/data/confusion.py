"""Makes pairs of wrong and right sentences from text. Confusion files list which words are mistaken for which.

    hf-electra-rtd misspell --files news.txt --confusion_files sound.txt --shares 0.9 \\
        --output_file pairs.tsv

Each sentence gets one error at most. --shares gives the share of the errors that comes from each confusion file. For
the remaining share, any right word of the rows may be the wrong word. The words of the sentence that are a right word
in a row of that file (case does not matter) are taken in random order. Each is drawn again from itself and its wrong
words, in proportion to their frequency in the text, until one changes. So a frequent word replaces a rare one as often
as the other way round. With wrong words of equal probability, most would be rare, and a model would learn to distrust
rare words. A wrong word that is never a right word (`teh`) counts as often as the word in whose place it may stand.

Words that a row `x x` protects stay as they are. So does a share of the sentences (--clean_share): a model that saw no
right sentences would find errors everywhere. Sentences of fewer than 6 or more than 128 characters are left out. The
table has the columns `text` and `right`, as `finetune --task_kind correction` reads them. The shares follow LEMON (Wu
et al. 2023, arXiv 2305.17721): 40 % of its errors had the same sound as the right word, 30 % a similar sound, 20 %
were alike in strokes, and 10 % were random.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from typing import NamedTuple

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


def count_right_words(sets: Sequence[Confusions], sentences: Iterable[str]) -> dict[str, int]:
    """Returns how often each right word of the sets stands in the sentences. A word in upper case counts as its lower
    case, unless it is a right word itself."""
    counts = dict.fromkeys((word for one in sets for word in one.wrongs), 0)
    for sentence in sentences:
        for written in WORD.findall(sentence):
            word = written if written in counts else written.lower()
            if word in counts:
                counts[word] += 1
    return counts


class Misspeller:
    """Puts one error into a sentence, as the module docstring describes. `counts` are those of `count_right_words`.
    Raises ValueError for shares that do not fit the sets."""

    def __init__(
        self, sets: Sequence[Confusions], shares: Sequence[float], counts: Mapping[str, int], seed: int = 0
    ) -> None:
        if len(shares) != len(sets) or min(shares) < 0 or sum(shares) > 1 + 1e-9:
            raise ValueError(f"shares is {list(shares)}: it needs one for each file, with a sum of 1 at most.")
        self.sets = sets
        self.shares = [*shares, max(1 - sum(shares), 0)]
        self.counts = counts
        self.draw = random.Random(seed)
        self._rows: dict[tuple[int, str], _Row] = {}
        right_words = {chinese: [word for word in counts if is_han(word) == chinese] for chinese in (False, True)}
        self._right_words = {chinese: self._weighted(words) for chinese, words in right_words.items()}

    def __call__(self, sentence: str) -> str:
        """Returns the sentence with an error in it, or unchanged if no word became another one."""
        kept = [span for one in self.sets for span in one.protected_in(sentence)]
        words = [word for word in WORD.finditer(sentence)
                 if may_change(sentence, word[0])
                 and not any(word.start() < span.stop and span.start < word.end() for span in kept)]  # fmt: skip
        kinds = range(len(self.shares))
        usable = [[word for word in words if any(other != word[0] for other in self._row(kind, word[0]).words)]
                  for kind in kinds]  # fmt: skip
        weights = [share * bool(of_kind) for share, of_kind in zip(self.shares, usable, strict=True)]
        if not any(weights):
            return sentence
        kind = self.draw.choices(kinds, weights)[0]
        for word in self.draw.sample(usable[kind], len(usable[kind])):
            row = self._row(kind, word[0])
            other = self.draw.choices(row.words, cum_weights=row.sums)[0]
            if kind == len(self.sets):
                other = in_case_of(word[0], other)  # `the` for `The` would be no error
            if other != word[0]:
                return sentence[: word.start()] + other + sentence[word.end() :]
        return sentence

    def _row(self, kind: int, word: str) -> _Row:
        """Returns what may stand in the place of a word: the word and the wrong words of a file; the right words of
        all files for the last kind."""
        if kind == len(self.sets):
            return self._right_words[is_han(word)]
        row = self._rows.get((kind, word))
        if row is None:
            row = self._weighted(list(dict.fromkeys([word, *self.sets[kind].wrongs_of(word)])))
            if len(row.words) > 1:  # most words of a text have no wrong words
                self._rows[kind, word] = row
        return row

    def _weighted(self, words: list[str]) -> _Row:
        """Adds the frequencies. A wrong word that is never a right one (`teh`) counts as the first word does."""
        first = self._count(words[0], 0) if words else 0
        return _Row(words, list(accumulate(self._count(word, first) + 1 for word in words)))

    def _count(self, word: str, unknown: int) -> int:
        return self.counts.get(word, self.counts.get(word.lower(), unknown))


class _Row(NamedTuple):
    """Words to draw from, and the cumulative sums of their weights."""

    words: list[str]
    sums: list[int]


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
    clean_share: float = flag(0.3, "Share of the sentences that stay unchanged in any case.", "[0, 1]")
    max_pairs: int | None = flag(None, "Stop after this many sentences.", "[1, inf)")
    seed: int = flag(0, "Seed of places and errors.", "[0, 4294967295]")

    def __post_init__(self) -> None:
        check_arguments(self)
        if not self.output_file.endswith(".tsv"):
            raise ValueError(f"--output_file {self.output_file}: its columns are divided by tabs, so call it .tsv.")


def main(argv: list[str]) -> None:
    (arguments,) = parse_arguments((MisspellArguments,), argv, __doc__)
    sets = [read_confusions(path) for path in arguments.confusion_files]
    sources = [source for name in arguments.files for source in parse_sources(name)]
    for source in sources:
        if source.is_dataset or source.is_prepared or source.weight != 1:
            raise ValueError(f"{source}: --files are files of text alone, without a weight.")
    check_output(arguments.output_file, *(source.place for source in sources), *arguments.confusion_files)

    def sentences() -> Iterator[str]:
        lines = (line.replace("\t", " ") for source in sources for line in read_text(source))
        parts = (part.strip() for line in lines for part in _BETWEEN.split(line))
        return islice((part for part in parts if _SHORTEST <= len(part) <= _LONGEST), arguments.max_pairs)

    shares = arguments.shares or [1 / len(sets)] * len(sets)
    misspell = Misspeller(sets, shares, count_right_words(sets, sentences()), arguments.seed)
    pairs = 0
    changed = 0
    draw = random.Random(arguments.seed + 1)
    with writing(arguments.output_file) as path, path.open("w", encoding="utf-8", newline="\n") as file:
        file.write("text\tright\n")
        for sentence in sentences():
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
