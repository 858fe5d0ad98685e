"""What came before after the longest suffix that is known? An automaton of all substrings of the texts it was given.

Online construction of Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985): amortised
constant time for each token. Each edge counts how often its token followed its state's strings, and each state knows
the likeliest of its edges, so that a continuation is read off in constant time a token, as in SuffixDecoding (Oliaro
et al., 2024, arXiv 2411.04975), where the same counts weigh the nodes of a suffix tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ROOT = 0
_COUNT_SHIFT = 32
_ONE = 1 << _COUNT_SHIFT
_TARGET = _ONE - 1
# Of the states that end at a position, those with the longest strings count what follows. In text there are about
# ten; where one token repeats there are as many as tokens, and then only short contexts are counted too low.
_MOST_COUNTED = 64
# Measured: the four list entries and the dictionary of a state, the packed integer of an edge.
_STATE_BYTES = 310
_EDGE_BYTES = 44


@dataclass(slots=True)
class Match:
    """A text's place in an automaton: the longest suffix of it in there has `length` tokens and belongs to `state`."""

    state: int = ROOT
    length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """The likeliest tokens after a match, and how many of them can be expected to come: the sum over the tokens of the
    estimated probability that all up to it do."""

    token_ids: tuple[int, ...]
    expected: float


class SuffixAutomaton:
    """Texts are appended token by token; several may grow at once, each with the state that `append` returned last."""

    def __init__(self) -> None:
        # Of each state: its edges, token -> count << 32 | target; the sum of their counts; the token that is counted
        # most, of equals the last; the length of its longest string; and the state of the longest suffix of that
        # which ends in more places.
        self._edges: list[dict[int, int]] = [{}]
        self._totals = [0]
        self._likeliest = [-1]
        self._lengths = [0]
        self._links = [-1]
        self._num_edges = 0

    @property
    def num_bytes(self) -> int:
        """Memory, about."""
        return len(self._links) * _STATE_BYTES + self._num_edges * _EDGE_BYTES

    def append(self, last: int, token_id: int) -> int:
        """The text whose whole string is the longest of `last` (ROOT: an empty one) goes on with `token_id`."""
        edges, links = self._edges, self._links
        known = edges[last].get(token_id)
        if known is not None:
            state = self._whole(last, token_id, known & _TARGET)
        else:
            state = self._new_state(self._lengths[last] + 1)
            ancestor = last
            while ancestor >= 0 and token_id not in edges[ancestor]:
                edges[ancestor][token_id] = state
                self._num_edges += 1
                ancestor = links[ancestor]
            if ancestor < 0:
                links[state] = ROOT
            else:
                links[state] = self._whole(ancestor, token_id, edges[ancestor][token_id] & _TARGET)
        self._count(last, token_id)
        return state

    def longest_suffix(self, last: int) -> Match:
        """Of the one text that this automaton has, to `last`: the longest suffix that came earlier too."""
        state = self._links[last]
        return Match(state, self._lengths[state]) if state >= 0 else Match()

    def advance(self, match: Match, token_id: int) -> None:
        """The matched text, which is not one of this automaton, goes on with `token_id`."""
        self._settle(match)
        while True:
            edge = self._edges[match.state].get(token_id)
            if edge is not None:
                match.state, match.length = edge & _TARGET, match.length + 1
                return
            if match.state == ROOT:
                return
            match.state = self._links[match.state]
            match.length = self._lengths[match.state]

    def continuation(self, match: Match, max_tokens: int, min_probability: float) -> Continuation:
        """The likeliest tokens after `match`, while all of them together have `min_probability`."""
        self._settle(match)
        edges, totals, likeliest = self._edges, self._totals, self._likeliest
        state, probability, expected = match.state, 1.0, 0.0
        token_ids: list[int] = []
        while len(token_ids) < max_tokens:
            while totals[state] == 0 and state != ROOT:  # the end of a text; less of it came elsewhere too
                state = self._links[state]
            if state == ROOT:
                break
            token_id = likeliest[state]
            edge = edges[state][token_id]
            probability *= (edge >> _COUNT_SHIFT) / totals[state]
            if probability < min_probability:
                break
            expected += probability
            token_ids.append(token_id)
            state = edge & _TARGET
        return Continuation(token_ids=tuple(token_ids), expected=expected)

    def extend(self, last: int, token_ids: Iterable[int]) -> int:
        """As `append`, for several tokens."""
        for token_id in token_ids:
            last = self.append(last, token_id)
        return last

    def _whole(self, state: int, token_id: int, target: int) -> int:
        """The state whose longest string is that of `state` and `token_id`: `target`, or what is split off from it."""
        edges, links, length = self._edges, self._links, self._lengths[state] + 1
        if self._lengths[target] == length:
            return target
        clone = self._new_state(length)
        edges[clone] = edges[target].copy()
        self._num_edges += len(edges[clone])
        self._totals[clone] = self._totals[target]
        self._likeliest[clone] = self._likeliest[target]
        links[clone] = links[target]
        links[target] = clone
        while state >= 0:
            edge = edges[state].get(token_id)
            if edge is None or edge & _TARGET != target:
                break
            edges[state][token_id] = edge - target + clone
            state = links[state]
        return clone

    def _count(self, state: int, token_id: int) -> None:
        edges, totals, likeliest, links = self._edges, self._totals, self._likeliest, self._links
        for _ in range(_MOST_COUNTED):
            of_state = edges[state]
            edge = of_state[token_id] = of_state[token_id] + _ONE
            totals[state] += 1
            best = likeliest[state]
            if best != token_id and (best < 0 or edge >> _COUNT_SHIFT >= of_state[best] >> _COUNT_SHIFT):
                likeliest[state] = token_id
            if state == ROOT:
                return
            state = links[state]

    def _settle(self, match: Match) -> None:
        """A state may have been split since: the shorter strings are those of the states it links to."""
        links, lengths = self._links, self._lengths
        while match.state != ROOT and lengths[links[match.state]] >= match.length:
            match.state = links[match.state]

    def _new_state(self, length: int) -> int:
        self._edges.append({})
        self._totals.append(0)
        self._likeliest.append(-1)
        self._lengths.append(length)
        self._links.append(-1)
        return len(self._links) - 1
