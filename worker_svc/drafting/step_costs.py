"""How long does a step take, by its number of rows?"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# Dense where a few drafts for one sequence are. Beyond the last one the time grows as before it.
_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 64)
_NUM_ROUNDS = 5


class StepCosts:
    """Times that were measured once, between which it goes straight: what counts is how they compare."""

    def __init__(self, sizes: NDArray[np.int64], seconds: NDArray[np.float64]) -> None:
        self._sizes = sizes
        # More rows never take less, whatever else ran while they were timed.
        self._seconds = np.maximum.accumulate(seconds)

    def seconds(self, num_rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """For each of `num_rows`, of any shape."""
        sizes, seconds = self._sizes, self._seconds
        slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2]) if len(sizes) > 1 else 0.0
        beyond = slope * np.maximum(0, num_rows - sizes[-1])
        within: NDArray[np.float64] = np.interp(num_rows, sizes, seconds) + beyond
        return within


def measure_step_costs(run: Callable[[int], object], most_rows: int) -> StepCosts:
    """Times `run`, which takes a number of rows and returns when they are computed. Others on the machine only make it
    longer, so of each size the least of some times is taken, and they are apart from each other."""
    sizes = [size for size in _SIZES if size <= most_rows]
    rounds = [[_timed(run, size) for size in sizes] for _ in range(_NUM_ROUNDS)]
    return StepCosts(np.array(sizes, np.int64), np.array(rounds).min(axis=0))


def _timed(run: Callable[[int], object], size: int) -> float:
    started_s = time.perf_counter()
    run(size)
    return time.perf_counter() - started_s
