"""A request's grammar is compiled at the workers before it is queued: who waits, who is refused, who leaves."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from pageloom import wire
from pageloom.client import EngineClient
from pageloom.errors import InvalidRequest, Overloaded
from pageloom.grammar_limits import MAX_GRAMMARS_PREPARING
from pageloom.outputs import ChoiceFinished, FinishReason
from pageloom.requests import GenerateRequest
from pageloom.rpc.v1 import engine_pb2_grpc
from pageloom.rpc_channel import open_channel
from pageloom.sampling_params import SamplingParams
from scheduler_svc import grammar_questions
from scheduler_svc.grammar_questions import GrammarQuestions
from tests.scheduler.test_session import until
from tests.support.paper_stack import paper_stack
from tests.support.puppet_driver import PuppetDriver, engine_server


def request(name: str, grammar: str, **fields: Any) -> GenerateRequest:
    sampling = SamplingParams(seed=1, max_tokens=4, grammar=grammar)
    return GenerateRequest(request_id=name, prompt_token_ids=(5, 7), sampling=sampling, **fields)


@pytest.fixture
def driver() -> PuppetDriver:
    return PuppetDriver()


@pytest.fixture
async def call(driver: PuppetDriver) -> AsyncIterator[Any]:
    async with engine_server(driver) as address, open_channel(address) as channel:
        yield engine_pb2_grpc.EngineStub(channel).Session()


async def read(call: Any) -> wire.SessionEvents:
    async with asyncio.timeout(10):
        return wire.session_response_from_proto(await call.read())


def start(stream_id: int, name: str, grammar: str, **fields: Any) -> Any:
    return wire.start_stream_to_proto(stream_id, request(name, grammar, **fields))


class TestSession:
    async def test_nobody_waits_for_the_grammar_of_another(self, driver: PuppetDriver, call: Any):
        driver.may_prepare.clear()
        await call.write(start(1, "slow", "g"))
        await call.write(start(2, "plain", ""))
        await until(lambda: list(driver.requests) == ["plain"])
        assert driver.prepared == ["g"]
        driver.may_prepare.set()
        await until(lambda: list(driver.requests) == ["plain", "slow"])

    async def test_one_that_cannot_be_used_is_refused(self, driver: PuppetDriver, call: Any):
        await call.write(start(1, "r", "bad"))
        ((stream_id, error),) = (await read(call)).refused
        assert (stream_id, type(error), error.param) == (1, InvalidRequest, "grammar")
        assert not driver.num_submits
        # The session goes on, and the number is free.
        await call.write(start(1, "r", "good"))
        await until(lambda: driver.requests)

    async def test_what_is_cancelled_meanwhile_is_cancelled_then(self, driver: PuppetDriver, call: Any):
        driver.may_prepare.clear()
        await call.write(start(1, "r", "g", n=2))
        await call.write(wire.cancel_stream_to_proto(1, (1,)))
        await call.write(start(2, "after", ""))
        await until(lambda: driver.requests)
        assert not driver.cancelled
        driver.may_prepare.set()
        ((_, event),) = (await read(call)).finished
        assert (event.choice_index, event.reason) == (1, FinishReason.CANCELLED)

    async def test_a_stream_that_waits_is_open(self, driver: PuppetDriver, call: Any):
        driver.may_prepare.clear()
        await call.write(start(1, "r", "g"))
        await call.write(start(1, "again", ""))
        with pytest.raises(grpc.aio.AioRpcError, match="stream_id 1 is open already"):
            await read(call)
        driver.may_prepare.set()
        await asyncio.sleep(0.05)
        assert not driver.num_submits

    async def test_the_clients_end_of_the_call_waits_for_it(self, driver: PuppetDriver, call: Any):
        driver.may_prepare.clear()
        await call.write(start(1, "r", "g"))
        await call.done_writing()
        await until(lambda: driver.prepared)
        driver.may_prepare.set()
        await until(lambda: driver.requests)
        driver.finish("r", 0)
        assert (await read(call)).finished
        assert await call.read() == grpc.aio.EOF

    async def test_who_leaves_while_waiting_submits_nothing(self, driver: PuppetDriver, call: Any):
        driver.may_prepare.clear()
        await call.write(start(1, "r", "g"))
        await until(lambda: driver.prepared)
        call.cancel()
        await asyncio.sleep(0.05)
        driver.may_prepare.set()
        await asyncio.sleep(0.05)
        assert (driver.num_submits, driver.closed) == (0, [])


class TestWorkers:
    async def test_a_call_of_its_own_gets_a_status(self):
        async with paper_stack() as stack, stack.attached(), open_channel(stack.address) as channel:
            message = wire.generate_request_to_proto(request("r", "bad one"))
            call = engine_pb2_grpc.EngineStub(channel).Generate(message)
            with pytest.raises(grpc.aio.AioRpcError, match="bad one cannot be used") as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    async def test_all_of_many_are_answered(self):
        async with paper_stack() as stack, stack.attached():

            async def outcome(number: int) -> str:
                asked = request(f"r{number}", "bad" if number % 2 else f"g{number}")
                try:
                    return f"{len(await _reasons(stack.client, asked))} ended"
                except InvalidRequest as error:
                    return error.message

            outcomes = await asyncio.gather(*map(outcome, range(16)))
            assert outcomes == ["1 ended", "bad cannot be used"] * 8
            await stack.wait_until_idle()

    async def test_a_worker_that_is_lost_answers_nobody(self):
        async with paper_stack() as stack:
            async with stack.attached(step_s=0.3) as worker:
                asked = asyncio.create_task(_reasons(stack.client, request("r", "g")))
                await asyncio.sleep(0.1)
                worker.cancel()
                await stack.wait_for_workers(0)
            async with stack.attached("another"):
                assert len(await asyncio.wait_for(asked, 10)) == 1


async def _reasons(client: EngineClient, asked: GenerateRequest) -> list[FinishReason]:
    return [event.reason async for event in client.generate(asked) if isinstance(event, ChoiceFinished)]


class TestQuestions:
    async def test_each_grammar_is_asked_about_once_and_not_too_many_at_once(self):
        sent: list[tuple[int, str]] = []
        questions = GrammarQuestions(lambda number, grammar: sent.append((number, grammar)))
        answers = [questions.ask(str(number % 100)) for number in range(200)]
        assert len(sent) == MAX_GRAMMARS_PREPARING
        for number, grammar in sent:
            # It grows meanwhile.
            questions.take(number, f"not {grammar}")
        assert [await answer for answer in answers] == [f"not {number % 100}" for number in range(200)]
        assert len(sent) == 100
        with pytest.raises(KeyError):
            questions.take(1, "")

    async def test_they_are_bounded(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(grammar_questions, "_MAX_QUESTIONS", 2)
        questions = GrammarQuestions(lambda _number, _grammar: None)
        answers = [questions.ask(grammar) for grammar in ("a", "b", "a")]
        with pytest.raises(Overloaded):
            questions.ask("c")
        questions.end()
        assert [await answer for answer in answers] == [""] * 3
        questions.ask("c")
