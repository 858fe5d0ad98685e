"""One step ahead: what the second plan may say before the result of the first is here."""

import pytest

from pageloom.outputs import FinishReason
from scheduler_svc.core import Limits
from tests.scheduler.core.builders import make_limits, make_request, make_world
from tests.scheduler.core.paper_world import PaperWorld
from tests.support.paper_model import paper_hello, solo_run


def ahead(max_num_seqs: int = 8, max_num_batched_tokens: int = 64) -> Limits:
    return make_limits(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, max_num_steps_in_flight=2
    )


def num_used_blocks(world: PaperWorld) -> int:
    (worker,) = world.scheduler.stats().workers
    return worker.cache.num_blocks - worker.num_free_blocks


def stop_index(prompt: tuple[int, ...], max_tokens: int) -> tuple[int, int]:
    """Where the first token that did not come before stands in a request's output, and which it is."""
    output = solo_run(prompt, make_request(prompt=prompt, max_tokens=max_tokens).sampling, 0).token_ids
    index = next(index for index in range(2, max_tokens) if output[index] not in output[:index])
    return index, output[index]


class TestAhead:
    def test_two_plans_are_out_and_no_more(self):
        world = make_world(ahead(), block_size=16)
        world.submit(make_request(prompt=5))
        first, second, third = world.plan("a"), world.plan("a"), world.plan("a")
        assert first is not None
        assert second is not None
        assert third is None
        assert (first.chunk_slots, first.chunk_lens) == ((0,), (5,))
        # The token of the first is not here, and the worker feeds it to itself.
        assert (second.chunk_slots, second.held_slots, second.grown_slots) == ((), (), ())
        assert world.scheduler.num_in_flight("a") == 2
        world.commit("a")
        assert world.plan("a") is not None
        world.drain()

    def test_at_depth_one_there_is_one(self):
        world = make_world(make_limits(max_num_steps_in_flight=1))
        world.submit(make_request())
        assert world.plan("a") is not None
        assert world.plan("a") is None
        world.commit("a")
        world.drain()

    def test_a_prompt_goes_on_in_the_second(self):
        world = make_world(ahead(max_num_batched_tokens=4))
        world.submit(make_request(prompt=10))
        plans = [world.plan("a"), world.plan("a")]
        assert [plan.chunk_lens for plan in plans if plan is not None] == [(4,), (4,)]
        world.commit("a")
        third = world.plan("a")
        assert third is not None
        assert third.chunk_lens == (2,)
        world.drain()

    def test_a_newcomer_is_in_the_second(self):
        world = make_world(ahead())
        world.submit(make_request("one"))
        world.plan("a")
        world.submit(make_request("two"))
        second = world.plan("a")
        assert second is not None
        assert len(second.admissions) == 1
        world.drain()

    def test_a_block_is_added_ahead_of_the_token_that_needs_it(self):
        world = make_world(ahead(), block_size=4)
        world.submit(make_request(prompt=4, max_tokens=8))
        world.plan("a")
        second = world.plan("a")
        assert second is not None
        assert second.grown_slots == (0,)
        world.drain()

    def test_the_same_text_as_step_by_step(self):
        texts = []
        for depth in (1, 2):
            world = make_world(make_limits(max_num_steps_in_flight=depth), num_blocks=12)
            for index in range(6):
                world.submit(make_request(f"r{index}", prompt=6, max_tokens=12))
            world.drain()
            texts.append({key: stream.token_ids for key, stream in world.streams.items()})
        assert texts[0] == texts[1]


class TestEnds:
    def test_no_step_is_planned_beyond_max_tokens(self):
        world = make_world(ahead())
        world.submit(make_request("short", prompt=3, max_tokens=1))
        assert world.plan("a") is not None
        assert world.plan("a") is None
        world.submit(make_request("long", prompt=3, max_tokens=4))
        plan = world.plan("a")
        assert plan is not None
        assert plan.held_slots == (0,)
        world.drain()

    def test_the_token_of_the_step_after_a_stop_is_dropped_and_its_blocks_come_back_with_it(self):
        prompt = (5, 6, 7)
        index, token_id = stop_index(prompt, 20)
        world = make_world(ahead(), block_size=4)
        world.submit(make_request(prompt=prompt, max_tokens=20, stop_token_ids=(token_id,)))
        world.plan("a")
        for _ in range(index):
            world.plan("a")
            world.commit("a")
        # The step that draws the stop token is in flight, and so is the next.
        world.plan("a")
        assert world.scheduler.num_in_flight("a") == 2
        world.commit("a")
        assert world.finished("r").reason is FinishReason.STOP
        assert num_used_blocks(world) > 0
        assert world.plan("a") is None
        world.commit("a")
        assert num_used_blocks(world) == 0
        world.drain()

    def test_a_released_slot_is_bound_again_only_after_the_last_step_that_ran_it(self):
        world = make_world(ahead(max_num_seqs=1))
        world.submit(make_request("one"))
        world.plan("a")
        world.plan("a")
        world.cancel("one")
        world.submit(make_request("two"))
        world.commit("a")
        assert world.plan("a") is None
        world.commit("a")
        plan = world.plan("a")
        assert plan is not None
        assert (plan.released_slots, plan.admissions[0].slot) == ((0,), 0)
        world.drain()


class TestWaitForTokens:
    def test_alone_it_runs_step_by_step(self):
        world = make_world(ahead())
        world.submit(make_request(prompt=3, wait_for_tokens=True))
        for _ in range(4):
            assert world.plan("a") is not None
            assert world.plan("a") is None
            world.commit("a")
        world.drain()

    def test_the_others_of_the_step_run_ahead(self):
        world = make_world(ahead())
        world.submit(make_request("waits", prompt=3, wait_for_tokens=True))
        world.submit(make_request("runs ahead", prompt=3))
        world.plan("a")
        second = world.plan("a")
        assert second is not None
        assert second.held_slots == (0,)
        world.commit("a")
        third = world.plan("a")
        assert third is not None
        assert third.held_slots == ()
        world.drain()

    def test_its_prompt_needs_no_token(self):
        world = make_world(ahead(max_num_batched_tokens=4))
        world.submit(make_request(prompt=8, wait_for_tokens=True))
        assert world.plan("a") is not None
        assert world.plan("a") is not None
        world.drain()


class TestPreemption:
    def test_what_is_in_flight_is_delivered_and_then_it_waits_again(self):
        world = make_world(ahead(), block_size=4, num_blocks=8)
        # They need new blocks in different steps, so one runs in the step in flight when the other takes its blocks.
        for request_id, prompt in (("one", 8), ("two", 6)):
            world.submit(make_request(request_id, prompt=prompt, max_tokens=20))
        while world.plan("a") is not None or world.scheduler.stats().num_preemptions == 0:
            if world.num_in_flight == 2:
                world.commit("a")
        # The claimant is held until then too: there is nothing to plan.
        assert world.num_in_flight == 1
        assert world.waiting == []
        num_tokens = len(world.streams["two", 0].token_ids)
        while world.num_in_flight:
            world.commit("a")
        assert world.waiting == ["two"]
        assert len(world.streams["two", 0].token_ids) > num_tokens
        world.drain()

    def test_nobody_else_gives_way_while_blocks_are_on_the_way(self):
        world = make_world(ahead(), block_size=4, num_blocks=12)
        for request_id, prompt in (("one", 8), ("two", 6), ("three", 6)):
            world.submit(make_request(request_id, prompt=prompt, max_tokens=20))
        while world.scheduler.stats().num_preemptions == 0:
            if world.plan("a") is None:
                world.commit("a")
        assert world.waiting == []
        assert world.scheduler.stats().num_preemptions == 1
        world.drain()

    @pytest.mark.parametrize(("one", "two"), [((34, 35), (34, 35)), ((34, 70), (35, 70)), ((1, 111), (1, 111))])
    def test_two_requests_in_seven_blocks(self, one: tuple[int, int], two: tuple[int, int]):
        world = make_world(ahead(), block_size=16, num_blocks=7)
        world.submit(make_request("one", prompt=one[0], max_tokens=one[1]))
        world.submit(make_request("two", prompt=two[0], max_tokens=two[1]))
        world.drain()
        assert world.scheduler.stats().num_preemptions >= 1
        assert world.num_steps <= one[1] + two[1] + 8


class TestLoss:
    @pytest.mark.parametrize("num_commits", range(6))
    def test_of_two_steps_nothing_comes_and_the_text_goes_on(self, num_commits: int):
        world = make_world(ahead())
        world.submit(make_request(prompt=6, n=2, max_tokens=8))
        for _ in range(num_commits):
            world.plan("a")
            world.plan("a")
            world.commit("a")
        hello = world.workers["a"].hello
        world.lose("a")
        world.attach(hello)
        world.commit_strays()
        world.drain()

    def test_two_steps_lost_at_once_count_as_one_run(self):
        world = make_world(make_limits(max_num_steps_in_flight=2, max_num_lost_runs=2))
        world.submit(make_request())
        world.plan("a")
        world.plan("a")
        world.lose("a")
        world.attach(paper_hello("a"))
        world.drain()
        assert world.finished("r").reason is FinishReason.LENGTH
