"""When memory runs out: who gives way, and that everyone still gets to the end with the right text."""

import pytest

from tests.scheduler.core.builders import make_limits, make_request, make_world
from tests.scheduler.core.paper_world import PaperWorld


def run_until_preempted(world: PaperWorld) -> None:
    while world.scheduler.stats().num_preemptions == 0:
        assert world.step() is not None


@pytest.mark.parametrize(("one", "two"), [((34, 35), (34, 35)), ((34, 70), (35, 70)), ((1, 111), (1, 111))])
def test_two_requests_in_seven_blocks(one: tuple[int, int], two: tuple[int, int]):
    """The smallest fixture in which two sequences that grow together need more than there is."""
    world = make_world(block_size=16, num_blocks=7)
    world.submit(make_request("one", prompt=one[0], max_tokens=one[1]))
    world.submit(make_request("two", prompt=two[0], max_tokens=two[1]))
    world.drain()
    stats = world.scheduler.stats()
    assert stats.num_preemptions >= 1
    # Recomputing what was lost must not become the main occupation.
    assert world.num_steps <= one[1] + two[1] + 4


def test_the_last_to_arrive_gives_way_and_comes_back_before_others():
    world = make_world(make_limits(max_num_seqs=2), block_size=4, num_blocks=9)
    for request_id in ("one", "two", "three"):
        world.submit(make_request(request_id, prompt=8, max_tokens=20))
    run_until_preempted(world)
    assert world.waiting == ["two", "three"]
    world.drain()


def test_the_lower_priority_gives_way_even_if_it_came_first():
    world = make_world(block_size=4, num_blocks=9)
    world.submit(make_request("lower", prompt=8, max_tokens=20, priority=1))
    world.submit(make_request("higher", prompt=8, max_tokens=20, priority=0))
    run_until_preempted(world)
    assert world.waiting == ["lower"]
    world.drain()


def test_the_last_one_waits_with_its_blocks_instead_of_preempting_an_earlier_one():
    world = make_world(block_size=4, num_blocks=8)
    world.submit(make_request("one", prompt=13, max_tokens=8))
    world.submit(make_request("two", prompt=8, max_tokens=8))
    held = []
    while world.open_streams:
        plan = world.plan("a")
        assert plan is not None
        held.append(plan.held_slots)
        world.commit("a")
    assert (1,) in held
    assert world.scheduler.stats().num_preemptions == 0


def test_recompute_finds_what_is_still_cached():
    world = make_world(block_size=4, num_blocks=9)
    for request_id in ("one", "two"):
        world.submit(make_request(request_id, prompt=8, max_tokens=20))
    run_until_preempted(world)
    while not (plan := world.plan("a")) or not plan.admissions:
        world.commit("a")
    assert plan.admissions[0].num_computed_tokens > 0
    world.commit("a")
    world.drain()


def test_cached_tokens_are_those_of_the_first_admission():
    world = make_world(block_size=4, num_blocks=9)
    for request_id in ("one", "two"):
        world.submit(make_request(request_id, prompt=8, max_tokens=20))
    world.drain()
    assert world.scheduler.stats().num_preemptions > 0
    assert [stream.finished.num_cached_tokens for stream in world.streams.values() if stream.finished] == [0, 0]


def test_no_newcomer_takes_the_blocks_that_growth_needs_next():
    world = make_world(make_limits(), block_size=4, num_blocks=8)
    world.submit(make_request("one", prompt=16, max_tokens=17))
    world.plan("a")
    world.commit("a")
    # It would fit, but then the first could not grow for even one block.
    world.submit(make_request("two", prompt=12, max_tokens=4))
    world.plan("a")
    world.commit("a")
    assert world.scheduler.stats().num_waiting == 1
    world.drain()
    assert world.scheduler.stats().num_preemptions == 0
