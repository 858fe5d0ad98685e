"""Which block is taken next, and which is still in use? Reference counts, and the free blocks in eviction order."""

from __future__ import annotations

import heapq
from collections import OrderedDict


class BlockPool:
    """Counts the owners of each of `num_blocks` blocks; those without one are free.

    Those that are next are taken lowest ids first, and what is taken together is handed out in ascending
    order: a table of ascending runs is what attention reads fastest. Next are blocks without content worth
    keeping; when there are none, the few that were used least recently of the others. The pool knows no
    content: a block may be found and shared again until `take` hands it out.
    """

    def __init__(self, num_blocks: int) -> None:
        self._ref_counts = [0] * num_blocks
        # A block is in one of `_next` and `_kept` if it is free. The heap names every block of `_next` once, and
        # may still name some that are in it no more.
        self._next = set(range(num_blocks))
        self._heap = list(range(num_blocks))
        self._in_heap = bytearray(b"\1") * num_blocks
        self._kept: OrderedDict[int, None] = OrderedDict()
        # Evicted one by one, old tables would come back tail first.
        self._num_evicted_together = min(16, max(1, num_blocks // 64))

    @property
    def num_blocks(self) -> int:
        return len(self._ref_counts)

    @property
    def num_free(self) -> int:
        return len(self._next) + len(self._kept)

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def take(self, num_blocks: int, after: int = -1) -> list[int]:
        """`num_blocks` free blocks, each with one owner now; there must be as many. The blocks that follow
        `after` come first if they are next too."""
        block_ids: list[int] = []
        while len(block_ids) < num_blocks and after >= 0 and after + 1 in self._next:
            after += 1
            self._next.remove(after)
            block_ids.append(after)
        rest = [self._take_lowest() for _ in range(num_blocks - len(block_ids))]
        rest.sort()
        block_ids += rest
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids

    def share(self, block_id: int) -> None:
        """Adds an owner; a free block is free no more."""
        if self._ref_counts[block_id] == 0:
            if block_id in self._kept:
                del self._kept[block_id]
            else:
                self._next.remove(block_id)
        self._ref_counts[block_id] += 1

    def release(self, block_id: int, *, worth_keeping: bool) -> None:
        """Removes an owner. A block without any is taken soon, or late if its content is worth keeping."""
        assert self._ref_counts[block_id] > 0, f"block {block_id} has no owner"
        self._ref_counts[block_id] -= 1
        if self._ref_counts[block_id] > 0:
            return
        if worth_keeping:
            self._kept[block_id] = None
        else:
            self._make_next(block_id)

    def free_block_ids(self) -> tuple[int, ...]:
        """The free blocks: those that are next in ascending order, then those kept, the least recently used first."""
        return (*sorted(self._next), *self._kept)

    def _take_lowest(self) -> int:
        if not self._next:
            for _ in range(min(self._num_evicted_together, len(self._kept))):
                self._make_next(self._kept.popitem(last=False)[0])
        while True:
            block_id = heapq.heappop(self._heap)
            self._in_heap[block_id] = False
            if block_id in self._next:
                self._next.remove(block_id)
                return block_id

    def _make_next(self, block_id: int) -> None:
        self._next.add(block_id)
        if not self._in_heap[block_id]:
            self._in_heap[block_id] = True
            heapq.heappush(self._heap, block_id)
