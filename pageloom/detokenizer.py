"""Token ids -> text that grows, and where a stop string ends it. Pure; linear in the output's length."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Callable, Iterable, Sequence

# A character has at most four bytes, so at most its first three can be at the end of a prompt.
_LONGEST_PARTIAL_TOKENS = 3


class Detokenizer:
    """Joins the bytes of tokens into characters; half a character waits for its rest.

    `token_bytes` is `Tokenizer.token_bytes`; `skipped_ids` add no text. A prompt that ends in half a
    character, which only one given as token ids can, is continued if its ids are passed.

    The `tokenizers` DecodeStream does the same by decoding a growing window of tokens again at each
    step, which is quadratic over a run of skipped or invalid tokens, and raises on some prefixes.
    """

    __slots__ = ("_partial", "_skipped_ids", "_token_bytes")

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        *,
        skipped_ids: frozenset[int] = frozenset(),
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        self._token_bytes = token_bytes
        self._skipped_ids = skipped_ids
        self._partial = b""
        for token_id in prompt_token_ids[-_LONGEST_PARTIAL_TOKENS:]:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        """The characters that this token completes; invalid bytes become U+FFFD."""
        if token_id in self._skipped_ids:
            return ""
        # As codecs' incremental decoder does, which is written in Python.
        data = self._partial + self._token_bytes(token_id)
        text, num_decoded = utf_8_decode(data, "replace", False)
        self._partial = data[num_decoded:]
        return text

    def finish(self) -> str:
        """One U+FFFD if the text ends in half a character."""
        text, _ = utf_8_decode(self._partial, "replace", True)
        self._partial = b""
        return text


class StopStrings:
    """The strings that end a text, as one automaton (Aho-Corasick) for all choices of a request.

    State `s` stands for the longest suffix of the text that begins some stop string; `depth[s]` is its
    length. `match_len[s]` is the length of the longest stop string that ends there, or 0.
    """

    __slots__ = ("_edges", "_failure", "depth", "first_characters", "match_len")

    def __init__(self, strings: Iterable[str]) -> None:
        self._edges: list[dict[str, int]] = [{}]
        self._failure = [0]
        self.depth = [0]
        self.match_len = [0]
        for string in strings:
            self._add(string)
        self.first_characters = frozenset(self._edges[0])
        self._link()

    def step(self, state: int, character: str) -> int:
        edges = self._edges
        while state and character not in edges[state]:
            state = self._failure[state]
        return edges[state].get(character, 0)

    def _add(self, string: str) -> None:
        state = 0
        for character in string:
            following = self._edges[state].get(character)
            if following is None:
                following = len(self._edges)
                self._edges[state][character] = following
                self._edges.append({})
                self._failure.append(0)
                self.depth.append(self.depth[state] + 1)
                self.match_len.append(0)
            state = following
        self.match_len[state] = len(string)

    def _link(self) -> None:
        """Breadth first, so that every state's failure state, being shallower, is linked before it."""
        queue = list(self._edges[0].values())
        for state in queue:
            for character, following in self._edges[state].items():
                self._failure[following] = self.step(self._failure[state], character)
                queue.append(following)
            self.match_len[state] = self.match_len[state] or self.match_len[self._failure[state]]


class StopMatcher:
    """Passes a text on until a stop string is complete; holds back no more than may still become one.

    The match that is complete first wins, of several the longest. The result is the same however the
    text is cut into pieces.
    """

    __slots__ = ("_held", "_include_match", "_state", "_stops", "matched")

    def __init__(self, stops: StopStrings, *, include_match: bool) -> None:
        self._stops = stops
        self._include_match = include_match
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that is certain to be output. Once `matched` is set, the text has ended."""
        stops, state = self._stops, self._state
        if not state and stops.first_characters.isdisjoint(text):
            return text
        known = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            state = stops.step(state, character)
            if match_len := stops.match_len[state]:
                self.matched = known[end - match_len : end]
                return known[: end if self._include_match else end - match_len]
        self._state = state
        certain = len(known) - stops.depth[state]
        self._held = known[certain:]
        return known[:certain]

    def finish(self) -> str:
        """What was held back, once the text has ended without a match."""
        held, self._held = self._held, ""
        return held
