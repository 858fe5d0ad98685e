"""What happened in a simulation, and when? Columns by request, and samples of the whole in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pageloom.outputs import FinishReason
from scheduler_svc.core.emission import Committed, Stats
from scheduler_svc.simulation.trace import Trace

_FIRST_CAPACITY = 1 << 12
_FAILURES = (FinishReason.ERROR, FinishReason.CANCELLED, FinishReason.DEADLINE)


class Column:
    """A float array that grows at its end."""

    def __init__(self) -> None:
        self._values = np.zeros(_FIRST_CAPACITY)
        self._length = 0

    @property
    def values(self) -> NDArray[np.float64]:
        return self._values[: self._length]

    def extend(self, values: NDArray[np.float64]) -> None:
        end = self._length + len(values)
        if end > len(self._values):
            self._values = np.concatenate((self._values, np.zeros(max(end, len(self._values)))))
        self._values[self._length : end] = values
        self._length = end


@dataclass(frozen=True, slots=True)
class Sample:
    """The state at one moment; `num_unused_tokens` is allocated KV memory that holds nothing, `num_fragmented_tokens`
    free memory that is in too small pieces for the request that is due."""

    at_s: float
    num_running: int
    num_waiting: int
    num_allocated_tokens: int
    num_unused_tokens: int
    num_fragmented_tokens: int
    tenant_tokens: tuple[int, ...]


@dataclass(slots=True)
class StepTotals:
    """Sums over all steps."""

    num_steps: int = 0
    num_tokens: int = 0
    num_seqs: int = 0
    busy_s: float = 0.0


@dataclass(slots=True)
class SchedulerTimes:
    """Wall-clock seconds in the scheduler's calls: the one thing here that differs between equal runs."""

    submit_s: float = 0.0
    plan_s: float = 0.0
    commit_s: float = 0.0


@dataclass(slots=True)
class Recorder:
    """Rows are requests in the order of the trace. Times are NaN until they come.

    `num_unused` and `num_fragmented` say what of the memory is of no use at this moment.
    """

    trace: Trace
    sample_interval_s: float
    stats: Callable[[], Stats]
    num_unused: Callable[[], int]
    num_fragmented: Callable[[], int]
    samples: list[Sample] = field(default_factory=list)
    steps: StepTotals = field(default_factory=StepTotals)
    scheduler_times: SchedulerTimes = field(default_factory=SchedulerTimes)
    itl_s: Column = field(default_factory=Column)
    refusals: list[str] = field(default_factory=list)
    num_failed: int = 0
    arrived_s: NDArray[np.float64] = field(init=False)
    first_token_s: NDArray[np.float64] = field(init=False)
    finished_s: NDArray[np.float64] = field(init=False)
    num_output_tokens: NDArray[np.int64] = field(init=False)
    tenants: tuple[str, ...] = field(init=False)
    tenant_of: NDArray[np.int64] = field(init=False)
    _last_token_s: NDArray[np.float64] = field(init=False)
    _tenant_tokens: NDArray[np.int64] = field(init=False)
    _prompt_lens: NDArray[np.int64] = field(init=False)
    _rows: dict[int, int] = field(default_factory=dict)
    _next_sample_s: float = 0.0

    def __post_init__(self) -> None:
        requests = self.trace.requests
        self.arrived_s = np.array([request.arrival_s for request in requests])
        self.first_token_s, self.finished_s, self._last_token_s = (np.full(len(requests), np.nan) for _ in range(3))
        self.num_output_tokens = np.zeros(len(requests), np.int64)
        self.tenants = tuple(sorted({request.tenant for request in requests}))
        self.tenant_of = np.array([self.tenants.index(request.tenant) for request in requests], np.int64)
        self._tenant_tokens = np.zeros(len(self.tenants), np.int64)
        self._prompt_lens = np.array([request.num_prompt_tokens for request in requests], np.int64)
        self._next_sample_s = requests[0].arrival_s

    @property
    def tenant_tokens(self) -> tuple[int, ...]:
        """Prompt tokens, once the first token came, and output tokens that each of `tenants` was served."""
        return tuple(self._tenant_tokens.tolist())

    @property
    def num_open(self) -> int:
        return len(self._rows)

    def submitted(self, row: int, keys: tuple[int, ...]) -> None:
        for key in keys:
            self._rows[key] = row

    def refused(self, reason: str) -> None:
        self.refusals.append(reason)

    def committed(self, committed: Committed, duration_s: float, now: float) -> None:
        assert committed.facts is not None
        self.steps.num_steps += 1
        self.steps.num_tokens += committed.facts.num_tokens
        self.steps.num_seqs += committed.facts.num_seqs
        self.steps.busy_s += duration_s
        keys = committed.tokens.keys.tolist()
        if keys:
            rows = np.array([self._rows[key] for key in keys], np.int64)
            self._count_tokens(rows, committed.tokens.indexes == 0, now)
        for ending in committed.endings:
            row = self._rows.pop(ending.key)
            self.finished_s[row] = now
            self.num_failed += ending.event.reason in _FAILURES

    def sample_until(self, now: float) -> None:
        """Takes the samples that fall before `now`: nothing has changed since the event before."""
        while self._next_sample_s < now:
            self.samples.append(self._sample(self._next_sample_s))
            self._next_sample_s += self.sample_interval_s

    def _count_tokens(self, rows: NDArray[np.int64], first: NDArray[np.bool_], now: float) -> None:
        newly, going_on = rows[first], rows[~first]
        self.first_token_s[newly] = now
        self.itl_s.extend(now - self._last_token_s[going_on])
        self._last_token_s[rows] = now
        self.num_output_tokens[rows] += 1
        if len(self.tenants) > 1:
            np.add.at(self._tenant_tokens, self.tenant_of[rows], 1)
            np.add.at(self._tenant_tokens, self.tenant_of[newly], self._prompt_lens[newly])

    def _sample(self, at_s: float) -> Sample:
        stats = self.stats()
        num_allocated = sum(
            (worker.cache.num_blocks - worker.num_free_blocks) * worker.cache.block_size for worker in stats.workers
        )
        return Sample(
            at_s=at_s,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            num_allocated_tokens=num_allocated,
            # A worker learns of releases with its next plan, which does not come while there is nothing to run.
            num_unused_tokens=self.num_unused() if stats.num_running else 0,
            num_fragmented_tokens=self.num_fragmented(),
            tenant_tokens=self.tenant_tokens,
        )
