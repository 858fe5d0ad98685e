"""EngineClient: the one typed async door to the scheduler."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pageloom import wire
from pageloom.engine_session import EngineSession, EngineStream
from pageloom.outputs import GenerateEvent
from pageloom.requests import EngineInfo, GenerateRequest
from pageloom.rpc.v1 import engine_pb2, engine_pb2_grpc
from pageloom.rpc_channel import open_channel
from pageloom.rpc_errors import from_grpc_error
from pageloom.timeline import Timeline
from pageloom.wakeup import Wakeup

ENGINE_SERVICE = "pageloom.rpc.v1.Engine"
UNARY_TIMEOUT_S = 5.0


class EngineClient:
    """Speaks the Engine service at `address` ("host:port" or "unix:/path"). Use as async context manager."""

    def __init__(self, address: str) -> None:
        self._channel = open_channel(address)
        self._engine = engine_pb2_grpc.EngineStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)
        self._session: EngineSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
        await self._channel.close(None)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """Yields the events of all choices; closing the generator cancels what still runs.

        All requests go over one session, which is opened when it is first needed, and again after it broke. Tokens
        that are not taken as fast as they come are joined, so a slow reader holds nobody up.
        Raises InvalidRequest, ContextLengthExceeded, DuplicateRequest, Overloaded, Unavailable or EngineError.
        """
        stream = self.start(request)
        try:
            while events := await stream.take():
                for event in events:
                    yield event
        finally:
            stream.leave()

    def start(self, request: GenerateRequest, wakeup: Wakeup | None = None) -> EngineStream:
        """Sends a request; the caller reads the stream, as `generate` does, and leaves it. One task may read several
        with a `wakeup` in common. Raises InvalidRequest if it is too large to be sent."""
        if self._session is None or self._session.broken:
            self._session = EngineSession(self._engine)
        return self._session.start(request, wakeup)

    async def cancel(self, request_id: str, choice_indexes: tuple[int, ...] = ()) -> None:
        """Cancels some choices of a request (none named: all). Unknown or finished ones are ignored."""
        if self._session is not None and self._session.cancel(request_id, choice_indexes):
            return
        message = engine_pb2.CancelRequest(request_id=request_id, choice_indexes=choice_indexes)
        try:
            await self._engine.Cancel(message, timeout=UNARY_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_grpc_error(error) from error

    async def timelines(self, request_id: str) -> tuple[Timeline, ...] | None:
        """Where the time of each choice went so far; None if the scheduler knows no such request (any more)."""
        message = engine_pb2.GetTimelineRequest(request_id=request_id)
        try:
            reply = await self._engine.GetTimeline(message, timeout=UNARY_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise from_grpc_error(error) from error
        return tuple(wire.timeline_from_proto(timeline) for timeline in reply.timelines)

    async def drain_worker(self, worker_id: str, timeout_s: float | None = None) -> bool:
        """Sends a worker away once what it runs has finished, or has had `timeout_s` for it (None: the scheduler's
        drain timeout). Returns when it is asked to leave; False if no such worker is attached."""
        message = engine_pb2.DrainWorkerRequest(worker_id=worker_id, timeout_s=timeout_s)
        try:
            await self._engine.DrainWorker(message)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return False
            raise from_grpc_error(error) from error
        return True

    async def info(self) -> EngineInfo:
        """What is served. Raises Unavailable if the scheduler cannot be reached."""
        try:
            reply = await self._engine.Info(engine_pb2.InfoRequest(), timeout=UNARY_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_grpc_error(error) from error
        return wire.engine_info_from_proto(reply)

    async def watch_serving(self) -> AsyncGenerator[bool, None]:
        """Yields whether the engine can serve (a worker is attached, not draining): now, then on every change.

        Raises Unavailable when the scheduler goes away; the caller reconnects by calling again.
        """
        call = self._health.Watch(health_pb2.HealthCheckRequest(service=ENGINE_SERVICE))
        try:
            async for reply in call:
                yield reply.status == health_pb2.HealthCheckResponse.SERVING
        except grpc.aio.AioRpcError as error:
            raise from_grpc_error(error) from error
        finally:
            call.cancel()
