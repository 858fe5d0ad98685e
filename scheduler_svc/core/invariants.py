"""What must hold between any two calls of the core? Every invariant, in one place; tests check after each call."""

from __future__ import annotations

from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import Binding, Sequence
from scheduler_svc.core.worker_group import WorkerGroup


def check(scheduler: Scheduler) -> None:
    """Raises AssertionError, saying what is wrong, if the core's state contradicts itself."""
    _check_places(scheduler)
    for worker_id, group in scheduler.groups.items():
        where = f"worker {worker_id}"
        _check_slots(group, where)
        _check_pool(group, where)
        for binding in group.bound:
            _check_table(group, binding, f"{where}, slot {binding.slot}")
        _check_shared_blocks(group, where)
        _check_prefix_cache(group, where)
        _check_step(group, where)


def _check_places(scheduler: Scheduler) -> None:
    """Each open choice is in one place: the queue, or a slot of one worker."""
    waiting = list(scheduler.waiting)
    places = list(waiting)
    for worker_id, group in scheduler.groups.items():
        places += [binding.sequence for binding in group.bound if not binding.sequence.finished]
        for binding in group.bound:
            assert binding.sequence.binding is binding, "slot and choice disagree"
            assert binding.worker_id == worker_id, "a choice is bound elsewhere than it says"
        assert _is_sorted(list(group.bound)), "bound choices are out of order"
    assert all(sequence.binding is None for sequence in waiting), "a waiting choice is bound"
    assert _is_sorted(waiting), "the queue is out of order"
    open_choices = scheduler.registry.sequences()
    assert len(places) == len(set(places)), "an open choice is in two places"
    assert set(places) == set(open_choices), "an open choice is nowhere, or a closed one somewhere"


def _check_slots(group: WorkerGroup, where: str) -> None:
    """Each slot is bound or free; what has finished is bound only while a step is in flight."""
    slots = group.free_slots + [binding.slot for binding in group.bound]
    assert sorted(slots) == list(range(group.num_slots)), f"{where}: a slot is lost or bound twice"
    finished = [binding for binding in group.bound if binding.sequence.finished]
    assert len(finished) == len(group.retiring), f"{where}: a finished choice is kept for no step"
    assert set(finished) == set(group.retiring), f"{where}: a choice that goes on is to be unbound"
    assert group.in_flight is not None or not group.retiring, f"{where}: finished choices outlive their step"


def _check_pool(group: WorkerGroup, where: str) -> None:
    """Each block is free, or has as many owners as there are tables that name it."""
    pool = group.tables.pool
    num_owners = [0] * pool.num_blocks
    for binding in group.bound:
        for block_id in binding.block_ids:
            num_owners[block_id] += 1
    ref_counts = [pool.ref_count(block_id) for block_id in range(pool.num_blocks)]
    assert ref_counts == num_owners, f"{where}: reference counts are {ref_counts}, owners {num_owners}"
    ownerless = [block_id for block_id, count in enumerate(num_owners) if count == 0]
    assert sorted(pool.free_block_ids()) == ownerless, f"{where}: a block is free and in use, or neither"


def _check_table(group: WorkerGroup, binding: Binding, where: str) -> None:
    block_size = group.tables.block_size
    num_known_tokens, num_blocks = len(binding.sequence.token_ids), len(binding.block_ids)
    assert len(set(binding.block_ids)) == num_blocks, f"{where}: a table names a block twice"
    assert binding.num_computed_tokens <= min(num_known_tokens, num_blocks * block_size), f"{where}: runs ahead"
    assert num_blocks <= -(-num_known_tokens // block_size), f"{where}: holds blocks without need"
    if not binding.sequence.finished:
        assert binding.num_remaining_tokens >= 1, f"{where}: has nothing to run"
        assert not binding.continues or binding.num_remaining_tokens == 1, f"{where}: continues but is behind"


def _check_shared_blocks(group: WorkerGroup, where: str) -> None:
    """A block in several tables holds the same, acknowledged tokens at the same place in each."""
    block_size = group.tables.block_size
    content: dict[int, tuple[int, tuple[int, ...]]] = {}
    for binding in group.bound:
        for index, block_id in enumerate(binding.block_ids):
            if group.tables.pool.ref_count(block_id) == 1:
                continue
            assert binding.num_computed_tokens >= (index + 1) * block_size, f"{where}: block {block_id} shared too soon"
            tokens = (index, _block_tokens(binding.sequence, index, block_size))
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
        for index, block_id in enumerate(binding.block_ids):
            if block_id not in cached:
                continue
            assert binding.num_computed_tokens >= (index + 1) * block_size, f"{where}: block {block_id} cached too soon"
            tokens = _block_tokens(binding.sequence, index, block_size)
            assert cached[block_id].token_ids == tokens, f"{where}: block {block_id} is cached as something else"


def _check_step(group: WorkerGroup, where: str) -> None:
    """What is in flight stays bound, and within the worker's limits."""
    if group.in_flight is None:
        return
    bound = set(group.bound)
    num_tokens = 0
    for binding, num_run_tokens in group.in_flight.runs:
        num_tokens += num_run_tokens
        assert binding in bound, f"{where}: slot {binding.slot} was taken from under its step"
        assert 1 <= num_run_tokens <= binding.num_remaining_tokens, f"{where}: slot {binding.slot} runs unknown tokens"
    assert num_tokens <= group.max_num_batched_tokens, f"{where}: the step is too large"


def _block_tokens(sequence: Sequence, index: int, block_size: int) -> tuple[int, ...]:
    return tuple(sequence.token_ids[index * block_size : (index + 1) * block_size])


def _is_sorted(items: list[Sequence] | list[Binding]) -> bool:
    orders = [item.order for item in items]
    return orders == sorted(orders)
