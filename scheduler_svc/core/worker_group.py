"""One attached worker as the core sees it: slots, KV blocks, the steps in flight."""

from __future__ import annotations

import heapq
from collections import Counter, deque

import numpy as np

from pageloom.plan import StepResult, WorkerHello
from scheduler_svc.core.block_table import BlockTables, Offer
from scheduler_svc.core.emission import WorkerStats
from scheduler_svc.core.limits import Limits
from scheduler_svc.core.ordered import Ordered
from scheduler_svc.core.prefix_cache import CacheNamespace
from scheduler_svc.core.sequence import Binding, Sequence
from scheduler_svc.core.slot_columns import Bools, SlotColumns
from scheduler_svc.core.step import Step

# Simulated with two tenants under memory-bound load, this costs 0.5% of the throughput.
UNITS_PER_ONE_FOR_OTHERS = 32
# Of one result, which has to stay below the limit of a message.
MAX_EMBEDDING_BYTES = 8 << 20
FLOAT32_BYTES = 4


class WorkerGroup:
    """Mirrors the worker's slots. Made at attach, dropped whole at its loss: nothing in it outlives an epoch.

    What a step in flight names (slots, blocks) changes hands only after its commit. Whoever has to go
    before that is `closing`: released at the worker by the next plan, but bound here until then.
    """

    def __init__(self, hello: WorkerHello, epoch: int, limits: Limits) -> None:
        self.hello = hello
        self.epoch = epoch
        self.num_slots = min(limits.max_num_seqs, hello.max_num_seqs)
        self.max_num_batched_tokens = min(limits.max_num_batched_tokens, hello.max_num_batched_tokens)
        # A step at each stage, and as many ahead of their results as with one.
        self.num_stages = hello.num_stages
        self.max_num_steps_in_flight = limits.max_num_steps_in_flight + hello.num_stages - 1
        self.tables = BlockTables(hello.cache, enable_prefix_caching=limits.enable_prefix_caching)
        self.namespace = CacheNamespace(salt="", model_digest=hello.model.digest, kv_dtype=hello.model.dtype)
        # Guessed tokens that it may run for one slot; and those that its last result found worth it.
        self.max_num_draft_tokens = self.draft_limit = hello.max_num_draft_tokens
        self.columns = SlotColumns(self.num_slots, hello.cache.block_size, self.max_num_draft_tokens)
        self.is_eos: Bools = np.zeros(hello.model.vocab_size, np.bool_)
        self.is_eos[list(hello.model.eos_token_ids)] = True
        self.bound: Ordered[Binding] = Ordered()
        # Of the tenants that have something bound, which are counted too.
        self._num_bound_by_tenant: Counter[int] = Counter()
        self.by_slot: list[Binding | None] = [None] * self.num_slots
        # Their embeddings may all come back with one step, in one message.
        self._num_pooled = 0
        self.embedding_bytes = FLOAT32_BYTES * hello.model.hidden_size
        self._max_num_pooled = max(1, MAX_EMBEDDING_BYTES // max(1, self.embedding_bytes))
        # Active ones that are behind by more than the token they drew last, in order.
        self.catching_up: Ordered[Binding] = Ordered()
        self.closing: list[Binding] = []
        self.in_flight: deque[Step] = deque()
        self.num_steps = 0
        self.num_committed_steps = 0
        self.draining = False
        # Of the queue, what is meant for this worker.
        self.num_homed_seqs = 0
        self.num_homed_tokens = 0
        # A heap: the lowest slot is bound next, which keeps the worker's batch compact.
        self.free_slots = list(range(self.num_slots))
        # Freed since the last plan. The worker frees them first, so the next plan may bind them again.
        self.released_slots: list[int] = []

    @property
    def num_cache_tokens(self) -> int:
        """Tokens that all its blocks hold."""
        return self.hello.cache.num_blocks * self.hello.cache.block_size

    @property
    def num_kv_tokens(self) -> int:
        """Tokens of one sequence that it can hold the KV of: nothing reads that of the last token of a context."""
        return min(self.num_cache_tokens, self.hello.model.max_model_len - 1)

    @property
    def num_pooled_tokens(self) -> int:
        """Tokens of the longest prompt that it can pool: a whole context, of whose last token it holds the KV too."""
        return min(self.num_cache_tokens, self.hello.model.max_model_len)

    def holds(self, sequence: Sequence) -> bool:
        """Whether it can hold a sequence at its longest."""
        is_pooled = sequence.request.pooling is not None
        return sequence.max_num_kv_tokens <= (self.num_pooled_tokens if is_pooled else self.num_kv_tokens)

    def namespace_of(self, sequence: Sequence) -> CacheNamespace:
        salt = sequence.request.cache_salt
        if not salt:
            return self.namespace
        return CacheNamespace(salt=salt, model_digest=self.namespace.model_digest, kv_dtype=self.namespace.kv_dtype)

    def num_reserved_blocks(self, sequence: Sequence) -> int:
        """Blocks that its admission must leave free for the growth of those already bound.

        One for each, so that whoever is bound can go on for a block's worth of tokens before the newcomer would
        have to be preempted again, its prefill wasted; zero on an empty worker, which takes anything that fits.
        A tenant with less than its share bound has to leave less: the memory that others fill shall not shut it out.
        One with more has to leave room for others' newcomers too.
        Simulated under memory-bound load, one for each leaves 10-30% of the preemptions that no reserve gives, at
        equal throughput.
        """
        num_own = self._num_bound_by_tenant[sequence.tenant.index]
        num_for_growth = min(len(self.bound), num_own * len(self._num_bound_by_tenant))
        return num_for_growth + self._for_others(sequence, self.tables.pool.num_blocks)

    def has_slot(self, sequence: Sequence) -> bool:
        if sequence.request.pooling is not None and self._num_pooled >= self._max_num_pooled:
            return False
        return len(self.free_slots) > self._for_others(sequence, self.num_slots)

    def _for_others(self, sequence: Sequence, num_units: int) -> int:
        """Of so many slots or blocks, those that a tenant with more than its share bound leaves free, so that
        another's newcomer need not wait until one of its sequences ends."""
        num_own = self._num_bound_by_tenant[sequence.tenant.index]
        is_above_share = num_own * len(self._num_bound_by_tenant) > len(self.bound)
        return num_units // UNITS_PER_ONE_FOR_OTHERS if is_above_share else 0

    def has_room(self, sequence: Sequence) -> bool:
        """Whether a sequence that waits could be admitted now, with nothing of it cached."""
        num_needed_blocks = self.tables.num_blocks_for(len(sequence.token_ids)) + self.num_reserved_blocks(sequence)
        return not self.draining and self.has_slot(sequence) and num_needed_blocks <= self.tables.pool.num_free

    def bind(self, sequence: Sequence, offer: Offer) -> tuple[Binding, tuple[int, int] | None]:
        """Gives a waiting sequence a slot and the blocks it was offered; also the block copy that they need."""
        assert sequence.binding is None
        assert sequence.memory_order is not None
        blocks = self.tables.attach(sequence, self.namespace_of(sequence), offer)
        num_known_tokens = len(sequence.token_ids)
        caches = self.tables.enable_prefix_caching
        binding = Binding(
            sequence=sequence,
            order=sequence.memory_order,
            worker_id=self.hello.worker_id,
            slot=heapq.heappop(self.free_slots),
            block_ids=blocks.block_ids,
            num_known_at_start=num_known_tokens,
            num_scored_at_start=sequence.num_scored_tokens,
            num_published_blocks=blocks.num_published_blocks,
            num_promised_blocks=num_known_tokens // self.tables.block_size if caches else 0,
            published=blocks.published,
        )
        self._write_columns(binding, offer.num_computed_tokens)
        self.tables.promise(binding)
        sequence.binding = binding
        self.by_slot[binding.slot] = binding
        self.bound.add(binding)
        self._num_bound_by_tenant[sequence.tenant.index] += 1
        self._num_pooled += sequence.request.pooling is not None
        self.catching_up.add(binding)
        return binding, blocks.copy

    def close(self, binding: Binding) -> bool:
        """It runs no further: released at the worker by the next plan. Whether slot and blocks are free at once;
        otherwise they are when the steps in flight that name them are committed."""
        columns, slot = self.columns, binding.slot
        self.flush(binding)
        self.tables.break_promises(binding)
        if columns.is_catching_up(slot):
            self.catching_up.remove(binding)
        columns.active[slot] = columns.continues[slot] = False
        columns.open[slot] = not binding.sequence.finished
        self.released_slots.append(slot)
        if columns.last_step[slot] <= self.num_committed_steps:
            self._unbind(binding)
            return True
        self.closing.append(binding)
        return False

    def end(self, binding: Binding) -> None:
        """Its sequence has just finished, perhaps while it was closing."""
        if self.columns.active[binding.slot]:
            self.close(binding)
        else:
            self.flush(binding)
            self.columns.open[binding.slot] = False

    def flush(self, binding: Binding) -> None:
        """Brings the tokens that are known here alone to the sequence."""
        token_ids = binding.sequence.token_ids
        token_ids.frombytes(self.columns.tail_tokens(binding.slot, len(token_ids)))

    def launch(self, step: Step) -> None:
        self.in_flight.append(step)
        self.num_steps = step.plan.step
        self.released_slots.clear()

    def step_of(self, result: StepResult) -> Step | None:
        """The step in flight that a result belongs to; None if the result is of another."""
        if result.epoch != self.epoch:
            return None
        return next((step for step in self.in_flight if step.plan.step == result.step), None)

    def running_slots(self) -> set[int]:
        """Those that a step in flight runs; one that it only gives a block to does not run."""
        return {
            slot
            for step in self.in_flight
            for slots in (step.decode_slots, step.chunk_slots)
            for slot in slots.tolist()
        }

    def finish_step(self) -> list[Sequence]:
        """The oldest step's changes are made: what was kept for it is free. The sequences that wait again."""
        self.num_committed_steps = self.in_flight.popleft().plan.step
        requeued: list[Sequence] = []
        if not self.closing:
            return requeued
        still_closing: list[Binding] = []
        for binding in self.closing:
            if self.columns.last_step[binding.slot] > self.num_committed_steps:
                still_closing.append(binding)
                continue
            if not binding.sequence.finished:
                self.flush(binding)
                requeued.append(binding.sequence)
            self._unbind(binding)
        self.closing = still_closing
        return requeued

    def dissolve(self) -> list[Sequence]:
        """The worker is lost: the unfinished sequences that were bound, with the tokens that they have."""
        unfinished: list[Sequence] = []
        for binding in self.bound:
            if not binding.sequence.finished:
                self.flush(binding)
                unfinished.append(binding.sequence)
            binding.sequence.binding = None
        return unfinished

    def stats(self) -> WorkerStats:
        return WorkerStats(
            worker_id=self.hello.worker_id,
            epoch=self.epoch,
            cache=self.hello.cache,
            num_running=int(np.count_nonzero(self.columns.open)),
            num_free_blocks=self.tables.pool.num_free,
            num_cached_blocks=len(self.tables.prefix_cache),
            draining=self.draining,
        )

    def _write_columns(self, binding: Binding, num_computed_tokens: int) -> None:
        columns, slot, sequence = self.columns, binding.slot, binding.sequence
        sampling = sequence.request.sampling
        columns.open[slot] = columns.active[slot] = True
        columns.continues[slot] = False
        columns.num_computed[slot] = columns.num_planned[slot] = num_computed_tokens
        columns.num_known[slot] = columns.num_drawn[slot] = len(sequence.token_ids)
        columns.draft_limit[slot] = columns.num_drafts_ahead[slot] = 0
        columns.capacity[slot] = len(binding.block_ids) * self.tables.block_size
        columns.max_len[slot] = sequence.max_len
        columns.key[slot] = sequence.key
        columns.num_prompt[slot] = sequence.num_prompt_tokens
        columns.tenant[slot] = sequence.tenant.index
        columns.waits_for_tokens[slot] = sequence.request.wait_for_tokens
        columns.wants_logprobs[slot] = sequence.wants_logprobs
        columns.ends_at_eos[slot] = sampling.ends_at_eos
        columns.has_stop_tokens[slot] = bool(sampling.stop_token_ids)
        columns.num_steps[slot] = columns.num_held_steps[slot] = 0
        columns.last_step[slot] = 0

    def _unbind(self, binding: Binding) -> None:
        self.columns.open[binding.slot] = False
        self.tables.release(binding)
        self.bound.remove(binding)
        self._num_pooled -= binding.sequence.request.pooling is not None
        tenant_index = binding.sequence.tenant.index
        self._num_bound_by_tenant[tenant_index] -= 1
        if not self._num_bound_by_tenant[tenant_index]:
            del self._num_bound_by_tenant[tenant_index]
        self.by_slot[binding.slot] = None
        heapq.heappush(self.free_slots, binding.slot)
        binding.sequence.binding = None
