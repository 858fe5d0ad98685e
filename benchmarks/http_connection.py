"""How does the client talk HTTP while using next to no CPU? It shares the cores with the server it measures.

While a request runs, each read of the socket is only stamped with its time and kept; what the bytes
say is worked out after the round (`completions.py`). Framing is httptools' C parser.
"""

import asyncio
import ssl
import time
from dataclasses import dataclass
from typing import Self, cast
from urllib.parse import urlsplit

import httptools

from benchmarks.errors import BenchmarkError


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where an OpenAI-compatible server is: `prefix` is what its URL has before `/v1`."""

    host: str
    port: int
    tls: bool
    prefix: str = ""
    api_key: str | None = None

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> Self:
        """Raises: BenchmarkError if it is no HTTP URL."""
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        try:
            port = parts.port or (443 if tls else 80)
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or not port:
            raise BenchmarkError(f"--url must be http://HOST:PORT or https://HOST:PORT, not {url!r}")
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(host=parts.hostname, port=port, tls=tls, prefix=prefix, api_key=api_key)

    def encode(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The bytes of a whole request, made before the clock starts."""
        lines = [
            f"{method} {self.prefix}{path} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        if self.api_key:
            lines.append(f"Authorization: Bearer {self.api_key}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and its response: `reads` holds the body as it arrived. Times are `time.perf_counter()` seconds."""

    sent_s: float
    status: int
    reads: tuple[tuple[float, bytes], ...]

    @property
    def body(self) -> bytes:
        return b"".join(data for _, data in self.reads)


class StaleConnection(BenchmarkError):
    """The server had closed a kept-alive connection before it read the next request: it has to be sent again."""


class HttpConnection(asyncio.Protocol):
    """A kept-alive HTTP/1.1 connection that carries one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[Exchange] | None = None
        self._reads: list[tuple[float, bytes]] = []
        self._sent_s = self._read_s = 0.0
        self._num_exchanges = 0

    @classmethod
    async def open(cls, endpoint: Endpoint) -> Self:
        """Raises: BenchmarkError if nothing listens there."""
        context = ssl.create_default_context() if endpoint.tls else None
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(cls, endpoint.host, endpoint.port, ssl=context)
        except OSError as error:
            raise BenchmarkError(f"cannot connect to {endpoint.host}:{endpoint.port}: {error}") from error
        return connection

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes) -> Exchange:
        """Sends an encoded request and waits for the end of its response.

        Raises: BenchmarkError if the connection breaks or the answer is not HTTP, StaleConnection if it broke after
        an earlier exchange and before any answer.
        """
        assert self._transport is not None, "open() returns connected connections"
        assert self._done is None, "one request at a time"
        self._reads = []
        self._done = asyncio.get_running_loop().create_future()
        self._sent_s = time.perf_counter()
        self._read_s = 0.0
        self._transport.write(request)
        try:
            return await self._done
        finally:
            self._done = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._read_s = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"the server's answer is not HTTP/1.1: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        is_stale = self._num_exchanges > 0 and self._read_s == 0.0
        self._fail("the server closed the connection before its answer was complete", stale=is_stale)

    def on_body(self, data: bytes) -> None:
        self._reads.append((self._read_s, data))

    def on_message_complete(self) -> None:
        if self._done is not None and not self._done.done():
            status = self._parser.get_status_code()
            self._num_exchanges += 1
            self._done.set_result(Exchange(sent_s=self._sent_s, status=status, reads=tuple(self._reads)))
        if not self._parser.should_keep_alive():
            self.close()

    def _fail(self, message: str, *, stale: bool = False) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(StaleConnection(message) if stale else BenchmarkError(message))
