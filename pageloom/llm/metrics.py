"""What the engine's processes count and time, read from their /metrics."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from pageloom.errors import Unavailable

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric with one set of labels."""

    name: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter(Metric):
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge(Metric):
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram(Metric):
    """`buckets` maps an upper bound, as Prometheus writes it, to how many values are at most that."""

    count: int
    sum: float
    buckets: dict[str, int] = field(default_factory=dict)


def read_metrics(urls: Iterable[str]) -> list[Metric]:
    """Those of all the processes. Raises Unavailable if one does not answer."""
    metrics: list[Metric] = []
    for url in urls:
        for family in text_string_to_metric_families(_read(url)):
            metrics += _metrics_of(family)
    return metrics


def _read(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            text: str = answer.read().decode()
            return text
    except OSError as error:
        raise Unavailable(f"a process of the engine does not answer at {url}: {error}") from None


def _metrics_of(family: Family) -> Iterator[Metric]:
    if family.type == "histogram":
        yield from _histograms(family)
        return
    for sample in family.samples:
        if sample.name.endswith("_created"):
            continue
        kind = Counter if family.type == "counter" else Gauge
        yield kind(name=sample.name, labels=sample.labels, value=sample.value)


def _histograms(family: Family) -> Iterator[Histogram]:
    parts: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    buckets: dict[tuple[tuple[str, str], ...], dict[str, int]] = {}
    for sample in family.samples:
        key = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            buckets.setdefault(key, {})[sample.labels["le"]] = int(sample.value)
        else:
            parts.setdefault(key, {})[sample.name.removeprefix(family.name)] = sample.value
    for key, values in parts.items():
        if "_count" in values:
            yield Histogram(
                name=family.name,
                labels=dict(key),
                count=int(values["_count"]),
                sum=values["_sum"],
                buckets=buckets.get(key, {}),
            )
