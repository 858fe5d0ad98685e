"""How a service process and the parent that started it know of each other.

Parent and child share a socket pair. The child writes one line of `status.py` per event; when either end
dies, the kernel closes its end and the other sees the end of the stream. So no child outlives its
parent, not even one killed with SIGKILL, and nothing polls.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine

from pageloom.errors import StartupError
from pageloom.status import Failed, Status, encode

# From linux/prctl.h.
_PR_SET_PDEATHSIG = 1
# After drain(0), what a service gets to return by itself.
_LAST_GRACE_S = 3.0


class ParentLink:
    """The child's end. Without a parent (`status_fd` is None) reports go nowhere."""

    def __init__(self, status_fd: int | None) -> None:
        self._socket = None if status_fd is None else socket.socket(fileno=status_fd)

    @property
    def exists(self) -> bool:
        """Whether this process was started by a parent; it may have died since."""
        return self._socket is not None

    def report(self, status: Status) -> bool:
        """Tells the parent, from any thread; whether there is one that got it."""
        if self._socket is None:
            return False
        try:
            self._socket.sendall(encode(status))
        except OSError:
            # The end of the stream tells wait_for_parent_exit the same.
            return False
        return True

    async def wait_for_parent_exit(self, on_stop: Callable[[], None]) -> None:
        """Returns when the parent has died or closed its end; never, if there is no parent. Calls `on_stop` for each
        byte that the parent sends, which stands for a signal to stop where it cannot send one."""
        if self._socket is None:
            await asyncio.get_running_loop().create_future()
            return
        self._socket.setblocking(False)
        while await asyncio.get_running_loop().sock_recv(self._socket, 1):
            on_stop()


async def run_until_stopped(
    parent: ParentLink,
    serve: Coroutine[None, None, None],
    drain: Callable[[float], Coroutine[None, None, None]],
    drain_timeout_s: float,
) -> None:
    """Runs `serve` to its end. The first SIGTERM or SIGINT calls `drain(drain_timeout_s)`, which makes
    `serve` return once its work is done or the time is up; a second one, or the parent's death, calls
    `drain(0)`."""
    loop = asyncio.get_running_loop()
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    async def on_parent_exit() -> None:
        await parent.wait_for_parent_exit(on_signal)
        stop.set()
        hurry.set()

    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, on_signal)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(serve)
        watchers = (
            group.create_task(on_parent_exit()),
            group.create_task(_drain_when_told(stop, hurry, drain, drain_timeout_s, serving)),
        )
        await asyncio.wait([serving])
        for watcher in watchers:
            watcher.cancel()


async def _drain_when_told(
    stop: asyncio.Event,
    hurry: asyncio.Event,
    drain: Callable[[float], Coroutine[None, None, None]],
    drain_timeout_s: float,
    serving: asyncio.Task[None],
) -> None:
    await stop.wait()
    async with asyncio.TaskGroup() as group:
        draining = group.create_task(drain(drain_timeout_s))
        await hurry.wait()
        draining.cancel()
    await drain(0.0)
    await asyncio.sleep(_LAST_GRACE_S)
    serving.cancel()


def end_when_parent_ends() -> None:
    """Makes the kernel send this process SIGTERM when its parent ends, which `make` for one would not tell it.

    Raises StartupError where the system cannot do that.
    """
    parent = os.getppid()
    if not sys.platform.startswith("linux") or ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        raise StartupError("--end-with-parent works on Linux only")
    if os.getppid() != parent:
        raise StartupError("the process that started this one has ended")


def run_service(name: str, parent: ParentLink, main: Callable[[], None]) -> None:
    """Calls a service's main function; a StartupError becomes one line and exit code 1."""
    try:
        main()
    except* StartupError as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        # A parent says it in its own words; without one this line is all there is.
        if not parent.report(Failed(message=str(error))):
            print(f"pageloom {name}: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except* KeyboardInterrupt:
        sys.exit(130)
