"""How does a loaded model come into service? Progress while it loads, then attached until a signal ends it."""

from __future__ import annotations

import structlog
import uvloop

from pageloom.config import WorkerConfig
from pageloom.errors import StartupError
from pageloom.status import Loading, WorkerReady
from pageloom.supervision import ParentLink, run_until_stopped
from pageloom.telemetry import start_metrics_server
from worker_svc.metrics import WorkerMetrics
from worker_svc.service import AttachLoop
from worker_svc.step_thread import Runner

log = structlog.get_logger()


class LoadProgress:
    """Tells the parent about every tensor, and the log about every tenth of the weights."""

    def __init__(self, parent: ParentLink) -> None:
        self._parent = parent
        self._logged_tenths = 0

    def report(self, done_bytes: int, total_bytes: int) -> None:
        told = self._parent.report(Loading(done_bytes=done_bytes, total_bytes=total_bytes))
        if self._parent.exists and not told:
            raise StartupError("its parent has died")
        tenths = 10 * done_bytes // max(total_bytes, 1)
        if tenths > self._logged_tenths:
            self._logged_tenths = tenths
            log.info("loading weights", percent=10 * tenths, total_bytes=total_bytes)


def serve_runner(config: WorkerConfig, parent: ParentLink, runner: Runner, *, kernels: str) -> None:
    """Attaches to the scheduler until a signal, or the scheduler, ends it."""
    uvloop.run(_serve(config, parent, runner, kernels=kernels))


async def _serve(config: WorkerConfig, parent: ParentLink, runner: Runner, *, kernels: str) -> None:
    metrics = WorkerMetrics(runner.model_info, runner.cache_info)
    metrics_url = None
    if config.metrics_port is not None:
        metrics_url = start_metrics_server(config.metrics_host, config.metrics_port)
    ready = WorkerReady(
        dtype=runner.model_info.dtype,
        kernels=kernels,
        max_model_len=runner.model_info.max_model_len,
        weights_bytes=runner.model_info.weights_bytes,
        block_size=runner.cache_info.block_size,
        num_blocks=runner.cache_info.num_blocks,
        kv_bytes=runner.cache_info.kv_bytes,
        metrics_url=metrics_url,
    )
    loop = AttachLoop(
        runner, config.scheduler_address, config.worker_id, metrics, on_attached=lambda: parent.report(ready)
    )
    await run_until_stopped(parent, loop.serve(), loop.stop, config.drain_timeout_s)
