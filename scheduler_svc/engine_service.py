"""The Engine service: requests over calls of their own or over sessions, and what operators ask."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Protocol

import grpc

from pageloom import wire
from pageloom.errors import InvalidRequest
from pageloom.requests import EngineInfo
from pageloom.rpc.v1 import engine_pb2, engine_pb2_grpc
from pageloom.timeline import Timeline
from scheduler_svc.outbox import Outbox
from scheduler_svc.request_checks import MAX_REQUEST_ID_CHARS, check_request
from scheduler_svc.rpc_aborts import aborting
from scheduler_svc.session import RequestDriver, Session

GenerateContext = grpc.aio.ServicerContext[engine_pb2.GenerateRequest, engine_pb2.GenerateEvent]
CancelContext = grpc.aio.ServicerContext[engine_pb2.CancelRequest, engine_pb2.CancelResponse]
SessionContext = grpc.aio.ServicerContext[engine_pb2.SessionRequest, engine_pb2.SessionResponse]
InfoContext = grpc.aio.ServicerContext[engine_pb2.InfoRequest, engine_pb2.InfoResponse]
TimelineContext = grpc.aio.ServicerContext[engine_pb2.GetTimelineRequest, engine_pb2.GetTimelineResponse]
DrainContext = grpc.aio.ServicerContext[engine_pb2.DrainWorkerRequest, engine_pb2.DrainWorkerResponse]


class EngineDriver(RequestDriver, Protocol):
    """What the service takes of the driver."""

    def timelines(self, request_id: str) -> tuple[Timeline, ...] | None:
        """One for each choice; None if the request is forgotten."""

    async def drain_worker(self, worker_id: str, timeout_s: float | None) -> bool:
        """Returns once the worker is asked to leave; False if it is not attached."""

    def info(self) -> EngineInfo: ...


class EngineService(engine_pb2_grpc.EngineServicer):
    """Public door of the scheduler; protos/pageloom/rpc/v1/engine.proto is its contract."""

    def __init__(self, driver: EngineDriver) -> None:
        self._driver = driver

    async def Generate(
        self, request: engine_pb2.GenerateRequest, context: GenerateContext
    ) -> AsyncIterator[engine_pb2.GenerateEvent]:
        async with aborting(context):
            asked = wire.generate_request_from_proto(request)
            check_request(asked)
            if asked.sampling.grammar:
                await self._driver.prepare(asked.sampling.grammar)
            outbox = Outbox(asked.n)
            self._driver.submit(asked, outbox)
        try:
            while events := await outbox.take():
                for event in events:
                    yield wire.event_to_proto(event)
        finally:
            # The stream's end, the caller's cancel and a lost connection all come here.
            self._driver.close(asked.request_id)

    async def Cancel(self, request: engine_pb2.CancelRequest, context: CancelContext) -> engine_pb2.CancelResponse:
        self._driver.cancel(request.request_id, tuple(request.choice_indexes))
        return engine_pb2.CancelResponse()

    # A coroutine that writes, where the stubs foresee a generator: what piles up during a write goes with the next.
    async def Session(  # type: ignore[override]
        self, request_iterator: AsyncIterator[engine_pb2.SessionRequest], context: SessionContext
    ) -> None:
        async with aborting(context):
            await Session(self._driver).run(request_iterator, context.write)

    async def Info(self, request: engine_pb2.InfoRequest, context: InfoContext) -> engine_pb2.InfoResponse:
        return wire.engine_info_to_proto(self._driver.info())

    async def GetTimeline(
        self, request: engine_pb2.GetTimelineRequest, context: TimelineContext
    ) -> engine_pb2.GetTimelineResponse:
        timelines = self._driver.timelines(request.request_id)
        if timelines is None:
            name = _quoted(request.request_id)
            await context.abort(grpc.StatusCode.NOT_FOUND, f"request {name} does not run, and is no recent one")
        return engine_pb2.GetTimelineResponse(timelines=[wire.timeline_to_proto(timeline) for timeline in timelines])

    async def DrainWorker(
        self, request: engine_pb2.DrainWorkerRequest, context: DrainContext
    ) -> engine_pb2.DrainWorkerResponse:
        async with aborting(context):
            timeout_s = request.timeout_s if request.HasField("timeout_s") else None
            if timeout_s is not None and not 0 <= timeout_s < math.inf:
                raise InvalidRequest(f"timeout_s must be at least 0 and finite, not {timeout_s:g}", param="timeout_s")
            if not await self._driver.drain_worker(request.worker_id, timeout_s):
                await context.abort(grpc.StatusCode.NOT_FOUND, f"no worker {_quoted(request.worker_id)} is attached")
        return engine_pb2.DrainWorkerResponse()


def _quoted(name: str) -> str:
    """No longer than a name may be: a status has to fit the metadata of a call."""
    return repr(name if len(name) <= MAX_REQUEST_ID_CHARS else name[:MAX_REQUEST_ID_CHARS] + "...")
