"""What comes next? Arrivals and results in the order of virtual time, through a scheduler and back."""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pageloom.errors import EngineError, RequestError
from pageloom.plan import BatchPlan, StepResult
from pageloom.requests import GenerateRequest
from scheduler_svc.core.emission import Committed, Stats, StepFacts
from scheduler_svc.pace import Pace
from scheduler_svc.simulation.device import SimulatedDevice
from scheduler_svc.simulation.recorder import Recorder


class SteppedScheduler(Protocol):
    """What is simulated: the core, or something with the same calls."""

    def submit(self, request: GenerateRequest, now: float) -> tuple[int, ...]: ...

    def plan(self, worker_id: str, now: float) -> BatchPlan | None: ...

    def last_step_facts(self, worker_id: str) -> StepFacts | None: ...

    def commit(self, worker_id: str, result: StepResult, now: float) -> Committed: ...

    def stats(self) -> Stats: ...


@dataclass(frozen=True, slots=True)
class _Step:
    """A step in flight; `num_growing` sequences grow by a token in it."""

    result: StepResult
    num_growing: int
    sent_s: float


@dataclass(slots=True)
class _Worker:
    """One worker, and its link as the driver sees it."""

    device: SimulatedDevice
    pace: Pace = field(default_factory=Pace)
    in_flight: deque[_Step] = field(default_factory=deque)
    free_at_s: float = 0.0
    # When the oldest step in flight can have begun, and when its driver has set itself to look again.
    working_since_s: float = 0.0
    wakes_at_s: float = math.inf


class EventLoop:
    """Drives one scheduler with simulated workers, and sends plans when the driver would (`driver.py`, `pace.py`).

    A plan takes half of `hop_latency_s` to its worker, and its result half of it back; the scheduler takes no time.
    """

    def __init__(
        self,
        scheduler: SteppedScheduler,
        devices: Mapping[str, SimulatedDevice],
        *,
        max_num_steps_in_flight: int,
        hop_latency_s: float,
    ) -> None:
        self._scheduler = scheduler
        self._workers = {worker_id: _Worker(device) for worker_id, device in devices.items()}
        self._max_num_in_flight = max_num_steps_in_flight
        self._half_hop_s = hop_latency_s / 2
        # (time, number, worker id, whether its oldest result comes or its driver looks again); the numbers put
        # simultaneous events in the order of their making.
        self._events: list[tuple[float, int, str, bool]] = []
        self._num_events = 0

    @property
    def num_unused_tokens(self) -> int:
        """Allocated KV memory that is for no token yet: those of steps in flight have not come either."""
        return sum(
            worker.device.num_unused_tokens + sum(step.num_growing for step in worker.in_flight)
            for worker in self._workers.values()
        )

    def run(
        self, requests: Iterable[tuple[float, GenerateRequest]], recorder: Recorder, until_s: float = math.inf
    ) -> float:
        """Runs until everything has finished, or the first event after `until_s`; returns when the last result came.
        `requests` come in the order of their arrival.

        Raises EngineError if the scheduler leaves requests waiting for ever.
        """
        now = last_result_s = 0.0
        arrivals = iter(requests)
        arrival = next(arrivals, None)
        while (arrival is not None or self._events) and now <= until_s:
            if arrival is not None and (not self._events or arrival[0] <= self._events[0][0]):
                now = arrival[0]
                recorder.sample_until(now)
                # Those that come at once are all there before anything is planned.
                while arrival is not None and arrival[0] == now:
                    self._submit(arrival[1], recorder, now)
                    arrival = next(arrivals, None)
                concerned: Iterable[str] = self._workers
            else:
                now, _, worker_id, is_result = heapq.heappop(self._events)
                recorder.sample_until(now)
                concerned = (worker_id,)
                if is_result:
                    last_result_s = now
                    num_preempted = self._commit(worker_id, recorder, now)
                    # Back in the queue, they may run elsewhere.
                    concerned = self._workers if num_preempted else concerned
            for worker_id in concerned:
                self._send_plans(worker_id, recorder, now)
        if recorder.num_open and now <= until_s:
            raise EngineError(f"{recorder.num_open} requests are still open, but nothing runs any more")
        return last_result_s

    def _submit(self, request: GenerateRequest, recorder: Recorder, now: float) -> None:
        assert request.sampling.seed is not None
        started_s = time.perf_counter()
        try:
            keys = self._scheduler.submit(request, now)
        except RequestError as error:
            recorder.refused(error.message)
            return
        recorder.scheduler_times.submit_s += time.perf_counter() - started_s
        recorder.submitted(request.sampling.seed, keys)

    def _commit(self, worker_id: str, recorder: Recorder, now: float) -> int:
        """How many the step had preempted."""
        worker = self._workers[worker_id]
        result = worker.in_flight.popleft().result
        worker.working_since_s = now
        started_s = time.perf_counter()
        committed = self._scheduler.commit(worker_id, result, now)
        recorder.scheduler_times.commit_s += time.perf_counter() - started_s
        recorder.committed(committed, result.duration_s, now)
        assert committed.facts is not None, "every result answers a plan in flight"
        worker.pace.observe(committed.facts, result.duration_s)
        return committed.facts.num_preempted

    def _send_plans(self, worker_id: str, recorder: Recorder, now: float) -> None:
        worker = self._workers[worker_id]
        while len(worker.in_flight) < self._max_num_in_flight:
            if worker.in_flight and (due_s := self._due_s(worker_id, worker)) > now:
                if due_s != worker.wakes_at_s:
                    worker.wakes_at_s = due_s
                    self._add_event(due_s, worker_id, is_result=False)
                return
            started_s = time.perf_counter()
            plan = self._scheduler.plan(worker_id, now)
            recorder.scheduler_times.plan_s += time.perf_counter() - started_s
            if plan is None:
                return
            self._send(worker_id, worker, plan, now)

    def _due_s(self, worker_id: str, worker: _Worker) -> float:
        facts = self._scheduler.last_step_facts(worker_id)
        assert facts is not None
        return max(worker.working_since_s, worker.in_flight[0].sent_s) + worker.pace.delay_s(facts)

    def _send(self, worker_id: str, worker: _Worker, plan: BatchPlan, now: float) -> None:
        result, num_growing = worker.device.run(plan)
        worker.free_at_s = max(worker.free_at_s, now + self._half_hop_s) + result.duration_s
        worker.in_flight.append(_Step(result, num_growing, now))
        self._add_event(worker.free_at_s + self._half_hop_s, worker_id, is_result=True)

    def _add_event(self, at_s: float, worker_id: str, *, is_result: bool) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (at_s, self._num_events, worker_id, is_result))
