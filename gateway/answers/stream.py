"""A generation -> the HTTP response that streams it. However the response ends, the generation ends with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.answers.choice import ChoiceDelta
from gateway.answers.generation import Generation
from gateway.answers.token_counts import TokenCounts
from gateway.errors import ClientDisconnected
from gateway.http.middleware import server_send
from gateway.openai import sse
from gateway.requests.job import Job
from gateway.runtime import Gateway, generating
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
    """Deltas of one answer -> server-sent events. `wants_counts`: `encode` is told the tokens so far."""

    @property
    def wants_counts(self) -> bool: ...

    def encode(self, delta: ChoiceDelta, counts: TokenCounts | None) -> bytes:
        """Empty if there is nothing to say yet."""
        ...

    def end(self, counts: TokenCounts) -> bytes: ...

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
        self._wants_counts = encoder.wants_counts
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with generating(self._gateway, scope, receive, self._answer_id, self._job) as generation:
                # What wakes a task runs down all that await each other in it, which between the server and here are
                # some twenty: a task of its own is woken in a third of the time.
                await asyncio.create_task(self._relay(generation, scope, send))
            last = self._encoder.end(generation.counts)
        except ClientDisconnected:
            return
        except Exception as error:
            if not self._started:
                raise
            last = self._encoder.fail(shown_error(error))
        if not self._started:
            await self._start(send)
        await send({"type": "http.response.body", "body": last})

    async def _relay(self, generation: Generation, scope: Scope, send: Send) -> None:
        silence, send_body = _Silence(generation.wake), server_send(scope)
        try:
            while (deltas := await generation.next_deltas()) is not None:
                # Proxies cut a connection that is silent for long.
                if events := self._events(generation, deltas) or (sse.PING if silence.too_long else b""):
                    silence.interrupt()
                    if not self._started:
                        await self._start(send)
                    await send_body({"type": "http.response.body", "body": events, "more_body": True})
        finally:
            silence.stop()

    def _events(self, generation: Generation, deltas: list[ChoiceDelta]) -> bytes:
        counts = generation.counts if self._wants_counts else None
        return b"".join([self._encoder.encode(delta, counts) for delta in deltas])

    async def _start(self, send: Send) -> None:
        self._started = True
        await send({"type": "http.response.start", "status": 200, "headers": _RAW_HEADERS})


async def encode_whole(generation: Generation, encoder: StreamEncoder) -> None:
    """For an encoder that also collects: its events are for nobody."""
    while (deltas := await generation.next_deltas()) is not None:
        for delta in deltas:
            encoder.encode(delta, None)
    encoder.end(generation.counts)


class _Silence:
    """Calls `tell` whenever nothing was written for PING_INTERVAL_S; then it is `too_long`.

    One timer for the whole stream, because a timeout for each token would cost as much as encoding it.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._since_s = self._loop.time()
        self._timer = self._loop.call_later(PING_INTERVAL_S, self._check)
        self.too_long = False

    def interrupt(self) -> None:
        self._since_s = self._loop.time()
        self.too_long = False

    def stop(self) -> None:
        self._timer.cancel()

    def _check(self) -> None:
        silent_s = self._loop.time() - self._since_s
        self.too_long = silent_s >= PING_INTERVAL_S
        if self.too_long:
            self._tell()
        self._timer = self._loop.call_later(PING_INTERVAL_S - (0.0 if self.too_long else silent_s), self._check)


def shown_error(error: Exception) -> PageloomError:
    """What the client may read of an error; an unexpected one is logged."""
    if isinstance(error, PageloomError):
        return error
    _log.error("stream failed", exc_info=error)
    return EngineError("internal error")
