"""Prometheus metrics that change with every step or token: with one writer they need none of the library's locks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from pageloom.shared_numbers import SharedNumbers

_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class UnlockedCounter(Collector):
    """Is changed by one thread; another may scrape it. With a `folder` it is the sum of all processes that have it."""

    def __init__(
        self,
        name: str,
        text: str,
        *,
        registry: CollectorRegistry,
        labels: Mapping[str, str] = _NO_LABELS,
        folder: Path | None = None,
    ) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._numbers = SharedNumbers(1, folder, name)
        self._own = self._numbers.own
        registry.register(self)

    def inc(self, amount: float = 1) -> None:
        self._own[0] += amount

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=tuple(self._labels))
        (total,) = self._numbers.total()
        family.add_metric(tuple(self._labels.values()), total)
        yield family


class UnlockedHistogram(Collector):
    """Is changed by one thread; another may scrape it, and then see an observation in the buckets before it is in the
    sum. `buckets` are their upper bounds, ascending. With a `folder` it is that of all processes that have it."""

    def __init__(
        self,
        name: str,
        text: str,
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
        labels: Mapping[str, str] = _NO_LABELS,
        folder: Path | None = None,
    ) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._buckets = tuple(buckets)
        # How many there are by bucket, and last their sum.
        self._numbers = SharedNumbers(len(buckets) + 2, folder, name)
        self._own = self._numbers.own
        registry.register(self)

    def observe(self, value: float) -> None:
        own = self._own
        own[bisect_left(self._buckets, value)] += 1
        own[-1] += value

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=tuple(self._labels))
        bounds = [*map(floatToGoString, self._buckets), "+Inf"]
        *counts, total = self._numbers.total()
        buckets = list(zip(bounds, accumulate(counts), strict=True))
        family.add_metric(tuple(self._labels.values()), buckets, total)
        yield family
