"""One attached worker: send it plans, take their results in order, notice its loss."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from pageloom import wire
from pageloom.grammar_limits import MAX_GRAMMARS_PREPARING
from pageloom.plan import BatchPlan, StepResult, WorkerHello
from pageloom.rpc.v1 import worker_pb2
from pageloom.wakeup import Wakeup
from scheduler_svc.grammar_questions import GrammarQuestions

# Welcome, Drain, no more plans than may be in flight, and grammars: this never fills.
_MAX_OUTGOING = 8 + MAX_GRAMMARS_PREPARING


class WorkerLost(Exception):
    """The worker closed its stream, fell silent, or broke the protocol."""


class WorkerLeft(Exception):
    """The worker asked to leave, or was sent away, and is gone."""


class WorkerLink:
    """The scheduler's end of one Attach stream; the driver's `drive` is the only one that sends plans."""

    def __init__(
        self,
        hello: WorkerHello,
        epoch: int,
        messages: AsyncIterator[worker_pb2.AttachRequest],
        write: Callable[[worker_pb2.AttachResponse], Awaitable[None]],
    ) -> None:
        self.hello = hello
        self.epoch = epoch
        # When it has to be gone, if it leaves; and whether its process is to end then.
        self.leave_at: float | None = None
        self.stop = False
        self.detached = asyncio.Event()
        self._last_step = 0
        self._messages = messages
        self._write = write
        # One task writes: a call takes one write at a time, and a drain may coincide with a plan.
        self._outgoing: asyncio.Queue[worker_pb2.AttachResponse] = asyncio.Queue(_MAX_OUTGOING)
        self._superseded = asyncio.Event()
        self._grammars = GrammarQuestions(self._send_grammar)
        # Steps whose results are due, with the time from when the worker can have worked at each.
        self._due: deque[tuple[int, float]] = deque()
        self._results: deque[tuple[StepResult, float]] = deque()
        self._happened = Wakeup()
        self._last_heard_s = time.monotonic()

    def welcome(self, heartbeat_interval_s: float, max_num_steps_in_flight: int) -> None:
        """The first message down."""
        message = worker_pb2.Welcome(
            epoch=self.epoch,
            heartbeat_interval_s=heartbeat_interval_s,
            max_num_steps_in_flight=max_num_steps_in_flight,
        )
        self._outgoing.put_nowait(worker_pb2.AttachResponse(welcome=message))

    async def write_all(self) -> None:
        """Writes what the other methods send; never returns."""
        while True:
            await self._write(await self._outgoing.get())

    def send(self, plan: BatchPlan) -> None:
        self._due.append((plan.step, time.monotonic()))
        self._outgoing.put_nowait(worker_pb2.AttachResponse(plan=wire.plan_to_proto(plan)))

    def prepare(self, grammar: str) -> asyncio.Future[str]:
        """Has the worker compile a grammar beside its steps: `GrammarQuestions.ask`."""
        return self._grammars.ask(grammar)

    def end(self) -> None:
        """The worker is gone."""
        self._grammars.end()
        self.detached.set()

    @property
    def working_since_s(self) -> float | None:
        """From when it can have worked at the oldest step whose result is due; None if none is."""
        return self._due[0][1] if self._due else None

    def take_results(self) -> list[tuple[StepResult, float]]:
        """What has come since the last call, each with the seconds from when the worker could have begun."""
        results = list(self._results)
        self._results.clear()
        return results

    async def wait(self, timeout_s: float | None) -> None:
        """Until a result comes, `wake` is called, or so much time has passed."""
        # Almost every wait of a busy worker ends by its time: `asyncio.timeout` would raise an exception for each.
        timer = None if timeout_s is None else asyncio.get_running_loop().call_later(timeout_s, self._happened.wake)
        try:
            await self._happened.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        """There may be work, or a reason to go."""
        self._happened.wake()

    def leave(self, timeout_s: float, *, stop: bool) -> None:
        """It is to go when it has nothing left to run, or after `timeout_s`."""
        leave_at = time.monotonic() + timeout_s
        self.leave_at = leave_at if self.leave_at is None else min(self.leave_at, leave_at)
        self.stop |= stop
        self.wake()

    def send_away(self) -> None:
        """No plans will come: it then closes its stream."""
        self._outgoing.put_nowait(worker_pb2.AttachResponse(drain=worker_pb2.Drain(stop=self.stop)))

    def supersede(self) -> None:
        """The same process has dialled again, so this stream is dead: makes `watch` raise WorkerLost."""
        self._superseded.set()

    async def receive(self) -> None:
        """Reads the worker's messages until it is gone. Raises WorkerLost, or WorkerLeft if it was leaving."""
        async for message in self._messages:
            self._last_heard_s = time.monotonic()
            kind = message.WhichOneof("message")
            if kind == "step_result":
                self._take(message.step_result)
            elif kind == "grammar_prepared":
                self._take_prepared(message.grammar_prepared)
            elif kind == "heartbeat":
                self._last_step = message.heartbeat.step
            elif kind == "leaving":
                self.leave(max(0.0, message.leaving.timeout_s), stop=False)
            else:
                raise WorkerLost(f"it sent {kind or 'an empty message'} where a result or heartbeat was due")
        if self.leave_at is not None:
            raise WorkerLeft
        raise WorkerLost("it closed its stream")

    def _take(self, message: worker_pb2.StepResult) -> None:
        try:
            result = wire.result_from_proto(message)
        except ValueError as error:
            raise WorkerLost(f"it sent a malformed result: {error}") from None
        if result.epoch != self.epoch:
            return
        if not self._due or result.step != self._due[0][0]:
            raise WorkerLost(f"it sent the result of step {result.step}, which was not due")
        now_s = time.monotonic()
        _, since_s = self._due.popleft()
        self._results.append((result, now_s - since_s))
        if self._due:
            # It cannot have worked at the next one before.
            step, sent_s = self._due[0]
            self._due[0] = (step, max(sent_s, now_s))
        self._happened.wake()

    def _send_grammar(self, number: int, grammar: str) -> None:
        message = worker_pb2.PrepareGrammar(number=number, grammar=grammar)
        self._outgoing.put_nowait(worker_pb2.AttachResponse(prepare_grammar=message))

    def _take_prepared(self, message: worker_pb2.GrammarPrepared) -> None:
        try:
            self._grammars.take(message.number, message.error)
        except KeyError:
            raise WorkerLost("it told of a grammar that it was not asked about") from None

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
