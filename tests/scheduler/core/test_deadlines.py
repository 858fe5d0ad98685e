"""What is worth nothing any more ends, in the queue or in mid-run, and frees what it held."""

import pytest

from pageloom.outputs import FinishReason
from tests.scheduler.core.builders import make_limits, make_request, make_world
from tests.support.paper_model import paper_hello


def test_in_the_queue():
    world = make_world(make_limits(max_num_seqs=1))
    world.submit(make_request("runs", max_tokens=20))
    world.submit(make_request("waits", deadline_s=0.5))
    world.step()
    world.now += 0.5
    world.expire()
    event = world.finished("waits")
    assert (event.reason, event.num_output_tokens) == (FinishReason.DEADLINE, 0)
    assert event.error_message == "the deadline of 0.5 s has passed"
    assert world.waiting == []
    world.drain()


@pytest.mark.parametrize("depth", [1, 2])
def test_in_mid_run_what_is_in_flight_is_not_delivered(depth: int):
    world = make_world(make_limits(max_num_steps_in_flight=depth))
    world.submit(make_request(max_tokens=20, deadline_s=0.5))
    world.step()
    for _ in range(depth):
        world.plan("a")
    world.now += 0.5
    world.expire()
    assert world.finished("r").num_output_tokens == 1
    world.drain()


def test_not_before_it_has_passed():
    world = make_world()
    world.submit(make_request(max_tokens=20, deadline_s=0.5))
    world.step()
    world.expire()
    world.drain()
    assert world.finished("r").reason is FinishReason.LENGTH
    world.now += 1.0
    world.expire()


def test_it_counts_from_the_arrival_and_goes_on_across_workers():
    world = make_world()
    world.submit(make_request(max_tokens=20, deadline_s=0.5))
    world.step()
    world.now += 0.4
    world.lose("a")
    world.attach(paper_hello("a"))
    world.now += 0.1
    world.expire()
    assert world.finished("r").reason is FinishReason.DEADLINE
    world.drain()


def test_all_choices_of_the_request():
    world = make_world()
    world.submit(make_request(n=3, max_tokens=20, deadline_s=0.25))
    world.step()
    world.now += 0.25
    world.expire()
    assert world.open_streams == {}
    assert world.scheduler.stats().num_finished[FinishReason.DEADLINE] == 3
    world.drain()
