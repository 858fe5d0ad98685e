"""The scheduler core: submit, cancel, plan, commit, abandon. Pure: no await, clock, log, random number or metric."""

from __future__ import annotations

import heapq
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from pageloom.errors import DuplicateRequest, Overloaded, Unavailable
from pageloom.outputs import FinishReason
from pageloom.plan import BatchPlan, ModelInfo, StepResult, WorkerHello
from pageloom.policies import SchedulingPolicy
from pageloom.requests import GenerateRequest
from pageloom.timeline import Timeline, WaitReason
from scheduler_svc.core import policy
from scheduler_svc.core.admission import Admission
from scheduler_svc.core.block_table import Offer
from scheduler_svc.core.checking import Drawn, check_result
from scheduler_svc.core.committing import StepCommit
from scheduler_svc.core.emission import NO_TOKENS, Committed, End, Ending, Stats, StepFacts
from scheduler_svc.core.history import History
from scheduler_svc.core.homes import Homes
from scheduler_svc.core.limits import Limits
from scheduler_svc.core.placement import Placer
from scheduler_svc.core.planning import StepDraft
from scheduler_svc.core.prefix_cache import token_array
from scheduler_svc.core.registry import Registry
from scheduler_svc.core.sequence import Binding, Sequence
from scheduler_svc.core.slot_columns import Ints
from scheduler_svc.core.validation import check_hello, num_scored_at_first, stop_token_ids, validated
from scheduler_svc.core.waiting import WaitingQueue
from scheduler_svc.core.worker_group import WorkerGroup


class Scheduler:
    """Decides what every attached worker runs, and owns the block tables.

    One caller, one call at a time. Time comes in as `now`, in seconds of any clock that does not
    run backwards. The same calls give the same plans. Attributes are for reading.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting = WaitingQueue(by_tenant=limits.scheduling_policy is SchedulingPolicy.fair)
        self.groups: dict[str, WorkerGroup] = {}
        self.registry = Registry()
        self._homes = Homes(self.waiting, self.groups, Placer(limits.placement))
        self._model: ModelInfo | None = None
        self._num_kv_tokens = self._num_pooled_tokens = 0
        self._num_arrivals = 0
        self._num_admissions = 0
        self._num_keys = 0
        # (deadline, key, sequence); those that ended before theirs are skipped when it comes.
        self._deadlines: list[tuple[float, int, Sequence]] = []

    @property
    def model(self) -> ModelInfo | None:
        """What the workers run; None until the first has attached."""
        return self._model

    def attach(self, hello: WorkerHello, epoch: int, now: float) -> list[Ending]:
        """A worker joins, with empty slots and blocks.

        If no other is attached, ends waiting choices that it cannot hold: the one they were accepted for is gone.
        Raises InvalidRequest, naming the field, if its Hello makes no sense or its model is another than
        that of the attached workers or open requests; DuplicateRequest if its worker_id is attached.
        """
        if hello.worker_id in self.groups:
            raise DuplicateRequest(f"worker_id {hello.worker_id!r} is attached already", param="worker_id")
        check_hello(hello, self._model if self.groups or len(self.registry) else None)
        self.groups[hello.worker_id] = WorkerGroup(hello, epoch, self.limits)
        self._model = hello.model
        self._measure_memory()
        homeless: list[Sequence] = []
        if len(self.groups) == 1:
            group = self.groups[hello.worker_id]
            homeless += [sequence for sequence in self.waiting if not group.holds(sequence)]
        endings = [self._refuse(sequence, now) for sequence in homeless]
        self._homes.renew(now)
        return endings

    def drain(self, worker_id: str, now: float) -> None:
        """Nothing more is admitted to a worker; what it runs goes on there. Unknown ones are ignored."""
        group = self.groups.get(worker_id)
        if group is None or group.draining:
            return
        group.draining = True
        self._homes.renew(now)

    def abandon(self, worker_id: str, now: float) -> list[Ending]:
        """A worker is lost or sent away: its choices wait again, in their old places, with the tokens they have.

        Its steps in flight are forgotten. Ends choices that lost `limits.max_num_lost_runs` runs in a row.
        """
        group = self.groups.pop(worker_id)
        self.registry.counters.num_lost_workers += 1
        self._measure_memory()
        running_slots = group.running_slots()
        endings: list[Ending] = []
        for binding in group.bound:
            sequence = binding.sequence
            if not sequence.finished:
                if group.columns.num_steps[binding.slot]:
                    sequence.num_lost_runs = 0
                sequence.num_lost_runs += binding.slot in running_slots
                self._note_stop(group, binding, now, worker_lost=True)
        for sequence in group.dissolve():
            if sequence.num_lost_runs < self.limits.max_num_lost_runs:
                sequence.home = None
                self._homes.enter(sequence, now)
                continue
            message = f"the worker was lost {sequence.num_lost_runs} times in a row while it ran this choice"
            endings.append(self._finish(sequence, End(FinishReason.ERROR, error_message=message), now))
        self._homes.renew(now)
        return endings

    def submit(self, request: GenerateRequest, now: float) -> tuple[int, ...]:
        """Queues all choices of a request, or none; returns their keys. `sampling.seed` must be set.

        Raises InvalidRequest or ContextLengthExceeded (bad at any time), DuplicateRequest (its id is open), Overloaded
        (the queue has no room for all n) or Unavailable (no worker was ever attached).
        """
        if self._model is None:
            raise Unavailable("no worker has attached yet")
        request = validated(
            request,
            model=self._model,
            num_kv_tokens=self._num_kv_tokens,
            num_pooled_tokens=self._num_pooled_tokens,
            max_num_choices=self.limits.max_num_queued_seqs,
        )
        if request.request_id in self.registry:
            raise DuplicateRequest(f"request_id {request.request_id!r} is still running", param="request_id")
        if len(self.waiting) + request.n > self.limits.max_num_queued_seqs:
            raise Overloaded(
                f"{len(self.waiting)} choices wait already; at most {self.limits.max_num_queued_seqs} may wait"
            )
        while self._deadlines and self._deadlines[0][2].finished:
            heapq.heappop(self._deadlines)
        sequences = self._sequences(request, self._model, now)
        self.registry.open(request.request_id, sequences)
        for sequence in sequences:
            self._homes.enter(sequence, now)
            if request.deadline_s is not None:
                heapq.heappush(self._deadlines, (now + request.deadline_s, sequence.key, sequence))
        return tuple(sequence.key for sequence in sequences)

    def cancel(self, request_id: str, choice_indexes: tuple[int, ...] = (), *, now: float) -> list[Ending]:
        """Ends choices (none named: all) at once. Unknown and finished ones are ignored.

        What a choice holds on a worker with steps in flight comes back with the commit of the last that names it.
        """
        choices = self.registry.choices(request_id)
        named = sorted(choices.keys() & choice_indexes) if choice_indexes else list(choices)
        return [self._end(choices[choice_index], End(FinishReason.CANCELLED), now) for choice_index in named]

    def end_all(self, reason: str, now: float) -> list[Ending]:
        """Ends every open choice with an error, `reason`; what they hold comes back as after a cancel."""
        end = End(FinishReason.ERROR, error_message=reason)
        return [self._end(sequence, end, now) for sequence in self.registry.sequences()]

    def expire(self, now: float) -> list[Ending]:
        """Ends the choices whose deadline has passed."""
        endings: list[Ending] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, sequence = heapq.heappop(self._deadlines)
            if not sequence.finished:
                message = f"the deadline of {sequence.request.deadline_s:g} s has passed"
                endings.append(self._end(sequence, End(FinishReason.DEADLINE, error_message=message), now))
        return endings

    def plan(self, worker_id: str, now: float) -> BatchPlan | None:
        """Reserves and returns the next step of a worker.

        None if as many are in flight as may be, or if nothing is to do before one is committed.
        """
        group = self.groups[worker_id]
        if len(group.in_flight) >= group.max_num_steps_in_flight:
            return None
        draft = StepDraft(group)
        draft.continue_decodes()
        # Blocks were short just now: a newcomer would take what the preempted ones need.
        admits = not draft.preempted and len(self.waiting) > 0
        if admits and len(group.catching_up):
            self._admit(draft, group, now, early=True)
        draft.continue_chunks()
        if admits:
            self._admit(draft, group, now, early=False)
        for victim, claimant, waits_again in draft.preempted:
            self._note_preemption(group, victim, claimant, now, waits_again=waits_again)
        step = draft.step()
        if step is None:
            return None
        group.launch(step)
        return step.plan

    def commit(self, worker_id: str, result: StepResult, now: float) -> Committed:
        """Takes the result of a worker's oldest step in flight; that of a step not in flight is ignored.

        Raises EngineError, and changes nothing, if it does not answer its plan: the worker is broken,
        abandon it.
        """
        group = self.groups.get(worker_id)
        step = None if group is None else group.step_of(result)
        if group is None or step is None:
            return Committed(NO_TOKENS, [], None)
        drawn = Drawn.of(result)
        check_result(group, step, drawn, result)
        endings: list[Ending] = []

        def finish(binding: Binding, end: End) -> None:
            endings.append(self._end(binding.sequence, end, now))

        commit = StepCommit(group, step, drawn, result, finish)
        commit.advance()
        commit.fail()
        prompt_logprobs = commit.take_prompt_logprobs()
        tokens = commit.take_tokens(now)
        commit.publish()
        self._charge_outputs(commit.tenants)
        commit.end_finished()
        commit.end_pooled()
        for sequence in group.finish_step():
            self._homes.enter(sequence, now)
        return Committed(tokens, endings, step.facts, prompt_logprobs)

    def last_step_facts(self, worker_id: str) -> StepFacts | None:
        """The size of the newest step in flight; None if there is none."""
        in_flight = self.groups[worker_id].in_flight
        return in_flight[-1].facts if in_flight else None

    def num_in_flight(self, worker_id: str) -> int:
        return len(self.groups[worker_id].in_flight)

    def is_idle(self, worker_id: str) -> bool:
        """Whether a worker runs nothing and has nothing in flight, so that it can go without loss."""
        group = self.groups[worker_id]
        return not group.bound and not group.in_flight

    def timelines(self, request_id: str) -> tuple[Timeline, ...] | None:
        """Those of the choices of a request that is open or ended lately."""
        for sequence in self.registry.choices(request_id).values():
            if (binding := sequence.binding) is not None:
                columns = self.groups[binding.worker_id].columns
                sequence.history.runs(int(columns.num_steps[binding.slot]), int(columns.num_held_steps[binding.slot]))
        return self.registry.timelines(request_id)

    def stats(self) -> Stats:
        counters = self.registry.counters
        workers = tuple(group.stats() for group in self.groups.values())
        return Stats(
            num_running=sum(worker.num_running for worker in workers),
            num_waiting=len(self.waiting),
            workers=workers,
            num_prompt_tokens=counters.num_prompt_tokens,
            num_generation_tokens=counters.num_generation_tokens,
            prefix_cache_queried_tokens=counters.prefix_cache_queried_tokens,
            prefix_cache_hit_tokens=counters.prefix_cache_hit_tokens,
            num_preemptions=counters.num_preemptions,
            num_lost_workers=counters.num_lost_workers,
            num_finished=MappingProxyType(dict(counters.num_finished)),
        )

    def _sequences(self, request: GenerateRequest, model: ModelInfo, now: float) -> list[Sequence]:
        self._num_arrivals += 1
        resumed = dict(request.resume)
        sampling = request.sampling
        assert sampling.max_tokens is not None
        sequences: list[Sequence] = []
        for index in range(request.n):
            self._num_keys += 1
            order = policy.queue_order(
                self.limits,
                priority=request.priority,
                arrived_at=now,
                arrival=self._num_arrivals,
                choice_index=index,
            )
            sequence = Sequence(
                key=self._num_keys,
                request=request,
                request_id=request.request_id,
                choice_index=index,
                num_prompt_tokens=len(request.prompt_token_ids),
                order=order,
                tenant=self.waiting.open_tenant(request.tenant),
                stop_token_ids=stop_token_ids(sampling, model),
                max_tokens=sampling.max_tokens if request.pooling is None else 0,
                wants_logprobs=sampling.logprobs is not None,
                num_scored_tokens=num_scored_at_first(request, index),
                token_ids=token_array(request.prompt_token_ids + resumed.get(index, ())),
                arrived_at=now,
                history=History(now),
                siblings=sequences,
            )
            sequences.append(sequence)
        return sequences

    def _admit(self, draft: StepDraft, group: WorkerGroup, now: float, *, early: bool) -> None:
        def take(sequence: Sequence, offer: Offer) -> None:
            self._homes.leave(sequence)
            sequence.home = group.hello.worker_id
            if sequence.memory_order is None:
                self._num_admissions += 1
                sequence.memory_order = policy.memory_order(self.limits, sequence.order, self._num_admissions)
                self._note_first_admission(sequence, len(offer.hits) * group.tables.block_size, now)
            sequence.history.starts(group.hello.worker_id, offer.num_computed_tokens, now)

        Admission(draft, group, self.waiting, take, now, early).run(self._homes.has_room)

    def _note_first_admission(self, sequence: Sequence, num_hit_tokens: int, now: float) -> None:
        counters = self.registry.counters
        sequence.admitted_at = now
        sequence.num_cached_tokens = min(num_hit_tokens, sequence.num_prompt_tokens)
        counters.num_prompt_tokens += sequence.num_prompt_tokens
        if self.limits.enable_prefix_caching and sequence.takes_cached_blocks:
            counters.prefix_cache_queried_tokens += sequence.num_prompt_tokens
            counters.prefix_cache_hit_tokens += sequence.num_cached_tokens
        num_missing_tokens = sequence.num_prompt_tokens - sequence.num_cached_tokens
        self.waiting.charge(sequence.tenant.index, policy.PROMPT_TOKEN_WEIGHT * num_missing_tokens)

    def _note_preemption(
        self, group: WorkerGroup, victim: Binding, claimant: Sequence, now: float, *, waits_again: bool
    ) -> None:
        self.registry.counters.num_preemptions += 1
        victim.sequence.num_preemptions += 1
        self._note_stop(group, victim, now, preempted_by=claimant.request_id)
        if waits_again:
            self._homes.enter(victim.sequence, now)
        else:
            # It enters the queue when the tokens that are in flight for it are there, unless one of them is its last.
            victim.sequence.history.waits(WaitReason.QUEUE, now)

    def _note_stop(
        self, group: WorkerGroup, binding: Binding, now: float, *, preempted_by: str = "", worker_lost: bool = False
    ) -> None:
        columns, slot = group.columns, binding.slot
        binding.sequence.history.stops(
            now,
            num_steps=int(columns.num_steps[slot]),
            num_held_steps=int(columns.num_held_steps[slot]),
            preempted_by=preempted_by,
            worker_lost=worker_lost,
        )

    def _charge_outputs(self, tenants: Ints) -> None:
        self.registry.counters.num_generation_tokens += len(tenants)
        if not len(tenants):
            return
        if (tenants == tenants[0]).all():
            self.waiting.charge(int(tenants[0]), policy.OUTPUT_TOKEN_WEIGHT * len(tenants))
            return
        for tenant, count in zip(*np.unique(tenants, return_counts=True), strict=True):
            self.waiting.charge(int(tenant), policy.OUTPUT_TOKEN_WEIGHT * int(count))

    def _measure_memory(self) -> None:
        # With no worker attached the last measure stands: requests wait for one to come back.
        if self.groups:
            self._num_kv_tokens = max(group.num_kv_tokens for group in self.groups.values())
            self._num_pooled_tokens = max(group.num_pooled_tokens for group in self.groups.values())
            assert self._model is not None
            max_model_len = max(group.hello.model.max_model_len for group in self.groups.values())
            self._model = replace(self._model, max_model_len=max_model_len)

    def _end(self, sequence: Sequence, end: End, now: float) -> Ending:
        binding = sequence.binding
        if binding is None:
            self._homes.leave(sequence)
            return self._finish(sequence, end, now)
        group = self.groups[binding.worker_id]
        group.flush(binding)
        self._note_stop(group, binding, now)
        ending = self._finish(sequence, end, now)
        group.end(binding)
        return ending

    def _finish(self, sequence: Sequence, end: End, now: float) -> Ending:
        self.waiting.close_tenant(sequence.tenant)
        return self.registry.finish(sequence, end, now)

    def _refuse(self, sequence: Sequence, now: float) -> Ending:
        self._homes.leave(sequence)
        message = f"the attached workers' KV memory holds {self._num_kv_tokens} tokens, which is too few by now"
        return self._finish(sequence, End(FinishReason.ERROR, error_message=message), now)
