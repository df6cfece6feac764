"""From tokenized lines to sequences of at most L tokens: [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

A packer takes lines in order (`add_lines`, then `finish`) and returns the sequences that became complete. How lines
are split into calls does not matter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.ops import randomness


SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？", "．", "।", "؟")
CLOSING_MARKS = ('"', "'", "”", "’", "»", ")", "]", "」", "』", "）")

# google-research/electra build_pretraining_dataset.py, `_create_example`.
ONE_SEGMENT_SHARE = 0.1
SHORT_SHARE = 0.05
SHORTEST = 5


class PackedSequence(NamedTuple):
    """`ids` int64 (at most L,); `second_segment` is where segment B begins, or the length if there is none."""

    ids: np.ndarray
    second_segment: int


@dataclass(frozen=True)
class PackingTokens:
    """The ids that packing knows: special tokens, ends of sentences, and marks that may follow an end."""

    cls: int
    sep: int
    sentence_ends: np.ndarray
    closing_marks: np.ndarray

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> PackingTokens:
        vocabulary = tokenizer.get_vocab()

        def ids(tokens: Sequence[str]) -> np.ndarray:
            return np.array(sorted(vocabulary[token] for token in tokens if token in vocabulary), dtype=np.int64)

        return cls(tokenizer.cls_token_id, tokenizer.sep_token_id, ids(SENTENCE_ENDS), ids(CLOSING_MARKS))


class FullPacker:
    """Sequences of exactly L tokens that hold every token of the corpus once; only the last, short remainder is left.

    Most sequences have two segments, split at the end of a sentence or line that is nearest to the middle (in the
    middle itself if there is none in the second or third quarter); 10 % have one. A [SEP] stands between documents.
    Where the segments are split between two documents, one [SEP] does for both.

    `seed` decides between one and two segments; L is at least 8.
    """

    name: ClassVar[str] = "full"
    minimum_length: ClassVar[int] = 8

    def __init__(self, tokens: PackingTokens, max_seq_length: int, seed: int) -> None:
        self.tokens, self.max_seq_length, self.seed = tokens, max_seq_length, seed
        self.num_dropped = 0
        self._num_sequences = 0
        self._uniforms = np.empty(0)
        self._in_document = False
        self._pending: list[np.ndarray] = []  # ids of whole lines, and [SEP] where a document ended
        self._pending_ends: list[np.ndarray] = []  # True where a sentence, line or document ends after the token
        self._pending_marks: list[np.ndarray] = []  # True for the [SEP] of a document's end
        self._num_pending = 0
        size = 1 + max(tokens.sentence_ends.max(initial=0), tokens.closing_marks.max(initial=0))
        self._is_end, self._is_closing = np.zeros((2, size + 1), dtype=bool)  # the last entry is for all higher ids
        self._is_end[tokens.sentence_ends] = True
        self._is_closing[tokens.closing_marks] = True

    def add_lines(self, ids: np.ndarray, lengths: np.ndarray, document_ends: np.ndarray) -> list[PackedSequence]:
        ids = ids.astype(np.int64)
        stops = lengths.cumsum()
        low = np.minimum(ids, len(self._is_end) - 1)
        ends, closing = self._is_end[low], self._is_closing[low]
        line_stops = stops[lengths > 0] - 1
        closed = np.zeros_like(ends)
        closed[1:] = closing[1:] & ends[:-1]  # a closing mark ends the sentence in place of the full stop before it
        closed[line_stops[:-1] + 1] = False
        ends[:-1] &= ~closed[1:]
        ends |= closed
        ends[line_stops] = True

        # A document without a token leaves no mark.
        places = np.unique(stops[document_ends.astype(bool)])
        if not self._in_document:
            places = places[places > 0]
        marks = np.zeros(len(ids), dtype=bool)
        if len(places):
            self._in_document = bool(places[-1] < len(ids))
            ids, ends = np.insert(ids, places, self.tokens.sep), np.insert(ends, places, True)
            marks = np.insert(marks, places, True)
        elif len(ids):
            self._in_document = True
        return self._append(ids, ends, marks)

    def finish(self) -> list[PackedSequence]:
        sequences = list(self._sequences(final=True))
        self.num_dropped += sum(int((~mark).sum()) for mark in self._pending_marks)
        return sequences

    def _append(self, ids: np.ndarray, ends: np.ndarray, marks: np.ndarray) -> list[PackedSequence]:
        self._pending.append(ids)
        self._pending_ends.append(ends)
        self._pending_marks.append(marks)
        self._num_pending += len(ids)
        # Concatenate seldom, so that many short lines cost no more than one long one.
        return list(self._sequences(final=False)) if self._num_pending >= 4 * self.max_seq_length else []

    def _sequences(self, final: bool) -> Iterator[PackedSequence]:
        if not self._pending:
            return
        ids = np.concatenate(self._pending)
        ends = np.concatenate(self._pending_ends)
        marks = np.concatenate(self._pending_marks)
        # The place after each end that no document's [SEP] follows, as Python numbers: they are looked up singly.
        splits = (np.flatnonzero(ends[:-1] & ~marks[1:]) + 1).tolist()
        is_mark = marks.tobytes()
        start = 0
        while True:
            while start < len(ids) and is_mark[start]:
                start += 1  # the sequence before ended with its own [SEP]
            # A sequence takes up to L - 2 items and looks one further; only the end of the corpus has fewer.
            if len(ids) - start <= self.max_seq_length and not final:
                break
            made = self._sequence(ids[start : start + self.max_seq_length], start, splits, is_mark)
            if made is None:
                break
            sequence, num_items = made
            yield sequence
            self._num_sequences += 1
            start += num_items
        self._pending, self._pending_ends, self._pending_marks = [ids[start:]], [ends[start:]], [marks[start:]]
        self._num_pending = len(ids) - start

    def _sequence(
        self, ids: np.ndarray, start: int, splits: list[int], is_mark: bytes
    ) -> tuple[PackedSequence, int] | None:
        """The next sequence, and how many items it takes; None if too few are left to fill it. `ids` begin at `start`
        of what is pending."""
        length = self.max_seq_length
        if self._next_uniform() < ONE_SEGMENT_SHARE:
            second_segment, num_items = length, length - 2
        elif len(ids) < length - 3:
            return None
        else:
            split = self._split(start, splits, is_mark)
            if is_mark[start + split - 1]:  # the document's [SEP] is also the first segment's
                second_segment, num_items = 1 + split, length - 2
            else:
                second_segment, num_items = 2 + split, length - 3
        if len(ids) < num_items:
            return None
        sequence = np.empty(length, dtype=np.int64)
        sequence[0], sequence[-1] = self.tokens.cls, self.tokens.sep
        if num_items == length - 2:
            sequence[1:-1] = ids[:num_items]
        else:
            sequence[1 : second_segment - 1] = ids[:split]
            sequence[second_segment - 1] = self.tokens.sep
            sequence[second_segment:-1] = ids[split:num_items]
        return PackedSequence(sequence, second_segment), num_items

    def _next_uniform(self) -> float:
        place = self._num_sequences % 1024
        if not place or not len(self._uniforms):
            bits = randomness.counter_bits(self.seed, randomness.PACKING, self._num_sequences - place, 1024, 1)
            self._uniforms = bits[:, 0] / 2**64
        return float(self._uniforms[place])

    def _split(self, start: int, splits: list[int], is_mark: bytes) -> int:
        """How many items the first segment of the sequence at `start` has."""
        num_items = self.max_seq_length - 3
        middle = num_items // 2
        low, high = max(1, num_items // 4), num_items - num_items // 4
        after = bisect_left(splits, start + middle)  # of two that are as near, the first is taken
        nearest = [split - start for split in splits[max(0, after - 1) : after + 1]]
        found = [split for split in nearest if low <= split < high]
        if found:
            return min(found, key=lambda split: abs(split - middle))
        return middle + is_mark[start + middle]


class OriginalPacker:
    """Sequences as google-research/electra's builder makes them (build_pretraining_dataset.py, `ExampleBuilder`).

    Lines are gathered until they reach the target length or the document ends. Then they are divided into two
    segments, and what does not fit is cut off and lost. 10 % of the sequences have one segment, 5 % a random, shorter
    target length. As in the original, a short line still joins the first segment after longer ones went to the second.
    """

    name: ClassVar[str] = "original"
    minimum_length: ClassVar[int] = SHORTEST

    def __init__(self, tokens: PackingTokens, max_seq_length: int, seed: int) -> None:
        self.tokens, self.max_seq_length = tokens, max_seq_length
        self.num_dropped = 0
        self._random = np.random.Generator(np.random.Philox(key=np.array([seed, randomness.PACKING], dtype=np.uint64)))
        self._lines: list[Sequence[int]] = []
        self._num_pending = 0
        self._target = max_seq_length

    def add_lines(self, ids: np.ndarray, lengths: np.ndarray, document_ends: np.ndarray) -> list[PackedSequence]:
        sequences: list[PackedSequence] = []
        start = 0
        for stop, ends_document in zip(lengths.cumsum().tolist(), document_ends.tolist(), strict=True):
            self._lines.append(ids[start:stop].tolist())
            self._num_pending += stop - start
            start = stop
            if self._num_pending >= self._target or (ends_document and self._num_pending):
                sequences += self._make_sequence()
        return sequences

    def finish(self) -> list[PackedSequence]:
        return self._make_sequence() if self._num_pending else []

    def _make_sequence(self) -> list[PackedSequence]:
        one_segment = self._random.random() < ONE_SEGMENT_SHARE
        first_target = np.inf if one_segment else (self._target - 3) // 2
        first: list[int] = []
        second: list[int] = []
        for line in self._lines:
            fits = len(first) + len(line) < first_target
            may_overflow = not second and len(first) < first_target
            if not first or fits or (may_overflow and self._random.random() < 0.5):
                first.extend(line)
            else:
                second.extend(line)
        first = first[: self.max_seq_length - 2]
        second = second[: max(0, self.max_seq_length - len(first) - 3)]
        self.num_dropped += self._num_pending - len(first) - len(second)
        self._lines, self._num_pending = [], 0
        short = self._random.random() < SHORT_SHARE
        self._target = (
            int(self._random.integers(SHORTEST, self.max_seq_length, endpoint=True)) if short else self.max_seq_length
        )

        ids = [self.tokens.cls, *first, self.tokens.sep]
        second_segment = len(ids)
        if second:
            ids += [*second, self.tokens.sep]
        return [PackedSequence(np.array(ids, dtype=np.int64), second_segment)]


PACKERS = {packer.name: packer for packer in (FullPacker, OriginalPacker)}


def get_packer(
    name: str, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, seed: int
) -> FullPacker | OriginalPacker:
    """A new packer. Raises ValueError for an unknown name, or a sequence length that is too short for it."""
    check_packing(name)
    packer = PACKERS[name]
    if max_seq_length < packer.minimum_length:
        raise ValueError(
            f"--max_seq_length {max_seq_length} is too short for --packing {name}: choose at least "
            f"{packer.minimum_length} (the paper: 128 or 512)."
        )
    return packer(PackingTokens.of(tokenizer), max_seq_length, seed)


def check_packing(name: str) -> None:
    """Raises ValueError for an unknown packing."""
    if name not in PACKERS:
        raise ValueError(f"There is no packing {name!r} (--packing). Known: {', '.join(PACKERS)}.")
