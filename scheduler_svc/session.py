"""One Session call: starts and cancels what its client asks for, and writes back what becomes known, as columns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import structlog

from pageloom import wire
from pageloom.errors import EngineError, InvalidRequest, PageloomError
from pageloom.requests import GenerateRequest
from pageloom.rpc.v1 import engine_pb2
from scheduler_svc.outbox import Reader
from scheduler_svc.request_checks import check_request
from scheduler_svc.session_outbox import SessionOutbox

log = structlog.get_logger()


class RequestDriver(Protocol):
    """What running requests takes of the driver."""

    async def prepare(self, grammar: str) -> None:
        """Returns when the workers have compiled a grammar. Raises a PageloomError if they cannot."""

    def submit(self, request: GenerateRequest, reader: Reader) -> None:
        """Raises a PageloomError if the request is not accepted."""

    def cancel(self, request_id: str, choice_indexes: tuple[int, ...] = ()) -> None:
        """Ends some choices (none named: all); finished and unknown ones are ignored."""

    def close(self, request_id: str) -> None:
        """The reader is gone: cancels what still runs and forgets the request."""


class Session:
    """One client's call. The core's queue limit bounds its open requests, as it does those of all calls."""

    def __init__(self, driver: RequestDriver) -> None:
        self._driver = driver
        self._outbox = SessionOutbox()
        self._request_ids: dict[int, str] = {}  # of the open streams
        # Streams that wait for their grammars, each with what it was told to cancel meanwhile.
        self._preparing: dict[int, list[tuple[int, ...]]] = {}
        self._preparations: set[asyncio.Task[None]] = set()
        self._ended: list[int] = []

    async def run(
        self,
        messages: AsyncIterator[engine_pb2.SessionRequest],
        write: Callable[[engine_pb2.SessionResponse], Awaitable[object]],
    ) -> None:
        """Returns when the client has ended its side and all its requests have ended. Raises InvalidRequest if it
        breaks the protocol. However it ends, what still runs is cancelled."""
        receiving = asyncio.create_task(self._receive(messages))
        receiving.add_done_callback(lambda _: self._outbox.wake())
        try:
            while not receiving.done() or ((self._request_ids or self._preparing) and receiving.exception() is None):
                await self._outbox.arrival()
                await self._write_all(write)
            await receiving
        finally:
            tasks = (receiving, *self._preparations)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for request_id in self._request_ids.values():
                self._driver.close(request_id)

    async def _write_all(self, write: Callable[[engine_pb2.SessionResponse], Awaitable[object]]) -> None:
        # A write returns when the transport has taken it: while it waits, events pile up for the next one.
        while (message := self._next_message()) is not None:
            await write(message)

    def _next_message(self) -> engine_pb2.SessionResponse | None:
        # Before its client learns of the end: the client may use the request's id again at once.
        for stream_id in self._ended:
            self._driver.close(self._request_ids.pop(stream_id))
        self._ended.clear()
        return self._outbox.next_message()

    async def _receive(self, messages: AsyncIterator[engine_pb2.SessionRequest]) -> None:
        async for message in messages:
            kind = message.WhichOneof("message")
            if kind == "start":
                self._start(message.start)
            elif kind == "cancel":
                self._cancel(message.cancel)
            else:
                raise InvalidRequest("a SessionRequest must hold start or cancel", param="message")
            await self._outbox.room()

    def _start(self, message: engine_pb2.StartStream) -> None:
        stream_id = message.stream_id
        if stream_id in self._request_ids or stream_id in self._preparing:
            # A refusal would name the stream that is open, and end it for the client.
            raise InvalidRequest(f"stream_id {stream_id} is open already", param="stream_id")
        with self._refusing(stream_id, message.request.request_id):
            request = wire.generate_request_from_proto(message.request)
            check_request(request)
            if not request.sampling.grammar:
                self._submit(stream_id, request)
                return
            self._preparing[stream_id] = []
            preparation = asyncio.create_task(self._submit_prepared(stream_id, request))
            self._preparations.add(preparation)
            preparation.add_done_callback(self._preparations.discard)

    def _submit(self, stream_id: int, request: GenerateRequest) -> None:
        stream = self._outbox.stream(stream_id, request.n, lambda: self._ended.append(stream_id))
        self._driver.submit(request, stream)
        self._request_ids[stream_id] = request.request_id

    async def _submit_prepared(self, stream_id: int, request: GenerateRequest) -> None:
        with self._refusing(stream_id, request.request_id):
            try:
                await self._driver.prepare(request.sampling.grammar)
            finally:
                cancels = self._preparing.pop(stream_id)
            self._submit(stream_id, request)
            for choice_indexes in cancels:
                self._driver.cancel(request.request_id, choice_indexes)

    @contextmanager
    def _refusing(self, stream_id: int, request_id: str) -> Iterator[None]:
        try:
            yield
        except PageloomError as error:
            self._outbox.refuse(stream_id, error)
        except Exception:
            # One request must not take all others of its gateway with it.
            log.exception("request failed at its start", request_id=request_id)
            self._outbox.refuse(stream_id, EngineError("internal error"))

    def _cancel(self, message: engine_pb2.CancelStream) -> None:
        choice_indexes = tuple(message.choice_indexes)
        if message.stream_id in self._preparing:
            self._preparing[message.stream_id].append(choice_indexes)
        elif (request_id := self._request_ids.get(message.stream_id)) is not None:
            self._driver.cancel(request_id, choice_indexes)
