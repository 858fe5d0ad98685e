"""A scheduler core with paper workers, where every call is told, every state checked, every event compared."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace

import pytest

from pageloom.errors import ContextLengthExceeded, Overloaded
from pageloom.outputs import ChoiceFinished, FinishReason
from pageloom.plan import BatchPlan, StepResult, WorkerHello
from pageloom.requests import GenerateRequest
from scheduler_svc.core import Emission, Limits, Scheduler, invariants
from tests.support.paper_model import PAPER_MODEL, PaperWorker, SoloRun, solo_run


@dataclass(slots=True)
class Stream:
    """What a client saw of one choice, and what it may see."""

    solo: SoloRun
    salt: str
    num_prompt_tokens: int
    max_num_kv_tokens: int
    wants_logprobs: bool
    token_ids: list[int]
    finished: ChoiceFinished | None = None
    cancelled: bool = False
    failed: bool = False
    num_lost_runs: int = 0


@dataclass(slots=True)
class Flight:
    """A plan on its way: what the worker will run, and for whom."""

    plan: BatchPlan
    runs: dict[int, int]
    streams: dict[int, Stream] = field(default_factory=dict)


class PaperWorld:
    """Calls go through here; whatever contradicts the contract fails at once, with the story so far."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.scheduler = Scheduler(limits)
        self.workers: dict[str, PaperWorker] = {}
        self.flights: dict[str, Flight] = {}
        self.streams: dict[tuple[str, int], Stream] = {}
        self.story: list[tuple[str, object]] = []
        self.num_steps = 0
        self._epoch = 0
        self._now = 0.0
        self._num_kv_tokens = 0
        # (worker, block) -> salt of the choice that wrote it last.
        self._writers: dict[tuple[str, int], str] = {}

    @property
    def open_streams(self) -> dict[tuple[str, int], Stream]:
        return {key: stream for key, stream in self.streams.items() if stream.finished is None}

    def attach(self, hello: WorkerHello) -> None:
        self._epoch += 1
        self._tell("attach", hello)
        self.workers[hello.worker_id] = PaperWorker(hello, self._epoch)
        self._measure_memory()
        self._receive(self.scheduler.attach(hello, self._epoch))

    def lose(self, worker_id: str) -> None:
        self._tell("lose", worker_id)
        del self.workers[worker_id]
        self._measure_memory()
        flight = self.flights.pop(worker_id, None)
        for stream in flight.streams.values() if flight else ():
            stream.num_lost_runs += 1
        self._receive(self.scheduler.abandon(worker_id))

    def submit(self, request: GenerateRequest) -> bool:
        """False if it was refused, which must be for a reason."""
        self._tell("submit", request)
        num_waiting = self.scheduler.stats().num_waiting
        expected = self._expected_refusal(request, num_waiting)
        if expected is not None:
            with pytest.raises(expected):
                self.scheduler.submit(request, self._now)
            self._check()
            return False
        self.scheduler.submit(request, self._now)
        sampling = request.sampling
        if sampling.max_tokens is None:
            sampling = replace(sampling, max_tokens=self._max_num_tokens() - len(request.prompt_token_ids))
        resumed = dict(request.resume)
        assert sampling.max_tokens is not None
        for index in range(request.n):
            self.streams[request.request_id, index] = Stream(
                solo=solo_run(request.prompt_token_ids, sampling, index),
                salt=request.cache_salt,
                num_prompt_tokens=len(request.prompt_token_ids),
                max_num_kv_tokens=len(request.prompt_token_ids) + sampling.max_tokens - 1,
                wants_logprobs=sampling.logprobs is not None,
                token_ids=list(resumed.get(index, ())),
            )
        self._check()
        return True

    def cancel(self, request_id: str, choice_indexes: tuple[int, ...] = ()) -> None:
        self._tell("cancel", (request_id, choice_indexes))
        named = [
            (key, stream)
            for key, stream in self.open_streams.items()
            if key[0] == request_id and (not choice_indexes or key[1] in choice_indexes)
        ]
        for _, stream in named:
            stream.cancelled = True
        self._receive(self.scheduler.cancel(request_id, choice_indexes))
        assert all(stream.finished for _, stream in named), "a cancelled choice goes on"

    def plan(self, worker_id: str) -> BatchPlan | None:
        plan = self.scheduler.plan(worker_id, self._now)
        self._tell(f"plan {worker_id}", plan)
        if plan is not None:
            assert worker_id not in self.flights, "a plan while a step is in flight"
            self.num_steps += 1
            flight = self.flights[worker_id] = Flight(plan, self.workers[worker_id].apply(plan))
            self._note_streams(worker_id, flight)
        self._check()
        return plan

    def commit(self, worker_id: str, failing_slots: Collection[int] = ()) -> None:
        """Lets the worker run its plan and brings the result, a second time too."""
        flight = self.flights.pop(worker_id)
        failing_slots = [slot for slot in failing_slots if slot in flight.runs]
        result = self.workers[worker_id].execute(flight.runs, failing_slots)
        self._tell(f"commit {worker_id}", result)
        for slot, stream in flight.streams.items():
            stream.num_lost_runs = 0
            stream.failed |= slot in failing_slots
        self._receive(self.scheduler.commit(worker_id, result, self._now))
        assert all(flight.streams[slot].finished for slot in failing_slots), "a failed choice goes on"
        assert self.scheduler.commit(worker_id, result, self._now) == [], "one result, taken twice"
        self._check()

    def commit_stale(self, worker_id: str, *, epoch_offset: int = 0, step_offset: int = 0) -> None:
        """A result of another epoch or step arrives, and nothing happens."""
        worker = self.workers[worker_id]
        result = StepResult(
            epoch=worker.epoch + epoch_offset, step=worker.step + step_offset, slots=(0,), token_ids=(1,)
        )
        self._tell(f"stale commit {worker_id}", result)
        assert self.scheduler.commit(worker_id, result, self._now) == []
        self._check()

    def drain(self) -> None:
        """Lets everything run to its end, within a bound, and checks that nothing is left behind."""
        max_num_rounds = self._round_bound()
        num_rounds = 0
        while self.open_streams or self.flights:
            for worker_id in self.workers:
                if worker_id in self.flights:
                    self.commit(worker_id)
                self.plan(worker_id)
            num_rounds += 1
            assert num_rounds <= max_num_rounds, "no end in sight"
        self._check_nothing_is_left()

    def _round_bound(self) -> int:
        # In each round the first choice of each worker gets on by a token. Another may have to start anew, a
        # token a round at worst, whenever one before it ends or grows; livelock would know no bound at all.
        num_tokens = sum(stream.max_num_kv_tokens + 1 for stream in self.open_streams.values())
        return 2 + num_tokens * (1 + len(self.open_streams))

    def _expected_refusal(self, request: GenerateRequest, num_waiting: int) -> type[Exception] | None:
        num_tokens = len(request.prompt_token_ids) + (request.sampling.max_tokens or 1)
        if num_tokens > self._max_num_tokens():
            return ContextLengthExceeded
        return Overloaded if num_waiting + request.n > self.limits.max_num_queued_seqs else None

    def _max_num_tokens(self) -> int:
        return min(PAPER_MODEL.max_model_len, 1 + self._num_kv_tokens)

    def _measure_memory(self) -> None:
        # As long as no worker is attached, the last ones are expected back.
        caches = [worker.hello.cache for worker in self.workers.values()]
        self._num_kv_tokens = max((c.num_blocks * c.block_size for c in caches), default=self._num_kv_tokens)

    def _note_streams(self, worker_id: str, flight: Flight) -> None:
        group = self.scheduler.groups[worker_id]
        for binding in group.bound:
            if binding.slot in flight.runs:
                key = (binding.sequence.request_id, binding.sequence.choice_index)
                flight.streams[binding.slot] = self.streams[key]
        block_size = group.tables.block_size
        for admission in flight.plan.admissions:
            num_cached_blocks, rest = divmod(admission.num_computed_tokens, block_size)
            assert rest == 0, "a hit on part of a block"
            assert num_cached_blocks == 0 or self.limits.enable_prefix_caching, "a hit without a cache"
            for block_id in admission.block_ids[:num_cached_blocks]:
                assert self._writers[worker_id, block_id] == flight.streams[admission.slot].salt, "a hit across salts"
        for slot, num_tokens in flight.runs.items():
            state = self.workers[worker_id].slots[slot]
            start = state.num_computed_tokens
            for block_id in state.block_ids[start // block_size : -(-(start + num_tokens) // block_size)]:
                self._writers[worker_id, block_id] = flight.streams[slot].salt

    def _receive(self, emissions: list[Emission]) -> None:
        for request_id, event, facts in emissions:
            stream = self.streams[request_id, event.choice_index]
            assert stream.finished is None, f"an event after the last: {event}"
            if isinstance(event, ChoiceFinished):
                stream.finished = event
                assert facts is not None
                self._check_end(stream, event)
            else:
                assert event.first_index == len(stream.token_ids), f"a gap or repeat: {event}"
                assert len(event.logprobs) == stream.wants_logprobs * len(event.token_ids), (
                    f"log-probabilities: {event}"
                )
                stream.token_ids += event.token_ids
                assert stream.token_ids == stream.solo.token_ids[: len(stream.token_ids)], f"wrong text: {event}"
        self._check()

    def _check_end(self, stream: Stream, event: ChoiceFinished) -> None:
        assert event.num_output_tokens == len(stream.token_ids)
        assert 0 <= event.num_cached_tokens <= stream.num_prompt_tokens
        if event.reason is FinishReason.CANCELLED:
            assert stream.cancelled, "cancelled by nobody"
        elif event.reason is FinishReason.ERROR:
            lost = stream.num_lost_runs >= self.limits.max_num_lost_runs
            homeless = stream.max_num_kv_tokens > self._num_kv_tokens
            assert stream.failed or lost or homeless, f"an error for no reason: {event}"
        else:
            assert stream.token_ids == stream.solo.token_ids, "the text is cut short"
            assert event.reason is stream.solo.reason
            assert event.stop_token_id == stream.solo.stop_token_id

    def _check(self) -> None:
        self._now += 0.001
        invariants.check(self.scheduler)

    def _check_nothing_is_left(self) -> None:
        stats = self.scheduler.stats()
        assert stats.num_running == stats.num_waiting == 0
        assert sum(stats.num_finished.values()) == len(self.streams)
        for worker in stats.workers:
            assert worker.num_free_blocks == worker.cache.num_blocks, "blocks are lost"

    def _tell(self, what: str, value: object) -> None:
        self.story.append((what, value))
