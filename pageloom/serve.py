"""What `pageloom serve` shows and does: progress while weights load, a table when ready, an orderly end."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from pageloom.local_stack import LocalStack, StackConfig
from pageloom.status import GatewayReady, Loading, WorkerReady

_MIB = 1024 * 1024
_EXAMPLE_QUESTION = "What is the capital of France?"


def serve_stack(config: StackConfig) -> int:
    """Runs the stack until a signal or a service's end; returns the exit code.

    Raises StartupError if a service cannot start.
    """
    return asyncio.run(_serve(config))


async def _serve(config: StackConfig) -> int:
    console = Console(stderr=True)
    signals = _Signals()
    with _LoadingBar(console) as bar:
        stack = LocalStack(config, bar.update)
        signals.on_second = stack.kill
        async with stack:
            if await signals.come_before(stack.wait_until_ready()):
                return 130
            bar.finish()
            _show_ready(console, config, stack)
            ending = asyncio.ensure_future(stack.wait_for_exit(partial(_show_lost_worker, console)))
            if await signals.come_before(ending):
                console.print("Draining: running requests may finish. Ctrl-C again stops at once.")
                return 0
            name, code = ending.result()
            console.print(f"[red]The {name} ended by itself with exit code {code}. Stopping the others.")
            # Without it no request can finish, so there is nothing to wait for.
            stack.drain = False
            return 1


class _Signals:
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
        await asyncio.wait((signalled, waiting), return_when=asyncio.FIRST_COMPLETED)
        signalled.cancel()
        if waiting.done():
            waiting.result()
            return False
        waiting.cancel()
        return True


class _LoadingBar:
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


def _show_lost_worker(console: Console, name: str, code: int) -> None:
    console.print(f"[red]The {name} ended with exit code {code}. The others go on without it.")


def _show_ready(console: Console, config: StackConfig, stack: LocalStack) -> None:
    assert config.gateway is not None
    gateway = stack.ready(GatewayReady)
    model_name, url = config.gateway.served_model_names[0], gateway.url
    table = Table(title=f"Pageloom serves {model_name}", title_justify="left", show_header=False)
    for row in (
        *_model_rows(stack.ready(WorkerReady), config),
        ("Sampling defaults", gateway.sampling_defaults),
        *_url_rows(url, stack.scheduler_address, config),
    ):
        table.add_row(*row)
    console.print(table)
    body = {"model": model_name, "messages": [{"role": "user", "content": _EXAMPLE_QUESTION}], "temperature": 0}
    console.print("Ask it something:\n")
    # Not wrapped and not marked up, so that it can be pasted.
    command = f"curl -s {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
    console.print(command, soft_wrap=True, markup=False, highlight=False)
    console.print("\nCtrl-C drains and stops.")


def _model_rows(worker: WorkerReady, config: StackConfig) -> Iterator[tuple[str, str]]:
    num_tokens = worker.num_blocks * worker.block_size
    yield "Weights", f"{worker.weights_bytes / _MIB:,.0f} MiB, {worker.dtype}"
    yield "Kernels", worker.kernels
    if config.num_workers > 1:
        yield "Workers", f"{config.num_workers}, each with what follows"
    yield (
        "KV memory",
        f"{worker.kv_bytes / _MIB:,.0f} MiB: {worker.num_blocks:,} blocks of {worker.block_size} tokens, "
        f"{num_tokens:,} tokens",
    )
    yield (
        "Requests",
        f"{num_tokens / worker.max_model_len:.1f} at the full context of {worker.max_model_len:,} tokens; "
        f"at most {config.scheduler.max_num_seqs} in a step",
    )


def _url_rows(url: str, scheduler_address: str, config: StackConfig) -> Iterator[tuple[str, str]]:
    yield "OpenAI API", f"{url}/v1  {url}/docs"
    yield "Health", f"{url}/health  {url}/ready"
    yield "Metrics", f"{url}/metrics"
    for name, service in (("Scheduler metrics", config.scheduler), ("Worker metrics", config.worker)):
        if service.metrics_port is not None:
            yield name, f"http://{service.metrics_host}:{service.metrics_port}/metrics"
    yield "gRPC Engine", scheduler_address
