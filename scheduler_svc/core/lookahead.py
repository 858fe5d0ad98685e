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
        self._chosen = group.columns.draft_limit
        # Of the slots that run on, once `reserve` was called.
        self.limits: Ints = np.zeros(0, np.int64)
        self.changed_slots: tuple[int, ...] = ()
        self.changed_limits: tuple[int, ...] = ()

    def choose(self, slots: Ints, budget: int) -> None:
        """For `slots`, which run on. Who has to see each token before the next is drawn has no drafts."""
        columns = self._group.columns
        limit = policy.draft_limit(self._group.draft_limit, len(slots), budget)
        self._chosen = columns.draft_limit.copy()
        self._chosen[slots] = np.where(columns.waits_for_tokens[slots], 0, limit)

    def most_planned(self) -> Ints:
        """Most tokens of each slot that the steps in flight leave with their KV written, if the slot then runs on."""
        columns = self._group.columns
        # Of those that come to max_len no more than the last token but one has its KV written, and none runs on.
        most: Ints = np.minimum(columns.num_planned + columns.num_drafts_ahead, columns.max_len - 2)
        return most

    def cramped(self, slots: Ints) -> list[int]:
        """Those of `slots` that could run more drafts if they had more blocks."""
        cramped: list[int] = slots[self._reach()[slots] > self._group.columns.capacity[slots]].tolist()
        return cramped

    def num_missing_blocks(self, slot: int) -> int:
        missing = int(self._reach()[slot] - self._group.columns.capacity[slot])
        return self._group.tables.num_blocks_for(missing)

    def reserve(self, slots: Ints) -> int:
        """Notes that `slots` run, with drafts up to their limits; returns how many these are in all."""
        columns = self._group.columns
        self.limits = self._chosen[slots]
        changed = slots[self.limits != columns.draft_limit[slots]]
        if len(changed):
            self.changed_slots = tuple(changed.tolist())
            self.changed_limits = tuple(self._chosen[changed].tolist())
            columns.draft_limit[changed] = self._chosen[changed]
        columns.num_drafts_ahead[slots] += self.limits
        return int(self.limits.sum())

    def _reach(self) -> Ints:
        """Most tokens of each slot that the step could leave with their KV written, if there were blocks for them."""
        columns = self._group.columns
        most = columns.num_planned + columns.num_drafts_ahead + 1 + self._chosen
        reach: Ints = np.minimum(most, columns.max_len - 1)
        return reach
