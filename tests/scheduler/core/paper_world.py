"""A scheduler core with paper workers, where every call is told, every state checked, every event compared."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace

import pytest

from pageloom.errors import ContextLengthExceeded, Overloaded
from pageloom.outputs import ChoiceFinished, FinishReason, PromptLogprobs
from pageloom.plan import Admission, BatchPlan, StepResult, WorkerHello
from pageloom.policies import SchedulingPolicy
from pageloom.requests import GenerateRequest
from pageloom.wire.record import RecordedCall
from scheduler_svc.core import Ending, Limits, NewTokens, ScoredPrompt, invariants
from scheduler_svc.recording import RecordingScheduler
from scheduler_svc.rerun import rerun
from tests.scheduler.core.paper_attachment import Flight, PaperAttachment, Stream
from tests.scheduler.core.queue_checks import check_passing
from tests.scheduler.core.timeline_checks import check_timeline
from tests.support.paper_model import PAPER_MODEL, SoloRun, score, solo_pooling, solo_run

# Time that passes between two calls: a power of two, so that differences of times are exact.
TICK_S = 1 / 1024
# Every so many steps a result is brought twice.
_REPEAT_EVERY = 4


class PaperWorld:
    """Calls go through here; whatever contradicts the contract fails at once, with the story so far.

    A worker runs what it is sent at once, but its results come when `commit` is called, in order, so two steps may
    be in flight. Everything is recorded; `replay` runs it again.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.recorded: list[bytes] = []
        self.scheduler = RecordingScheduler(limits, self._record)
        self.workers: dict[str, PaperAttachment] = {}
        self.streams: dict[tuple[str, int], Stream] = {}
        self.story: list[tuple[str, object]] = []
        self.now = 0.0
        self.num_steps = 0
        # Nothing new comes in while it drains, so what goes wrong then is still wrong after a few calls.
        self._check_every = 1
        self._num_calls = 0
        self._epoch = 0
        self._num_requests = 0
        self._num_kv_tokens = 0
        self._open: dict[tuple[str, int], Stream] = {}
        self._by_key: dict[int, Stream] = {}
        self._by_tag: dict[tuple[float, int], Stream] = {}
        # Results of workers that were lost before these had arrived.
        self._strays: list[tuple[str, StepResult]] = []

    @property
    def open_streams(self) -> dict[tuple[str, int], Stream]:
        return dict(self._open)

    def running(self, worker_id: str = "a") -> list[str]:
        """The requests in a worker's slots, by slot, once for each of their open choices."""
        bound = sorted(self.workers[worker_id].streams.items())
        return [stream.request_id for _, stream in bound if stream.finished is None]

    @property
    def waiting(self) -> list[str]:
        """The requests in the queue, once for each of their choices; those of one tenant in order."""
        return [sequence.request_id for sequence in self.scheduler.waiting]

    def admitted(self, plan: BatchPlan | None) -> list[str]:
        """The requests that a plan admits, in order, once for each of their choices."""
        return [self._stream_of(admission).request_id for admission in plan.admissions] if plan else []

    def finished(self, request_id: str, choice_index: int = 0) -> ChoiceFinished:
        """How a choice ended; it must have."""
        event = self.streams[request_id, choice_index].finished
        assert event is not None, "it goes on"
        return event

    @property
    def num_in_flight(self) -> int:
        return sum(len(attachment.flights) for attachment in self.workers.values())

    def attach(self, hello: WorkerHello) -> None:
        self._epoch += 1
        self._tell("attach", hello)
        self.workers[hello.worker_id] = PaperAttachment(hello, self._epoch, self._stream_of)
        self._measure_memory()
        self._receive(self.scheduler.attach(hello, self._epoch, self.now))

    def drain_worker(self, worker_id: str) -> None:
        self._tell("drain", worker_id)
        self.workers[worker_id].draining = True
        self.scheduler.drain(worker_id, self.now)
        self._check()

    def lose(self, worker_id: str) -> None:
        self._tell("lose", worker_id)
        attachment = self.workers.pop(worker_id)
        self._measure_memory()
        in_flight = {stream for flight in attachment.flights for stream in flight.streams.values()}
        for stream in in_flight:
            stream.num_lost_runs += 1
        self._strays += [(worker_id, flight.result) for flight in attachment.flights]
        self._receive(self.scheduler.abandon(worker_id, self.now))

    def submit(self, request: GenerateRequest) -> bool:
        """False if it was refused, which must be for a reason."""
        self._num_requests += 1
        # The paper model does not use it: it tells the admissions of this request from those of others.
        tag = 1 + self._num_requests / 1024
        if request.pooling is not None:
            # Of its sampling, the seed alone is kept.
            tag = -self._num_requests
            request = replace(request, sampling=replace(request.sampling, seed=self._num_requests))
        else:
            request = replace(request, sampling=replace(request.sampling, temperature=tag))
        self._tell("submit", request)
        expected = self._expected_refusal(request)
        if expected is not None:
            with pytest.raises(expected):
                self.scheduler.submit(request, self.now)
            self._check()
            return False
        keys = self.scheduler.submit(request, self.now)
        assert len(keys) == request.n
        assert self._by_key.keys().isdisjoint(keys), "a key, used twice"
        sampling = request.sampling
        if sampling.max_tokens is None:
            sampling = replace(sampling, max_tokens=self._max_num_tokens() - len(request.prompt_token_ids))
        for index, key in enumerate(keys):
            stream = self._stream(request, replace(request, sampling=sampling), index, key)
            self.streams[request.request_id, index] = self._open[request.request_id, index] = stream
            self._by_key[key] = self._by_tag[tag, index] = stream
        self._check()
        return True

    def cancel(self, request_id: str, choice_indexes: tuple[int, ...] = ()) -> None:
        self._tell("cancel", (request_id, choice_indexes))
        named = [
            stream
            for key, stream in self._open.items()
            if key[0] == request_id and (not choice_indexes or key[1] in choice_indexes)
        ]
        for stream in named:
            stream.cancelled = True
        self._receive(self.scheduler.cancel(request_id, choice_indexes, now=self.now))
        assert all(stream.finished for stream in named), "a cancelled choice goes on"

    def expire(self) -> None:
        self._tell("expire", self.now)
        overdue = [s for s in self._open.values() if s.deadline_at is not None and s.deadline_at < self.now]
        self._receive(self.scheduler.expire(self.now))
        assert all(stream.finished for stream in overdue), "a choice outlives its deadline"

    def plan(self, worker_id: str, failing_slots: Collection[int] = ()) -> BatchPlan | None:
        """Asks for a plan and lets the worker run it; its result comes with a later `commit`."""
        attachment = self.workers[worker_id]
        plan = self.scheduler.plan(worker_id, self.now)
        self._tell(f"plan {worker_id}", plan)
        if plan is not None:
            most = self.limits.max_num_steps_in_flight + attachment.hello.num_stages - 1
            assert len(attachment.flights) < most, "too many steps in flight"
            attachment.take_off(plan, failing_slots)
            self.num_steps += 1
            if self._epoch == 1 and self.limits.scheduling_policy is SchedulingPolicy.fcfs:
                check_passing(self.scheduler, attachment, plan, self._open.values())
        assert self.scheduler.num_in_flight(worker_id) == len(attachment.flights)
        self._check()
        return plan

    def commit(self, worker_id: str) -> None:
        """Brings the oldest result that is due, now and then a second time too."""
        flight = self.workers[worker_id].land()
        result = flight.result
        self._tell(f"commit {worker_id}", result)
        due = _due(flight)
        for slot, stream in flight.streams.items():
            stream.num_lost_runs = 0
            stream.failed |= slot in result.failures
        committed = self.scheduler.commit(worker_id, result, self.now)
        assert committed.facts is not None, "a result was ignored"
        assert committed.facts.num_seqs >= len(flight.runs)
        tokens = committed.tokens
        brought = list(zip(tokens.keys.tolist(), tokens.indexes.tolist(), tokens.token_ids.tolist(), strict=True))
        assert sorted(brought) == sorted(due), "other tokens than the step drew for open choices"
        self._receive_scores(committed.prompt_logprobs)
        self._receive(committed.endings, tokens)
        assert all(flight.streams[slot].finished for slot in result.failures), "a failed choice goes on"
        if result.step % _REPEAT_EVERY == 1:
            self._commit_nothing(worker_id, result)

    def step(self, worker_id: str = "a") -> BatchPlan | None:
        """Plans and commits one step, with no other in flight."""
        plan = self.plan(worker_id)
        if plan is not None:
            self.commit(worker_id)
        return plan

    def commit_stale(self, worker_id: str, *, epoch_offset: int = 0, step_offset: int = 0) -> None:
        """A result of another epoch, or of a step that is not in flight, arrives, and nothing happens."""
        attachment = self.workers[worker_id]
        # Beyond those that are in flight, however many stages there are.
        step_offset += len(attachment.flights) if step_offset > 0 else 0
        step = max(0, attachment.num_committed_steps + step_offset)
        result = StepResult(epoch=attachment.epoch + epoch_offset, step=step, slots=(0,), token_ids=(1,))
        self._tell(f"stale commit {worker_id}", result)
        self._commit_nothing(worker_id, result)

    def commit_strays(self) -> None:
        """Results of lost workers arrive after all, and nothing happens."""
        for worker_id, result in self._strays:
            self._tell(f"stray commit {worker_id}", result)
            self._commit_nothing(worker_id, result)
        self._strays.clear()

    def explain(self, request_id: str) -> None:
        """Asks for the timelines of a request, open or not."""
        streams = [stream for key, stream in self.streams.items() if key[0] == request_id]
        timelines = self.scheduler.timelines(request_id)
        if timelines is None:
            assert all(stream.finished for stream in streams), "an open request without timelines"
            return
        assert len(timelines) == len(streams)
        for stream, timeline in zip(streams, timelines, strict=True):
            check_timeline(timeline, now_s=self.now - stream.arrived_at)
            assert (timeline.finished_s is None) == (stream.finished is None)

    def finish(self, worker_id: str) -> None:
        """Lets a drained worker finish what it runs."""
        max_num_rounds = self._round_bound()
        num_rounds = 0
        while not self.scheduler.is_idle(worker_id):
            self._round(worker_id)
            num_rounds += 1
            assert num_rounds <= max_num_rounds, "no end in sight"

    def drain(self) -> None:
        """Lets everything run to its end, within a bound, and checks that nothing is left behind."""
        # The worker that could hold these is gone; they would wait for one to come.
        for (request_id, choice_index), stream in tuple(self._open.items()):
            if self._is_homeless(stream):
                self.cancel(request_id, (choice_index,))
        max_num_rounds = self._round_bound()
        num_rounds = 0
        self._check_every = 3
        while self._open or self.num_in_flight:
            for worker_id in self.workers:
                self._round(worker_id)
            num_rounds += 1
            assert num_rounds <= max_num_rounds, "no end in sight"
        self._check_every = 1
        self._check_nothing_is_left()

    def replay(self) -> None:
        """Runs everything that was recorded again, on a new core: it must decide the same."""
        outcome = rerun(map(RecordedCall.FromString, self.recorded), self.limits)
        assert outcome.difference is None, f"replayed otherwise: {outcome.difference}"
        assert outcome.num_plans == self.num_steps

    def _record(self, call: RecordedCall) -> bool:
        self.recorded.append(call.SerializeToString())
        return True

    def _commit_nothing(self, worker_id: str, result: StepResult) -> None:
        committed = self.scheduler.commit(worker_id, result, self.now)
        assert committed.facts is None, "a result that nobody waits for was taken"
        assert (len(committed.tokens.keys), committed.endings, committed.prompt_logprobs) == (0, [], ())
        self._check()

    def _stream(self, asked: GenerateRequest, request: GenerateRequest, index: int, key: int) -> Stream:
        sampling = request.sampling
        assert sampling.max_tokens is not None
        return Stream(
            request_id=request.request_id,
            choice_index=index,
            key=key,
            solo=_solo(request, index),
            salt=request.cache_salt,
            num_prompt_tokens=len(request.prompt_token_ids),
            max_num_kv_tokens=len(request.prompt_token_ids) + (0 if request.pooling else sampling.max_tokens - 1),
            is_pooled=request.pooling is not None,
            scores=self._scores_of(request, index),
            wants_logprobs=sampling.logprobs is not None,
            wants_timeline=request.include_timeline,
            wait_for_tokens=request.wait_for_tokens,
            arrived_at=self.now,
            deadline_at=None if asked.deadline_s is None else self.now + asked.deadline_s,
            token_ids=list(dict(request.resume).get(index, ())),
        )

    def _scores_of(self, request: GenerateRequest, index: int) -> PromptLogprobs | None:
        """What is to be told of the prompt to this choice."""
        num_top = request.sampling.prompt_logprobs
        if num_top is None or request.pooling is not None or index or dict(request.resume).get(0):
            return None
        prompt = request.prompt_token_ids
        return score(solo_run(prompt, request.sampling, 0).kv, 1, list(prompt[1:]), num_top)

    def _stream_of(self, admission: Admission) -> Stream:
        sampling = admission.sampling
        tag = sampling.temperature if admission.pooling is None else -(sampling.seed or 0)
        return self._by_tag[tag, admission.choice_index]

    def _round(self, worker_id: str) -> None:
        """Brings one result, and sends as many plans as may be out."""
        flights = self.workers[worker_id].flights
        if flights:
            self.commit(worker_id)
        while len(flights) < self.limits.max_num_steps_in_flight and self.plan(worker_id) is not None:
            pass

    def _round_bound(self) -> int:
        # In each round the first choice of each worker gets on by a token. Another may have to start anew, a
        # token a round at worst, whenever one before it ends or grows; livelock would know no bound at all.
        num_tokens = sum(stream.max_num_kv_tokens + 1 for stream in self._open.values())
        # Of several stages each has another's turn.
        num_stages = max((attachment.hello.num_stages for attachment in self.workers.values()), default=1)
        return 4 + num_tokens * (1 + len(self._open)) * num_stages

    def _expected_refusal(self, request: GenerateRequest) -> type[Exception] | None:
        num_tokens = len(request.prompt_token_ids) + (request.sampling.max_tokens or 1)
        if request.pooling is not None and len(request.prompt_token_ids) > self._num_kv_tokens:
            return ContextLengthExceeded
        if request.pooling is None and num_tokens > self._max_num_tokens():
            return ContextLengthExceeded
        num_waiting = self.scheduler.stats().num_waiting
        return Overloaded if num_waiting + request.n > self.limits.max_num_queued_seqs else None

    def _max_num_tokens(self) -> int:
        return min(PAPER_MODEL.max_model_len, 1 + self._num_kv_tokens)

    def _measure_memory(self) -> None:
        # As long as no worker is attached, the last ones are expected back.
        caches = [attachment.hello.cache for attachment in self.workers.values()]
        self._num_kv_tokens = max((c.num_blocks * c.block_size for c in caches), default=self._num_kv_tokens)

    def _is_homeless(self, stream: Stream) -> bool:
        return stream.max_num_kv_tokens > self._num_kv_tokens

    def _receive(self, endings: list[Ending], tokens: NewTokens | None = None) -> None:
        if tokens is not None:
            self._receive_tokens(tokens)
        for ending in endings:
            stream = self._by_key[ending.key]
            assert stream.finished is None, f"ended twice: {ending}"
            assert (stream.request_id, stream.choice_index) == (ending.request_id, ending.event.choice_index)
            stream.finished = ending.event
            del self._open[stream.request_id, stream.choice_index]
            assert ending.facts.arrived_at == stream.arrived_at
            assert ending.facts.num_preemptions <= stream.num_preemptions + 1
            self._check_end(stream, ending.event)
        self._check()

    def _receive_scores(self, scored: tuple[ScoredPrompt, ...]) -> None:
        for key, part in scored:
            stream = self._by_key[key]
            first, expected = stream.num_scored_tokens, stream.scores
            assert stream.finished is None, "scores after the end"
            assert not stream.token_ids, "scores of the prompt after a token of its first choice"
            assert expected is not None, "scores that nobody asked for"
            assert part.first_index == first, "a gap or repeat in the scores"
            for index in range(first, first + len(part.logprobs)):
                assert part.of_token(index) == expected.of_token(index), "wrong scores"
            stream.num_scored_tokens += len(part.logprobs)

    def _receive_tokens(self, tokens: NewTokens) -> None:
        columns = (tokens.keys.tolist(), tokens.indexes.tolist(), tokens.token_ids.tolist())
        logprobs = tokens.logprobs or [None] * len(columns[0])
        for key, index, token_id, of_token in zip(*columns, logprobs, strict=True):
            stream = self._by_key[key]
            assert stream.finished is None, "a token after the end"
            assert index == len(stream.token_ids), "a gap or repeat"
            is_scored = stream.num_scored_tokens == stream.num_prompt_tokens
            assert stream.scores is None or is_scored, "a token before all scores of the prompt"
            stream.token_ids.append(token_id)
            assert stream.solo.token_ids[index : index + 1] == [token_id], "wrong text"
            assert (of_token is not None) == stream.wants_logprobs, "log-probabilities"
            assert of_token is None or of_token.top_token_ids == (token_id,), "log-probabilities of another token"

    def _check_end(self, stream: Stream, event: ChoiceFinished) -> None:
        assert event.num_output_tokens == len(stream.token_ids)
        assert 0 <= event.num_cached_tokens <= stream.num_prompt_tokens
        assert (event.timeline is not None) == stream.wants_timeline
        if event.timeline is not None:
            check_timeline(event.timeline, now_s=self.now - stream.arrived_at)
            assert event.timeline.finished_s == self.now - stream.arrived_at
        if event.reason is FinishReason.CANCELLED:
            assert stream.cancelled, "cancelled by nobody"
        elif event.reason is FinishReason.DEADLINE:
            assert stream.deadline_at is not None
            assert stream.deadline_at <= self.now, "ended before its deadline"
        elif event.reason is FinishReason.ERROR:
            lost = stream.num_lost_runs >= self.limits.max_num_lost_runs
            assert stream.failed or lost or self._is_homeless(stream), f"an error for no reason: {event}"
        else:
            assert event.embedding == stream.solo.embedding, "another embedding"
            assert stream.token_ids == stream.solo.token_ids, "the text is cut short"
            assert event.reason is stream.solo.reason
            assert event.stop_token_id == stream.solo.stop_token_id

    def _check(self) -> None:
        self.now += TICK_S
        self._num_calls += 1
        if self._num_calls % self._check_every == 0:
            invariants.check(self.scheduler)

    def _check_nothing_is_left(self) -> None:
        invariants.check(self.scheduler)
        stats = self.scheduler.stats()
        assert stats.num_running == stats.num_waiting == 0
        assert sum(stats.num_finished.values()) == len(self.streams)
        for worker in stats.workers:
            assert worker.num_free_blocks == worker.cache.num_blocks, "blocks are lost"

    def _tell(self, what: str, value: object) -> None:
        self.story.append((what, value))


def _due(flight: Flight) -> list[tuple[int, int, int]]:
    """The tokens of a step that open choices get: key, index and token. What comes after a choice's end is nobody's."""
    result, due = flight.result, []
    token_ids = iter(result.token_ids)
    for slot, count in zip(result.slots, result.token_counts or (1,) * len(result.slots), strict=True):
        stream, drawn = flight.streams[slot], list(itertools.islice(token_ids, count))
        if stream.finished is not None or stream.failed:
            continue
        first_index = len(stream.token_ids)
        indexes = range(first_index, min(first_index + count, len(stream.solo.token_ids)))
        due += [(stream.key, index, drawn[index - first_index]) for index in indexes]
    return due


def _solo(request: GenerateRequest, choice_index: int) -> SoloRun:
    if request.pooling is not None:
        return solo_pooling(request.prompt_token_ids, request.pooling)
    return solo_run(request.prompt_token_ids, request.sampling, choice_index)
