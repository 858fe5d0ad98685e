"""One process's membership in a worker group: who it is, how it reaches the others, and how it leaves."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Self

import torch
import torch.distributed as dist

from pageloom.config import WorkerConfig
from worker_svc.kv_cache import KvCache
from worker_svc.models.model import Model
from worker_svc.parallel.channel import CommandReceiver, CommandSender, Connections, connect
from worker_svc.parallel.commands import End
from worker_svc.parallel.layout import Layout
from worker_svc.parallel.leader import LeaderKvCache, LeaderModel
from worker_svc.parallel.ranks import RankGroup
from worker_svc.parallel.shared_sum import SharedSum, open_shared_sum
from worker_svc.parallel.watch import Watch, reaching_others

_SIOCGIFADDR = 0x8915  # linux/sockios.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What torchrun tells a rank. `host` is where the others reach rank 0."""

    layout: Layout
    local_rank: int
    num_local_ranks: int
    host: str

    @classmethod
    def of(cls, config: WorkerConfig, environment: Mapping[str, str]) -> Self:
        layout = Layout(
            tensor_size=config.tensor_parallel_size,
            pipeline_size=config.pipeline_parallel_size,
            rank=int(environment["RANK"]),
        )
        return cls(
            layout=layout,
            local_rank=int(environment["LOCAL_RANK"]),
            num_local_ranks=int(environment["LOCAL_WORLD_SIZE"]),
            host=environment["MASTER_ADDR"],
        )

    def shares_machine(self, ranks: range) -> bool:
        """Whether torchrun started all of `ranks` on one machine."""
        return ranks[0] // self.num_local_ranks == ranks[-1] // self.num_local_ranks


@contextmanager
def communication(place: Place, device: torch.device) -> Iterator[None]:
    """torch.distributed between all ranks, which is what joining a group needs. Raises GroupLost."""
    _choose_interface(place.host)
    with reaching_others():
        dist.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl")
    yield
    # Not after an error: it would wait for ranks that are gone.
    dist.destroy_process_group()


class Group:
    """A joined group. Joining and leaving are collective."""

    def __init__(
        self,
        place: Place,
        tensor_group: dist.ProcessGroup | None,
        shared_sum: SharedSum | None,
        connections: Connections,
        watch: Watch,
    ) -> None:
        self.place = place
        self._tensor_group = tensor_group
        self._shared_sum = shared_sum
        self._connections = connections
        self._watch = watch
        self._sender = CommandSender(connections.commands)

    @classmethod
    def join(cls, place: Place, device: torch.device, parent: socket.socket | None) -> Self:
        """`parent`: the socket of the process that started this one, if nobody else waits for its end. Raises GroupLost
        if the other ranks cannot be reached."""
        layout = place.layout
        shared_sum = None
        with reaching_others():
            # Of each stage, in one order at every rank, as new_group asks.
            groups = [dist.new_group(list(layout.stage_ranks(stage))) for stage in range(layout.pipeline_size)]
            connections = connect(place.host)
            watch = Watch(connections.signs_of_life, parent)
            group, ranks = groups[layout.stage], layout.stage_ranks(layout.stage)
            if group is not None and device.type == "cpu" and len(ranks) > 1 and place.shares_machine(ranks):
                shared_sum = open_shared_sum(group, ranks)
        return cls(place, group, shared_sum, connections, watch)

    @property
    def layout(self) -> Layout:
        return self.place.layout

    @property
    def is_leader(self) -> bool:
        return self.layout.rank == 0

    def ranks(self, vocab_size: int) -> RankGroup:
        """For a model of so many token ids."""
        return RankGroup(self.layout, vocab_size, self._tensor_group, self._shared_sum)

    def lead(self, part: Model, cache: KvCache, ranks: RankGroup) -> tuple[LeaderModel, LeaderKvCache]:
        """At rank 0: a model and KV blocks that command the other ranks', beside these."""
        own = {field.name: getattr(cache, field.name) for field in fields(KvCache)}
        leading = LeaderKvCache(**own, sender=self._sender, num_ranks=self.layout.num_ranks)
        return LeaderModel(part, ranks, self._sender), leading

    def receiver(self, device: torch.device) -> CommandReceiver:
        """At the other ranks: what rank 0 commands."""
        return CommandReceiver(self._connections.commands[0], device)

    def leave(self) -> None:
        """The other ranks return from `follow` and leave too."""
        if self.is_leader:
            self._sender.send(End(), range(1, self.layout.num_ranks))
        self._watch.close()


def _choose_interface(host: str) -> None:
    """Gloo and NCCL take the interface on the way to rank 0, unless the user chose one: by themselves they go by the
    name of the host, which often leads to one that other hosts cannot reach."""
    name = _interface_to(host)
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if name is not None:
            os.environ.setdefault(variable, name)


def _interface_to(host: str) -> str | None:
    """None where it cannot be told."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # This sends nothing.
            probe.connect((host, 9))
            address = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                try:
                    found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                except OSError:
                    # It has no address.
                    continue
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    except OSError:
        return None
    return None
