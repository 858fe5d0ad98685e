"""A worker with several stages: consecutive steps run different sequences, so that none waits for another's tokens."""

from __future__ import annotations

import itertools

import pytest

from pageloom.plan import BatchPlan
from tests.scheduler.core.builders import make_limits, make_request
from tests.scheduler.core.paper_world import PaperWorld
from tests.support.paper_model import paper_hello


def make_world(num_stages: int, *, depth: int = 2, max_num_batched_tokens: int = 64) -> PaperWorld:
    world = PaperWorld(make_limits(max_num_steps_in_flight=depth, max_num_batched_tokens=max_num_batched_tokens))
    world.attach(paper_hello("a", block_size=16, num_stages=num_stages))
    return world


def running_slots(world: PaperWorld) -> set[int]:
    """Of the newest step in flight."""
    return set(world.workers["a"].flights[-1].runs)


def plan(world: PaperWorld) -> BatchPlan:
    planned = world.plan("a")
    assert planned is not None
    return planned


def fill(world: PaperWorld) -> list[set[int]]:
    """Plans as many steps as may be in flight; the slots of each."""
    slots: list[set[int]] = []
    while world.plan("a") is not None:
        slots.append(running_slots(world))
    return slots


@pytest.mark.parametrize("depth", [1, 2])
def test_there_is_a_step_for_each_stage_beside_those_ahead(depth: int):
    world = make_world(3, depth=depth)
    world.submit(make_request(max_tokens=30))
    assert len(fill(world)) == depth + 2
    world.drain()


@pytest.mark.parametrize(("num_stages", "num_seqs"), [(2, 2), (2, 3), (2, 8), (3, 3), (3, 7)])
def test_consecutive_steps_share_no_sequence(num_stages: int, num_seqs: int):
    world = make_world(num_stages)
    for index in range(num_seqs):
        world.submit(make_request(f"r{index}", max_tokens=30))
    fill(world)
    for _ in range(3 * num_stages):
        # Until the prompts are computed and the turns are dealt.
        world.commit("a")
        fill(world)
    seen: list[set[int]] = []
    for _ in range(4 * num_stages):
        world.commit("a")
        plan(world)
        seen.append(running_slots(world))
        assert all(seen[-1].isdisjoint(other) for other in seen[-num_stages:-1])
    # Nobody is left behind, and the parts are even.
    assert set().union(*seen[-num_stages:]) == set(range(num_seqs))
    assert max(map(len, seen)) == -(-num_seqs // num_stages)
    world.drain()


def test_one_sequence_runs_in_every_step():
    """Its steps wait for each other at the first stage, but not for the scheduler."""
    world = make_world(2)
    world.submit(make_request(max_tokens=30))
    assert fill(world) == [{0}, {0}, {0}]
    world.drain()


def test_a_prompt_runs_where_a_decode_would_wait():
    world = make_world(2, max_num_batched_tokens=4)
    world.submit(make_request("short", prompt=2, max_tokens=30))
    plan(world)
    world.submit(make_request("long", prompt=40, max_tokens=2))
    seen = []
    for _ in range(8):
        if plan_or_none := world.plan("a"):
            seen.append((running_slots(world), plan_or_none.held_slots))
        else:
            world.commit("a")
    # The prompt goes on in every step, the decode in every second one.
    with_decode = [0 in slots for slots, _ in seen]
    assert all(1 in slots for slots, _ in seen[1:])
    assert not any(first and second for first, second in itertools.pairwise(with_decode))
    assert any(with_decode[1:])
    world.drain()
