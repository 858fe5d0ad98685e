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
from pageloom.errors import DuplicateRequest, EngineError, InvalidRequest, Unavailable
from pageloom.plan import StepResult
from pageloom.requests import EngineInfo, GenerateRequest, WorkerInfo
from pageloom.timeline import Timeline
from pageloom.waiting import is_set_within
from scheduler_svc.core import Ending, NewTokens, Scheduler
from scheduler_svc.metrics import SchedulerMetrics
from scheduler_svc.outbox import Reader
from scheduler_svc.pace import Pace
from scheduler_svc.worker_link import WorkerLink, WorkerLost

log = structlog.get_logger()

# What slow readers get to take the events that end their requests.
_LAST_EVENTS_GRACE_S = 1.0
# How often the metrics get new figures at most: making them costs as much as a plan.
_PUBLISH_INTERVAL_S = 0.1
# The event loop's timers count in milliseconds: what is due sooner is due now, or a timer that is early costs another.
_TIMER_RESOLUTION_S = 0.001


class Driver:
    """Owns the core, the readers, and who is attached. `announce` is told whether requests can run."""

    def __init__(
        self,
        core: Scheduler,
        metrics: SchedulerMetrics,
        announce: Callable[[bool], Awaitable[None]],
        step_timeout_s: float,
        drain_timeout_s: float,
    ) -> None:
        self._core = core
        self._metrics = metrics
        self._announce = announce
        self._step_timeout_s = step_timeout_s
        self._drain_timeout_s = drain_timeout_s
        # Of each open request its choices' keys; of each key the reader, and the choice's index there.
        self._requests: dict[str, tuple[int, ...]] = {}
        self._readers: dict[int, tuple[Reader, int]] = {}
        self._deadlines: dict[str, asyncio.TimerHandle] = {}
        self._links: dict[str, WorkerLink] = {}
        self._draining = False
        self._publishing = False
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, request: GenerateRequest, reader: Reader) -> None:
        """Queues a request, whose events go to `reader`, until `close`.

        Raises the PageloomErrors of Scheduler.submit, or Unavailable while draining.
        """
        if self._draining:
            raise Unavailable("the scheduler is shutting down")
        if request.request_id in self._requests:
            raise DuplicateRequest(f"request_id {request.request_id!r} is still running", param="request_id")
        if request.sampling.seed is None:
            request = replace(request, sampling=replace(request.sampling, seed=secrets.randbits(64)))
        keys = self._core.submit(request, time.monotonic())
        self._requests[request.request_id] = keys
        for choice_index, key in enumerate(keys):
            self._readers[key] = (reader, choice_index)
        self._idle.clear()
        if request.deadline_s is not None:
            loop = asyncio.get_running_loop()
            self._deadlines[request.request_id] = loop.call_later(request.deadline_s, self._expire)
        self._publish_soon()
        self._wake_workers()

    async def prepare(self, grammar: str) -> None:
        """Has every worker compile a grammar before a request brings it, so that no step waits for that. A worker that
        attaches later compiles it in its step. Raises InvalidRequest if it cannot be used, Overloaded if too many wait
        for theirs."""
        answers = [link.prepare(grammar) for link in self._links.values() if link.leave_at is None]
        for answer in answers:
            if error := await asyncio.shield(answer):
                raise InvalidRequest(error, param="grammar")

    def cancel(self, request_id: str, choice_indexes: tuple[int, ...] = ()) -> None:
        """Ends some choices (none named: all); finished and unknown ones are ignored."""
        if endings := self._core.cancel(request_id, choice_indexes, now=time.monotonic()):
            self._deliver_endings(endings)
            self._wake_workers()

    def close(self, request_id: str) -> None:
        """The request's reader is gone: cancels what still runs and forgets it."""
        for key in self._requests.pop(request_id):
            self._readers.pop(key, None)
        if (deadline := self._deadlines.pop(request_id, None)) is not None:
            deadline.cancel()
        self.cancel(request_id)
        if not self._requests:
            self._idle.set()

    def timelines(self, request_id: str) -> tuple[Timeline, ...] | None:
        """Where the time of a request's choices went; None if it is unknown or forgotten."""
        return self._core.timelines(request_id)

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
            if self._draining:
                raise Unavailable("the scheduler is shutting down")
        self._deliver_endings(self._core.attach(link.hello, link.epoch, time.monotonic()))
        self._links[worker_id] = link
        self._publish_soon()

    async def detach(self, link: WorkerLink) -> None:
        """The worker is gone: its requests go back to the queue with the tokens they have."""
        worker_id = link.hello.worker_id
        del self._links[worker_id]
        self._deliver_endings(self._core.abandon(worker_id, time.monotonic()))
        self._publish_soon()
        self._wake_workers()
        link.end()
        await self._announce(self._serving)

    async def drive(self, link: WorkerLink) -> None:
        """Runs one attached worker until it is sent away. Raises WorkerLost when it fails."""
        pace = Pace()
        await self._announce(self._serving)
        while link.leave_at is None:
            await self._turn(link, pace)
        self._core.drain(link.hello.worker_id, time.monotonic())
        # What waited for it has other homes now.
        self._wake_workers()
        await self._announce(self._serving)
        while not self._may_go(link):
            await self._turn(link, pace)
        link.send_away()
        # Its end of the stream decides: `receive` ends the call, or `watch` if it hangs.
        await asyncio.Event().wait()

    async def _turn(self, link: WorkerLink, pace: Pace) -> None:
        """Sends the plans that are due, waits for something to happen, takes the results that came."""
        await link.wait(self._send_plans(link, pace))
        for result, duration_s in link.take_results():
            self._commit(link, result, duration_s, pace)

    async def drain_worker(self, worker_id: str, timeout_s: float | None) -> bool:
        """Sends a worker away once what it runs has finished, or after `timeout_s`; False if there is none."""
        link = self._links.get(worker_id)
        if link is None:
            return False
        link.leave(self._drain_timeout_s if timeout_s is None else timeout_s, stop=True)
        return True

    def info(self) -> EngineInfo:
        stats, limits = self._core.stats(), self._core.limits
        return EngineInfo(
            version=__version__,
            model=self._core.model,
            workers=tuple(
                WorkerInfo(
                    worker_id=worker.worker_id,
                    epoch=worker.epoch,
                    cache=worker.cache,
                    num_free_blocks=worker.num_free_blocks,
                    num_running=worker.num_running,
                    draining=worker.draining,
                )
                for worker in stats.workers
            ),
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            draining=self._draining,
        )

    async def drain(self, timeout_s: float) -> None:
        """Refuses new requests, lets the running ones finish for `timeout_s` and ends the rest, then sends the
        workers away."""
        self._draining = True
        await self._announce(False)
        if not await is_set_within(self._idle, timeout_s):
            log.warning("drain timed out", open_requests=len(self._requests))
            self._deliver_endings(self._core.end_all("the scheduler is shutting down", time.monotonic()))
            await is_set_within(self._idle, _LAST_EVENTS_GRACE_S)
        for link in tuple(self._links.values()):
            link.leave(0.0, stop=False)

    def max_num_steps_in_flight(self, link: WorkerLink) -> int:
        """Plans that an attached worker may have at one time."""
        return self._core.groups[link.hello.worker_id].max_num_steps_in_flight

    @property
    def _serving(self) -> bool:
        return any(link.leave_at is None for link in self._links.values()) and not self._draining

    def _may_go(self, link: WorkerLink) -> bool:
        assert link.leave_at is not None
        worker_id = link.hello.worker_id
        if self._core.num_in_flight(worker_id):
            return False
        return self._core.is_idle(worker_id) or time.monotonic() >= link.leave_at

    def _send_plans(self, link: WorkerLink, pace: Pace) -> float | None:
        """Sends what may be sent now. Returns how long to wait for an event; None: as long as it takes.

        Raises WorkerLost if a result is overdue: a worker whose model hangs still sends heartbeats.
        """
        worker_id, now_s = link.hello.worker_id, time.monotonic()
        if link.leave_at is not None and now_s >= link.leave_at:
            return self._until_overdue(link, now_s)
        while (num_in_flight := self._core.num_in_flight(worker_id)) < self.max_num_steps_in_flight(link):
            facts, since_s = self._core.last_step_facts(worker_id), link.working_since_s
            # Each stage is to have a step before any waits for the right moment.
            is_due = num_in_flight < link.hello.num_stages
            if facts is not None and since_s is not None and not is_due:
                delay_s = since_s + pace.delay_s(facts) - now_s
                if delay_s > _TIMER_RESOLUTION_S:
                    return delay_s
            plan = self._core.plan(worker_id, now_s)
            if plan is None:
                break
            link.send(plan)
            self._publish_soon()
            if plan.admissions and len(self._core.waiting):
                # What it has no room for any more may run elsewhere.
                self._wake_workers(idle_only=True)
        waits_s = [self._until_overdue(link, now_s), None if link.leave_at is None else link.leave_at - now_s]
        return min((wait_s for wait_s in waits_s if wait_s is not None), default=None)

    def _until_overdue(self, link: WorkerLink, now_s: float) -> float | None:
        if link.working_since_s is None:
            return None
        left_s = link.working_since_s + self._step_timeout_s - now_s
        if left_s <= 0:
            raise WorkerLost(f"it gave no result of its oldest step for {self._step_timeout_s:g} s")
        return left_s

    def _commit(self, link: WorkerLink, result: StepResult, duration_s: float, pace: Pace) -> None:
        try:
            committed = self._core.commit(link.hello.worker_id, result, time.monotonic())
        except EngineError as error:
            raise WorkerLost(error.message) from error
        if committed.facts is not None:
            self._metrics.observe_step(committed.facts, duration_s, result.duration_s)
            pace.observe(committed.facts, result.duration_s)
            if result.draft_counts:
                self._metrics.observe_drafts(result)
            if committed.facts.num_preempted:
                # Back in the queue, they may run elsewhere.
                self._wake_workers()
            self._publish_soon()
        for key, prompt_logprobs in committed.prompt_logprobs:
            self._readers[key][0].put_prompt_logprobs(prompt_logprobs)
        self._deliver_tokens(committed.tokens)
        self._deliver_endings(committed.endings)

    def _expire(self) -> None:
        if endings := self._core.expire(time.monotonic()):
            self._deliver_endings(endings)
            self._wake_workers()

    def _deliver_tokens(self, tokens: NewTokens) -> None:
        # Once for each token: this loop bounds the token rate.
        readers = self._readers
        columns = (tokens.keys.tolist(), tokens.indexes.tolist(), tokens.token_ids.tolist())
        if not tokens.logprobs:
            for key, index, token_id in zip(*columns, strict=True):
                reader, choice_index = readers[key]
                reader.put_token(choice_index, index, token_id, None)
            return
        for key, index, token_id, logprobs in zip(*columns, tokens.logprobs, strict=True):
            reader, choice_index = readers[key]
            reader.put_token(choice_index, index, token_id, logprobs)

    def _deliver_endings(self, endings: Iterable[Ending]) -> None:
        self._publish_soon()
        for ending in endings:
            self._metrics.observe_finished(ending.facts)
            place = self._readers.pop(ending.key, None)
            if place is not None:
                place[0].put_finished(ending.event)

    def _publish_soon(self) -> None:
        if not self._publishing:
            self._publishing = True
            asyncio.get_running_loop().call_later(_PUBLISH_INTERVAL_S, self._publish)

    def _publish(self) -> None:
        self._publishing = False
        self._metrics.publish(self._core.stats())

    def _wake_workers(self, *, idle_only: bool = False) -> None:
        for link in self._links.values():
            if not idle_only or link.working_since_s is None:
                link.wake()
