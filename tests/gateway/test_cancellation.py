"""Clients that leave, wait, or read slowly."""

import asyncio
import json
import socket

import httpx
import pytest
from starlette.types import Message

from gateway.answers import stream
from gateway.answers.lifecycle import Lifecycle
from tests.support.gateway_server import MODEL_NAME, GatewayServer
from tests.support.scripted_engine import finished, tokens

pytestmark = pytest.mark.asyncio(loop_scope="module")
BODY = {"model": MODEL_NAME, "prompt": "x"}


async def endless(request):
    position = 0
    while True:
        for choice in range(request.n):
            yield tokens(choice, position, [100 + position % 50])
        position += 1
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("prompts", [["x"], ["x", "y", "z"]])
async def test_leaving_a_stream_cancels_within_a_step(gateway: GatewayServer, prompts: list[str]):
    gateway.engine.script = endless
    async with gateway.http.stream(
        "POST", "/v1/completions", json=BODY | {"stream": True, "prompt": prompts}
    ) as response:
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                break
    await gateway.engine.until(lambda: len(gateway.engine.closed) == len(prompts), timeout_s=0.5)
    await idle(gateway)


async def test_leaving_while_waiting_for_a_whole_answer_cancels(gateway: GatewayServer):
    gateway.engine.script = endless
    with pytest.raises(httpx.ReadTimeout):
        await gateway.http.post("/v1/completions", json=BODY | {"n": 2}, timeout=0.2)
    await gateway.engine.until(lambda: len(gateway.engine.closed) == 1, timeout_s=0.5)
    await idle(gateway)


async def test_leaving_before_the_first_token_cancels(gateway: GatewayServer):
    gateway.engine.script = silence
    with pytest.raises(httpx.ReadTimeout):
        await gateway.http.post("/v1/completions", json=BODY | {"stream": True}, timeout=0.2)
    await gateway.engine.until(lambda: len(gateway.engine.closed) == 1, timeout_s=0.5)
    await idle(gateway)


async def test_an_answer_that_ended_cancels_nothing(gateway: GatewayServer):
    async def script(_request):
        yield tokens(0, 0, [100])
        yield finished(0, 1)

    gateway.engine.script = script
    for streamed in (False, True):
        await gateway.complete(stream=streamed)
    await asyncio.sleep(0.05)
    assert gateway.engine.closed == []
    assert gateway.engine.cancelled == {}


async def test_a_hundred_disconnects_leave_nothing_behind(gateway: GatewayServer):
    gateway.engine.script = endless

    async def leave() -> None:
        async with gateway.http.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as response:
            await anext(response.aiter_lines())

    await asyncio.gather(*(leave() for _ in range(100)))
    await gateway.engine.until(lambda: len(gateway.engine.closed) == 100)
    await idle(gateway)


async def test_pings_while_waiting(gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream, "PING_INTERVAL_S", 0.05)

    async def script(_request):
        await asyncio.sleep(0.18)
        yield tokens(0, 0, [100])
        yield finished(0, 1)

    gateway.engine.script = script
    response = await gateway.complete(stream=True)
    pings = response.text.split("data:", 1)[0]
    assert pings in (": ping\n\n" * 3, ": ping\n\n" * 2)
    stream_of_official_client = await gateway.openai.completions.create(model=MODEL_NAME, prompt="x", stream=True)
    chunks = [chunk async for chunk in stream_of_official_client]
    assert chunks[-1].choices[0].finish_reason == "length"


async def test_a_slow_reader_holds_nobody_up_and_loses_nothing(gateway: GatewayServer):
    num_tokens = 60_000
    produced = 0

    async def script(request):
        nonlocal produced
        if request.sampling.max_tokens == 1:
            yield tokens(0, 0, [100])
            yield finished(0, 1)
            return
        while produced < num_tokens:
            yield tokens(0, produced, range(100, 200))
            produced += 100
        yield finished(0, num_tokens)

    gateway.engine.script = script
    body = json.dumps(BODY | {"stream": True, "stream_options": {"include_usage": True}}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    with socket.socket() as client:
        # Small kernel buffers, so that they are soon full.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", gateway.port))
        client.sendall(head.encode() + b"\r\nconnection: close\r\n\r\n" + body)
        await gateway.engine.until(lambda: len(gateway.engine.requests) == 1)
        async with asyncio.timeout(5):
            while produced < num_tokens:
                assert (await gateway.complete(max_tokens=1)).status_code == 200
        assert gateway.lifecycle.num_running == 1
        answer = await asyncio.to_thread(read_all, client)
    usage = json.loads(answer.split(b"data: ")[-2].partition(b"\r\n")[0])["usage"]
    assert usage["completion_tokens"] == num_tokens
    await idle(gateway)


def read_all(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65536), b""))


async def silence(_request):
    await asyncio.sleep(60)
    yield


async def idle(gateway: GatewayServer) -> None:
    async with asyncio.timeout(1):
        while gateway.lifecycle.num_running:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_watch_that_fails_ends_its_generation_with_the_reason():
    lifecycle = Lifecycle()

    async def receive() -> Message:
        raise OSError("the connection broke")

    with pytest.raises(OSError, match="the connection broke"):
        async with lifecycle.running(receive):
            await asyncio.Event().wait()
    assert lifecycle.num_running == 0
