"""The worker's Prometheus metrics."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from pageloom.plan import CacheInfo, ModelInfo, StepResult
from pageloom.unlocked_metrics import UnlockedCounter, UnlockedHistogram
from worker_svc.step_thread import StepTimes

_STEP_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0)
# From a plan that is there already to one that a lost connection held up.
_WAIT_BUCKETS_S = (0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


class WorkerMetrics:
    """What one worker process counts; every series carries the model's name."""

    def __init__(self, model: ModelInfo, cache: CacheInfo, registry: CollectorRegistry = REGISTRY) -> None:
        labels = {"model_name": model.name}

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, tuple(labels), registry=registry).labels(**labels)

        def counter(name: str, text: str) -> UnlockedCounter:
            return UnlockedCounter(name, text, registry=registry, labels=labels)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> UnlockedHistogram:
            return UnlockedHistogram(name, text, buckets=buckets, registry=registry, labels=labels)

        self._steps = histogram(
            "pageloom_worker_step_seconds", "Time in the model and the sampler per step.", _STEP_BUCKETS_S
        )
        self._plan_waits = histogram(
            "pageloom_worker_plan_wait_seconds",
            "Time the model waited for its next plan, between two steps that ran the same sequences.",
            _WAIT_BUCKETS_S,
        )
        # Of the time in which there was work, idle / (idle + busy) is what scheduler and network cost.
        self._busy = counter("pageloom_worker_busy_seconds", "Time in steps.")
        self._idle = counter("pageloom_worker_idle_seconds", "Time between two steps that ran the same sequences.")
        self._tokens = counter("pageloom_worker_tokens", "Tokens drawn.")
        self._failures = counter("pageloom_worker_failed_rows", "Rows whose run failed.")
        self._grammar_failures = counter(
            "pageloom_worker_grammar_failures", "Rows that failed because their grammar could not be followed."
        )
        gauge("pageloom_worker_weights_bytes", "Bytes of the weights in memory.").inc(model.weights_bytes)
        gauge("pageloom_worker_kv_blocks", "KV blocks in the pool.").inc(cache.num_blocks)

    def observe_step(self, result: StepResult, times: StepTimes) -> None:
        self._steps.observe(result.duration_s)
        self._busy.inc(times.step_s)
        if times.plan_wait_s is not None:
            self._plan_waits.observe(times.plan_wait_s)
        if times.idle_s is not None:
            self._idle.inc(times.idle_s)
        self._tokens.inc(len(result.token_ids))
        self._failures.inc(len(result.failures))
        self._grammar_failures.inc(sum(failure.param == "grammar" for failure in result.failures.values()))
