"""Metrics without locks show what the library's own would."""

import random
import subprocess
import sys
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from pageloom.unlocked_metrics import UnlockedCounter, UnlockedHistogram

BUCKETS = (0, 0.5, 1, 2.5, 1024)
OTHER_PROCESS = """
import pathlib, sys
from prometheus_client import CollectorRegistry
from pageloom.unlocked_metrics import UnlockedCounter, UnlockedHistogram
shared = {"registry": CollectorRegistry(), "folder": pathlib.Path(sys.argv[1])}
histogram = UnlockedHistogram("wait_seconds", "Waits.", buckets=(0, 0.5, 1, 2.5, 1024), **shared)
counter = UnlockedCounter("tokens", "Tokens.", **shared)
for value in (0.25, 2, 9):
    histogram.observe(value)
    counter.inc()
"""


def shown(registry: CollectorRegistry) -> list[str]:
    """When a metric was made is of no use to anybody, and not told without locks."""
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_as_the_library_without_labels():
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    histograms = (
        Histogram("wait_seconds", "Waits.", buckets=BUCKETS, registry=theirs),
        UnlockedHistogram("wait_seconds", "Waits.", buckets=BUCKETS, registry=ours),
    )
    counters = Counter("tokens", "Tokens.", registry=theirs), UnlockedCounter("tokens", "Tokens.", registry=ours)
    assert shown(ours) == shown(theirs)
    rng = random.Random(0)
    for value in [*BUCKETS, -1.0, 5000.0, *(rng.uniform(0, 4) for _ in range(100))]:
        for histogram in histograms:
            histogram.observe(value)
        for counter in counters:
            counter.inc(abs(value))
    assert shown(ours) == shown(theirs)


def test_as_the_library_with_labels():
    theirs, ours = CollectorRegistry(), CollectorRegistry()
    histogram = Histogram("wait_seconds", "Waits.", ("model", "kind"), buckets=BUCKETS, registry=theirs)
    labels = {"model": 'a "b"', "kind": "c"}
    for one in (
        histogram.labels(**labels),
        UnlockedHistogram("wait_seconds", "Waits.", buckets=BUCKETS, registry=ours, labels=labels),
    ):
        one.observe(1)
    assert shown(ours) == shown(theirs)


def test_processes_that_share_a_folder_are_counted_together(tmp_path: Path):
    for _ in range(2):
        subprocess.run([sys.executable, "-c", OTHER_PROCESS, str(tmp_path)], check=True)
    ours = CollectorRegistry()
    UnlockedCounter("tokens", "Tokens.", registry=ours, folder=tmp_path).inc(3)
    UnlockedHistogram("wait_seconds", "Waits.", buckets=BUCKETS, registry=ours, folder=tmp_path)
    assert ours.get_sample_value("tokens_total") == 9
    assert ours.get_sample_value("wait_seconds_sum") == 22.5
    assert ours.get_sample_value("wait_seconds_bucket", {"le": "2.5"}) == 4
    assert ours.get_sample_value("wait_seconds_count") == 6
