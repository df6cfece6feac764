"""The training stream as a pure function: position i of a run gives its epoch, its sequence and its random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import Dataset

from hf_electra_rtd.data.blocks import BlockFile, SequenceBatch
from hf_electra_rtd.ops import randomness


# Position of the first held-out sequence, so that none shares a random number with a training sequence.
HELD_OUT_POSITION = 2**40


class SequenceStream(Dataset):
    """`num_positions` sequences in the order of training. Read it in order, from wherever a run was interrupted.

    `sequences` is a [`BlockFile`], or any map-style dataset of dicts with `input_ids`. Every epoch is a permutation
    that depends on the seed and the epoch alone: workers, processes, accumulation and resuming do not change it.
    `num_positions` is one epoch by default; `shuffle=False` keeps the order of the dataset.

    Raises:
        ValueError: if there is no sequence.
    """

    def __init__(
        self,
        sequences: Any,
        num_positions: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        first_position: int = 0,
    ) -> None:
        if not len(sequences):
            raise ValueError("The dataset holds no sequence. Give more text, or shorter sequences.")
        self.sequences = sequences
        self.num_positions = len(sequences) if num_positions is None else num_positions
        self.seed, self.shuffle, self.first_position = seed, shuffle, first_position
        self._order: tuple[int, np.ndarray] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_order": None}  # workers compute the permutation that they need

    def __len__(self) -> int:
        return self.num_positions

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([range(len(self))[index]])[0]

    def __getitems__(self, indices: list[int]) -> SequenceBatch | list[dict[str, Any]]:
        positions = np.asarray(indices, dtype=np.int64)
        found = self.sequence_indices(positions)
        stream_positions = positions + self.first_position
        if isinstance(self.sequences, BlockFile):
            batch = self.sequences.read(found)
            batch.stream_positions = stream_positions
            return batch
        return [
            {**self.sequences[int(index)], "stream_position": int(position)}
            for index, position in zip(found, stream_positions, strict=True)
        ]

    def sequence_indices(self, positions: np.ndarray) -> np.ndarray:
        """Index of the sequence at each position, int64 (B,)."""
        epochs, places = np.divmod(positions, len(self.sequences))
        if not self.shuffle:
            return places
        indices = np.empty_like(places)
        for epoch in set(epochs.tolist()):
            here = epochs == epoch
            indices[here] = self._permutation(epoch)[places[here]]
        return indices

    def _permutation(self, epoch: int) -> np.ndarray:
        if self._order is None or self._order[0] != epoch:
            order = randomness.permutation(self.seed, epoch, len(self.sequences))
            # Every worker keeps it for an epoch, so in half of the memory.
            self._order = (epoch, order.astype(np.uint32) if len(order) <= 2**32 else order)
        return self._order[1]

    def num_tokens(self, num_positions: int | None = None) -> int:
        """Tokens in the first `num_positions` sequences (by default all), padding left out. Raises TypeError for a
        dataset that is not a block file: its lengths are not known without reading it."""
        if not isinstance(self.sequences, BlockFile):
            raise TypeError("Only a block file knows how many tokens its sequences have.")
        epochs, rest = divmod(len(self) if num_positions is None else num_positions, len(self.sequences))
        last = self.sequence_indices(np.arange(rest) + epochs * len(self.sequences))
        return epochs * self.sequences.header.num_tokens + int(self.sequences.lengths(last).sum())
