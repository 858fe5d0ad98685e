"""An async context that is entered and left in one task, for callers that come in several."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

T = TypeVar("T")


class Held(Generic[T]):
    """Task groups and timeouts may live across the context, which they could not if any task left it."""

    def __init__(self, context: AbstractAsyncContextManager[T]) -> None:
        self._context = context
        self._holding: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()

    async def open(self) -> T:
        """Raises what entering raises. Cancelled, it returns when what was begun has been undone."""
        entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._holding = asyncio.create_task(self._hold(entered), name="held context")
        try:
            await asyncio.wait((entered, self._holding), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._holding.cancel()
            await asyncio.wait((self._holding,))
            raise
        if not entered.done():
            self._holding.result()
        return entered.result()

    async def close(self) -> None:
        """Raises what leaving raises. Does nothing unless it is open."""
        holding, self._holding = self._holding, None
        if holding is not None and not holding.done():
            self._leave.set()
            await holding

    async def _hold(self, entered: asyncio.Future[T]) -> None:
        async with self._context as value:
            entered.set_result(value)
            await self._leave.wait()
