"""Does something happen in time?"""

from __future__ import annotations

import asyncio


async def is_set_within(event: asyncio.Event, timeout_s: float) -> bool:
    """Returns at once if it is set, and after `timeout_s` at the latest."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
