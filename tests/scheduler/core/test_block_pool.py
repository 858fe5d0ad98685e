"""Blocks are counted, and taken in eviction order."""

import pytest

from scheduler_svc.core.block_pool import BlockPool


def test_blocks_without_content_are_taken_before_those_worth_keeping():
    pool = BlockPool(4)
    kept, emptied = pool.take(2)
    pool.release(kept, worth_keeping=True)
    pool.release(emptied, worth_keeping=False)
    assert pool.free_block_ids() == (emptied, 2, 3, kept)


def test_what_was_released_first_is_taken_first():
    pool = BlockPool(3)
    for block_id in pool.take(3):
        pool.release(block_id, worth_keeping=True)
    assert pool.take(2) == [0, 1]


def test_a_shared_block_is_free_after_its_last_owner():
    pool = BlockPool(1)
    (block_id,) = pool.take(1)
    pool.share(block_id)
    pool.release(block_id, worth_keeping=True)
    assert pool.num_free == 0
    pool.release(block_id, worth_keeping=True)
    assert pool.num_free == 1


def test_sharing_a_free_block_takes_it_out_of_the_free_list():
    pool = BlockPool(3)
    pool.share(1)
    assert pool.free_block_ids() == (0, 2)
    assert pool.ref_count(1) == 1


def test_nobody_releases_what_nobody_owns():
    pool = BlockPool(1)
    with pytest.raises(AssertionError, match="block 0 has no owner"):
        pool.release(0, worth_keeping=True)
