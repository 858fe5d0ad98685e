"""Several workers behind the real driver: idle ones help out, drained ones leave, and health tells the truth."""

from __future__ import annotations

import asyncio

from pageloom.outputs import ChoiceFinished, FinishReason, GenerateEvent, TokensGenerated
from pageloom.requests import GenerateRequest
from pageloom.sampling_params import SamplingParams
from scheduler_svc.core import Limits, Scheduler
from tests.support.paper_model import paper_hello
from tests.support.paper_stack import PaperStack, paper_stack

LIMITS = Limits(max_num_seqs=4, max_num_batched_tokens=64, max_num_queued_seqs=32)


def request(request_id: str, *, n: int = 1, max_tokens: int = 20) -> GenerateRequest:
    sampling = SamplingParams(seed=1, max_tokens=max_tokens, ignore_eos=True)
    return GenerateRequest(request_id=request_id, prompt_token_ids=(3, 4, 5), sampling=sampling, n=n)


async def run(stack: PaperStack, wanted: GenerateRequest) -> list[GenerateEvent]:
    return [event async for event in stack.client.generate(wanted)]


def reasons(events: list[GenerateEvent]) -> list[FinishReason]:
    return [event.reason for event in events if isinstance(event, ChoiceFinished)]


async def test_an_idle_worker_takes_what_the_other_has_no_room_for():
    async with paper_stack(core=Scheduler(LIMITS)) as stack, asyncio.TaskGroup() as group:
        workers = [group.create_task(stack.worker(name, step_s=0.02).serve()) for name in ("a", "b")]
        await stack.wait_for_workers(2)
        # All choices of a request have one home, which has four slots.
        streams = group.create_task(run(stack, request("r", n=8, max_tokens=40)))
        async with asyncio.timeout(5):
            # The service pushes no counts, so a test has to ask.
            while [worker.num_running for worker in (await stack.client.info()).workers] != [4, 4]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert reasons(await streams) == [FinishReason.LENGTH] * 8
        for worker in workers:
            worker.cancel()


async def test_what_waits_for_a_drained_worker_runs_elsewhere():
    async with paper_stack(core=Scheduler(LIMITS)) as stack, asyncio.TaskGroup() as group:
        first = group.create_task(stack.worker("a", step_s=0.02).serve())
        await stack.wait_for_workers(1)
        running = group.create_task(run(stack, request("running", n=4, max_tokens=60)))
        waiting = group.create_task(run(stack, request("waiting", n=4, max_tokens=4)))
        second = group.create_task(stack.worker("b").serve())
        await stack.wait_for_workers(2)
        assert await stack.client.drain_worker("a", 10.0)
        assert reasons(await waiting) == [FinishReason.LENGTH] * 4
        assert not running.done()
        assert reasons(await running) == [FinishReason.LENGTH] * 4
        # Its process ends: `serve` returns.
        await first
        second.cancel()


async def test_the_last_worker_that_leaves_takes_the_service_with_it():
    async with paper_stack() as stack, stack.attached("a", step_s=0.02):
        stream = stack.client.generate(request("r", max_tokens=60))
        assert isinstance(await anext(stream), TokensGenerated)
        serving = stack.client.watch_serving()
        assert await anext(serving)
        await stack.client.drain_worker("a", 10.0)
        assert not await anext(serving)
        rest = [event async for event in stream]
        assert reasons(rest) == [FinishReason.LENGTH]
        await serving.aclose()


async def test_a_leaving_worker_that_never_answers_is_given_up():
    async with paper_stack(step_timeout_s=0.5) as stack:
        hung = asyncio.create_task(stack.worker("a", step_s=3.0, hello=paper_hello("a")).serve())
        await stack.wait_for_workers(1)
        stream = asyncio.create_task(run(stack, request("r", max_tokens=2)))
        await asyncio.sleep(0.1)
        await stack.client.drain_worker("a", 60.0)
        await stack.wait_for_workers(0)
        hung.cancel()
        await asyncio.wait([hung])
        async with stack.attached("b"):
            assert reasons(await stream) == [FinishReason.LENGTH]
