"""A real gRPC server of the Worker service whose every message is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from pageloom import wire
from pageloom.plan import BatchPlan, StepResult
from pageloom.rpc.v1 import worker_pb2, worker_pb2_grpc
from pageloom.rpc_channel import create_server

AttachContext = grpc.aio.ServicerContext[worker_pb2.AttachRequest, worker_pb2.AttachResponse]
_TIMEOUT_S = 10.0


class Dial:
    """One Attach call of a worker, after its Hello."""

    def __init__(self, hello: worker_pb2.Hello, context: AttachContext) -> None:
        self.hello = hello
        self.received: asyncio.Queue[worker_pb2.AttachRequest | None] = asyncio.Queue()
        self.ended = asyncio.Event()
        self._context = context
        self._end = asyncio.Event()

    async def welcome(self, epoch: int, *, depth: int = 2, heartbeat_interval_s: float = 60.0) -> None:
        message = worker_pb2.Welcome(
            epoch=epoch, heartbeat_interval_s=heartbeat_interval_s, max_num_steps_in_flight=depth
        )
        await self.send(worker_pb2.AttachResponse(welcome=message))

    async def plan(self, plan: BatchPlan) -> None:
        await self.send(worker_pb2.AttachResponse(plan=wire.plan_to_proto(plan)))

    async def drain(self, *, stop: bool) -> None:
        await self.send(worker_pb2.AttachResponse(drain=worker_pb2.Drain(stop=stop)))

    async def send(self, message: worker_pb2.AttachResponse) -> None:
        await self._context.write(message)

    async def next(self) -> worker_pb2.AttachRequest | None:
        """What the worker sends next; None once it has closed its side."""
        async with asyncio.timeout(_TIMEOUT_S):
            return await self.received.get()

    async def result(self) -> StepResult:
        message = await self.next()
        assert message is not None
        assert message.WhichOneof("message") == "step_result", message
        return wire.result_from_proto(message.step_result)

    def end(self) -> None:
        """Ends the call, in peace."""
        self._end.set()

    async def wait_until_ended(self) -> None:
        async with asyncio.timeout(_TIMEOUT_S):
            await self.ended.wait()

    async def attend(self, messages: AsyncIterator[worker_pb2.AttachRequest]) -> None:
        receiving = asyncio.create_task(self._receive(messages))
        try:
            await self._end.wait()
        finally:
            receiving.cancel()
            self.ended.set()

    async def _receive(self, messages: AsyncIterator[worker_pb2.AttachRequest]) -> None:
        async for message in messages:
            self.received.put_nowait(message)
        self.received.put_nowait(None)


class ScriptedScheduler(worker_pb2_grpc.WorkerServicer):
    """Hands each call over to the test."""

    def __init__(self) -> None:
        self.address = ""
        self._dials: asyncio.Queue[Dial] = asyncio.Queue()

    async def Attach(  # type: ignore[override]
        self, request_iterator: AsyncIterator[worker_pb2.AttachRequest], context: AttachContext
    ) -> None:
        dial = Dial((await anext(request_iterator)).hello, context)
        self._dials.put_nowait(dial)
        await dial.attend(request_iterator)

    async def next_dial(self) -> Dial:
        async with asyncio.timeout(_TIMEOUT_S):
            return await self._dials.get()


@asynccontextmanager
async def scripted_scheduler() -> AsyncIterator[ScriptedScheduler]:
    scheduler = ScriptedScheduler()
    server = create_server()
    worker_pb2_grpc.add_WorkerServicer_to_server(scheduler, server)
    scheduler.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield scheduler
    finally:
        await server.stop(0.1)
