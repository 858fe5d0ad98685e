"""A worker process: load the model, size the KV memory, attach to the scheduler."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import structlog
import uvloop

from pageloom.config import WorkerConfig
from pageloom.errors import StartupError
from pageloom.status import Loading, WorkerReady
from pageloom.supervision import ParentLink, run_service, run_until_stopped
from pageloom.telemetry import configure_logging, start_metrics_server
from worker_svc.metrics import WorkerMetrics
from worker_svc.parallel.supervisor import supervise
from worker_svc.service import AttachLoop
from worker_svc.simulated import simulated_runner
from worker_svc.step_thread import Runner

if TYPE_CHECKING:
    from worker_svc.runner import ModelRunner

log = structlog.get_logger()


def main(config: WorkerConfig, parent: ParentLink) -> None:
    if config.simulate is not None:
        serve_runner(config, parent, simulated_runner(config), kernels="none: simulated")
    elif config.num_ranks > 1:
        uvloop.run(supervise(config, parent))
    else:
        runner = _model_runner(config, parent)
        serve_runner(config, parent, runner, kernels=runner.kernels)


def serve_runner(config: WorkerConfig, parent: ParentLink, runner: Runner, *, kernels: str) -> None:
    """Attaches to the scheduler until a signal, or the scheduler, ends it."""
    uvloop.run(_serve(config, parent, runner, kernels=kernels))


def _model_runner(config: WorkerConfig, parent: ParentLink) -> ModelRunner:
    # It imports torch, which takes seconds and which a simulated worker can do without.
    from worker_svc.runner import load_runner

    runner = load_runner(config, LoadProgress(parent).report)
    runner.warm_up()
    return runner


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


if __name__ == "__main__":
    service_config = WorkerConfig.from_json(sys.argv[1])
    configure_logging("worker", service_config.log_level)
    link = ParentLink(service_config.status_fd)
    run_service("worker", link, lambda: main(service_config, link))
