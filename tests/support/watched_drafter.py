"""A runner's drafter, and each of its guesses."""

from __future__ import annotations

from typing import Any

import numpy as np

from worker_svc.drafting.drafter import Drafter, DraftRequests, Drafts
from worker_svc.slots import SlotTable


class Watched:
    """`guesses` are the known tokens and what is to follow."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.guesses: list[tuple[list[int], list[int]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def propose(self, requests: DraftRequests, table: SlotTable) -> Drafts:
        drafts = self._drafter.propose(requests, table)
        parts = np.split(drafts.token_ids, np.cumsum(drafts.lens)[:-1])
        for slot, part in zip(requests.slots.tolist(), parts, strict=True):
            self.guesses.append((table.token_ids[slot, : table.num_tokens[slot]].tolist(), part.tolist()))
        return drafts
