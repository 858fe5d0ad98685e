"""Which random number does a draw get? One that depends on its key alone: (seed, choice index, position).

Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11), in integer
arithmetic. A key is known before the step runs, so the numbers are computed on the host and are the
same whatever device the model is on, whatever else is in the batch, and however often a request was
preempted or moved.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_NUM_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_WORD_BITS = np.uint64(32)

# Words are 32-bit values held in uint64, so that products of two of them do not overflow.
Words = NDArray[np.uint64]


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, ...]:
    """Four random words for each counter and key, elementwise; words are 32-bit values in uint64 arrays."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return c0, c1, c2, c3


def uniforms(
    seeds: NDArray[np.uint64], choice_indexes: NDArray[np.int64], positions: NDArray[np.int64]
) -> NDArray[np.float64]:
    """One number in [0, 1) for each row, with 53 random bits.

    `positions` counts from the first prompt token: it is the index of the token being drawn.
    """
    unused = np.zeros_like(seeds)
    counter = (positions.astype(np.uint64) & _LOW, choice_indexes.astype(np.uint64) & _LOW, unused, unused)
    low, high, *_ = philox4x32(counter, (seeds & _LOW, seeds >> _WORD_BITS))
    bits = (high << _WORD_BITS) | low
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _multiply(factor: np.uint64, word: Words) -> tuple[Words, Words]:
    product = factor * word
    return product >> _WORD_BITS, product & _LOW
