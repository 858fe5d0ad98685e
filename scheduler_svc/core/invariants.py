"""What must hold between any two calls of the core? Every invariant, in one place; tests check after each call."""

from __future__ import annotations

from collections import Counter

import numpy as np

from scheduler_svc.core.prefix_cache import TokenIds, token_array
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import Binding, Sequence
from scheduler_svc.core.worker_group import WorkerGroup


def check(scheduler: Scheduler) -> None:
    """Raises AssertionError, saying what is wrong, if the core's state contradicts itself."""
    _check_places(scheduler)
    for worker_id, group in scheduler.groups.items():
        where = f"worker {worker_id}"
        assert len(group.in_flight) <= group.max_num_steps_in_flight, f"{where}: too far ahead"
        _check_slots(group, where)
        _check_pool(group, where)
        _check_promises(group, where)
        # Drafts of all steps that may be in flight at a time, which blocks may be held for.
        num_drafts = group.max_num_draft_tokens * group.max_num_steps_in_flight
        for binding in group.bound:
            _check_progress(group, binding, num_drafts, f"{where}, slot {binding.slot}")
        _check_drafts(group, where)
        _check_shared_blocks(group, where)
        _check_prefix_cache(group, where)
        _check_steps(group, where)


def known_token_ids(group: WorkerGroup, sequence: Sequence, binding: Binding) -> TokenIds:
    """All tokens of a bound sequence whose values are here."""
    if sequence.finished:
        return sequence.token_ids
    tail = token_array()
    tail.frombytes(group.columns.tail_tokens(binding.slot, len(sequence.token_ids)))
    return sequence.token_ids + tail


def _check_places(scheduler: Scheduler) -> None:
    """Each open choice is in one place: the queue, or a slot of one worker. Homes are counted right."""
    waiting = list(scheduler.waiting)
    places = list(waiting)
    for worker_id, group in scheduler.groups.items():
        places += [binding.sequence for binding in group.bound if not binding.sequence.finished]
        for binding in group.bound:
            assert binding.sequence.binding is binding, "slot and choice disagree"
            assert binding.worker_id == worker_id, "a choice is bound elsewhere than it says"
        assert _is_sorted([binding.order for binding in group.bound]), "bound choices are out of order"
        homed = [sequence for sequence in waiting if sequence.home == worker_id]
        assert group.num_homed_seqs == len(homed), f"worker {worker_id}: miscounts who waits for it"
        assert group.num_homed_tokens == sum(sequence.num_homed_tokens for sequence in homed)
        assert not (group.draining and homed), f"worker {worker_id}: drains, and is somebody's home"
    assert all(sequence.binding is None for sequence in waiting), "a waiting choice is bound"
    assert all(1 <= sequence.num_scored_tokens <= sequence.num_prompt_tokens for sequence in waiting), "scores"
    assert len(scheduler.waiting) == len(waiting), "the queue miscounts itself"
    for tenant in {sequence.tenant for sequence in waiting}:
        assert _is_sorted([sequence.order for sequence in waiting if sequence.tenant is tenant]), "out of order"
    open_choices = scheduler.registry.sequences()
    assert len(places) == len(set(places)), "an open choice is in two places"
    assert set(places) == set(open_choices), "an open choice is nowhere, or a closed one somewhere"


def _check_slots(group: WorkerGroup, where: str) -> None:
    """Each slot is bound or free, and closing ones are bound only as long as a step in flight names them."""
    columns = group.columns
    slots = group.free_slots + [binding.slot for binding in group.bound]
    assert sorted(slots) == list(range(group.num_slots)), f"{where}: a slot is lost or bound twice"
    bound_slots = {binding.slot: binding for binding in group.bound}
    assert all(group.by_slot[slot] is bound_slots.get(slot) for slot in range(group.num_slots)), f"{where}: by_slot"
    unfinished = sorted(slot for slot, binding in bound_slots.items() if not binding.sequence.finished)
    assert np.flatnonzero(columns.open).tolist() == unfinished, f"{where}: open slots"
    closing = {binding.slot for binding in group.closing}
    assert set(np.flatnonzero(columns.active).tolist()) == bound_slots.keys() - closing, f"{where}: active slots"
    assert all(bound_slots[slot].slot in closing or slot in unfinished for slot in bound_slots)
    for binding in group.closing:
        assert columns.last_step[binding.slot] > group.num_committed_steps, f"{where}: kept for no step"
    behind = [binding for binding in group.bound if columns.is_catching_up(binding.slot)]
    assert list(group.catching_up) == behind, f"{where}: who is catching up"


def _check_pool(group: WorkerGroup, where: str) -> None:
    """Each block is free, or has as many owners as there are tables that name it."""
    pool = group.tables.pool
    owners = Counter(block_id for binding in group.bound for block_id in binding.block_ids)
    free_block_ids = pool.free_block_ids()
    assert len(free_block_ids) == pool.num_free, f"{where}: the pool miscounts itself"
    for block_id in range(pool.num_blocks):
        assert pool.ref_count(block_id) == owners[block_id], f"{where}: block {block_id} has other owners than it says"
    ownerless = [block_id for block_id in range(pool.num_blocks) if not owners[block_id]]
    assert sorted(free_block_ids) == ownerless, f"{where}: a block is free and in use, or neither"


def _check_promises(group: WorkerGroup, where: str) -> None:
    """What is promised is what active choices will publish."""
    tables = group.tables
    promised: Counter[bytes] = Counter()
    for binding in group.bound:
        if binding.num_promised_blocks > binding.num_published_blocks:
            assert group.columns.active[binding.slot], f"{where}: slot {binding.slot} promises, but is closing"
            hashes = binding.sequence.hash_chains[tables.block_size].hashes
            promised.update(hashes[binding.num_published_blocks : binding.num_promised_blocks])
    assert len(tables.promises) == len(promised), f"{where}: promises without anyone behind them"
    assert all(block_hash in tables.promises for block_hash in promised), f"{where}: a promise is forgotten"


def _check_progress(group: WorkerGroup, binding: Binding, num_drafts: int, where: str) -> None:
    columns, slot, block_size = group.columns, binding.slot, group.tables.block_size
    num_blocks, sequence = len(binding.block_ids), binding.sequence
    assert len(set(binding.block_ids)) == num_blocks, f"{where}: a table names a block twice"
    assert columns.capacity[slot] == num_blocks * block_size, f"{where}: capacity"
    if sequence.finished:
        return
    assert columns.num_planned[slot] <= columns.capacity[slot], f"{where}: runs past its blocks"
    if binding in group.closing:
        return
    computed, planned = columns.num_computed[slot], columns.num_planned[slot]
    known, drawn = columns.num_known[slot], columns.num_drawn[slot]
    # What is drawn is one more token than is planned to run; a prompt that is pooled draws nothing.
    num_drawn_ahead = int(sequence.request.pooling is None)
    assert computed <= planned <= drawn - num_drawn_ahead, f"{where}: {computed}, {planned}, {drawn}"
    assert drawn <= columns.max_len[slot], f"{where}: {drawn}"
    assert computed < known <= drawn, f"{where}: {computed}, {known}, {drawn}"
    assert known - len(sequence.token_ids) <= columns.tail_width, f"{where}: the tail has run over"
    # Blocks for drafts that turned out wrong are there for the tokens that come instead.
    most_drawn = min(drawn + num_drafts, columns.max_len[slot])
    assert num_blocks <= -(-most_drawn // block_size), f"{where}: holds blocks without need"
    computed_scores = min(int(computed) + 1, sequence.num_prompt_tokens)
    assert sequence.num_scored_tokens == max(binding.num_scored_at_start, computed_scores), f"{where}: a gap in scores"
    assert drawn - known <= len(group.in_flight), f"{where}: expects tokens that nobody draws"
    assert not columns.continues[slot] or planned == drawn - 1, f"{where}: continues but is behind"
    if sequence.request.wait_for_tokens:
        assert drawn - known <= 1, f"{where}: ran ahead of a token it has to wait for"
        assert columns.draft_limit[slot] == 0, f"{where}: guesses ahead of a token it has to wait for"


def _check_drafts(group: WorkerGroup, where: str) -> None:
    """What is counted for drafts is what the steps in flight may run."""
    ahead = np.zeros(group.num_slots, np.int64)
    for step in group.in_flight:
        if step.draft_limits is not None:
            ahead[step.decode_slots] += step.draft_limits
    bound = [binding.slot for binding in group.bound]
    assert ahead[bound].tolist() == group.columns.num_drafts_ahead[bound].tolist(), f"{where}: drafts are miscounted"
    assert 0 <= group.draft_limit <= group.max_num_draft_tokens, f"{where}: draft limit"


def _check_shared_blocks(group: WorkerGroup, where: str) -> None:
    """A block in several tables holds the same, acknowledged tokens at the same place in each."""
    block_size = group.tables.block_size
    content: dict[int, tuple[int, tuple[int, ...]]] = {}
    for binding in group.bound:
        token_ids = known_token_ids(group, binding.sequence, binding)
        for index, block_id in enumerate(binding.block_ids):
            if group.tables.pool.ref_count(block_id) == 1:
                continue
            assert group.columns.num_computed[binding.slot] >= (index + 1) * block_size, (
                f"{where}: block {block_id} shared too soon"
            )
            tokens = (index, tuple(token_ids[index * block_size : (index + 1) * block_size]))
            assert content.setdefault(block_id, tokens) == tokens, (
                f"{where}: block {block_id} shared by unlike prefixes"
            )


def _check_prefix_cache(group: WorkerGroup, where: str) -> None:
    """Hash to block is one to one, and what is cached of a bound choice is its own acknowledged tokens."""
    block_size = group.tables.block_size
    cached = {block.block_id: block for block in group.tables.prefix_cache.blocks()}
    assert len({block.block_hash for block in cached.values()}) == len(cached), f"{where}: one hash, two blocks"
    assert not cached or group.tables.enable_prefix_caching, f"{where}: caches although it must not"
    for binding in group.bound:
        token_ids = known_token_ids(group, binding.sequence, binding)
        for index, block_id in enumerate(binding.block_ids):
            if block_id not in cached:
                continue
            end = (index + 1) * block_size
            assert group.columns.num_computed[binding.slot] >= end, f"{where}: block {block_id} cached too soon"
            tokens = token_ids[end - block_size : end].tobytes()
            assert cached[block_id].tokens == tokens, f"{where}: block {block_id} is cached as something else"


def _check_steps(group: WorkerGroup, where: str) -> None:
    """What is in flight stays bound, and within the worker's limits; steps follow each other."""
    steps = [step.plan.step for step in group.in_flight]
    assert steps == list(range(group.num_committed_steps + 1, group.num_steps + 1)), f"{where}: a gap in the steps"
    for step in group.in_flight:
        slots = [*step.decode_slots.tolist(), *step.chunk_slots.tolist()]
        assert len(set(slots)) == len(slots), f"{where}: a slot runs twice in a step"
        assert all(group.by_slot[slot] is not None for slot in slots), f"{where}: a slot was taken from under its step"
        assert all(group.columns.last_step[slot] >= step.plan.step for slot in slots), f"{where}: last_step lags"
        num_tokens = len(step.decode_slots) + int(step.chunk_lens.sum())
        if step.draft_limits is not None:
            assert len(step.draft_limits) == len(step.decode_slots), f"{where}: draft limits for others than run on"
            num_tokens += int(step.draft_limits.sum())
        assert num_tokens <= group.max_num_batched_tokens, f"{where}: the step is too large"
        assert set(step.drawing_slots.tolist()) <= set(slots), f"{where}: draws what does not run"


def _is_sorted(orders: list[tuple[float, int, int]]) -> bool:
    return orders == sorted(orders)
