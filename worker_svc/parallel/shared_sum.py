"""Sums over the ranks of one machine, in memory that they share: small ones take a fraction of the time of gloo's."""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

# Larger parts are better moved by gloo, which splits the sum between the ranks.
MAX_PART_BYTES = 1 << 20
_SHARED_MEMORY = Path("/dev/shm")
_CONNECT_TIMEOUT_S = 60.0


class SharedSum:
    """One rank's end. Every rank writes its part to memory of its own, tells each peer by a byte over a socket, and
    adds up all parts once each peer has told it the same; the order of the addition is that of the ranks, so all come
    to the same bits. A system call for each peer orders the memory too, and ends with an error when the peer is gone.

    Parts alternate between two places. Whoever writes the next but one has heard from each peer about the next one, and
    so knows that all have added up this one.
    """

    def __init__(self, memory: Tensor, index: int, peers: list[socket.socket]) -> None:
        """`memory` [2, ranks, MAX_PART_BYTES] uint8 is the same at all ranks, and this one has place `index` in it."""
        self._memory = memory
        self._index = index
        self._peers = peers
        self._turn = 0

    def sum(self, part: Tensor) -> None:
        """Replaces a contiguous `part` of at most MAX_PART_BYTES. Raises ConnectionError if a rank is gone."""
        places = self._memory[self._turn, :, : part.nbytes].view(part.dtype)  # [ranks, elements]
        self._turn = 1 - self._turn
        flat = part.view(-1)
        places[self._index].copy_(flat)
        for peer in self._peers:
            peer.sendall(b".")
        for peer in self._peers:
            if not peer.recv(1):
                raise ConnectionError("another rank is gone")
        torch.add(places[0], places[1], out=flat)
        for place in places[2:]:
            flat.add_(place)


def open_shared_sum(group: dist.ProcessGroup, ranks: range) -> SharedSum:
    """Collective over the `ranks` of `group`, which are all on this machine. Raises OSError."""
    index, num_ranks = ranks.index(dist.get_rank()), len(ranks)
    folders = [_make_folder(num_ranks)] if index == 0 else [""]
    dist.broadcast_object_list(folders, src=ranks[0], group=group)
    folder = folders[0]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.join(folder, str(index)))
        server.listen(num_ranks)
        server.settimeout(_CONNECT_TIMEOUT_S)
        dist.barrier(group=group)
        peers = [_dial(os.path.join(folder, str(peer))) for peer in range(index)]
        peers += [_prepared(server.accept()[0]) for _ in range(index + 1, num_ranks)]
        memory = _map(os.path.join(folder, "memory"), num_ranks)
        dist.barrier(group=group)
    if index == 0:
        # All have it open; so nothing is left behind, however the ranks end.
        shutil.rmtree(folder)
    return SharedSum(memory, index, peers)


def _make_folder(num_ranks: int) -> str:
    folder = tempfile.mkdtemp(prefix="pageloom-", dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None)
    with open(os.path.join(folder, "memory"), "wb") as file:
        file.truncate(2 * num_ranks * MAX_PART_BYTES)
    return folder


def _map(path: str, num_ranks: int) -> Tensor:
    with open(path, "r+b") as file:
        mapped = mmap.mmap(file.fileno(), 0)
    # The tensor keeps the mapping.
    return torch.frombuffer(mapped, dtype=torch.uint8).view(2, num_ranks, MAX_PART_BYTES)


def _dial(path: str) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(_CONNECT_TIMEOUT_S)
    peer.connect(path)
    return _prepared(peer)


def _prepared(peer: socket.socket) -> socket.socket:
    peer.settimeout(None)
    return peer
