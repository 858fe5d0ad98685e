"""torchrun, without the traceback that it writes when a rank fails: the rank has said why."""

from __future__ import annotations

import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

if __name__ == "__main__":
    try:
        run(parse_args(sys.argv[1:]))  # type: ignore[no-untyped-call]
    except (ChildFailedError, SignalException):
        sys.exit(1)
