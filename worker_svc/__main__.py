"""A worker process: load the model, size the KV memory, attach to the scheduler; or supervise the ranks that do."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import uvloop

from pageloom.config import WorkerConfig
from pageloom.supervision import ParentLink, run_service
from pageloom.telemetry import configure_logging
from worker_svc.parallel.supervisor import supervise
from worker_svc.serving import LoadProgress, serve_runner
from worker_svc.simulated import simulated_runner

if TYPE_CHECKING:
    from worker_svc.runner import ModelRunner


def main(config: WorkerConfig, parent: ParentLink) -> None:
    if config.simulate is not None:
        serve_runner(config, parent, simulated_runner(config), kernels="none: simulated")
    elif config.num_ranks > 1:
        uvloop.run(supervise(config, parent))
    else:
        runner = _model_runner(config, parent)
        serve_runner(config, parent, runner, kernels=runner.kernels)


def _model_runner(config: WorkerConfig, parent: ParentLink) -> ModelRunner:
    # It imports torch, which takes seconds and which a simulated worker can do without.
    from worker_svc.runner import load_runner

    runner = load_runner(config, LoadProgress(parent).report)
    runner.warm_up()
    return runner


if __name__ == "__main__":
    service_config = WorkerConfig.from_json(sys.argv[1])
    configure_logging("worker", service_config.log_level)
    link = ParentLink(service_config.status_fd)
    run_service("worker", link, lambda: main(service_config, link))
    # The kernel takes back all there is; Python on its own way out visits every object of PyTorch, for a second.
    sys.stdout.flush()
    os._exit(0)
