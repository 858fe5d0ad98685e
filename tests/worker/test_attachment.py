"""The plan stream at the worker: plans taken ahead, what breaks it, and how a worker leaves.

The scheduler is a script behind real gRPC; the runner takes each step when the test lets it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from queue import SimpleQueue

import pytest
import structlog.testing
from prometheus_client import CollectorRegistry

from pageloom import wire
from pageloom.errors import EngineError
from pageloom.grammar_limits import MAX_GRAMMARS_PREPARING
from pageloom.plan import Admission, BatchPlan, CacheInfo, ModelInfo, StepResult
from pageloom.rpc.v1 import worker_pb2
from pageloom.sampling_params import SamplingParams
from tests.support.paper_model import paper_hello
from tests.support.scripted_scheduler import Dial, ScriptedScheduler, scripted_scheduler
from worker_svc import service
from worker_svc.metrics import WorkerMetrics
from worker_svc.service import AttachLoop


class PermittedRunner:
    """Each step takes a permit; a permit may be an exception to raise."""

    def __init__(self) -> None:
        hello = paper_hello()
        self.model_info: ModelInfo = hello.model
        self.cache_info: CacheInfo = hello.cache
        self.max_num_seqs = hello.max_num_seqs
        self.max_num_batched_tokens = hello.max_num_batched_tokens
        self.num_stages = 1
        self.max_num_draft_tokens = hello.max_num_draft_tokens
        self.started: list[tuple[int, int]] = []
        self.num_finished = 0
        self.prepared: list[str] = []
        self.may_prepare = threading.Event()
        self._permits: SimpleQueue[Exception | None] = SimpleQueue()

    def permit(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self._permits.put(None)

    def fail(self, error: Exception) -> None:
        self._permits.put(error)

    def announce(self, plan: BatchPlan) -> bool:
        raise AssertionError("there is one stage")

    def prepare(self, grammar: str) -> str:
        self.prepared.append(grammar)
        self.may_prepare.wait(10)
        return "it is bad" if grammar == "bad" else ""

    def step(self, plan: BatchPlan) -> StepResult:
        self.started.append((plan.epoch, plan.step))
        error = self._permits.get(timeout=10)
        if error is not None:
            raise error
        self.num_finished += 1
        return StepResult(epoch=plan.epoch, step=plan.step, slots=(0,), token_ids=(plan.step,), duration_s=0.001)


@dataclass
class World:
    scheduler: ScriptedScheduler
    loop: AttachLoop
    runner: PermittedRunner
    registry: CollectorRegistry
    serving: asyncio.Task[None]
    logs: list[structlog.typing.EventDict]

    async def attached(self, epoch: int = 1, **welcome: float) -> Dial:
        dial = await self.scheduler.next_dial()
        await dial.welcome(epoch, **welcome)  # type: ignore[arg-type]
        return dial

    async def broken(self) -> str:
        """Waits until the worker has given up a stream, and says why it did."""
        await until(lambda: bool(self._broken()))
        return self._broken()[-1]

    def _broken(self) -> list[str]:
        return [line["reason"] for line in self.logs if line["event"] == "plan stream broken"]

    def sample(self, name: str) -> float:
        value = self.registry.get_sample_value(name, {"model_name": self.runner.model_info.name})
        assert value is not None, name
        return value


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    runner, registry = PermittedRunner(), CollectorRegistry()
    async with scripted_scheduler() as scheduler:
        metrics = WorkerMetrics(runner.model_info, runner.cache_info, registry)
        loop = AttachLoop(runner, scheduler.address, "worker", metrics)
        with structlog.testing.capture_logs() as logs:
            serving = asyncio.create_task(loop.serve())
            try:
                yield World(scheduler, loop, runner, registry, serving, logs)
            finally:
                serving.cancel()
                await asyncio.wait([serving])
                # For the step at hand, whose thread would wait on.
                runner.permit(1)
                runner.may_prepare.set()


def admission(slot: int = 0) -> Admission:
    return Admission(
        slot=slot,
        token_ids=(5,),
        num_prompt_tokens=1,
        num_computed_tokens=0,
        block_ids=(0,),
        sampling=SamplingParams(seed=1, max_tokens=50),
    )


def first_plan(epoch: int = 1) -> BatchPlan:
    return BatchPlan(epoch=epoch, step=1, snapshot=True, admissions=(admission(),), chunk_slots=(0,), chunk_lens=(1,))


def next_plan(step: int, epoch: int = 1) -> BatchPlan:
    return BatchPlan(epoch=epoch, step=step)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def num_model_threads() -> int:
    return sum(thread.name.startswith("model") for thread in threading.enumerate())


async def test_the_next_plan_runs_without_a_trip_through_the_event_loop(monkeypatch: pytest.MonkeyPatch):
    taken: list[int] = []
    parse = wire.plan_from_proto

    def count(message: worker_pb2.BatchPlan) -> BatchPlan:
        taken.append(message.step)
        return parse(message)

    monkeypatch.setattr(wire, "plan_from_proto", count)
    async with world() as it:
        dial = await it.attached()
        await dial.plan(first_plan())
        await dial.plan(next_plan(2))
        await until(lambda: taken == [1, 2] and it.runner.started == [(1, 1)])
        it.runner.permit(2)
        # The loop stands still: no result can be sent, no plan be read.
        deadline_s = time.monotonic() + 5.0
        while it.runner.num_finished < 2 and time.monotonic() < deadline_s:
            time.sleep(0.01)  # noqa: ASYNC251
        assert it.runner.num_finished == 2
        assert [(await dial.result()).step for _ in range(2)] == [1, 2]


async def test_results_come_one_by_one_while_the_next_step_runs():
    async with world() as it:
        dial = await it.attached()
        await dial.plan(first_plan())
        await dial.plan(next_plan(2))
        for step in range(1, 6):
            it.runner.permit(1)
            assert (await dial.result()).step == step
            await dial.plan(next_plan(step + 2))
        assert it.runner.num_finished == 5


@pytest.mark.parametrize("depth", [1, 2])
async def test_too_many_plans_break_the_stream_and_the_next_one_starts_clean(depth: int):
    async with world() as it:
        dial = await it.attached(depth=depth)
        await dial.plan(first_plan())
        await until(lambda: it.runner.started == [(1, 1)])
        for step in range(2, depth + 2):
            await dial.plan(next_plan(step))
        assert f"at most {depth} may be in flight" in await it.broken()
        await dial.wait_until_ended()

        dial = await it.attached(epoch=2)
        assert dial.hello.highest_epoch == 1
        await dial.plan(first_plan(epoch=2))
        it.runner.permit(2)
        assert (await dial.result()).epoch == 2
        # What was queued in the first attachment never ran.
        assert it.runner.started == [(1, 1), (2, 1)]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (worker_pb2.AttachResponse(plan=worker_pb2.BatchPlan(epoch=7, step=2)), "epoch 7 came in epoch 1"),
        (worker_pb2.AttachResponse(plan=worker_pb2.BatchPlan(epoch=1, step=3)), "step 3 followed step 1"),
        (worker_pb2.AttachResponse(plan=worker_pb2.BatchPlan(epoch=1, step=1)), "step 1 followed step 1"),
        (worker_pb2.AttachResponse(welcome=worker_pb2.Welcome(epoch=2)), "welcome came where a plan was due"),
        (worker_pb2.AttachResponse(), "an empty message"),
    ],
)
async def test_what_the_protocol_does_not_allow_breaks_the_stream(message: worker_pb2.AttachResponse, reason: str):
    async with world() as it:
        dial = await it.attached()
        it.runner.permit(1)
        await dial.plan(first_plan())
        await dial.result()
        await dial.send(message)
        assert reason in await it.broken()
        await dial.wait_until_ended()
        assert it.runner.started == [(1, 1)]


async def prepared(dial: Dial) -> tuple[int, str]:
    message = await dial.next()
    assert message is not None
    assert message.WhichOneof("message") == "grammar_prepared", message
    return message.grammar_prepared.number, message.grammar_prepared.error


def preparation(number: int, grammar: str = "g") -> worker_pb2.AttachResponse:
    return worker_pb2.AttachResponse(prepare_grammar=worker_pb2.PrepareGrammar(number=number, grammar=grammar))


async def test_grammars_are_prepared_beside_the_steps():
    async with world() as it:
        dial = await it.attached()
        await dial.send(preparation(1))
        await until(lambda: bool(it.runner.prepared))
        it.runner.permit(1)
        await dial.plan(first_plan())
        assert (await dial.result()).step == 1
        await dial.send(preparation(2, "bad"))
        it.runner.may_prepare.set()
        assert [await prepared(dial) for _ in range(2)] == [(1, ""), (2, "it is bad")]


async def test_too_many_grammars_break_the_stream():
    async with world() as it:
        dial = await it.attached()
        for number in range(MAX_GRAMMARS_PREPARING):
            await dial.send(preparation(number))
        it.runner.may_prepare.set()
        assert len({await prepared(dial) for _ in range(MAX_GRAMMARS_PREPARING)}) == MAX_GRAMMARS_PREPARING
        it.runner.may_prepare.clear()
        for number in range(MAX_GRAMMARS_PREPARING + 1):
            await dial.send(preparation(number))
        assert "64 grammars" in await it.broken()
        it.runner.may_prepare.set()


async def test_a_plan_that_contradicts_the_slots_breaks_the_stream():
    async with world() as it:
        dial = await it.attached()
        await dial.plan(first_plan())
        await dial.plan(next_plan(2))
        it.runner.fail(EngineError("slot 3 is released but not bound"))
        assert await it.broken() == "slot 3 is released but not bound"
        dial = await it.attached(epoch=2)
        await dial.plan(first_plan(epoch=2))
        it.runner.permit(1)
        assert (await dial.result()).epoch == 2
        assert it.runner.started == [(1, 1), (2, 1)]


async def test_what_the_model_raises_ends_the_worker():
    async with world() as it:
        dial = await it.attached()
        await dial.plan(first_plan())
        it.runner.fail(RuntimeError("out of memory"))
        with pytest.raises(RuntimeError, match="out of memory"):
            await asyncio.wait_for(it.serving, 5)


@pytest.mark.parametrize("stop", [True, False])
async def test_drain_finishes_what_is_in_flight(stop: bool):
    async with world() as it:
        dial = await it.attached()
        await dial.plan(first_plan())
        await dial.plan(next_plan(2))
        await dial.drain(stop=stop)
        it.runner.permit(2)
        assert [(await dial.result()).step for _ in range(2)] == [1, 2]
        assert await dial.next() is None
        assert not it.serving.done()
        dial.end()
        if stop:
            await asyncio.wait_for(it.serving, 5)
        else:
            await it.attached(epoch=2)


async def test_no_plan_comes_after_drain():
    async with world() as it:
        dial = await it.attached()
        await dial.plan(first_plan())
        await dial.drain(stop=True)
        await dial.plan(next_plan(2))
        assert "plan came after Drain" in await it.broken()
        await it.attached(epoch=2)


async def test_a_leaving_worker_runs_plans_until_the_scheduler_ends_the_call():
    async with world() as it:
        dial = await it.attached()
        await dial.plan(first_plan())
        await it.loop.stop(30.0)
        message = await dial.next()
        assert message is not None
        assert message.leaving.timeout_s == 30.0
        it.runner.permit(2)
        await dial.result()
        await dial.plan(next_plan(2))
        await dial.result()
        # A second signal, or the parent's death, leaves less time.
        await it.loop.stop(0.0)
        message = await dial.next()
        assert message is not None
        assert message.HasField("leaving")
        assert message.leaving.timeout_s == 0.0
        dial.end()
        await asyncio.wait_for(it.serving, 5)


async def test_a_scheduler_that_keeps_a_leaving_worker_is_left_in_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service, "_LEAVE_GRACE_S", 0.1)
    async with world() as it:
        dial = await it.attached()
        await dial.plan(first_plan())
        await it.loop.stop(0.1)
        await asyncio.wait_for(it.serving, 2)
        assert "did not let this worker leave" in await it.broken()
        await dial.wait_until_ended()


async def test_a_worker_that_was_stopped_while_it_dialled_leaves_at_once():
    async with world() as it:
        dial = await it.scheduler.next_dial()
        await it.loop.stop(3.0)
        await dial.welcome(1)
        message = await dial.next()
        assert message is not None
        assert message.leaving.timeout_s == 3.0
        dial.end()
        await asyncio.wait_for(it.serving, 5)


async def test_heartbeats_come_while_a_step_runs():
    async with world() as it:
        dial = await it.attached(heartbeat_interval_s=0.02)
        it.runner.permit(1)
        await dial.plan(first_plan())
        await dial.plan(next_plan(2))
        await until(lambda: it.runner.started[-1:] == [(1, 2)])
        steps: list[int] = []
        while steps.count(1) < 3:
            message = await dial.next()
            assert message is not None
            if message.HasField("heartbeat"):
                assert message.heartbeat.epoch == 1
                steps.append(message.heartbeat.step)
        assert set(steps) <= {0, 1}
        it.runner.permit(1)


async def test_no_thread_is_left_behind():
    await until(lambda: num_model_threads() == 0)
    async with world() as it:
        dial = await it.attached()
        await dial.plan(first_plan())
        await dial.plan(next_plan(2))
        await until(lambda: it.runner.started == [(1, 1)])
        assert num_model_threads() == 1
    # Even if it were let, the second plan is not run.
    it.runner.permit(1)
    await until(lambda: num_model_threads() == 0)
    assert it.runner.started == [(1, 1)]


async def test_only_time_in_which_there_was_work_counts_as_idle():
    async with world() as it:
        dial = await it.attached()
        it.runner.permit(4)
        plans = (
            first_plan(),
            # The sequence goes on: the model waited for this plan.
            next_plan(2),
            # It ends and another one comes: nothing was there to run.
            BatchPlan(
                epoch=1, step=3, released_slots=(0,), admissions=(admission(1),), chunk_slots=(1,), chunk_lens=(1,)
            ),
            BatchPlan(epoch=1, step=4, snapshot=True, admissions=(admission(),), chunk_slots=(0,), chunk_lens=(1,)),
        )
        started_s = time.monotonic()
        for plan in plans:
            await dial.plan(plan)
            await dial.result()
            await asyncio.sleep(0.1)
        elapsed_s = time.monotonic() - started_s
        assert it.sample("pageloom_worker_plan_wait_seconds_count") == 1
        wait_s = it.sample("pageloom_worker_plan_wait_seconds_sum")
        assert 0.1 <= wait_s <= it.sample("pageloom_worker_idle_seconds_total") < elapsed_s - 0.3
        assert 0 < it.sample("pageloom_worker_busy_seconds_total") < elapsed_s - 0.4
        assert it.sample("pageloom_worker_step_seconds_count") == 4
