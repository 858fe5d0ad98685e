"""Which rows of a step draw tokens, and which of the drawn tokens count?

A slot draws after its last known token, and after each of its drafts. What a row draws counts if all drafts before it
are the tokens that were drawn in their places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker_svc.slots import Runs, SlotTable

# A token that could not be drawn.
FAILED = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawRows:
    """Those of one slot follow each other, slot by slot. A row's token gets the absolute index `positions`, after
    `num_output_tokens` of its slot."""

    slots: NDArray[np.int64]  # [slots]
    num_drafts: NDArray[np.int64]  # [slots]
    draft_token_ids: NDArray[np.int64]  # [sum of num_drafts]
    row_slots: NDArray[np.int64]  # [rows]
    positions: NDArray[np.int64]  # [rows]
    num_output_tokens: NDArray[np.int64]  # [rows]

    @property
    def starts(self) -> NDArray[np.int64]:
        """The first row of each slot, [slots]."""
        return np.cumsum(self.num_drafts + 1) - self.num_drafts - 1

    def draft_ranks(self) -> NDArray[np.int64]:
        """How many drafts of its slot come before each row, [rows]."""
        return np.arange(len(self.row_slots)) - np.repeat(self.starts, self.num_drafts + 1)

    def drafts_before(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All drafts that come before `rows`: for each the index into `rows`, and the token."""
        first_drafts = np.repeat(np.cumsum(self.num_drafts) - self.num_drafts, self.num_drafts + 1)[rows]
        ranks = self.draft_ranks()[rows]
        within = np.arange(ranks.sum()) - np.repeat(np.cumsum(ranks) - ranks, ranks)
        return np.repeat(np.arange(len(rows)), ranks), self.draft_token_ids[np.repeat(first_drafts, ranks) + within]


def draw_rows(runs: Runs, table: SlotTable) -> DrawRows:
    """The rows of a step, before `table` advances; it has the drafts after the last known token of each slot."""
    slots, num_drafts = runs.draw_slots, runs.num_drafts[runs.draws]
    first_positions = table.num_tokens[slots]
    if not num_drafts.any():
        row_slots, positions, draft_token_ids = slots, first_positions, np.zeros(0, np.int64)
    else:
        row_slots = np.repeat(slots, num_drafts + 1)
        ends = np.cumsum(num_drafts + 1)
        ranks = np.arange(len(row_slots)) - np.repeat(ends - num_drafts - 1, num_drafts + 1)
        positions = np.repeat(first_positions, num_drafts + 1) + ranks
        has_draft = ranks > 0
        draft_token_ids = table.token_ids[row_slots[has_draft], positions[has_draft] - 1].astype(np.int64)
    return DrawRows(
        slots=slots,
        num_drafts=num_drafts,
        draft_token_ids=draft_token_ids,
        row_slots=row_slots,
        positions=positions,
        num_output_tokens=positions - table.num_prompt_tokens[row_slots],
    )


def count_drawn(rows: DrawRows, token_ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of the tokens that the rows of each slot drew count, [slots]: 0 if the first could not be drawn.

    With one number for each position, as in `counter_random`, the tokens are those that would be drawn one at a time,
    whatever the drafts are; that is rejection sampling (Leviathan et al., 2023) from drafts without a choice, except
    that the token in the place of a wrong draft is not drawn anew: it is there already.
    """
    if not len(rows.draft_token_ids):
        drawn: NDArray[np.int64] = (token_ids != FAILED).astype(np.int64)
        return drawn
    starts, all_rows = rows.starts, np.arange(len(token_ids))
    is_right = np.zeros(len(token_ids), np.bool_)
    has_draft_after = np.ones(len(token_ids), np.bool_)
    has_draft_after[starts + rows.num_drafts] = False
    is_right[has_draft_after] = token_ids[has_draft_after] == rows.draft_token_ids
    last = np.minimum.reduceat(np.where(is_right, len(token_ids), all_rows), starts)
    counts: NDArray[np.int64] = last - starts + 1 - (token_ids[last] == FAILED)
    return counts
