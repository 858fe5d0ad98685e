"""The worker's Prometheus metrics."""

from __future__ import annotations

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from pageloom.plan import CacheInfo, ModelInfo, StepResult

_STEP_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0)


class WorkerMetrics:
    """What one worker process counts; every series carries the model's name."""

    def __init__(self, model: ModelInfo, cache: CacheInfo, registry: CollectorRegistry = REGISTRY) -> None:
        def named(kind: type[Counter] | type[Gauge], name: str, text: str) -> Counter | Gauge:
            return kind(name, text, ("model_name",), registry=registry).labels(model.name)

        self._steps = Histogram(
            "pageloom_worker_step_seconds",
            "Time in the model and the sampler per step.",
            ("model_name",),
            buckets=_STEP_BUCKETS_S,
            registry=registry,
        ).labels(model.name)
        self._tokens = named(Counter, "pageloom_worker_tokens", "Tokens drawn.")
        self._failures = named(Counter, "pageloom_worker_failed_rows", "Rows whose run failed.")
        named(Gauge, "pageloom_worker_weights_bytes", "Bytes of the weights in memory.").inc(model.weights_bytes)
        named(Gauge, "pageloom_worker_kv_blocks", "KV blocks in the pool.").inc(cache.num_blocks)

    def observe_step(self, result: StepResult) -> None:
        self._steps.observe(result.duration_s)
        self._tokens.inc(len(result.slots))
        self._failures.inc(len(result.failures))
