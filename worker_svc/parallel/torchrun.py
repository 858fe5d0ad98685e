"""torchrun, without what it writes when a rank fails: the rank has said why, unless a signal ended it. And no rank is
started for a model that cannot be split so: a wrong number may be one of hundreds."""

from __future__ import annotations

import contextlib
import logging
import socket
import sys

import structlog
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from pageloom.config import WorkerConfig
from pageloom.errors import StartupError
from pageloom.model_files import locate_model
from pageloom.supervision import ParentLink, end_when_parent_ends, run_service
from pageloom.telemetry import configure_logging
from worker_svc.loader import open_checkpoint
from worker_svc.parallel.layout import Layout, check_layout

log = structlog.get_logger()


def main(arguments: list[str]) -> int:
    """The exit code. The last two arguments are those of `rank.py`."""
    logging.disable(logging.ERROR)
    # On Linux; elsewhere the ranks see that their supervisor is gone, and this process sees it by them.
    with contextlib.suppress(StartupError):
        end_when_parent_ends()
    config, supervisor_path = WorkerConfig.from_json(arguments[-2]), arguments[-1]
    supervisor = socket.socket(socket.AF_UNIX)
    try:
        supervisor.connect(supervisor_path)
    except OSError:
        # Nobody is left to tell.
        return 1
    run_service("worker", ParentLink(supervisor.detach()), lambda: _check_split(config))
    try:
        run(parse_args(arguments))  # type: ignore[no-untyped-call]
    except SignalException:
        return 1
    except ChildFailedError as error:
        _tell_of_signals(error)
        return 1
    return 0


def _check_split(config: WorkerConfig) -> None:
    layout = Layout(tensor_size=config.tensor_parallel_size, pipeline_size=config.pipeline_parallel_size)
    check_layout(layout, open_checkpoint(locate_model(config.model)).config)


def _tell_of_signals(error: ChildFailedError) -> None:
    logging.disable(logging.NOTSET)
    configure_logging("worker", "error")
    first = error.get_first_failure()[1]
    if first.exitcode < 0:
        log.error("a signal ended a rank", signal=first.signal_name(), local_rank=first.local_rank, pid=first.pid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
