"""The Worker service: greets a worker that dials in and lets the driver run it until it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import structlog

from pageloom import wire
from pageloom.errors import InvalidRequest
from pageloom.plan import WorkerHello
from pageloom.rpc.v1 import worker_pb2, worker_pb2_grpc
from scheduler_svc.driver import Driver
from scheduler_svc.rpc_aborts import aborting
from scheduler_svc.worker_link import WorkerLeft, WorkerLink, WorkerLost

AttachContext = grpc.aio.ServicerContext[worker_pb2.AttachRequest, worker_pb2.AttachResponse]

log = structlog.get_logger()


class WorkerService(worker_pb2_grpc.WorkerServicer):
    """protos/pageloom/rpc/v1/worker.proto is its contract.

    `first_epoch` must be above every epoch of an earlier scheduler; each attachment takes the next.
    """

    def __init__(
        self, driver: Driver, *, first_epoch: int, heartbeat_interval_s: float, heartbeat_timeout_s: float
    ) -> None:
        self._driver = driver
        self._last_epoch = first_epoch - 1
        self._heartbeat_interval_s = heartbeat_interval_s
        self._heartbeat_timeout_s = heartbeat_timeout_s

    # A coroutine that writes, where the stubs foresee a generator: plans are sent by another task.
    async def Attach(  # type: ignore[override]
        self, request_iterator: AsyncIterator[worker_pb2.AttachRequest], context: AttachContext
    ) -> None:
        hello = await self._take_hello(request_iterator, context)
        # Above what the worker has seen: a clock that was set back must not make every worker refuse us.
        epoch = max(self._last_epoch, hello.highest_epoch) + 1
        link = WorkerLink(hello, epoch, request_iterator, context.write)
        before, self._last_epoch = self._last_epoch, epoch
        try:
            await self._attach(link, context)
        except BaseException:
            # A Hello that was refused must not use epochs up; others may have come meanwhile.
            if self._last_epoch == epoch:
                self._last_epoch = before
            raise
        worker = log.bind(worker_id=hello.worker_id, epoch=link.epoch)
        try:
            worker.info("worker attached", num_blocks=hello.cache.num_blocks, dtype=hello.model.dtype)
            link.welcome(self._heartbeat_interval_s, self._driver.max_num_steps_in_flight(link))
            async with asyncio.TaskGroup() as group:
                group.create_task(link.write_all())
                group.create_task(link.receive())
                group.create_task(link.watch(self._heartbeat_timeout_s))
                group.create_task(self._driver.drive(link))
        except* WorkerLost as lost:
            worker.warning("worker lost", reason=str(lost.exceptions[0]))
        except* WorkerLeft:
            worker.info("worker left")
        finally:
            await self._driver.detach(link)

    async def _attach(self, link: WorkerLink, context: AttachContext) -> None:
        async with aborting(context):
            try:
                await self._driver.attach(link)
            except InvalidRequest as error:
                # Not this message but the worker itself does not fit: it should not dial again.
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, error.message)

    async def _take_hello(
        self, messages: AsyncIterator[worker_pb2.AttachRequest], context: AttachContext
    ) -> WorkerHello:
        """The first message. Aborts the call if it is not a Hello that fits."""
        message = await anext(messages, worker_pb2.AttachRequest())
        if message.WhichOneof("message") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be Hello")
        version = message.hello.protocol_version
        if version != wire.PROTOCOL_VERSION:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the worker speaks protocol version {version}, this scheduler {wire.PROTOCOL_VERSION}",
            )
        return wire.hello_from_proto(message.hello)
