"""Ends this process when another rank of the group is gone: a collective operation with one would wait for ever.

Rank 0 and every other rank tell each other once a second that they live. The end of the connection is noticed at once;
silence, of a machine that is cut off or a process that was stopped, after some seconds.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

import structlog

log = structlog.get_logger()

BEAT_INTERVAL_S = 1.0
SILENCE_TIMEOUT_S = 10.0
# The exit code of a rank that ends because its group is broken.
GROUP_LOST = 75
_BEAT, _GOODBYE = b".", b"!"


class GroupLost(Exception):
    """Another rank cannot be reached any more."""


@contextlib.contextmanager
def reaching_others() -> Iterator[None]:
    """Around what does nothing but talk to other ranks: raises GroupLost where that fails."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # torch.distributed has no type of its own for a connection that ended.
        raise GroupLost(str(error).partition("\n")[0]) from None


class Watch:
    """Watches `peers`, by rank, in a thread of its own, the only one that uses the sockets. `parent`: the process that
    started this one, whose end of that socket closes with it."""

    def __init__(self, peers: dict[int, socket.socket], parent: socket.socket | None = None) -> None:
        self._peers = dict(peers)
        self._heard_s = dict.fromkeys(peers, time.monotonic())
        self._closing, self._close = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for rank, peer in peers.items():
            self._selector.register(peer, selectors.EVENT_READ, rank)
        self._selector.register(self._closing, selectors.EVENT_READ, "closing")
        self._parent = parent
        if parent is not None:
            self._selector.register(parent, selectors.EVENT_READ, "parent")
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tells the peers that this rank leaves as it should, and stops watching."""
        self._close.send(_GOODBYE)
        self._thread.join()

    def _run(self) -> None:
        next_beat_s = time.monotonic()
        while True:
            if (now_s := time.monotonic()) >= next_beat_s:
                self._tell(_BEAT)
                next_beat_s = now_s + BEAT_INTERVAL_S
            for key, _ in self._selector.select(max(0.0, next_beat_s - now_s)):
                if key.data == "closing":
                    self._tell(_GOODBYE)
                    return
                if key.data == "parent":
                    self._hear_parent()
                else:
                    self._hear(int(key.data))
            for rank in self._peers:
                if (silence_s := time.monotonic() - self._heard_s[rank]) > SILENCE_TIMEOUT_S:
                    end_with_group(f"rank {rank} has been silent for {silence_s:.0f} s")

    def _hear_parent(self) -> None:
        assert self._parent is not None
        # It asks for a drain, which is rank 0's affair, or it is gone.
        if not self._parent.recv(64):
            end_with_group("the process that started this rank is gone")

    def _tell(self, what: bytes) -> None:
        for rank, peer in self._peers.items():
            try:
                peer.send(what, socket.MSG_DONTWAIT)
            except BlockingIOError:
                # It has not read for long; its silence will tell.
                continue
            except OSError:
                end_with_group(f"rank {rank} is gone")

    def _hear(self, rank: int) -> None:
        try:
            heard = self._peers[rank].recv(64)
        except OSError:
            heard = b""
        if not heard:
            end_with_group(f"rank {rank} is gone")
        self._heard_s[rank] = time.monotonic()
        if heard.endswith(_GOODBYE):
            self._selector.unregister(self._peers.pop(rank))


def end_with_group(reason: str) -> NoReturn:
    """The other threads may wait for the lost rank, so nothing less than the end of the process would do."""
    log.error("this rank ends with its group", reason=reason)
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(GROUP_LOST)
