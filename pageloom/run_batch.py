"""`pageloom run-batch`: the requests of a file to a gateway, many at a time, and their answers to another file."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from rich.console import Console

from pageloom.batch_client import BatchClient
from pageloom.batch_lines import BATCH_URLS, BatchLine, LineError, count_lines, read_lines
from pageloom.batch_output import BatchOutput
from pageloom.batch_progress import BatchProgress
from pageloom.errors import InvalidConfig, StartupError
from pageloom.local_stack import LocalStack
from pageloom.stack_config import StackConfig
from pageloom.status import GatewayReady
from pageloom.terminal import LoadingBar, StopSignals

STANDARD = "-"
# Far above any text that a model can read.
MAX_LINE_BYTES = 64 * 1024 * 1024
EXIT_FAILED, EXIT_INTERRUPTED = 1, 130


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBatchConfig:
    """`input_file` and `output_file` may be "-". Without `url` a stack is started for the time of the run.

    Raises InvalidConfig if `url` is none.
    """

    input_file: str
    output_file: str
    url: str | None = None
    api_key: str | None = None
    max_concurrency: int = 64

    def __post_init__(self) -> None:
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise InvalidConfig(f"--url must begin with http:// or https://, not {self.url!r}")


def run_batch(config: RunBatchConfig, stack: StackConfig) -> int:
    """The exit code: 0 if every line was answered with success. Raises StartupError."""
    with _input(config.input_file) as source:
        num_lines = count_lines(source, MAX_LINE_BYTES)
        source.seek(0)
        with _output(config.output_file) as output:
            return asyncio.run(_run(config, stack, source, num_lines, output))


async def _run(
    config: RunBatchConfig, stack_config: StackConfig, source: BinaryIO, num_lines: int, output: BatchOutput
) -> int:
    console = Console(stderr=True)
    signals = StopSignals()
    async with _server(config, stack_config, console, signals) as (url, ended):
        if url is None:
            return EXIT_INTERRUPTED
        with BatchProgress(console, num_lines) as progress:
            async with BatchClient(url, config.api_key, is_local=config.url is None) as client:
                sending = asyncio.ensure_future(_send_all(config, client, source, output, progress))
                interrupted = await signals.come_before(_first(sending, ended))
                # Cancels what is under way; each line of the output is whole.
                sending.cancel()
                await asyncio.wait((sending,))
    if interrupted:
        return EXIT_INTERRUPTED
    if sending.cancelled():
        console.print("[red]The server ended before all requests were answered.")
        return EXIT_FAILED
    try:
        sending.result()
    except* OSError as group:
        raise StartupError(f"cannot write the answers: {group.exceptions[0]}") from None
    if not output.num_failed:
        return 0
    if config.output_file != STANDARD:
        console.print(f"What failed, and why: {errors_path(config.output_file)}", highlight=False, soft_wrap=True)
    return EXIT_FAILED


async def _first(sending: asyncio.Future[None], ended: asyncio.Future[object]) -> None:
    await asyncio.wait((sending, ended), return_when=asyncio.FIRST_COMPLETED)


@asynccontextmanager
async def _server(
    config: RunBatchConfig, stack_config: StackConfig, console: Console, signals: StopSignals
) -> AsyncGenerator[tuple[str | None, asyncio.Future[object]]]:
    """Where to send the requests, None if a signal came before that was known; and the server's end."""
    never: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    if config.url is not None:
        yield config.url, never
        return
    with LoadingBar(console) as bar:
        stack = LocalStack(stack_config, bar.update)
        # After the last answer nothing runs.
        stack.drain = False
        signals.on_second = stack.kill
        async with stack:
            if await signals.come_before(stack.wait_until_ready()):
                yield None, never
                return
            bar.finish()
            ended: asyncio.Future[object] = asyncio.ensure_future(stack.wait_for_exit(_ignore))
            try:
                yield stack.ready(GatewayReady).url, ended
            finally:
                ended.cancel()


async def _send_all(
    config: RunBatchConfig, client: BatchClient, source: BinaryIO, output: BatchOutput, progress: BatchProgress
) -> None:
    slots = asyncio.Semaphore(config.max_concurrency)

    async def send(line: BatchLine) -> None:
        if isinstance(line.content, LineError):
            output.refuse(line.number, line.content)
            progress.count(0, failed=True)
            return
        answer = await client.ask(line.content)
        output.take(line.number, line.content.custom_id, answer)
        progress.count(answer.num_tokens, failed=not answer.succeeded)

    lines = read_lines(source, BATCH_URLS, MAX_LINE_BYTES)
    async with asyncio.TaskGroup() as group:
        while (line := await asyncio.to_thread(next, lines, None)) is not None:
            await slots.acquire()
            # Not in the task, which may be cancelled before it begins.
            group.create_task(send(line)).add_done_callback(lambda _: slots.release())


def _ignore(_name: str, _code: int) -> None:
    """A worker that ends leaves its requests to the others."""


@contextmanager
def _input(path: str) -> Generator[BinaryIO]:
    """Standard input is read to its end first, so that it can be counted."""
    if path == STANDARD:
        with tempfile.TemporaryFile() as spool:
            shutil.copyfileobj(sys.stdin.buffer, spool)
            spool.seek(0)
            yield spool
        return
    with _opened(path, "rb") as source:
        yield source


@contextmanager
def _output(path: str) -> Generator[BatchOutput]:
    if path == STANDARD:
        yield BatchOutput(sys.stdout.buffer, lambda: sys.stdout.buffer)
        return
    errors = errors_path(path)
    with ExitStack() as files:
        answers = files.enter_context(_opened(path, "wb"))
        with suppress(OSError):
            # Of an earlier run.
            errors.unlink()
        yield BatchOutput(answers, lambda: files.enter_context(_opened(str(errors), "wb")))


def errors_path(output_file: str) -> Path:
    """Beside the output, for what failed: out.errors.jsonl beside out.jsonl."""
    path = Path(output_file)
    return path.with_name(f"{path.stem}.errors{path.suffix}")


def _opened(path: str, mode: Literal["rb", "wb"]) -> BinaryIO:
    try:
        return open(path, mode)
    except OSError as error:
        verb = "read" if mode == "rb" else "write"
        raise StartupError(f"cannot {verb} {path}: {os.strerror(error.errno or 0).lower()}") from None
