"""The training stream as a pure function: position i of the run gives its epoch, its row and its random numbers."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from torch.utils.data import Dataset

from hf_electra_rtd.data.blocks import BlockFile, RowBatch
from hf_electra_rtd.ops import randomness


# Held-out rows stand here, so that they share no random number with a training row.
HELD_OUT_POSITION = 2**40


class MapStyle(Protocol):
    """What a stream reads rows from: a [`BlockFile`], or any dataset of dicts with `input_ids`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class RowStream(Dataset):
    """`num_positions` rows in the order of training; read it in sequence, from wherever a run was interrupted.

    Every epoch is a permutation of the rows that depends on the seed and the epoch alone. Workers, ranks, accumulation
    and resuming cannot change what stands at a position. (A sampler that shuffles is not needed, and neither is
    `set_epoch`, which `Trainer` does not call on every rank.)

    Args:
        rows: where the rows come from.
        num_positions: length of the run in rows; by default one epoch.
        seed: of the order.
        shuffle: permute the rows; False reads them as they stand.
        first_position: number of the first position.

    Raises:
        ValueError: if there are no rows.
    """

    def __init__(
        self,
        rows: MapStyle,
        num_positions: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        first_position: int = 0,
    ) -> None:
        if not len(rows):
            raise ValueError("There is not a single row: the text is shorter than one row of tokens.")
        self.rows = rows
        self.num_positions = len(rows) if num_positions is None else num_positions
        self.seed, self.shuffle, self.first_position = seed, shuffle, first_position
        self._order: tuple[int, np.ndarray] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_order": None}  # workers compute the permutation that they need

    def __len__(self) -> int:
        return self.num_positions

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([range(len(self))[index]])[0]

    def __getitems__(self, indices: list[int]) -> RowBatch | list[dict[str, Any]]:
        positions = np.asarray(indices, dtype=np.int64)
        rows = self.row_indices(positions)
        stream_positions = positions + self.first_position
        if isinstance(self.rows, BlockFile):
            batch = self.rows.read(rows)
            batch.stream_positions = stream_positions
            return batch
        return [
            {**self.rows[int(row)], "stream_position": int(position)}
            for row, position in zip(rows, stream_positions, strict=True)
        ]

    def row_indices(self, positions: np.ndarray) -> np.ndarray:
        """The row at each position: int64 (B,)."""
        epochs, places = np.divmod(positions, len(self.rows))
        if not self.shuffle:
            return places
        rows = np.empty_like(places)
        for epoch in set(epochs.tolist()):
            here = epochs == epoch
            rows[here] = self._permutation(epoch)[places[here]]
        return rows

    def _permutation(self, epoch: int) -> np.ndarray:
        if self._order is None or self._order[0] != epoch:
            order = randomness.permutation(self.seed, epoch, len(self.rows))
            # Half of the memory, for as long as the epoch lasts, in every worker.
            self._order = (epoch, order.astype(np.uint32) if len(order) <= 2**32 else order)
        return self._order[1]

    def num_tokens(self, num_positions: int | None = None) -> int:
        """Tokens in the rows of the first `num_positions` positions (all, by default), padding left out.

        Raises:
            TypeError: for rows that are not a block file, whose lengths are not known without reading them.
        """
        if not isinstance(self.rows, BlockFile):
            raise TypeError("Only a block file knows how many tokens its rows have.")
        epochs, rest = divmod(len(self) if num_positions is None else num_positions, len(self.rows))
        last = self.row_indices(np.arange(rest) + epochs * len(self.rows))
        return epochs * self.rows.header.num_tokens + int(self.rows.lengths(last).sum())
