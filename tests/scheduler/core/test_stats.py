"""The numbers that the shell turns into metrics."""

from pageloom.outputs import FinishReason
from pageloom.plan import StepResult
from scheduler_svc.core import Scheduler, StepFacts
from tests.scheduler.core.builders import make_limits, make_request, make_world
from tests.support.paper_model import paper_hello


def test_the_size_of_a_step():
    scheduler = Scheduler(make_limits(max_num_batched_tokens=16))
    scheduler.attach(paper_hello("a"), 1, 0.0)
    for request_id in ("one", "two"):
        scheduler.submit(make_request(request_id, prompt=3), 0.0)
    scheduler.plan("a", 0.0)
    facts = scheduler.commit("a", StepResult(epoch=1, step=1, slots=(0, 1), token_ids=(5, 6)), 0.0).facts
    assert facts == StepFacts(num_seqs=2, num_tokens=6, num_decode_seqs=0, num_admitted=2, num_preempted=0)
    scheduler.submit(make_request("three", prompt=20), 0.0)
    scheduler.plan("a", 0.0)
    facts = scheduler.commit("a", StepResult(epoch=1, step=2, slots=(0, 1), token_ids=(5, 6)), 0.0).facts
    assert facts == StepFacts(num_seqs=3, num_tokens=16, num_decode_seqs=2, num_admitted=1, num_preempted=0)


def test_running_waiting_and_blocks():
    world = make_world(make_limits(max_num_seqs=2), block_size=4, num_blocks=10)
    for request_id in ("one", "two", "three"):
        world.submit(make_request(request_id, prompt=8))
    assert (world.scheduler.stats().num_running, world.scheduler.stats().num_waiting) == (0, 3)
    world.step()
    stats = world.scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (2, 1)
    (worker,) = stats.workers
    assert (worker.worker_id, worker.epoch, worker.num_running, worker.draining) == ("a", 1, 2, False)
    assert (worker.cache.num_blocks, worker.num_free_blocks, worker.num_cached_blocks) == (10, 6, 4)
    world.drain_worker("a")
    assert world.scheduler.stats().workers[0].draining
    world.cancel("three")
    world.drain()


def test_counters():
    world = make_world(block_size=4)
    prompt = tuple(range(2, 14))
    world.submit(make_request("one", prompt=prompt, max_tokens=3))
    world.drain()
    world.submit(make_request("two", prompt=prompt, max_tokens=4))
    world.submit(make_request("three", prompt=5))
    world.plan("a")
    world.cancel("three")
    world.commit("a")
    world.drain()
    stats = world.scheduler.stats()
    assert stats.num_prompt_tokens == 12 + 12 + 5
    assert stats.num_generation_tokens == 3 + 4
    assert (stats.prefix_cache_queried_tokens, stats.prefix_cache_hit_tokens) == (29, 8)
    assert stats.num_finished[FinishReason.LENGTH] == 2
    assert stats.num_finished[FinishReason.CANCELLED] == 1
    assert (stats.num_preemptions, stats.num_lost_workers) == (0, 0)
