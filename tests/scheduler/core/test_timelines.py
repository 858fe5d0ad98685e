"""Where the time of a request went: what it waited for, where it ran, who took its blocks."""

import pytest

from pageloom.outputs import FinishReason
from pageloom.timeline import Timeline, WaitReason
from tests.scheduler.core.builders import make_limits, make_request, make_world
from tests.scheduler.core.paper_world import PaperWorld
from tests.support.paper_model import paper_hello


def timeline(world: PaperWorld, request_id: str, choice_index: int = 0) -> Timeline:
    timelines = world.scheduler.timelines(request_id)
    assert timelines is not None
    return timelines[choice_index]


def reasons(world: PaperWorld, request_id: str, choice_index: int = 0) -> list[WaitReason]:
    return [wait.reason for wait in timeline(world, request_id, choice_index).waits]


def test_a_request_alone_waits_for_its_first_plan_and_runs():
    world = make_world()
    world.submit(make_request(prompt=5, max_tokens=4))
    arrived_at = world.streams["r", 0].arrived_at
    (wait,) = timeline(world, "r").waits
    assert (wait.reason, wait.start_s, wait.end_s, wait.num_ahead) == (WaitReason.QUEUE, 0.0, None, 0)
    admitted_at = world.now
    world.step()
    first_token_at = world.now
    world.drain()
    life = timeline(world, "r")
    assert life.waits[0].end_s == admitted_at - arrived_at
    (run,) = life.runs
    assert (run.worker_id, run.start_s, run.num_steps, run.num_held_steps) == ("a", admitted_at - arrived_at, 4, 0)
    assert run.end_s == life.finished_s
    assert life.first_token_s is not None
    assert admitted_at - arrived_at < life.first_token_s < first_token_at - arrived_at
    assert not run.worker_lost
    assert run.preempted_by == ""


def test_it_comes_with_the_end_only_if_asked_for():
    world = make_world()
    world.submit(make_request("told", max_tokens=1, include_timeline=True))
    world.submit(make_request("untold", max_tokens=1))
    world.drain()
    assert world.finished("told").timeline == timeline(world, "told")
    assert world.finished("untold").timeline is None


def test_slots_and_who_is_ahead():
    world = make_world(make_limits(max_num_seqs=1))
    for request_id in ("one", "two", "three"):
        world.submit(make_request(request_id, max_tokens=2))
    assert timeline(world, "three").waits[0].num_ahead == 2
    assert timeline(world, "three").waits[0].behind_request_ids == ("one", "two")
    world.step()
    world.step()
    wait = timeline(world, "two").waits[-1]
    assert (wait.reason, wait.behind_request_ids) == (WaitReason.SLOTS, ("one",))
    world.drain()


def test_blocks_and_how_many_are_missing():
    world = make_world(block_size=4, num_blocks=8)
    world.submit(make_request("one", prompt=16, max_tokens=13))
    world.step()
    world.submit(make_request("two", prompt=20, max_tokens=4))
    world.step()
    wait = timeline(world, "two").waits[-1]
    # It needs five, and one is kept for the growth of the first; three or four are free.
    assert wait.reason is WaitReason.BLOCKS
    assert wait.num_missing_blocks in (2, 3)
    world.drain()


def test_the_budget_of_the_step():
    world = make_world(make_limits(max_num_batched_tokens=4))
    world.submit(make_request("one", prompt=12))
    world.submit(make_request("two", prompt=3))
    world.step()
    assert reasons(world, "two") == [WaitReason.QUEUE]
    world.drain()


def test_the_prefix_that_a_sibling_computes():
    world = make_world()
    world.submit(make_request(prompt=9, n=2))
    world.step()
    assert reasons(world, "r", 1)[-1] is WaitReason.PREFIX
    world.step()
    runs = timeline(world, "r", 1).runs
    assert [run.num_cached_tokens for run in runs] == [8]
    world.drain()


def test_no_worker():
    world = make_world()
    world.lose("a")
    world.submit(make_request())
    assert reasons(world, "r") == [WaitReason.WORKER]
    world.attach(paper_hello("a"))
    world.drain()


def test_a_lost_worker():
    world = make_world()
    world.submit(make_request(max_tokens=8))
    world.step()
    world.step()
    world.plan("a")
    world.lose("a")
    (run,) = timeline(world, "r").runs
    assert run.worker_lost
    assert run.num_steps == 2
    world.attach(paper_hello("b"))
    world.drain()
    assert [run.worker_id for run in timeline(world, "r").runs] == ["a", "b"]


@pytest.mark.parametrize("depth", [1, 2])
def test_preemption_names_the_request_that_took_the_blocks(depth: int):
    world = make_world(make_limits(max_num_steps_in_flight=depth), block_size=4, num_blocks=9)
    for request_id in ("one", "two"):
        world.submit(make_request(request_id, prompt=8, max_tokens=20, include_timeline=True))
    world.drain()
    life = world.finished("two").timeline
    assert life is not None
    assert [run.preempted_by for run in life.runs] == ["one", ""]
    assert sum(run.num_steps for run in life.runs) >= 20


def test_who_is_ahead_of_one_that_was_preempted_in_flight():
    world = make_world(make_limits(max_num_steps_in_flight=2), block_size=4, num_blocks=8)
    for request_id, prompt in (("one", 8), ("two", 6)):
        world.submit(make_request(request_id, prompt=prompt, max_tokens=20, include_timeline=True))
    world.step()
    world.submit(make_request("urgent", prompt=24, max_tokens=2, priority=-1))
    while "two" not in world.waiting:
        if world.plan("a") is None:
            world.commit("a")
    wait = timeline(world, "two").waits[-1]
    assert (wait.reason, wait.behind_request_ids) == (WaitReason.QUEUE, ("urgent",))
    world.drain()


def test_steps_that_it_could_not_take_part_in():
    world = make_world(block_size=4, num_blocks=8)
    world.submit(make_request("one", prompt=13, max_tokens=8))
    world.submit(make_request("two", prompt=8, max_tokens=8))
    world.drain()
    (run,) = timeline(world, "two").runs
    assert run.num_held_steps > 0


def test_of_an_unknown_request_there_is_none():
    assert make_world().scheduler.timelines("nobody") is None


def test_of_one_that_ended_it_is_remembered_for_a_while():
    world = make_world(make_limits(max_num_queued_seqs=2000))
    world.submit(make_request("first", max_tokens=1))
    world.drain()
    for index in range(1100):
        world.scheduler.submit(make_request(f"r{index}", max_tokens=1), world.now)
        world.scheduler.cancel(f"r{index}", now=world.now)
    assert world.scheduler.timelines("first") is None
    assert world.scheduler.timelines("r1099") is not None


def test_a_cancel_in_the_queue_ends_its_wait():
    world = make_world()
    world.submit(make_request(include_timeline=True))
    world.cancel("r")
    assert world.finished("r").reason is FinishReason.CANCELLED
    life = world.finished("r").timeline
    assert life is not None
    assert life.runs == ()
    assert life.waits[-1].end_s == life.finished_s
