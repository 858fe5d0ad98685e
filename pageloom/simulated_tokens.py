"""Which tokens does a model draw that is only simulated? Any, but the same for the same (seed, choice, position)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Ids below it are never drawn: a vocabulary has its special tokens and single bytes there. The first of them ends a
# sequence, so no sequence ends by itself.
NUM_RESERVED_TOKENS = 256
SIMULATED_EOS_TOKEN_ID = 0

# Odd constants of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
_GAMMA = 0x9E3779B97F4A7C15
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(32)
_MASK = 2**64 - 1


def choice_key(seed: int, choice_index: int) -> int:
    """What `draw_tokens` needs to know of a choice, in 64 bits."""
    mixed = (seed + (choice_index + 1) * _GAMMA) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * int(_MIX)) & _MASK
    return mixed ^ (mixed >> 27)


def draw_tokens(keys: NDArray[np.uint64], positions: NDArray[np.int64], vocab_size: int) -> NDArray[np.int64]:
    """One token for each choice's key and the position that it takes, from NUM_RESERVED_TOKENS up."""
    mixed = (keys + positions.astype(np.uint64) * np.uint64(_GAMMA)) * _MIX
    mixed = (mixed ^ (mixed >> _SHIFT)) * _MIX
    span = np.uint64(vocab_size - NUM_RESERVED_TOKENS)
    return ((mixed >> _SHIFT) % span).astype(np.int64) + NUM_RESERVED_TOKENS
