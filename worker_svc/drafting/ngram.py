"""Prompt lookup: where did the last few tokens come up before, and what followed there?

Saxena, "Prompt Lookup Decoding" (2023). It reads the slot's own tokens and keeps nothing, so it costs some
microseconds a step, and the model's time only where something was found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pageloom.plan import Admission
from worker_svc.drafting.drafter import DraftRequests, Drafts, TargetStep
from worker_svc.slots import SlotTable

_NO_TOKENS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramDrafter:
    """A `Drafter` that continues the longest match of at least `min_len` tokens, the latest of equally long ones; of a
    match more than `max_len` tokens are not looked at."""

    min_len: int
    max_len: int

    @property
    def tap_layers(self) -> tuple[int, ...]:
        return ()

    def warm_up(self, num_tokens: int) -> None:
        """Nothing has to be compiled."""

    def bind(self, admission: Admission) -> None:
        """The tokens are read from the slot table."""

    def release(self, slots: tuple[int, ...]) -> None:
        """Nothing was kept."""

    def propose(self, requests: DraftRequests, table: SlotTable) -> Drafts:
        found = [
            continuation(table.token_ids[slot, : table.num_tokens[slot]], limit, self.min_len, self.max_len)
            for slot, limit in zip(requests.slots.tolist(), requests.limits.tolist(), strict=True)
        ]
        return Drafts(
            lens=np.array([len(token_ids) for token_ids in found], np.int64),
            token_ids=np.concatenate(found).astype(np.int64) if found else _NO_TOKENS,
        )

    def observe(self, step: TargetStep, table: SlotTable) -> None:
        """It learns nothing from the model."""


def continuation(token_ids: NDArray[np.int32], limit: int, min_len: int, max_len: int) -> NDArray[np.int32]:
    """At most `limit` tokens that followed the last ones of `token_ids` [tokens] earlier; none without a match, and no
    more than its tokens after one of fewer than `max_len`: a short match is easily a chance.

    Where what followed reaches the end it goes round: the text is periodic.
    """
    last = len(token_ids) - 1
    # The last tokens of the longest matches so far, which have `length` tokens.
    ends, length = np.flatnonzero(token_ids[:last] == token_ids[last]), 1
    while len(ends) and length < max_len:
        longer = ends[ends >= length]
        longer = longer[token_ids[longer - length] == token_ids[last - length]]
        if not len(longer):
            break
        ends, length = longer, length + 1
    if not len(ends) or length < min_len:
        return token_ids[:0]
    start = int(ends[-1]) + 1
    num_drafts = limit if length == max_len else min(limit, length)
    return token_ids[start + np.arange(num_drafts) % (last + 1 - start)]
