"""A generation -> the HTTP response that streams it. However the response ends, the generation ends with it."""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway import sse
from gateway.choice import ChoiceDelta
from gateway.errors import ClientDisconnected
from gateway.generation import Generation
from gateway.job import Job
from gateway.runtime import Gateway, generating, usage_of
from gateway.schemas import Usage
from pageloom.errors import EngineError, PageloomError

PING_INTERVAL_S = 15.0
EVENT_STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # Asks nginx not to collect the stream.
    "x-accel-buffering": "no",
}
_RAW_HEADERS = [(name.encode(), value.encode()) for name, value in EVENT_STREAM_HEADERS.items()]
_log = structlog.get_logger(__name__)


class StreamEncoder(Protocol):
    """Deltas of one answer -> server-sent events. `wants_usage`: `encode` is told the tokens so far."""

    @property
    def wants_usage(self) -> bool: ...

    def encode(self, delta: ChoiceDelta, usage: Usage | None) -> bytes:
        """Empty if there is nothing to say yet."""
        ...

    def end(self, usage: Usage) -> bytes: ...

    def fail(self, error: PageloomError) -> bytes:
        """The last events, instead of `end`."""
        ...


class EventStreamResponse(Response):
    """Sends status 200 with the first delta, so that what the engine refuses is still an HTTP error;
    an error after that is an event, and no [DONE] follows it."""

    def __init__(self, gateway: Gateway, job: Job, answer_id: str, encoder: StreamEncoder) -> None:
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
            last = self._encoder.end(usage_of(self._job, generation))
        except ClientDisconnected:
            return
        except Exception as error:
            if not self._started:
                raise
            last = self._encoder.fail(shown_error(error))
        await self._write(send, last, more=False)

    async def _relay(self, generation: Generation, send: Send) -> None:
        while (deltas := await self._next_deltas(generation, send)) is not None:
            usage = usage_of(self._job, generation) if self._encoder.wants_usage else None
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
            await send({"type": "http.response.start", "status": 200, "headers": _RAW_HEADERS})
        await send({"type": "http.response.body", "body": events, "more_body": more})


def shown_error(error: Exception) -> PageloomError:
    """What the client may read of an error; an unexpected one is logged."""
    if isinstance(error, PageloomError):
        return error
    _log.error("stream failed", exc_info=error)
    return EngineError("internal error")
