"""A scheduler process: core, driver and gRPC server wired together, and an orderly end."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import structlog
import uvloop

from pageloom.config import SchedulerConfig
from pageloom.policies import Placement, SchedulingPolicy
from pageloom.status import SchedulerReady
from pageloom.supervision import ParentLink, run_service, run_until_stopped
from pageloom.telemetry import configure_logging, start_metrics_server
from scheduler_svc.core import Limits, Scheduler
from scheduler_svc.driver import Driver
from scheduler_svc.engine_service import EngineService
from scheduler_svc.metrics import SchedulerMetrics
from scheduler_svc.recording import RecordingFile, RecordingScheduler
from scheduler_svc.server import Health, build_server, listen, listen_unix
from scheduler_svc.worker_service import WorkerService

log = structlog.get_logger()

# What open streams get to send their last message once nothing runs.
_CLOSE_GRACE_S = 1.0


async def serve(config: SchedulerConfig, parent: ParentLink) -> None:
    """Runs the scheduler until it is told to stop."""
    with _core(config) as core:
        await _serve(core, config, parent)


async def _serve(core: Scheduler, config: SchedulerConfig, parent: ParentLink) -> None:
    health = Health()
    driver = Driver(
        core,
        SchedulerMetrics(),
        health.set_engine_serving,
        config.step_timeout_s,
        config.drain_timeout_s,
    )
    worker_service = WorkerService(
        driver,
        # Above every epoch of a scheduler that ran here before, as long as attachments are rarer than milliseconds.
        first_epoch=time.time_ns() // 1_000_000,
        heartbeat_interval_s=config.heartbeat_interval_s,
        heartbeat_timeout_s=config.heartbeat_timeout_s,
    )
    server = build_server(EngineService(driver), worker_service, health)
    metrics_url = None
    if config.metrics_port is not None:
        metrics_url = start_metrics_server(config.metrics_host, config.metrics_port)
    address = listen(server, config.host, config.port)
    socket_address = None if config.socket_path is None else listen_unix(server, config.socket_path)
    await server.start()
    # What start-up made lives as long as the process; the collector need not look at it in mid-step.
    gc.collect()
    gc.freeze()
    await health.start()
    log.info("listening", address=address, socket_address=socket_address)
    parent.report(SchedulerReady(address=address, socket_address=socket_address, metrics_url=metrics_url))

    async def drain(timeout_s: float) -> None:
        await driver.drain(timeout_s)
        await server.stop(_CLOSE_GRACE_S)

    async def run() -> None:
        await server.wait_for_termination()

    try:
        await run_until_stopped(parent, run(), drain, config.drain_timeout_s)
    finally:
        # Removes the unix socket however the run ended.
        await server.stop(None)


@contextmanager
def _core(config: SchedulerConfig) -> Iterator[Scheduler]:
    limits = _limits(config)
    if config.record_path is None:
        yield Scheduler(limits)
        return
    with closing(RecordingFile(Path(config.record_path), limits)) as recording:
        yield RecordingScheduler(limits, recording.put)


def _limits(config: SchedulerConfig) -> Limits:
    return Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_queued_seqs=config.max_num_queued_seqs,
        enable_prefix_caching=config.enable_prefix_caching,
        max_num_steps_in_flight=config.max_num_steps_in_flight,
        scheduling_policy=SchedulingPolicy(config.scheduling_policy),
        placement=Placement(config.placement),
        priority_ageing_s=config.priority_ageing_s,
    )


if __name__ == "__main__":
    service_config = SchedulerConfig.from_json(sys.argv[1])
    configure_logging("scheduler", service_config.log_level)
    link = ParentLink(service_config.status_fd)
    run_service("scheduler", link, lambda: uvloop.run(serve(service_config, link)))
