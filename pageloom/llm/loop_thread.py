"""An event loop in a thread of its own, for callers that have none or must not be held up by ours."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Any thread may call `run`; what runs there belongs to the loop alone."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon: a program that never closes it can end all the same.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, run in the loop; raises what it raises. Ctrl-C meanwhile cancels the work, and goes on
        once it has ended; a second one does not wait for that."""
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

    def close(self) -> None:
        """Ends the loop; nothing may run in it any more."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _hand_over(task: asyncio.Task[T], ended: Future[T]) -> None:
    if task.cancelled():
        ended.cancel()
        ended.set_running_or_notify_cancel()
    elif (error := task.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(task.result())
