"""A generation -> the HTTP response that streams it. However the response ends, the generation ends with it."""

from __future__ import annotations

import asyncio

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway import sse
from gateway.choice import ChoiceDelta
from gateway.errors import ClientDisconnected, error_body
from gateway.generation import Generation
from gateway.job import Job
from gateway.runtime import Gateway, generating, usage_of
from pageloom.errors import EngineError, PageloomError

PING_INTERVAL_S = 15.0
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Asks nginx not to collect the stream.
    (b"x-accel-buffering", b"no"),
]
_log = structlog.get_logger(__name__)


class EventStreamResponse(Response):
    """Sends status 200 with the first delta, so that what the engine refuses is still an HTTP error;
    an error after that is an event, and no [DONE] follows it."""

    def __init__(self, gateway: Gateway, job: Job, answer_id: str, encoder: sse.ChunkEncoder) -> None:
        super().__init__()
        self._gateway = gateway
        self._job = job
        self._answer_id = answer_id
        self._encoder = encoder
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with generating(self._gateway, scope, receive, self._answer_id, self._job) as generation:
                await self._relay(generation, send)
            last = self._encoder.frame.end(usage_of(self._job, generation))
        except ClientDisconnected:
            return
        except Exception as error:
            if not self._started:
                raise
            last = sse.error_event(error_body(_shown(error)))
        await self._write(send, last, more=False)

    async def _relay(self, generation: Generation, send: Send) -> None:
        while (deltas := await self._next_deltas(generation, send)) is not None:
            usage = usage_of(self._job, generation) if self._encoder.frame.include_usage else None
            events = b"".join(self._encoder.encode(delta, usage) for delta in deltas)
            if events:
                await self._write(send, events)

    async def _next_deltas(self, generation: Generation, send: Send) -> list[ChoiceDelta] | None:
        while True:
            try:
                async with asyncio.timeout(PING_INTERVAL_S):
                    return await generation.next_deltas()
            except TimeoutError:
                # Proxies cut a connection that is silent for long.
                await self._write(send, sse.PING)

    async def _write(self, send: Send, events: bytes, *, more: bool = True) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await send({"type": "http.response.body", "body": events, "more_body": more})


def _shown(error: Exception) -> PageloomError:
    if isinstance(error, PageloomError):
        return error
    _log.error("stream failed", exc_info=error)
    return EngineError("internal error")
