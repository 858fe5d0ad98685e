"""How is a server started for a comparison, and what does it hold? From its command to its last process gone."""

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Self

import psutil

from benchmarks.completions import encode_request, read_completion
from benchmarks.errors import BenchmarkError
from benchmarks.http_connection import Endpoint, HttpConnection
from benchmarks.load import first_model
from benchmarks.workloads import CompletionRequest

PORT_FIELD = "{port}"
_POLL_S = 0.05
_STOP_TIMEOUT_S = 30.0
_NUM_LOG_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """How to start a server, and what to call it."""

    label: str
    command: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads "LABEL=COMMAND". Raises BenchmarkError."""
        label, equals, command = text.partition("=")
        if not equals or not label.strip() or PORT_FIELD not in command:
            raise BenchmarkError(f"--server must be LABEL=COMMAND with {PORT_FIELD} in the command, not {text!r}")
        return cls(label=label.strip(), command=command.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server that has answered a first request, `ready_s` after it was started."""

    endpoint: Endpoint
    model: str
    ready_s: float
    process: psutil.Process

    def resident_bytes(self) -> int:
        """Of all its processes, pages that they share counted once."""
        processes = [self.process, *self.process.children(recursive=True)]
        return sum(process.memory_full_info().pss for process in processes)


@contextlib.contextmanager
def started(server: ServerCommand) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the command in a session of its own, all of which is gone afterwards; a failure shows its last lines."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            shlex.split(server.command), stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        except BenchmarkError as error:
            raise BenchmarkError(f"{server.label}: {error}\n{_last_lines(log)}") from error
        finally:
            _stop(process)


async def ready(process: subprocess.Popen[bytes], port: int, timeout_s: float) -> RunningServer:
    """Waits until it has generated a first token. Raises BenchmarkError if it ends before, or takes too long."""
    started_s = time.monotonic()
    endpoint = Endpoint.parse(f"http://127.0.0.1:{port}")
    while True:
        try:
            model = await first_model(endpoint, timeout_s)
            await _first_token(endpoint, model)
        except BenchmarkError as error:
            if process.poll() is not None:
                raise BenchmarkError(f"it ended with code {process.returncode} before it was ready") from None
            if time.monotonic() - started_s > timeout_s:
                raise BenchmarkError(f"it was not ready after {timeout_s:g} s: {error}") from None
            await asyncio.sleep(_POLL_S)
        else:
            ready_s = time.monotonic() - started_s
            return RunningServer(endpoint=endpoint, model=model, ready_s=ready_s, process=psutil.Process(process.pid))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def with_port(server: ServerCommand, port: int) -> ServerCommand:
    return ServerCommand(label=server.label, command=server.command.replace(PORT_FIELD, str(port)))


async def _first_token(endpoint: Endpoint, model: str) -> None:
    request = CompletionRequest(prompt_token_ids=(1000, 1001), num_output_tokens=1)
    connection = await HttpConnection.open(endpoint)
    try:
        read_completion(await connection.exchange(encode_request(endpoint, model, request)), request)
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Asks it to end, then ends whatever is left of its session."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_lines(log: IO[bytes]) -> str:
    log.seek(0)
    return "\n".join(log.read().decode(errors="replace").splitlines()[-_NUM_LOG_LINES:])
