"""A request of this process to its own application: what answers a client answers a batch's line, with nothing in
between."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerAnswer:
    """`body` is the answer's JSON."""

    status: int
    request_id: str
    body: Any


class Call(Protocol):
    async def __call__(self, url: str, body: bytes, headers: Mapping[str, str]) -> InnerAnswer:
        """POSTs a JSON body. Cancellation ends the request as a client's disconnect would."""
        ...


def caller(app: ASGIApp) -> Call:
    async def call(url: str, body: bytes, headers: Mapping[str, str]) -> InnerAnswer:
        exchange = _Exchange(body)
        await app(_scope(url, body, headers), exchange.receive, exchange.send)
        return exchange.answer()

    return call


class _Exchange:
    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._status = 0
        self._headers = Headers()
        self._answer = bytearray()

    async def receive(self) -> Message:
        if self._body is None:
            # The client stays; whoever watches for its disconnect is cancelled in the end.
            await asyncio.get_running_loop().create_future()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = Headers(raw=message["headers"])
        else:
            self._answer += message.get("body", b"")

    def answer(self) -> InnerAnswer:
        request_id = self._headers.get("x-request-id", "")
        return InnerAnswer(status=self._status, request_id=request_id, body=orjson.loads(self._answer))


def _scope(url: str, body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    sent = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": url,
        "raw_path": url.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in sent.items()],
        "client": None,
        "server": None,
    }
