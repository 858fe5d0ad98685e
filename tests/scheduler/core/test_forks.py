"""The choices of one request share the blocks of its prompt, and copy the one that each writes on in."""

import pytest

from pageloom.plan import BatchPlan
from tests.scheduler.core.builders import make_limits, make_request, make_world
from tests.scheduler.core.paper_world import PaperWorld
from tests.support.paper_model import paper_hello, solo_run


def forking_plan(world: PaperWorld) -> BatchPlan:
    """The plan that admits the choices after the first."""
    first = world.step()
    assert first is not None
    assert [admission.choice_index for admission in first.admissions] == [0]
    plan = world.plan("a")
    assert plan is not None
    return plan


class TestSharing:
    def test_full_blocks_are_shared_and_the_last_is_copied(self):
        world = make_world(block_size=4)
        world.submit(make_request(prompt=11, n=3))
        plan = forking_plan(world)
        assert [admission.choice_index for admission in plan.admissions] == [1, 2]
        leader = world.workers["a"].worker.slots[0].block_ids
        for index, admission in enumerate(plan.admissions):
            # All but the last token of the prompt, which each runs to draw its own next.
            assert admission.num_computed_tokens == 10
            assert admission.block_ids[:2] == tuple(leader[:2])
            assert plan.copy_source_block_ids[index] == leader[2]
            assert plan.copy_target_block_ids[index] == admission.block_ids[2]
        assert plan.chunk_lens == (1, 1)
        world.commit("a")
        world.drain()
        assert len({tuple(stream.token_ids) for stream in world.streams.values()}) == 3

    def test_nothing_is_copied_if_the_last_token_of_the_prompt_begins_a_block(self):
        world = make_world(block_size=4)
        world.submit(make_request(prompt=9, n=2))
        plan = forking_plan(world)
        (admission,) = plan.admissions
        assert (admission.num_computed_tokens, plan.copy_source_block_ids) == (8, ())
        leader = world.workers["a"].worker.slots[0].block_ids
        assert admission.block_ids[:2] == tuple(leader[:2])
        assert admission.block_ids[2] != leader[2]
        world.commit("a")
        world.drain()

    def test_a_prompt_of_one_token_has_nothing_to_share(self):
        world = make_world(block_size=4)
        world.submit(make_request(prompt=1, n=3))
        world.drain()

    def test_memory_is_taken_once(self):
        world = make_world(make_limits(max_num_seqs=8), block_size=4, num_blocks=64)
        world.submit(make_request(prompt=40, n=4, max_tokens=4))
        world.step()
        world.step()
        (worker,) = world.scheduler.stats().workers
        # Ten blocks of prompt, of which each follower has its own copy of the last, and one to grow into.
        assert worker.cache.num_blocks - worker.num_free_blocks <= 10 + 3 + 4
        world.drain()

    def test_without_a_prefix_cache_too(self):
        world = make_world(make_limits(enable_prefix_caching=False), block_size=4)
        world.submit(make_request(prompt=11, n=2))
        plan = forking_plan(world)
        assert plan.admissions[0].num_computed_tokens == 10
        world.commit("a")
        world.drain()
        # A copy of a sibling's blocks is no hit.
        assert world.finished("r", 1).num_cached_tokens == 0

    def test_shared_blocks_outlive_the_choice_that_computed_them(self):
        world = make_world(block_size=4, num_blocks=32)
        world.submit(make_request(prompt=11, n=3, max_tokens=12))
        world.step()
        world.step()
        world.cancel("r", (0,))
        world.submit(make_request("other", prompt=40))
        world.drain()

    def test_each_runs_alone_in_a_step_of_one_token(self):
        world = make_world(make_limits(max_num_batched_tokens=1))
        world.submit(make_request(prompt=5, n=3))
        world.drain()


class TestOrder:
    @pytest.mark.parametrize("depth", [1, 2])
    def test_followers_wait_until_the_prompt_is_acknowledged(self, depth: int):
        world = make_world(make_limits(max_num_batched_tokens=4, max_num_steps_in_flight=depth))
        world.submit(make_request(prompt=10, n=2))
        num_commits = 0
        while (plan := world.plan("a")) is None or not plan.admissions or plan.snapshot:
            if world.num_in_flight == depth:
                world.commit("a")
                num_commits += 1
        assert num_commits == 3
        assert plan.admissions[0].num_computed_tokens == 9
        world.drain()

    def test_a_cancelled_leader_leaves_the_prompt_to_another(self):
        world = make_world(make_limits(max_num_batched_tokens=4))
        world.submit(make_request(prompt=10, n=3))
        world.step()
        world.cancel("r", (0,))
        plan = world.step()
        assert plan is not None
        assert [admission.choice_index for admission in plan.admissions] == [1]
        world.drain()

    def test_a_lost_leader_leaves_the_prompt_to_another(self):
        world = make_world(make_limits(max_num_batched_tokens=4))
        world.submit(make_request(prompt=10, n=3))
        world.step()
        world.lose("a")
        world.attach(paper_hello("a"))
        world.drain()

    def test_nobody_waits_for_a_sibling_that_ends_with_its_first_token(self):
        world = make_world(make_limits(enable_prefix_caching=False))
        world.submit(make_request(prompt=10, n=3, max_tokens=1))
        assert world.admitted(world.step()) == ["r", "r", "r"]

    def test_nobody_waits_for_a_sibling_once_one_has_ended(self):
        world = make_world(make_limits(enable_prefix_caching=False))
        world.submit(make_request(prompt=10, n=3))
        world.cancel("r", (0,))
        assert world.admitted(world.step()) == ["r", "r"]
        world.drain()

    def test_a_resumed_choice_goes_on_after_its_tokens(self):
        world = make_world()
        world.submit(make_request("whole", prompt=(5, 6, 7), n=2))
        world.drain()
        delivered = tuple(world.streams["whole", 1].token_ids[:3])
        world.submit(make_request("resumed", prompt=(5, 6, 7), n=2, resume=((1, delivered),)))
        first, second = world.step(), world.step()
        assert first is not None
        assert second is not None
        admissions = (*first.admissions, *second.admissions)
        assert sorted((a.num_prompt_tokens, len(a.token_ids)) for a in admissions) == [(3, 3), (3, 6)]
        world.drain()
        for index in range(2):
            assert world.streams["resumed", index].token_ids == world.streams["whole", index].token_ids

    def test_nobody_forks_from_a_fork_of_the_same_plan(self):
        """Two that have much to catch up with wait for blocks, and are admitted at once while a third runs."""
        world = make_world(block_size=4, num_blocks=16)
        sampling = make_request(prompt=(5, 6, 7, 8, 9, 10), max_tokens=20).sampling
        resume = tuple(
            (index, tuple(solo_run((5, 6, 7, 8, 9, 10), sampling, index).token_ids[:14])) for index in (0, 1)
        )
        world.submit(make_request("other", prompt=46, max_tokens=2))
        world.submit(make_request("r", prompt=(5, 6, 7, 8, 9, 10), n=3, max_tokens=20, resume=resume))
        first = world.step()
        assert world.admitted(first) == ["other", "r"]
        world.step()
        plan = world.plan("a")
        assert plan is not None
        assert [admission.choice_index for admission in plan.admissions] == [0, 1]
        assert len(set(plan.copy_source_block_ids)) == 1
        world.drain()

    def test_all_choices_stay_on_one_worker(self):
        world = make_world(block_size=4)
        world.attach(paper_hello("b"))
        world.submit(make_request(prompt=11, n=4))
        for _ in range(2):
            for worker_id in ("a", "b"):
                if world.plan(worker_id) is not None:
                    world.commit(worker_id)
        assert sorted(len(world.running(worker_id)) for worker_id in ("a", "b")) == [0, 4]
        world.drain()
