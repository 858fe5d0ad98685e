"""What comes next? Arrivals and results in the order of virtual time, through a scheduler and back."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pageloom.errors import EngineError, RequestError
from pageloom.plan import BatchPlan, StepResult
from pageloom.requests import GenerateRequest
from scheduler_svc.core.emission import Committed, Stats
from scheduler_svc.simulation.device import SimulatedDevice
from scheduler_svc.simulation.recorder import Recorder


class SteppedScheduler(Protocol):
    """What is simulated: the core, or something with the same calls."""

    def submit(self, request: GenerateRequest, now: float) -> tuple[int, ...]: ...

    def plan(self, worker_id: str, now: float) -> BatchPlan | None: ...

    def commit(self, worker_id: str, result: StepResult, now: float) -> Committed: ...

    def stats(self) -> Stats: ...


@dataclass(slots=True)
class _Worker:
    device: SimulatedDevice
    free_at_s: float = 0.0
    num_in_flight: int = 0
    # Sequences that grow by a token in steps in flight, once for each step.
    num_growing: int = 0


@dataclass(frozen=True, slots=True)
class _Result:
    worker_id: str
    result: StepResult
    num_growing: int


class EventLoop:
    """Drives one scheduler with simulated workers. A plan takes half of `hop_latency_s` to its worker, and its
    result half of it back; the scheduler itself takes no time."""

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
        # (time, number, result); the number makes the order of simultaneous results one of their launch.
        self._results: list[tuple[float, int, _Result]] = []
        self._num_launched = 0

    @property
    def num_unused_tokens(self) -> int:
        """Allocated KV memory that is for no token yet: those of steps in flight have not come either."""
        return sum(worker.device.num_unused_tokens + worker.num_growing for worker in self._workers.values())

    def run(
        self, requests: Iterable[tuple[float, GenerateRequest]], recorder: Recorder, until_s: float = math.inf
    ) -> float:
        """Runs until everything has finished, or the first event after `until_s`; returns the time. `requests` come
        in the order of their arrival.

        Raises EngineError if the scheduler leaves requests waiting for ever.
        """
        now = 0.0
        arrivals = iter(requests)
        arrival = next(arrivals, None)
        while (arrival is not None or self._results) and now <= until_s:
            if arrival is not None and (not self._results or arrival[0] <= self._results[0][0]):
                now = arrival[0]
                recorder.sample_until(now)
                # Those that come at once are all there before anything is planned.
                while arrival is not None and arrival[0] == now:
                    self._submit(arrival[1], recorder, now)
                    arrival = next(arrivals, None)
            else:
                now, _, result = heapq.heappop(self._results)
                recorder.sample_until(now)
                self._commit(result, recorder, now)
            self._launch_all(recorder, now)
        if recorder.num_open and now <= until_s:
            raise EngineError(f"{recorder.num_open} requests are still open, but nothing runs any more")
        return now

    def _submit(self, request: GenerateRequest, recorder: Recorder, now: float) -> None:
        assert request.sampling.seed is not None
        started_s = time.thread_time()
        try:
            keys = self._scheduler.submit(request, now)
        except RequestError as error:
            recorder.refused(error.message)
            return
        recorder.scheduler_times.submit_s += time.thread_time() - started_s
        recorder.submitted(request.sampling.seed, keys)

    def _commit(self, finished: _Result, recorder: Recorder, now: float) -> None:
        worker = self._workers[finished.worker_id]
        worker.num_in_flight -= 1
        worker.num_growing -= finished.num_growing
        started_s = time.thread_time()
        committed = self._scheduler.commit(finished.worker_id, finished.result, now)
        recorder.scheduler_times.commit_s += time.thread_time() - started_s
        recorder.committed(committed, finished.result.duration_s, now)

    def _launch_all(self, recorder: Recorder, now: float) -> None:
        for worker_id, worker in self._workers.items():
            while worker.num_in_flight < self._max_num_in_flight:
                started_s = time.thread_time()
                plan = self._scheduler.plan(worker_id, now)
                recorder.scheduler_times.plan_s += time.thread_time() - started_s
                if plan is None:
                    break
                self._launch(worker_id, worker, plan, now)

    def _launch(self, worker_id: str, worker: _Worker, plan: BatchPlan, now: float) -> None:
        result, num_growing = worker.device.run(plan)
        worker.free_at_s = max(worker.free_at_s, now + self._half_hop_s) + result.duration_s
        worker.num_in_flight += 1
        worker.num_growing += num_growing
        self._num_launched += 1
        arrives_at_s = worker.free_at_s + self._half_hop_s
        heapq.heappush(self._results, (arrives_at_s, self._num_launched, _Result(worker_id, result, num_growing)))
