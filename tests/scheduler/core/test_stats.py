"""The numbers that the shell turns into metrics."""

from pageloom.outputs import FinishReason
from tests.scheduler.core.builders import make_limits, make_request, make_world


def test_the_size_of_a_step():
    world = make_world(make_limits(max_num_batched_tokens=16))
    for request_id in ("one", "two"):
        world.submit(make_request(request_id, prompt=3))
    world.plan("a")
    world.commit("a")
    world.submit(make_request("three", prompt=20))
    world.plan("a")
    facts = world.scheduler.step_facts("a")
    assert (facts.num_seqs, facts.num_tokens, facts.num_decode_seqs) == (3, 16, 2)
    assert (facts.num_admitted, facts.num_preempted) == (1, 0)
    world.commit("a")
    assert world.scheduler.step_facts("a") == facts
    world.drain()


def test_running_waiting_and_blocks():
    world = make_world(make_limits(max_num_seqs=2), block_size=4, num_blocks=10)
    world.submit(make_request(prompt=8, n=3))
    assert (world.scheduler.stats().num_running, world.scheduler.stats().num_waiting) == (0, 3)
    world.plan("a")
    world.commit("a")
    stats = world.scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (2, 1)
    (worker,) = stats.workers
    assert (worker.worker_id, worker.epoch, worker.num_running) == ("a", 1, 2)
    # Both computed the prompt side by side: one copy is cached, the other is not merged into it.
    assert (worker.cache.num_blocks, worker.num_free_blocks, worker.num_cached_blocks) == (10, 6, 2)
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
