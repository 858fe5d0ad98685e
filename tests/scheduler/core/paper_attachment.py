"""One attached paper worker: the plans in flight to it, whom its slots belong to, and what no plan for it may do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from pageloom.outputs import ChoiceFinished, PromptLogprobs
from pageloom.plan import Admission, BatchPlan, StepResult, WorkerHello
from tests.support.paper_model import PaperWorker, SoloRun


@dataclass(slots=True, eq=False)
class Stream:
    """What a client saw of one choice, and what it may see."""

    request_id: str
    choice_index: int
    key: int
    solo: SoloRun
    salt: str
    num_prompt_tokens: int
    max_num_kv_tokens: int
    is_pooled: bool
    wants_logprobs: bool
    # What is to be told of its prompt; None: nothing.
    scores: PromptLogprobs | None
    wants_timeline: bool
    wait_for_tokens: bool
    arrived_at: float
    deadline_at: float | None
    token_ids: list[int]
    # Of the prompt, with the first token that has no score.
    num_scored_tokens: int = 1
    finished: ChoiceFinished | None = None
    cancelled: bool = False
    failed: bool = False
    num_lost_runs: int = 0
    num_preemptions: int = 0
    num_passed_blocks: int = 0


@dataclass(slots=True, eq=False)
class Flight:
    """A plan whose result is not committed: what runs and for whom, and the blocks that must stay as they are."""

    plan: BatchPlan
    runs: dict[int, int]
    streams: dict[int, Stream]
    block_ids: set[int]
    result: StepResult


@dataclass(slots=True, eq=False)
class PaperAttachment:
    """The worker runs a plan as soon as it is there; its results arrive one after the other, when `land` is called."""

    hello: WorkerHello
    epoch: int
    find_stream: Callable[[Admission], Stream]
    worker: PaperWorker = field(init=False)
    flights: deque[Flight] = field(default_factory=deque)
    streams: dict[int, Stream] = field(default_factory=dict)
    draining: bool = False
    num_committed_steps: int = 0
    # Of the choice that each block was last handed out to.
    _salts: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.worker = PaperWorker(self.hello, self.epoch)

    def take_off(self, plan: BatchPlan, failing_slots: Collection[int] = ()) -> Flight:
        """Takes a plan, checks it, and runs it. Of `failing_slots` those fail that run."""
        self._check_before(plan)
        self._release(plan)
        runs = self.worker.apply(plan)
        self._bind(plan)
        self._check_runs(plan, runs)
        block_ids = {*plan.copy_source_block_ids, *plan.copy_target_block_ids}
        for slot in runs:
            block_ids.update(self.worker.slots[slot].block_ids)
        failing_slots = [slot for slot in failing_slots if slot in runs]
        result = self.worker.execute(runs, failing_slots)
        flight = Flight(plan, runs, {slot: self.streams[slot] for slot in runs}, block_ids, result)
        self.flights.append(flight)
        return flight

    def land(self) -> Flight:
        """The oldest flight, whose result arrives now."""
        flight = self.flights.popleft()
        self.num_committed_steps = flight.plan.step
        return flight

    def _check_before(self, plan: BatchPlan) -> None:
        """What may be handed out at all, with the earlier plans still in flight."""
        assert not (self.draining and plan.admissions), "an admission to a worker that is drained"
        fresh = list(plan.grown_block_ids)
        for admission in plan.admissions:
            fresh += admission.block_ids[admission.num_computed_tokens // self.hello.cache.block_size :]
        assert len(set(fresh)) == len(fresh), "one block, handed out twice"
        assert set(plan.copy_target_block_ids) <= set(fresh), "copies into a block that is in use"
        for flight in self.flights:
            assert flight.block_ids.isdisjoint(fresh), "a block that a plan in flight names was handed out"
            for admission in plan.admissions:
                assert admission.slot not in flight.runs, "a slot that runs in a plan in flight was bound anew"
        released = set(plan.released_slots)
        for slot, state in self.worker.slots.items():
            assert slot in released or not set(fresh) & set(state.block_ids), "a block of another was handed out"

    def _release(self, plan: BatchPlan) -> None:
        for slot in plan.released_slots:
            stream = self.streams.pop(slot)
            if stream.finished is not None:
                continue
            # It was preempted. Once more only if it has got on since the last time.
            progress = self.worker.slots[slot].num_drawn_tokens
            assert stream.num_preemptions == 0 or progress > 0, f"{stream.request_id} gave way twice in a row"
            stream.num_preemptions += 1

    def _bind(self, plan: BatchPlan) -> None:
        block_size = self.hello.cache.block_size
        for admission in plan.admissions:
            stream = self.find_stream(admission)
            assert stream.finished is None, "a choice that has ended was admitted"
            assert stream not in self.streams.values(), "a choice in two slots"
            self.streams[admission.slot] = stream
            known = stream.solo.token_ids[: len(admission.token_ids) - admission.num_prompt_tokens]
            assert len(stream.token_ids) == len(known), "admitted with other tokens than were delivered"
            assert list(admission.token_ids[admission.num_prompt_tokens :]) == known, "admitted with wrong tokens"
            state = self.worker.slots[admission.slot]
            assert self.worker.kv(state) == stream.solo.kv[: admission.num_computed_tokens], "a hit on another KV"
            assert all(0 < step <= self.num_committed_steps for step in self.worker.writing_steps(state)), (
                "a hit on what was not acknowledged"
            )
            num_shared_blocks = admission.num_computed_tokens // block_size
            for block_id in admission.block_ids[:num_shared_blocks]:
                assert self._salts[block_id] == stream.salt, "a hit across salts"
            self._salts |= dict.fromkeys(admission.block_ids[num_shared_blocks:], stream.salt)
        for slot, count in zip(plan.grown_slots, plan.grown_counts, strict=True):
            self._salts |= dict.fromkeys(self.worker.slots[slot].block_ids[-count:], self.streams[slot].salt)

    def _check_runs(self, plan: BatchPlan, runs: dict[int, int]) -> None:
        block_size = self.hello.cache.block_size
        # The scheduler has not heard yet of what failed, or has come to its max_tokens with drafts.
        ended = any(flight.result.failures or flight.result.draft_counts for flight in self.flights)
        assert runs or ended, "a plan without work"
        num_owners: dict[int, int] = {}
        for state in self.worker.slots.values():
            for block_id in state.block_ids:
                num_owners[block_id] = num_owners.get(block_id, 0) + 1
        for slot, num_tokens in runs.items():
            state = self.worker.slots[slot]
            start = state.num_computed_tokens
            end = start + num_tokens + state.draft_limit
            for block_id in state.block_ids[start // block_size : -(-end // block_size)]:
                assert num_owners[block_id] == 1, "writes into a block that another slot reads"
            if self.streams[slot].wait_for_tokens:
                draws_in_flight = any(slot in flight.result.slots for flight in self.flights)
                assert not draws_in_flight, "runs ahead of a token that it has to wait for"
