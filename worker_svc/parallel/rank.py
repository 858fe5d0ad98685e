"""One rank of a worker group, started by torchrun: the first serves the scheduler, the others follow it."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING

from pageloom.config import WorkerConfig
from pageloom.supervision import ParentLink, run_service
from pageloom.telemetry import configure_logging

if TYPE_CHECKING:
    from worker_svc.parallel.group import Group


def main(config: WorkerConfig, supervisor: socket.socket, link: ParentLink) -> None:
    """Returns at the orderly end of the group. Raises StartupError if it cannot start."""
    # It imports torch, which takes seconds; whoever supervises has its connection by now.
    from worker_svc.device import resolve_device
    from worker_svc.parallel.group import Group, Place, communication
    from worker_svc.parallel.watch import GroupLost, end_with_group

    place = Place.of(config, os.environ)
    is_leader = place.layout.rank == 0
    device = resolve_device(config.device, place.local_rank)
    try:
        with communication(place, device):
            # Rank 0's event loop sees its supervisor's end by itself.
            group = Group.join(place, device, None if is_leader else supervisor)
            if is_leader:
                _lead(config, link, group)
            else:
                _follow(config, group)
            group.leave()
    except* GroupLost as lost:
        # Whatever task or thread it came from, the reason is the same.
        first: BaseException = lost
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        end_with_group(str(first))


def _lead(config: WorkerConfig, link: ParentLink, group: Group) -> None:
    from worker_svc.runner import load_runner
    from worker_svc.serving import LoadProgress, serve_runner

    runner = load_runner(config, LoadProgress(link).report, group)
    runner.warm_up()
    serve_runner(config, link, runner, kernels=runner.kernels)


def _follow(config: WorkerConfig, group: Group) -> None:
    from pageloom.model_files import locate_model
    from worker_svc.loader import open_checkpoint
    from worker_svc.model_part import load_part
    from worker_svc.parallel.follower import follow

    files = locate_model(config.model)
    checkpoint = open_checkpoint(files)
    part = load_part(config, files, checkpoint, lambda _done_bytes, _total_bytes: None, group)
    ranks = group.ranks(checkpoint.config.vocab_size)
    follow(group.receiver(part.device), part.model, part.cache, ranks)


def _run(config: WorkerConfig, supervisor_path: str) -> None:
    supervisor = socket.socket(socket.AF_UNIX)
    try:
        supervisor.connect(supervisor_path)
    except OSError:
        # Nobody is left to tell.
        sys.exit(1)
    link = ParentLink(os.dup(supervisor.fileno()))
    run_service("worker", link, lambda: main(config, supervisor, link))


if __name__ == "__main__":
    service_config = WorkerConfig.from_json(sys.argv[1])
    configure_logging(f"worker rank {os.environ['RANK']}", service_config.log_level)
    _run(service_config, sys.argv[2])
