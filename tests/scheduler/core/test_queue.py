"""Who goes first: tenants in equal shares, priorities that age, and large requests that neither block nor starve."""

import pytest

from pageloom.policies import SchedulingPolicy
from scheduler_svc.core.admission import MAX_LOOKAHEAD, NUM_PLANS_TO_RETRY
from tests.scheduler.core.builders import make_limits, make_request, make_world
from tests.scheduler.core.paper_world import PaperWorld
from tests.support.paper_model import paper_hello


def one_at_a_time(policy: SchedulingPolicy, **limits: float) -> PaperWorld:
    """A worker with a single slot, so that the order of admission shows."""
    return make_world(make_limits(max_num_seqs=1, scheduling_policy=policy, **limits))  # type: ignore[arg-type]


def with_64_slots(num_blocks: int) -> PaperWorld:
    world = PaperWorld(make_limits(max_num_seqs=64, max_num_batched_tokens=400, enable_prefix_caching=False))
    world.attach(paper_hello("a", max_num_seqs=64, max_num_batched_tokens=400, num_blocks=num_blocks))
    return world


def flood(world: PaperWorld, num_requests: int) -> None:
    for index in range(num_requests):
        world.submit(make_request(f"flood{index}", prompt=5, max_tokens=50, tenant="flood"))


def order_of_admission(world: PaperWorld) -> list[str]:
    """Runs everything to its end."""
    order: list[str] = []
    while (plan := world.step()) is not None:
        order += world.admitted(plan)
    return order


class TestFairShares:
    def test_two_tenants_take_turns(self):
        world = one_at_a_time(SchedulingPolicy.fair)
        for index in range(5):
            world.submit(make_request(f"a{index}", prompt=4, max_tokens=4, tenant="a"))
        for index in range(2):
            world.submit(make_request(f"b{index}", prompt=4, max_tokens=4, tenant="b"))
        assert order_of_admission(world) == ["a0", "b0", "a1", "b1", "a2", "a3", "a4"]

    def test_service_is_counted_in_tokens_not_requests(self):
        world = one_at_a_time(SchedulingPolicy.fair)
        for index in range(3):
            world.submit(make_request(f"large{index}", prompt=16, max_tokens=16, tenant="a"))
        for index in range(6):
            world.submit(make_request(f"small{index}", prompt=4, max_tokens=4, tenant="b"))
        order = order_of_admission(world)
        # 48 for a large one, 12 for a small one.
        assert order[:6] == ["large0", "small0", "small1", "small2", "small3", "large1"]

    @pytest.mark.parametrize(("num_written", "second"), [(9, "writes1"), (10, "reads1")])
    def test_a_generated_token_counts_twice_a_prompt_token(self, num_written: int, second: str):
        world = one_at_a_time(SchedulingPolicy.fair)
        for index in range(2):
            # 19 + 2 for the one; 2 and twice what it writes for the other.
            world.submit(make_request(f"reads{index}", prompt=19, max_tokens=1, tenant="a"))
            world.submit(make_request(f"writes{index}", prompt=2, max_tokens=num_written, tenant="b"))
        assert order_of_admission(world)[2] == second

    @pytest.mark.parametrize(("caching", "fifth"), [(True, "a2"), (False, "b2")])
    def test_cached_tokens_are_not_charged(self, caching: bool, fifth: str):
        world = one_at_a_time(SchedulingPolicy.fair, enable_prefix_caching=caching)
        prompt = tuple(range(2, 34))
        for index in range(3):
            world.submit(make_request(f"a{index}", prompt=prompt, max_tokens=1, tenant="a"))
        for index, length in enumerate((33, 6, 6)):
            world.submit(make_request(f"b{index}", prompt=length, max_tokens=1, tenant="b"))
        # 34, and 6 more with a hit on 28 tokens or 34 without; 35 and 8 for the other.
        order = order_of_admission(world)
        assert order[:4] == ["a0", "b0", "a1", "b1"]
        assert order[4] == fifth

    def test_idle_time_is_not_saved_up(self):
        world = one_at_a_time(SchedulingPolicy.fair)
        world.submit(make_request("early", prompt=4, max_tokens=100, tenant="a"))
        world.drain()
        for index in range(3):
            world.submit(make_request(f"a{index}", prompt=4, max_tokens=4, tenant="a"))
        for index in range(3):
            world.submit(make_request(f"b{index}", prompt=4, max_tokens=4, tenant="b"))
        # It goes before those who wait, but only once: without the lift, until it had as much as the other ever had.
        assert order_of_admission(world) == ["b0", "a0", "b1", "a1", "b2", "a2"]

    def test_a_short_break_forgives_nothing(self):
        world = one_at_a_time(SchedulingPolicy.fair)
        world.submit(make_request("greedy", prompt=4, max_tokens=100, tenant="a"))
        world.step()
        for index in range(3):
            world.submit(make_request(f"b{index}", prompt=4, max_tokens=4, tenant="b"))
        while "greedy" in world.running():
            world.step()
        world.submit(make_request("again", prompt=4, max_tokens=4, tenant="a", priority=-1))
        assert order_of_admission(world) == ["b0", "b1", "b2", "again"]

    def test_who_comes_to_an_empty_queue_owes_what_the_last_one_there_got(self):
        world = one_at_a_time(SchedulingPolicy.fair)
        for request_id, max_tokens, tenant in (("short", 1, "c"), ("early", 100, "a")):
            world.submit(make_request(request_id, max_tokens=max_tokens, tenant=tenant))
            world.drain()
        for index in range(3):
            world.submit(make_request(f"b{index}", prompt=4, max_tokens=4, tenant="b"))
        for index in range(3):
            world.submit(make_request(f"a{index}", prompt=4, max_tokens=4, tenant="a"))
        assert order_of_admission(world) == ["b0", "a0", "b1", "a1", "b2", "a2"]

    def test_a_newcomer_starts_level_with_the_one_served_least(self):
        world = one_at_a_time(SchedulingPolicy.fair)
        for request_id, max_tokens in (("a0", 20), ("a1", 4), ("b0", 2), ("b1", 2)):
            world.submit(make_request(request_id, prompt=4, max_tokens=max_tokens, tenant=request_id[0]))
        while "b0" in world.waiting:
            world.step()
        for index in range(2):
            world.submit(make_request(f"c{index}", prompt=4, max_tokens=4, tenant="c"))
        # 44 for the first, 6 for the second by now.
        assert order_of_admission(world) == ["c0", "b1", "c1", "a1"]

    def test_a_flood_gets_no_more_than_a_trickle_that_is_always_there(self):
        world = make_world(make_limits(max_num_seqs=4, max_num_batched_tokens=16), num_blocks=200)
        for index in range(60):
            world.submit(make_request(f"flood{index}", prompt=5, max_tokens=6, tenant="flood"))
            if index % 2 == 0:
                world.submit(make_request(f"fair{index}", prompt=5, max_tokens=6, tenant="trickle"))
        for _ in range(60):
            world.step()
        served = {"flood": 0, "trickle": 0}
        for (request_id, _), stream in world.streams.items():
            served["flood" if request_id.startswith("flood") else "trickle"] += len(stream.token_ids)
        jain = sum(served.values()) ** 2 / (2 * sum(count**2 for count in served.values()))
        assert jain >= 0.99, served

    @pytest.mark.parametrize("policy", [SchedulingPolicy.fcfs, SchedulingPolicy.priority])
    def test_other_policies_know_no_tenants(self, policy: SchedulingPolicy):
        world = one_at_a_time(policy)
        for request_id, tenant in (("a0", "a"), ("a1", "a"), ("b0", "b")):
            world.submit(make_request(request_id, max_tokens=2, tenant=tenant))
        assert order_of_admission(world) == ["a0", "a1", "b0"]

    def test_the_chunks_of_a_step_go_to_the_tenant_served_least(self):
        world = make_world(make_limits(max_num_batched_tokens=8))
        world.submit(make_request("served", prompt=40, max_tokens=2, tenant="a"))
        world.step()
        world.submit(make_request("newcomer", prompt=6, max_tokens=2, tenant="b"))
        world.submit(make_request("other", prompt=6, max_tokens=2, tenant="a"))
        while not world.streams["newcomer", 0].token_ids:
            world.step()
        assert not world.streams["other", 0].token_ids
        world.drain()

    def test_slots_are_left_for_a_tenant_below_its_share(self):
        world = with_64_slots(num_blocks=1_000)
        world.submit(make_request("light0", max_tokens=50, tenant="light"))
        flood(world, 70)
        world.step()
        # A 32nd of them stays free.
        assert len(world.running()) == 62
        for index in range(1, 4):
            world.submit(make_request(f"light{index}", max_tokens=50, tenant="light"))
        assert world.admitted(world.step()) == ["light1", "light2"]

    def test_a_single_tenant_gets_every_slot(self):
        world = with_64_slots(num_blocks=1_000)
        flood(world, 70)
        world.step()
        assert len(world.running()) == 64

    def test_nothing_is_left_for_a_tenant_whose_last_has_ended(self):
        world = with_64_slots(num_blocks=1_000)
        world.submit(make_request("light0", max_tokens=2, tenant="light"))
        flood(world, 70)
        world.step()
        assert len(world.running()) == 62
        world.step()
        world.step()
        assert len(world.running()) == 64

    def test_memory_is_left_for_a_tenant_below_its_share(self):
        world = with_64_slots(num_blocks=96)
        world.submit(make_request("light0", prompt=4, max_tokens=12, tenant="light"))
        flood(world, 40)
        world.step()
        num_free_blocks = world.scheduler.groups["a"].tables.pool.num_free
        num_running = len(world.running())
        # A block for each to grow into, and a 32nd of the memory; two more would have let in another one.
        assert num_running + 3 <= num_free_blocks < num_running + 3 + 2
        # The other need only leave twice its own, of which there is one, and goes before those who wait.
        assert world.submit(make_request("light1", prompt=4 * (num_free_blocks - 5), max_tokens=2, tenant="light"))
        assert world.admitted(world.step()) == ["light1"]


class TestPriority:
    @pytest.mark.parametrize("policy", [SchedulingPolicy.fair, SchedulingPolicy.priority])
    def test_the_lower_number_goes_before_arrival(self, policy: SchedulingPolicy):
        world = one_at_a_time(policy)
        for request_id, priority in (("late", 1), ("first", 0), ("second", 0), ("urgent", -1)):
            world.submit(make_request(request_id, priority=priority, max_tokens=2))
        assert order_of_admission(world) == ["urgent", "first", "second", "late"]

    def test_fcfs_takes_no_notice(self):
        world = one_at_a_time(SchedulingPolicy.fcfs)
        for request_id, priority in (("first", 1), ("second", -1)):
            world.submit(make_request(request_id, priority=priority, max_tokens=2))
        assert order_of_admission(world) == ["first", "second"]

    @pytest.mark.parametrize(("waited_s", "first"), [(9.0, "urgent"), (11.0, "patient")])
    def test_waiting_outweighs_a_level_in_time(self, waited_s: float, first: str):
        world = one_at_a_time(SchedulingPolicy.priority, priority_ageing_s=10.0)
        world.submit(make_request("patient", priority=1, max_tokens=2))
        world.now += waited_s
        world.submit(make_request("urgent", priority=0, max_tokens=2))
        assert order_of_admission(world)[0] == first

    def test_the_lower_priority_gives_way_in_memory_even_if_it_came_first(self):
        world = make_world(make_limits(scheduling_policy=SchedulingPolicy.priority), block_size=4, num_blocks=9)
        world.submit(make_request("lower", prompt=8, max_tokens=20, priority=1))
        world.submit(make_request("higher", prompt=8, max_tokens=20, priority=0))
        while world.scheduler.stats().num_preemptions == 0:
            world.step()
        assert world.waiting == ["lower"]
        world.drain()


class TestLargeRequests:
    """A worker of 12 blocks, of which one request holds most; a large one waits for blocks."""

    @staticmethod
    def crowded_world() -> PaperWorld:
        world = make_world(make_limits(max_num_seqs=8), block_size=4, num_blocks=12)
        world.submit(make_request("running", prompt=24, max_tokens=12))
        world.step()
        world.submit(make_request("large", prompt=30, max_tokens=2))
        return world

    def test_small_ones_that_fit_pass_it(self):
        world = self.crowded_world()
        world.submit(make_request("small", prompt=2, max_tokens=2))
        world.step()
        assert world.running() == ["running", "small"]
        assert world.waiting == ["large"]
        world.drain()

    @pytest.mark.parametrize("depth", [1, 2])
    def test_a_stream_of_small_ones_passes_it_with_no_more_blocks_than_it_needs(self, depth: int):
        limits = make_limits(max_num_seqs=8, max_num_batched_tokens=128, max_num_steps_in_flight=depth)
        world = make_world(limits, block_size=4, num_blocks=24)
        world.submit(make_request("running", prompt=24, max_tokens=60))
        world.step()
        # One block more than are free, if the one that runs is to have room to grow.
        world.submit(make_request("large", prompt=70, max_tokens=2))
        num_passing_blocks = num_small = 0
        while "large" in world.waiting:
            world.submit(make_request(f"small{num_small}", prompt=3, max_tokens=2))
            num_small += 1
            assert num_small < 100
            plan = world.plan("a")
            if plan is not None:
                num_passing_blocks += sum(len(a.block_ids) for a in plan.admissions if len(a.token_ids) == 3)
            if plan is None or world.num_in_flight == depth:
                world.commit("a")
        assert num_passing_blocks == 18
        world.drain()

    def test_one_that_was_passed_too_often_is_next(self):
        world = self.crowded_world()
        for index in range(20):
            world.submit(make_request(f"small{index}", prompt=3, max_tokens=3))
        order = order_of_admission(world)
        assert order.index("large") <= 1 + 8

    def test_of_two_large_ones_the_first_goes_first(self):
        world = self.crowded_world()
        world.submit(make_request("larger", prompt=32, max_tokens=2))
        assert order_of_admission(world) == ["large", "larger"]

    @pytest.mark.parametrize(("prompt", "num_plans"), [(70, 4), (100, 1 + NUM_PLANS_TO_RETRY)])
    def test_it_is_looked_at_again_when_as_many_blocks_are_free_or_after_some_plans(self, prompt: int, num_plans: int):
        world = make_world(block_size=32, num_blocks=6)
        world.submit(make_request("running", prompt=1, max_tokens=30))
        world.submit(make_request("short", prompt=1, max_tokens=3))
        # It needs three or four blocks, and one for each of those that run: one or two are missing. When the short one
        # ends, one more is free, and one less is needed.
        world.submit(make_request("large", prompt=prompt, max_tokens=2))
        while "large" in world.waiting:
            world.step()
        assert world.num_steps == num_plans
        world.drain()

    def test_what_another_worker_lacked_counts_no_more(self):
        world = make_world(block_size=4, num_blocks=24)
        world.submit(make_request("running", prompt=24, max_tokens=60))
        world.submit(make_request("large", prompt=70, max_tokens=2))
        world.step()
        assert world.waiting == ["large"]
        world.lose("a")
        world.attach(paper_hello("a", block_size=8, num_blocks=20))
        assert world.admitted(world.step()) == ["running", "large"]
        world.drain()

    def test_one_plan_looks_past_so_many_of_one_tenant_and_then_at_others(self):
        world = make_world(make_limits(enable_prefix_caching=False), block_size=4, num_blocks=12)
        world.submit(make_request("running", prompt=24, max_tokens=12, tenant="b"))
        world.step()
        for index in range(MAX_LOOKAHEAD):
            world.submit(make_request(f"large{index}", prompt=30, max_tokens=2, tenant="a"))
        for tenant in ("a", "b"):
            world.submit(make_request(f"small-{tenant}", prompt=2, max_tokens=2, tenant=tenant))
        assert world.admitted(world.step()) == ["small-b"]
        world.drain()

    def test_cached_blocks_count_too_when_they_pass_it(self):
        world = make_world(block_size=4, num_blocks=24)
        warm = make_request("warm", prompt=9, max_tokens=1)
        world.submit(warm)
        world.drain()
        world.submit(make_request("running", prompt=49, max_tokens=12))
        world.step()
        world.submit(make_request("large", prompt=44, max_tokens=2))
        passing: list[str] = []
        for index in range(6):
            world.submit(make_request(f"small{index}", prompt=warm.prompt_token_ids, max_tokens=1))
            passing += world.admitted(world.step())
        # Each takes one new block and two that are cached and free; the large one needs eleven.
        assert passing == ["small0", "small1", "small2"]
        world.drain()

    def test_one_that_was_preempted_may_be_passed_as_often_again(self):
        world = make_world(make_limits(enable_prefix_caching=False), block_size=4, num_blocks=16)
        world.submit(make_request("running", prompt=20, max_tokens=40))
        world.submit(make_request("short", prompt=24, max_tokens=4))
        world.step()
        world.submit(make_request("large", prompt=26, max_tokens=20))

        def passing() -> list[str]:
            admitted: list[str] = []
            while "large" not in admitted:
                world.submit(make_request(f"small{world.num_steps}", prompt=2, max_tokens=1))
                admitted += world.admitted(world.step())
            return admitted[: admitted.index("large")]

        assert len(passing()) == 3
        while "large" not in world.waiting:
            world.step()
        # It knows 33 tokens by now.
        assert len(passing()) == 9
        world.drain()
