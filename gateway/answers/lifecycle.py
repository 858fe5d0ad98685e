"""Which generations run, who may start one, and what ends one early: the client's disconnect or the drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.types import Receive

from gateway.errors import ClientDisconnected, ShuttingDown
from pageloom.waiting import is_set_within

# Once told to end, a generation only writes its last event.
FAREWELL_S = 2.0


class _Running:
    """One generation: how to end it, and why it was ended."""

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self.cause: Exception | None = None

    def end(self, cause: Exception) -> None:
        if self.cause is None:
            self.cause = cause
            self._timeout.reschedule(asyncio.get_running_loop().time())


class Lifecycle:
    """Owned by the event loop; the generations that run are its only state beside the drain."""

    def __init__(self) -> None:
        self._running: set[_Running] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False
        self._drained = False

    @property
    def num_running(self) -> int:
        return len(self._running)

    def require_accepting(self) -> None:
        """Raises ShuttingDown during the drain."""
        if self.draining:
            raise ShuttingDown("the server is shutting down")

    @asynccontextmanager
    async def running(self, receive: Receive) -> AsyncGenerator[None]:
        """Cancels its body when the client disconnects or the drain runs out of patience, and then raises
        ClientDisconnected or ShuttingDown; or what `receive` has raised. The request's body must have been read."""
        if self._drained:
            # It was accepted before the drain, and its prompt took longer to prepare than the drain took.
            raise ShuttingDown("the server is shutting down")
        running: _Running | None = None
        try:
            async with asyncio.timeout(None) as timeout:
                running = _Running(timeout)
                self._add(running)
                # Not of a TaskGroup, which would put what the body raises into a group.
                watcher = asyncio.create_task(_end_on_disconnect(receive, running))
                try:
                    yield
                finally:
                    watcher.cancel()
                    await asyncio.wait((watcher,))
        except TimeoutError:
            if running is None or running.cause is None:
                raise
            raise running.cause from None
        finally:
            if running is not None:
                self._remove(running)

    async def drain(self, timeout_s: float) -> None:
        """Refuses new generations; returns when the running ones have ended, which after `timeout_s`
        they are made to."""
        self.draining = True
        idle = await is_set_within(self._idle, timeout_s)
        self._drained = True
        if not idle:
            for running in self._running:
                running.end(ShuttingDown("the server is shutting down"))
            await is_set_within(self._idle, FAREWELL_S)

    def _add(self, running: _Running) -> None:
        self._running.add(running)
        self._idle.clear()

    def _remove(self, running: _Running) -> None:
        self._running.discard(running)
        if not self._running:
            self._idle.set()


async def _end_on_disconnect(receive: Receive, running: _Running) -> None:
    # Starlette cancels neither plain handlers nor, on this server, streaming ones.
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
        running.end(ClientDisconnected())
    except Exception as error:
        running.end(error)
