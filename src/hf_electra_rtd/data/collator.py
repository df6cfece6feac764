"""Batches with masks: what the generator has to fill in, and the random numbers for its fills."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.data.blocks import RowBatch
from hf_electra_rtd.data.tokenization import check_tokenizer
from hf_electra_rtd.ops import IGNORED, choose_masked_positions, counter_uniforms, num_masked, randomness


# How the positions to mask are drawn, by name: (candidates_BL, uniforms_BL, counts_B, K) -> positions_BK.
MASKING: dict[str, Callable[[Tensor, Tensor, Tensor, int], Tensor]] = {"token": choose_masked_positions}


def check_masking(mask_probability: float, keep_probability: float, masking: str) -> None:
    """Refuses options that cannot mask.

    Raises:
        ValueError: for a probability out of range, or a kind of masking that does not exist.
    """
    if not 0.0 < mask_probability < 1.0:
        raise ValueError(f"mask_probability is {mask_probability}: it must lie between 0 and 1 (the paper: 0.15).")
    if not 0.0 <= keep_probability <= 1.0:
        raise ValueError(f"keep_probability is {keep_probability}: it must lie between 0 and 1 (the original: 0.15).")
    if masking not in MASKING:
        raise ValueError(f"There is no masking={masking!r}. Known are: {', '.join(map(repr, MASKING))}.")


class DataCollatorForRTD:
    """Masks K = round(mask_probability * L) distinct tokens a row and returns what the model's `forward` takes.

    [CLS], [SEP], [PAD] and [MASK] are never masked, [UNK] may be. Of the masked tokens, 85 % become [MASK] and 15 %
    stay as they are; none becomes a random token; all count in both losses and are sampled over
    (google-research/electra pretrain/pretrain_helpers.py, `mask`). A row of n real tokens, fewer than L, uses
    round(mask_probability * n) of its K slots, at least one; in slots that are not used the label is -100.

    Args:
        tokenizer: gives the special ids.
        mask_probability: share of the tokens of a row, [CLS] and [SEP] counted, that is masked (paper, Table 6: 0.15;
            0.25 for Large).
        keep_probability: share of the masked tokens that stays visible.
        masking: `"token"`: single tokens, all alike.
        seed: makes masks and samples a function of it and of each row's `stream_position`, which
            [`RowStream`](hf_electra_rtd.data.stream) gives. None draws from torch's generator.
        row_length: pad to this length; by default to the longest row of the batch. Give it with a seed where rows
            differ in length: the random numbers of a row depend on the length that it is padded to.

    Returns (when called), all int64 but for the uniforms:
        `input_ids` (B, L), `token_type_ids` (B, L), `masked_positions` (B, K), `labels` (B, K); `attention_mask` (B,
        L) only where a row is padded; `sampling_uniforms` (B, K, 2) float32 only with a seed.

    Raises:
        ValueError: for a probability out of range, a tokenizer without [MASK], a row longer than `row_length`, or rows
            without `stream_position` though a seed was given.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        mask_probability: float = 0.15,
        keep_probability: float = 0.15,
        masking: str = "token",
        seed: int | None = None,
        row_length: int | None = None,
    ) -> None:
        check_masking(mask_probability, keep_probability, masking)
        check_tokenizer(tokenizer)
        self.tokenizer = tokenizer
        self.mask_probability, self.keep_probability = mask_probability, keep_probability
        self.masking, self.seed, self.row_length = masking, seed, row_length
        self._never_masked: tuple[int, ...] = (
            tokenizer.cls_token_id,
            tokenizer.sep_token_id,
            tokenizer.pad_token_id,
            tokenizer.mask_token_id,
        )
        self._counts = np.zeros(0, dtype=np.int64)  # how many tokens of a row are masked, by its length

    def __call__(self, features: RowBatch | Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        rows = features if isinstance(features, RowBatch) else _gather(features, self.row_length)
        batch_size, length = rows.ids.shape
        columns_L = np.arange(length)
        input_ids_BL = rows.ids.astype(np.int64, order="C")  # written to through a flat view
        candidates_BL = np.ones(rows.ids.shape, dtype=bool)
        for token in self._never_masked:
            candidates_BL &= rows.ids != token
        types_BL = columns_L >= rows.second_segments[:, None]
        padded = int(rows.lengths.min()) < length
        if padded:
            real_BL = columns_L < rows.lengths[:, None]
            input_ids_BL[~real_BL] = self.tokenizer.pad_token_id
            candidates_BL &= real_BL
            types_BL &= real_BL

        # K slots a row: K uniforms for keeping, 2 K for sampling, and L for choosing.
        num_slots = min(num_masked(self.mask_probability, length), length)
        uniforms = self._uniforms(rows, length + 3 * num_slots)
        choosing_BL, keeping_BK = uniforms[:, :length], uniforms[:, length : length + num_slots]
        sampling_B2K = uniforms[:, length + num_slots :]
        choose = MASKING[self.masking]
        counts_B = torch.from_numpy(self._counts_of(rows.lengths))
        positions_BK = choose(
            torch.from_numpy(candidates_BL), torch.from_numpy(choosing_BL), counts_B, num_slots
        ).numpy()

        used_BK = positions_BK >= 0
        positions_BK = np.maximum(positions_BK, 0)
        places_BK = positions_BK + length * np.arange(batch_size)[:, None]  # in all rows, one after the other
        labels_BK = np.where(used_BK, input_ids_BL.take(places_BK), IGNORED)
        hidden_BK = used_BK & (keeping_BK >= self.keep_probability)
        input_ids_BL.reshape(-1)[places_BK[hidden_BK]] = self.tokenizer.mask_token_id

        arrays = {
            "input_ids": input_ids_BL,
            "token_type_ids": types_BL.astype(np.int64),
            "masked_positions": positions_BK,
            "labels": labels_BK,
        }
        if padded:
            arrays["attention_mask"] = real_BL.astype(np.int64)
        if self.seed is not None:
            arrays["sampling_uniforms"] = np.ascontiguousarray(sampling_B2K).reshape(batch_size, num_slots, 2)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _counts_of(self, lengths_B: np.ndarray) -> np.ndarray:
        longest = int(lengths_B.max())
        if longest >= len(self._counts):
            self._counts = np.array([num_masked(self.mask_probability, length) for length in range(longest + 1)])
        return self._counts[lengths_B]

    def _uniforms(self, rows: RowBatch, count: int) -> np.ndarray:
        if self.seed is None:
            return torch.rand(len(rows), count).numpy()
        if rows.stream_positions is None:
            raise ValueError(
                "A seeded collator needs the stream_position of every row: wrap the dataset in RowStream (and with a "
                "plain Trainer set remove_unused_columns=False), or leave the seed out to draw from torch's generator."
            )
        return counter_uniforms(self.seed, randomness.MASKING, rows.stream_positions, count)


def _gather(features: Sequence[dict[str, Any]], row_length: int | None) -> RowBatch:
    """Plain features as a batch. Padding that a tokenizer already added is recognised by its `attention_mask`."""
    ids = [np.asarray(feature["input_ids"]) for feature in features]
    lengths = np.array(
        [
            int(np.sum(f["attention_mask"])) if "attention_mask" in f else len(row)
            for f, row in zip(features, ids, strict=True)
        ]
    )
    length = int(lengths.max()) if row_length is None else row_length
    if lengths.max() > length:
        raise ValueError(
            f"A row has {lengths.max()} tokens, but row_length is {length}: truncate it, or raise row_length."
        )
    if any("attention_mask" in feature and not feature["attention_mask"][0] for feature in features):
        raise ValueError("A row is padded on the left: set the tokenizer's padding_side to 'right'.")
    if lengths.min() < 1:
        raise ValueError("A row has no tokens at all: filter empty rows out.")
    matrix = np.zeros((len(ids), length), dtype=np.int64)
    for target, row, size in zip(matrix, ids, lengths, strict=True):
        target[:size] = row[:size]
    second = [
        _second_segment(f.get("token_type_ids"), size) for f, size in zip(features, lengths.tolist(), strict=True)
    ]
    positions = [feature.get("stream_position") for feature in features]
    return RowBatch(
        matrix, lengths, np.array(second), None if None in positions else np.array(positions, dtype=np.int64)
    )


def _second_segment(token_type_ids: Any, length: int) -> int:
    if token_type_ids is None:
        return length
    return length - int(np.sum(np.asarray(token_type_ids)[:length]))
