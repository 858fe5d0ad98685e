"""One Attach stream, from Welcome to its end: plans in, results out, heartbeats between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from typing import Protocol

import grpc

from pageloom import wire
from pageloom.errors import EngineError
from pageloom.plan import BatchPlan, CacheInfo, ModelInfo, StepResult
from pageloom.rpc.v1 import worker_pb2
from worker_svc.metrics import WorkerMetrics

AttachCall = grpc.aio.StreamStreamCall[worker_pb2.AttachRequest, worker_pb2.AttachResponse]

# Results wait for a plan each and heartbeats are rare, so this fills only if nobody reads.
_MAX_OUTGOING = 64


class Runner(Protocol):
    """What runs plans: the model, or anything that keeps to the plan's semantics."""

    @property
    def model_info(self) -> ModelInfo: ...

    @property
    def cache_info(self) -> CacheInfo: ...

    @property
    def max_num_seqs(self) -> int: ...

    @property
    def max_num_batched_tokens(self) -> int: ...

    def step(self, plan: BatchPlan) -> StepResult: ...


class ProtocolBroken(Exception):
    """The scheduler sent what the plan stream does not allow; the worker attaches anew."""


class Attachment:
    """Runs the plans of one epoch. The model runs in `thread`, so that the event loop always
    answers: a blocked loop would look like a dead worker."""

    def __init__(
        self, call: AttachCall, welcome: worker_pb2.Welcome, runner: Runner, thread: Executor, metrics: WorkerMetrics
    ) -> None:
        self._call = call
        self._epoch = welcome.epoch
        self._heartbeat_interval_s = welcome.heartbeat_interval_s
        self._runner = runner
        self._thread = thread
        self._metrics = metrics
        self._step = 0
        # One task writes: a call takes one write at a time, and results and heartbeats may coincide.
        self._outgoing: asyncio.Queue[worker_pb2.AttachRequest | None] = asyncio.Queue(_MAX_OUTGOING)

    async def run(self, messages: AsyncIterator[worker_pb2.AttachResponse]) -> None:
        """Returns when the scheduler has drained this worker or let it leave.

        Raises ProtocolBroken or AioRpcError.
        """
        try:
            async with asyncio.TaskGroup() as group:
                helpers = (group.create_task(self._write_all()), group.create_task(self._send_heartbeats()))
                await self._run_plans(messages)
                for helper in helpers:
                    helper.cancel()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    def leave(self) -> None:
        """Asks the scheduler to end the call once the step at hand is done; `run` then returns."""
        self._send(worker_pb2.AttachRequest(leaving=worker_pb2.Leaving()))

    async def _run_plans(self, messages: AsyncIterator[worker_pb2.AttachResponse]) -> None:
        async for message in messages:
            kind = message.WhichOneof("message")
            if kind == "drain":
                self._send(None)
            elif kind == "plan":
                await self._run_plan(wire.plan_from_proto(message.plan))
            else:
                raise ProtocolBroken(f"{kind or 'an empty message'} came where a plan was due")

    async def _run_plan(self, plan: BatchPlan) -> None:
        if plan.epoch != self._epoch:
            raise ProtocolBroken(f"a plan of epoch {plan.epoch} came in epoch {self._epoch}")
        if plan.step != self._step + 1:
            raise ProtocolBroken(f"step {plan.step} followed step {self._step}")
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._thread, self._runner.step, plan)
        except EngineError as error:
            # The plan contradicts the slots; a new attachment starts from a snapshot.
            raise ProtocolBroken(error.message) from error
        self._step = plan.step
        self._metrics.observe_step(result)
        self._send(worker_pb2.AttachRequest(step_result=wire.result_to_proto(result)))

    def _send(self, message: worker_pb2.AttachRequest | None) -> None:
        try:
            self._outgoing.put_nowait(message)
        except asyncio.QueueFull:
            raise ProtocolBroken("the scheduler does not read what it is sent") from None

    async def _write_all(self) -> None:
        try:
            while (message := await self._outgoing.get()) is not None:
                await self._call.write(message)
            await self._call.done_writing()
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            # The call has ended; whoever reads it learns why.
            return

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_interval_s)
            heartbeat = worker_pb2.Heartbeat(epoch=self._epoch, step=self._step)
            self._send(worker_pb2.AttachRequest(heartbeat=heartbeat))
