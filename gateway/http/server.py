"""uvicorn, set up for us: how it binds, and that it leaves signals and logs alone."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Generator

import uvicorn
from fastapi import FastAPI

from pageloom.errors import StartupError

BACKLOG = 2048
KEEP_ALIVE_S = 75
# After the drain only connections without a request are left.
CLOSE_CONNECTIONS_S = 2


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A bound socket that does not listen yet: clients are refused until the gateway serves. A `shared` port may be
    bound by other processes of this user that share it too; the system spreads new connections between them.

    Raises StartupError if the address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise StartupError(f"cannot listen on {host}:{port}: {reason.lower()}") from None
    return bound


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: on a signal it would stop listening before the drain."""

    def __init__(self, app: FastAPI, on_listening: Callable[[], object]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CLOSE_CONNECTIONS_S,
            )
        )
        self._on_listening = on_listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_listening()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
