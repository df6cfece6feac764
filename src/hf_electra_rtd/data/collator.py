"""Collates batches with masks for the generator to fill, and with the random numbers for sampling its fills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.base.cli import check_number
from hf_electra_rtd.base.files import check_name
from hf_electra_rtd.data.blocks import SequenceBatch
from hf_electra_rtd.data.tokenization import check_tokenizer, structural_ids
from hf_electra_rtd.data.words import tokens_that_continue
from hf_electra_rtd.ops import (
    IGNORED,
    choose_masked_positions,
    choose_masked_words,
    counter_uniforms,
    num_masked,
    randomness,
)


_REMOVED = " A plain Trainer removes such columns, unless it has remove_unused_columns=False."
MASKING = ("token", "word")  # what is masked as a whole
# `document_offsets` have room for this many documents per sequence, or 2, 4, ... times as many if a batch needs it, so
# that their shape seldom changes: empty documents cost a kernel little, but a new shape costs a compilation.
DOCUMENTS_A_SEQUENCE = 8


class DataCollatorForRTD:
    """Masks K = round(mask_probability * L) distinct tokens of each sequence; returns the arguments of `forward`.

    [CLS], [SEP], [PAD] and [MASK] are never masked; [UNK] may be. By default, 85 % of the masked tokens become [MASK]
    and 15 % (`keep_probability`) stay as they are; none becomes a random token. All of them count in both losses and
    are sampled (google-research/electra pretrain/pretrain_helpers.py, `mask`). A sequence of n < L real tokens uses
    round(mask_probability * n) of its K slots, at least one; in unused slots the label is -100.

    With `masking="word"`, words are masked as a whole: their masked tokens all become [MASK], or all stay. There are
    as many masked tokens as with `token`, so up to two words of a sequence are masked only in part. The collator needs
    to know where words begin: from block files, from a column `word_starts` (a plain Trainer keeps it with
    remove_unused_columns=False), or from WordPiece tokens.

    With a seed, masks and samples are a function of the seed, of the `stream_position` of each sequence, which
    [`SequenceStream`] adds, and of the padded length: `max_seq_length`, by default the longest sequence of the batch.
    Without a seed, they are drawn from torch's generator.

    With `document_attention`, tokens attend only to tokens of their own document if a sequence holds parts of several,
    and position ids restart in each document. [CLS] belongs to the first document, a [SEP] to the one that it closes.
    Token type 1 is only for a document that continues from segment A into segment B. Block files, or a column
    `document_starts`, tell where documents begin.

    A call returns `input_ids` and `token_type_ids` (B, L), `masked_positions` and `labels` (B, K), with padding also
    `attention_mask` (B, L), all int64; and with a seed `sampling_uniforms` (B, K, 2) float32. With
    `document_attention`, batches with several documents in a sequence have `document_ids` and `position_ids` (B, L),
    and, for flash kernels, `document_offsets` int32 (N + 1,): the positions in the flattened batch where documents
    begin, then the size of the batch up to the end. Raises ValueError for sequences that it cannot use.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        mask_probability: float = 0.15,
        keep_probability: float = 0.15,
        masking: str = "token",
        seed: int | None = None,
        max_seq_length: int | None = None,
        document_attention: bool = False,
    ) -> None:
        check_number("mask_probability", mask_probability, "(0, 1)")
        check_number("keep_probability", keep_probability, "[0, 1]")
        check_tokenizer(tokenizer)
        check_name("masking", masking, MASKING)
        self.tokenizer = tokenizer
        self.mask_probability = mask_probability
        self.keep_probability = keep_probability
        self.masking = masking
        self.seed = seed
        self.max_seq_length = max_seq_length
        self.document_attention = document_attention
        self._continues = tokens_that_continue(tokenizer)
        self._never_masked = structural_ids(tokenizer)

    def __call__(self, features: SequenceBatch | Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        batch = features if isinstance(features, SequenceBatch) else _gather(features, self.max_seq_length)
        batch_size, length = batch.ids.shape
        columns_L = np.arange(length)
        input_ids_BL = batch.ids.astype(np.int64, order="C")  # written to through a flat view
        candidates_BL = np.ones(batch.ids.shape, dtype=bool)
        for token in self._never_masked:
            candidates_BL &= batch.ids != token
        types_BL = columns_L >= batch.second_segments[:, None]
        padded = int(batch.lengths.min()) < length
        if padded:
            real_BL = columns_L < batch.lengths[:, None]
            input_ids_BL[~real_BL] = self.tokenizer.pad_token_id
            candidates_BL &= real_BL
            types_BL &= real_BL
        documents: dict[str, np.ndarray] = {}
        if self.document_attention:
            if (starts_BL := batch.document_starts) is None:
                raise ValueError(
                    "document_attention: it needs a column document_starts, where documents begin." + _REMOVED
                )
            ids_BL = starts_BL.cumsum(axis=1)
            types_BL &= ids_BL == np.take_along_axis(ids_BL, batch.second_segments[:, None] - 1, axis=1)
            if (ids_BL > ids_BL[:, :1]).any():
                firsts_BL = np.maximum.accumulate(np.where(starts_BL, columns_L, 0), axis=1)
                documents = {"document_ids": ids_BL, "position_ids": columns_L - firsts_BL}
                documents["document_offsets"] = _offsets(starts_BL, batch.lengths)

        # The uniforms of a sequence: L to choose positions, K to keep tokens, 2 K to sample.
        num_slots = min(num_masked(self.mask_probability, length), length)
        uniforms = self._uniforms(batch, length + 3 * num_slots, randomness.MASKING)
        choosing_BL = uniforms[:, :length]
        keeping_BK = uniforms[:, length : length + num_slots]
        sampling_B2K = uniforms[:, length + num_slots :]
        counts_B = np.array([num_masked(self.mask_probability, n) for n in batch.lengths.tolist()])
        if self.masking == "token":
            positions_BK = choose_masked_positions(candidates_BL, choosing_BL, counts_B, num_slots)
        else:
            beginnings_B = self._uniforms(batch, 1, randomness.GROUPING)[:, 0]
            words = (candidates_BL, self._word_starts(batch))
            positions_BK, words_BK = choose_masked_words(*words, choosing_BL, beginnings_B, counts_B, num_slots)
            is_new_BK = np.diff(words_BK, prepend=-1) != 0
            firsts_BK = np.maximum.accumulate(np.where(is_new_BK, np.arange(num_slots), 0), axis=1)
            keeping_BK = np.take_along_axis(keeping_BK, firsts_BK, axis=1)  # one number for each word

        used_BK = positions_BK >= 0
        positions_BK = np.maximum(positions_BK, 0)
        places_BK = positions_BK + length * np.arange(batch_size)[:, None]  # in the flattened batch
        labels_BK = np.where(used_BK, input_ids_BL.take(places_BK), IGNORED)
        hidden_BK = used_BK & (keeping_BK >= self.keep_probability)
        input_ids_BL.reshape(-1)[places_BK[hidden_BK]] = self.tokenizer.mask_token_id

        arrays = {
            "input_ids": input_ids_BL,
            "token_type_ids": types_BL.astype(np.int64),
            "masked_positions": positions_BK,
            "labels": labels_BK,
            **documents,
        }
        if padded:
            arrays["attention_mask"] = real_BL.astype(np.int64)
        if self.seed is not None:
            arrays["sampling_uniforms"] = np.ascontiguousarray(sampling_B2K).reshape(batch_size, num_slots, 2)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _word_starts(self, batch: SequenceBatch) -> np.ndarray:
        if batch.word_starts is not None:
            return batch.word_starts
        if self._continues is None:
            raise ValueError(f"masking={self.masking} needs blocks, or plain features with a column word_starts.")
        return ~self._continues[batch.ids]

    def _uniforms(self, batch: SequenceBatch, count: int, purpose: int) -> np.ndarray:
        if self.seed is None:
            return torch.rand(len(batch), count).numpy()
        if batch.stream_positions is None:
            raise ValueError(
                "With a seed, sequences need their stream_position: wrap the dataset in SequenceStream." + _REMOVED
            )
        return counter_uniforms(self.seed, purpose, batch.stream_positions, count)


def _offsets(starts_BL: np.ndarray, lengths_B: np.ndarray) -> np.ndarray:
    """Returns the `document_offsets` of sequences of these lengths. The padding of a sequence counts as a document. N
    seldom changes, see `DOCUMENTS_A_SEQUENCE`."""
    batch_size, length = starts_BL.shape
    columns_L = np.arange(length)
    begins_BL = starts_BL & (columns_L < lengths_B[:, None]) | (columns_L == lengths_B[:, None])
    begins_BL[:, 0] = True
    offsets = np.flatnonzero(begins_BL)
    size = DOCUMENTS_A_SEQUENCE * batch_size
    while size < len(offsets):
        size *= 2
    return np.pad(offsets, (0, size + 1 - len(offsets)), constant_values=batch_size * length).astype(np.int32)


def _gather(features: Sequence[dict[str, Any]], max_seq_length: int | None) -> SequenceBatch:
    """Gathers plain features into a batch. Padding that a tokenizer added is recognized by its `attention_mask`."""
    masks = [feature.get("attention_mask", [1] * len(feature["input_ids"])) for feature in features]
    lengths = np.array([int(np.asarray(mask).sum()) for mask in masks])
    length = int(lengths.max()) if max_seq_length is None else max_seq_length
    if lengths.max() > length:
        raise ValueError(f"A sequence has {lengths.max()} tokens, more than max_seq_length={length}. Truncate it.")
    if lengths.min() < 1:
        raise ValueError("A sequence has no tokens. Filter empty sequences out.")
    if not all(mask[0] for mask in masks):
        raise ValueError("A sequence is padded on the left. Set the tokenizer's padding_side to 'right'.")

    def pad(name: str, dtype: type) -> np.ndarray | None:
        """Returns a column, padded to (B, L), or None if a feature lacks it."""
        if not all(name in feature for feature in features):
            return None
        rows: np.ndarray = np.zeros((len(features), length), dtype=dtype)
        for row, feature, size in zip(rows, features, lengths.tolist(), strict=True):
            row[:size] = feature[name][:size]
        return rows

    types = (np.asarray(feature.get("token_type_ids", [0])) for feature in features)
    second_segments = lengths - [int(row[:size].sum()) for row, size in zip(types, lengths.tolist(), strict=True)]
    positions = [feature.get("stream_position") for feature in features]
    stream_positions = None if None in positions else np.array(positions, dtype=np.int64)
    ids: Any = pad("input_ids", np.int64)
    starts = pad("word_starts", bool), pad("document_starts", bool)
    return SequenceBatch(ids, lengths, second_segments, stream_positions, *starts)
