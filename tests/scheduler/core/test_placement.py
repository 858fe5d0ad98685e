"""Which worker a request goes to: by cached prefix, then load; and that a home without room keeps nobody."""

import pytest

from pageloom.policies import Placement
from pageloom.timeline import WaitReason
from scheduler_svc.core import Limits
from tests.scheduler.core.builders import make_limits, make_request
from tests.scheduler.core.paper_world import PaperWorld
from tests.support.paper_model import paper_hello

PREFIX = tuple(range(2, 34))


def two_workers(limits: Limits | None = None, *, num_blocks: tuple[int, int] = (64, 64)) -> PaperWorld:
    world = PaperWorld(limits or make_limits())
    for worker_id, count in zip("ab", num_blocks, strict=True):
        world.attach(paper_hello(worker_id, block_size=4, num_blocks=count))
    return world


def where(world: PaperWorld) -> dict[str, str]:
    """Plans once on each worker; which one admitted each request."""
    admitted: dict[str, str] = {}
    for worker_id in world.workers:
        admitted |= dict.fromkeys(world.admitted(world.step(worker_id)), worker_id)
    return admitted


def warm(world: PaperWorld, worker_id: str) -> None:
    """Leaves the KV of PREFIX in the cache of one worker, and both idle."""
    if worker_id == "b":
        # The first of two that are alike is taken, so it has to be busy.
        world.submit(make_request("busy", prompt=3, max_tokens=60))
        assert where(world) == {"busy": "a"}
    world.submit(make_request("warm", prompt=(*PREFIX, 35), max_tokens=1))
    assert where(world) == {"warm": worker_id}
    world.cancel("busy")
    world.drain()


class TestPrefix:
    @pytest.mark.parametrize("worker_id", ["a", "b"])
    def test_a_request_goes_where_its_prefix_is(self, worker_id: str):
        world = two_workers()
        warm(world, worker_id)
        world.submit(make_request("same", prompt=(*PREFIX, 36)))
        assert where(world) == {"same": worker_id}
        world.drain()
        assert world.finished("same").num_cached_tokens == 32

    def test_too_much_load_outweighs_it(self):
        world = two_workers()
        warm(world, "a")
        # Each that runs, or will, weighs as much as 64 tokens to compute.
        for index in range(4):
            world.submit(make_request(f"same{index}", prompt=(*PREFIX, index)))
        assert set(where(world).values()) == {"a", "b"}
        world.drain()

    def test_another_salt_has_no_prefix_there(self):
        world = two_workers()
        warm(world, "b")
        world.submit(make_request("same", prompt=(*PREFIX, 36), cache_salt="pepper"))
        assert where(world) == {"same": "a"}
        world.drain()

    def test_least_loaded_takes_no_notice(self):
        world = two_workers(make_limits(placement=Placement.least_loaded))
        warm(world, "b")
        world.submit(make_request("same", prompt=(*PREFIX, 36)))
        assert where(world) == {"same": "a"}
        world.drain()


class TestLoad:
    def test_newcomers_spread(self):
        world = two_workers()
        for index in range(6):
            world.submit(make_request(f"r{index}"))
        admitted = where(world)
        assert sorted(admitted.values()) == ["a", "a", "a", "b", "b", "b"]
        world.drain()

    def test_what_runs_counts(self):
        world = two_workers()
        world.submit(make_request("long", prompt=40, max_tokens=40))
        (busy,) = where(world).values()
        world.submit(make_request("next"))
        assert where(world) == {"next": "a" if busy == "b" else "b"}
        world.drain()

    def test_more_memory_takes_more(self):
        world = two_workers(make_limits(max_num_seqs=8), num_blocks=(96, 32))
        for index in range(8):
            world.submit(make_request(f"r{index}"))
        admitted = list(where(world).values())
        assert admitted.count("a") == 6
        world.drain()

    def test_round_robin_takes_turns_whatever_runs(self):
        world = two_workers(make_limits(placement=Placement.round_robin))
        for index in range(4):
            world.submit(make_request(f"r{index}", prompt=30 if index % 2 else 3))
        admitted = where(world)
        assert admitted["r0"] == admitted["r2"] != admitted["r1"] == admitted["r3"]
        world.drain()


class TestHomeWithoutRoom:
    @pytest.mark.parametrize(
        ("max_num_seqs", "num_blocks"), [(1, 64), (8, 16), (8, 20)], ids=["no slot", "no blocks", "no block to grow"]
    )
    def test_another_worker_takes_what_the_home_has_no_room_for(self, max_num_seqs: int, num_blocks: int):
        world = PaperWorld(make_limits(max_num_seqs=max_num_seqs))
        world.attach(paper_hello("a", block_size=4, num_blocks=num_blocks))
        for request_id in ("first", "second"):
            world.submit(make_request(request_id, prompt=38, max_tokens=16))
        assert where(world) == {"first": "a"}
        world.attach(paper_hello("b", block_size=4, num_blocks=16))
        assert where(world) == {"second": "b"}
        world.drain()

    def test_but_not_what_it_has_room_for(self):
        world = two_workers()
        warm(world, "a")
        world.submit(make_request("same", prompt=(*PREFIX, 35)))
        assert world.plan("b") is None
        assert world.admitted(world.step("a")) == ["same"]
        world.drain()

    def test_a_request_too_large_for_one_never_goes_there(self):
        world = two_workers(num_blocks=(4, 32))
        world.submit(make_request("large", prompt=60, max_tokens=8))
        assert world.plan("a") is None
        assert where(world) == {"large": "b"}
        world.drain()


class TestDrain:
    def test_what_runs_goes_on_and_nothing_is_admitted(self):
        world = two_workers()
        for index in range(4):
            world.submit(make_request(f"r{index}", max_tokens=6))
        where(world)
        running = world.running("a")
        assert running
        world.drain_worker("a")
        for index in range(4, 8):
            world.submit(make_request(f"r{index}", max_tokens=6))
        while not world.scheduler.is_idle("a"):
            world.step("a")
        assert [world.finished(request_id).num_output_tokens for request_id in running] == [6] * len(running)
        assert len(world.waiting) == 4
        world.lose("a")
        world.drain()

    def test_what_waited_for_it_goes_to_the_others(self):
        world = two_workers(make_limits(max_num_seqs=1))
        for index in range(4):
            world.submit(make_request(f"r{index}"))
        where(world)
        world.drain_worker("a")
        while world.waiting:
            assert world.step("b") is not None
        world.drain()

    def test_with_nobody_left_requests_wait_for_a_worker_to_come(self):
        world = two_workers()
        world.drain_worker("a")
        world.drain_worker("b")
        world.submit(make_request("r", include_timeline=True))
        assert world.plan("a") is None
        assert world.plan("b") is None
        world.attach(paper_hello("c"))
        world.drain()
        timeline = world.finished("r").timeline
        assert timeline is not None
        assert timeline.waits[0].reason is WaitReason.WORKER

    def test_one_that_is_preempted_there_goes_on_elsewhere(self):
        world = two_workers(num_blocks=(9, 64))
        world.drain_worker("b")
        for request_id in ("one", "two"):
            world.submit(make_request(request_id, prompt=8, max_tokens=20))
        world.step("a")
        world.lose("b")
        world.attach(paper_hello("b", block_size=4))
        world.drain_worker("a")
        while world.scheduler.stats().num_preemptions == 0:
            world.step("a")
        assert world.admitted(world.step("b")) == ["two"]
        world.drain()

    def test_idle_means_nothing_bound_and_nothing_in_flight(self):
        world = two_workers(make_limits(max_num_steps_in_flight=2))
        assert world.scheduler.is_idle("a")
        world.submit(make_request(max_tokens=2))
        world.plan("a")
        world.plan("a")
        world.cancel("r")
        world.commit("a")
        assert not world.scheduler.is_idle("a")
        world.commit("a")
        assert world.scheduler.is_idle("a")

    def test_an_unknown_worker_is_ignored_and_twice_is_once(self):
        world = two_workers()
        world.scheduler.drain("nobody", world.now)
        world.drain_worker("a")
        world.drain_worker("a")
        world.submit(make_request())
        world.drain()
