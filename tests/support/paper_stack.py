"""The real scheduler and the real worker service, joined by real gRPC, around a model on paper."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from pageloom.client import EngineClient
from pageloom.plan import BatchPlan, CacheInfo, ModelInfo, StepResult, WorkerHello
from scheduler_svc.core import Limits, Scheduler
from scheduler_svc.driver import Driver
from scheduler_svc.engine_service import EngineService
from scheduler_svc.metrics import SchedulerMetrics
from scheduler_svc.server import Health, build_server, listen
from scheduler_svc.worker_service import WorkerService
from tests.support.paper_model import PaperWorker, paper_hello
from worker_svc.metrics import WorkerMetrics
from worker_svc.service import AttachLoop

LIMITS = Limits(max_num_seqs=8, max_num_batched_tokens=64, max_num_queued_seqs=16)


class PaperRunner:
    """A runner on paper: takes `step_s` for each step, and starts afresh with each attachment."""

    def __init__(self, hello: WorkerHello, step_s: float = 0.0) -> None:
        self._hello = hello
        self._step_s = step_s
        self._worker: PaperWorker | None = None

    @property
    def model_info(self) -> ModelInfo:
        return self._hello.model

    @property
    def cache_info(self) -> CacheInfo:
        return self._hello.cache

    @property
    def max_num_seqs(self) -> int:
        return self._hello.max_num_seqs

    @property
    def max_num_batched_tokens(self) -> int:
        return self._hello.max_num_batched_tokens

    @property
    def max_num_draft_tokens(self) -> int:
        return self._hello.max_num_draft_tokens

    @property
    def num_stages(self) -> int:
        return 1

    def announce(self, plan: BatchPlan) -> bool:
        raise AssertionError("there is one stage")

    def prepare(self, grammar: str) -> str:
        """As slow as a step; takes every grammar but those that say they are bad."""
        time.sleep(self._step_s)
        return f"{grammar} cannot be used" if grammar.startswith("bad") else ""

    def step(self, plan: BatchPlan) -> StepResult:
        time.sleep(self._step_s)
        if plan.snapshot or self._worker is None:
            self._worker = PaperWorker(self._hello, plan.epoch)
        return self._worker.execute(self._worker.apply(plan))


class PaperStack:
    """A scheduler at `address`; workers come and go."""

    def __init__(self, address: str, driver: Driver, client: EngineClient) -> None:
        self.address = address
        self.driver = driver
        self.client = client

    def worker(self, worker_id: str = "worker", step_s: float = 0.0, hello: WorkerHello | None = None) -> AttachLoop:
        runner = PaperRunner(hello or paper_hello(worker_id), step_s)
        metrics = WorkerMetrics(runner.model_info, runner.cache_info, CollectorRegistry())
        return AttachLoop(runner, self.address, worker_id, metrics)

    @asynccontextmanager
    async def attached(self, worker_id: str = "worker", step_s: float = 0.0) -> AsyncIterator[asyncio.Task[None]]:
        """A worker that is attached; killed without a word at the end if it still runs."""
        task = asyncio.create_task(self.worker(worker_id, step_s).serve())
        await self.wait_for_workers(1)
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def wait_for_workers(self, count: int) -> None:
        async with asyncio.timeout(10):
            # The service pushes no list of workers, so a test has to ask.
            while len((await self.client.info()).workers) != count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def wait_until_idle(self) -> None:
        """Returns when no choice runs or waits and all blocks are free."""
        async with asyncio.timeout(10):
            while True:
                info = await self.client.info()
                blocks_free = all(worker.num_free_blocks == worker.cache.num_blocks for worker in info.workers)
                if info.num_running == info.num_waiting == 0 and blocks_free:
                    return
                await asyncio.sleep(0.01)


@asynccontextmanager
async def paper_stack(
    heartbeat_timeout_s: float = 5.0,
    step_timeout_s: float = 5.0,
    drain_timeout_s: float = 5.0,
    core: Scheduler | None = None,
) -> AsyncIterator[PaperStack]:
    health = Health()
    metrics = SchedulerMetrics(CollectorRegistry())
    core = core or Scheduler(LIMITS)
    driver = Driver(core, metrics, health.set_engine_serving, step_timeout_s, drain_timeout_s)
    workers = WorkerService(driver, first_epoch=1, heartbeat_interval_s=0.1, heartbeat_timeout_s=heartbeat_timeout_s)
    server = build_server(EngineService(driver), workers, health)
    address = listen(server, "127.0.0.1", 0)
    await server.start()
    await health.start()
    try:
        async with EngineClient(address) as client:
            yield PaperStack(address, driver, client)
    finally:
        await server.stop(0.1)
