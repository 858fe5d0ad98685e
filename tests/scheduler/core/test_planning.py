"""What a plan holds: chunks mixed with decodes, order, budget, slots, deltas."""

import pytest

from scheduler_svc.core import policy
from tests.scheduler.core.builders import make_limits, make_request, make_world
from tests.support.paper_model import paper_hello


def test_the_first_plan_is_a_snapshot_and_a_decode_costs_nothing():
    world = make_world(block_size=16)
    world.submit(make_request(prompt=5))
    first = world.plan("a")
    assert first is not None
    assert first.snapshot
    assert (first.step, first.chunk_slots, first.chunk_lens) == (1, (0,), (5,))
    world.commit("a")
    second = world.plan("a")
    assert second is not None
    assert not second.snapshot
    assert (second.admissions, second.chunk_slots, second.grown_slots, second.held_slots) == ((), (), (), ())
    world.commit("a")
    world.drain()


def test_nothing_to_do_is_no_plan():
    world = make_world()
    assert world.plan("a") is None
    world.submit(make_request())
    world.drain()
    assert world.plan("a") is None


def test_one_step_at_a_time():
    world = make_world()
    world.submit(make_request("one"))
    assert world.plan("a") is not None
    world.submit(make_request("two"))
    assert world.scheduler.plan("a", 0.0) is None
    world.commit("a")
    world.drain()


def test_a_long_prompt_runs_in_chunks_beside_decodes():
    world = make_world(make_limits(max_num_batched_tokens=8))
    world.submit(make_request("short", prompt=3, max_tokens=20))
    world.submit(make_request("long", prompt=20))
    lens = []
    for _ in range(4):
        plan = world.plan("a")
        assert plan is not None
        lens.append(plan.chunk_lens)
        world.commit("a")
    # The short one's decode takes one of eight tokens from the second step on.
    assert lens == [(3, 5), (7,), (7,), (1,)]
    assert len(world.streams["short", 0].token_ids) == 4
    world.drain()


def test_a_chunk_continues_before_newcomers():
    world = make_world(make_limits(max_num_batched_tokens=8))
    world.submit(make_request("first", prompt=12))
    world.submit(make_request("second", prompt=6))
    world.plan("a")
    world.commit("a")
    plan = world.plan("a")
    assert plan is not None
    assert (plan.chunk_slots, plan.chunk_lens) == ((0, 1), (4, 4))
    world.commit("a")
    world.drain()


def test_a_quarter_of_a_step_is_for_newcomers_that_fit_into_it_whole():
    world = make_world(make_limits(max_num_batched_tokens=16))
    warm = make_request("warm", prompt=9, max_tokens=1)
    world.submit(warm)
    world.step()
    world.submit(make_request("long", prompt=60))
    world.step()
    # Of its nine tokens, eight are cached.
    world.submit(make_request("cached", prompt=warm.prompt_token_ids))
    for request_id, prompt in (("small", 2), ("medium", 5), ("late", 2)):
        world.submit(make_request(request_id, prompt=prompt))
    plan = world.step()
    assert plan is not None
    assert world.admitted(plan) == ["cached", "small"]
    assert plan.chunk_lens == (1, 2, 13)
    world.drain()


def test_newcomers_pass_one_that_is_too_long_for_that_with_no_more_blocks_than_it_needs():
    world = make_world(make_limits(max_num_batched_tokens=16))
    world.submit(make_request("long", prompt=60))
    world.step()
    world.submit(make_request("medium", prompt=5))
    for index in range(3):
        world.submit(make_request(f"small{index}", prompt=1))
    assert world.admitted(world.step()) == ["small0", "small1"]
    assert world.admitted(world.step()) == []
    world.drain()


def test_newcomers_of_a_tenant_served_less_go_before_chunks():
    world = make_world(make_limits(max_num_batched_tokens=16))
    for request_id, prompt in (("a", 100), ("b", 60)):
        world.submit(make_request(request_id, prompt=prompt, tenant=request_id))
    assert world.admitted(world.step()) == ["a"]
    plan = world.step()
    assert plan is not None
    assert world.admitted(plan) == ["b"]
    assert plan.chunk_lens == (16,)
    # Its turn comes after that of the second, though before that of the first.
    world.submit(make_request("c", prompt=40, tenant="c"))
    plan = world.step()
    assert plan is not None
    assert world.admitted(plan) == []
    assert plan.chunk_slots == (1,)
    world.drain()


def test_newcomers_bring_no_more_known_tokens_than_one_plan_may_carry(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(policy, "MAX_ADMITTED_TOKENS", 20)
    world = make_world()
    for request_id in ("one", "two", "three"):
        world.submit(make_request(request_id, prompt=10))
    assert world.admitted(world.step()) == ["one", "two"]
    world.drain()


def test_newcomers_bring_no_more_grammar_than_one_plan_may_carry(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(policy, "MAX_ADMITTED_CONSTRAINT_BYTES", 20)
    world = make_world()
    for request_id in ("one", "two", "three"):
        world.submit(make_request(request_id, prompt=10, grammar="x" * 10))
    assert world.admitted(world.step()) == ["one", "two"]
    world.drain()


def test_the_smaller_limit_holds():
    world = make_world(make_limits(max_num_batched_tokens=64, max_num_seqs=2))
    world.lose("a")
    world.attach(paper_hello("a", max_num_batched_tokens=16, max_num_seqs=8))
    for request_id in ("one", "two", "three"):
        world.submit(make_request(request_id, prompt=10))
    plan = world.plan("a")
    assert plan is not None
    assert plan.chunk_lens == (10, 6)
    world.commit("a")
    assert world.scheduler.stats().num_running == 2
    world.drain()


def test_more_decodes_than_tokens_in_a_step_take_turns_by_order():
    world = make_world(make_limits(max_num_batched_tokens=2))
    for request_id in ("one", "two", "three"):
        world.submit(make_request(request_id, prompt=1, max_tokens=10))
    for _ in range(2):
        world.plan("a")
        world.commit("a")
    plan = world.plan("a")
    assert plan is not None
    world.commit("a")
    assert len(world.streams["one", 0].token_ids) == 3
    world.drain()


def test_a_slot_is_released_in_the_next_plan_with_work_and_may_be_bound_again_in_it():
    world = make_world(make_limits(max_num_seqs=1))
    world.submit(make_request("one", max_tokens=1))
    world.plan("a")
    world.commit("a")
    assert world.plan("a") is None
    world.submit(make_request("two", max_tokens=1))
    plan = world.plan("a")
    assert plan is not None
    assert plan.released_slots == (0,)
    assert [admission.slot for admission in plan.admissions] == [0]
    world.commit("a")
    world.drain()


def test_a_block_is_added_when_the_last_is_full():
    world = make_world(block_size=4)
    world.submit(make_request(prompt=3, max_tokens=4))
    grown = []
    while (plan := world.plan("a")) is not None:
        grown.append((plan.grown_slots, plan.grown_counts, len(plan.grown_block_ids)))
        world.commit("a")
    nothing, one_block = ((), (), 0), ((0,), (1,), 1)
    assert grown == [nothing, nothing, one_block, nothing]
