"""How far has the draft model computed each sequence? Its keys and values may lag behind those of the model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from worker_svc.slots import Runs, SlotTable

_UNKNOWN = -1


class DraftCoverage:
    """The draft model's keys and values are in the same blocks as the model's. While it does not run, as when the load
    is too high for drafts, they lag behind, in blocks that others find in the prefix cache too. So each block knows
    how many of its leading tokens the draft model has computed."""

    def __init__(self, *, max_num_seqs: int, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._of_block = np.zeros(num_blocks, np.int64)
        # Of each slot: its leading tokens that are computed. It is found out when it is first asked for, after block
        # copies.
        self._of_slot = np.full(max_num_seqs, _UNKNOWN, np.int64)

    def forget(self, slot: int) -> None:
        """The slot is bound anew."""
        self._of_slot[slot] = _UNKNOWN

    def starts(self, slots: NDArray[np.int64], table: SlotTable) -> NDArray[np.int64]:
        """[slots] the first token of each that is not computed; at most the last one known."""
        for slot in slots[self._of_slot[slots] == _UNKNOWN].tolist():
            self._of_slot[slot] = self._covered(slot, table)
        return np.minimum(self._of_slot[slots], table.num_tokens[slots] - 1)

    def computed(
        self, slots: NDArray[np.int64], starts: NDArray[np.int64], lens: NDArray[np.int64], table: SlotTable
    ) -> None:
        """The draft model has computed `lens` known tokens of each of `slots` from `starts` on, before which it lacks
        none."""
        self._of_slot[slots] = starts + lens
        self._cover(slots, starts, lens, starts + lens, table)

    def extend(self, slots: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Guesses have become known tokens: all before `ends` are computed. Their blocks are those that the model wrote
        to in the same step."""
        self._of_slot[slots] = ends

    def written(self, runs: Runs, table: SlotTable) -> None:
        """The model has run: the blocks that it wrote to hold other tokens than before."""
        aligned = runs.starts // self._block_size * self._block_size
        before = self._of_block[table.block_tables[runs.slots, runs.starts // self._block_size]]
        of_slots = self._of_slot[runs.slots]
        ends = np.where(of_slots == _UNKNOWN, aligned + np.minimum(before, runs.starts - aligned), of_slots)
        self._cover(runs.slots, runs.starts, runs.lens, ends, table)

    def _cover(
        self,
        slots: NDArray[np.int64],
        starts: NDArray[np.int64],
        lens: NDArray[np.int64],
        ends: NDArray[np.int64],
        table: SlotTable,
    ) -> None:
        """Of the blocks with the `lens` tokens from `starts` on, the tokens before `ends` are computed."""
        size = self._block_size
        first = starts // size
        counts = (starts + lens - 1) // size - first + 1
        rows = np.repeat(np.arange(len(slots)), counts)
        columns = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        self._of_block[table.block_tables[slots[rows], columns]] = (ends[rows] - columns * size).clip(0, size)

    def _covered(self, slot: int, table: SlotTable) -> int:
        num_tokens = int(table.num_tokens[slot])
        block_ids = table.block_tables[slot, : -(-num_tokens // self._block_size)]
        of_blocks = self._of_block[block_ids]
        partial = np.flatnonzero(of_blocks < self._block_size)
        if partial.size == 0:
            return num_tokens
        return int(partial[0]) * self._block_size + int(of_blocks[partial[0]])
