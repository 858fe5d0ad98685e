"""Who waits, and who is next? Queues by tenant, and the virtual token counters that choose between them."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator

from scheduler_svc.core.ordered import Ordered
from scheduler_svc.core.sequence import Order, Sequence, Tenant

# Counters of tenants without open requests that are kept, so that nobody is forgiven by a short break.
MAX_IDLE_TENANTS = 4096


class WaitingQueue:
    """Sequences in order for each tenant, and between tenants the one that was served least goes first.

    After the Virtual Token Counter of Sheng et al., "Fairness in Serving Large Language Models" (OSDI'24):
    a tenant that comes to have something in the queue is lifted to the least counter of those that have,
    so that idle time is not saved up. With `by_tenant` False there is one queue for all.
    """

    def __init__(self, *, by_tenant: bool) -> None:
        self._by_tenant = by_tenant
        self._queues: dict[int, Ordered[Sequence]] = {}
        self._tenants: OrderedDict[str, Tenant] = OrderedDict()
        self._by_index: dict[int, Tenant] = {}
        self._num_tenants = 0
        # Of the last sequence that left an empty queue behind.
        self._last_tenant: Tenant | None = None
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[Sequence]:
        for queue in self._queues.values():
            yield from queue

    def open_tenant(self, name: str) -> Tenant:
        """The tenant of a new sequence; each has its `close_tenant`."""
        key = name if self._by_tenant else ""
        tenant = self._tenants.get(key)
        if tenant is None:
            tenant = self._tenants[key] = Tenant(key, self._num_tenants)
            self._by_index[tenant.index] = tenant
            self._num_tenants += 1
        tenant.num_open += 1
        self._tenants.move_to_end(key)
        return tenant

    def close_tenant(self, tenant: Tenant) -> None:
        tenant.num_open -= 1
        while len(self._tenants) > MAX_IDLE_TENANTS:
            name, oldest = next(iter(self._tenants.items()))
            if oldest.num_open:
                # Not idle, so it does not count; it is looked at again after the others.
                self._tenants.move_to_end(name)
                return
            del self._tenants[name], self._by_index[oldest.index]

    def charge(self, tenant_index: int, num_tokens: int) -> None:
        """Counts service; `num_tokens` are weighted already."""
        self._by_index[tenant_index].num_served += num_tokens

    def add(self, sequence: Sequence) -> None:
        tenant = sequence.tenant
        queue = self._queues.get(tenant.index)
        if queue is None:
            self._lift(tenant)
            queue = self._queues[tenant.index] = Ordered()
        queue.add(sequence)
        self._len += 1

    def remove(self, sequence: Sequence) -> None:
        """The sequence must be waiting."""
        tenant = sequence.tenant
        queue = self._queues[tenant.index]
        queue.remove(sequence)
        self._len -= 1
        if not queue:
            del self._queues[tenant.index]
            self._last_tenant = tenant

    def ahead_of(self, sequence: Sequence) -> tuple[int, tuple[str, ...]]:
        """How many sequences of its tenant are before a waiting one, and the requests of the nearest few."""
        queue = self._queues[sequence.tenant.index]
        index = queue.index(sequence)
        nearest = (queue[at].request_id for at in range(max(0, index - 4), index))
        return index, tuple(dict.fromkeys(nearest))

    def walk(self) -> Iterator[Sequence]:
        """Every sequence in turn; each may be removed, and its tenant charged, before the next is asked for."""
        heap: list[tuple[int, Order, int, int]] = []

        def push(tenant_index: int, position: int) -> None:
            queue = self._queues.get(tenant_index)
            if queue is not None and position < len(queue):
                counter = self._by_index[tenant_index].num_served
                heapq.heappush(heap, (counter, queue[position].order, tenant_index, position))

        for tenant_index in self._queues:
            push(tenant_index, 0)
        while heap:
            _, _, tenant_index, position = heapq.heappop(heap)
            queue = self._queues[tenant_index]
            sequence = queue[position]
            yield sequence
            stays = position < len(queue) and queue[position] is sequence
            push(tenant_index, position + stays)

    def _lift(self, tenant: Tenant) -> None:
        # Less one, so that who comes back goes before those who wait, not behind all that they have there.
        counters = [self._by_index[index].num_served - 1 for index in self._queues]
        last_counter = 0 if self._last_tenant is None else self._last_tenant.num_served
        tenant.num_served = max(tenant.num_served, min(counters, default=last_counter))
