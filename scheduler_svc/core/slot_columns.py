"""How far is each slot? What changes in every step, as columns over the slots of one worker."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class SlotColumns:
    """All columns are [num_slots] unless noted; entries of unbound slots mean nothing, but `open` is False there.

    Three counts of a slot's tokens run ahead of each other: `num_computed` <= `num_planned` have their KV
    written once the committed, or all planned, steps have run; `num_known` <= `num_drawn` are the tokens
    whose values are here, or will be. Of a prompt that is pooled, which draws nothing, all four meet at its end.
    Where drafts are in flight the planned and drawn ones are the fewest: `num_drafts_ahead` more may come, as far as
    the blocks and max_len go.
    Known tokens that the sequence's own list lacks are in `tail`, at their index modulo its width.
    """

    def __init__(self, num_slots: int, block_size: int, max_num_draft_tokens: int = 0) -> None:
        def ints() -> Ints:
            return np.zeros(num_slots, np.int64)

        def flags() -> Bools:
            return np.zeros(num_slots, np.bool_)

        # Bound to an unfinished choice; and not on its way out either.
        self.open, self.active = flags(), flags()
        # As the worker sees it after all planned steps: the last run drew, so the next needs no word in the plan.
        self.continues = flags()
        self.num_computed, self.num_planned = ints(), ints()
        self.num_known, self.num_drawn = ints(), ints()
        # The draft limit that the worker has after all planned steps; and the sum of those of the steps in flight.
        self.draft_limit, self.num_drafts_ahead = ints(), ints()
        # Tokens that its blocks hold; tokens at which it ends.
        self.capacity, self.max_len = ints(), ints()
        # The last step that names it: until its commit slot and blocks stay as they are.
        self.last_step = ints()
        self.key, self.num_prompt, self.tenant = ints(), ints(), ints()
        self.waits_for_tokens, self.wants_logprobs = flags(), flags()
        self.ends_at_eos, self.has_stop_tokens = flags(), flags()
        # Steps committed, and steps held back, since it was bound.
        self.num_steps, self.num_held_steps = ints(), ints()
        # A list is extended once for each block, when one more token may be known, and then those of two steps' drafts;
        # half of this would do.
        self.tail_width = 2 * (block_size + 2 * max_num_draft_tokens)
        self.tail = np.zeros((num_slots, self.tail_width), np.uint32)

    def is_catching_up(self, slot: int) -> bool:
        """Whether it is active and further behind than by the token that it drew last."""
        is_behind = self.num_planned[slot] < self.num_known[slot]
        return bool(self.active[slot] and not self.continues[slot] and is_behind)

    def tail_tokens(self, slot: int, start: int) -> bytes:
        """Known tokens from index `start` on, as uint32; at most `tail_width`."""
        end = int(self.num_known[slot])
        if end <= start:
            return b""
        first, last = start % self.tail_width, (end - 1) % self.tail_width + 1
        row = self.tail[slot]
        tokens = row[first:last] if first < last else np.concatenate((row[first:], row[:last]))
        return bytes(tokens.data)
