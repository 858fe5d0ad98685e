"""Prometheus metrics that change with every step or token: with one writer they need none of the library's locks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class UnlockedCounter(Collector):
    """Is changed by one thread; another may scrape it."""

    def __init__(
        self, name: str, text: str, *, registry: CollectorRegistry, labels: Mapping[str, str] = _NO_LABELS
    ) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._value = 0.0
        registry.register(self)

    def inc(self, amount: float = 1) -> None:
        self._value += amount

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._text, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), self._value)
        yield family


class UnlockedHistogram(Collector):
    """Is changed by one thread; another may scrape it, and then see an observation in the buckets before it is in the
    sum. `buckets` are their upper bounds, ascending."""

    def __init__(
        self,
        name: str,
        text: str,
        *,
        buckets: Sequence[float],
        registry: CollectorRegistry,
        labels: Mapping[str, str] = _NO_LABELS,
    ) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._buckets = tuple(buckets)
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._buckets, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=tuple(self._labels))
        bounds = [*map(floatToGoString, self._buckets), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        family.add_metric(tuple(self._labels.values()), buckets, self._sum)
        yield family
