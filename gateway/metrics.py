"""What the gateway can measure: requests, tokens and the times a client feels. vLLM's names under our prefix."""

from __future__ import annotations

import time
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from gateway.answers.choice import ChoiceDelta
from gateway.errors import ClientDisconnected
from gateway.openai.answer_schemas import Finish
from pageloom import __version__
from pageloom.unlocked_metrics import UnlockedCounter, UnlockedHistogram

TTFT_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.25, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0)
ITL_BUCKETS_S = (0.001, 0.002, 0.004, 0.008, 0.015, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.5)
FINISHED_REASONS = ("stop", "length", "tool_calls", "abort", "error")
LAG_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
E2E_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)


class GatewayMetrics:
    """One registry per gateway, so that several can live in one process. With `shared_dir`, the folder that
    `PROMETHEUS_MULTIPROC_DIR` named when this process began, several processes are one gateway: what any of them is
    asked for is the sum of all, without what is of one process alone."""

    def __init__(self, model_name: str, shared_dir: str | None = None) -> None:
        self._model_name = model_name
        self.registry = CollectorRegistry()
        self._shown = _shown_registry(self.registry, shared_dir)
        self._build_info()
        self.http_requests = Counter(
            "pageloom_http_requests",
            "HTTP requests by route and status.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.generations_running = self._gauge("num_generations_running", "Generations that the gateway is serving.")
        self.unknown_fields = self._counter(
            "unknown_request_fields", "Fields of requests that nobody knows, and that were ignored."
        )
        self.loop_lag = self._histogram(
            "event_loop_lag_seconds", "How late the event loop wakes a sleeper.", LAG_BUCKETS_S
        )
        self.success = self._successes()
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens in prompts.")
        # These two change with each token.
        labels, folder = {"model_name": model_name}, None if shared_dir is None else Path(shared_dir)
        self.generation_tokens = UnlockedCounter(
            "pageloom_generation_tokens", "Tokens generated.", registry=self._shown, labels=labels, folder=folder
        )
        self.itl = UnlockedHistogram(
            "pageloom_inter_token_latency_seconds",
            "Between the tokens of a choice.",
            buckets=ITL_BUCKETS_S,
            registry=self._shown,
            labels=labels,
            folder=folder,
        )
        self.grammars_refused = self._counter(
            "grammars_refused", "Requests whose grammar cannot be compiled, or takes too much."
        )
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "From the request to its first token.", TTFT_BUCKETS_S
        )
        self.e2e = self._histogram("e2e_request_latency_seconds", "From the request to its end.", E2E_BUCKETS_S)

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._shown)

    def _build_info(self) -> None:
        gauge = Gauge(
            "pageloom_build_info",
            "Always 1.",
            ("version", "service", "model_name"),
            registry=self.registry,
            multiprocess_mode="max",
        )
        gauge.labels(__version__, "gateway", self._model_name).set(1)

    def _successes(self) -> dict[str, Counter]:
        counter = Counter(
            "pageloom_request_success",
            "Choices that ended, by reason.",
            ("model_name", "finished_reason"),
            registry=self.registry,
        )
        return {reason: counter.labels(self._model_name, reason) for reason in FINISHED_REASONS}

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"pageloom_{name}", text, ("model_name",), registry=self.registry)
        return counter.labels(self._model_name)

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge = Gauge(f"pageloom_{name}", text, ("model_name",), registry=self.registry, multiprocess_mode="livesum")
        return gauge.labels(self._model_name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(f"pageloom_{name}", text, ("model_name",), buckets=buckets, registry=self.registry)
        return histogram.labels(self._model_name)


def _shown_registry(own: CollectorRegistry, shared_dir: str | None) -> CollectorRegistry:
    """What is asked for: the metrics of this process and of the process itself, or the sums of all that share."""
    if shared_dir is None:
        ProcessCollector(registry=own)
        PlatformCollector(registry=own)
        GCCollector(registry=own)
        return own
    shown = CollectorRegistry()
    MultiProcessCollector(shown, path=shared_dir)  # type: ignore[no-untyped-call]
    return shown


class RequestObserver:
    """Times one generation. Its fields are what the access log shows."""

    def __init__(self, metrics: GatewayMetrics, started_s: float, num_prompt_tokens: int, num_choices: int) -> None:
        self._metrics = metrics
        self._started_s = started_s
        self._last_token_s: dict[int, float] = {}
        self._choices_left = num_choices
        self.num_prompt_tokens = num_prompt_tokens
        self.num_completion_tokens = 0
        self.ttft_s: float | None = None
        self.finish: str | None = None
        metrics.prompt_tokens.inc(num_prompt_tokens)

    def on_delta(self, delta: ChoiceDelta) -> None:
        if delta.num_tokens:
            self._on_tokens(delta.choice_index, delta.num_tokens)
        if delta.finish is not None:
            self.on_finish(delta.finish)

    def on_finish(self, finish: Finish) -> None:
        """One choice has ended."""
        self._choices_left -= 1
        self.finish = finish
        self._metrics.success[finish].inc()

    def on_end(self, error: BaseException | None) -> None:
        """`error` is what ended the generation early."""
        self._metrics.e2e.observe(time.monotonic() - self._started_s)
        if error is not None:
            self.finish = "abort" if isinstance(error, ClientDisconnected) else "error"
            self._metrics.success[self.finish].inc(self._choices_left)

    def _on_tokens(self, choice_index: int, num_tokens: int) -> None:
        now_s = time.monotonic()
        self.num_completion_tokens += num_tokens
        if self.ttft_s is None:
            self.ttft_s = now_s - self._started_s
            self._metrics.ttft.observe(self.ttft_s)
        last_s = self._last_token_s.get(choice_index)
        self._metrics.generation_tokens.inc(num_tokens)
        if last_s is not None:
            # Tokens that came joined share the time since the last ones.
            self._metrics.itl.observe((now_s - last_s) / num_tokens)
        self._last_token_s[choice_index] = now_s
