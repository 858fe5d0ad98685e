"""Blocks are counted, taken in ascending runs, and evicted in order."""

import itertools

import pytest

from scheduler_svc.core.block_pool import BlockPool
from tests.scheduler.core.builders import make_limits, make_request, make_world


class TestOrder:
    def test_blocks_without_content_are_taken_before_those_worth_keeping(self):
        pool = BlockPool(4)
        kept, emptied = pool.take(2)
        pool.release(kept, worth_keeping=True)
        pool.release(emptied, worth_keeping=False)
        assert pool.free_block_ids() == (emptied, 2, 3, kept)
        assert pool.take(4)[-1] in (kept, 3)
        assert pool.num_free == 0

    def test_of_those_worth_keeping_the_first_released_is_taken_first(self):
        pool = BlockPool(3)
        pool.take(3)
        for block_id in (2, 0, 1):
            pool.release(block_id, worth_keeping=True)
        assert pool.take(1) == [2]
        assert pool.take(1) == [0]

    def test_what_is_taken_together_ascends(self):
        pool = BlockPool(6)
        pool.take(6)
        for block_id in (5, 1, 3, 0):
            pool.release(block_id, worth_keeping=False)
        assert pool.take(3) == [0, 1, 3]

    def test_so_do_evicted_ones_among_empty_ones(self):
        pool = BlockPool(4)
        pool.take(4)
        pool.release(3, worth_keeping=False)
        pool.release(2, worth_keeping=True)
        pool.release(0, worth_keeping=True)
        assert pool.take(3) == [0, 2, 3]

    def test_blocks_that_follow_come_first(self):
        pool = BlockPool(8)
        pool.take(8)
        for block_id in (1, 2, 5, 6):
            pool.release(block_id, worth_keeping=False)
        assert pool.take(3, after=4) == [5, 6, 1]

    def test_content_that_follows_is_not_taken_for_it(self):
        pool = BlockPool(4)
        pool.take(4)
        pool.release(2, worth_keeping=True)
        pool.release(0, worth_keeping=False)
        assert pool.take(1, after=1) == [0]
        assert pool.free_block_ids() == (2,)

    def test_a_block_released_again_and_again_is_handed_out_once(self):
        pool = BlockPool(2)
        for _ in range(3):
            (block_id,) = pool.take(1)
            pool.release(block_id, worth_keeping=False)
        assert sorted(pool.take(2)) == [0, 1]


class TestOwners:
    def test_a_shared_block_is_free_after_its_last_owner(self):
        pool = BlockPool(1)
        (block_id,) = pool.take(1)
        pool.share(block_id)
        pool.release(block_id, worth_keeping=True)
        assert pool.num_free == 0
        pool.release(block_id, worth_keeping=True)
        assert pool.num_free == 1

    def test_sharing_a_free_block_takes_it_out_of_the_free_ones(self):
        pool = BlockPool(3)
        pool.take(2)
        pool.release(1, worth_keeping=True)
        pool.share(1)
        assert pool.free_block_ids() == (2,)
        assert pool.ref_count(1) == 1

    def test_nobody_releases_what_nobody_owns(self):
        pool = BlockPool(1)
        with pytest.raises(AssertionError, match="block 0 has no owner"):
            pool.release(0, worth_keeping=True)


def num_runs(block_ids: list[int]) -> int:
    """Stretches of blocks that follow each other."""
    return 1 + sum(after != before + 1 for before, after in itertools.pairwise(block_ids))


def test_tables_are_ascending_runs_as_long_as_there_is_room():
    """Four sequences that decode side by side: their tables grow in turn, and each prompt is one run."""
    world = make_world(make_limits(max_num_seqs=4), block_size=4, num_blocks=64)
    for index in range(4):
        world.submit(make_request(f"r{index}", prompt=20, max_tokens=20))
    plan = world.step()
    assert plan is not None
    assert [num_runs(list(admission.block_ids)) for admission in plan.admissions] == [1, 1, 1, 1]
    while world.step() is not None:
        tables = [state.block_ids for state in world.workers["a"].worker.slots.values()]
        assert all(num_runs(block_ids) <= 1 + (len(block_ids) - 5) for block_ids in tables)
    world.drain()


def test_a_lone_sequence_is_one_run():
    world = make_world(block_size=4, num_blocks=64)
    world.submit(make_request(prompt=10, max_tokens=40))
    block_ids: list[int] = []
    while world.step() is not None:
        block_ids = world.workers["a"].worker.slots[0].block_ids
    assert len(block_ids) == 13
    assert num_runs(block_ids) == 1


def test_a_table_grows_by_the_block_that_follows_even_if_lower_ones_are_free():
    world = make_world(make_limits(enable_prefix_caching=False), block_size=4, num_blocks=64)
    world.submit(make_request("low", prompt=12, max_tokens=20))
    world.submit(make_request("high", prompt=12, max_tokens=20))
    world.step()
    world.cancel("low")
    while world.step() is not None:
        block_ids = world.workers["a"].worker.slots[1].block_ids
        assert num_runs(block_ids) == 1
    assert len(block_ids) == 8
