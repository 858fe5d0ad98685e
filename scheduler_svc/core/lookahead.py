"""How many guessed tokens may each sequence run in the next step, and which blocks would they need?"""

from __future__ import annotations

import numpy as np

from scheduler_svc.core import policy
from scheduler_svc.core.slot_columns import Ints
from scheduler_svc.core.worker_group import WorkerGroup


class Lookahead:
    """The draft limits of a step being planned. The worker keeps a slot's limit, so only changes are told.

    How many drafts are run, and how many are right, is known at commit. Until then a step counts for as many tokens as
    it may come to; a slot's drafts end where its blocks and its max_len do, so neither is ever overrun.
    """

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group
        # Of the slots that run on, once `allow` was called.
        self.limits: Ints = np.zeros(0, np.int64)
        self.changed_slots: tuple[int, ...] = ()
        self.changed_limits: tuple[int, ...] = ()

    def most_planned(self) -> Ints:
        """Most tokens of each slot that the steps in flight leave with their KV written, if the slot then runs on."""
        columns = self._group.columns
        # Of those that come to max_len no more than the last token but one has its KV written, and none runs on.
        most: Ints = np.minimum(columns.num_planned + columns.num_drafts_ahead, columns.max_len - 2)
        return most

    def allow(self, slots: Ints, budget: int) -> int:
        """Gives `slots`, which run on, their limits; returns how many drafts these are in all. Who has to see each
        token before the next is drawn has no drafts."""
        columns = self._group.columns
        limit = policy.draft_limit(self._group.draft_limit, len(slots), budget)
        self.limits = np.where(columns.waits_for_tokens[slots], 0, limit)
        changed = self.limits != columns.draft_limit[slots]
        if changed.any():
            changed_slots, changed_limits = slots[changed], self.limits[changed]
            columns.draft_limit[changed_slots] = changed_limits
            self.changed_slots, self.changed_limits = tuple(changed_slots.tolist()), tuple(changed_limits.tolist())
        if limit == 0:
            return 0
        columns.num_drafts_ahead[slots] += self.limits
        return int(self.limits.sum())

    def missing_blocks(self, slots: Ints) -> dict[int, int]:
        """By slot the blocks without which one of `slots`, after `allow`, cannot run all its drafts."""
        columns = self._group.columns
        reach = np.minimum(columns.num_planned[slots] + columns.num_drafts_ahead[slots] + 1, columns.max_len[slots] - 1)
        num_missing = reach - columns.capacity[slots]
        return {
            int(slots[row]): self._group.tables.num_blocks_for(int(num_missing[row]))
            for row in np.flatnonzero(num_missing > 0)
        }
