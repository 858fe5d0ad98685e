"""A Generate call of its own: one message for each choice and step, joined when its client is slow."""

import asyncio

import grpc
import pytest

from pageloom import wire
from pageloom.errors import Overloaded
from pageloom.outputs import ChoiceFinished, FinishReason, PromptLogprobs, TokenLogprobs, TokensGenerated
from pageloom.requests import GenerateRequest
from pageloom.rpc.v1 import engine_pb2_grpc
from pageloom.sampling_params import SamplingParams
from scheduler_svc.outbox import Outbox
from tests.support.puppet_driver import PuppetDriver, engine_server

REQUEST = wire.generate_request_to_proto(
    GenerateRequest(request_id="r", prompt_token_ids=(1, 2), sampling=SamplingParams(), n=2)
)


async def test_tokens_become_events_that_are_joined_until_taken():
    outbox = Outbox(2)
    scored = TokenLogprobs(-1.0, (5,), (-1.0,))
    outbox.put_token(1, 0, 5, scored)
    outbox.put_token(0, 0, 6, None)
    outbox.put_token(1, 1, 5, scored)
    assert await outbox.take() == [
        TokensGenerated(choice_index=1, first_index=0, token_ids=(5, 5), logprobs=(scored, scored)),
        TokensGenerated(choice_index=0, first_index=0, token_ids=(6,)),
    ]


async def test_a_call_ends_after_the_last_choice():
    driver = PuppetDriver()
    async with engine_server(driver) as address, grpc.aio.insecure_channel(address) as channel:
        call = engine_pb2_grpc.EngineStub(channel).Generate(REQUEST)
        reading = asyncio.create_task(read_all(call))
        while "r" not in driver.readers:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        scores = PromptLogprobs(first_index=1, logprobs=(-1.5,), ranks=(2,), top_token_ids=(7,), top_logprobs=(-0.5,))
        driver.score("r", scores)
        driver.step(0, 8)
        driver.finish("r", 0, choice_index=1)
        driver.step(1, 9)
        driver.finish("r", 2)
        scored, *tokens, first, last = await reading
        assert scored == scores
        assert isinstance(first, ChoiceFinished)
        assert isinstance(last, ChoiceFinished)
        assert (first.choice_index, last.choice_index, last.reason) == (1, 0, FinishReason.LENGTH)
        assert [token for event in tokens for token in event.token_ids] == [8, 9]
        assert driver.closed == ["r"]


async def test_leaving_and_refusals():
    driver = PuppetDriver()
    async with engine_server(driver) as address, grpc.aio.insecure_channel(address) as channel:
        engine = engine_pb2_grpc.EngineStub(channel)
        call = engine.Generate(REQUEST)
        while "r" not in driver.readers:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        call.cancel()
        async with asyncio.timeout(5):
            while driver.closed != ["r"]:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        driver.refusal = Overloaded("full")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_all(engine.Generate(REQUEST))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def read_all(call):
    return [wire.event_from_proto(event) async for event in call]
