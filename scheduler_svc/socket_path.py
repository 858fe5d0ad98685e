"""May a new unix socket be made at this path? gRPC would take the path even from a server that lives."""

from __future__ import annotations

import os
import socket
import stat

from pageloom.config import MAX_SOCKET_PATH_BYTES, fits_socket_address
from pageloom.errors import StartupError


def claim_socket_path(path: str) -> str:
    """Makes sure that the path is free, removing the socket of a process that has died; returns it absolute.

    Raises StartupError.
    """
    path = os.path.abspath(path)
    if not fits_socket_address(path):
        raise StartupError(f"--uds: a socket's path may have {MAX_SOCKET_PATH_BYTES} bytes, and {path} has more")
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise StartupError(f"--uds: {path} cannot be opened: there is no directory {folder}")
    try:
        _remove_dead_socket(path)
    except PermissionError:
        raise StartupError(f"--uds: {path} belongs to another user") from None
    return path


def _remove_dead_socket(path: str) -> None:
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise StartupError(f"--uds: {path} exists and is not a socket")
    if _is_listening(path):
        raise StartupError(f"--uds: {path} is in use: another process listens on it")
    os.unlink(path)


def _is_listening(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except PermissionError:
            raise
        except OSError:
            # Its queue of connections is full, or it takes datagrams.
            return True
    return True
