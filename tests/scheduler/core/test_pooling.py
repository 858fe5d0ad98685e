"""Prompts that are pooled: they draw nothing and end with their embedding, whatever is cached, preempted or lost.

The paper world compares each embedding with what the prompt's own KV gives.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from pageloom.errors import ContextLengthExceeded, EngineError, InvalidRequest
from pageloom.outputs import FinishReason
from pageloom.plan import BatchPlan, Failure, StepResult
from pageloom.policies import Pooling
from scheduler_svc.core import Scheduler, worker_group
from tests.scheduler.core.builders import make_limits, make_request, make_world
from tests.scheduler.core.paper_world import PaperWorld
from tests.support.paper_model import PAPER_MODEL, PaperWorker, paper_hello, solo_pooling

PROMPT = tuple(range(2, 24))
BOTH = pytest.mark.parametrize("pooling", list(Pooling))


def computed_at_start(plan: BatchPlan | None) -> list[int]:
    assert plan is not None
    return [admission.num_computed_tokens for admission in plan.admissions]


def check_embedding(world: PaperWorld, request_id: str, prompt: tuple[int, ...], pooling: Pooling) -> None:
    event = world.finished(request_id)
    assert (event.reason, event.num_output_tokens, event.stop_token_id) == (FinishReason.STOP, 0, None)
    assert event.embedding == solo_pooling(prompt, pooling).embedding


@BOTH
@pytest.mark.parametrize("max_num_batched_tokens", [1, 7, 64])
@pytest.mark.parametrize("max_num_steps_in_flight", [1, 2])
def test_in_chunks_beside_others(pooling: Pooling, max_num_batched_tokens: int, max_num_steps_in_flight: int):
    limits = make_limits(max_num_batched_tokens=max_num_batched_tokens, max_num_steps_in_flight=max_num_steps_in_flight)
    world = make_world(limits)
    for index in range(3):
        world.submit(make_request(f"p{index}", prompt=PROMPT[: 22 - 5 * index], pooling=pooling))
        world.submit(make_request(f"g{index}", prompt=9 + index, max_tokens=3))
    world.drain()
    for index in range(3):
        check_embedding(world, f"p{index}", PROMPT[: 22 - 5 * index], pooling)
    world.replay()


def test_one_step_is_enough_and_nothing_follows():
    world = make_world()
    world.submit(make_request(prompt=PROMPT, pooling=Pooling.last))
    plan = world.plan("a")
    assert plan is not None
    assert (plan.chunk_lens, plan.admissions[0].pooling) == ((22,), Pooling.last)
    assert world.plan("a") is None
    world.commit("a")
    assert not world.open_streams
    assert world.scheduler.stats().num_generation_tokens == 0


def test_the_last_takes_cached_blocks_and_the_mean_none():
    world = make_world()
    world.submit(make_request("first", prompt=PROMPT))
    world.drain()
    for pooling, start in ((Pooling.last, 20), (Pooling.mean, 0)):
        world.submit(make_request(pooling.value, prompt=PROMPT, pooling=pooling))
        assert computed_at_start(world.step()) == [start]
        assert world.finished(pooling.value).num_cached_tokens == start


def test_the_mean_is_no_query_of_the_cache():
    world = make_world()
    world.submit(make_request("mean", prompt=PROMPT, pooling=Pooling.mean))
    world.submit(make_request("last", prompt=30, pooling=Pooling.last))
    world.drain()
    assert world.scheduler.stats().prefix_cache_queried_tokens == 30


@BOTH
def test_its_blocks_are_registered(pooling: Pooling):
    world = make_world()
    world.submit(make_request("pooled", prompt=PROMPT, pooling=pooling))
    world.drain()
    world.submit(make_request("later", prompt=PROMPT))
    assert computed_at_start(world.step()) == [20]
    world.drain()


@BOTH
def test_a_lost_worker(pooling: Pooling):
    world = make_world(make_limits(max_num_batched_tokens=16, max_num_steps_in_flight=2))
    world.submit(make_request(prompt=PROMPT, pooling=pooling))
    world.plan("a")
    world.plan("a")
    world.commit("a")
    # The embedding is lost on the way.
    world.lose("a")
    world.attach(paper_hello("b", block_size=4))
    assert computed_at_start(world.plan("b")) == [0]
    world.drain()
    check_embedding(world, "r", PROMPT, pooling)
    world.replay()


@BOTH
def test_a_preemption(pooling: Pooling):
    """Of one that has half of its prompt: the growth of the other takes its blocks."""
    world = make_world(make_limits(max_num_batched_tokens=4), block_size=4, num_blocks=9)
    world.submit(make_request("one", prompt=7, max_tokens=26))
    world.step()
    world.step()
    world.submit(make_request("pooled", prompt=PROMPT, pooling=pooling))
    starts = []
    while world.open_streams:
        starts += computed_at_start(plan) if (plan := world.step()) else []
    assert world.scheduler.stats().num_preemptions == 1
    assert (starts[0], len(starts)) == (0, 2)
    assert (starts[1] == 0) == (pooling is Pooling.mean)
    check_embedding(world, "pooled", PROMPT, pooling)
    world.replay()


@BOTH
def test_preempted_with_its_last_chunk_in_flight_it_ends_all_the_same(pooling: Pooling):
    limits = make_limits(max_num_batched_tokens=5, max_num_steps_in_flight=2)
    world = make_world(limits, block_size=4, num_blocks=8)
    world.submit(make_request("one", prompt=7, max_tokens=20))
    for _ in range(2):
        world.step()
    world.submit(make_request("pooled", prompt=PROMPT[:20], pooling=pooling))
    for _ in range(4):
        world.step()
    world.plan("a")
    world.plan("a")
    assert world.scheduler.stats().num_preemptions == 1
    world.commit("a")
    check_embedding(world, "pooled", PROMPT[:20], pooling)
    world.drain()
    world.replay()


def test_cancelled_in_flight():
    world = make_world()
    world.submit(make_request(prompt=PROMPT, pooling=Pooling.mean))
    world.plan("a")
    world.cancel("r")
    world.drain()
    assert world.finished("r").embedding == b""


def test_a_whole_context_fits_and_a_token_more_does_not():
    world = make_world()
    longest = PAPER_MODEL.max_model_len
    assert world.submit(make_request("fits", prompt=longest, pooling=Pooling.last))
    world.drain()
    with pytest.raises(ContextLengthExceeded, match=f"{longest} tokens, but the prompt has {longest + 1}"):
        world.scheduler.submit(make_request("not", prompt=longest + 1, pooling=Pooling.last), world.now)


def test_the_memory_has_to_hold_all_of_it():
    world = make_world(num_blocks=5)
    assert world.submit(make_request("fits", prompt=20, pooling=Pooling.mean))
    assert not world.submit(make_request("not", prompt=21, pooling=Pooling.mean))
    world.drain()


def test_no_more_at_once_than_one_message_takes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worker_group, "MAX_EMBEDDING_BYTES", 2 * 4 * PAPER_MODEL.hidden_size)
    world = make_world()
    for index in range(5):
        world.submit(make_request(f"p{index}", prompt=3, pooling=Pooling.last))
    world.submit(make_request("generates", prompt=3))
    assert world.admitted(world.step()) == ["p0", "p1", "generates"]
    world.drain()


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"n": 2}, "n"), ({"resume": ((0, (5,)),)}, "resume")],
)
def test_what_means_nothing_is_refused(fields: dict[str, object], param: str):
    scheduler = Scheduler(make_limits())
    scheduler.attach(paper_hello("a"), 1, 0.0)
    with pytest.raises(InvalidRequest) as refusal:
        scheduler.submit(replace(make_request(pooling=Pooling.last), **fields), 0.0)  # type: ignore[arg-type]
    assert refusal.value.param == param


def test_a_worker_that_says_no_width_pools_nothing():
    scheduler = Scheduler(make_limits())
    scheduler.attach(paper_hello("a", model=replace(PAPER_MODEL, hidden_size=0)), 1, 0.0)
    with pytest.raises(InvalidRequest, match="pooling is not supported"):
        scheduler.submit(make_request(pooling=Pooling.last), 0.0)
    scheduler.submit(make_request(), 0.0)


def test_workers_have_to_agree_on_what_is_meant():
    scheduler = Scheduler(make_limits())
    scheduler.attach(paper_hello("a"), 1, 0.0)
    with pytest.raises(InvalidRequest, match="its pooling is mean, but last is being served"):
        scheduler.attach(paper_hello("b", model=replace(PAPER_MODEL, pooling=Pooling.mean)), 2, 0.0)


class TestResultsThatDoNotFit:
    """The worker is broken: nothing is changed, and the driver gives it up."""

    def start(self) -> tuple[Scheduler, StepResult]:
        scheduler = Scheduler(make_limits())
        scheduler.attach(paper_hello("a"), 1, 0.0)
        scheduler.submit(make_request(prompt=PROMPT, pooling=Pooling.mean), 0.0)
        plan = scheduler.plan("a", 0.0)
        assert plan is not None
        worker = PaperWorker(paper_hello("a"), 1)
        return scheduler, worker.execute(worker.apply(plan))

    def test_missing_short_and_with_a_token(self):
        scheduler, result = self.start()
        for embeddings in ({}, {0: b"1234"}, {1: bytes(8)}):
            with pytest.raises(EngineError, match=r"an embedding of . bytes for slot 0; 8 were due"):
                scheduler.commit("a", replace(result, embeddings=embeddings), 0.0)
        with pytest.raises(EngineError, match="1 tokens for slots"):
            scheduler.commit("a", replace(result, slots=(0,), token_ids=(3,)), 0.0)
        assert len(scheduler.commit("a", result, 0.0).endings) == 1

    def test_a_failed_run_needs_none(self):
        scheduler, _ = self.start()
        (ending,) = scheduler.commit("a", StepResult(epoch=1, step=1, failures={0: Failure("no numbers")}), 0.0).endings
        assert (ending.event.reason, ending.event.embedding) == (FinishReason.ERROR, b"")
