"""Guesses that an output goes on as what it has in common with itself, its prompt or recent outputs went on there.

SuffixDecoding (Oliaro et al., 2024, arXiv 2411.04975): the longest suffix that came before, followed by the tokens that
followed it most often, as far as these frequencies make them likely; the longer the suffix, the more tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pageloom.plan import Admission
from worker_svc.drafting.drafter import DraftRequests, Drafts, TargetStep
from worker_svc.drafting.suffix_automaton import ROOT, Continuation, SuffixAutomaton
from worker_svc.drafting.suffix_memory import MemoryCursor, SuffixMemory
from worker_svc.slots import SlotTable

_MIN_MATCH = 2
_MIN_PROBABILITY = 0.1
# Some microseconds each: a long prompt whose KV was cached is taken over in several steps.
_MOST_TOKENS_IN_STEP = 2048
_NOTHING = Continuation(token_ids=(), expected=0.0)


@dataclass(slots=True)
class _Text:
    """What one slot's sequence has had so far."""

    num_admitted_tokens: int
    automaton: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    last: int = ROOT
    cursor: MemoryCursor = field(default_factory=MemoryCursor)
    num_read: int = 0


class SuffixDrafter:
    """A `Drafter` without a model. Its memory of outputs has `memory_bytes`, 0 for none; besides, a sequence in a slot
    takes about 500 bytes for each token."""

    tap_layers = ()

    def __init__(self, memory_bytes: int) -> None:
        self._memory = SuffixMemory(memory_bytes) if memory_bytes else None
        self._texts: dict[int, _Text] = {}

    def warm_up(self, num_tokens: int) -> None:
        """Nothing has to be compiled."""

    def bind(self, admission: Admission) -> None:
        if admission.pooling is None:
            self._texts[admission.slot] = _Text(len(admission.token_ids))
        else:
            self._texts.pop(admission.slot, None)

    def release(self, slots: tuple[int, ...]) -> None:
        for slot in slots:
            self._texts.pop(slot, None)

    def propose(self, requests: DraftRequests, table: SlotTable) -> Drafts:
        drafts = [
            self._continuation(slot, limit, int(table.num_tokens[slot]))
            for slot, limit in zip(requests.slots.tolist(), requests.limits.tolist(), strict=True)
        ]
        return Drafts(
            lens=np.array([len(draft.token_ids) for draft in drafts], np.int64),
            token_ids=np.array([token_id for draft in drafts for token_id in draft.token_ids], np.int64),
        )

    def observe(self, step: TargetStep, table: SlotTable) -> None:
        for slot in step.runs.slots.tolist():
            text = self._texts.get(slot)
            if text is not None:
                end = min(int(table.num_tokens[slot]), text.num_read + _MOST_TOKENS_IN_STEP)
                self._read(text, table.token_ids[slot, text.num_read : end].tolist())

    def _read(self, text: _Text, token_ids: list[int]) -> None:
        text.last = text.automaton.extend(text.last, token_ids)
        if self._memory is not None:
            for index, token_id in enumerate(token_ids, text.num_read):
                if index < text.num_admitted_tokens:
                    self._memory.read(text.cursor, token_id)
                else:
                    self._memory.write(text.cursor, token_id)
        text.num_read += len(token_ids)

    def _continuation(self, slot: int, limit: int, num_tokens: int) -> Continuation:
        text = self._texts[slot]
        if text.num_read < num_tokens:
            return _NOTHING
        own = text.automaton.longest_suffix(text.last)
        found = [_NOTHING]
        if own.length >= _MIN_MATCH:
            found.append(text.automaton.continuation(own, min(limit, own.length), _MIN_PROBABILITY))
        if self._memory is not None:
            found += self._memory.continuations(text.cursor, _MIN_MATCH, limit, _MIN_PROBABILITY)
        return max(found, key=lambda continuation: continuation.expected)
