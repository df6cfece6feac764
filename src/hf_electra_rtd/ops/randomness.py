"""Random numbers as a pure function of (seed, purpose, position): there is no state to save, and no dependence on
order or workers.

The generator is Philox 4x64 of NumPy, whose raw bit stream NumPy guarantees not to change
(numpy.org/doc/stable/reference/random/compatibility.html). Floats and permutations are derived here from raw bits,
because the streams of `Generator.random` and `Generator.permutation` carry no such guarantee.
"""

from __future__ import annotations

import numpy as np


# The second word of the Philox key, so that streams of one seed for different purposes share no number.
MASKING, SHUFFLING, PACKING, SPLITTING, WEIGHTING, GROUPING = range(6)

_WORDS_PER_COUNTER = 4  # Philox 4x64 gives four 64-bit words per counter value


def counter_bits(seed: int, purpose: int, first: int, count: int, words: int) -> np.ndarray:
    """Returns the raw bits of `count` consecutive positions, from `first` on: uint64 (count, words). `seed` is below
    2**64; `purpose` is one of the constants above. The numbers of a position depend on `words`, so keep it fixed
    within a stream."""
    counters = -(-words // _WORDS_PER_COUNTER)
    bits = np.random.Philox(key=np.array([seed, purpose], dtype=np.uint64), counter=[first * counters, 0, 0, 0])
    return bits.random_raw(count * counters * _WORDS_PER_COUNTER).reshape(count, -1)[:, :words]


def counter_uniforms(seed: int, purpose: int, positions: np.ndarray, count: int) -> np.ndarray:
    """Returns `count` uniform numbers for each of several positions (B,) of a stream: float32 (B, count) in [0, 1),
    multiples of 2**-24. Consecutive positions are drawn at once."""
    counters = -(-count // (2 * _WORDS_PER_COUNTER))  # two 32-bit numbers per word
    runs = np.split(positions, np.flatnonzero(positions[1:] != positions[:-1] + 1) + 1)
    words = [counter_bits(seed, purpose, int(run[0]), len(run), counters * _WORDS_PER_COUNTER) for run in runs]
    halves = np.concatenate(words).astype("<u8", copy=False).view("<u4")
    halves >>= np.uint32(8)
    uniforms = halves.astype("=u4", copy=False).view(np.int32).astype(np.float32)  # signed integers convert faster
    uniforms *= np.float32(2**-24)
    return uniforms[:, :count]


def permutation(seed: int, epoch: int, length: int) -> np.ndarray:
    """Returns the order of `length` items in an epoch: int64 (length,). Computing it takes 24 bytes per item."""
    key = np.array([seed, SHUFFLING], dtype=np.uint64)
    bits = np.random.Philox(key=key, counter=[0, epoch, 0, 0]).random_raw(length)
    return np.argsort(bits, kind="stable")
