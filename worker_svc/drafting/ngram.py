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
    """At most `limit` tokens that followed the last ones of `token_ids` [tokens] earlier; none without a match.

    A match that reaches into the tokens it is looked for with repeats: what follows it goes round.
    """
    num_tokens = len(token_ids)
    # Of each match so far, the index of its last token.
    ends = np.flatnonzero(token_ids[:-1] == token_ids[-1])
    for length in range(2, max_len + 1):
        if length > min_len and len(ends) == 1:
            break
        longer = ends[ends >= length - 1]
        longer = (
            longer[token_ids[longer - (length - 1)] == token_ids[num_tokens - length]]
            if length <= num_tokens
            else ends[:0]
        )
        if not len(longer):
            if length <= min_len:
                return token_ids[:0]
            break
        ends = longer
    if not len(ends):
        return token_ids[:0]
    start = int(ends[-1]) + 1
    return token_ids[start + np.arange(limit) % (num_tokens - start)]
