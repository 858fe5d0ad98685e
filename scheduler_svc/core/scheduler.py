"""The scheduler core: submit, cancel, plan, commit, abandon. Pure: no await, clock, log, random number or metric."""

from __future__ import annotations

from types import MappingProxyType

from pageloom.errors import DuplicateRequest, Overloaded, Unavailable
from pageloom.outputs import FinishReason
from pageloom.plan import BatchPlan, ModelInfo, StepResult, WorkerHello
from pageloom.requests import GenerateRequest
from scheduler_svc.core import policy
from scheduler_svc.core.committing import advance, check_result
from scheduler_svc.core.emission import Emission, Stats, StepFacts
from scheduler_svc.core.limits import Limits
from scheduler_svc.core.ordered import Ordered
from scheduler_svc.core.planning import StepDraft
from scheduler_svc.core.registry import Registry
from scheduler_svc.core.sequence import Binding, Sequence
from scheduler_svc.core.validation import check_hello, stop_token_ids, validated
from scheduler_svc.core.worker_group import WorkerGroup


class Scheduler:
    """Decides what every attached worker runs, and owns the block tables.

    One caller, one call at a time. Time comes in as `now`, in seconds of any clock that does not
    run backwards. The attributes are for `invariants.py`.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.waiting: Ordered[Sequence] = Ordered()
        self.groups: dict[str, WorkerGroup] = {}
        self.registry = Registry()
        self._model: ModelInfo | None = None
        self._num_kv_tokens = 0
        self._num_arrivals = 0

    @property
    def model(self) -> ModelInfo | None:
        """What the workers run; None until the first has attached."""
        return self._model

    def attach(self, hello: WorkerHello, epoch: int) -> list[Emission]:
        """A worker joins, with empty slots and blocks.

        Ends waiting choices that no attached worker can hold (the one they were accepted for is gone).
        Raises InvalidRequest, naming the field, if its Hello makes no sense or its model is another than
        that of the attached workers or open requests; DuplicateRequest if its worker_id is attached.
        """
        if hello.worker_id in self.groups:
            raise DuplicateRequest(f"worker_id {hello.worker_id!r} is attached already", param="worker_id")
        check_hello(hello, self._model if self.groups or len(self.registry) else None)
        self.groups[hello.worker_id] = WorkerGroup(hello, epoch, self.limits)
        self._model = hello.model
        self._measure_memory()
        return [
            self._refuse(sequence)
            for sequence in tuple(self.waiting)
            if sequence.max_num_kv_tokens > self._num_kv_tokens
        ]

    def abandon(self, worker_id: str) -> list[Emission]:
        """A worker is lost: its choices wait again, in their old places, with the tokens they have.

        The step in flight is forgotten. Ends choices that lost `limits.max_num_lost_runs` runs in a row.
        """
        group = self.groups.pop(worker_id)
        self.registry.counters.num_lost_workers += 1
        self._measure_memory()
        in_flight = {binding for binding, _ in group.in_flight.runs} if group.in_flight else set()
        emissions: list[Emission] = []
        for binding in group.bound:
            sequence = binding.sequence
            sequence.binding = None
            if sequence.finished:
                continue
            sequence.num_lost_runs += binding in in_flight
            if sequence.num_lost_runs < self.limits.max_num_lost_runs:
                self.waiting.add(sequence)
            else:
                message = f"the worker was lost {sequence.num_lost_runs} times in a row while it ran this choice"
                emissions.append(self.registry.finish(sequence, FinishReason.ERROR, error_message=message))
        return emissions

    def submit(self, request: GenerateRequest, now: float) -> None:
        """Queues all choices of a request, or none. `sampling.seed` must be set.

        Raises InvalidRequest or ContextLengthExceeded (bad at any time), DuplicateRequest (its id is open), Overloaded
        (the queue has no room for all n) or Unavailable (no worker was ever attached).
        """
        if self._model is None:
            raise Unavailable("no worker has attached yet")
        request = validated(
            request,
            model=self._model,
            num_kv_tokens=self._num_kv_tokens,
            max_num_choices=self.limits.max_num_queued_seqs,
        )
        if request.request_id in self.registry:
            raise DuplicateRequest(f"request_id {request.request_id!r} is still running", param="request_id")
        if len(self.waiting) + request.n > self.limits.max_num_queued_seqs:
            raise Overloaded(
                f"{len(self.waiting)} choices wait already; at most {self.limits.max_num_queued_seqs} may wait"
            )
        sequences = self._sequences(request, self._model, now)
        self.registry.open(request.request_id, sequences)
        for sequence in sequences:
            self.waiting.add(sequence)

    def cancel(self, request_id: str, choice_indexes: tuple[int, ...] = ()) -> list[Emission]:
        """Ends choices (none named: all) at once. Unknown and finished ones are ignored.

        What a choice holds on a worker with a step in flight comes back with that step's commit.
        """
        choices = self.registry.choices(request_id)
        named = sorted(choices.keys() & choice_indexes) if choice_indexes else list(choices)
        return [self._end(choices[choice_index], FinishReason.CANCELLED) for choice_index in named]

    def end_all(self, reason: str) -> list[Emission]:
        """Ends every open choice with an error, `reason`; what they hold comes back as after a cancel."""
        return [self._end(sequence, FinishReason.ERROR, error_message=reason) for sequence in self.registry.sequences()]

    def plan(self, worker_id: str, now: float) -> BatchPlan | None:
        """Reserves and returns the next step of a worker; None while one is in flight, or if nothing is to do."""
        group = self.groups[worker_id]
        if group.in_flight is not None:
            return None
        draft = StepDraft(group)
        draft.continue_decodes()
        draft.continue_chunks()
        # Blocks were short just now: a newcomer would take what the preempted ones need.
        if not draft.preempted:
            draft.admit(self.waiting)
        step = draft.step()
        if step is None:
            return None
        self._note_admissions(draft.admitted, now)
        self._requeue(draft.preempted)
        group.launch(step)
        return step.plan

    def commit(self, worker_id: str, result: StepResult, now: float) -> list[Emission]:
        """Takes the result of a worker's step in flight; any other result is ignored.

        Raises EngineError, and changes nothing, if it does not answer its plan: the worker is broken,
        abandon it.
        """
        group = self.groups.get(worker_id)
        step = None if group is None else group.step_of(result)
        if group is None or step is None:
            return []
        check_result(step, result, group.hello.model.vocab_size)
        return advance(group, step, result, self.registry, now)

    def step_facts(self, worker_id: str) -> StepFacts:
        """The size of a worker's step in flight, or of its last one; there must have been one."""
        facts = self.groups[worker_id].last_step_facts
        assert facts is not None
        return facts

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
        return [
            Sequence(
                request=request,
                request_id=request.request_id,
                choice_index=index,
                num_prompt_tokens=len(request.prompt_token_ids),
                order=policy.scheduling_order(request.priority, self._num_arrivals, index),
                stop_token_ids=stop_token_ids(sampling, model),
                max_tokens=sampling.max_tokens,
                wants_logprobs=sampling.logprobs is not None,
                token_ids=[*request.prompt_token_ids, *resumed.get(index, ())],
                arrived_at=now,
            )
            for index in range(request.n)
        ]

    def _note_admissions(self, admitted: list[Binding], now: float) -> None:
        counters = self.registry.counters
        for binding in admitted:
            sequence = binding.sequence
            if sequence.admitted_at is not None:
                continue
            sequence.admitted_at = now
            sequence.num_cached_tokens = min(binding.num_computed_tokens, sequence.num_prompt_tokens)
            counters.num_prompt_tokens += sequence.num_prompt_tokens
            if self.limits.enable_prefix_caching:
                counters.prefix_cache_queried_tokens += sequence.num_prompt_tokens
                counters.prefix_cache_hit_tokens += sequence.num_cached_tokens

    def _requeue(self, preempted: list[Sequence]) -> None:
        self.registry.counters.num_preemptions += len(preempted)
        for sequence in preempted:
            sequence.num_preemptions += 1
            self.waiting.add(sequence)

    def _measure_memory(self) -> None:
        # With no worker attached the last measure stands: requests wait for one to come back.
        if self.groups:
            self._num_kv_tokens = max(group.num_kv_tokens for group in self.groups.values())

    def _end(self, sequence: Sequence, reason: FinishReason, *, error_message: str = "") -> Emission:
        binding = sequence.binding
        if binding is None:
            self.waiting.remove(sequence)
        else:
            self.groups[binding.worker_id].retire(binding)
        return self.registry.finish(sequence, reason, error_message=error_message)

    def _refuse(self, sequence: Sequence) -> Emission:
        self.waiting.remove(sequence)
        message = f"the attached workers' KV memory holds {self._num_kv_tokens} tokens, which is too few by now"
        return self.registry.finish(sequence, FinishReason.ERROR, error_message=message)
