"""How did it go? Percentiles, memory and throughput of one simulation, as values and as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from scheduler_svc.core.emission import Stats
from scheduler_svc.simulation.recorder import Recorder, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Percentiles by linear interpolation."""

    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantReport:
    """`num_tokens` are prompt tokens and output tokens that were served."""

    num_requests: int
    num_tokens: int
    ttft_s: Distribution | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Shares of KV memory, from samples over the time in which requests arrived.

    `mean_use` and `peak_use` are what sequences hold of all memory. `waste` is the part of what they hold that is for
    no token they have, by sums over the samples: room for the future, and the ends of blocks. `fragmented` is the mean
    share of all memory that is free but in pieces too small for the request whose turn it is. `tokens_when_queued` is
    the mean share of all memory that is for tokens which sequences have, over the samples in which requests wait; None
    if none ever did.
    """

    num_tokens: int
    mean_use: float
    peak_use: float
    waste: float
    fragmented: float
    tokens_when_queued: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Times in seconds. Latencies are of requests that finished: time to first token, between tokens, from arrival to
    end, and the latter per output token (the PagedAttention paper's normalised latency)."""

    num_requests: int
    num_finished: int
    num_refused: int
    num_failed: int
    duration_s: float
    requests_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    ttft_s: Distribution | None
    itl_s: Distribution | None
    e2e_s: Distribution | None
    normalised_s: Distribution | None
    memory: MemoryReport
    prefix_hit_ratio: float
    num_preemptions: int
    mean_running: float
    peak_running: int
    mean_waiting: float
    peak_waiting: int
    num_steps: int
    mean_step_s: float
    mean_seqs_in_step: float
    mean_tokens_in_step: float
    busy_share: float
    tenants: dict[str, TenantReport]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarize(recorder: Recorder, stats: Stats, duration_s: float) -> Report:
    """`stats` are the scheduler's at the end; `duration_s` is the time from the first arrival to the last event."""
    finished = ~np.isnan(recorder.finished_s) & ~np.isnan(recorder.first_token_s)
    arrived, ended = recorder.arrived_s[finished], recorder.finished_s[finished]
    outputs = recorder.num_output_tokens[finished]
    samples = _samples_of_arrivals(recorder)
    running = _column(samples, "num_running")
    waiting = _column(samples, "num_waiting")
    steps = recorder.steps
    num_steps, span_s = max(steps.num_steps, 1), max(duration_s, 1e-9)
    return Report(
        num_requests=len(recorder.arrived_s),
        num_finished=int(finished.sum()) - recorder.num_failed,
        num_refused=len(recorder.refusals),
        num_failed=recorder.num_failed,
        duration_s=duration_s,
        requests_per_s=float(finished.sum()) / span_s,
        prompt_tokens_per_s=stats.num_prompt_tokens / span_s,
        output_tokens_per_s=float(recorder.num_output_tokens.sum()) / span_s,
        ttft_s=_distribution(recorder.first_token_s[finished] - arrived),
        itl_s=_distribution(recorder.itl_s.values),
        e2e_s=_distribution(ended - arrived),
        normalised_s=_distribution((ended - arrived) / np.maximum(outputs, 1)),
        memory=_memory(samples, stats),
        prefix_hit_ratio=stats.prefix_cache_hit_tokens / max(stats.prefix_cache_queried_tokens, 1),
        num_preemptions=stats.num_preemptions,
        mean_running=float(running.mean()),
        peak_running=int(running.max()),
        mean_waiting=float(waiting.mean()),
        peak_waiting=int(waiting.max()),
        num_steps=steps.num_steps,
        mean_step_s=steps.busy_s / num_steps,
        mean_seqs_in_step=steps.num_seqs / num_steps,
        mean_tokens_in_step=steps.num_tokens / num_steps,
        busy_share=steps.busy_s / span_s / max(len(stats.workers), 1),
        tenants=_tenants(recorder) if len(recorder.tenants) > 1 else {},
    )


def print_report(console: Console, title: str, report: Report) -> None:
    console.print(_latency_table(title, report))
    grid = Table.grid(padding=(0, 2))
    for name, text in _facts(report):
        grid.add_row(name, text)
    console.print(grid)
    if report.tenants:
        console.print(_tenant_table(report))


def _samples_of_arrivals(recorder: Recorder) -> list[Sample]:
    """All samples if requests came all at once."""
    first_s, last_s = recorder.arrived_s[0], recorder.arrived_s[-1]
    return [sample for sample in recorder.samples if sample.at_s <= last_s or first_s == last_s]


def _column(samples: list[Sample], name: str) -> NDArray[np.float64]:
    return np.array([getattr(sample, name) for sample in samples] or [0], np.float64)


def _distribution(values: NDArray[np.float64]) -> Distribution | None:
    if len(values) == 0:
        return None
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return Distribution(mean=float(values.mean()), p50=p50, p90=p90, p99=p99)


def _memory(samples: list[Sample], stats: Stats) -> MemoryReport:
    capacity = sum(worker.cache.num_blocks * worker.cache.block_size for worker in stats.workers)
    allocated = _column(samples, "num_allocated_tokens")
    unused = np.minimum(_column(samples, "num_unused_tokens"), allocated)
    queued = _column(samples, "num_waiting") > 0
    used_when_queued = (allocated - unused)[queued]
    return MemoryReport(
        num_tokens=capacity,
        mean_use=float(allocated.mean()) / capacity,
        peak_use=float(allocated.max()) / capacity,
        waste=float(unused.sum() / max(allocated.sum(), 1)),
        fragmented=float(_column(samples, "num_fragmented_tokens").mean()) / capacity,
        tokens_when_queued=float(used_when_queued.mean()) / capacity if len(used_when_queued) else None,
    )


def _tenants(recorder: Recorder) -> dict[str, TenantReport]:
    reports: dict[str, TenantReport] = {}
    num_tokens = recorder.tenant_tokens
    for i, tenant in enumerate(recorder.tenants):
        rows = (recorder.tenant_of == i) & ~np.isnan(recorder.first_token_s)
        reports[tenant] = TenantReport(
            num_requests=int((recorder.tenant_of == i).sum()),
            num_tokens=num_tokens[i],
            ttft_s=_distribution(recorder.first_token_s[rows] - recorder.arrived_s[rows]),
        )
    return reports


def _latency_table(title: str, report: Report) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("milliseconds", no_wrap=True)
    for heading in ("mean", "p50", "p90", "p99"):
        table.add_column(heading, justify="right", no_wrap=True)
    rows = {
        "time to first token": report.ttft_s,
        "between tokens": report.itl_s,
        "end to end": report.e2e_s,
        "end to end per output token": report.normalised_s,
    }
    for name, values in rows.items():
        table.add_row(name, *_milliseconds(values))
    return table


def _tenant_table(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("tenant", "requests", "tokens", "TTFT ms: mean", "p50", "p90", "p99"):
        table.add_column(heading, justify="left" if heading == "tenant" else "right")
    for name, tenant in report.tenants.items():
        table.add_row(
            name or "(none)", f"{tenant.num_requests:,}", f"{tenant.num_tokens:,}", *_milliseconds(tenant.ttft_s)
        )
    return table


def _milliseconds(values: Distribution | None) -> tuple[str, ...]:
    if values is None:
        return ("–",) * 4
    return tuple(f"{1000 * value:,.1f}" for value in (values.mean, values.p50, values.p90, values.p99))


def _facts(report: Report) -> list[tuple[str, str]]:
    memory = report.memory
    # Plain words for what went wrong, only if something did.
    troubles = "".join(
        f", {count} {word}" for count, word in ((report.num_refused, "refused"), (report.num_failed, "failed")) if count
    )
    queued = memory.tokens_when_queued
    return [
        (
            "requests",
            f"{report.num_finished:,} of {report.num_requests:,} finished{troubles}, in {report.duration_s:,.1f} s",
        ),
        (
            "throughput",
            f"{report.requests_per_s:.2f} requests/s, {report.prompt_tokens_per_s:,.0f} prompt and "
            f"{report.output_tokens_per_s:,.0f} output tokens/s",
        ),
        ("running", f"{report.mean_running:.1f} on average, {report.peak_running} at most"),
        ("waiting", f"{report.mean_waiting:.1f} on average, {report.peak_waiting} at most"),
        (
            "KV memory",
            f"{memory.num_tokens:,} tokens: {memory.mean_use:.1%} in use on average, {memory.peak_use:.1%} at most",
        ),
        (
            "KV waste",
            f"{memory.waste:.2%} of what is in use"
            + (f", {memory.fragmented:.1%} of all lost to fragmentation" if memory.fragmented else "")
            + (f"; {queued:.1%} of all holds tokens while requests wait" if queued is not None else ""),
        ),
        ("prefix cache", f"{report.prefix_hit_ratio:.1%} of prompt tokens found"),
        ("preemptions", f"{report.num_preemptions:,}"),
        (
            "steps",
            f"{report.num_steps:,} of {1000 * report.mean_step_s:.1f} ms, {report.mean_seqs_in_step:.1f} sequences and "
            f"{report.mean_tokens_in_step:.0f} tokens on average; workers busy {report.busy_share:.0%} of the time",
        ),
    ]
