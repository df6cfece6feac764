"""Random numbers as a pure function of (seed, purpose, position): no state to save, order or worker to depend on.

The generator is Philox 4x64 of NumPy, whose raw bit stream NumPy guarantees not to change
(numpy.org/doc/stable/reference/random/compatibility.html); floats and permutations are derived here from raw bits,
because the streams of `Generator.random` and `Generator.permutation` carry no such promise.
"""

from __future__ import annotations

import numpy as np


# Second word of the Philox key: streams of one seed that serve different purposes share no number.
MASKING, SHUFFLING, PACKING, SPLITTING, WEIGHTING = range(5)

_WORDS_PER_COUNTER = 4  # Philox 4x64 gives four 64-bit words a counter value


def counter_bits(seed: int, purpose: int, first: int, count: int, words: int) -> np.ndarray:
    """Raw bits of `count` consecutive positions, from `first` on.

    Args:
        seed: any non-negative integer below 2**64.
        purpose: one of `MASKING`, `SHUFFLING`, `PACKING`, `SPLITTING`, `WEIGHTING`.
        first: the first position, at least 0.
        count: number of positions.
        words: 64-bit words a position. The numbers of a position depend on it, so keep it fixed within a stream.

    Returns:
        uint64 array (count, words).
    """
    counters = -(-words // _WORDS_PER_COUNTER)
    bits = np.random.Philox(key=np.array([seed, purpose], dtype=np.uint64), counter=[first * counters, 0, 0, 0])
    return bits.random_raw(count * counters * _WORDS_PER_COUNTER).reshape(count, -1)[:, :words]


def counter_uniforms(seed: int, purpose: int, positions: np.ndarray, count: int) -> np.ndarray:
    """Uniform numbers for each of several positions of a stream.

    Args:
        seed, purpose: as in `counter_bits`.
        positions: int64 array (B,); runs of consecutive positions are drawn at once.
        count: numbers a position.

    Returns:
        float32 array (B, count) in [0, 1), multiples of 2**-24.
    """
    uniforms = np.empty((len(positions), count), dtype=np.float32)
    words = -(-count // 2)  # two 32-bit numbers a word
    starts = np.flatnonzero(np.diff(positions, prepend=np.int64(-2)) != 1)
    for start, stop in zip(starts, [*starts[1:], len(positions)], strict=True):
        bits = counter_bits(seed, purpose, int(positions[start]), stop - start, words)
        halves = np.ascontiguousarray(bits).astype("<u8", copy=False).view("<u4")[:, :count]
        uniforms[start:stop] = (halves >> np.uint32(8)) * np.float32(2**-24)
    return uniforms


def permutation(seed: int, epoch: int, length: int) -> np.ndarray:
    """The order of `length` rows in an epoch: int64 array (length,), 24 bytes a row while it is computed."""
    key = np.array([seed, SHUFFLING], dtype=np.uint64)
    bits = np.random.Philox(key=key, counter=[0, epoch, 0, 0]).random_raw(length)
    return np.argsort(bits, kind="stable")
