"""The parent's end of a service process: start it, read its events, stop it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Self

from pageloom.config import ServiceConfig
from pageloom.status import Status, decode


def service_environment() -> dict[str, str]:
    """How gRPC's C core behaves in a service, where this process's environment does not say.

    It writes lines of its own to stderr, for events and errors that we report ourselves. And its newer I/O engine
    hands each message from thread to thread, which makes twice as many threads wake up for a step as when the thread
    that waits for events reads the socket itself; each may take a core from the model.
    """
    return {
        "GRPC_VERBOSITY": "NONE",
        "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
        **os.environ,
    }


class ServiceProcess:
    """A running `python -m MODULE CONFIG`, which dies when this process does (see `supervision.py`)."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, lines: asyncio.StreamReader, link: asyncio.StreamWriter
    ) -> None:
        self.name = name
        self._process = process
        self._lines = lines
        # Held open until the child has ended: its closing tells the child that we are gone.
        self._link = link

    @classmethod
    async def start(
        cls, name: str, module: str, config: ServiceConfig, environment: Mapping[str, str] = MappingProxyType({})
    ) -> Self:
        """`environment` is added to this process's own."""
        ours, theirs = socket.socketpair()
        with theirs:
            config = replace(config, status_fd=theirs.fileno())
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", module, config.to_json(),
                pass_fds=[theirs.fileno()], start_new_session=True, env={**service_environment(), **environment},
            )  # fmt: skip
        # A session of its own: Ctrl-C in the terminal reaches the parent alone, which stops its
        # children in an order that loses no request.
        lines, link = await asyncio.open_connection(sock=ours)
        return cls(name, process, lines, link)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def statuses(self) -> AsyncIterator[Status]:
        """Ends when the process does."""
        while line := await self._lines.readline():
            yield decode(line)

    async def wait(self) -> int:
        """The exit code, negative for a signal."""
        code = await self._process.wait()
        self._link.close()
        return code

    async def stop(self, timeout_s: float, *, at_once: bool) -> None:
        """Asks it to drain and end, `at_once` without waiting for what it runs, of which it then says why it ends;
        kills it after `timeout_s`."""
        if self._process.returncode is not None:
            return
        if at_once:
            # As if we were gone: nothing that it waits for will come.
            self._link.write_eof()
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
