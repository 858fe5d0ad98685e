"""Which outputs came lately, and what followed in them? Bounded in bytes: the oldest are forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field

from worker_svc.drafting.suffix_automaton import ROOT, Continuation, Match, SuffixAutomaton


@dataclass(slots=True)
class MemoryCursor:
    """One output's place in the memory: where it is being written, and the longest suffix of it and of its prompt that
    other outputs have, or that came earlier in itself."""

    generation: int = 0
    last: int = ROOT
    young: Match = field(default_factory=Match)
    old: Match = field(default_factory=Match)


class SuffixMemory:
    """Two automata, of which one grows. When it has half of `max_bytes` it becomes the old one, and the one that was
    old until then is forgotten: single texts cannot be taken out of an automaton."""

    def __init__(self, max_bytes: int) -> None:
        self._half_bytes = max_bytes // 2
        self._generation = 0
        self._young = SuffixAutomaton()
        self._old = SuffixAutomaton()

    @property
    def num_bytes(self) -> int:
        """Memory, about."""
        return self._young.num_bytes + self._old.num_bytes

    def read(self, cursor: MemoryCursor, token_id: int) -> None:
        """The cursor's text goes on with a token that is not remembered, one of its prompt."""
        self._renew(cursor)
        self._young.advance(cursor.young, token_id)
        self._old.advance(cursor.old, token_id)

    def write(self, cursor: MemoryCursor, token_id: int) -> None:
        """The cursor's text goes on with a token of its output."""
        # Before it is written, or what is found is the text itself.
        self.read(cursor, token_id)
        cursor.last = self._young.append(cursor.last, token_id)
        if self._young.num_bytes > self._half_bytes:
            self._generation += 1
            self._old, self._young = self._young, SuffixAutomaton()

    def continuations(
        self, cursor: MemoryCursor, min_match: int, max_tokens: int, min_probability: float
    ) -> list[Continuation]:
        """What followed the longest suffix, in either automaton where it has `min_match` tokens: no more tokens than it
        has itself."""
        self._renew(cursor)
        return [
            automaton.continuation(match, min(max_tokens, match.length), min_probability)
            for automaton, match in ((self._young, cursor.young), (self._old, cursor.old))
            if match.length >= min_match
        ]

    def _renew(self, cursor: MemoryCursor) -> None:
        if cursor.generation == self._generation:
            return
        # The states of the young automaton are still good if that has become the old one just now.
        cursor.old = cursor.young if cursor.generation == self._generation - 1 else Match()
        cursor.young, cursor.last, cursor.generation = Match(), ROOT, self._generation
