"""Engine and Worker services over real gRPC: answers, errors, cancels, lost workers, drain."""

import asyncio
import contextlib
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

import grpc
import pytest

from pageloom import wire
from pageloom.errors import (
    ContextLengthExceeded,
    DuplicateRequest,
    InvalidRequest,
    Overloaded,
    PageloomError,
    StartupError,
    Unavailable,
)
from pageloom.outputs import ChoiceFinished, FinishReason, TokensGenerated
from pageloom.plan import WorkerHello
from pageloom.requests import GenerateRequest
from pageloom.rpc.v1 import engine_pb2, engine_pb2_grpc, worker_pb2, worker_pb2_grpc
from pageloom.sampling_params import SamplingParams
from tests.support.paper_model import PAPER_MODEL, paper_hello, solo_run
from tests.support.paper_stack import PaperStack, paper_stack

PROMPT = (5, 7, 11, 13, 17, 19, 23)


def request(name: str = "r", *, max_tokens: int = 20, **fields: Any) -> GenerateRequest:
    sampling = SamplingParams(seed=3, max_tokens=max_tokens, ignore_eos=True)
    return GenerateRequest(**{"request_id": name, "prompt_token_ids": PROMPT, "sampling": sampling, **fields})


def expected(asked: GenerateRequest, choice_index: int = 0) -> list[int]:
    return solo_run(asked.prompt_token_ids, asked.sampling, choice_index).token_ids


def attach(channel: grpc.aio.Channel) -> Any:
    """A raw Attach call, to say what the worker's own code never would."""
    return worker_pb2_grpc.WorkerStub(channel).Attach()


async def collect(stack: PaperStack, asked: GenerateRequest) -> tuple[dict[int, list[int]], dict[int, ChoiceFinished]]:
    tokens: dict[int, list[int]] = {index: [] for index in range(asked.n)}
    finished: dict[int, ChoiceFinished] = {}
    async for event in stack.client.generate(asked):
        if isinstance(event, TokensGenerated):
            assert event.choice_index not in finished
            assert event.first_index == len(tokens[event.choice_index])
            tokens[event.choice_index] += event.token_ids
        elif isinstance(event, ChoiceFinished):
            assert event.choice_index not in finished
            finished[event.choice_index] = event
    return tokens, finished


async def test_choices_come_out_as_if_alone():
    async with paper_stack() as stack, stack.attached():
        asked = [request(f"r{index}", n=1 + index % 3) for index in range(5)]
        for one, (tokens, finished) in zip(
            asked, await asyncio.gather(*(collect(stack, a) for a in asked)), strict=True
        ):
            assert tokens == {index: expected(one, index) for index in range(one.n)}
            assert {event.reason for event in finished.values()} == {FinishReason.LENGTH}
        await stack.wait_until_idle()


async def test_an_unset_seed_is_drawn():
    async with paper_stack() as stack, stack.attached():
        unseeded = request("a", sampling=SamplingParams(max_tokens=20, ignore_eos=True))
        first, _ = await collect(stack, unseeded)
        second, _ = await collect(stack, unseeded)
        assert first != second


async def test_closing_the_stream_frees_everything():
    async with paper_stack() as stack, stack.attached(step_s=0.01):
        async with aclosing(stack.client.generate(request(n=3, max_tokens=100))) as events:
            await anext(events)
        await stack.wait_until_idle()


async def test_one_choice_can_be_cancelled():
    async with paper_stack() as stack, stack.attached(step_s=0.01):
        asked = request(n=2, max_tokens=30)
        collecting = asyncio.create_task(collect(stack, asked))
        await asyncio.sleep(0.1)
        await stack.client.cancel("r", (1,))
        tokens, finished = await collecting
        assert finished[1].reason is FinishReason.CANCELLED
        assert tokens[1] == expected(asked, 1)[: len(tokens[1])]
        assert tokens[0] == expected(asked, 0)
        await stack.client.cancel("r", (1,))
        await stack.client.cancel("unknown")


async def test_a_lost_worker_changes_no_text():
    async with paper_stack() as stack:
        asked = request(n=2, max_tokens=40)
        async with stack.attached("first", step_s=0.01) as worker:
            collecting = asyncio.create_task(collect(stack, asked))
            await asyncio.sleep(0.15)
            worker.cancel()
            await stack.wait_for_workers(0)
        async with stack.attached("second"):
            tokens, finished = await collecting
        assert tokens == {index: expected(asked, index) for index in range(2)}
        assert {event.reason for event in finished.values()} == {FinishReason.LENGTH}


async def test_resume_goes_on_after_the_tokens_delivered():
    async with paper_stack() as stack, stack.attached():
        asked = request()
        whole = expected(asked)
        events = [event async for event in stack.client.generate(request(resume=((0, tuple(whole[:8])),)))]
        assert isinstance(events[0], TokensGenerated)
        assert events[0].first_index == 8
        tokens = [token for event in events if isinstance(event, TokensGenerated) for token in event.token_ids]
        assert whole[:8] + tokens == whole
        last = events[-1]
    assert isinstance(last, ChoiceFinished)
    assert last.num_output_tokens == len(whole)


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"prompt_token_ids": ()}, InvalidRequest, "prompt_token_ids"),
        ({"prompt_token_ids": (PAPER_MODEL.vocab_size,)}, InvalidRequest, "prompt_token_ids"),
        ({"prompt_token_ids": (1,) * 127}, ContextLengthExceeded, None),
        ({"n": 0}, InvalidRequest, "n"),
        ({"n": 10**4}, InvalidRequest, "n"),
        ({"n": 17}, InvalidRequest, "n"),
        ({"resume": ((5, (1,)),)}, InvalidRequest, "resume"),
        ({"request_id": ""}, InvalidRequest, "request_id"),
    ],
)
async def test_bad_requests_name_the_field(fields: dict[str, Any], error: type[PageloomError], param: str | None):
    async with paper_stack() as stack, stack.attached():
        with pytest.raises(error) as caught:
            await collect(stack, request(**fields))
        if param is not None:
            assert caught.value.param == param
        await stack.wait_until_idle()


async def test_out_of_range_sampling_on_the_wire():
    async with paper_stack() as stack, stack.attached(), grpc.aio.insecure_channel(stack.address) as channel:
        engine = engine_pb2_grpc.EngineStub(channel)
        message = wire.generate_request_to_proto(request())
        message.sampling.top_p = 3.0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            _ = [event async for event in engine.Generate(message)]
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert ("pageloom-param", "top_p") in list(cast("Any", caught.value.trailing_metadata()))


async def test_a_running_id_is_refused_and_then_free_again():
    async with paper_stack() as stack, stack.attached(step_s=0.01):
        async with aclosing(stack.client.generate(request(max_tokens=100))) as events:
            await anext(events)
            with pytest.raises(DuplicateRequest):
                await collect(stack, request())
        await stack.wait_until_idle()
        await collect(stack, request())


async def test_no_worker_and_a_full_queue():
    async with paper_stack() as stack:
        with pytest.raises(Unavailable):
            await collect(stack, request())
        async with stack.attached(step_s=0.02):
            many = [asyncio.create_task(collect(stack, request(f"r{i}", n=12, max_tokens=5))) for i in range(4)]
            outcomes = await asyncio.gather(*many, return_exceptions=True)
            assert any(isinstance(outcome, Overloaded) for outcome in outcomes)
            assert any(not isinstance(outcome, Exception) for outcome in outcomes)


async def test_health_tells_whether_requests_run():
    async with paper_stack() as stack, aclosing(stack.client.watch_serving()) as serving:
        assert await anext(serving) is False
        async with stack.attached():
            assert await anext(serving) is True
        assert await anext(serving) is False


async def test_drain_finishes_what_runs_and_sends_the_worker_away():
    async with paper_stack() as stack, stack.attached(step_s=0.01) as worker:
        asked = request(max_tokens=30)
        collecting = asyncio.create_task(collect(stack, asked))
        await asyncio.sleep(0.1)
        draining = asyncio.create_task(stack.driver.drain(10))
        await asyncio.sleep(0.05)
        with pytest.raises(Unavailable):
            await collect(stack, request("late"))
        tokens, _ = await collecting
        assert tokens[0] == expected(asked)
        await draining
        await stack.wait_for_workers(0)
        assert not worker.done()


async def test_what_outlasts_the_drain_ends_with_an_error():
    async with paper_stack() as stack, stack.attached(step_s=0.02):
        asked = request(n=2, max_tokens=100)
        collecting = asyncio.create_task(collect(stack, asked))
        await asyncio.sleep(0.1)
        await stack.driver.drain(0.1)
        _, finished = await collecting
        assert {event.reason for event in finished.values()} == {FinishReason.ERROR}
        assert "shutting down" in finished[0].error_message


async def test_a_worker_that_is_stopped_leaves_between_steps():
    async with paper_stack() as stack:
        asked = request(max_tokens=40)
        leaver = stack.worker("leaver", step_s=0.01)
        serving = asyncio.create_task(leaver.serve())
        await stack.wait_for_workers(1)
        collecting = asyncio.create_task(collect(stack, asked))
        # Leaving is no loss, however often it happens.
        for _ in range(5):
            await asyncio.sleep(0.05)
            await leaver.stop()
            await asyncio.wait_for(serving, 5)
            leaver = stack.worker("leaver", step_s=0.01)
            serving = asyncio.create_task(leaver.serve())
            await stack.wait_for_workers(1)
        tokens, finished = await collecting
        assert tokens[0] == expected(asked)
        assert finished[0].reason is FinishReason.LENGTH
        await leaver.stop()
        await asyncio.wait_for(serving, 5)


async def test_the_same_process_may_dial_again():
    async with paper_stack() as stack, grpc.aio.insecure_channel(stack.address) as channel:
        hello = worker_pb2.AttachRequest(hello=wire.hello_to_proto(paper_hello("again")))
        epochs = []
        for _ in range(2):
            call = attach(channel)
            await call.write(hello)
            epochs.append((await call.read()).welcome.epoch)
        assert epochs[1] > epochs[0]
        other = wire.hello_to_proto(replace(paper_hello("again"), boot_id="another"))
        call = attach(channel)
        await call.write(worker_pb2.AttachRequest(hello=other))
        assert await call.code() is grpc.StatusCode.ALREADY_EXISTS


async def test_epochs_rise_above_what_the_worker_has_seen():
    async with paper_stack() as stack, grpc.aio.insecure_channel(stack.address) as channel:
        call = attach(channel)
        hello = replace(paper_hello("w"), highest_epoch=1_000)
        await call.write(worker_pb2.AttachRequest(hello=wire.hello_to_proto(hello)))
        assert (await call.read()).welcome.epoch == 1_001


async def test_a_silent_worker_is_given_up():
    async with paper_stack(heartbeat_timeout_s=0.4) as stack, grpc.aio.insecure_channel(stack.address) as channel:
        call = attach(channel)
        await call.write(worker_pb2.AttachRequest(hello=wire.hello_to_proto(paper_hello("mute"))))
        assert (await call.read()).HasField("welcome")
        await stack.wait_for_workers(1)
        await stack.wait_for_workers(0)


async def test_a_worker_that_beats_but_never_answers_is_given_up():
    async with paper_stack(step_timeout_s=0.3) as stack, grpc.aio.insecure_channel(stack.address) as channel:
        call = attach(channel)
        await call.write(worker_pb2.AttachRequest(hello=wire.hello_to_proto(paper_hello("stuck"))))
        await call.read()
        asked = request()
        collecting = asyncio.create_task(collect(stack, asked))
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await call.write(worker_pb2.AttachRequest(heartbeat=worker_pb2.Heartbeat(epoch=1)))
                await asyncio.sleep(0.05)
        await stack.wait_for_workers(0)
        async with stack.attached("other"):
            tokens, _ = await collecting
        assert tokens[0] == expected(asked)


@pytest.mark.parametrize(
    "hello",
    [
        replace(paper_hello(), highest_epoch=2**64 - 1),
        replace(paper_hello(), worker_id=""),
        replace(paper_hello(), max_num_seqs=2**31),
        replace(paper_hello(), cache=replace(paper_hello().cache, num_blocks=2**32 - 1)),
        replace(paper_hello(), cache=replace(paper_hello().cache, num_blocks=0)),
        replace(paper_hello(), model=replace(PAPER_MODEL, digest="")),
        replace(paper_hello(), model=replace(PAPER_MODEL, eos_token_ids=(PAPER_MODEL.vocab_size,))),
        replace(paper_hello(), model=replace(PAPER_MODEL, vocab_size=1 << 24, eos_token_ids=tuple(range(100_000)))),
    ],
)
async def test_a_senseless_hello_is_refused_and_harms_nobody(hello: WorkerHello):
    async with paper_stack() as stack, grpc.aio.insecure_channel(stack.address) as channel:
        call = attach(channel)
        await call.write(worker_pb2.AttachRequest(hello=wire.hello_to_proto(hello)))
        assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        async with stack.attached():
            await collect(stack, request())


async def test_a_worker_with_another_model_is_refused():
    async with paper_stack() as stack, stack.attached():
        hello = paper_hello("other", model=replace(PAPER_MODEL, digest="another"))
        with pytest.raises(StartupError, match="refused"):
            await stack.worker("other", hello=hello).serve()


async def test_another_protocol_version_is_refused():
    async with paper_stack() as stack, grpc.aio.insecure_channel(stack.address) as channel:
        hello = wire.hello_to_proto(paper_hello())
        hello.protocol_version += 1
        call = attach(channel)
        await call.write(worker_pb2.AttachRequest(hello=hello))
        assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        call = attach(channel)
        await call.write(worker_pb2.AttachRequest(heartbeat=worker_pb2.Heartbeat()))
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_reflection_lists_the_services():
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    async with paper_stack() as stack:

        def services() -> list[str]:
            with grpc.insecure_channel(stack.address) as channel:
                return list(ProtoReflectionDescriptorDatabase(channel).get_services())

        listed = await asyncio.to_thread(services)
        assert {"pageloom.rpc.v1.Engine", "pageloom.rpc.v1.Worker", "grpc.health.v1.Health"} <= set(listed)


async def test_the_docs_example_runs():
    """docs/grpc.md shows the Engine service with plain, synchronous grpcio."""
    async with paper_stack() as stack, stack.attached():

        def ask() -> list[engine_pb2.GenerateEvent]:
            with grpc.insecure_channel(stack.address) as channel:
                return list(engine_pb2_grpc.EngineStub(channel).Generate(wire.generate_request_to_proto(request())))

        events = await asyncio.to_thread(ask)
        assert events[-1].HasField("finished")
