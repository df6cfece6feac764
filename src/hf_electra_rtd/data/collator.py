"""Batches with masks for the generator to fill, and the random numbers for sampling its fills."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_electra_rtd.data.blocks import SequenceBatch
from hf_electra_rtd.data.tokenization import check_tokenizer
from hf_electra_rtd.ops import IGNORED, choose_masked_positions, counter_uniforms, num_masked, randomness


# How the positions to mask are drawn, by name: (candidates_BL, uniforms_BL, counts_B, K) -> positions_BK.
MASKING: dict[str, Callable[[Tensor, Tensor, Tensor, int], Tensor]] = {"token": choose_masked_positions}


def check_masking(mask_probability: float, keep_probability: float, masking: str = "token") -> None:
    """Raises ValueError for a probability out of range, or an unknown kind of masking."""
    if not 0.0 < mask_probability < 1.0:
        raise ValueError(f"mask_probability is {mask_probability}: it must lie between 0 and 1 (the paper: 0.15).")
    if not 0.0 <= keep_probability <= 1.0:
        raise ValueError(f"keep_probability is {keep_probability}: it must lie between 0 and 1 (the original: 0.15).")
    if masking not in MASKING:
        raise ValueError(f"There is no masking {masking!r}. Known: {', '.join(map(repr, MASKING))}.")


class DataCollatorForRTD:
    """Masks K = round(mask_probability * L) distinct tokens of each sequence; returns the arguments of `forward`.

    [CLS], [SEP], [PAD] and [MASK] are never masked, [UNK] may be. Of the masked tokens, 85 % become [MASK] and 15 %
    stay as they are; none becomes a random token. All of them count in both losses and are sampled
    (google-research/electra pretrain/pretrain_helpers.py, `mask`). A sequence of n real tokens, fewer than L, uses
    round(mask_probability * n) of its K slots, at least one; in unused slots the label is -100.

    `mask_probability` counts [CLS] and [SEP] in L (paper, Table 6: 0.15; 0.25 for Large). With a seed, masks and
    samples are a function of it and of each sequence's `stream_position`, which [`SequenceStream`] gives; None draws
    from torch's generator. Sequences are padded to `max_seq_length`, by default to the longest one of the batch. Set
    it with a seed if lengths differ: the random numbers of a sequence depend on the length that it is padded to.

    Called, it returns `input_ids`, `token_type_ids` (B, L), `masked_positions`, `labels` (B, K), with padding also
    `attention_mask` (B, L), all int64, and with a seed `sampling_uniforms` (B, K, 2) float32.

    Raises:
        ValueError: for a probability out of range, a tokenizer without [MASK], a sequence that is empty, too long or
            padded on the left, or a missing `stream_position` although a seed was given.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        mask_probability: float = 0.15,
        keep_probability: float = 0.15,
        masking: str = "token",
        seed: int | None = None,
        max_seq_length: int | None = None,
    ) -> None:
        check_masking(mask_probability, keep_probability, masking)
        check_tokenizer(tokenizer)
        self.tokenizer = tokenizer
        self.mask_probability, self.keep_probability = mask_probability, keep_probability
        self.masking, self.seed, self.max_seq_length = masking, seed, max_seq_length
        self._never_masked = [getattr(tokenizer, f"{name}_token_id") for name in ("cls", "sep", "pad", "mask")]
        self._counts = np.zeros(0, dtype=np.int64)  # masked tokens, by length

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

        # Uniforms of a sequence: L to choose positions, K to keep tokens, 2 K to sample.
        num_slots = min(num_masked(self.mask_probability, length), length)
        uniforms = self._uniforms(batch, length + 3 * num_slots)
        choosing_BL, keeping_BK = uniforms[:, :length], uniforms[:, length : length + num_slots]
        sampling_B2K = uniforms[:, length + num_slots :]
        choose = MASKING[self.masking]
        counts_B = torch.from_numpy(self._counts_of(batch.lengths))
        positions_BK = choose(
            torch.from_numpy(candidates_BL), torch.from_numpy(choosing_BL), counts_B, num_slots
        ).numpy()

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

    def _uniforms(self, batch: SequenceBatch, count: int) -> np.ndarray:
        if self.seed is None:
            return torch.rand(len(batch), count).numpy()
        if batch.stream_positions is None:
            raise ValueError(
                "With a seed, each sequence needs its stream_position. Wrap the dataset in SequenceStream (and set "
                "remove_unused_columns=False with a plain Trainer), or leave the seed out."
            )
        return counter_uniforms(self.seed, randomness.MASKING, batch.stream_positions, count)


def _gather(features: Sequence[dict[str, Any]], max_seq_length: int | None) -> SequenceBatch:
    """Plain features as a batch. Padding that a tokenizer added is known by its `attention_mask`."""
    ids = [np.asarray(feature["input_ids"]) for feature in features]
    masks = [feature.get("attention_mask") for feature in features]
    lengths = np.array([len(row) if mask is None else int(np.sum(mask)) for row, mask in zip(ids, masks, strict=True)])
    length = int(lengths.max()) if max_seq_length is None else max_seq_length
    if lengths.max() > length:
        raise ValueError(f"A sequence has {lengths.max()} tokens, more than max_seq_length={length}. Truncate it.")
    if any(mask is not None and not mask[0] for mask in masks):
        raise ValueError("A sequence is padded on the left. Set the tokenizer's padding_side to 'right'.")
    if lengths.min() < 1:
        raise ValueError("A sequence has no tokens. Filter empty sequences out.")
    matrix = np.zeros((len(ids), length), dtype=np.int64)
    second_segments = lengths.copy()
    for place, (feature, size) in enumerate(zip(features, lengths.tolist(), strict=True)):
        matrix[place, :size] = ids[place][:size]
        if feature.get("token_type_ids") is not None:
            second_segments[place] -= int(np.sum(np.asarray(feature["token_type_ids"])[:size]))
    positions = [feature.get("stream_position") for feature in features]
    stream_positions = None if None in positions else np.array(positions, dtype=np.int64)
    return SequenceBatch(matrix, lengths, second_segments, stream_positions)
