"""One Attach stream, from Welcome to its end: plans in, results out, heartbeats between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from typing import Protocol

import grpc

from pageloom import wire
from pageloom.plan import BatchPlan, CacheInfo, ModelInfo, StepResult
from pageloom.rpc.v1 import worker_pb2
from worker_svc.metrics import WorkerMetrics

AttachCall = grpc.aio.StreamStreamCall[worker_pb2.AttachRequest, worker_pb2.AttachResponse]


class Runner(Protocol):
    """What runs plans: the model, or anything that keeps to the plan's semantics."""

    @property
    def model(self) -> ModelInfo: ...

    @property
    def cache(self) -> CacheInfo: ...

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
        self.drained = False

    async def run_plans(self, messages: AsyncIterator[worker_pb2.AttachResponse]) -> None:
        """Returns when the scheduler drains this worker or closes the stream."""
        async for message in messages:
            kind = message.WhichOneof("message")
            if kind == "drain":
                self.drained = True
                await self._call.done_writing()
            elif kind == "plan":
                await self._run(wire.plan_from_proto(message.plan))
            else:
                raise ProtocolBroken(f"{kind or 'an empty message'} came where a plan was due")

    async def _run(self, plan: BatchPlan) -> None:
        if plan.epoch != self._epoch:
            raise ProtocolBroken(f"a plan of epoch {plan.epoch} came in epoch {self._epoch}")
        if plan.step != self._step + 1:
            raise ProtocolBroken(f"step {plan.step} followed step {self._step}")
        result = await asyncio.get_running_loop().run_in_executor(self._thread, self._runner.step, plan)
        self._step = plan.step
        self._metrics.observe_step(result)
        await self._call.write(worker_pb2.AttachRequest(step_result=wire.result_to_proto(result)))

    async def send_heartbeats(self) -> None:
        """Never returns; ends when it is cancelled."""
        while True:
            await asyncio.sleep(self._heartbeat_interval_s)
            heartbeat = worker_pb2.Heartbeat(epoch=self._epoch, step=self._step)
            await self._call.write(worker_pb2.AttachRequest(heartbeat=heartbeat))
