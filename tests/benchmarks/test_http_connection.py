"""A kept-alive connection that the server gives up without a word."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from benchmarks.errors import BenchmarkError
from benchmarks.http_connection import Endpoint, HttpConnection, StaleConnection

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest_asyncio.fixture
async def endpoint() -> AsyncGenerator[Endpoint]:
    """Answers the first request of a connection for /once, and closes it at the next one."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"/once" in await reader.readuntil(b"\r\n\r\n"):
            writer.write(ANSWER)
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield Endpoint.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")


async def test_a_request_that_it_no_longer_read_may_be_sent_again(endpoint: Endpoint):
    connection = await HttpConnection.open(endpoint)
    assert (await connection.exchange(endpoint.encode("GET", "/once"))).body == b"ok"
    with pytest.raises(StaleConnection):
        await connection.exchange(endpoint.encode("GET", "/once"))


async def test_the_first_request_may_not(endpoint: Endpoint):
    connection = await HttpConnection.open(endpoint)
    with pytest.raises(BenchmarkError) as caught:
        await connection.exchange(endpoint.encode("GET", "/never"))
    assert not isinstance(caught.value, StaleConnection)
