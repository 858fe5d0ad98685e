"""The metrics that each token of each stream changes: how many there were, and the time between them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

ITL_BUCKETS_S = (0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.5)


class TokenMetrics(Collector):
    """Changed and collected on the event loop, so it needs none of the locks that make the library's own counters cost
    more than a token's text does."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._num_tokens = 0
        self._num_gaps = [0] * (len(ITL_BUCKETS_S) + 1)  # by bucket
        self._gaps_s = 0.0

    def on_tokens(self, num_tokens: int, gap_s: float | None) -> None:
        """New tokens of one choice; `gap_s` is the time since its last ones, None for the first."""
        self._num_tokens += num_tokens
        if gap_s is not None:
            # Tokens that came joined share the time since the last ones.
            gap_s /= num_tokens
            self._num_gaps[bisect_left(ITL_BUCKETS_S, gap_s)] += 1
            self._gaps_s += gap_s

    def collect(self) -> Iterator[Metric]:
        labels = ("model_name",)
        tokens = CounterMetricFamily("pageloom_generation_tokens", "Tokens generated.", labels=labels)
        tokens.add_metric((self._model_name,), self._num_tokens)
        yield tokens
        gaps = HistogramMetricFamily(
            "pageloom_inter_token_latency_seconds", "Between the tokens of a choice.", labels=labels
        )
        bounds = [*map(floatToGoString, ITL_BUCKETS_S), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._num_gaps), strict=True))
        gaps.add_metric((self._model_name,), buckets, self._gaps_s)
        yield gaps
