"""Which block is taken next, and which is still in use? Reference counts, and a free list in eviction order."""

from __future__ import annotations

from collections import OrderedDict


class BlockPool:
    """Counts the owners of each of `num_blocks` blocks; those without one are in the free list.

    The pool knows nothing of content: a free block may still hold KV that the prefix cache names,
    until `take` hands it out again.
    """

    def __init__(self, num_blocks: int) -> None:
        self._ref_counts = [0] * num_blocks
        # Taken from the front. The keys are block ids; an OrderedDict removes from the middle in O(1).
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_blocks(self) -> int:
        return len(self._ref_counts)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def ref_count(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def take(self, num_blocks: int) -> list[int]:
        """The next `num_blocks` blocks of the free list, each with one owner. There must be as many."""
        block_ids = [self._free.popitem(last=False)[0] for _ in range(num_blocks)]
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids

    def share(self, block_id: int) -> None:
        """Adds an owner; a free block leaves the free list."""
        if self._ref_counts[block_id] == 0:
            del self._free[block_id]
        self._ref_counts[block_id] += 1

    def release(self, block_id: int, *, worth_keeping: bool) -> None:
        """Removes an owner. A block without any is taken next, or last if its content is worth keeping."""
        assert self._ref_counts[block_id] > 0, f"block {block_id} has no owner"
        self._ref_counts[block_id] -= 1
        if self._ref_counts[block_id] == 0:
            self._free[block_id] = None
            self._free.move_to_end(block_id, last=worth_keeping)

    def free_block_ids(self) -> tuple[int, ...]:
        """The free list, next to be taken first."""
        return tuple(self._free)
