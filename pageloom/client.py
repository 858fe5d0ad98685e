"""EngineClient: the one typed async door to the scheduler."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pageloom import wire
from pageloom.outputs import GenerateEvent
from pageloom.requests import EngineInfo, GenerateRequest
from pageloom.rpc.v1 import engine_pb2, engine_pb2_grpc
from pageloom.rpc_channel import open_channel
from pageloom.rpc_errors import from_grpc_error

ENGINE_SERVICE = "pageloom.rpc.v1.Engine"
UNARY_TIMEOUT_S = 5.0


class EngineClient:
    """Speaks the Engine service at `address` ("host:port" or "unix:/path"). Use as async context manager."""

    def __init__(self, address: str) -> None:
        self._channel = open_channel(address)
        self._engine = engine_pb2_grpc.EngineStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close(None)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateEvent, None]:
        """Yields the events of all choices; closing the generator cancels what still runs.

        Raises InvalidRequest, ContextLengthExceeded, DuplicateRequest, Overloaded, Unavailable or EngineError.
        """
        call = self._engine.Generate(wire.generate_request_to_proto(request))
        try:
            async for event in call:
                yield wire.event_from_proto(event)
        except grpc.aio.AioRpcError as error:
            raise from_grpc_error(error) from error
        finally:
            call.cancel()

    async def cancel(self, request_id: str, choice_indexes: tuple[int, ...] = ()) -> None:
        """Cancels some choices of a request (none named: all). Unknown or finished ones are ignored."""
        message = engine_pb2.CancelRequest(request_id=request_id, choice_indexes=choice_indexes)
        try:
            await self._engine.Cancel(message, timeout=UNARY_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_grpc_error(error) from error

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
