"""The same world as in the random histories, driven by Hypothesis, which shrinks a failure to a short story."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pageloom.plan import WorkerHello
from pageloom.policies import Pooling, SchedulingPolicy
from tests.scheduler.core.builders import make_limits, make_request
from tests.scheduler.core.paper_world import PaperWorld
from tests.support.paper_model import paper_hello

WORKERS = st.sampled_from(("a", "b"))
STEMS = ((2, 3, 4, 5, 6, 7, 8, 9) * 2, (2, 3, 4, 5, 7, 7, 7, 7) * 2, (7,) * 16)


class CoreMachine(RuleBasedStateMachine):
    world: PaperWorld
    num_stages: int
    max_num_draft_tokens: int

    @initialize(
        max_num_batched_tokens=st.sampled_from((1, 5, 32)),
        caching=st.booleans(),
        depth=st.sampled_from((2, 1)),
        num_stages=st.sampled_from((1, 2, 3)),
        max_num_draft_tokens=st.sampled_from((0, 3)),
        scheduling_policy=st.sampled_from(SchedulingPolicy),
    )
    def begin(
        self,
        max_num_batched_tokens: int,
        caching: bool,
        depth: int,
        num_stages: int,
        max_num_draft_tokens: int,
        scheduling_policy: SchedulingPolicy,
    ) -> None:
        limits = make_limits(
            max_num_seqs=4,
            max_num_batched_tokens=max_num_batched_tokens,
            enable_prefix_caching=caching,
            max_num_steps_in_flight=depth,
            scheduling_policy=scheduling_policy,
        )
        self.world = PaperWorld(limits)
        self.num_stages = num_stages
        self.max_num_draft_tokens = max_num_draft_tokens
        self.world.attach(self._hello("a"))

    def _hello(self, worker_id: str) -> WorkerHello:
        return paper_hello(
            worker_id,
            block_size=2,
            num_blocks=12,
            num_stages=self.num_stages,
            max_num_draft_tokens=self.max_num_draft_tokens,
        )

    @rule(
        stem=st.sampled_from(STEMS),
        prompt_len=st.integers(1, 16),
        max_tokens=st.integers(1, 12),
        n=st.integers(1, 3),
        priority=st.integers(0, 1),
        cache_salt=st.sampled_from(("", "pepper")),
        tenant=st.sampled_from(("", "other")),
        deadline_s=st.sampled_from((None, 0.0625)),
        wait_for_tokens=st.booleans(),
        prompt_logprobs=st.sampled_from((None, 1)),
    )
    def submit(self, stem: tuple[int, ...], prompt_len: int, **fields: Any) -> None:
        self._submit(stem, prompt_len, **fields)

    @rule(stem=st.sampled_from(STEMS), prompt_len=st.integers(1, 16), pooling=st.sampled_from(Pooling))
    def pool(self, stem: tuple[int, ...], prompt_len: int, pooling: Pooling) -> None:
        self._submit(stem, prompt_len, pooling=pooling)

    def _submit(self, stem: tuple[int, ...], prompt_len: int, **fields: Any) -> None:
        request_id = f"r{len(self.world.streams)}"
        self.world.submit(make_request(request_id, prompt=stem[:prompt_len], include_timeline=True, **fields))

    @rule(worker_id=WORKERS, failing_slots=st.sets(st.integers(0, 3), max_size=1))
    def plan(self, worker_id: str, failing_slots: set[int]) -> None:
        if worker_id in self.world.workers:
            self.world.plan(worker_id, failing_slots)

    @rule(worker_id=WORKERS)
    def commit(self, worker_id: str) -> None:
        if worker_id in self.world.workers and self.world.workers[worker_id].flights:
            self.world.commit(worker_id)

    @precondition(lambda self: self.world.open_streams)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request_id, choice_index = data.draw(st.sampled_from(sorted(self.world.open_streams)))
        self.world.cancel(request_id, data.draw(st.sampled_from(((), (choice_index,)))))

    @rule(worker_id=WORKERS)
    def lose_or_attach(self, worker_id: str) -> None:
        if worker_id in self.world.workers:
            self.world.lose(worker_id)
        else:
            self.world.attach(self._hello(worker_id))

    @rule(worker_id=WORKERS)
    def drain_worker(self, worker_id: str) -> None:
        if worker_id in self.world.workers:
            self.world.drain_worker(worker_id)

    @rule()
    def expire(self) -> None:
        self.world.expire()

    @precondition(lambda self: not all(worker.draining for worker in self.world.workers.values()))
    @rule()
    def drain(self) -> None:
        self.world.drain()

    def teardown(self) -> None:
        # Without an example there is no world.
        if hasattr(self, "world"):
            self.world.replay()


TestCore = CoreMachine.TestCase
TestCore.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
