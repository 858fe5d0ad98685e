"""For how long do requests wait because something else holds the event loop?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

INTERVAL_S = 0.1


async def watch_lag(observe: Callable[[float], object]) -> None:
    """Tells for ever by how many seconds a sleeper was woken too late."""
    loop = asyncio.get_running_loop()
    while True:
        due_s = loop.time() + INTERVAL_S
        await asyncio.sleep(INTERVAL_S)
        observe(max(0.0, loop.time() - due_s))
