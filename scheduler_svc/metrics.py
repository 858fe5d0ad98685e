"""The scheduler's Prometheus metrics; names follow vLLM's where they mean the same."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pageloom.plan import StepResult
from scheduler_svc.core import ChoiceFacts, Stats, StepFacts

_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_STEP_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0)
_HOP_S = (0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.1, 1.0)
_QUEUE_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class SchedulerMetrics:
    """Histograms that the driver observes, and a collector over the latest published Stats.

    A scrape runs in another thread: it only ever reads one frozen value that the driver replaced whole.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._seqs = Histogram(
            "pageloom_step_num_seqs", "Sequences that share a step.", buckets=_SIZES, registry=registry
        )
        self._tokens = Histogram("pageloom_step_num_tokens", "Tokens in a step.", buckets=_TOKENS, registry=registry)
        self._step = Histogram(
            "pageloom_step_seconds",
            "From when the worker can have begun a step to its result.",
            buckets=_STEP_S,
            registry=registry,
        )
        self._hop = Histogram(
            "pageloom_step_hop_seconds", "Part of a step outside the worker's model and sampler.",
            buckets=_HOP_S, registry=registry,
        )  # fmt: skip
        self._queue = Histogram(
            "pageloom_request_queue_time_seconds", "From arrival to first admission.",
            buckets=_QUEUE_S, registry=registry,
        )  # fmt: skip
        self._prefill = Histogram(
            "pageloom_request_prefill_time_seconds", "From first admission to first token.",
            buckets=_QUEUE_S, registry=registry,
        )  # fmt: skip
        self._decodes = Histogram(
            "pageloom_step_num_decode_seqs", "Sequences of a step that continue by one token.",
            buckets=(0, *_SIZES), registry=registry,
        )  # fmt: skip
        self._drafts = _DraftMetrics(registry)
        self._collector = _StatsCollector()
        registry.register(self._collector)

    def publish(self, stats: Stats) -> None:
        self._collector.stats = stats

    def observe_step(self, facts: StepFacts, duration_s: float, worker_s: float) -> None:
        """`duration_s` is the scheduler's view of the step, `worker_s` the worker's."""
        self._seqs.observe(facts.num_seqs)
        self._tokens.observe(facts.num_tokens)
        self._decodes.observe(facts.num_decode_seqs)
        self._step.observe(duration_s)
        self._hop.observe(max(0.0, duration_s - worker_s))

    def observe_drafts(self, result: StepResult) -> None:
        """Of a step that ran drafts."""
        self._drafts.observe(result)

    def observe_finished(self, facts: ChoiceFacts) -> None:
        if facts.admitted_at is not None:
            self._queue.observe(facts.admitted_at - facts.arrived_at)
            if facts.first_token_at is not None:
                self._prefill.observe(facts.first_token_at - facts.admitted_at)


class _DraftMetrics:
    """Of all steps that ran drafts: what became of these."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"pageloom_spec_decode_{name}", text, registry=registry)

        self._num_drafts = counter("num_drafts", "Runs that verified guessed tokens.")
        self._num_draft_tokens = counter("num_draft_tokens", "Guessed tokens that were verified.")
        self._num_accepted_tokens = counter("num_accepted_tokens", "Guessed tokens that were right.")
        self._per_position = Counter(
            "pageloom_spec_decode_num_accepted_tokens_per_pos",
            "Guessed tokens that were right, by their place among those guessed together.",
            ("position",),
            registry=registry,
        )
        self._seconds = counter("step_seconds", "Time in steps that verified guessed tokens.")
        # Over step_seconds, it is what speculation gains.
        self._undrafted = counter(
            "undrafted_step_seconds", "Time that steps without guessed tokens would have taken for as much, reckoned."
        )

    def observe(self, result: StepResult) -> None:
        num_accepted = [count - 1 for count in result.token_counts or (1,) * len(result.slots)]
        self._num_drafts.inc(sum(count > 0 for count in result.draft_counts))
        self._num_draft_tokens.inc(sum(result.draft_counts))
        self._num_accepted_tokens.inc(sum(num_accepted))
        for position in range(max(num_accepted, default=0)):
            self._per_position.labels(position).inc(sum(count > position for count in num_accepted))
        self._seconds.inc(result.duration_s)
        self._undrafted.inc(result.undrafted_duration_s)


class _StatsCollector(Collector):
    """Turns Stats into samples when scraped."""

    def __init__(self) -> None:
        self.stats: Stats | None = None

    def collect(self) -> Iterable[Metric]:
        if self.stats is None:
            return
        yield from _gauges(self.stats)
        yield from _counters(self.stats)


def _gauges(stats: Stats) -> Iterable[Metric]:
    yield GaugeMetricFamily("pageloom_num_requests_running", "Choices that hold a slot.", stats.num_running)
    yield GaugeMetricFamily("pageloom_num_requests_waiting", "Choices in the queue.", stats.num_waiting)
    yield GaugeMetricFamily("pageloom_num_workers", "Attached workers.", len(stats.workers))
    usage = GaugeMetricFamily("pageloom_kv_cache_usage_perc", "Used part of the KV blocks, 0 to 1.", labels=["worker"])
    cached = GaugeMetricFamily("pageloom_kv_cached_blocks", "Blocks in the prefix cache.", labels=["worker"])
    for worker in stats.workers:
        num_used = worker.cache.num_blocks - worker.num_free_blocks
        usage.add_metric([worker.worker_id], num_used / worker.cache.num_blocks)
        cached.add_metric([worker.worker_id], worker.num_cached_blocks)
    yield usage
    yield cached


def _counters(stats: Stats) -> Iterable[Metric]:
    counters = {
        "pageloom_prefix_cache_queries": (
            "Prompt tokens looked up in the prefix cache.",
            stats.prefix_cache_queried_tokens,
        ),
        "pageloom_prefix_cache_hits": ("Prompt tokens found in the prefix cache.", stats.prefix_cache_hit_tokens),
        "pageloom_num_preemptions": ("Sequences that lost their blocks to others.", stats.num_preemptions),
        "pageloom_lost_workers": ("Workers that went away.", stats.num_lost_workers),
        "pageloom_scheduler_prompt_tokens": ("Prompt tokens admitted.", stats.num_prompt_tokens),
        "pageloom_scheduler_generation_tokens": ("Tokens generated.", stats.num_generation_tokens),
    }
    for name, (text, value) in counters.items():
        yield CounterMetricFamily(name, text, value)
    finished = CounterMetricFamily("pageloom_choices_finished", "Choices that ended.", labels=["finished_reason"])
    for reason, count in stats.num_finished.items():
        finished.add_metric([reason.value], count)
    yield finished
