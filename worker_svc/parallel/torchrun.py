"""torchrun, without what it writes when a rank fails: the rank has said why, unless a signal ended it."""

from __future__ import annotations

import contextlib
import logging
import sys

import structlog
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from pageloom.errors import StartupError
from pageloom.supervision import end_when_parent_ends
from pageloom.telemetry import configure_logging

log = structlog.get_logger()


def main(arguments: list[str]) -> int:
    """The exit code."""
    logging.disable(logging.ERROR)
    # On Linux; elsewhere the ranks see that their supervisor is gone, and this process sees it by them.
    with contextlib.suppress(StartupError):
        end_when_parent_ends()
    try:
        run(parse_args(arguments))  # type: ignore[no-untyped-call]
    except SignalException:
        return 1
    except ChildFailedError as error:
        _tell_of_signals(error)
        return 1
    return 0


def _tell_of_signals(error: ChildFailedError) -> None:
    logging.disable(logging.NOTSET)
    configure_logging("worker", "error")
    first = error.get_first_failure()[1]
    if first.exitcode < 0:
        log.error("a signal ended a rank", signal=first.signal_name(), local_rank=first.local_rank, pid=first.pid)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
