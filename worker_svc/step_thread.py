"""How do plans reach the model's thread, and results the event loop, with no trip through the loop between steps?"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from pageloom.plan import BatchPlan, CacheInfo, ModelInfo, StepResult


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

    @property
    def max_num_draft_tokens(self) -> int: ...

    @property
    def num_stages(self) -> int:
        """As many steps can run at one time, each in another stage, if `announce` has said so."""

    def announce(self, plan: BatchPlan) -> bool:
        """Begins a plan that `step` gets after those before it; whether that is possible. Not called with one stage."""

    def step(self, plan: BatchPlan) -> StepResult: ...

    def prepare(self, grammar: str) -> str:
        """What is wrong with a grammar that requests will bring, "" if nothing is. Called in another thread than the
        rest, while steps run."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Where the model's thread was. The last two are None if no slot stayed bound since the step before: the
    thread then had nothing to do, however long that was."""

    step_s: float
    idle_s: float | None  # from the end of the step before to the start of this one
    plan_wait_s: float | None  # the part of it in which this step's plan had not come


@dataclass(slots=True, kw_only=True)
class _Queued:
    plan: BatchPlan
    continues: bool  # whether a slot stays bound since the plan before
    announced: bool = False  # written by the model's thread


class StepThread:
    """Runs the plans of one attachment in the one thread of `executor`, in the order in which they were added, and
    hands each result to `deliver` on the event loop. The queue is as long as whoever adds lets it become."""

    def __init__(self, runner: Runner, executor: Executor, deliver: Callable[[StepResult, StepTimes], None]) -> None:
        self._runner = runner
        self._executor = executor
        self._deliver = deliver
        self._num_bound = 0
        # The one thing that both threads touch. None: nothing comes after it.
        self._plans: SimpleQueue[_Queued | None] = SimpleQueue()
        # Out of it already, by the model's thread.
        self._taken: deque[_Queued | None] = deque()

    def add(self, plan: BatchPlan) -> None:
        num_kept = 0 if plan.snapshot else self._num_bound - len(plan.released_slots)
        self._num_bound = num_kept + len(plan.admissions)
        self._plans.put(_Queued(plan=plan, continues=num_kept > 0))

    def finish(self) -> None:
        """No more plans will be added: `run` returns once the result of the last one was delivered."""
        self._plans.put(None)

    async def run(self) -> None:
        """Raises what the runner raises. When it is cancelled, the thread ends after the step at hand; a job that
        starts in that thread later waits for it."""
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, self._run_all, loop)
        finally:
            self._abandon()

    def _abandon(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._plans.get_nowait()
        self._plans.put(None)

    def _run_all(self, loop: asyncio.AbstractEventLoop) -> None:
        ended_s = time.perf_counter()
        while True:
            asked_s = time.perf_counter()
            queued = self._next()
            if queued is None:
                return
            self._announce_following(queued)
            started_s = time.perf_counter()
            idle_s, plan_wait_s = (started_s - ended_s, started_s - asked_s) if queued.continues else (None, None)
            result = self._runner.step(queued.plan)
            ended_s = time.perf_counter()
            times = StepTimes(step_s=ended_s - started_s, idle_s=idle_s, plan_wait_s=plan_wait_s)
            loop.call_soon_threadsafe(self._deliver, result, times)

    def _next(self) -> _Queued | None:
        return self._taken.popleft() if self._taken else self._plans.get()

    def _announce_following(self, first: _Queued) -> None:
        """Has the stages before the last one begin what they can, up to a step for each."""
        num_stages = self._runner.num_stages
        if num_stages == 1:
            return
        with contextlib.suppress(Empty):
            while len(self._taken) < num_stages - 1 and None not in self._taken:
                self._taken.append(self._plans.get_nowait())
        for queued in (first, *self._taken):
            if queued is None:
                return
            if not queued.announced:
                queued.announced = self._runner.announce(queued.plan)
            if not queued.announced:
                return
