"""The client of `pageloom run-batch` before servers that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from pageloom.batch_client import MAX_TRIES, BatchClient
from pageloom.batch_lines import LineRequest
from tests.support.serving import free_port

REQUEST = LineRequest(custom_id="a", url="/v1/completions", body={"prompt": "Hi"})


@asynccontextmanager
async def server(*answers: bytes) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """Gives one answer for each connection, the last again and again; b"" closes it without one."""
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answers[min(len(heads), len(answers)) - 1])
        await writer.drain()
        writer.close()

    running = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with running:
        yield f"http://127.0.0.1:{running.sockets[0].getsockname()[1]}/v1/", heads


def http(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pageloom.batch_client._FIRST_PAUSE_S", 0.0)


async def test_what_passes_is_tried_again():
    good = http(200, b'{"usage": {"completion_tokens": 7}}')
    answers = (http(503, b"{}"), http(429, b"{}"), b"", good)
    async with server(*answers) as (url, heads), BatchClient(url, "secret", is_local=True) as client:
        answer = await client.ask(REQUEST)
    assert answer.succeeded
    assert answer.num_tokens == 7
    assert len(heads) == 4
    assert all(head.startswith(b"POST /v1/completions HTTP/1.1\r\n") for head in heads)
    assert b"authorization: Bearer secret" in heads[0].replace(b"Authorization", b"authorization")


async def test_an_error_is_an_answer():
    async with server(http(400, b"<html>no</html>")) as (url, heads), BatchClient(url, None, is_local=True) as client:
        answer = await client.ask(REQUEST)
    assert len(heads) == 1
    assert not answer.succeeded
    assert answer.response == {"status_code": 400, "request_id": "", "body": "<html>no</html>"}


async def test_it_gives_up_in_the_end():
    async with server(http(503, b'"full"')) as (url, heads), BatchClient(url, None, is_local=True) as client:
        answer = await client.ask(REQUEST)
    assert len(heads) == MAX_TRIES
    assert answer.response is not None
    assert answer.response["body"] == "full"


async def test_nobody_there():
    async with BatchClient(f"http://127.0.0.1:{free_port()}", None, is_local=True) as client:
        answer = await client.ask(REQUEST)
    assert answer.response is None
    assert "cannot be reached" in answer.failure
