"""The connections between rank 0 and the other ranks of its group: one for commands, one to see that the peer lives."""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from worker_svc.parallel.commands import BUFFER_BYTES, Command, decode, encode, num_bytes_beyond
from worker_svc.parallel.watch import reaching_others

_CONNECT_TIMEOUT_S = 60.0
# Rank, and whether this is the connection for commands.
_GREETING = struct.Struct("!I?")
_TOKEN_BYTES = 16
# Steps of a pipeline are sent ahead, and are not to wait for a stage that computes.
_SOCKET_BUFFER_BYTES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Connections:
    """At rank 0 by the rank of each other one; elsewhere the only entry is that of rank 0."""

    commands: dict[int, socket.socket]
    signs_of_life: dict[int, socket.socket]


def connect(host: str) -> Connections:
    """Connects rank 0, reachable for the others as `host`, with each of them. Collective, and torch.distributed must
    be initialised. Raises OSError."""
    if dist.get_rank() == 0:
        return _accept_all(host, dist.get_world_size() - 1)
    whereabouts: list[tuple[int, bytes] | None] = [None]
    dist.broadcast_object_list(whereabouts, src=0)
    assert whereabouts[0] is not None
    port, token = whereabouts[0]
    return Connections(commands={0: _dial(host, port, token, True)}, signs_of_life={0: _dial(host, port, token, False)})


def _accept_all(host: str, num_others: int) -> Connections:
    # The token keeps out whoever else finds the port, and ranks of an earlier start of the group.
    token = secrets.token_bytes(_TOKEN_BYTES)
    found = Connections(commands={}, signs_of_life={})
    family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    with socket.create_server((host, 0), family=family, backlog=2 * num_others) as server:
        server.settimeout(_CONNECT_TIMEOUT_S)
        dist.broadcast_object_list([(server.getsockname()[1], token)], src=0)
        while len(found.commands) < num_others or len(found.signs_of_life) < num_others:
            peer, _ = server.accept()
            peer.settimeout(_CONNECT_TIMEOUT_S)
            greeting = _receive(peer, _TOKEN_BYTES + _GREETING.size)
            if not secrets.compare_digest(greeting[:_TOKEN_BYTES], token):
                peer.close()
                continue
            rank, is_for_commands = _GREETING.unpack(greeting[_TOKEN_BYTES:])
            (found.commands if is_for_commands else found.signs_of_life)[rank] = _prepared(peer)
    return found


def _dial(host: str, port: int, token: bytes, is_for_commands: bool) -> socket.socket:
    peer = socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S)
    peer.sendall(token + _GREETING.pack(dist.get_rank(), is_for_commands))
    return _prepared(peer)


def _prepared(peer: socket.socket) -> socket.socket:
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        peer.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER_BYTES)
    return peer


def _receive(peer: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes and (more := peer.recv(num_bytes - len(data))):
        data += more
    return data.ljust(num_bytes, b"\0")


class CommandSender:
    """Rank 0's end. The model's thread alone uses it."""

    def __init__(self, peers: dict[int, socket.socket]) -> None:
        self._peers = peers

    def send(self, command: Command, ranks: Iterable[int]) -> None:
        """Raises GroupLost if one of `ranks` is gone."""
        buffer, rest = encode(command)
        with reaching_others():
            for rank in ranks:
                peer = self._peers[rank]
                peer.sendall(buffer.data)
                if rest is not None:
                    peer.sendall(rest.data)


class CommandReceiver:
    """The end of any other rank."""

    def __init__(self, leader: socket.socket, device: torch.device) -> None:
        self._leader = leader
        self._device = device
        self._buffer = np.zeros(BUFFER_BYTES, np.uint8)

    def receive(self) -> Command:
        """Waits as long as it takes. Raises GroupLost if rank 0 is gone."""
        with reaching_others():
            self._fill(self._buffer)
            rest = np.zeros(num_bytes_beyond(self._buffer), np.uint8)
            self._fill(rest)
        return decode(self._buffer, rest, self._device)

    def _fill(self, buffer: NDArray[np.uint8]) -> None:
        view = buffer.data
        while len(view):
            num_bytes = self._leader.recv_into(view)
            if num_bytes == 0:
                raise ConnectionError("rank 0 closed its connection")
            view = view[num_bytes:]
