"""The client's end of one Session call: any number of requests over it, each with a buffer of its own."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

import grpc

from pageloom import wire
from pageloom.errors import InvalidRequest, Unavailable
from pageloom.event_buffer import EventBuffer
from pageloom.requests import GenerateRequest
from pageloom.rpc.v1 import engine_pb2
from pageloom.rpc_channel import MAX_MESSAGE_BYTES
from pageloom.rpc_errors import from_grpc_error
from pageloom.wakeup import Wakeup

if TYPE_CHECKING:
    # The stubs name it only for type checkers.
    from pageloom.rpc.v1.engine_pb2_grpc import EngineAsyncStub

SessionCall = grpc.aio.StreamStreamCall[engine_pb2.SessionRequest, engine_pb2.SessionResponse]


class EngineStream(EventBuffer):
    """One request of a session: read it, and in the end `leave` it."""

    __slots__ = ("_session", "request_id", "stream_id")

    def __init__(self, session: EngineSession, stream_id: int, request: GenerateRequest, wakeup: Wakeup | None) -> None:
        # A request for no choices is waiting, too: for its refusal.
        super().__init__(max(request.n, 1), wakeup)
        self._session = session
        self.stream_id = stream_id
        self.request_id = request.request_id

    def cancel(self, choice_indexes: tuple[int, ...]) -> None:
        """Ends some choices, which say so; those that have ended are ignored."""
        self._session.cancel(self.request_id, choice_indexes)

    def leave(self) -> None:
        """Nobody reads it any more: cancels what still runs; what comes of it is dropped."""
        self._session.leave(self)


class EngineSession:
    """Opens the call at once, and is used until it is `broken`; then every request left of it fails.

    A task reads and distributes, whatever single readers do, and another writes: the call takes one
    write at a time.
    """

    def __init__(self, engine: EngineAsyncStub) -> None:
        self.broken = False
        self._streams: dict[int, EngineStream] = {}
        self._by_request_id: dict[str, EngineStream] = {}
        self._last_stream_id = 0
        # What is to be sent. A request that is left before it was sent is not sent at all.
        self._starts: dict[int, engine_pb2.SessionRequest] = {}
        self._cancels: deque[engine_pb2.SessionRequest] = deque()
        self._outgoing = asyncio.Event()
        self._running = asyncio.create_task(self._run(engine), name="engine session")

    def start(self, request: GenerateRequest, wakeup: Wakeup | None = None) -> EngineStream:
        """Sends a request. Raises InvalidRequest if it is too large to be sent."""
        stream = EngineStream(self, self._last_stream_id + 1, request, wakeup)
        message = wire.start_stream_to_proto(stream.stream_id, request)
        if (num_bytes := message.ByteSize()) > MAX_MESSAGE_BYTES:
            # It would end the session, and so every other request of it.
            raise InvalidRequest(
                f"the request has {num_bytes} bytes; at most {MAX_MESSAGE_BYTES} are accepted", param="prompt_token_ids"
            )
        self._last_stream_id = stream.stream_id
        self._streams[stream.stream_id] = stream
        # A second one of the same id will be refused; the id means the first.
        self._by_request_id.setdefault(stream.request_id, stream)
        self._starts[stream.stream_id] = message
        self._outgoing.set()
        return stream

    def leave(self, stream: EngineStream) -> None:
        """Nobody reads the stream any more: cancels what still runs; what comes of it is dropped."""
        del self._streams[stream.stream_id]
        if self._by_request_id.get(stream.request_id) is stream:
            del self._by_request_id[stream.request_id]
        if self._starts.pop(stream.stream_id, None) is None and not stream.complete:
            self._cancels.append(wire.cancel_stream_to_proto(stream.stream_id))
            self._outgoing.set()

    def cancel(self, request_id: str, choice_indexes: tuple[int, ...]) -> bool:
        """Cancels some choices of a request (none named: all); False if no such request is read here."""
        stream = self._by_request_id.get(request_id)
        if stream is None:
            return False
        if not stream.complete:
            self._cancels.append(wire.cancel_stream_to_proto(stream.stream_id, choice_indexes))
            self._outgoing.set()
        return True

    async def close(self) -> None:
        """Ends the call, and with it all its requests."""
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        # A task that is cancelled before its first step does nothing at all.
        self._end("the client was closed")

    async def _run(self, engine: EngineAsyncStub) -> None:
        reason = "the client was closed"
        try:
            await self._converse(engine.Session())
            reason = "the scheduler ended the session"
        except grpc.aio.AioRpcError as error:
            reason = from_grpc_error(error).message
        except grpc.aio.UsageError:
            # The channel is closed already.
            pass
        except Exception as error:
            # Whatever it is, no request may wait for ever.
            reason = f"the scheduler sent a message that makes no sense: {error!r}"
        finally:
            self._end(reason)

    async def _converse(self, call: SessionCall) -> None:
        writing = asyncio.create_task(self._write_all(call), name="engine session writer")
        try:
            async for message in call:
                self._distribute(wire.session_response_from_proto(message))
        finally:
            writing.cancel()
            call.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    def _end(self, reason: str) -> None:
        self.broken = True
        for stream in self._streams.values():
            stream.fail(Unavailable(reason))

    def _distribute(self, events: wire.SessionEvents) -> None:
        streams = self._streams
        for stream_id, prompt_logprobs in events.prompt_logprobs:
            if (stream := streams.get(stream_id)) is not None:
                stream.put_prompt_logprobs(prompt_logprobs)
        for stream_id, choice_index, first_index, token_ids, logprobs in events.tokens:
            # One that was left may still be spoken of.
            if (stream := streams.get(stream_id)) is not None:
                stream.put_tokens(choice_index, first_index, token_ids, logprobs)
        for stream_id, event in events.finished:
            if (stream := streams.get(stream_id)) is not None:
                stream.put_finished(event)
        for stream_id, error in events.refused:
            if (stream := streams.get(stream_id)) is not None:
                stream.fail(error)

    async def _write_all(self, call: SessionCall) -> None:
        # Why it failed is for the one that reads to find out.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self._outgoing.wait()
                self._outgoing.clear()
                while (message := self._next_message()) is not None:
                    await call.write(message)

    def _next_message(self) -> engine_pb2.SessionRequest | None:
        # Starts go first, so that no cancel overtakes the start of its request.
        if self._starts:
            return self._starts.pop(next(iter(self._starts)))
        return self._cancels.popleft() if self._cancels else None
