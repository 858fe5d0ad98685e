"""Workers come, go, and come back: what moves to whom, and that no text changes by it."""

from dataclasses import replace

import pytest

from pageloom.errors import DuplicateRequest, InvalidRequest
from pageloom.outputs import FinishReason
from pageloom.plan import WorkerHello
from scheduler_svc.core import Scheduler
from tests.scheduler.core.builders import make_limits, make_request, make_world
from tests.scheduler.core.paper_world import PaperWorld
from tests.support.paper_model import PAPER_MODEL, paper_hello

OTHER_MODEL = replace(PAPER_MODEL, digest="digest-of-another")


class TestAttach:
    def test_another_model_is_refused(self):
        scheduler = Scheduler(make_limits())
        scheduler.attach(paper_hello("a"), 1, 0.0)
        with pytest.raises(InvalidRequest, match="worker b runs another model: its digest") as caught:
            scheduler.attach(paper_hello("b", model=OTHER_MODEL), 2, 0.0)
        assert caught.value.param == "model.digest"
        assert list(scheduler.groups) == ["a"]

    def test_contexts_may_differ_and_the_longest_is_served(self):
        world = PaperWorld(make_limits())
        world.attach(paper_hello("short", model=replace(PAPER_MODEL, max_model_len=64)))
        world.attach(paper_hello("long"))
        assert world.scheduler.model == PAPER_MODEL
        for index in range(4):
            world.submit(make_request(f"long-{index}", prompt=60, max_tokens=20))
        world.plan("short")
        world.plan("long")
        assert world.scheduler.groups["short"].stats().num_running == 0
        world.drain()
        world.lose("long")
        assert world.scheduler.model is not None
        assert world.scheduler.model.max_model_len == 64

    def test_open_requests_hold_on_to_their_model(self):
        scheduler = Scheduler(make_limits())
        scheduler.attach(paper_hello("a"), 1, 0.0)
        scheduler.submit(make_request(), 0.0)
        scheduler.abandon("a", 0.0)
        with pytest.raises(InvalidRequest):
            scheduler.attach(paper_hello("a", model=OTHER_MODEL), 2, 0.0)
        scheduler.cancel("r", now=0.0)
        scheduler.attach(paper_hello("a", model=OTHER_MODEL), 3, 0.0)
        assert scheduler.model == OTHER_MODEL

    def test_a_name_can_be_attached_once(self):
        scheduler = Scheduler(make_limits())
        scheduler.attach(paper_hello("a"), 1, 0.0)
        with pytest.raises(DuplicateRequest, match="'a' is attached already"):
            scheduler.attach(paper_hello("a"), 2, 0.0)

    @pytest.mark.parametrize(
        ("hello", "param"),
        [
            (paper_hello(block_size=0), "cache.block_size"),
            (paper_hello(num_blocks=0), "cache.num_blocks"),
            (paper_hello(max_num_seqs=0), "max_num_seqs"),
            (paper_hello(max_num_batched_tokens=0), "max_num_batched_tokens"),
            (paper_hello(model=replace(PAPER_MODEL, vocab_size=0)), "model.vocab_size"),
        ],
    )
    def test_a_hello_without_sense_is_refused(self, hello: WorkerHello, param: str):
        with pytest.raises(InvalidRequest, match=r"must be between 1 and \d+, not 0") as caught:
            Scheduler(make_limits()).attach(hello, 1, 0.0)
        assert caught.value.param == param


class TestLoss:
    @pytest.mark.parametrize("num_tokens", range(9))
    @pytest.mark.parametrize("num_in_flight", [0, 1, 2])
    def test_at_any_token_the_text_goes_on_as_if_nothing_had_happened(self, num_tokens: int, num_in_flight: int):
        world = make_world(make_limits(max_num_batched_tokens=4, max_num_steps_in_flight=2))
        hello = world.workers["a"].hello
        world.submit(make_request(prompt=6, n=2, max_tokens=8))
        while len(world.streams["r", 0].token_ids) < num_tokens:
            world.step()
        for _ in range(num_in_flight):
            world.plan("a")
        world.lose("a")
        world.attach(hello)
        world.drain()
        assert world.scheduler.stats().num_lost_workers == 1

    def test_choices_return_to_their_old_places(self):
        world = make_world(make_limits(max_num_seqs=2))
        for request_id in ("one", "two", "three", "four"):
            world.submit(make_request(request_id, priority=int(request_id == "one")))
        world.step()
        hello = world.workers["a"].hello
        world.lose("a")
        assert world.waiting == ["two", "three", "four", "one"]
        world.attach(hello)
        world.drain()

    def test_a_choice_cancelled_in_flight_does_not_come_back(self):
        world = make_world()
        world.submit(make_request())
        world.plan("a")
        world.cancel("r")
        world.lose("a")
        assert world.scheduler.stats().num_waiting == 0

    def test_one_that_kills_every_worker_is_ended(self):
        world = make_world(make_limits(max_num_lost_runs=3))
        hello = world.workers["a"].hello
        world.submit(make_request())
        for _ in range(3):
            assert world.open_streams
            world.plan("a")
            world.lose("a")
            world.attach(hello)
        finished = world.streams["r", 0].finished
        assert finished is not None
        assert finished.reason is FinishReason.ERROR
        assert "lost 3 times in a row" in finished.error_message

    def test_one_that_gets_on_in_between_is_not(self):
        world = make_world(make_limits(max_num_lost_runs=2))
        hello = world.workers["a"].hello
        world.submit(make_request())
        for _ in range(4):
            world.step()
            world.plan("a")
            world.lose("a")
            world.attach(hello)
        world.drain()
        assert world.scheduler.stats().num_finished[FinishReason.LENGTH] == 1

    def test_a_loss_between_steps_is_nobodys_fault(self):
        world = make_world(make_limits(max_num_lost_runs=1))
        hello = world.workers["a"].hello
        world.submit(make_request())
        world.step()
        world.lose("a")
        world.attach(hello)
        world.drain()
        assert world.scheduler.stats().num_finished[FinishReason.LENGTH] == 1


class TestSeveral:
    def test_one_queue_feeds_all(self):
        world = make_world(make_limits(max_num_seqs=1))
        world.attach(paper_hello("b"))
        world.submit(make_request("one"))
        world.submit(make_request("two"))
        world.plan("a")
        world.plan("b")
        assert world.scheduler.stats().num_waiting == 0
        assert [worker.num_running for worker in world.scheduler.stats().workers] == [1, 1]
        world.commit("b")
        world.commit("a")
        world.drain()

    def test_what_one_loses_the_other_takes_over_with_other_blocks(self):
        world = make_world(block_size=4)
        world.attach(paper_hello("b", block_size=3))
        world.submit(make_request(prompt=20))
        for _ in range(3):
            world.step()
        world.lose("a")
        world.step("b")
        assert len(world.streams["r", 0].token_ids) == 4
        world.drain()

    def test_a_choice_too_large_for_one_leaves_it_to_the_other(self):
        world = make_world(block_size=4, num_blocks=4)
        world.attach(paper_hello("b", block_size=4, num_blocks=20))
        world.submit(make_request("large", prompt=40, max_tokens=20))
        world.submit(make_request("small", prompt=4))
        plan = world.plan("a")
        assert plan is not None
        assert len(plan.admissions[0].token_ids) == 4
        world.commit("a")
        world.drain()

    def test_choices_that_no_attached_worker_can_hold_any_more_are_ended(self):
        world = make_world(block_size=4, num_blocks=20)
        world.submit(make_request("large", prompt=40, max_tokens=20))
        world.submit(make_request("small", prompt=4))
        world.lose("a")
        world.attach(paper_hello("a", block_size=4, num_blocks=10))
        finished = world.streams["large", 0].finished
        assert finished is not None
        assert finished.reason is FinishReason.ERROR
        assert "40 tokens" in finished.error_message
        world.drain()

    def test_what_it_computed_there_is_found_there(self):
        world = make_world(block_size=4)
        world.attach(paper_hello("b", block_size=3))
        prompt = tuple(range(2, 22))
        world.submit(make_request("one", prompt=prompt))
        world.step()
        world.lose("a")
        world.drain()
        world.submit(make_request("two", prompt=prompt))
        world.drain()
        finished = world.streams["two", 0].finished
        assert finished is not None
        assert finished.num_cached_tokens == 18
