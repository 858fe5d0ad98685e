"""Sessions over real gRPC: columns, refusals, cancels, ends of the call, and the client that shares one."""

import asyncio
import re
import struct
import subprocess
import sys
import time
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from pageloom import wire
from pageloom.client import EngineClient
from pageloom.errors import (
    ContextLengthExceeded,
    DuplicateRequest,
    EngineError,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from pageloom.outputs import (
    ChoiceFinished,
    FinishReason,
    GenerateEvent,
    PromptLogprobs,
    TokenLogprobs,
    TokensGenerated,
)
from pageloom.requests import EngineInfo, GenerateRequest
from pageloom.rpc.v1 import engine_pb2, engine_pb2_grpc
from pageloom.rpc_channel import create_server, open_channel
from pageloom.sampling_params import SamplingParams
from pageloom.timeline import Run, Timeline, Wait, WaitReason
from scheduler_svc import session_outbox
from scheduler_svc.engine_service import EngineService
from scheduler_svc.outbox import Reader
from scheduler_svc.session_outbox import SessionOutbox
from tests.support.paper_model import PAPER_MODEL
from tests.support.puppet_driver import PuppetDriver, engine_server

SCORED = TokenLogprobs(-1.0, (5,), (-1.0,))


def scores(first_index: int, count: int) -> PromptLogprobs:
    return PromptLogprobs(
        first_index=first_index,
        logprobs=tuple(-float(first_index + row) for row in range(count)),
        ranks=(1,) * count,
        top_token_ids=(5,) * count,
        top_logprobs=(-1.0,) * count,
    )


def request(name: str = "r", **fields: Any) -> GenerateRequest:
    return GenerateRequest(
        **{"request_id": name, "prompt_token_ids": (1, 2), "sampling": SamplingParams(max_tokens=9), **fields}
    )


def start(stream_id: int, name: str = "r", **fields: Any) -> engine_pb2.SessionRequest:
    return wire.start_stream_to_proto(stream_id, request(name, **fields))


def ended(choice: int, count: int) -> ChoiceFinished:
    return ChoiceFinished(choice_index=choice, reason=FinishReason.LENGTH, num_output_tokens=count, num_cached_tokens=0)


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 -- what is awaited is another task's progress
            await asyncio.sleep(0.002)


@pytest.fixture
def driver() -> PuppetDriver:
    return PuppetDriver()


@pytest.fixture
async def address(driver: PuppetDriver):
    async with engine_server(driver) as address:
        yield address


@pytest.fixture
async def client(address: str):
    async with EngineClient(address) as client:
        yield client


@pytest.fixture
async def call(address: str):
    """A session without our client."""
    async with open_channel(address) as channel:
        yield cast("Any", engine_pb2_grpc.EngineStub(channel)).Session()


async def read(call: Any) -> wire.SessionEvents:
    return wire.session_response_from_proto(await call.read())


def reading(client: EngineClient, asked: GenerateRequest) -> asyncio.Task[list[GenerateEvent]]:
    async def read() -> list[GenerateEvent]:
        return [event async for event in client.generate(asked)]

    return asyncio.create_task(read())


class TestOutbox:
    """What a message takes, without a network."""

    def events(self, outbox: SessionOutbox) -> wire.SessionEvents:
        message = outbox.next_message()
        assert message is not None
        return wire.session_response_from_proto(message)

    def test_a_step_is_one_message_and_what_piles_up_is_joined(self):
        outbox = SessionOutbox()
        streams = [outbox.stream(stream_id, 2, lambda: None) for stream_id in (7, 8)]
        for position in range(3):
            streams[0].put_token(0, position, 10 + position, None)
        streams[1].put_token(1, 4, 20, SCORED)
        streams[0].put_finished(ended(0, 3))
        scored, tokens, finished, refused = self.events(outbox)
        assert [tuple(entry) for entry in tokens] == [(7, 0, 0, (10, 11, 12), ()), (8, 1, 4, (20,), (SCORED,))]
        assert finished == [(7, ended(0, 3))]
        assert (scored, refused) == ([], [])
        assert outbox.next_message() is None
        streams[1].put_token(1, 5, 21, SCORED)
        assert [tuple(entry) for entry in self.events(outbox).tokens] == [(8, 1, 5, (21,), (SCORED,))]

    def test_messages_stay_small_and_no_end_overtakes_its_tokens(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(session_outbox, "MAX_TOKENS_PER_MESSAGE", 4)
        monkeypatch.setattr(session_outbox, "MAX_ENDS_PER_MESSAGE", 1)
        outbox = SessionOutbox()
        streams = [outbox.stream(stream_id, 1, lambda: None) for stream_id in range(3)]
        counts = (3, 6, 1)
        for stream_id, count in enumerate(counts):
            for position in range(count):
                streams[stream_id].put_token(0, position, 100 * stream_id + position, SCORED)
            streams[stream_id].put_finished(ended(0, count))
        tokens: dict[int, list[int]] = {stream_id: [] for stream_id in range(3)}
        ends = []
        while (message := outbox.next_message()) is not None:
            assert len(message.token_ids) <= 4
            assert len(message.logprobs) == len(message.token_ids)
            events = wire.session_response_from_proto(message)
            for entry in events.tokens:
                assert entry.first_index == len(tokens[entry.stream_id])
                tokens[entry.stream_id] += entry.token_ids
            for stream_id, _ in events.finished:
                assert len(tokens[stream_id]) == counts[stream_id]
                ends.append(stream_id)
        assert tokens == {stream_id: [100 * stream_id + i for i in range(n)] for stream_id, n in enumerate(counts)}
        assert ends == [0, 1, 2]

    def test_scores_of_prompts_come_first_and_in_small_messages(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(session_outbox, "MAX_SCORED_TOKENS_PER_MESSAGE", 8)
        outbox = SessionOutbox()
        streams = [outbox.stream(stream_id, 1, lambda: None) for stream_id in range(2)]
        for part in (scores(1, 5), scores(6, 3), scores(9, 30)):
            streams[0].put_prompt_logprobs(part)
        streams[1].put_token(0, 0, 7, None)
        streams[0].put_token(0, 0, 8, None)
        streams[0].put_finished(ended(0, 1))
        first, second = self.events(outbox), self.events(outbox)
        assert first == ([(0, scores(1, 5)), (0, scores(6, 3))], [], [], [])
        assert second.prompt_logprobs == [(0, scores(9, 30))]
        assert [entry.token_ids for entry in second.tokens] == [(7,), (8,)]
        assert second.finished == [(0, ended(0, 1))]
        assert outbox.next_message() is None

    def test_a_token_costs_little(self):
        """The driver gives out up to a thousand of them between two steps."""
        outbox = SessionOutbox()
        streams = [outbox.stream(stream_id, 1, lambda: None) for stream_id in range(256)]
        best_s = float("inf")
        for step in range(50):
            started_s = time.perf_counter()
            for stream in streams:
                stream.put_token(0, step, 12345, None)
            best_s = min(best_s, time.perf_counter() - started_s)
            outbox.next_message()
        assert best_s / len(streams) < 1e-6 or sys.gettrace() is not None


async def test_a_step_of_many_requests_is_one_message(driver: PuppetDriver, call: Any):
    for stream_id in range(256):
        await call.write(start(stream_id, f"r{stream_id}"))
    await until(lambda: len(driver.readers) == 256)
    for step in range(3):
        driver.step(step, 40_000 + step)
        message = await call.read()
        assert list(message.stream_ids) == list(range(256))
        assert not message.num_tokens
        assert not message.choice_indexes
        assert set(message.first_indexes) == {step}
        assert set(message.token_ids) == {40_000 + step}
        assert message.ByteSize() < 256 * 8
    driver.finish("r7", 3)
    events = await read(call)
    assert events.finished == [(7, ended(0, 3))]
    assert driver.closed == ["r7"], "its id is free before its client knows of the end"


async def test_a_refusal_ends_one_request_and_not_the_session(driver: PuppetDriver, call: Any):
    await call.write(start(1, "good"))
    await call.write(start(2, "good"))
    (refusal,) = (await read(call)).refused
    assert refusal.stream_id == 2
    assert isinstance(refusal.error, DuplicateRequest)
    assert refusal.error.param == "request_id"
    await call.write(engine_pb2.SessionRequest(start=engine_pb2.StartStream(stream_id=3)))
    (refusal,) = (await read(call)).refused
    assert (refusal.stream_id, refusal.error.param) == (3, "request_id")
    driver.step(0, 5)
    assert [tuple(entry) for entry in (await read(call)).tokens] == [(1, 0, 0, (5,), ())]


@pytest.mark.parametrize(
    ("message", "words"),
    [(start(1, "again"), "stream_id 1 is open already"), (engine_pb2.SessionRequest(), "start or cancel")],
    ids=["duplicate stream_id", "empty message"],
)
async def test_breaking_the_protocol_ends_the_session(
    driver: PuppetDriver, call: Any, message: engine_pb2.SessionRequest, words: str
):
    await call.write(start(1, "a"))
    await call.write(message)
    assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in await call.details()
    await until(lambda: driver.closed == ["a"])


async def test_the_end_of_the_call_closes_all_its_requests(driver: PuppetDriver, call: Any):
    for stream_id in range(20):
        await call.write(start(stream_id, f"r{stream_id}"))
    await until(lambda: len(driver.readers) == 20)
    driver.step(0, 1)
    call.cancel()
    await until(lambda: not driver.readers)
    assert len(driver.closed) == 20


async def test_a_client_that_has_no_more_requests_still_gets_its_answers(driver: PuppetDriver, call: Any):
    await call.write(start(1))
    await call.done_writing()
    await until(lambda: driver.readers)
    await asyncio.sleep(0.02)
    driver.step(0, 5)
    driver.finish("r", 1)
    responses = [wire.session_response_from_proto(message) async for message in call]
    assert [entry.token_ids for events in responses for entry in events.tokens] == [(5,)]
    assert responses[-1].finished == [(1, ended(0, 1))]
    assert await call.code() is grpc.StatusCode.OK


async def test_cancels_name_choices_or_all_and_may_come_late(driver: PuppetDriver, call: Any):
    await call.write(start(1, n=2))
    await call.write(wire.cancel_stream_to_proto(1, (1,)))
    await call.write(wire.cancel_stream_to_proto(99))
    ((_, event),) = (await read(call)).finished
    assert (event.choice_index, event.reason) == (1, FinishReason.CANCELLED)
    assert driver.cancelled == [("r", (1,))]
    driver.finish("r", 0)
    await read(call)
    await call.write(wire.cancel_stream_to_proto(1))
    await call.write(start(1, "next"))
    await until(lambda: driver.readers)
    assert driver.cancelled == [("r", (1,))]


async def test_who_does_not_read_is_not_read_either(driver: PuppetDriver, call: Any):
    """Else the ends of ever more requests would have to be kept for a client that never takes them."""
    driver.refusal = Overloaded("x" * 1000)

    async def flood() -> None:
        for stream_id in range(5_000):
            await call.write(start(stream_id, f"r{stream_id}"))

    flooding = asyncio.create_task(flood())
    before = -1
    async with asyncio.timeout(10):
        while driver.num_submits != before:
            before = driver.num_submits
            await asyncio.sleep(0.2)
    assert 1_024 <= driver.num_submits < 3_000
    stream_ids: list[int] = []
    async with asyncio.timeout(10):
        while len(stream_ids) < 5_000:
            stream_ids += [stream_id for stream_id, _ in (await read(call)).refused]
    assert stream_ids == list(range(5_000))
    await flooding


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("top_k is odd", param="top_k"), InvalidRequest),
        (ContextLengthExceeded("too long", param="max_tokens"), ContextLengthExceeded),
        (DuplicateRequest("runs", param="request_id"), DuplicateRequest),
        (Overloaded("full"), Overloaded),
        (Unavailable("no worker"), Unavailable),
        (EngineError("broken"), EngineError),
    ],
)
async def test_refusals_reach_the_caller_as_they_are(
    driver: PuppetDriver, client: EngineClient, error: Any, kind: type[Any]
):
    driver.refusal = error
    with pytest.raises(kind) as caught:
        await reading(client, request())
    assert type(caught.value) is kind
    assert (caught.value.message, caught.value.param) == (error.message, error.param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"request_id": ""}, "request_id"),
        ({"request_id": "x" * 257}, "request_id"),
        ({"tenant": "x" * 257}, "tenant"),
        ({"deadline_s": 0.0}, "deadline_s"),
        ({"deadline_s": -1.0}, "deadline_s"),
        ({"deadline_s": float("nan")}, "deadline_s"),
        ({"deadline_s": float("inf")}, "deadline_s"),
        ({"prompt_token_ids": (2**31,) * 4_000_000}, "prompt_token_ids"),
    ],
    ids=["no id", "long id", "long tenant", "0 s", "negative", "nan", "infinite", "too large a message"],
)
async def test_bad_fields_are_named(driver: PuppetDriver, client: EngineClient, fields: dict[str, Any], param: str):
    running = reading(client, request("other"))
    await until(lambda: driver.readers)
    with pytest.raises(InvalidRequest) as caught:
        await reading(client, request(**fields))
    assert caught.value.param == param
    driver.finish("other", 0)
    assert await running == [ended(0, 0)]


async def test_an_unexpected_error_is_one_request_s_own(driver: PuppetDriver, client: EngineClient):
    running = reading(client, request("other"))
    await until(lambda: driver.readers)
    driver.refusal = ZeroDivisionError("secret")
    with pytest.raises(EngineError, match="internal error"):
        await reading(client, request())
    driver.finish("other", 0)
    assert await running == [ended(0, 0)]


async def test_one_session_serves_all_requests_of_a_client(driver: PuppetDriver, client: EngineClient):
    tasks = [reading(client, request(f"r{index}", n=2)) for index in range(50)]
    await until(lambda: len(driver.readers) == 50)
    for step in range(4):
        driver.step(step, step)
        await asyncio.sleep(0.005)
    for index in range(50):
        driver.readers[f"r{index}"].put_token(1, 0, index, SCORED)
        driver.finish(f"r{index}", 4)
        driver.finish(f"r{index}", 1, choice_index=1)
    for index, task in enumerate(tasks):
        events = await task
        first = [e for e in events if isinstance(e, TokensGenerated) and e.choice_index == 0]
        assert [token for event in first for token in event.token_ids] == [0, 1, 2, 3]
        assert events[-3:] == [
            TokensGenerated(choice_index=1, first_index=0, token_ids=(index,), logprobs=(SCORED,)),
            ended(0, 4),
            ended(1, 1),
        ]
    assert sorted(driver.closed) == sorted(f"r{index}" for index in range(50))


async def test_scores_of_a_prompt_reach_their_request(driver: PuppetDriver, client: EngineClient):
    tasks = [reading(client, request(name)) for name in ("r", "other")]
    await until(lambda: len(driver.readers) == 2)
    driver.score("r", scores(1, 3))
    driver.score("r", scores(4, 2))
    driver.step(0, 5)
    for name in ("r", "other"):
        driver.finish(name, 1)
    events, others = [await task for task in tasks]
    parts = [event for event in events if isinstance(event, PromptLogprobs)]
    assert parts == events[: len(parts)] == [scores(1, 3), scores(4, 2)]
    assert len(events) == 4
    assert not any(isinstance(event, PromptLogprobs) for event in others)


async def test_leaving_a_generator_cancels_and_the_id_is_free_again(driver: PuppetDriver, client: EngineClient):
    for _ in range(2):
        async with aclosing(client.generate(request(n=3))) as events:
            waiting = asyncio.ensure_future(anext(events))
            await until(lambda: driver.readers)
            driver.step(0, 5)
            await waiting
        await until(lambda: not driver.readers)
    assert driver.cancelled == [("r", ()), ("r", ())]
    assert driver.closed == ["r", "r"]


async def test_a_generator_that_ended_cancels_nothing(driver: PuppetDriver, client: EngineClient):
    async with aclosing(client.generate(request())) as events:
        waiting = asyncio.ensure_future(anext(events))
        await until(lambda: driver.readers)
        driver.step(0, 5)
        driver.finish("r", 1)
        await waiting
    await reading_of_nothing(client)
    assert driver.cancelled == []


async def reading_of_nothing(client: EngineClient) -> None:
    """A round trip, after which what was sent before has arrived."""
    assert await client.timelines("unknown") is None


async def test_cancels_go_over_the_session_if_the_request_does(driver: PuppetDriver, client: EngineClient):
    running = reading(client, request(n=2))
    await until(lambda: driver.readers)
    cancelling = client.cancel("r", (1,))
    with pytest.raises(StopIteration):
        # A call of its own would have to be waited for.
        cancelling.send(None)
    await until(lambda: driver.cancelled)
    driver.finish("r", 0)
    assert [event.reason for event in await running if isinstance(event, ChoiceFinished)] == [
        FinishReason.CANCELLED,
        FinishReason.LENGTH,
    ]
    await client.cancel("of another client", (2,))
    assert driver.cancelled == [("r", (1,)), ("of another client", (2,))]


async def test_a_session_that_breaks_fails_its_requests_and_is_opened_again():
    driver = PuppetDriver()
    async with engine_server(driver) as address:
        port = int(address.rpartition(":")[2])
        client = EngineClient(address)
        tasks = [reading(client, request(f"r{index}")) for index in range(3)]
        await until(lambda: len(driver.readers) == 3)
    async with client:
        for task in tasks:
            with pytest.raises(Unavailable, match="cannot be reached"):
                await task
        with pytest.raises(Unavailable):
            await reading(client, request())
        driver = PuppetDriver()
        async with engine_server(driver, port):
            async with asyncio.timeout(10):
                while not driver.readers:
                    running = reading(client, request())
                    # The channel pauses between its attempts to connect.
                    while not (driver.readers or running.done()):  # noqa: ASYNC110 -- polled as above
                        await asyncio.sleep(0.01)
            driver.finish("r", 0)
            assert await running == [ended(0, 0)]


async def test_a_message_that_makes_no_sense_leaves_nobody_waiting():
    class Nonsense(EngineService):
        async def Session(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
            await anext(request_iterator)
            await context.write(engine_pb2.SessionResponse(stream_ids=[1], token_ids=[2, 3]))
            await asyncio.Event().wait()

    server = create_server()
    engine_pb2_grpc.add_EngineServicer_to_server(Nonsense(PuppetDriver()), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with EngineClient(f"127.0.0.1:{port}") as client:
        with pytest.raises(Unavailable, match="makes no sense"):
            await reading(client, request())
    await server.stop(None)


async def test_closing_the_client_ends_what_it_reads_and_leaves_no_task(driver: PuppetDriver, address: str):
    before = asyncio.all_tasks()
    async with EngineClient(address) as client:
        running = reading(client, request())
        await until(lambda: driver.readers)
    with pytest.raises(Unavailable, match="closed"):
        await running
    await until(lambda: not driver.readers)
    left_over = {task for task in asyncio.all_tasks() - before if "engine session" in task.get_name()}
    assert not left_over


async def test_closing_the_client_before_the_session_has_begun(address: str):
    async with EngineClient(address) as client:
        running = reading(client, request())
        await asyncio.sleep(0)
    for late in (running, reading(client, request())):
        with pytest.raises(Unavailable, match="closed"):
            await asyncio.wait_for(late, 5)


async def test_timelines_and_the_drain_of_a_worker(driver: PuppetDriver, client: EngineClient):
    driver.known_timelines["r"] = (Timeline(waits=(), runs=(), first_token_s=0.5), Timeline(waits=(), runs=()))
    assert await client.timelines("r") == driver.known_timelines["r"]
    assert await client.timelines("other") is None
    # What is quoted in a status has to fit its metadata.
    assert await client.timelines("x" * 100_000) is None
    assert await client.drain_worker("known", 2.5)
    assert not await client.drain_worker("unknown")
    assert driver.drained == [("known", 2.5), ("unknown", None)]
    assert not await client.drain_worker("x" * 100_000)
    with pytest.raises(InvalidRequest) as caught:
        await client.drain_worker("known", -1.0)
    assert caught.value.param == "timeout_s"


class PromptDriver(PuppetDriver):
    """Answers every request at once, with two tokens or with a vector."""

    def info(self) -> EngineInfo:
        return replace(super().info(), model=PAPER_MODEL)

    def submit(self, request: GenerateRequest, reader: Reader) -> None:
        super().submit(request, reader)
        asyncio.get_running_loop().call_soon(self._answer, request, reader)

    def _answer(self, request: GenerateRequest, reader: Reader) -> None:
        if request.pooling is not None:
            assert request.pooling is PAPER_MODEL.pooling
            reader.put_finished(replace(ended(0, 0), embedding=struct.pack("<2f", 3, 4)))
            return
        timeline = Timeline(
            waits=(Wait(reason=WaitReason.SLOTS, start_s=0.0, behind_request_ids=("other",)),),
            runs=(Run(worker_id="w", start_s=0.25),),
            first_token_s=0.5,
        )
        self.known_timelines[request.request_id] = (timeline,)
        reader.put_token(0, 0, 260, None)
        reader.put_token(0, 1, 30, None)
        reader.put_finished(replace(ended(0, 2), timeline=timeline if request.include_timeline else None))


async def test_the_examples_of_the_docs_run():
    text = (Path(__file__).parents[2] / "docs/grpc.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 6
    driver = PromptDriver()
    async with engine_server(driver) as address:
        code = "\n".join(examples).replace("127.0.0.1:50051", address)
        command = [sys.executable, "-c", code]
        result = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30)
    assert result.stdout.splitlines() == [
        "0 [260, 30]",
        "FINISH_REASON_LENGTH 2",
        "1 FINISH_REASON_LENGTH [260, 30] 0.500 s to the first",
        "2 FINISH_REASON_LENGTH [260, 30] 0.500 s to the first",
        "[260, 30]",
        "ends with FINISH_REASON_LENGTH",
        "2 [0.6, 0.8]",
        "0.000 s: waited WAIT_REASON_SLOTS ['other']",
        "0.250 s: ran on w, 0 steps, 0 held",
        "['known']",
    ], result.stderr
    assert driver.drained == [("known", 10.0)]
