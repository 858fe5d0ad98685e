"""Runs the checks of a client's script and says which failed. Needs the standard library only, as each client's
interpreter has no more."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

URL: str = sys.argv[1]  # of the server, without /v1
MODEL: str = sys.argv[2]
ARGUMENTS: list[str] = sys.argv[3:]


def run(namespace: Mapping[str, Any]) -> None:
    """Calls each `check_*` in it, and ends the process: 0 if all passed and there was one."""
    checks = {name: check for name, check in namespace.items() if name.startswith("check_")}
    num_failed = 0
    for name, check in checks.items():
        started = time.monotonic()
        try:
            result = check()
            if inspect.iscoroutine(result):
                asyncio.run(result)
        except Exception as error:
            num_failed += 1
            text = "".join(traceback.format_exception(error, chain=False))
            print(f"FAILED {name}\n{text}", flush=True)
        else:
            print(f"passed {name} ({time.monotonic() - started:.1f} s)", flush=True)
    sys.exit(0 if checks and not num_failed else 1)
