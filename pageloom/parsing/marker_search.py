"""Where in a growing text the first of some markers stands. Pure; linear in the text."""

from __future__ import annotations

from collections.abc import Iterable


class MarkerSearch:
    """Passes a text on up to a marker; holds back no more than may still become one.

    The result is the same however the text is cut into pieces, provided that no marker is part of another.
    """

    __slots__ = ("_first_characters", "_held", "_longest_len", "_markers")

    def __init__(self, markers: Iterable[str]) -> None:
        self._markers = tuple(markers)
        self._first_characters = frozenset(marker[0] for marker in self._markers)
        self._longest_len = max(map(len, self._markers), default=0)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None, str]:
        """The text that is certain to precede any marker, the marker if one is complete, and what follows it."""
        if not self._held and self._first_characters.isdisjoint(text):
            return text, None, ""
        known = self._held + text
        found = [(position, marker) for marker in self._markers if (position := known.find(marker)) >= 0]
        if found:
            position, marker = min(found)
            self._held = ""
            return known[:position], marker, known[position + len(marker) :]
        certain = self._certain_len(known)
        self._held = known[certain:]
        return known[:certain], None, ""

    def finish(self) -> str:
        """What was held back, once the text has ended."""
        held, self._held = self._held, ""
        return held

    def _certain_len(self, known: str) -> int:
        for start in range(max(0, len(known) - self._longest_len + 1), len(known)):
            if known[start] in self._first_characters and any(m.startswith(known[start:]) for m in self._markers):
                return start
        return len(known)
