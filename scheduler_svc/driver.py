"""The only caller of the core: requests in, plans to workers, results back, events out.

Each method runs to its end on the event loop without awaiting, and `drive` calls the core only
between awaits, so the core has one writer and needs no lock.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

import structlog

from pageloom import __version__
from pageloom.errors import DuplicateRequest, EngineError, Unavailable
from pageloom.plan import BatchPlan
from pageloom.requests import EngineInfo, GenerateRequest, WorkerInfo
from scheduler_svc.core import Emission, Limits, Scheduler
from scheduler_svc.metrics import SchedulerMetrics
from scheduler_svc.outbox import Outbox
from scheduler_svc.worker_link import WorkerLeft, WorkerLink, WorkerLost

log = structlog.get_logger()

# What slow readers get to take the events that end their requests.
_LAST_EVENTS_GRACE_S = 1.0


class Driver:
    """Owns the core, the outboxes, and who is attached. `announce` is told whether requests can run."""

    def __init__(
        self,
        limits: Limits,
        metrics: SchedulerMetrics,
        announce: Callable[[bool], Awaitable[None]],
        step_timeout_s: float,
    ) -> None:
        self._step_timeout_s = step_timeout_s
        self._limits = limits
        self._core = Scheduler(limits)
        self._metrics = metrics
        self._announce = announce
        self._outboxes: dict[str, Outbox] = {}
        self._links: dict[str, WorkerLink] = {}
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, request: GenerateRequest) -> Outbox:
        """Queues a request. Raises the PageloomErrors of Scheduler.submit, or Unavailable while draining."""
        if self._draining:
            raise Unavailable("the scheduler is shutting down")
        if request.request_id in self._outboxes:
            raise DuplicateRequest(f"request_id {request.request_id!r} is still running", param="request_id")
        if request.sampling.seed is None:
            request = replace(request, sampling=replace(request.sampling, seed=secrets.randbits(64)))
        self._core.submit(request, time.monotonic())
        outbox = self._outboxes[request.request_id] = Outbox(request.n)
        self._idle.clear()
        self._metrics.publish(self._core.stats())
        self._wake_workers()
        return outbox

    def cancel(self, request_id: str, choice_indexes: tuple[int, ...] = ()) -> None:
        """Ends some choices (none named: all); finished and unknown ones are ignored."""
        self._deliver(self._core.cancel(request_id, choice_indexes))
        self._metrics.publish(self._core.stats())
        self._wake_workers()

    def close(self, request_id: str) -> None:
        """The request's reader is gone: cancels what still runs and drops its outbox."""
        self.cancel(request_id)
        del self._outboxes[request_id]
        if not self._outboxes:
            self._idle.set()

    async def attach(self, link: WorkerLink) -> None:
        """Makes a worker's memory available. Raises InvalidRequest if its model is not the one that is served,
        DuplicateRequest if another process of its name is attached, Unavailable while draining."""
        if self._draining:
            raise Unavailable("the scheduler is shutting down")
        worker_id = link.hello.worker_id
        if (earlier := self._links.get(worker_id)) is not None:
            if earlier.hello.boot_id != link.hello.boot_id:
                raise DuplicateRequest(f"a worker named {worker_id!r} is attached already")
            earlier.supersede()
            await earlier.detached.wait()
        self._deliver(self._core.attach(link.hello, link.epoch))
        self._links[worker_id] = link

    async def detach(self, link: WorkerLink) -> None:
        """The worker is gone: its requests go back to the queue with the tokens they have."""
        worker_id = link.hello.worker_id
        del self._links[worker_id]
        self._deliver(self._core.abandon(worker_id))
        self._metrics.publish(self._core.stats())
        self._wake_workers()
        link.detached.set()
        await self._announce(self._serving)

    async def drive(self, link: WorkerLink) -> None:
        """Runs one attached worker. Raises WorkerLost when it fails, WorkerLeft once it may go."""
        worker_id = link.hello.worker_id
        await self._announce(self._serving)
        while not link.departing:
            plan = self._core.plan(worker_id, time.monotonic())
            self._metrics.publish(self._core.stats())
            if plan is None:
                await link.wait_for_work()
            else:
                await self._step(link, plan)
        raise WorkerLeft

    async def _step(self, link: WorkerLink, plan: BatchPlan) -> None:
        worker_id = link.hello.worker_id
        facts = self._core.step_facts(worker_id)
        if facts.num_preempted:
            # Back in the queue, they may run elsewhere.
            self._wake_workers()
        started_s = time.monotonic()
        result = await link.execute(plan, self._step_timeout_s)
        now_s = time.monotonic()
        try:
            emissions = self._core.commit(worker_id, result, now_s)
        except EngineError as error:
            raise WorkerLost(error.message) from error
        self._metrics.observe_step(facts, now_s - started_s, result.duration_s)
        self._deliver(emissions)

    @property
    def _serving(self) -> bool:
        return bool(self._links) and not self._draining

    def info(self) -> EngineInfo:
        stats = self._core.stats()
        return EngineInfo(
            version=__version__,
            model=self._core.model,
            workers=tuple(
                WorkerInfo(
                    worker_id=worker.worker_id,
                    epoch=worker.epoch,
                    cache=worker.cache,
                    num_free_blocks=worker.num_free_blocks,
                )
                for worker in stats.workers
            ),
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            max_num_seqs=self._limits.max_num_seqs,
            max_num_batched_tokens=self._limits.max_num_batched_tokens,
            draining=self._draining,
        )

    async def drain(self, timeout_s: float) -> None:
        """Refuses new requests, lets the running ones finish for `timeout_s` and ends the rest, then sends the
        workers away."""
        self._draining = True
        await self._announce(False)
        if not await self._becomes_idle(timeout_s):
            log.warning("drain timed out", open_requests=len(self._outboxes))
            self._deliver(self._core.end_all("the scheduler is shutting down"))
            await self._becomes_idle(_LAST_EVENTS_GRACE_S)
        for link in tuple(self._links.values()):
            link.drain()

    async def _becomes_idle(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _deliver(self, emissions: Iterable[Emission]) -> None:
        for emission in emissions:
            outbox = self._outboxes.get(emission.request_id)
            if outbox is not None:
                outbox.put(emission.event)
            if emission.facts is not None:
                self._metrics.observe_finished(emission.facts)

    def _wake_workers(self) -> None:
        for link in self._links.values():
            link.wake()
