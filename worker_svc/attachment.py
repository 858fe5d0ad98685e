"""One Attach stream, from Welcome to its end: plans in, results out, heartbeats between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Executor

import grpc

from pageloom import wire
from pageloom.errors import EngineError
from pageloom.grammar_limits import MAX_GRAMMARS_PREPARING
from pageloom.plan import BatchPlan, StepResult
from pageloom.rpc.v1 import worker_pb2
from worker_svc.metrics import WorkerMetrics
from worker_svc.step_thread import Runner, StepThread, StepTimes

AttachCall = grpc.aio.StreamStreamCall[worker_pb2.AttachRequest, worker_pb2.AttachResponse]

# Beside the results: one heartbeat, a Leaving for each signal, the end.
_NUM_OTHER_OUTGOING = 8


class ProtocolBroken(Exception):
    """The scheduler sent what the plan stream does not allow; the worker attaches anew."""


class Attachment:
    """Runs the plans of one epoch. The model runs in `thread`, so that the event loop always answers (a blocked
    loop would look like a dead worker), and with the next plan at hand it does not wait for the loop either. Grammars
    are compiled in `preparing_thread`, one after the other."""

    def __init__(
        self,
        call: AttachCall,
        welcome: worker_pb2.Welcome,
        runner: Runner,
        thread: Executor,
        preparing_thread: Executor,
        metrics: WorkerMetrics,
    ) -> None:
        self._call = call
        self._epoch = welcome.epoch
        self._heartbeat_interval_s = welcome.heartbeat_interval_s
        # A scheduler that does not say sends one plan at a time.
        self._max_num_in_flight = welcome.max_num_steps_in_flight or 1
        self._runner = runner
        self._preparing_thread = preparing_thread
        self._metrics = metrics
        self._steps = StepThread(runner, thread, self._deliver)
        self._last_planned_step = 0
        self._last_sent_step = 0
        self._drain: worker_pb2.Drain | None = None
        self._helpers: set[asyncio.Task[None]] = set()
        self._num_preparing = 0
        # One task writes: a call takes one write at a time, and results and heartbeats may coincide. It never
        # fills, because a plan is in flight, and a grammar unanswered, until its result leaves this queue.
        self._outgoing: asyncio.Queue[worker_pb2.AttachRequest | None] = asyncio.Queue(
            self._max_num_in_flight + MAX_GRAMMARS_PREPARING + _NUM_OTHER_OUTGOING
        )

    async def run(self, messages: AsyncIterator[worker_pb2.AttachResponse]) -> bool:
        """Returns when the scheduler has ended the call: whether it told this worker to stop for good.

        Raises ProtocolBroken or AioRpcError. The step at hand may still run then; nothing comes of it.
        """
        try:
            async with asyncio.TaskGroup() as helpers:
                for helper in (self._run_steps(), self._write_all(), self._heartbeats()):
                    self._start(helpers, helper)
                await self._receive(messages, helpers)
                for task in self._helpers:
                    task.cancel()
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return self._drain is not None and self._drain.stop

    def leave(self, timeout_s: float) -> None:
        """Asks the scheduler to end the call once what runs here has finished or `timeout_s` are over; until then
        plans are run as ever. May be repeated with another time."""
        self._outgoing.put_nowait(worker_pb2.AttachRequest(leaving=worker_pb2.Leaving(timeout_s=timeout_s)))

    def _start(self, group: asyncio.TaskGroup, helper: Coroutine[None, None, None]) -> None:
        task = group.create_task(helper)
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)

    async def _receive(self, messages: AsyncIterator[worker_pb2.AttachResponse], helpers: asyncio.TaskGroup) -> None:
        async for message in messages:
            kind = message.WhichOneof("message")
            if self._drain is not None:
                raise ProtocolBroken(f"{kind or 'an empty message'} came after Drain")
            if kind == "plan":
                self._take_plan(wire.plan_from_proto(message.plan))
            elif kind == "prepare_grammar":
                if self._num_preparing >= MAX_GRAMMARS_PREPARING:
                    raise ProtocolBroken(f"more than {MAX_GRAMMARS_PREPARING} grammars are to be prepared")
                self._num_preparing += 1
                self._start(helpers, self._prepare(message.prepare_grammar))
            elif kind == "drain":
                self._drain = message.drain
                self._steps.finish()
            else:
                raise ProtocolBroken(f"{kind or 'an empty message'} came where a plan was due")

    def _take_plan(self, plan: BatchPlan) -> None:
        if plan.epoch != self._epoch:
            raise ProtocolBroken(f"a plan of epoch {plan.epoch} came in epoch {self._epoch}")
        if plan.step != self._last_planned_step + 1:
            raise ProtocolBroken(f"step {plan.step} followed step {self._last_planned_step}")
        if plan.step > self._last_sent_step + self._max_num_in_flight:
            raise ProtocolBroken(
                f"step {plan.step} was sent before the result of step {plan.step - self._max_num_in_flight}; "
                f"at most {self._max_num_in_flight} may be in flight"
            )
        self._last_planned_step = plan.step
        self._steps.add(plan)

    async def _prepare(self, asked: worker_pb2.PrepareGrammar) -> None:
        loop = asyncio.get_running_loop()
        error = await loop.run_in_executor(self._preparing_thread, self._runner.prepare, asked.grammar)
        answer = worker_pb2.GrammarPrepared(number=asked.number, error=error)
        self._outgoing.put_nowait(worker_pb2.AttachRequest(grammar_prepared=answer))

    async def _run_steps(self) -> None:
        try:
            await self._steps.run()
        except EngineError as error:
            # The plan contradicts the slots; a new attachment starts from a snapshot.
            raise ProtocolBroken(error.message) from error
        self._outgoing.put_nowait(None)

    def _deliver(self, result: StepResult, times: StepTimes) -> None:
        self._metrics.observe_step(result, times)
        self._outgoing.put_nowait(worker_pb2.AttachRequest(step_result=wire.result_to_proto(result)))

    async def _write_all(self) -> None:
        try:
            while (message := await self._outgoing.get()) is not None:
                if message.HasField("step_result"):
                    # Before the write: what the scheduler sends on reading it may come before the write returns.
                    self._last_sent_step = message.step_result.step
                elif message.HasField("grammar_prepared"):
                    self._num_preparing -= 1
                await self._call.write(message)
            await self._call.done_writing()
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            # The call has ended; whoever reads it learns why.
            return

    async def _heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_interval_s)
            # Whatever still waits to be written will be a sign of life itself.
            if self._outgoing.empty():
                heartbeat = worker_pb2.Heartbeat(epoch=self._epoch, step=self._last_sent_step)
                self._outgoing.put_nowait(worker_pb2.AttachRequest(heartbeat=heartbeat))
