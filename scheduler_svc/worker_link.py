"""One attached worker: send a plan, await its result, notice its loss."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from pageloom import wire
from pageloom.plan import BatchPlan, StepResult, WorkerHello
from pageloom.rpc.v1 import worker_pb2

# Plans are sent one at a time, so a worker that fills this speaks another protocol.
_MAX_WAITING_RESULTS = 4


class WorkerLost(Exception):
    """The worker closed its stream, fell silent, or broke the protocol."""


class WorkerLink:
    """The scheduler's end of one Attach stream. `execute` is for one caller at a time."""

    def __init__(
        self,
        hello: WorkerHello,
        epoch: int,
        messages: AsyncIterator[worker_pb2.AttachRequest],
        write: Callable[[worker_pb2.AttachResponse], Awaitable[None]],
    ) -> None:
        self.hello = hello
        self.epoch = epoch
        self._messages = messages
        self._write = write
        self._results: asyncio.Queue[StepResult] = asyncio.Queue(_MAX_WAITING_RESULTS)
        self._last_heard_s = time.monotonic()

    async def welcome(self, heartbeat_interval_s: float) -> None:
        message = worker_pb2.Welcome(epoch=self.epoch, heartbeat_interval_s=heartbeat_interval_s)
        await self._write(worker_pb2.AttachResponse(welcome=message))

    async def execute(self, plan: BatchPlan) -> StepResult:
        """Sends a plan and returns its result."""
        await self._write(worker_pb2.AttachResponse(plan=wire.plan_to_proto(plan)))
        while True:
            result = await self._results.get()
            if (result.epoch, result.step) == (plan.epoch, plan.step):
                return result

    async def drain(self) -> None:
        """Tells the worker that no plans will come; it then closes its stream."""
        await self._write(worker_pb2.AttachResponse(drain=worker_pb2.Drain()))

    async def receive(self) -> None:
        """Reads the worker's messages until it is gone. Raises WorkerLost, always."""
        async for message in self._messages:
            self._last_heard_s = time.monotonic()
            kind = message.WhichOneof("message")
            if kind == "step_result":
                self._take(wire.result_from_proto(message.step_result))
            elif kind != "heartbeat":
                raise WorkerLost(f"it sent {kind or 'an empty message'} where a result or heartbeat was due")
        raise WorkerLost("it closed its stream")

    def _take(self, result: StepResult) -> None:
        try:
            self._results.put_nowait(result)
        except asyncio.QueueFull:
            raise WorkerLost("it sent results that nobody asked for") from None

    async def watch_heartbeats(self, timeout_s: float) -> None:
        """Raises WorkerLost after `timeout_s` of silence. HTTP/2 pings would not do: a peer whose
        event loop is blocked or whose process is stopped still has its socket open."""
        while True:
            silence_s = time.monotonic() - self._last_heard_s
            if silence_s >= timeout_s:
                raise WorkerLost(f"it was silent for {silence_s:.1f} s")
            await asyncio.sleep(timeout_s - silence_s)
