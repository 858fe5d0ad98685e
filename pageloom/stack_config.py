"""The settings of the services that one host runs together, and what differs between several of a kind."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from pageloom.config import GatewayConfig, SchedulerConfig, WorkerConfig
from pageloom.errors import InvalidConfig
from pageloom.setting_checks import MAX_PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class StackConfig:
    """Settings of all services. The others dial a unix socket of the scheduler, whatever address they have.

    With several workers each gets a name, a metrics port, its part of the CPU's threads, and GPUs of its own. Several
    gateways share one port, between which the system spreads connections. They have their metrics and their stored
    responses in common, but store no files: the next request may reach another one.
    """

    scheduler: SchedulerConfig
    worker: WorkerConfig
    gateway: GatewayConfig | None
    num_workers: int = 1
    num_gateways: int = 1

    def __post_init__(self) -> None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        num_gpus = self.num_workers * self.worker.num_local_ranks
        if num_gpus > 1 and visible and len(visible.split(",")) < num_gpus:
            asked = f"--data-parallel-size {self.num_workers}"
            if self.worker.num_local_ranks > 1:
                asked += f" with {self.worker.num_local_ranks} ranks each"
            raise InvalidConfig(f"{asked} needs {num_gpus} GPUs, but CUDA_VISIBLE_DEVICES is {visible!r}")
        if self.worker.nnodes > 1 and (self.num_workers > 1 or self.worker.node_rank):
            raise InvalidConfig(
                "with --nnodes, --data-parallel-size and --node-rank are those of one worker on machine 0; the other "
                "machines run pageloom worker"
            )
        if self.num_gateways > 1 and self.gateway is not None and self.gateway.batch_dir is not None:
            raise InvalidConfig("--batch-dir needs --api-server-count 1: several gateways store no files")
        first_port = self.worker.metrics_port
        if first_port is not None and first_port + self.num_workers - 1 > MAX_PORT:
            raise InvalidConfig(
                f"--worker-metrics-port must be at most {MAX_PORT - self.num_workers + 1} with --data-parallel-size "
                f"{self.num_workers}, because each worker takes the next port, not {first_port}"
            )

    def worker_config(self, index: int) -> WorkerConfig:
        worker = self.worker
        if self.num_workers == 1:
            return worker
        num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return replace(
            worker,
            worker_id=f"worker-{index}",
            # Of port 0 each gets one that is free.
            metrics_port=worker.metrics_port + index if worker.metrics_port else worker.metrics_port,
            num_threads=worker.num_threads or max(1, num_cores // (self.num_workers * worker.num_local_ranks)),
        )

    def gateway_config(
        self, gateway: GatewayConfig, scheduler_address: str, port: int, directory: str
    ) -> GatewayConfig:
        """`directory` is for what several gateways have in common."""
        gateway = replace(gateway, scheduler_address=scheduler_address, port=port)
        if self.num_gateways == 1:
            return gateway
        return replace(gateway, shares_port=True, shared_dir=directory, max_stored_files=0)

    def gateway_environment(self, directory: str) -> dict[str, str]:
        """What differs from this process's own environment. prometheus_client reads it when it is imported."""
        return {} if self.num_gateways == 1 else {"PROMETHEUS_MULTIPROC_DIR": directory}

    def worker_environment(self, index: int) -> dict[str, str]:
        """What differs from this process's own environment."""
        if self.num_workers == 1:
            return {}
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible == "":
            # No GPU is to be used.
            return {}
        num_ranks = self.worker.num_local_ranks
        gpus = [str(gpu) for gpu in range(self.num_workers * num_ranks)] if visible is None else visible.split(",")
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[index * num_ranks : (index + 1) * num_ranks])}
