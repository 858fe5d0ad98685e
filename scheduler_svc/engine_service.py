"""The Engine service: Generate = submit, relay the outbox, cancel in `finally`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from pageloom import wire
from pageloom.errors import InvalidRequest
from pageloom.rpc.v1 import engine_pb2, engine_pb2_grpc
from scheduler_svc.driver import Driver
from scheduler_svc.rpc_aborts import aborting

GenerateContext = grpc.aio.ServicerContext[engine_pb2.GenerateRequest, engine_pb2.GenerateEvent]
CancelContext = grpc.aio.ServicerContext[engine_pb2.CancelRequest, engine_pb2.CancelResponse]
InfoContext = grpc.aio.ServicerContext[engine_pb2.InfoRequest, engine_pb2.InfoResponse]

MAX_REQUEST_ID_CHARS = 256


class EngineService(engine_pb2_grpc.EngineServicer):
    """Public door of the scheduler; protos/pageloom/rpc/v1/engine.proto is its contract."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def Generate(
        self, request: engine_pb2.GenerateRequest, context: GenerateContext
    ) -> AsyncIterator[engine_pb2.GenerateEvent]:
        async with aborting(context):
            if not 1 <= len(request.request_id) <= MAX_REQUEST_ID_CHARS:
                raise InvalidRequest(f"request_id must have 1 to {MAX_REQUEST_ID_CHARS} characters", param="request_id")
            outbox = self._driver.submit(wire.generate_request_from_proto(request))
        try:
            async for event in outbox.events():
                yield wire.event_to_proto(event)
        finally:
            # The stream's end, the caller's cancel and a lost connection all come here.
            self._driver.close(request.request_id)

    async def Cancel(self, request: engine_pb2.CancelRequest, context: CancelContext) -> engine_pb2.CancelResponse:
        self._driver.cancel(request.request_id, tuple(request.choice_indexes))
        return engine_pb2.CancelResponse()

    async def Info(self, request: engine_pb2.InfoRequest, context: InfoContext) -> engine_pb2.InfoResponse:
        return wire.engine_info_to_proto(self._driver.info())
