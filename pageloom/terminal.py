"""What commands that start services share: the signals that stop them, and progress while weights load."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from pageloom.status import Loading

_MIB = 1024 * 1024


class StopSignals:
    """Makes the first SIGINT or SIGTERM something to wait for, and calls `on_second` at the next."""

    def __init__(self) -> None:
        self._received = asyncio.Event()
        self.on_second: Callable[[], None] = lambda: None
        for signum in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signum, self._on_signal)

    def _on_signal(self) -> None:
        if self._received.is_set():
            self.on_second()
        self._received.set()

    async def come_before(self, other: Awaitable[object]) -> bool:
        """Waits for a signal or for `other`; whether it was the signal. Raises what `other` raises."""
        signalled, waiting = asyncio.ensure_future(self._received.wait()), asyncio.ensure_future(other)
        try:
            await asyncio.wait((signalled, waiting), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                return True
            waiting.result()
            return False
        finally:
            # Neither goes on without us; what an end of `other` says that was not waited for is for nobody.
            signalled.cancel()
            waiting.cancel()
            await asyncio.gather(signalled, waiting, return_exceptions=True)


class LoadingBar:
    """A progress bar on a terminal; a line for every fifth of the weights elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("Loading weights"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task: TaskID | None = None
        self._printed_fifths = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def update(self, loading: Loading) -> None:
        if self._task is None:
            self._task = self._progress.add_task("weights", total=loading.total_bytes)
        self._progress.update(self._task, completed=loading.done_bytes)
        fifths = 5 * loading.done_bytes // max(loading.total_bytes, 1)
        if fifths > self._printed_fifths and not self._console.is_terminal:
            self._printed_fifths = fifths
            self._console.print(f"Loading weights: {20 * fifths}% of {loading.total_bytes / _MIB:.0f} MiB")

    def finish(self) -> None:
        self._progress.stop()
