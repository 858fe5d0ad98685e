"""How far a batch is, on a terminal as a bar and elsewhere in lines: requests done, tokens per second, failures."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class BatchProgress:
    """Use as context manager; says at its end what was done."""

    def __init__(self, console: Console, num_lines: int) -> None:
        self._console = console
        self._num_lines = num_lines
        self._num_done = self._num_failed = self._num_tokens = 0
        self._printed_tenths = 0
        self._started_s = time.monotonic()
        # A notebook is none, and shows bars all the same.
        self._shows_bar = console.is_terminal or console.is_jupyter
        self._progress = Progress(
            TextColumn("Requests"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:,.0f} tokens/s"),
            TextColumn("{task.fields[failed]} failed"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not self._shows_bar,
        )
        self._task = self._progress.add_task("requests", total=num_lines, rate=0.0, failed=0)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        self._console.print(f"{self._summary()} in {time.monotonic() - self._started_s:.1f} s", highlight=False)

    def count(self, num_tokens: int, *, failed: bool) -> None:
        """One more request has its answer."""
        self._num_done += 1
        self._num_failed += failed
        self._num_tokens += num_tokens
        self._progress.update(self._task, completed=self._num_done, rate=self._rate, failed=self._num_failed)
        tenths = 10 * self._num_done // self._num_lines
        if tenths > self._printed_tenths and not self._shows_bar:
            self._printed_tenths = tenths
            self._console.print(self._summary(), highlight=False)

    @property
    def _rate(self) -> float:
        return self._num_tokens / max(time.monotonic() - self._started_s, 1e-3)

    def _summary(self) -> str:
        done = f"{self._num_done} of {self._num_lines} requests done, {self._num_failed} failed"
        return f"{done}, {self._rate:,.0f} tokens/s"
