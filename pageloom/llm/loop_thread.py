"""An event loop in a thread of its own, for callers that have none or must not be held up by ours."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Any thread may call `run`; what runs there belongs to the loop alone. It goes on until the process ends."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._unwatched: set[asyncio.Task[object]] = set()
        # A daemon, so that the process can end.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, run in the loop; raises what it raises. Ctrl-C meanwhile cancels the work, and goes on
        once it has ended; a second one does not wait for that. Raises RuntimeError in a process that was forked from
        the thread's."""
        if self.is_foreign:
            work.close()
            raise RuntimeError(
                "an LLM was made in the process that this one was forked from, and its threads, as those of gRPC, are "
                "not here; start processes that use an LLM by multiprocessing's method 'spawn'"
            )
        ended: Future[T] = Future()
        started: list[asyncio.Task[T]] = []

        def start() -> None:
            task = self._loop.create_task(work)
            started.append(task)
            task.add_done_callback(lambda done: _hand_over(done, ended))

        def cancel() -> None:
            for task in started:
                task.cancel()
            if not started:
                # The signal came before the work was handed over.
                work.close()
                ended.cancel()

        try:
            self._loop.call_soon_threadsafe(start)
            return ended.result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(cancel)
            wait((ended,))
            raise

    def run_soon(self, work: Coroutine[Any, Any, object]) -> None:
        """The same without waiting; for callers in the loop itself."""
        task = self._loop.create_task(work)
        self._unwatched.add(task)
        task.add_done_callback(self._unwatched.discard)

    @property
    def is_foreign(self) -> bool:
        """Whether this process was forked from the thread's, so that the thread is not here."""
        return os.getpid() != self._pid

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread


@cache
def shared_loop() -> LoopThread:
    """The one of this process. gRPC hands events of calls that have ended to their loop whenever another loop polls, so
    one that is closed before the process ends would make it complain."""
    return LoopThread("pageloom")


def _hand_over(task: asyncio.Task[T], ended: Future[T]) -> None:
    if task.cancelled():
        ended.cancel()
        ended.set_running_or_notify_cancel()
    elif (error := task.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(task.result())
