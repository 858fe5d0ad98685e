"""The metrics that each token of each stream changes: how many there were, and the time between them."""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

ITL_BUCKETS_S = (0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.5)


# The numbers of one process: tokens, seconds between them, and by bucket how many gaps were that long.
_NUM_TOKENS, _GAPS_S, _FIRST_BUCKET = 0, 1, 2
_NUM_VALUES = _FIRST_BUCKET + len(ITL_BUCKETS_S) + 1
_PREFIX = "tokens_"


class TokenMetrics(Collector):
    """Changed and collected on the event loop, so it needs none of the locks that make the library's own counters cost
    more than a token's text does. In a `shared_dir` each process has its numbers in a file, which it maps into its
    memory, and collects those of all."""

    def __init__(self, model_name: str, shared_dir: str | None = None) -> None:
        self._model_name = model_name
        self._shared_dir = None if shared_dir is None else Path(shared_dir)
        self._own = memoryview(bytearray(_NUM_VALUES * 8)).cast("d")
        if self._shared_dir is not None:
            self._own = _mapped(self._shared_dir / f"{_PREFIX}{os.getpid()}")

    def on_tokens(self, num_tokens: int, gap_s: float | None) -> None:
        """New tokens of one choice; `gap_s` is the time since its last ones, None for the first."""
        own = self._own
        own[_NUM_TOKENS] += num_tokens
        if gap_s is not None:
            # Tokens that came joined share the time since the last ones.
            gap_s /= num_tokens
            own[_FIRST_BUCKET + bisect_left(ITL_BUCKETS_S, gap_s)] += 1
            own[_GAPS_S] += gap_s

    def collect(self) -> Iterator[Metric]:
        values = self._of_all()
        labels = ("model_name",)
        tokens = CounterMetricFamily("pageloom_generation_tokens", "Tokens generated.", labels=labels)
        tokens.add_metric((self._model_name,), values[_NUM_TOKENS])
        yield tokens
        gaps = HistogramMetricFamily(
            "pageloom_inter_token_latency_seconds", "Between the tokens of a choice.", labels=labels
        )
        bounds = [*map(floatToGoString, ITL_BUCKETS_S), "+Inf"]
        buckets = list(zip(bounds, accumulate(values[_FIRST_BUCKET:]), strict=True))
        gaps.add_metric((self._model_name,), buckets, values[_GAPS_S])
        yield gaps

    def _of_all(self) -> list[float]:
        if self._shared_dir is None:
            return list(self._own)
        each = [memoryview(path.read_bytes()).cast("d") for path in self._shared_dir.glob(f"{_PREFIX}*")]
        return [sum(values) for values in zip(*each, strict=True)]


def _mapped(path: Path) -> memoryview[float]:
    """Numbers that others can read in a file, all of them 0 at first."""
    # Nobody may find a file that is not whole.
    fresh = path.with_name(f"new_{path.name}")
    fresh.write_bytes(bytes(_NUM_VALUES * 8))
    fresh.replace(path)
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 0)).cast("d")
