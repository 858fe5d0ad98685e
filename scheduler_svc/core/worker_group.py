"""One attached worker as the core sees it: slots, KV blocks, the step in flight."""

from __future__ import annotations

import heapq

from pageloom.plan import StepResult, WorkerHello
from scheduler_svc.core import policy
from scheduler_svc.core.block_table import BlockTables
from scheduler_svc.core.emission import StepFacts, WorkerStats
from scheduler_svc.core.limits import Limits
from scheduler_svc.core.ordered import Ordered
from scheduler_svc.core.prefix_cache import CacheNamespace
from scheduler_svc.core.sequence import Binding, Sequence
from scheduler_svc.core.step import Step


class WorkerGroup:
    """Mirrors the worker's slots. Made at attach, dropped whole at its loss: nothing in it outlives an epoch.

    One step is in flight at most. What it names (slots, blocks) changes hands only after its commit:
    `in_flight` becomes a queue and `retiring` is kept by step once plans are sent one step ahead.
    """

    def __init__(self, hello: WorkerHello, epoch: int, limits: Limits) -> None:
        self.hello = hello
        self.epoch = epoch
        self.num_slots = min(limits.max_num_seqs, hello.max_num_seqs)
        self.max_num_batched_tokens = min(limits.max_num_batched_tokens, hello.max_num_batched_tokens)
        self.tables = BlockTables(hello.cache, enable_prefix_caching=limits.enable_prefix_caching)
        self.bound: Ordered[Binding] = Ordered()
        self.in_flight: Step | None = None
        self.num_steps = 0
        self.last_step_facts: StepFacts | None = None
        # A heap: the lowest slot is bound next, which keeps the worker's batch compact.
        self.free_slots = list(range(self.num_slots))
        # Freed since the last plan. The worker frees them first, so the next plan may bind them again.
        self.released_slots: list[int] = []
        # Finished during the step in flight, still bound until its commit.
        self.retiring: list[Binding] = []

    @property
    def num_kv_tokens(self) -> int:
        return self.hello.cache.num_blocks * self.hello.cache.block_size

    def bind(self, sequence: Sequence) -> Binding | None:
        """Gives a waiting sequence a slot, its cached prefix, and blocks for all its known tokens.

        None, and nothing changed, if there is no slot or too little memory now.
        """
        assert sequence.binding is None
        assert not sequence.finished
        if not self.free_slots:
            return None
        blocks = self.tables.attach(sequence, self._namespace(sequence), policy.num_reserved_blocks(len(self.bound)))
        if blocks is None:
            return None
        binding = Binding(
            sequence=sequence,
            order=sequence.order,
            worker_id=self.hello.worker_id,
            slot=heapq.heappop(self.free_slots),
            block_ids=blocks.block_ids,
            num_computed_tokens=blocks.num_cached_blocks * self.tables.block_size,
            num_published_blocks=blocks.num_cached_blocks,
            published=blocks.published,
        )
        sequence.binding = binding
        self.bound.add(binding)
        return binding

    def unbind(self, binding: Binding) -> None:
        """Takes slot and blocks back. No step in flight may name them."""
        self.tables.release(binding)
        self.bound.remove(binding)
        heapq.heappush(self.free_slots, binding.slot)
        self.released_slots.append(binding.slot)
        binding.sequence.binding = None

    def retire(self, binding: Binding) -> None:
        """Its choice was cancelled: unbinds it, but only after the commit of a step in flight."""
        if self.in_flight is None:
            self.unbind(binding)
        else:
            self.retiring.append(binding)

    def launch(self, step: Step) -> None:
        assert self.in_flight is None
        self.in_flight = step
        self.num_steps = step.plan.step
        self.last_step_facts = step.facts
        self.released_slots.clear()

    def step_of(self, result: StepResult) -> Step | None:
        """The step in flight that a result belongs to; None if the result is of another."""
        step = self.in_flight
        if step is None or (result.epoch, result.step) != (step.plan.epoch, step.plan.step):
            return None
        return step

    def finish_step(self) -> None:
        """The step's changes are made: what was kept for it is free."""
        self.in_flight = None
        for binding in self.retiring:
            self.unbind(binding)
        self.retiring.clear()

    def stats(self) -> WorkerStats:
        return WorkerStats(
            worker_id=self.hello.worker_id,
            epoch=self.epoch,
            cache=self.hello.cache,
            num_running=len(self.bound) - len(self.retiring),
            num_free_blocks=self.tables.pool.num_free,
            num_cached_blocks=len(self.tables.prefix_cache),
        )

    def _namespace(self, sequence: Sequence) -> CacheNamespace:
        model = self.hello.model
        return CacheNamespace(salt=sequence.request.cache_salt, model_digest=model.digest, kv_dtype=model.dtype)
