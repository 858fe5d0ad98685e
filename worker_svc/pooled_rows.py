"""Which rows of a step are pooled to embeddings of prompts, and whose embedding is complete after it?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pageloom.plan import Admission
from pageloom.policies import Pooling
from worker_svc.slots import Runs, SlotTable


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PooledRows:
    """Those of one slot follow each other, slot by slot. An embedding is the mean of all rows that were its slot's."""

    slots: NDArray[np.int64]  # [pooled slots]
    lens: NDArray[np.int64]  # [pooled slots]: rows in this step
    num_rows: NDArray[np.int64]  # [pooled slots]: rows in all steps
    ends: NDArray[np.bool_]  # [pooled slots]: whether these are the last
    rows: NDArray[np.int64]  # [rows]: among all tokens of the step

    def parts(self) -> Iterator[tuple[int, slice, int, bool]]:
        """Slot, its part of the rows, their number in all steps, and whether these are the last."""
        stops = np.cumsum(self.lens)
        columns = (self.slots, stops - self.lens, stops, self.num_rows, self.ends)
        for slot, start, stop, num_rows, ends in zip(*(column.tolist() for column in columns), strict=True):
            yield slot, slice(start, stop), num_rows, ends


class PooledSlots:
    """Which slots hold prompts that are pooled, and how: columns over all of them, written when a slot is bound."""

    def __init__(self, max_num_seqs: int) -> None:
        self._pools = np.zeros(max_num_seqs, np.bool_)
        self._takes_mean = np.zeros(max_num_seqs, np.bool_)

    def bind(self, admission: Admission) -> None:
        """Takes over what a newly bound slot wants."""
        self._pools[admission.slot] = admission.pooling is not None
        self._takes_mean[admission.slot] = admission.pooling is Pooling.mean

    def rows(self, runs: Runs, table: SlotTable) -> PooledRows | None:
        """Those of a step, before `table` advances; None if there are none, which costs next to nothing."""
        if not self._pools[runs.slots].any():
            return None
        takes_mean = self._takes_mean[runs.slots]
        ends = runs.starts + runs.lens == table.num_tokens[runs.slots]
        which = np.flatnonzero(self._pools[runs.slots] & (takes_mean | ends))
        if which.size == 0:
            return None
        lens = np.where(takes_mean, runs.lens, 1)[which]
        within = np.arange(lens.sum()) - np.repeat(np.cumsum(lens) - lens, lens)
        first_rows = np.cumsum(runs.lens)[which] - lens
        return PooledRows(
            slots=runs.slots[which],
            lens=lens,
            num_rows=np.where(takes_mean, table.num_tokens[runs.slots], 1)[which],
            ends=ends[which],
            rows=np.repeat(first_rows, lens) + within,
        )
