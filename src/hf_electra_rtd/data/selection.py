"""Which documents are held out and which are read how often: a function of the seed and the document's number."""

from __future__ import annotations

import math

import numpy as np

from hf_electra_rtd.ops import randomness


_CHUNK = 1 << 16  # documents drawn at once
_MAX_EXACT = 1 << 20  # held-out documents that are counted exactly; beyond, their number is right to a per mille


class DocumentDraws:
    """A 64-bit random number for each document of a corpus, for documents that come (mostly) in order.

    Args:
        seed: of the numbers.
        purpose: one of `hf_electra_rtd.ops.randomness`.
    """

    def __init__(self, seed: int, purpose: int) -> None:
        self._seed, self._purpose = seed, purpose
        self._chunk = -1
        self._numbers: list[int] = []

    def __getitem__(self, document: int) -> int:
        chunk, place = divmod(document, _CHUNK)
        if chunk != self._chunk:
            self._chunk = chunk
            first = chunk * _CHUNK
            self._numbers = randomness.counter_bits(self._seed, self._purpose, first, _CHUNK, 1)[:, 0].tolist()
        return self._numbers[place]


def held_out_threshold(num_documents: int, share: float, seed: int) -> int:
    """A document is held out if its number (`DocumentDraws`, `SPLITTING`) is below this.

    round(share * num_documents) are, at least one. Memory does not grow with the corpus: above a million held-out
    documents, their number is only expected to be this.

    Raises:
        ValueError: for a share out of range, or if nothing would be left to train on.
    """
    check_held_out_share(share)
    if share == 0.0:
        return 0
    count = max(1, round(share * num_documents))
    if count >= num_documents:
        raise ValueError(
            f"The corpus has {num_documents} document(s), too few to hold {count} of them out: the held-out split (or "
            "the training one) would be empty. An empty line ends a document: separate them, name held-out files "
            "(--held_out_files), or do without (--held_out_share 0)."
        )
    if count > _MAX_EXACT:
        return round(share * 2**64)
    lowest = np.empty(0, dtype=np.uint64)  # the count + 1 lowest numbers so far
    for first in range(0, num_documents, _MAX_EXACT):
        size = min(_MAX_EXACT, num_documents - first)
        numbers = randomness.counter_bits(seed, randomness.SPLITTING, first, size, 1)[:, 0]
        lowest = np.concatenate([lowest, numbers])
        if len(lowest) > count + 1:
            lowest = np.partition(lowest, count)[: count + 1]
    return int(np.partition(lowest, count)[count])


def check_held_out_share(share: float) -> None:
    """Raises ValueError for a share out of range."""
    if not 0.0 <= share < 1.0:
        raise ValueError(f"held_out_share is {share}: it must be at least 0 and below 1.")


def read_shares(weight: float) -> list[float]:
    """The share of a source's documents in each pass over it: 2.5 is [1, 1, 0.5]."""
    return [min(1.0, weight - number) for number in range(math.ceil(weight))]
