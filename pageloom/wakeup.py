"""How does one task learn that there is something for it? Lighter than an asyncio.Event, which would add half again to
what a token costs in an `EventBuffer`."""

from __future__ import annotations

import asyncio


class Wakeup:
    """Any number of sources may wake the one task that waits; a wake that comes before the wait is not lost."""

    __slots__ = ("_future", "_woken")

    def __init__(self) -> None:
        self._woken = False
        self._future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        self._woken = True
        future, self._future = self._future, None
        if future is not None and not future.done():
            future.set_result(None)

    async def wait(self) -> None:
        """Returns once it was woken since the last wait. Cancellation loses nothing."""
        if not self._woken:
            self._future = asyncio.get_running_loop().create_future()
            await self._future
        self._woken = False
