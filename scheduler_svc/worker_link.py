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
# Welcome, one plan and Drain: this never fills.
_MAX_OUTGOING = 8


class WorkerLost(Exception):
    """The worker closed its stream, fell silent, or broke the protocol."""


class WorkerLeft(Exception):
    """The worker asked to leave, or was sent away, and has nothing in flight."""


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
        self.departing = False
        self._last_step = 0
        self._work_arrived = asyncio.Event()
        self._messages = messages
        self._write = write
        # One task writes: a call takes one write at a time, and a drain may coincide with a plan.
        self._outgoing: asyncio.Queue[worker_pb2.AttachResponse] = asyncio.Queue(_MAX_OUTGOING)
        self._superseded = asyncio.Event()
        self.detached = asyncio.Event()
        self._results: asyncio.Queue[StepResult] = asyncio.Queue(_MAX_WAITING_RESULTS)
        self._last_heard_s = time.monotonic()

    def welcome(self, heartbeat_interval_s: float) -> None:
        """The first message down."""
        message = worker_pb2.Welcome(epoch=self.epoch, heartbeat_interval_s=heartbeat_interval_s)
        self._outgoing.put_nowait(worker_pb2.AttachResponse(welcome=message))

    async def write_all(self) -> None:
        """Writes what the other methods send; never returns."""
        while True:
            await self._write(await self._outgoing.get())

    async def execute(self, plan: BatchPlan, timeout_s: float) -> StepResult:
        """Sends a plan and returns its result. Raises WorkerLost if there is none within `timeout_s`: a worker
        whose model hangs still sends heartbeats."""
        self._outgoing.put_nowait(worker_pb2.AttachResponse(plan=wire.plan_to_proto(plan)))
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    result = await self._results.get()
                    if (result.epoch, result.step) == (plan.epoch, plan.step):
                        return result
        except TimeoutError:
            raise WorkerLost(f"it gave no result of step {plan.step} for {timeout_s:g} s") from None

    def drain(self) -> None:
        """Tells the worker that no plans will come; it then closes its stream."""
        self.departing = True
        self._outgoing.put_nowait(worker_pb2.AttachResponse(drain=worker_pb2.Drain()))

    def supersede(self) -> None:
        """The same process has dialled again, so this stream is dead: makes `watch` raise WorkerLost."""
        self._superseded.set()

    def wake(self) -> None:
        """There may be work, or a reason to go: `wait_for_work` returns."""
        self._work_arrived.set()

    async def wait_for_work(self) -> None:
        await self._work_arrived.wait()
        self._work_arrived.clear()

    async def receive(self) -> None:
        """Reads the worker's messages until it is gone. Raises WorkerLost, or WorkerLeft if it was departing."""
        async for message in self._messages:
            self._last_heard_s = time.monotonic()
            kind = message.WhichOneof("message")
            if kind == "step_result":
                self._take(message.step_result)
            elif kind == "heartbeat":
                self._last_step = message.heartbeat.step
            elif kind == "leaving":
                self.departing = True
                self.wake()
            else:
                raise WorkerLost(f"it sent {kind or 'an empty message'} where a result or heartbeat was due")
        if self.departing:
            raise WorkerLeft
        raise WorkerLost("it closed its stream")

    def _take(self, message: worker_pb2.StepResult) -> None:
        try:
            self._results.put_nowait(wire.result_from_proto(message))
        except asyncio.QueueFull:
            raise WorkerLost("it sent results that nobody asked for") from None
        except ValueError as error:
            raise WorkerLost(f"it sent a malformed result: {error}") from None

    async def watch(self, timeout_s: float) -> None:
        """Raises WorkerLost after `timeout_s` of silence, or once superseded. HTTP/2 pings would not do: a peer
        whose event loop is blocked or whose process is stopped still has its socket open."""
        while (silence_s := time.monotonic() - self._last_heard_s) < timeout_s:
            try:
                async with asyncio.timeout(timeout_s - silence_s):
                    await self._superseded.wait()
                    raise WorkerLost("its process dialled again")
            except TimeoutError:
                continue
        raise WorkerLost(f"it was silent for {silence_s:.1f} s; the last step it told of is {self._last_step}")
