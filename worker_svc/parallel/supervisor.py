"""Keeps a worker group alive: starts its ranks on this machine with torchrun, and again when the group has broken.

Inside torchrun nothing is elastic: when one rank ends, all end. The group that starts in their place is a new worker to
the scheduler, which has put the choices of the old one back in its queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
import time

import structlog

from pageloom.config import DEFAULT_HOST, WorkerConfig
from pageloom.errors import StartupError
from pageloom.status import Failed, Status, WorkerReady, decode
from pageloom.supervision import ParentLink, run_until_stopped

log = structlog.get_logger()

_FIRST_DELAY_S = 0.5
_LONGEST_DELAY_S = 10.0
# A group that lasted so long was well.
_WELL_AFTER_S = 60.0
# What ranks get to see that one of them, or this process, is gone.
_END_GRACE_S = 5


async def supervise(config: WorkerConfig, parent: ParentLink) -> None:
    """Returns after the drain that a signal asked for, or when the scheduler has sent the worker away. Raises
    StartupError if the group cannot start."""
    with tempfile.TemporaryDirectory(prefix="pageloom-") as folder:
        supervisor = Supervisor(config, parent, os.path.join(folder, "supervisor.sock"))
        await run_until_stopped(parent, supervisor.serve(), supervisor.drain, config.drain_timeout_s)


class Supervisor:
    """Each rank of this machine connects to the socket at `path`, by which it reports, is told to drain, and sees this
    process end."""

    def __init__(self, config: WorkerConfig, parent: ParentLink, path: str) -> None:
        self._config = config
        self._parent = parent
        self._path = path
        self._links: set[asyncio.StreamWriter] = set()
        self._process: asyncio.subprocess.Process | None = None
        # Why the ranks say that they cannot start.
        self._failure: str | None = None
        self._was_ready = False
        self._is_ready = False
        self._stopping = asyncio.Event()

    async def serve(self) -> None:
        """Runs the group until it ends in order. Raises StartupError. Can be called once."""
        async with await asyncio.start_unix_server(self._hear_rank, self._path):
            delay_s = _FIRST_DELAY_S
            while not self._stopping.is_set():
                started_s = time.monotonic()
                if await self._run_group() == 0 or self._stopping.is_set():
                    return
                self._check_failure()
                if time.monotonic() - started_s > _WELL_AFTER_S:
                    delay_s = _FIRST_DELAY_S
                log.warning("the worker group has ended; it starts again", in_s=delay_s)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), delay_s)
                delay_s = min(2 * delay_s, _LONGEST_DELAY_S)

    async def drain(self, _timeout_s: float) -> None:
        """Makes `serve` return: rank 0 drains, in the time that it knows of; asked again, it hurries. A group that is
        not ready ends at once, and so does one whose rank 0 is on another machine."""
        self._stopping.set()
        if self._is_ready:
            for link in self._links:
                link.write(b".")
        else:
            self._end_group()

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise StartupError(self._failure)
        # With several machines another one may be late.
        if not self._was_ready and self._config.nnodes == 1:
            raise StartupError("a rank of the worker ended before it was ready")

    async def _run_group(self) -> int:
        self._failure, self._is_ready = None, False
        self._process = await asyncio.create_subprocess_exec(
            *self._command(), start_new_session=True, env=_environment(self._config)
        )
        try:
            return await self._process.wait()
        finally:
            self._end_group()
            await self._process.wait()

    def _end_group(self) -> None:
        for link in self._links:
            # Ranks in a session of their own see this; torchrun ends after them.
            link.close()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def _command(self) -> list[str]:
        config = self._config
        host, port = config.master_addr, config.master_port
        if config.nnodes == 1:
            host, port = DEFAULT_HOST, _free_port()
        return [
            sys.executable, "-m", "worker_svc.parallel.torchrun",
            "--nnodes", str(config.nnodes), "--node-rank", str(config.node_rank),
            "--nproc-per-node", str(config.num_local_ranks),
            "--rdzv-backend", "static", "--master-addr", host, "--master-port", str(port),
            "--max-restarts", "0", "--monitor-interval", "0.1", "--shutdown-timeout", str(_END_GRACE_S),
            "-m", "worker_svc.parallel.rank", config.to_json(), self._path,
        ]  # fmt: skip

    async def _hear_rank(self, lines: asyncio.StreamReader, link: asyncio.StreamWriter) -> None:
        self._links.add(link)
        try:
            while line := await lines.readline():
                self._take(decode(line))
        except ConnectionError:
            # A rank that ends with a drain unread.
            pass
        finally:
            self._links.discard(link)
            link.close()

    def _take(self, status: Status) -> None:
        if isinstance(status, Failed):
            self._failure = self._failure or status.message
        elif not self._was_ready or isinstance(status, WorkerReady):
            # Of a group that starts again the parent sees no progress, but where its metrics are then.
            self._parent.report(status)
        if isinstance(status, WorkerReady):
            self._was_ready = self._is_ready = True


def _environment(config: WorkerConfig) -> dict[str, str]:
    # torchrun warns if nobody has set the number of threads; the ranks set their own.
    return {"OMP_NUM_THREADS": str(config.num_threads or 1), "LOGLEVEL": "ERROR", **os.environ}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((DEFAULT_HOST, 0))
        port: int = listener.getsockname()[1]
        return port
