"""Packs tokenized lines into sequences of at most L tokens: [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

A packer takes lines in order (`add_lines`, then `finish`) and returns the sequences that became complete. How lines
are divided into calls does not matter. A token is an id with extra bits: `WORD_START` where a word begins and, in
sequences, `DOCUMENT_START` where a document begins.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.base.files import check_name
from hf_electra_rtd.data.tokenization import token_texts
from hf_electra_rtd.data.units import SENTENCE_ENDS
from hf_electra_rtd.ops import randomness


CLOSING_MARKS = ('"', "'", "”", "’", "»", ")", "]", "」", "』", "）")

# Constants of google-research/electra build_pretraining_dataset.py, `_create_example`.
ONE_SEGMENT_SHARE = 0.1
SHORT_SHARE = 0.05
SHORTEST = 5

# Bits of a token beside its id.
WORD_START = 2**32  # a word begins
DOCUMENT_START = 2**33  # a document's part in this sequence begins: at [CLS], and after the [SEP] of another document
_ID = WORD_START - 1
# Bits of a pending item of `FullPacker`: the token, and two flags.
_TOKEN = 2**34 - 1
_END = 2**34  # a sentence, line or document ends here
_MARK = 2**35  # the [SEP] where a document ends


class PackedSequence(NamedTuple):
    """A sequence of at most L tokens."""

    tokens: np.ndarray  # int64: ids with the bits above
    second_segment: int  # where segment B begins, or the length if there is none

    @property
    def ids(self) -> np.ndarray:
        return self.tokens & _ID


class PackingTokens(NamedTuple):
    """The token ids of a vocabulary that packing needs."""

    cls: int
    sep: int
    sentence_ends: Sequence[int]
    closing_marks: Sequence[int]  # quotes and brackets that may follow the end of a sentence


class FullPacker:
    """Packs every token of the corpus once into sequences of exactly L tokens; only the last, short rest is dropped.

    Most sequences have two segments, split at the end of the sentence or line that is nearest to the middle (in the
    middle itself if no end is in the second or third quarter); 10 %, drawn by `seed`, have one segment. A [SEP]
    separates documents. If the segments are split between two documents, one [SEP] serves both purposes.
    """

    minimum_length: ClassVar[int] = 8

    def __init__(self, tokens: PackingTokens, max_seq_length: int, seed: int) -> None:
        self.tokens = tokens
        self.max_seq_length = max_seq_length
        self.seed = seed
        self._num_sequences = 0
        self._in_document = False
        # The tokens of whole lines, and a [SEP] where a document ended, with the flags `_END` and `_MARK`.
        self._pending: list[np.ndarray] = []
        self._num_pending = 0

    def add_lines(self, tokens: np.ndarray, lengths: np.ndarray, document_ends: np.ndarray) -> list[PackedSequence]:
        stops = lengths.cumsum()
        ids = tokens & _ID
        line_stops = stops[lengths > 0] - 1
        ends = np.isin(ids, self.tokens.sentence_ends)
        closed = np.zeros_like(ends)  # a closing mark ends the sentence in place of the full stop before it
        closed[1:] = np.isin(ids[1:], self.tokens.closing_marks) & ends[:-1]
        closed[line_stops[:-1] + 1] = False
        ends[:-1] &= ~closed[1:]
        ends |= closed
        ends[line_stops] = True
        items = tokens + ends * np.int64(_END)

        # A document without a token gets no mark.
        places = np.unique(stops[document_ends])
        if not self._in_document:
            places = places[places > 0]
        if len(items) or len(places):
            self._in_document = not len(places) or bool(places[-1] < len(items))
        self._pending.append(np.insert(items, places, self.tokens.sep + _END + _MARK))
        self._num_pending += len(self._pending[-1])
        # Concatenating seldom keeps many short lines as cheap as one long line.
        return self._make_sequences(final=False) if self._num_pending >= 4 * self.max_seq_length else []

    def finish(self) -> list[PackedSequence]:
        return self._make_sequences(final=True)

    def _make_sequences(self, final: bool) -> list[PackedSequence]:
        if not self._pending:
            return []
        items = np.concatenate(self._pending)
        length = self.max_seq_length
        start = 0
        tokens = items & _TOKEN
        is_mark = (items >= _MARK).tobytes()
        tokens[1:][items[:-1] >= _MARK] |= DOCUMENT_START
        cls = np.array([self.tokens.cls])
        sep = np.array([self.tokens.sep])
        # The place after each end that no document's [SEP] follows. Python numbers, because they are looked up singly.
        splits = (np.flatnonzero((items[:-1] & _END > 0) & (items[1:] < _MARK)) + 1).tolist()
        most = len(items) // (length - 3) + 1
        bits = randomness.counter_bits(self.seed, randomness.PACKING, self._num_sequences, most, 1)[:, 0]
        sequences = []
        for one_segment in (bits / 2**64 < ONE_SEGMENT_SHARE).tolist():
            while start < len(items) and is_mark[start]:
                start += 1  # the sequence before this one already ended with a [SEP]
            # A sequence takes up to L - 2 items and looks one further; only at the end of the corpus are there fewer.
            if len(items) - start < (length - 3 if final else length + 1):
                break
            second_segment = length
            stop = start + length - 2
            if not one_segment:
                split = self._split(start, splits, is_mark)
                second_segment = split - start + 1
                if not is_mark[split - 1]:  # otherwise the document's [SEP] also ends the first segment
                    second_segment += 1
                    stop -= 1
            if len(items) < stop:
                break
            tokens[start] &= ~DOCUMENT_START  # [CLS] has the bit instead
            whole = stop - start == length - 2
            parts = (tokens[start:stop],) if whole else (tokens[start:split], sep, tokens[split:stop])
            sequences.append(PackedSequence(np.concatenate((cls, *parts, sep)), second_segment))
            start = stop
        self._num_sequences += len(sequences)
        self._pending = [items[start:]]
        self._num_pending = len(items) - start
        return sequences

    def _split(self, start: int, splits: list[int], is_mark: bytes) -> int:
        """Returns the place where the first segment of the sequence at `start` ends."""
        num_items = self.max_seq_length - 3
        middle = start + num_items // 2
        low = start + max(1, num_items // 4)
        high = start + num_items - num_items // 4
        after = bisect_left(splits, middle)  # `min` takes the first of two that are equally near
        found = [split for split in splits[max(0, after - 1) : after + 1] if low <= split < high]
        return min(found, key=lambda split: abs(split - middle)) if found else middle + is_mark[middle]


class OriginalPacker:
    """Builds sequences as google-research/electra does (build_pretraining_dataset.py, `ExampleBuilder`).

    Lines are gathered until they reach the target length or the document ends. Then they are divided into two
    segments, and tokens that do not fit are lost. 10 % of the sequences have one segment, and 5 % have a random,
    shorter target length. As in the original, a short line still joins the first segment after longer lines went to
    the second.
    """

    minimum_length: ClassVar[int] = SHORTEST

    def __init__(self, tokens: PackingTokens, max_seq_length: int, seed: int) -> None:
        self.tokens = tokens
        self.max_seq_length = max_seq_length
        self.seed = seed
        self._num_sequences = 0
        self._lines: list[list[int]] = []
        self._num_pending = 0
        self._target = max_seq_length

    def add_lines(self, tokens: np.ndarray, lengths: np.ndarray, document_ends: np.ndarray) -> list[PackedSequence]:
        sequences: list[PackedSequence] = []
        start = 0
        for stop, ends_document in zip(lengths.cumsum().tolist(), document_ends.tolist(), strict=True):
            self._lines.append(tokens[start:stop].tolist())
            self._num_pending += stop - start
            start = stop
            if self._num_pending >= self._target or ends_document:
                sequences += self.finish()
        return sequences

    def finish(self) -> list[PackedSequence]:
        if not self._num_pending:
            return []
        uniforms = randomness.counter_uniforms(self.seed, randomness.PACKING, np.array([self._num_sequences]), 4)
        one_segment, overflow, shorter, length = uniforms[0].tolist()
        first_target = np.inf if one_segment < ONE_SEGMENT_SHARE else (self._target - 3) // 2
        first: list[int] = []
        second: list[int] = []
        for line in self._lines:
            fits = len(first) + len(line) < first_target
            may_overflow = not second and len(first) < first_target
            if not first or fits or (may_overflow and overflow < 0.5):
                first.extend(line)
            else:
                second.extend(line)
        first = first[: self.max_seq_length - 2]
        second = second[: max(0, self.max_seq_length - len(first) - 3)]
        self._lines = []
        self._num_pending = 0
        self._target = self.max_seq_length
        self._num_sequences += 1
        if shorter < SHORT_SHARE:
            self._target = SHORTEST + int(length * (self.max_seq_length - SHORTEST + 1))

        ids = [self.tokens.cls, *first, self.tokens.sep]
        second_segment = len(ids)
        if second:
            ids += [*second, self.tokens.sep]
        return [PackedSequence(np.array(ids, dtype=np.int64), second_segment)]


Packer = FullPacker | OriginalPacker
PACKERS: dict[str, type[Packer]] = {"full": FullPacker, "original": OriginalPacker}


def get_packer(name: str, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, seed: int) -> Packer:
    """Returns a new packer. Raises ValueError for an unknown name, and for a sequence length that is too short."""
    check_name("packing", name, PACKERS)
    if max_seq_length < PACKERS[name].minimum_length:
        least = PACKERS[name].minimum_length
        raise ValueError(f"max_seq_length={max_seq_length} is too short for packing={name!r}: take at least {least}.")
    closing = "".join(CLOSING_MARKS)
    texts = token_texts(tokenizer, range(len(tokenizer)))
    ends = [index for index, text in enumerate(texts) if text.rstrip(closing).endswith(SENTENCE_ENDS)]
    marks = [index for index, text in enumerate(texts) if text and not text.strip(closing)]
    cls = tokenizer.cls_token_id + WORD_START + DOCUMENT_START
    sep = tokenizer.sep_token_id + WORD_START
    tokens = PackingTokens(cls, sep, ends, marks)
    return PACKERS[name](tokens, max_seq_length, seed)
